"""An agent's checkpoints and the compactions of its context, serialised by generation.

A branch's context begins at generation 0; each compaction that counts begins a new one. Checkpoints
and compactions stand in one partition, and one ordered pass over them decides which count: a
checkpoint belongs to exactly the generation that its branch has at that place in the log, so a
state that mixes the summary of one generation with the rest of another is never registered.
A generation is inherited along the path: a session that resumes from an older point is at the
generation of that point again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .errors import WatermarkMangledError
from .facts import AgentFact, AgentKind, decode_agent
from .history import PositionedFact
from .lineage import Agent, Session
from .positions import Position
from .watermarks import Point, Watermark

ID_TAKEN = "its id was taken"


@dataclass(slots=True)
class Checkpoint:
    """One registered checkpoint. `rejected` says why it does not count ("" if it does).

    Attributes:
        current_generation: of its branch's context at its place in the log.
    """

    checkpoint_id: str
    branch_id: str
    mark: Watermark | None
    position: Position
    fact: AgentFact
    rejected: str = ""
    current_generation: int = 0

    @property
    def of_another_generation(self) -> bool:
        """Whether it does not count because its branch's context was at `current_generation`."""
        return bool(self.rejected) and self.generation != self.current_generation

    @property
    def generation(self) -> int:
        """The generation of the context that it belongs to."""
        return self.fact.generation


@dataclass(slots=True)
class Compaction:
    """One compaction of a branch's context: its generation stamp and drop manifest.

    Attributes:
        mark: the watermark whose token the new summary holds; None if it is unreadable.
        point: where in its session the compaction stands.
        rejected: why it does not count ("" if it does).
    """

    branch_id: str
    generation: int
    point: Point
    mark: Watermark | None
    position: Position
    fact: AgentFact
    rejected: str = ""


@dataclass(slots=True)
class Context:
    """An agent's checkpoints and compactions.

    Attributes:
        checkpoints: by id, in log order; those that count.
        compactions: in log order; those that count.
        every: all checkpoint facts in log order, each with the reason why it does not count, if so.
        refused: compaction facts that do not count.
    """

    agent: Agent
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    compactions: list[Compaction] = field(default_factory=list)
    every: list[Checkpoint] = field(default_factory=list)
    refused: list[Compaction] = field(default_factory=list)

    def compactions_at(self, point: Point) -> list[Compaction]:
        """The compactions on the path of a point, oldest first."""
        path = self.agent.path(point)
        return [c for c in self.compactions if c.point.seq <= path.get(c.point.epoch, -1)]

    def generation_at(self, point: Point) -> int:
        """The generation of the context at a point; 0 before any compaction."""
        for epoch, seq in self.agent.path(point).items():  # the nearest session first
            here = [c.generation for c in self.compactions if c.point.epoch == epoch and c.point.seq <= seq]
            if here:
                return max(here)
        return 0

    def latest(self, branch_id: str) -> Checkpoint | None:
        """The newest checkpoint on a branch's path that no rollback has left behind."""
        branch = self.agent.branches.get(branch_id)
        if branch is None:
            return None
        path = self.agent.path(self.agent.head_point(branch))
        standing = [
            c
            for c in self.checkpoints.values()
            if c.mark and c.mark.seq <= path.get(c.mark.epoch, -1) and not self.agent.is_abandoned(c.mark.point)
        ]
        return max(standing, key=lambda c: c.position, default=None)


def fold_context(agent: Agent, facts: Iterable[PositionedFact]) -> Context:
    """Checkpoints and compactions in log order, with which of them count.

    One counts if its session spoke for the branch when it was written and it is of the right
    generation; a checkpoint also only if its id was not taken: two different points under one id
    could not be told apart on restore.
    """
    context = Context(agent)
    for position, data in sorted(set(facts)):
        fact = decode_agent(data)
        if fact.kind is AgentKind.CHECKPOINTED:
            _take_checkpoint(context, position, fact)
        elif fact.kind is AgentKind.COMPACTED:
            _take_compaction(context, position, fact)
    return context


def _take_checkpoint(context: Context, position: Position, fact: AgentFact) -> None:
    mark = _mark(fact.watermark)
    taken = context.checkpoints.get(fact.checkpoint_id)
    current = fact.generation
    rejected = _not_speaking(context.agent, position, fact)
    if not rejected and taken is not None:
        if taken.mark == mark:
            return
        rejected = ID_TAKEN
    if not rejected and fact.generation != (current := _current(context, fact)):
        rejected = f"it names generation {fact.generation}, its branch's context is at {current}"
    checkpoint = Checkpoint(fact.checkpoint_id, fact.branch_id, mark, position, fact, rejected, current)
    context.every.append(checkpoint)
    if not rejected:
        context.checkpoints[fact.checkpoint_id] = checkpoint


def _take_compaction(context: Context, position: Position, fact: AgentFact) -> None:
    rejected = _not_speaking(context.agent, position, fact)
    if not rejected and fact.generation <= (current := _current(context, fact)):
        rejected = f"generation {fact.generation} is not newer than {current}, which its branch's context is at"
    point = Point(fact.epoch, fact.seq)
    compaction = Compaction(fact.branch_id, fact.generation, point, _mark(fact.watermark), position, fact, rejected)
    (context.refused if rejected else context.compactions).append(compaction)


def _not_speaking(agent: Agent, position: Position, fact: AgentFact) -> str:
    session = agent.sessions.get(fact.session_id)
    if session is None or session.rejected:
        return "its session is not known"
    if session.ended_at is not None and session.ended_at < position:
        return f"its session had ended: {session.ended}"
    return ""


def _current(context: Context, fact: AgentFact) -> int:
    """The generation of a session's context at this place in the log."""
    session: Session = context.agent.sessions[fact.session_id]
    here = [c.generation for c in context.compactions if c.point.epoch == session.epoch]
    return max(here) if here else context.generation_at(session.parent)


def _mark(token: str) -> Watermark | None:
    try:
        return Watermark.parse(token)
    except WatermarkMangledError:
        return None
