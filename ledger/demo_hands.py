"""How an agent of the demo acts on the world: directly, or through the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .demo_runs import Step
from .demo_world import ToolRefused

if TYPE_CHECKING:
    from .session_faces import AgentSession

WAIT_S = 10.0
"""How long an agent waits for a sibling that is at the same operation, before it stops there."""
Act = Callable[[str, str], str]
"""(op_id, idempotency key) → the tool's result."""


class Hands(Protocol):
    """How an agent acts on the world."""

    def perform(self, step: Step, act: Act) -> str:
        """Do one write; returns what came of it: "ran", "refused", "by a sibling", "by itself"."""
        ...

    def checkpoint(self, name: str) -> str:
        """Register a checkpoint; returns the token that belongs into the agent's memory."""
        ...


class Directly:
    """Without a ledger: the tool is called whenever the agent says so."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    def perform(self, step: Step, act: Act) -> str:
        """Call the tool."""
        try:
            act(step.op_id(self._scope), "")
        except ToolRefused:
            return "refused"
        return "ran"

    def checkpoint(self, name: str) -> str:
        """Nothing to register."""
        del name
        return ""


class ThroughLedger:
    """With a ledger: claim, run if owned, record."""

    def __init__(self, session: AgentSession) -> None:
        from .facts import EffectClass  # noqa: PLC0415 (slow, and not wanted without a ledger)

        self._session = session
        self._kind = EffectClass.IRREVERSIBLE

    def perform(self, step: Step, act: Act) -> str:
        """Run the effect at most once, or take the recorded result. Raises UndecidedError."""
        attempt = self._session.attempt(
            step.tool,
            kind=self._kind,
            identity=step.identity,
            content=step.content,
            not_executed=(ToolRefused,),
            wait_s=WAIT_S,
        )
        try:
            with attempt:
                if attempt.owned:
                    attempt.commit(act(attempt.op_id, attempt.idempotency_key))
                    return "ran"
        except ToolRefused:
            return "refused"
        owner = attempt.claim.operation.owner
        mine = owner is not None and owner.intent.branch_id == self._session.branch_id
        return "by itself" if mine else "by a sibling"

    def checkpoint(self, name: str) -> str:
        """Register it in the ledger."""
        return self._session.checkpoint(name).token
