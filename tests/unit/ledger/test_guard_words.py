"""How the guard names an effect: as whoever reads it can find it."""

from __future__ import annotations

from unit.ledger.guard_kit import evidence, here, seen
from unit.ledger.kit import effect, intended, resolved

from fencepost.ledger.guard import decide
from fencepost.ledger.verdicts import Policy


def test_what_was_settled_from_outside_is_in_no_sequence() -> None:
    """A probe or an operator writes for no session, so whose word it was is told."""
    operation = seen(here(intended, "a", 7), effect("IN_DOUBT", "a"), resolved("COMMITTED", "0.1", by="ann"))
    [reason] = decide(evidence(operation), Policy.STRICT).reasons
    assert "IRREVERSIBLE, settled by ann, committed) is not known" in reason.text
