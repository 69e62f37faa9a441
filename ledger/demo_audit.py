"""What the demo counts, and what it holds against itself: pure, from the world and the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .demo_world import Hit
from .operations import AttemptState, Operation, Status

UNDECIDED = frozenset({Status.OWNED, Status.IN_DOUBT})


@dataclass(frozen=True, slots=True)
class Tally:
    """What the ledger says of all operations.

    Attributes:
        refused: attempts whose tool said "Error": the operation was free again.
        refused_operations: operations with such an attempt.
        done_later: those of them that another attempt carried out.
        overruled: operations of which a probe said that they had not happened.
        overruled_done: those of them that were carried out since.
        raced: attempts that lost against a sibling that was faster.
    """

    operations: int
    committed: int
    undecided: int
    refused: int
    refused_operations: int
    done_later: int
    overruled: int
    overruled_done: int
    raced: int


def tally(operations: Sequence[Operation]) -> Tally:
    """Count the ledger's operations and attempts."""
    states = Counter(a.state for op in operations for a in op.attempts.values())
    refused = _with_attempt(operations, AttemptState.FAILED)
    overruled = _with_attempt(operations, AttemptState.OVERRULED)
    return Tally(
        len(operations),
        _committed(operations),
        sum(op.status in UNDECIDED for op in operations),
        states[AttemptState.FAILED],
        len(refused),
        _committed(refused),
        len(overruled),
        _committed(overruled),
        states[AttemptState.LOST],
    )


def _with_attempt(operations: Iterable[Operation], state: AttemptState) -> list[Operation]:
    return [op for op in operations if any(a.state is state for a in op.attempts.values())]


def _committed(operations: Iterable[Operation]) -> int:
    return sum(op.status is Status.COMMITTED for op in operations)


def problems(hits: Iterable[Hit], operations: Iterable[Operation]) -> list[str]:
    """Where world and ledger break the promise; nothing when all is well.

    Each operation happened at most once; a committed one happened; a free or unknown one did
    not; one in doubt may have or not.
    """
    times = Counter(hit.op_id for hit in hits)
    known = {op.op_id: op for op in operations}
    found = [f"{op_id} was executed {n} times" for op_id, n in times.items() if n > 1]
    for op_id in times:
        if op_id not in known:
            found.append(f"{op_id} was executed, and the ledger does not know it")
        elif known[op_id].status is Status.FREE:
            found.append(f"{op_id} was executed, and the ledger says that it was not")
    for op_id, op in known.items():
        if op.status is Status.COMMITTED and op_id not in times:
            found.append(f"{op_id} is committed, and was never executed")
        if op.status is Status.UNSAFE:
            found.append(f"{op_id} cannot be decided from")
        found += [f"{op_id}: {anomaly.what}" for anomaly in op.anomalies]
    return sorted(found)
