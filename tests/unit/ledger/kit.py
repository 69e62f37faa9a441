"""What the tests of the core share: facts in few words, and a partition held in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fencepost.ledger import log_keys
from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    Outcome,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.history import History, LogEntry, PositionedFact, Record, merge
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import (
    DEBTS,
    FENCES,
    OPS,
    UNJUDGED,
    UNSAFE,
    Debt,
    PartitionFold,
    document_of,
    read_history,
    reassertion,
)
from fencepost.ledger.watermarks import Point, Watermark

EFFECTS, AGENTS = Partition(Topic.EFFECTS, 0), Partition(Topic.AGENTS, 0)
OP = "pay:1"
LEDGER_ID = "ledger-1"
FENCE = log_keys.fence("agent", "main", 0, lambda _: 0)


def effect(kind: EffectKind | str, attempt_id: str = "", **values: Any) -> EffectFact:
    """A fact of an irreversible operation, unless `values` say otherwise."""
    usual: dict[str, Any] = {
        "op_id": OP,
        "agent_id": "agent",
        "branch_id": "main",
        "session_id": f"session-{attempt_id}",
        "tool": "bank.pay",
        "effect_class": EffectClass.IRREVERSIBLE,
        "identity_digest": "same",
    }
    return EffectFact(kind=EffectKind(kind), attempt_id=attempt_id, **{**usual, **values})


def intended(attempt_id: str, **values: Any) -> EffectFact:
    return effect("INTENDED", attempt_id, **values)


def committed(attempt_id: str, **values: Any) -> EffectFact:
    return effect("COMMITTED", attempt_id, **values)


def failed(attempt_id: str, **values: Any) -> EffectFact:
    return effect("FAILED", attempt_id, **values)


def resolved(outcome: str, version: int | str, **values: Any) -> EffectFact:
    """A resolution; a number means the version that stands at that offset."""
    version = f"0.{version}" if isinstance(version, int) else version
    return effect("RESOLVED", "", outcome=Outcome(outcome), version=version, agent_id="", branch_id="", **values)


def fenced(epoch: int, **values: Any) -> EffectFact:
    """A fence that ends sessions below `epoch`."""
    plain = {"op_id": "", "tool": "", "effect_class": EffectClass.UNKNOWN, "identity_digest": "", "session_id": ""}
    return effect("FENCED", "", **{**plain, "epoch": Position(0, epoch), **values})


def at(*facts: EffectFact | AgentFact | None, start: int = 0, generation: int = 0) -> History:
    """The facts at consecutive offsets; None leaves one out."""
    return merge(PositionedFact(Position(generation, start + n), encoded(fact)) for n, fact in enumerate(facts) if fact)


def encoded(fact: EffectFact | AgentFact) -> bytes:
    return encode_effect(fact) if isinstance(fact, EffectFact) else encode_agent(fact)


def fold(*facts: EffectFact | None) -> Operation:
    return fold_operation(OP, at(*facts))


@dataclass
class MemoryPartition:
    """A log, its projection, and the projector between them, driven by hand."""

    partition: Partition = EFFECTS
    header: Header = field(default_factory=lambda: Header(opened=True))
    log: list[LogEntry | None] = field(default_factory=list)
    documents: dict[DocumentKey, bytes] = field(default_factory=dict)
    fold: PartitionFold = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The projector starts anew on what its store holds."""
        debts = {key.key: Debt.read(data) for key, data in self.documents.items() if key.collection == DEBTS}
        self.fold = PartitionFold(self.partition, self.header, debts)

    def append(self, key: str, fact: EffectFact | AgentFact | None, known: History = ()) -> Position:
        record = Record(key, known, encoded(fact) if fact else None)
        return self.append_record(record)

    def append_record(self, record: Record) -> Position:
        offset = len(self.log)
        self.log.append(LogEntry(self.partition, offset, 1000 + offset, record.key, record))
        return Position(0, offset)

    def append_raw(self, key: str | None, problem: str, *, stray: bool = False) -> Position:
        """Something that is no record."""
        offset = len(self.log)
        self.log.append(LogEntry(self.partition, offset, 1000 + offset, key, None, problem, stray))
        return Position(0, offset)

    def project(self, count: int = 1_000_000) -> None:
        """Apply the next records, opening at the horizon."""
        self.open_if_due()
        for entry in self.log[self.header.applied_offset :][:count]:
            if entry is None:
                self.fold.skip_to(self.fold.header.applied_offset + 1)
            else:
                while needed := self.fold.needs(entry):
                    self.fold.provide({key: self.documents.get(key) for key in needed})
                self.fold.apply(entry)
            self.commit()
            self.open_if_due()

    def open_if_due(self) -> None:
        if not self.fold.horizon_reached():
            return
        fences = {key: data for key, data in self.documents.items() if key.collection == FENCES}
        unjudged = [key.key for key in self.documents if key.collection == UNJUDGED]
        wanted = [DocumentKey(c, op_id) for op_id in unjudged for c in (OPS, UNSAFE)]
        self.fold.provide({key: self.documents.get(key) for key in wanted})
        self.fold.judge(unjudged, fences)
        self.fold.provide(fences)
        self.fold.open(fences)
        self.commit()

    def commit(self) -> None:
        step = self.fold.take_step()
        self.header = step.header
        for key, value in step.writes.items():
            if value is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = value

    def pay(self) -> None:
        """Append and apply re-assertions until nothing is owed."""
        self.project()
        for _ in range(100):
            if not self.fold.debts:
                return
            key = min(self.fold.debts, key=lambda name: self.fold.debts[name])
            document = document_of(self.partition.topic, key)
            assert document is not None
            self.append_record(reassertion(key, self.documents.get(document)))
            self.project()
        raise AssertionError("the debts do not end")

    def lose(self) -> None:
        """The store is empty; the settled offset was kept elsewhere."""
        floor = self.header.settled_offset
        self.documents.clear()
        self.header = Header(
            incarnation="next", settled_offset=floor, judge_from=floor, horizon=len(self.log), opened=False
        )
        self.restart()

    def clean(self) -> None:
        """Remove what a later settled record supersedes."""
        floor = self.header.settled_offset
        last = {entry.key: entry.offset for entry in self.log[:floor] if entry}
        for entry in self.log[:floor]:
            if entry and entry.key is not None and entry.offset < last[entry.key]:
                self.log[entry.offset] = None

    def history(self, key: str = OP) -> History:
        document = document_of(self.partition.topic, key)
        assert document is not None
        return read_history(self.documents.get(document))

    def operation(self, op_id: str = OP) -> Operation:
        return fold_operation(op_id, self.history(op_id))

    def collection(self, name: str) -> dict[str, bytes]:
        return {key.key: data for key, data in self.documents.items() if key.collection == name}


