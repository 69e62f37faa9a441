"""A recorded run written by hand, for the tests of the checker."""

from __future__ import annotations

from typing import Any

from simulation.checker import fold
from simulation.run import Left, Recorded
from simulation.world import Event

from fencepost.ledger import log_keys
from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.history import History, LogEntry, Record, facts_of, merge
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.watermarks import Watermark

EFFECTS, AGENTS = Partition(Topic.EFFECTS, 0), Partition(Topic.AGENTS, 0)


class Tape:
    """One agent `A` on branch `main`, in session `s`, and what it did; effects are done on `branch_id`."""

    def __init__(self) -> None:
        self.branch_id = "main"
        self.events: list[Event] = []
        self.written: dict[Partition, list[LogEntry]] = {EFFECTS: [], AGENTS: []}
        self.removed: dict[Partition, set[int]] = {EFFECTS: set(), AGENTS: set()}
        self.problems: list[str] = []
        self.epoch = self.open()

    def note(self, kind: str, *what: Any, who: str = "agent") -> None:
        self.events.append(Event(float(len(self.events)), who, kind, what))

    def known(self, partition: Partition, key: str) -> History:
        records = [entry for entry in self.written[partition] if entry.key == key and entry.record]
        return merge(*(facts_of(e.record, Position(0, e.offset)) for e in records if e.record))

    def write(self, partition: Partition, key: str, fact: bytes | None, *, blind: bool = False) -> Position:
        """One record on top of all that is known of its key, or of nothing."""
        offset = len(self.written[partition])
        record = Record(key, () if blind else self.known(partition, key), fact)
        self.written[partition].append(LogEntry(partition, offset, offset, key, record))
        self.note("wrote", partition, offset)
        return Position(0, offset)

    def open(self) -> Position:
        fact = AgentFact(kind=AgentKind.SESSION_OPENED, agent_id="A", branch_id="main", session_id="s")
        return self.write(AGENTS, log_keys.session("A", "s"), encode_agent(fact))

    def close(self, sealed_seq: int, voided: tuple[int, ...] = ()) -> None:
        fact = AgentFact(
            kind=AgentKind.SESSION_CLOSED, agent_id="A", branch_id="main", session_id="s", epoch=self.epoch,
            seq=sealed_seq, sealed_seq=sealed_seq, voided=voided,
        )  # fmt: skip
        self.write(AGENTS, log_keys.session("A", "s"), encode_agent(fact))

    def effect(
        self, kind: EffectKind, *, attempt_id: str = "a", seq: int = 1, blind: bool = False, **values: Any
    ) -> Position:
        fact = EffectFact(
            kind=kind, op_id="pay", attempt_id=attempt_id, agent_id="A", branch_id=self.branch_id, session_id="s",
            epoch=self.epoch, seq=seq, tool="tool", effect_class=EffectClass.IRREVERSIBLE, identity_digest="same", **values,
        )  # fmt: skip
        return self.write(EFFECTS, "pay", encode_effect(fact), blind=blind)

    def ran(self, *, attempt_id: str = "a", round_number: int = 1, result: str = "done") -> None:
        self.note("ran", "pay", round_number, attempt_id, "s", "A", self.branch_id, False, result)

    def whole_effect(self) -> None:
        self.effect(EffectKind.INTENDED, seq=1)
        self.ran()
        self.effect(EffectKind.COMMITTED, seq=2)

    def go_back(self, seq: int, verdict: str) -> None:
        """A rollback to a checkpoint at `seq` of the session: requested, fenced, decided."""
        mark = Watermark("ledger", "A", "main", self.epoch, seq)
        key = log_keys.rollback("A", "r")
        values: dict[str, Any] = {"agent_id": "A", "branch_id": "main", "rollback_id": "r", "watermark": mark.token}
        segment = str(self.epoch)
        asked = AgentFact(kind=AgentKind.ROLLBACK_REQUESTED, segment=segment, **values)
        at = self.write(AGENTS, key, encode_agent(asked))
        fence = EffectFact(kind=EffectKind.FENCED, agent_id="A", branch_id="main", epoch=at)
        self.write(EFFECTS, log_keys.fence("A", "main", 0, lambda _: 0), encode_effect(fence))
        decided = AgentFact(kind=AgentKind.ROLLBACK_DECIDED, verdict=verdict, **values)
        self.write(AGENTS, key, encode_agent(decided))

    def recorded(self) -> Recorded:
        left = {
            partition: Left(entries, self.removed[partition], fold(partition, entries, judge_from=0), len(entries))
            for partition, entries in self.written.items()
        }
        return Recorded(0, self.events, left, self.problems)
