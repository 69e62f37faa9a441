"""What can be asked and ordered about undoing effects, as coroutines on the engine's loop. Both faces call these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import approvals, compensations, plan_checks, planning
from .approvals import Approval
from .compensation_reports import CompensationReport, Orders
from .compensators import Compensators
from .engine import Engine
from .errors import InvalidArgumentError
from .operations import Operation
from .planning import PlanProgress, StandingEffect
from .plans import Plan
from .resolutions import ProbeAnswer


class CompensationService:
    """Plans, approvals, and carrying them out.

    Args:
        probes: tool or action → the probe that finds out what became of its operations.
    """

    def __init__(self, engine: Engine, probes: dict[str, Callable[[Operation], ProbeAnswer]]) -> None:
        self._engine = engine
        self.probes = probes
        self.compensators = Compensators()
        engine.states = self.compensators.hashes

    async def plan(
        self, op_ids: Sequence[str], *, agent_id: str | None, checkpoint_id: str | None, branch_id: str
    ) -> Plan:
        """The plan that undoes operations, or what a checkpoint does not know; see `planning.py`."""
        by_checkpoint = bool(agent_id) and bool(checkpoint_id)
        if isinstance(op_ids, str) or bool(op_ids) is by_checkpoint or bool(checkpoint_id) is not bool(agent_id):
            raise InvalidArgumentError(
                "op_ids: say which operations are to be undone, or of which agent and checkpoint.",
                next_step="Pass op_ids=[…], or agent= and checkpoint=.",
                field="op_ids",
            )
        if agent_id and checkpoint_id:
            return await planning.plan_checkpoint(self._engine, agent_id, checkpoint_id, branch_id=branch_id)
        return await planning.plan_operations(self._engine, op_ids)

    async def approve(self, plan: Plan, *, by: str, evidence: str, accept_losses: Sequence[str]) -> Approval:
        """Approve a plan as it is; see `approvals.approve`."""
        plan = approvals.require_ours(self._engine, plan)
        await plan_checks.require_current(self._engine, plan)
        return await approvals.approve(self._engine, plan, by=by, evidence=evidence, accepted=_names(accept_losses))

    async def compensate(
        self, plan: Plan, *, by: str, evidence: str, accept_losses: Sequence[str]
    ) -> CompensationReport:
        """Carry a plan out; see `compensations.compensate`."""
        orders = Orders(by, evidence, _names(accept_losses))
        return await compensations.compensate(
            self._engine, plan, orders, compensators=self.compensators, probes=self.probes
        )

    async def plans(self, agent_id: str) -> list[PlanProgress]:
        """The approved plans of an agent, and how far each is. Raises NotFoundError."""
        await self._engine.view.known_agent(agent_id)
        return await planning.progress(self._engine, agent_id)

    async def verify(self, plan: Plan) -> dict[str, str]:
        """op_id → what can be undone now; see `planning.verify`."""
        plan = approvals.require_ours(self._engine, plan)
        return await planning.verify(self._engine, plan, self.compensators)

    async def standing(self, agent_id: str | None) -> list[StandingEffect]:
        """Effects that stand: how each can be undone, or why it cannot."""
        if agent_id is None:
            return await planning.standing(self._engine, await self._engine.view.agents())
        await self._engine.view.known_agent(agent_id)
        return await planning.standing(self._engine, [agent_id])


def _names(accepted: Sequence[str]) -> tuple[str, ...]:
    if isinstance(accepted, str):
        raise InvalidArgumentError(
            f"accept_losses: {accepted!r} is one text, not a list of names.",
            next_step="Pass accept_losses=[…].",
            field="accept_losses",
        )
    return tuple(accepted)
