"""An operator's word on an effect: it stands, or that word is taken back.

An operator can adopt a committed effect, by name and bound to the version that was looked at: then it stands,
whatever becomes of the branch that made it. The word is recorded against the logical operation, so it counts
also after the branch that it was given for is pruned, until an operator releases it, in the same way (decision
record 0019). Adoptions, their releases, and undos are facts in the operation's own history: its order decides.
"""

from __future__ import annotations

from .adoption import shows
from .engine import Engine
from .errors import InvalidArgumentError, NotFoundError, OperationBeingUndoneError, moved, not_in_ledger
from .facts import EffectFact, EffectKind, decode_effect
from .history import merge
from .operation_fold import fold_operation
from .operations import RELEASED, Operation, Status
from .view import OperationView


async def adopt(
    engine: Engine, op_id: str, *, agent_id: str, branch_id: str, by: str, evidence: str, version: str
) -> Operation:
    """Let a committed effect stand by an operator's word; the operation after it.

    Args:
        agent_id, branch_id: for whom it stands; a branch that is neither pruned nor closed. Pruning it later
            takes nothing back: the word is about the operation.
        version: `Operation.version` as it was seen.

    Raises:
        NotFoundError: no such operation, agent, or branch.
        VersionMovedError: it changed since; look again.
        OperationBeingUndoneError: an undo of it is under way.
        InvalidArgumentError: it is not committed, so there is nothing to adopt; or the branch is closed.
        StaleProjectionError: not confirmed in time; look again before anything else.
    """
    await _require_branch(engine, agent_id, branch_id)
    view = await engine.view.operation(op_id)
    _require_adoptable(view, version)
    fact = EffectFact(
        kind=EffectKind.ADOPTED,
        op_id=op_id,
        attempt_id=engine.new_id(),
        agent_id=agent_id,
        branch_id=branch_id,
        round=view.operation.round,
        tool=view.operation.tool,
        by=by,
        evidence=evidence,
        version=version,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_effect(fact, view.facts)

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    what = f"the adoption of {op_id}"
    operation = await engine.applied(view.partition, shows(engine, fact), deadline=deadline, beyond=offset, what=what)
    told = {(a.fact.agent_id, a.fact.branch_id, a.fact.by) for a in operation.adoptions}
    if (agent_id, branch_id, by) not in told:
        raise moved(op_id, version, operation.version)
    return operation


async def release(engine: Engine, op_id: str, *, by: str, evidence: str, version: str) -> Operation:
    """Take back what operators have adopted of this effect by name; the operation after it.

    Branches that rely on it are not concerned. What nobody relies on any more is an obligation again, of the branch
    that made it if that is pruned.

    Args:
        version: `Operation.version` as it was seen: only adoptions that its author saw are taken back.

    Raises:
        NotFoundError: no such operation, or no operator has adopted it.
        VersionMovedError, OperationBeingUndoneError, InvalidArgumentError, StaleProjectionError: as of `adopt`.
    """
    view = await engine.view.operation(op_id)
    _require_adoptable(view, version)
    if not any(a.fact.by for a in view.operation.adoptions):
        raise NotFoundError(
            f"operation {op_id} was adopted by no operator, so there is no word to take back.",
            next_step="See who relies on it with `fencepost ops show`; a branch that does is pruned, or goes back.",
            field="op_id",
        )
    fact = EffectFact(
        kind=EffectKind.ADOPTED,
        op_id=op_id,
        attempt_id=engine.new_id(),
        round=view.operation.round,
        tool=view.operation.tool,
        by=by,
        evidence=evidence,
        reason=RELEASED,
        version=version,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_effect(fact, view.facts)

    async def applied() -> tuple[Operation, bool] | None:
        operation, facts = await engine.view.folded(op_id)
        places = [position for position, data in facts if decode_effect(data).attempt_id == fact.attempt_id]
        if not places:
            return None
        then = fold_operation(op_id, merge(one for one in facts if one[0] <= places[0]))
        return operation, then.version == str(places[0])

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    what = f"the release of {op_id}"
    operation, counts = await engine.applied(view.partition, applied, deadline=deadline, beyond=offset, what=what)
    if not counts:
        raise moved(op_id, version, operation.version)
    return operation


async def _require_branch(engine: Engine, agent_id: str, branch_id: str) -> None:
    branch = (await engine.view.known_agent(agent_id)).agent.branches.get(branch_id)
    if branch is None or not branch.begun:
        raise NotFoundError(
            f"branch {branch_id} of {agent_id} does not exist.",
            next_step="List its branches with `fencepost branch list`.",
            field="branch",
        )
    if branch.pruned or branch.forbidden:
        raise InvalidArgumentError(
            f"branch: {branch_id} of {agent_id} is {'pruned' if branch.pruned else f'closed ({branch.forbidden})'}; "
            "nothing can stand for it.",
            next_step="Adopt it for a branch that goes on (`fencepost branch list`), or undo it.",
            field="branch",
        )


def _require_adoptable(view: OperationView, version: str) -> None:
    operation = view.operation
    if not view.facts and not view.seen.unsafe:
        raise not_in_ledger(operation.op_id)
    if operation.version != version:
        raise moved(operation.op_id, version, operation.version)
    if operation.status is Status.COMPENSATING:
        raise OperationBeingUndoneError(
            f"operation {operation.op_id} is being undone since version {operation.version}.",
            next_step="Carry that undo to its end, or settle it with `fencepost in-doubt resolve`, before you decide.",
            op_id=operation.op_id,
        )
    if operation.status is not Status.COMMITTED or view.seen.unsafe:
        raise InvalidArgumentError(
            f"op_id: {operation.op_id} is {view.seen.unsafe or operation.status.value}; only a committed effect can stand.",
            next_step="Settle it first with `fencepost in-doubt resolve`.",
            field="op_id",
        )
