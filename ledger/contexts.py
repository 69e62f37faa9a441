"""An agent's checkpoints and the compactions of its context, serialised by generation.

A branch's context begins at generation 0; each compaction that counts begins a new one. Checkpoints
and compactions stand in one partition, and one ordered pass over them decides which count. A
generation is inherited along the path: a session that resumes from an older point is at the
generation of that point again.

A checkpoint belongs to exactly one generation, so that a state which mixes the summary of one with
the rest of another is never registered:
    1. it names the generation that its branch's context has at its place in the log,
    2. and the one that it has where its watermark stands: a compaction between the two is a mix;
    3. a compaction that arrives when a checkpoint or a session already stands on what it would change
       does not count. So the generation of a point that somebody stands on never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .errors import WatermarkMangledError
from .facts import AgentFact, AgentKind, Dropped, decode_agent
from .history import PositionedFact
from .lineage import ROOT, Agent, Session
from .positions import Position
from .watermarks import Point, Watermark

ID_TAKEN = "its id was taken"


@dataclass(slots=True)
class Checkpoint:
    """One registered checkpoint. `rejected` says why it does not count ("" if it does).

    Attributes:
        mark: None if its watermark is unreadable.
        current_generation: of its branch's context at its place in the log; where its watermark
            stands, if that is another one.
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

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        mark, fact = self.mark, self.fact
        return {
            "checkpoint_id": self.checkpoint_id, "branch_id": self.branch_id, "session_id": fact.session_id,
            "token": mark.token if mark else None, "epoch": str(mark.epoch) if mark else None,
            "seq": mark.seq if mark else None, "owned": list(fact.owned), "generation": self.generation,
            "state_digest": fact.state_digest, "position": str(self.position), "time_ms": fact.time_ms,
            "rejected": self.rejected,
        }  # fmt: skip


@dataclass(slots=True)
class Compaction:
    """One compaction of a branch's context: its generation stamp and drop manifest.

    Attributes:
        mark: the watermark whose token the new summary holds; None if it is unreadable.
        point: where in its session the compaction stands.
        rejected: why it does not count ("" if it does).
        conflicts: it does not count because of what its branch's context was at: `current_generation`.
    """

    branch_id: str
    generation: int
    point: Point
    mark: Watermark | None
    position: Position
    fact: AgentFact
    rejected: str = ""
    conflicts: bool = False
    current_generation: int = 0

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """The drop manifest: what the new summary no longer holds."""
        return self.fact.dropped

    @property
    def kept(self) -> tuple[str, ...]:
        """The operations that the new summary names verbatim."""
        return self.fact.kept

    @property
    def summary_digest(self) -> str:
        """SHA-256 of the new summary, in hexadecimal."""
        return self.fact.summary_digest

    def to_dict(self) -> dict[str, Any]:
        """The generation stamp and the drop manifest as plain data."""
        mark, fact = self.mark, self.fact
        return {
            "branch_id": self.branch_id, "generation": self.generation, "session_id": fact.session_id,
            "token": mark.token if mark else None, "epoch": str(self.point.epoch), "seq": self.point.seq,
            "dropped": [{"reference": d.reference, "digest": d.digest} for d in fact.dropped],
            "kept": list(fact.kept), "owned": list(fact.owned), "summary_digest": fact.summary_digest,
            "position": str(self.position), "time_ms": fact.time_ms, "rejected": self.rejected,
        }  # fmt: skip


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

    def open_at(self, point: Point, checkpoint: Checkpoint | None = None) -> dict[Position, frozenset[str]]:
        """Epoch → operations that were open there, of the sessions on the path of a point.

        Where a path leaves a session at a checkpoint's watermark, the restored state lacks what was open at the
        checkpoint, though its number is not beyond the watermark.

        Args:
            checkpoint: the one that stands at the point, if it is to be told from others that stand there.
        """
        path = self.agent.path(point)
        found: dict[Position, frozenset[str]] = {}
        for one in self.checkpoints.values():
            if one.mark is not None and one.fact.owned and path.get(one.mark.epoch) == one.mark.seq:
                found[one.mark.epoch] = found.get(one.mark.epoch, frozenset()) | set(one.fact.owned)
        if checkpoint is not None:
            found[point.epoch] = frozenset(checkpoint.fact.owned)
        return found

    def generation_at(self, point: Point) -> int:
        """The generation of the context at a point; 0 before any compaction."""
        newest = max(self.compactions_at(point), key=lambda c: c.point, default=None)
        return newest.generation if newest else 0

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
    fold = _Fold(agent)
    for position, data in sorted(set(facts)):
        fold.take(position, decode_agent(data))
    return fold.context


