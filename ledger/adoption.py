"""Relying on an effect that another branch committed, against the undo of that effect.

Both are facts in the operation's own history, so its log order decides who came first: an undo that
begins after an adoption names a version that has moved, and does not count; an adoption that comes
after the beginning of an undo adopts nothing, and its author waits for the round to end.

Once a branch of the agent has adopted the effect, further sessions only note that they absorbed it, in
the agents log: a hot operation's history does not grow with its siblings. The branch that adopted it may
be pruned or go back over it meanwhile, so each session that did not adopt it itself, one of that same
branch too, writes first and looks at the operation afterwards. An undo does the same the other way
round: it begins first and looks afterwards whose path knows the effect (`reliance.py`). So of a session
that absorbs and an undo one sees the other. Sessions of the branch that made the effect write nothing:
no undo waits for them. Nor does a fork: an undo that begins after it sees the path of the new branch.

An operator can adopt an effect as well, by name and bound to the version that was looked at: then it
stands, whatever becomes of the branch that made it. The word is recorded against the logical operation, so
it counts also after the branch that it was given for is pruned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from .attempt_facts import adopted
from .calls import Call
from .engine import Engine
from .errors import (
    InvalidArgumentError,
    NotFoundError,
    OperationBeingUndoneError,
    StaleProjectionError,
    moved,
)
from .facts import EffectFact, EffectKind, decode_agent, decode_effect
from .operations import Operation, Status
from .sessions import SessionState
from .view import OperationView


def needs_adoption(session: SessionState, operation: Operation) -> bool:
    """Whether relying on this committed effect must be put into its history first."""
    if operation.harmless or (operation.op_id, operation.round) in session.absorbed:
        return False
    if not _done_beside(session, operation):
        return False
    return not any(a.fact.agent_id == session.agent_id and not a.fact.by for a in operation.adoptions)


def _done_beside(session: SessionState, operation: Operation) -> bool:
    """Whether another branch than the session's committed it."""
    mine = (session.agent_id, session.branch_id)
    return operation.done_by is not None and operation.done_by_branch != mine


def _rests_on_another(session: SessionState, operation: Operation) -> bool:
    """Whether only another branch of the agent has adopted it, and this session has not been seen beside it."""
    if operation.harmless or (operation.op_id, operation.round) in session.absorbed:
        return False
    adopted_here = any(a.fact.session_id == session.session_id and not a.fact.by for a in operation.adoptions)
    return _done_beside(session, operation) and not adopted_here


def is_secure(session: SessionState, operation: Operation) -> bool:
    """Whether a committed effect may be relied on without a word to anybody that has to be waited for."""
    return not needs_adoption(session, operation) and not _rests_on_another(session, operation)


async def secured(session: SessionState, call: Call, view: OperationView) -> bool:
    """Whether the committed effect can be relied on; False: look at the operation again.

    Raises StaleProjectionError when that is not confirmed in time; nothing was run.
    """
    if not needs_adoption(session, view.operation):
        return not _rests_on_another(session, view.operation) or await _noted(session, call, view)
    engine = session.engine
    fact = adopted(session, call, engine.new_id(), view.operation.round)
    deadline = engine.clock.monotonic() + _patience_s(session, call)
    offset = await session.publish_effect(fact, view.facts)

    operation = await engine.wait_until(view.partition, _applied(engine, fact), deadline=deadline, beyond=offset)
    if operation is None:
        raise _unconfirmed(session, call)
    mine = any(a.fact.attempt_id == fact.attempt_id for a in operation.adoptions)
    return mine and operation.status is Status.COMMITTED


def _applied(engine: Engine, fact: EffectFact) -> Callable[[], Coroutine[Any, Any, Operation | None]]:
    """Looks whether a fact is applied: the operation as it then is."""

    async def look() -> Operation | None:
        operation, facts = await engine.view.folded(fact.op_id)
        return operation if any(decode_effect(f).attempt_id == fact.attempt_id for _, f in facts) else None

    return look


def _patience_s(session: SessionState, call: Call) -> float:
    """How long the call may wait for that: no longer than for another owner, or for its own intent."""
    return min(session.engine.limits.apply_s, max(call.wait_s, call.deadline_s))


async def _noted(session: SessionState, call: Call, view: OperationView) -> bool:
    """Whether the effect still stands once it can be seen that this session absorbed it."""
    engine, round_number = session.engine, view.operation.round
    key, fact, offset = await session.absorb(call.op_id, round_number, call.tool)

    async def applied() -> bool | None:
        facts = await engine.view.agent_history(session.agent_id, key)
        return True if any(decode_agent(data) == fact for _, data in facts) else None

    deadline = engine.clock.monotonic() + _patience_s(session, call)
    partition = engine.view.agents_partition(session.agent_id)
    if await engine.wait_until(partition, applied, deadline=deadline, beyond=offset) is None:
        session.absorbed.discard((call.op_id, round_number))
        raise _unconfirmed(session, call)
    operation, _ = await engine.view.folded(call.op_id)
    return operation.status is Status.COMMITTED and operation.round == round_number


async def all_stand(session: SessionState, absorbed: Collection[tuple[str, int]]) -> bool:
    """Whether these effects (op_id, round) still stand once it can be seen that this session absorbed them.

    Raises StaleProjectionError when that cannot be seen in time.
    """
    if not absorbed:
        return True
    engine = session.engine
    await session.drain()

    async def applied() -> bool | None:
        seen = await engine.view.absorbed(session.agent_id)
        missing = (key for key in absorbed if not any(place.epoch == session.epoch for place in seen.get(key, ())))
        return True if next(missing, None) is None else None

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(session.agent_id)
    await engine.applied(partition, applied, deadline=deadline, beyond=None, what="what the session has taken over")
    views = await asyncio.gather(*(engine.view.folded(op_id) for op_id, _ in absorbed))
    standing = {(op.op_id, op.round) for op, _ in views if op.status is Status.COMMITTED}
    return standing >= set(absorbed)


def _unconfirmed(session: SessionState, call: Call) -> StaleProjectionError:
    return StaleProjectionError(
        f"that {session.agent_id}/{session.branch_id} relies on {call.op_id} was not confirmed in time. Nothing was run.",
        next_step="See `fencepost projector lag`; start one with `fencepost projector run`.",
        op_id=call.op_id,
    )


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
    operation = await engine.applied(
        view.partition, _applied(engine, fact), deadline=deadline, beyond=offset, what=what
    )
    told = {(a.fact.agent_id, a.fact.branch_id, a.fact.by) for a in operation.adoptions}
    if (agent_id, branch_id, by) not in told:
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
        raise NotFoundError(
            f"operation {operation.op_id} is not in this ledger.",
            next_step="List operations with `fencepost ops list`.",
            field="op_id",
        )
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


async def wait_for_undo(session: SessionState, call: Call, view: OperationView, patience: float) -> None:
    """Wait until the undo that is under way has ended. Raises OperationBeingUndoneError past `patience`."""
    engine, version = session.engine, view.operation.version

    async def ended() -> bool | None:
        operation, _ = await engine.view.folded(call.op_id)
        return True if operation.version != version else None

    if await engine.wait_until(view.partition, ended, deadline=patience) is None:
        raise OperationBeingUndoneError(
            f"operation {call.op_id} is being undone since version {version}, and that has not ended within {call.wait_s:g} s.",
            next_step="Carry the plan out to its end (`fencepost compensate run`), or settle it with "
            "`fencepost in-doubt resolve`.",
            op_id=call.op_id,
        )
