"""Room for the largest outcome is reserved before an intent is written."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("deadline_s", value) for value in (-1, float("nan"), float("inf"), "3", None, True)],
        *[("apply_s", value) for value in (-0.1, 10**9)],
        *[("max_attempts", value) for value in ("x", 0, -1, 1.5, True, None)],
        *[("max_result_bytes", value) for value in (0, "1", 1e3)],
    ],
)
def test_limits_that_are_no_limits(name: str, value: Any) -> None:
    """Refused where they are made, naming the one."""
    with pytest.raises(InvalidArgumentError) as caught:
        Limits(**{name: value})
    assert caught.value.field == name