# -- agents ----------------------------------------------------------------------------


def token(epoch: int, seq: int, *, branch: str = "main", ledger_id: str = LEDGER_ID, agent: str = "agent") -> str:
    return Watermark(ledger_id, agent, branch, Position(0, epoch), seq).token


def point(epoch: int, seq: int) -> Point:
    return Point(Position(0, epoch), seq)


def agent_fact(kind: str, **values: Any) -> AgentFact:
    usual: dict[str, Any] = {"agent_id": "agent", "branch_id": "main"}
    return AgentFact(kind=AgentKind(kind), **{**usual, **values})


def opened(session_id: str, resumes: str = "", **values: Any) -> AgentFact:
    return agent_fact("SESSION_OPENED", session_id=session_id, watermark=resumes, **values)


def forked(branch_id: str, origin: str, **values: Any) -> AgentFact:
    return agent_fact("FORKED", branch_id=branch_id, watermark=origin, **{"parent_branch_id": "main", **values})


def requested(rollback_id: str, target: str, segment: str = "0.0", **values: Any) -> AgentFact:
    return agent_fact("ROLLBACK_REQUESTED", rollback_id=rollback_id, watermark=target, segment=segment, **values)


def decided(rollback_id: str, verdict: str = "PROCEED", **values: Any) -> AgentFact:
    return agent_fact("ROLLBACK_DECIDED", rollback_id=rollback_id, verdict=verdict, **values)


def checkpointed(checkpoint_id: str, session_id: str, mark: str, **values: Any) -> AgentFact:
    return agent_fact("CHECKPOINTED", checkpoint_id=checkpoint_id, session_id=session_id, watermark=mark, **values)