class _Fold:
    """One ordered pass over an agent's checkpoints and compactions.

    Attributes:
        compacted: epoch → (sequence number, generation) of the compactions that count; both only grow.
        inherited: session → the generation of the point that it resumes from.
        resumed: epoch → (position, sequence number) of the sessions that resume from that session.
        reached: epoch → the highest watermark of a checkpoint that counts.
    """

    def __init__(self, agent: Agent) -> None:
        self.context = Context(agent)
        self.compacted: dict[Position, list[tuple[int, int]]] = {}
        self.inherited: dict[str, int] = {}
        self.resumed: dict[Position, list[tuple[Position, int]]] = {}
        self.reached: dict[Position, int] = {}
        for session in agent.sessions.values():
            if not session.rejected:
                self.resumed.setdefault(session.parent.epoch, []).append((session.epoch, session.parent.seq))

    def take(self, position: Position, fact: AgentFact) -> None:
        if fact.kind is AgentKind.CHECKPOINTED:
            self._checkpoint(position, fact)
        elif fact.kind is AgentKind.COMPACTED:
            self._compaction(position, fact)

    def _checkpoint(self, position: Position, fact: AgentFact) -> None:
        mark = _mark(fact.watermark)
        taken = self.context.checkpoints.get(fact.checkpoint_id)
        session, rejected = self._speaking(position, fact)
        current = fact.generation
        if session is not None and taken is not None:
            if taken.mark == mark and taken.generation == fact.generation:
                return
            rejected = ID_TAKEN
        elif session is not None:
            current, rejected = self._checkpoint_refusal(session, fact, mark)
        checkpoint = Checkpoint(fact.checkpoint_id, fact.branch_id, mark, position, fact, rejected, current)
        self.context.every.append(checkpoint)
        if not rejected:
            self.context.checkpoints[fact.checkpoint_id] = checkpoint
            if mark is not None:
                self.reached[mark.epoch] = max(mark.seq, self.reached.get(mark.epoch, 0))

    def _checkpoint_refusal(self, session: Session, fact: AgentFact, mark: Watermark | None) -> tuple[int, str]:
        """(the generation of its context, why the checkpoint does not count): rules 1 and 2."""
        current = self._generation(session)
        if fact.generation != current:
            return current, f"it names generation {fact.generation}, its branch's context is at {current}"
        if mark is None:
            return current, ""
        if mark.epoch != session.epoch:
            return current, "its watermark is not its session's"
        known = self._generation(session, mark.seq)
        if known != current:
            return known, f"its watermark stands before the compaction to generation {current}"
        return current, ""

    def _compaction(self, position: Position, fact: AgentFact) -> None:
        session, rejected = self._speaking(position, fact)
        point, current = Point(session.epoch if session else fact.epoch, fact.seq), 0
        if session is not None:
            current = self._generation(session)
            rejected = self._compaction_refusal(session, fact, position, current)
        compaction = Compaction(
            fact.branch_id, fact.generation, point, _mark(fact.watermark), position, fact, rejected,
            conflicts=session is not None and bool(rejected), current_generation=current,
        )  # fmt: skip
        if rejected:
            self.context.refused.append(compaction)
        else:
            self.context.compactions.append(compaction)
            self.compacted.setdefault(point.epoch, []).append((point.seq, fact.generation))

    def _compaction_refusal(self, session: Session, fact: AgentFact, position: Position, current: int) -> str:
        if fact.generation <= current:
            return f"generation {fact.generation} is not newer than {current}, which its branch's context is at"
        here = self.compacted.get(session.epoch)
        if here and fact.seq <= here[-1][0]:
            return "a later compaction of its session came before it"
        if self.reached.get(session.epoch, -1) >= fact.seq:  # rule 3
            return "a checkpoint that stands behind it came before it"
        if any(opened < position and fact.seq <= seq for opened, seq in self.resumed.get(session.epoch, ())):
            return "a session that resumes from behind it came before it"
        return ""

    def _speaking(self, position: Position, fact: AgentFact) -> tuple[Session | None, str]:
        """The session, if it spoke for its branch when the fact was written, or why it did not."""
        session = self.context.agent.sessions.get(fact.session_id)
        if session is None or session.rejected or position < session.epoch:
            return None, "its session is not known"
        if session.ended_at is not None and session.ended_at < position:
            return None, f"its session had ended: {session.ended}"
        return session, ""

    def _generation(self, session: Session, seq: int | None = None) -> int:
        """The generation of a session's context, at one of its sequence numbers or at this place in the log."""
        for at, generation in reversed(self.compacted.get(session.epoch, [])):
            if seq is None or at <= seq:
                return generation
        if session.session_id not in self.inherited:
            self.inherited[session.session_id] = self._at_parent(session)
        return self.inherited[session.session_id]

    def _at_parent(self, session: Session) -> int:
        for before, seq in _ancestors(self.context.agent, session):
            known = [generation for at, generation in self.compacted.get(before, ()) if at <= seq]
            if known:
                return known[-1]
        return 0


def _ancestors(agent: Agent, session: Session) -> Iterator[Point]:
    """What a session resumes from, the nearest first."""
    path = agent.path(session.parent) if session.parent != ROOT else {}
    yield from (Point(epoch, seq) for epoch, seq in path.items())


@lru_cache(maxsize=1024)
def _mark(token: str) -> Watermark | None:
    try:
        return Watermark.parse(token)
    except WatermarkMangledError:
        return None
