"""Effects that a point knows, and that were undone since: the state there has them as done, the world has not. Pure.

An undo is a change of the world like any other, and what is restored from before it does not know it.
Nobody would do such an effect again: it is lost unless somebody is told. The undoing has a name
(`compensation_op_id`), so a text that knows of it names it, and then says so itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .facts import EffectFact, EffectKind
from .lineage import Agent
from .operations import Attempt, Operation, compensation_op_id
from .positions import Position
from .summaries import named
from .verdicts import Blocker, Reason, ReasonKind
from .watermarks import Point


@dataclass(frozen=True, slots=True)
class UndoneEffect:
    """An effect that a checkpoint knows as done, and that was undone.

    Attributes:
        undo_op_id: names the undoing; a text that knows of it names it verbatim.
        by: who undid it, or said that it was.
    """

    op_id: str
    tool: str
    round: int
    undo_op_id: str
    by: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "round": self.round, "undo_op_id": self.undo_op_id, "by": self.by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a point in an agent's life knows.

    Attributes:
        path: epoch → highest sequence number.
        absorbed: (op_id, round) → the places where sessions of the agent absorbed it.
        open_at: epoch → operations that were open where the path leaves that session.
    """

    agent: Agent
    path: Mapping[Position, int]
    absorbed: Mapping[tuple[str, int], Sequence[Point]]
    open_at: Mapping[Position, Collection[str]]

    def begun(self, operation: Operation, number: int) -> bool:
        """Whether it knows anything of this round: that it was begun, ended, or absorbed."""
        facts = [f for a in self._own(operation, number) for f in (a.intent, a.outcome) if f is not None]
        return any(self.agent.knows(self.path, *place) for place in self._places(operation, number, facts))

    def done(self, operation: Operation, number: int) -> bool:
        """Whether it knows that this round was done: the fact that says so is on the path, and its call had returned."""
        facts = [
            a.outcome for a in self._own(operation, number) if a.outcome and a.outcome.kind is EffectKind.COMMITTED
        ]
        return any(
            self.agent.knows(self.path, *place) and operation.op_id not in self.open_at.get(place.epoch, ())
            for place in self._places(operation, number, facts)
        )

    def _own(self, operation: Operation, number: int) -> Iterator[Attempt]:
        return (a for a in operation.attempts.values() if a.owned and a.intent.round == number)

    def _places(self, operation: Operation, number: int, facts: Sequence[EffectFact]) -> list[Point]:
        own = [Point(fact.epoch, fact.seq) for fact in facts if fact.agent_id == self.agent.agent_id]
        return [*own, *self.absorbed.get((operation.op_id, number), ())]


def undone_since(operation: Operation, known: Knowledge, *, begun: bool = False) -> UndoneEffect | None:
    """The newest round that is known, if it is over: who knows a later one knows of the end. None for what is harmless.

    Args:
        begun: a round counts also if it is only known to have been begun.
    """
    if operation.harmless:
        return None
    for number in range(operation.round, 0, -1):
        if not known.begun(operation, number):
            continue
        if number == operation.round or not (begun or known.done(operation, number)):
            return None
        undo = compensation_op_id(operation.op_id, number)
        return UndoneEffect(operation.op_id, operation.tool, number, undo, operation.compensations[number - 1].by)
    return None


def undone_reasons(operations: Iterable[Operation], known: Knowledge, text: str) -> list[Reason]:
    """A reason for each effect that is known as done, and was undone since, unless the text names the undoing."""
    found = [(o, one) for o in operations if (one := undone_since(o, known)) is not None]
    told = named(text, [one.undo_op_id for _, one in found]) if text and found else set()
    return [_reason(operation, one) for operation, one in found if one.undo_op_id not in told]


def _reason(operation: Operation, one: UndoneEffect) -> Reason:
    text = (
        f"{one.op_id} ({one.tool}, round {one.round}) is done at the checkpoint, and was undone since by "
        f"{one.by or 'somebody'}: the restored state would have it as done, and nobody would do it again; a state that "
        f"knows of it names {one.undo_op_id}"
    )
    blocker = Blocker(one.op_id, one.tool, 0, operation.effect_class, "undone", "", round=one.round)
    return Reason(ReasonKind.EFFECT_UNDONE, text, blocker)
