"""What becomes of the checks that a store is opened with."""

from __future__ import annotations

import pytest

from fencepost.ledger import GuaranteeError, StoreUnavailableError
from fencepost.ledger.ports import Check
from fencepost.ledger.stores import require_guarantees

GOOD = Check("t.effects: cleanup.policy", ok=True, found="compact", wanted="exactly compact")
WEAK = Check("t.effects: replicas", ok=False, found="1", wanted="at least 3", severity="warn")
BROKEN = Check("t.agents: cleanup.policy", ok=False, found="delete", wanted="exactly compact")
SILENT = Check("Redis answers", ok=False, found="Nothing at 127.0.0.1:9. Check that it runs.", wanted="yes")


def test_warnings_come_back() -> None:
    """What is only weak is returned, to be said loudly."""
    assert require_guarantees([GOOD, WEAK]) == [WEAK]


def test_a_broken_setting_is_refused() -> None:
    """It is named with what was found; trying again is of no use, whoever else does not answer."""
    for checks in ([GOOD, BROKEN], [SILENT, BROKEN]):
        with pytest.raises(GuaranteeError, match=r"t\.agents: cleanup\.policy is delete") as caught:
            require_guarantees(checks)
        assert not caught.value.retryable


def test_what_an_error_says_is_no_object_of_another_sentence() -> None:
    """A check that found an error tells it in its own sentences; any other says what is found and what must be."""
    broken = Check("file", ok=False, found="it is damaged.", wanted="Stop every process.")
    with pytest.raises(GuaranteeError, match=r"promises: file: it is damaged\. Stop every process\. Correct"):
        require_guarantees([broken])
    with pytest.raises(GuaranteeError, match=r"cleanup\.policy is delete, must be [^.]+\. Correct"):
        require_guarantees([BROKEN])


def test_a_service_that_does_not_answer() -> None:
    """That is no broken promise: the same call may succeed later, and the error says so."""
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9") as caught:
        require_guarantees([GOOD, WEAK, SILENT])
    assert caught.value.retryable
    assert str(caught.value).endswith(caught.value.next_step)
