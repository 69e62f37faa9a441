"""Making plans of compensations, and what can be said of them: what can be undone, and how far each plan is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import approvals, plan_checks, rollbacks
from .approvals import Approval
from .compensators import Compensators
from .engine import Engine
from .errors import InvalidArgumentError, ManifestError, NotFoundError
from .identity import check_op_id
from .operations import Operation, Status, compensation_op_id
from .plan_order import ordered
from .plans import Plan, Step
from .reliance import Witness, relied_on_by, step_now
from .verdicts import Policy, ReasonKind
from .view import OperationView
from .witnesses import witnesses_of

COMPENSATING_AGENT = "compensation:"
"""What the names of agents that carry plans out begin with."""


def runner_of(agent_id: str, plan_digest: str) -> tuple[str, str]:
    """(agent_id, branch_id) of what carries a plan out: all runs of it speak for this branch, and fence each other."""
    return COMPENSATING_AGENT + agent_id, plan_digest[:16]


@dataclass(frozen=True, slots=True)
class StandingEffect:
    """An effect that stands and is not harmless to repeat: how it can be undone, or why it cannot.

    Attributes:
        step: how; None if nobody can undo it by a plan.
        why: why not ("" if it can be).
    """

    view: OperationView
    step: Step | None
    why: str = ""

    @property
    def operation(self) -> Operation:
        """The folded operation."""
        return self.view.operation

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        operation, step = self.operation, self.step
        return {
            "op_id": operation.op_id, "tool": operation.tool, "effect_class": operation.effect_class.value,
            "status": operation.status.value, "round": operation.round, "version": operation.version,
            "action": step.manifest.action.name if step else "",
            "verdict": step.manifest.verdict.value if step else "",
            "irreversible": list(step.losses) if step else [],
            "why": self.why,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far one step of an approved plan is: "to do", "under way", "in doubt", "undone", or "moved"."""

    op_id: str
    round: int
    state: str
    compensation_op_id: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "round": self.round, "state": self.state,
            "compensation_op_id": self.compensation_op_id,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """An approved plan and how far it is."""

    approval: Approval
    steps: tuple[StepProgress, ...]

    @property
    def plan(self) -> Plan:
        """The plan, as it was approved."""
        return self.approval.plan

    @property
    def done(self) -> bool:
        """Whether every step is undone."""
        return all(step.state == "undone" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "approval": self.approval.to_dict(),
            "plan": self.plan.to_dict(),
            "steps": [step.to_dict() for step in self.steps],
            "done": self.done,
        }


async def plan_operations(engine: Engine, op_ids: Sequence[str]) -> Plan:
    """The plan that undoes these operations of one agent.

    Raises:
        NotFoundError, InvalidArgumentError: no such operation; none given; of several agents.
        ManifestError: one of them cannot be undone; it names which, and why.
    """
    names = list(dict.fromkeys(check_op_id(op_id) for op_id in op_ids))
    views = await _settled_views(engine, names)
    unknown = [v.operation.op_id for v in views if not v.facts and not v.seen.unsafe]
    if unknown or not names:
        raise NotFoundError(
            f"operation {unknown[0]} is not in this ledger." if unknown else "op_ids: no operation was named.",
            next_step="List what can be undone with `fencepost compensate list`.",
            field="op_ids",
        )
    places = {view.operation.done_by_branch for view in views}
    agent = (await engine.view.agent(_one_agent(views))).agent
    witnesses = await witnesses_of(engine, agent, [view.operation for view in views])
    steps = {view.operation.op_id: _step(view, witnesses) for view in views}
    plan = Plan(
        ledger_id=engine.ledger_id,
        agent_id=agent.agent_id,
        branch_id=places.pop()[1] if len(places) == 1 else "",
        cause="operation",
        steps=ordered([view.operation for view in views], steps, agent=agent),
    )
    return await plan_checks.with_leaves(engine, plan, agent)


_TOLD = 3
"""How many operations of an agent an error spells out."""


