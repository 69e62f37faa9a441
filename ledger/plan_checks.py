"""Whether a plan of compensations still holds: what asked for it, and each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from .engine import Engine
from .errors import (
    InvalidArgumentError,
    ManifestError,
    OperationBeingUndoneError,
    OperationInDoubtError,
    VersionMovedError,
    moved,
)
from .facts import EffectKind, decode_effect
from .lineage import Agent, Rollback, descendants
from .operations import Operation, Status
from .plan_order import LeftStanding, ordered
from .plans import Plan, Step
from .reliance import Branches, relied_on_by, step_now
from .view import OperationView
from .witnesses import witnesses_of


async def require_current(engine: Engine, plan: Plan) -> list[OperationView]:
    """The operations of the plan, as they stand; what was not begun stands as it was planned.

    A step that is under way must come to an end whatever has moved since, so it is let pass here.

    Raises VersionMovedError, ManifestError, OperationBeingUndoneError, OperationInDoubtError.
    """
    views = await asyncio.gather(*(engine.view.operation(step.op_id) for step in plan.steps))
    pairs = list(zip(views, plan.steps, strict=True))
    to_do = [(view.operation, step) for view, step in pairs if view.operation.round <= step.round]
    if to_do and not any(_under_way(operation, plan) for operation, _ in to_do):
        await require_cause(engine, plan)
    for view, step in pairs:
        await require_step(engine, plan, step, view)
    agent = (await engine.view.agent(plan.agent_id)).agent
    _require_order(to_do, agent)
    waiting = {operation.op_id for operation, _ in to_do if operation.status is Status.COMMITTED}
    if plan.cause == "operation" and waiting:
        await _require_all_named(engine, plan, agent, waiting)
    return list(views)


async def with_leaves(engine: Engine, plan: Plan, agent: Agent) -> Plan:
    """The plan, with what each of its steps would leave standing. Raises ManifestError when there are too many."""
    views = await engine.view.agent_operations(agent.agent_id)
    mine = [v.operation for v in views if v.operation.done_by_branch[0] == agent.agent_id]
    operations = {operation.op_id: operation for operation in mine}
    left = LeftStanding(mine, agent=agent, undone={step.op_id for step in plan.steps})
    steps = (
        replace(step, leaves=left.upon(operations[step.op_id])) if step.op_id in operations else step
        for step in plan.steps
    )
    return replace(plan, steps=tuple(steps))


async def _require_all_named(engine: Engine, plan: Plan, agent: Agent, waiting: Collection[str]) -> None:
    """Raises ManifestError when an effect was built since the plan was made on one that is still to be undone."""
    now = await with_leaves(engine, plan, agent)
    for step, told in zip(plan.steps, now.steps, strict=True):
        if step.op_id in waiting and (new := sorted(set(told.leaves) - set(step.leaves))):
            raise ManifestError(
                f"plan: {', '.join(new)} was done on what {step.op_id} changed, stands, and is in no step of the plan. "
                "Nothing was undone by it.",
                next_step="Make the plan anew with `ledger.plan_compensation(…)`: undo that as well, or accept that it stands.",
                field="leaves",
                op_id=step.op_id,
            )


def _require_order(to_do: Sequence[tuple[Operation, Step]], agent: Agent) -> None:
    steps = [step for _, step in to_do]
    if list(ordered((o for o, _ in to_do), {step.op_id: step for step in steps}, agent=agent)) != steps:
        raise ManifestError(
            "plan: its steps are not in reverse order of commit, dependents first.",
            next_step="Make the plan anew with `ledger.plan_compensation(…)`.",
            field="steps",
        )


async def require_step(engine: Engine, plan: Plan, step: Step, view: OperationView) -> None:
    """Raises unless the step is done, under way in this plan, or can be begun as it was planned."""
    operation = view.operation
    if view.seen.unsafe or operation.status is Status.UNSAFE:
        raise OperationInDoubtError(
            f"operation {step.op_id} cannot be undone: {view.seen.unsafe or 'it holds a fact of an unknown kind'}.",
            next_step="Settle it with `fencepost in-doubt resolve`, then make another plan.",
            op_id=step.op_id,
        )
    if operation.round > step.round:
        return
    if operation.status is Status.COMPENSATING and not _under_way(operation, plan):
        raise OperationBeingUndoneError(
            f"operation {step.op_id} is being undone by another plan.",
            next_step="Carry that one out to its end; see `fencepost compensate list`.",
            op_id=step.op_id,
        )
    if operation.round != step.round or not operation.stands:
        raise moved(step.op_id, step.version, operation.version)
    if operation.done_by_branch[0] != plan.agent_id:
        raise ManifestError(
            f"plan: it is of {plan.agent_id}, and {step.op_id} was not done by that agent.",
            next_step="Make the plan anew with `ledger.plan_compensation(…)`.",
            field="plan",
            op_id=step.op_id,
        )
    if operation.status is Status.COMMITTED:
        await _require_as_planned(engine, plan, step, view)
    elif operation.settled is None or operation.settled.manifest_digest != step.manifest.digest:
        raise _other_manifest(step)


async def _require_as_planned(engine: Engine, plan: Plan, step: Step, view: OperationView) -> None:
    operation = view.operation
    if operation.version != step.version and not _withdrawn_by(view, plan):
        raise moved(step.op_id, step.version, operation.version)
    agent = (await engine.view.known_agent(plan.agent_id)).agent
    now = step_now(operation, await witnesses_of(engine, agent, [operation]), leaving=leaving(agent, plan))
    if (now.manifest, now.adopted_by) != (step.manifest, step.adopted_by):
        raise _other_manifest(step)


def _withdrawn_by(view: OperationView, plan: Plan) -> bool:
    """Whether nothing but an undo of this very plan, which changed nothing, has moved the operation."""
    last = [decode_effect(fact) for position, fact in view.facts if str(position) == view.operation.version]
    return any(f.kind is EffectKind.COMPENSATION_WITHDRAWN and f.plan_digest == plan.digest for f in last)


def _under_way(operation: Operation, plan: Plan) -> bool:
    return operation.undoing is not None and operation.undoing.plan_digest == plan.digest


def _other_manifest(step: Step) -> ManifestError:
    return ManifestError(
        f"plan: how it undoes {step.op_id} is not what was sealed with that effect. Nothing was undone by it.",
        next_step="Make the plan anew with `ledger.plan_compensation(…)`, and have that approved.",
        field="manifest",
        op_id=step.op_id,
    )


# -- what asked for it ---------------------------------------------------------------------


async def require_cause(engine: Engine, plan: Plan) -> None:
    """Raises VersionMovedError when what asked for the plan does not hold any more."""
    if plan.cause == "operation":
        return
    agent = (await engine.view.known_agent(plan.agent_id)).agent
    if plan.cause == "rollback":
        gone = _rolled_on(agent, plan)
    elif plan.cause == "prune":
        branch = agent.branches.get(plan.branch_id)
        gone = "" if branch is not None and branch.pruned else f"branch {plan.branch_id} is not pruned"
    else:
        raise InvalidArgumentError(
            f"plan: {plan.cause!r} is no cause that is known.", next_step="Make the plan anew.", field="plan"
        )
    if gone:
        raise VersionMovedError(
            f"the plan does not hold any more: {gone}. Nothing was undone.",
            next_step="Authorise the rollback anew, and carry out the plan of that verdict.",
            op_id="",
            seen=plan.cause_id,
            current=gone,
        )


def _rolled_on(agent: Agent, plan: Plan) -> str:
    """Why a rollback's plan does not hold any more; "" if it does."""
    rollback = agent.rollbacks.get(plan.cause_id)
    if rollback is None or rollback.decision is None:
        return "the rollback that it is for was not decided"
    if rollback.decision.plan_digest != plan.digest:
        return "the rollback that it is for was decided with another plan"
    later = [s for s in agent.sessions.values() if not s.rejected and s.epoch > rollback.position]
    if any(session.branch_id in rollback.branches for session in later):
        return "a session has been opened since on a branch that would go back"
    if any(r.authorised and r.position > rollback.position and _touches(r, rollback) for r in agent.rollbacks.values()):
        return "another rollback of the branch was authorised since"
    branch = agent.branches[rollback.branch_id]
    if set(descendants(agent, branch, rollback.abandons)) - set(rollback.branches):
        return "a branch was forked since from what would be left behind"
    return ""


def _touches(one: Rollback, other: Rollback) -> bool:
    return bool(set(one.branches) & set(other.branches))


def leaving(agent: Agent, plan: Plan) -> Branches:
    """(agent_id, branch_id) of the branches that are closed, or go away with what asked for the plan."""
    gone = {name for name, branch in agent.branches.items() if branch.forbidden}
    rollback = agent.rollbacks.get(plan.cause_id) if plan.cause == "rollback" else None
    return frozenset((agent.agent_id, name) for name in gone | set(rollback.branches if rollback else ()))


async def relying(engine: Engine, plan: Plan, step: Step) -> str:
    """Who stays and relies on the effect ("" if nobody); read once its undo has begun.

    Only the first branch of an agent says so in the operation's own history; the others in their agent's log.
    """
    operation, _ = await engine.view.folded(step.op_id)
    agent = (await engine.view.agent(plan.agent_id)).agent
    witnesses = await witnesses_of(engine, agent, [operation])
    return ", ".join(relied_on_by(operation, witnesses, leaving=leaving(agent, plan)))
