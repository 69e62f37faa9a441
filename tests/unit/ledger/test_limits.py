"""Room for the largest outcome is reserved before an intent is written."""

from __future__ import annotations

import pytest

from fencepost.ledger import InvalidArgumentError, Limits


def test_the_defaults_fit_into_a_record() -> None:
    """Otherwise nothing could be opened."""
    assert Limits().max_result_bytes > 0


@pytest.mark.parametrize("name", ["max_history_bytes", "max_arguments_bytes", "max_result_bytes", "max_manifest_bytes"])
def test_limits_that_would_not_fit_are_refused(name: str) -> None:
    """A commit that does not fit could never be recorded."""
    with pytest.raises(InvalidArgumentError, match="limits: "):
        Limits(**{name: 900_000})
