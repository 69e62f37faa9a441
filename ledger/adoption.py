"""Relying on an effect that another branch committed, against the undo of that effect.

Both are facts in the operation's own history, so its log order decides who came first: an undo that
begins after an adoption names a version that has moved, and does not count; an adoption that comes
after the beginning of an undo adopts nothing, and its author waits for the round to end.

Once a branch of the agent has adopted the effect, further ones only note that they absorbed it, in
the agents log: a hot operation's history does not grow with its siblings.
"""

from __future__ import annotations

from .attempt_facts import adopted
from .calls import Call
from .errors import OperationBeingUndoneError, StaleProjectionError
from .facts import decode_effect
from .operations import Operation, Status
from .sessions import SessionState
from .view import OperationView


def needs_adoption(session: SessionState, operation: Operation) -> bool:
    """Whether relying on this committed effect must be put into its history first."""
    if operation.harmless or (operation.op_id, operation.round) in session.absorbed:
        return False
    done_by = operation.owner.intent if operation.owner else operation.settled
    if done_by is None or (done_by.agent_id, done_by.branch_id) == (session.agent_id, session.branch_id):
        return False
    return not any(a.fact.agent_id == session.agent_id for a in operation.adoptions)


async def secured(session: SessionState, call: Call, view: OperationView) -> bool:
    """Whether the committed effect can be relied on; False: look at the operation again.

    Raises StaleProjectionError when that is not confirmed in time; nothing was run.
    """
    if not needs_adoption(session, view.operation):
        return True
    engine = session.engine
    fact = adopted(session, call, engine.new_id(), view.operation.round)
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    offset = await engine.publish_effect(fact, view.facts)

    async def applied() -> Operation | None:
        operation, facts = await engine.view.folded(call.op_id)
        return operation if any(decode_effect(f).attempt_id == fact.attempt_id for _, f in facts) else None

    operation = await engine.wait_until(view.partition, applied, deadline=deadline, beyond=offset)
    if operation is None:
        raise StaleProjectionError(
            f"that {session.agent_id}/{session.branch_id} relies on {call.op_id} was not confirmed in time. Nothing was run.",
            next_step="See `fencepost projector lag`; start one with `fencepost projector run`.",
            op_id=call.op_id,
        )
    return not needs_adoption(session, operation) and operation.status is Status.COMMITTED


async def wait_for_undo(session: SessionState, call: Call, view: OperationView, patience: float) -> None:
    """Wait until the undo that is under way has ended. Raises OperationBeingUndoneError past `patience`."""
    engine, version = session.engine, view.operation.version

    async def moved() -> bool | None:
        operation, _ = await engine.view.folded(call.op_id)
        return True if operation.version != version else None

    if await engine.wait_until(view.partition, moved, deadline=patience) is None:
        raise OperationBeingUndoneError(
            f"operation {call.op_id} is being undone since version {version}, and that has not ended within {call.wait_s:g} s.",
            next_step="Carry the plan out to its end (`fencepost compensate run`), or settle it with "
            "`fencepost in-doubt resolve`.",
            op_id=call.op_id,
        )
