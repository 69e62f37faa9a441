"""How many examples the property tests try: fixed ones, or with FENCEPOST_EXAMPLES=N so many times as many, at random."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

VARIABLE = "FENCEPOST_EXAMPLES"
_OF_A_TEST = "_hypothesis_internal_use_settings"  # where hypothesis looks them up, and its own pytest plugin sets them


def times() -> int:
    """What the environment wants each test's number of examples multiplied by; 0 for the fixed examples."""
    given = os.environ.get(VARIABLE, "")
    if not given:
        return 0
    if not given.isdecimal() or int(given) < 1:
        raise pytest.UsageError(f"{VARIABLE}={given}: give a number from 1 on, by which the examples are multiplied")
    return int(given)


def load_profile() -> None:
    """Without the variable every run tries the same examples."""
    # Two shared cores keep no deadline.
    hypothesis.settings.register_profile("fencepost", deadline=None, print_blob=True, derandomize=not times())
    hypothesis.settings.load_profile("fencepost")


def settings(*, max_examples: int, **more: Any) -> hypothesis.settings:
    """For what hypothesis runs inside a test, where `multiply` does not see it."""
    by = times()
    return hypothesis.settings(max_examples=max_examples * max(1, by), derandomize=not by, **more)


def timeout_s(seconds: float) -> float:
    """A timeout for such a test."""
    return seconds * max(1, times())


def multiply(items: Iterable[pytest.Item], by: int) -> None:
    """Give each property test `by` times its examples, also where it says a number itself, and as much more time."""
    done: list[Any] = []  # the items of a parametrised test are one test
    for item in items:
        test = getattr(item, "obj", None)
        if not hypothesis.is_hypothesis_test(test):
            continue
        item.add_marker(pytest.mark.timeout(_timeout_s(item) * by), append=False)
        owner, name = _holder(item, test)
        if any(owner is one for one in done):
            continue
        done.append(owner)
        own: hypothesis.settings = getattr(owner, name)
        more = hypothesis.settings(own, max_examples=own.max_examples * by, derandomize=False)
        setattr(owner, name, more)


def _holder(item: pytest.Item, test: Any) -> tuple[Any, str]:
    """What has the test's settings, and under which name: a state machine's stand on its class."""
    if hasattr(test, "_hypothesis_state_machine_class"):
        return getattr(item, "cls", None), "settings"
    return getattr(test, "__func__", test), _OF_A_TEST


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))
