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
A session that opens after an undo has looked is not fenced by it, and need not be: that the undo has begun was applied
before it looked. So whoever asks for the effect waits for its end, a resume and the guard say that it is being undone, or
that it was, and no further step of a rollback's plan is begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from .attempt_facts import adopted
from .calls import Call
from .engine import Engine
from .errors import OperationBeingUndoneError, StaleProjectionError
from .facts import EffectFact, decode_agent, decode_effect
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

    operation = await engine.wait_until(view.partition, shows(engine, fact), deadline=deadline, beyond=offset)
    if operation is None:
        raise _unconfirmed(session, call)
    mine = any(a.fact.attempt_id == fact.attempt_id for a in operation.adoptions)
    return mine and operation.status is Status.COMMITTED


def shows(engine: Engine, fact: EffectFact) -> Callable[[], Coroutine[Any, Any, Operation | None]]:
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
