"""Waiting for a condition, with a deadline; and letting time pass where a case asks for it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost.deploy.processes import wait_until
from fencepost.ledger import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger import Ledger

T = TypeVar("T")
PATIENCE_S = 60.0


def until(condition: Any, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    assert wait_until(lambda: bool(condition()), timeout_s), "the condition did not come true in time"


@contextmanager
def impatient(ledger: Ledger, **limits: float) -> Iterator[None]:
    """Other limits while something is known to fail; what works is not hurried, however busy the machine is."""
    engine = ledger._engine
    usual = engine.limits
    engine.limits = replace(usual, **limits)  # type: ignore[arg-type]
    try:
        yield
    finally:
        engine.limits = usual


def answer_when_back(ask: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """The answer of a ledger whose projection was lost: refusals until it is back, and only those."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except StoreError:
            if time.monotonic() > deadline:
                raise
        let_time_pass(0.05)


def let_time_pass(seconds: float) -> None:
    """Time passes because the case says so; no outcome is awaited by it."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 1)
