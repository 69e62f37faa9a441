"""What became of an undo's inverse, looked at before somebody settles the undone operation by hand.

An effect and its inverse are two operations. Whoever says of the effect that it stands, or that it is undone, says
something of the inverse as well, so that is what decides which word can be taken:

    free       it never ran. It stands, never happened, or was undone outside.
    committed  it ran: the effect is undone, and nothing else can be said of it.
    otherwise  it is running, or may have run: nothing can be said before the inverse is settled.

A free inverse must stay so. Until its undo is over, a run of the plan can still claim it, so that run is fenced first
by a session of its branch: what it published before the fence is applied when the inverse is looked at, and what it
publishes afterwards is rejected. A run that begins later must publish COMPENSATING anew, which moves the version, or
names one that the resolution has moved: only one of the two counts.
"""

from __future__ import annotations

from . import opening, sessions
from .engine import Engine
from .errors import InvalidArgumentError, OperationBeingUndoneError
from .facts import Outcome
from .operations import Operation, Status, compensation_op_id
from .planning import runner_of
from .view import OperationView


async def require_word(engine: Engine, view: OperationView, outcome: Outcome) -> None:
    """Make sure that what became of the inverse allows this word, and that it cannot change afterwards.

    1. look at the inverse; 2. fence the run of the plan that is under way, if there is one; 3. look again.
    The resolution that follows must name the version of `view`.

    Raises:
        OperationBeingUndoneError: the inverse is running or in doubt; nothing was written.
        InvalidArgumentError: the inverse ran, so the effect is undone.
        StaleProjectionError: the fence was not applied in time; doing it again is safe.
    """
    operation = view.operation
    if not (operation.stands or operation.status is Status.UNSAFE or view.seen.unsafe):
        return  # nothing has been undone of it in this round
    await _look(engine, operation, outcome)
    if operation.undoing is not None:
        agent_id, branch_id = runner_of(operation.done_by_branch[0], operation.undoing.plan_digest)
        await sessions.close_session(await opening.open_session(engine, agent_id, branch_id))
        await _look(engine, operation, outcome)


async def _look(engine: Engine, operation: Operation, outcome: Outcome) -> None:
    op_id = operation.op_id
    view = await engine.view.operation(compensation_op_id(op_id, operation.round))
    inverse = view.operation
    if view.seen.unsafe or view.seen.owner_ended or inverse.status not in {Status.FREE, Status.COMMITTED}:
        state = "unsafe" if view.seen.unsafe else "in doubt" if view.seen.owner_ended else inverse.status.value
        raise OperationBeingUndoneError(
            f"operation {op_id} cannot be settled: its inverse {inverse.op_id} is {state}, so nobody can say yet whether "
            "the effect is undone.",
            next_step=f"Wait until the plan has ended, or settle {inverse.op_id} first; then look at it anew.",
            op_id=op_id,
            inverse=inverse.op_id,
        )
    if inverse.status is Status.COMMITTED and outcome is not Outcome.COMPENSATED:
        raise InvalidArgumentError(
            f"outcome: {outcome.value} does not apply to {op_id}: its inverse {inverse.op_id} is committed, so the effect "
            "is undone.",
            next_step="Go on with the plan (`fencepost compensate run`), or record it as compensated.",
            field="outcome",
        )


def require_askable(operation: Operation) -> None:
    """Raises OperationBeingUndoneError where the effect's own tool cannot say what became of it: an undo was begun."""
    if operation.undoing is None:
        return
    inverse = compensation_op_id(operation.op_id, operation.round)
    raise OperationBeingUndoneError(
        f"operation {operation.op_id} is being undone: its tool cannot say what became of the inverse, {inverse}.",
        next_step=f"Go on with the plan (`fencepost compensate run`); settle {inverse} first if that is in doubt.",
        op_id=operation.op_id,
        inverse=inverse,
    )