def _one_agent(views: Sequence[OperationView]) -> str:
    """The agent that did these operations. Raises ManifestError for one that nobody did, InvalidArgumentError for several."""
    done: dict[str, list[str]] = {}
    for view in views:
        agent_id, _ = view.operation.done_by_branch
        if not agent_id:
            _step(view, ())  # raises: nothing of it stands
        done.setdefault(agent_id, []).append(view.operation.op_id)
    if len(done) == 1:
        return next(iter(done))
    told = "; ".join(f"{agent_id} did {_listed(op_ids)}" for agent_id, op_ids in sorted(done.items()))
    raise InvalidArgumentError(
        f"op_ids: they were done by {len(done)} agents, and in which order cannot be told: {told}.",
        next_step="Make a plan for each agent (`fencepost compensate plan --op …`), have each approved, and carry that "
        "one out first whose effects rest on the other's.",
        field="op_ids",
        agents=done,
    )


def _listed(op_ids: Sequence[str]) -> str:
    more = f" and {len(op_ids) - _TOLD} more" if len(op_ids) > _TOLD else ""
    return f"{', '.join(op_ids[:_TOLD])}{more}"


async def _settled_views(engine: Engine, op_ids: Sequence[str]) -> list[OperationView]:
    """The operations; one that looks owned is looked at again: its outcome may be written and not applied yet."""
    patience = engine.clock.monotonic() + rollbacks.UNDER_WAY_S
    while True:
        views = await asyncio.gather(*(engine.view.operation(op_id) for op_id in op_ids))
        owned = [v for v in views if v.operation.status is Status.OWNED and not v.seen.owner_ended]
        if not owned or engine.clock.monotonic() >= patience:
            return list(views)
        await asyncio.sleep(0.05)


def _step(view: OperationView, witnesses: Sequence[Witness]) -> Step:
    if view.seen.unsafe:
        raise ManifestError(
            f"operation {view.operation.op_id} cannot be decided: {view.seen.unsafe}.",
            next_step="Settle it with `fencepost in-doubt resolve` first.",
            field="manifest",
            op_id=view.operation.op_id,
        )
    return step_now(view.operation, witnesses)


async def plan_checkpoint(engine: Engine, agent_id: str, checkpoint_id: str, *, branch_id: str = "") -> Plan:
    """The plan that undoes every effect which a checkpoint does not know; nobody is fenced for it.

    Raises:
        UnsafeRollbackError: they cannot all be undone; its verdict says why.
        InvalidArgumentError: there is nothing to undo.
        ManifestError: another branch relies on one of them, be it one that a rollback would leave behind.
    """
    patience = engine.clock.monotonic() + rollbacks.UNDER_WAY_S
    while True:  # an effect that looks owned: its outcome may be written and not applied yet
        verdict = await rollbacks.preview(engine, agent_id, checkpoint_id, policy=Policy.STRICT, branch_id=branch_id)
        owned = {reason.kind for reason in verdict.reasons} == {ReasonKind.EFFECT_OWNED}
        if not owned or engine.clock.monotonic() >= patience:
            break
        await asyncio.sleep(0.05)
    if verdict.plan is None:
        verdict.raise_for_refusal()
        raise InvalidArgumentError(
            f"checkpoint: {checkpoint_id} knows every effect that matters: there is nothing to undo.",
            next_step="Authorise the rollback.",
            field="checkpoint",
        )
    plan = verdict.plan
    await _require_nobody_relies(engine, plan)
    by_name = Plan(
        ledger_id=plan.ledger_id,
        agent_id=plan.agent_id,
        branch_id=plan.branch_id,
        cause="operation",
        checkpoint_id=checkpoint_id,
        steps=plan.steps,
    )
    return await plan_checks.with_leaves(engine, by_name, (await engine.view.agent(agent_id)).agent)


