"""What both faces of a ledger offer to undo effects: compensators, plans, approvals, and carrying them out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from .approvals import Approval
from .compensation_reports import CompensationReport
from .planning import PlanProgress, StandingEffect
from .plans import Plan
from .running import settle, settled
from .service import Probe, Service

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class _Compensating:
    """What both faces share; the ledger that it is mixed into gives the service and the way onto its loop."""

    _service: Service

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        raise NotImplementedError

    def compensator(
        self,
        action: str,
        *,
        state_hash: Callable[..., Any],
        probe: Probe | None = None,
        longest_run_s: float | None = None,
    ) -> Callable[[C], C]:
        """Register the inverse of effects under the name that their manifests give it (decorator).

        The function is called as `function(op, payload, idempotency_key)`; one with a parameter
        `expected_state_hash` gets that as well, so that check and act can be one conditional write. It may
        raise EffectNotExecuted (certainly nothing was done) or StateMoved (nor was anything, since somebody
        else has changed the state); any other exception leaves the inverse in doubt. Plain functions run in a
        thread of their own.

        Args:
            state_hash: gets the `Operation` (and the manifest's payload, if it has a parameter `payload`);
                returns the hash of the state now, as the tool's own `Undo.state_hash` computes it.
            probe: finds out what became of an inverse in doubt; as of `probe`.
            longest_run_s: the longest that the inverse can still act after it was started.
        """

        def register(function: C) -> C:
            self._service.compensation.compensators.register(
                action, function, state_hash=state_hash, longest_run_s=longest_run_s
            )
            if probe is not None:
                self._service.probes[action] = probe
            return function

        return register


class CompensationCalls(_Compensating):
    """The calls of `Ledger` that undo effects."""

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def standing_effects(self, agent: str | None = None) -> list[StandingEffect]:
        """Effects that stand, of one agent or of all: how each can be undone, or why it cannot."""
        return self._call(self._service.compensation.standing(agent))

    def plan_compensation(
        self,
        op_ids: Sequence[str] = (),
        *,
        agent: str | None = None,
        checkpoint: str | None = None,
        branch: str = "",
    ) -> Plan:
        """The plan that undoes these operations, or every effect that an agent's checkpoint does not know.

        Nothing is undone, and nobody is fenced. A plan is a value: `to_dict()` exports it, `Plan.load` reads
        it back and notices any change.

        Raises ManifestError naming what cannot be undone, and why; NotFoundError.
        """
        return self._call(
            self._service.compensation.plan(op_ids, agent_id=agent, checkpoint_id=checkpoint, branch_id=branch)
        )

    def approve_plan(self, plan: Plan, *, by: str, evidence: str = "", accept_losses: Sequence[str] = ()) -> Approval:
        """Approve exactly this plan, by name; recorded in the agent's log.

        Args:
            accept_losses: each side effect that the plan cannot take back (`plan.losses`).

        Raises LossNotAcceptedError for a loss that is not accepted by name; VersionMovedError for a plan that is outdated.
        """
        return self._call(
            self._service.compensation.approve(plan, by=by, evidence=evidence, accept_losses=accept_losses)
        )

    def compensate(
        self, plan: Plan, *, approved_by: str = "", evidence: str = "", accept_losses: Sequence[str] = ()
    ) -> CompensationReport:
        """Carry a plan out, or go on with it: each inverse runs at most once, however often this is called.

        Args:
            approved_by: who runs it, which is recorded; approves the plan as well, if nobody has yet: as
                `approve_plan`, with its evidence and losses.

        Raises CompensationBlockedError, OperationInDoubtError, and others: see `compensations.compensate`.
        """
        return settle(
            self.submit(
                self._service.compensation.compensate(
                    plan, by=approved_by, evidence=evidence, accept_losses=accept_losses
                )
            )
        )

    def verify_plan(self, plan: Plan) -> dict[str, str]:
        """op_id → what can be undone now: a manifest's verdict, "UNDONE", or "UNKNOWN" where no state can be read.

        Raises VersionMovedError, ManifestError for a plan that is not of the ledger as it is.
        """
        return self._call(self._service.compensation.verify(plan))

    def plans(self, agent: str) -> list[PlanProgress]:
        """The approved plans of an agent, oldest first, each with how far it is. Raises NotFoundError."""
        return self._call(self._service.compensation.plans(agent))


class AsyncCompensationCalls(_Compensating):
    """The calls of `AsyncLedger` that undo effects."""

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    async def standing_effects(self, agent: str | None = None) -> list[StandingEffect]:
        """See `Ledger.standing_effects`."""
        return await self._call(self._service.compensation.standing(agent))

    async def plan_compensation(
        self,
        op_ids: Sequence[str] = (),
        *,
        agent: str | None = None,
        checkpoint: str | None = None,
        branch: str = "",
    ) -> Plan:
        """See `Ledger.plan_compensation`."""
        return await self._call(
            self._service.compensation.plan(op_ids, agent_id=agent, checkpoint_id=checkpoint, branch_id=branch)
        )

    async def approve_plan(
        self, plan: Plan, *, by: str, evidence: str = "", accept_losses: Sequence[str] = ()
    ) -> Approval:
        """See `Ledger.approve_plan`."""
        return await self._call(
            self._service.compensation.approve(plan, by=by, evidence=evidence, accept_losses=accept_losses)
        )

    async def compensate(
        self, plan: Plan, *, approved_by: str = "", evidence: str = "", accept_losses: Sequence[str] = ()
    ) -> CompensationReport:
        """See `Ledger.compensate`."""
        return await settled(
            self.submit(
                self._service.compensation.compensate(
                    plan, by=approved_by, evidence=evidence, accept_losses=accept_losses
                )
            )
        )

    async def verify_plan(self, plan: Plan) -> dict[str, str]:
        """See `Ledger.verify_plan`."""
        return await self._call(self._service.compensation.verify(plan))

    async def plans(self, agent: str) -> list[PlanProgress]:
        """See `Ledger.plans`."""
        return await self._call(self._service.compensation.plans(agent))
