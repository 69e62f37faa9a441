"""The product with one promise taken out, in the processes of a run alone: so that it is seen that the checker finds it.

STACK_BREAK names what is taken out:
    confirmation   an attempt runs as soon as its intent is published, without waiting until it is known to own
    fences         nobody is fenced: neither the predecessor of a session nor what a rollback leaves
    debts          the projector writes no re-assertions, and claims do not stop because of that
"""

from __future__ import annotations

import os
from typing import Any

from fencepost.consumer.debts import DebtPayer
from fencepost.ledger import attempts
from fencepost.ledger.engine import Engine


def break_what_is_named() -> None:
    """Take out what STACK_BREAK names; nothing where it is not set."""
    name = os.environ.get("STACK_BREAK", "")
    if name:
        _BREAKS[name]()


def _confirmation() -> None:
    async def run_at_once(session: Any, call: Any, view: Any, intent: Any, expires: float) -> Any:
        await session.engine.publish_effect(intent, view.facts)
        session.open_attempts[intent.attempt_id].written = True
        claim = attempts.claimed(session, call, view.operation, view.facts, intent.attempt_id)
        claim.expires = expires
        return claim

    attempts._publish_and_confirm = run_at_once


def _fences() -> None:
    async def fence_nobody(self: Engine, *_: Any, **__: Any) -> None:
        del self

    Engine.fence = fence_nobody  # type: ignore[method-assign]


def _debts() -> None:
    def pay_nothing(self: DebtPayer, fold: Any, now: float) -> None:
        del self, fold, now

    async def go_on(*_: Any) -> None:
        """As if nothing were owed: else the agents stop before the cleaner has taken anything away."""

    DebtPayer.pay = pay_nothing  # type: ignore[method-assign]
    attempts._require_settled_log = go_on  # type: ignore[assignment]


_BREAKS = {"confirmation": _confirmation, "fences": _fences, "debts": _debts}