async def _require_nobody_relies(engine: Engine, plan: Plan) -> None:
    """Raises ManifestError: the plan goes by no rollback, so whoever that would leave behind stays."""
    agent = (await engine.view.agent(plan.agent_id)).agent
    operations = [
        operation for operation, _ in await asyncio.gather(*(engine.view.folded(s.op_id) for s in plan.steps))
    ]
    witnesses = await witnesses_of(engine, agent, operations)
    for operation in operations:
        if relying := relied_on_by(operation, witnesses):
            raise ManifestError(
                f"operation {operation.op_id} is relied on by {', '.join(relying)}, which only a rollback ends.",
                next_step="Authorise the rollback, and carry out the plan of that verdict.",
                field="adopted_by",
                op_id=operation.op_id,
            )


async def standing(engine: Engine, agent_ids: Sequence[str]) -> list[StandingEffect]:
    """The effects of these agents that stand and are not harmless, by op_id; compensations are not effects to undo."""
    found: dict[str, StandingEffect] = {}
    for agent_id in agent_ids:
        agent = (await engine.view.agent(agent_id)).agent
        views = [] if agent_id.startswith(COMPENSATING_AGENT) else await engine.view.agent_operations(agent_id)
        views = [v for v in views if v.operation.stands and not v.operation.harmless]
        views = [v for v in views if v.operation.done_by_branch[0] == agent_id]
        witnesses = await witnesses_of(engine, agent, [v.operation for v in views])
        found |= {v.operation.op_id: _standing(v, witnesses) for v in views}
    return [found[op_id] for op_id in sorted(found)]


def _standing(view: OperationView, witnesses: Sequence[Witness]) -> StandingEffect:
    if view.operation.status is Status.COMPENSATING:
        return StandingEffect(view, None, "it is being undone")
    try:
        return StandingEffect(view, _step(view, witnesses))
    except ManifestError as error:
        return StandingEffect(view, None, error.message)


async def verify(engine: Engine, plan: Plan, compensators: Compensators) -> dict[str, str]:
    """op_id → what can be undone now: a manifest's verdict, or "UNDONE", or "UNKNOWN" where no state can be read.

    Raises what `plan_checks.require_current` raises: the plan is not of the ledger as it is.
    """
    views = await plan_checks.require_current(engine, plan)
    hashes = await compensators.hashes([view.operation for view in views if view.operation.stands])
    found = {op_id: verdict.value if op_id in hashes else "UNKNOWN" for op_id, verdict in plan.verify(hashes).items()}
    undone = {v.operation.op_id for v, step in zip(views, plan.steps, strict=True) if v.operation.round > step.round}
    return {op_id: "UNDONE" if op_id in undone else verdict for op_id, verdict in found.items()}


async def progress(engine: Engine, agent_id: str) -> list[PlanProgress]:
    """The approved plans of an agent, oldest first, each with how far it is."""
    found = []
    for approval in await approvals.approvals(engine, agent_id):
        steps = await asyncio.gather(*(_progress(engine, approval.plan, step) for step in approval.plan.steps))
        found.append(PlanProgress(approval, tuple(steps)))
    return found


async def _progress(engine: Engine, plan: Plan, step: Step) -> StepProgress:
    compensation = compensation_op_id(step.op_id, step.round)
    view = await engine.view.operation(step.op_id)
    operation, state = view.operation, "moved"
    if operation.round > step.round:
        state = "undone"
    elif operation.undoing is not None and operation.undoing.plan_digest == plan.digest:
        inverse = await engine.view.operation(compensation)
        doubt = inverse.operation.status is Status.IN_DOUBT or inverse.seen.owner_ended or inverse.seen.unsafe
        state = "in doubt" if doubt else "under way"
    elif operation.status is Status.COMMITTED and operation.round == step.round:
        withdrawn = bool(operation.undoings) and operation.undoings[-1].fact.plan_digest == plan.digest
        state = "to do" if operation.version == step.version or withdrawn else "moved"
    return StepProgress(step.op_id, step.round, state, compensation)
