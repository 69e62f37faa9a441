"""The fold of a log from its raw records, with what the checker needs of it at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from confluent_kafka import murmur2
from faults.stack.evidence import Documents, Raw

from fencepost.consumer.entries import RawMessage, entry_from_message
from fencepost.ledger.facts import AgentFact, AgentKind, EffectFact, EffectKind, decode_agent, decode_effect
from fencepost.ledger.history import PositionedFact
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation
from fencepost.ledger.ports import Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import (
    DEBTS,
    OPEN,
    OPS,
    SET_ASIDE,
    UNJUDGED,
    UNSAFE,
    PartitionFold,
    document_of,
    read_history,
)

BOOKKEEPING = frozenset({DEBTS, UNJUDGED, SET_ASIDE, UNSAFE, OPEN})
"""Not part of the promise that compaction changes nothing: it depends on records that may be gone."""


@dataclass
class Folded:
    """A log, folded.

    Attributes:
        documents: by partition, as a projection would have them.
        debts: keys whose newest record leaves something out.
    """

    documents: dict[Partition, Documents] = field(default_factory=dict)
    debts: list[str] = field(default_factory=list)

    def operations(self) -> Iterator[Operation]:
        """Every operation, folded."""
        for partition, documents in self.documents.items():
            if partition.topic is Topic.EFFECTS:
                for key, data in documents.items():
                    if key.collection == OPS:
                        yield fold_operation(key.key, read_history(data))

    def facts(self, partition: Partition, key: str) -> set[PositionedFact]:
        """The history of a log key."""
        document = document_of(partition.topic, key)
        data = self.documents.get(partition, {}).get(document) if document else None
        return set(read_history(data))

    def settled(self) -> dict[Partition, Documents]:
        """The documents without bookkeeping."""
        return {p: {k: v for k, v in d.items() if k.collection not in BOOKKEEPING} for p, d in self.documents.items()}


def fold(log: Mapping[Partition, Iterable[Raw]], partitions: int) -> Folded:
    """Fold a log, partition by partition, from its first record."""

    @cache
    def partition_of(text: str) -> int:
        return int(murmur2(text.encode(), partitions))

    folded = Folded()
    for partition, records in log.items():
        documents = folded.documents.setdefault(partition, {})
        work = PartitionFold(partition, Header(incarnation="memory", opened=True), {})
        for raw in records:
            message = RawMessage(partition, raw.offset, raw.time_ms, raw.key, raw.value)
            entry = entry_from_message(message, partition_of)
            work.provide({key: documents.get(key) for key in work.needs(entry)})
            work.apply(entry)
            for key, value in work.take_step().writes.items():
                if value is None:
                    documents.pop(key, None)
                else:
                    documents[key] = value
            work.forget(keep=2_000)
        folded.debts += [f"{partition}: {key}" for key in work.debts]
    return folded


@dataclass
class Life:
    """What the log says of one agent, told by its own facts alone."""

    opened: dict[Position, AgentFact] = field(default_factory=dict)
    requested: dict[str, tuple[Position, AgentFact]] = field(default_factory=dict)
    absorbed: dict[str, list[tuple[Position, int]]] = field(default_factory=dict)
    checkpoints: list[tuple[Position, AgentFact]] = field(default_factory=list)
    closed: list[AgentFact] = field(default_factory=list)

    def take(self, position: Position, fact: AgentFact) -> None:
        """Sort one fact in."""
        if fact.kind is AgentKind.SESSION_OPENED:
            self.opened[position] = fact
        elif fact.kind is AgentKind.ROLLBACK_REQUESTED:
            self.requested[fact.rollback_id] = (position, fact)
        elif fact.kind is AgentKind.ABSORBED:
            self.absorbed.setdefault(fact.op_id, []).append((fact.epoch, fact.seq))
        elif fact.kind is AgentKind.CHECKPOINTED:
            self.checkpoints.append((position, fact))
        elif fact.kind is AgentKind.SESSION_CLOSED:
            self.closed.append(fact)


def lives(folded: Folded) -> dict[str, Life]:
    """Agent → its life."""
    found: dict[str, Life] = {}
    for position, fact in sorted(_agent_facts(folded), key=lambda item: item[0]):
        found.setdefault(fact.agent_id, Life()).take(position, fact)
    return found


def effect_facts(folded: Folded) -> Iterator[tuple[str, Position, EffectFact]]:
    """(op_id, position, fact) of every operation."""
    for partition, documents in folded.documents.items():
        if partition.topic is Topic.EFFECTS:
            for key, data in documents.items():
                if key.collection == OPS:
                    for position, fact in read_history(data):
                        yield key.key, position, decode_effect(fact)


def numbers(folded: Folded) -> dict[str, set[int]]:
    """Session → its sequence numbers that are in the log or were said to be void."""
    seen: dict[str, set[int]] = {}
    for _, _, fact in effect_facts(folded):
        if fact.seq and fact.kind is not EffectKind.REJECTED:
            seen.setdefault(fact.session_id, set()).add(fact.seq)
    for _, agent_fact in _agent_facts(folded):
        seen.setdefault(agent_fact.session_id, set()).update({agent_fact.seq, *agent_fact.voided})
    return seen


def _agent_facts(folded: Folded) -> Iterator[tuple[Position, AgentFact]]:
    for partition, documents in folded.documents.items():
        if partition.topic is Topic.AGENTS:
            for key, document in documents.items():
                if key.collection.startswith(("agent/", "checkpoints/", "absorbed/", "calls/")):
                    for position, data in read_history(document):
                        yield position, decode_agent(data)


def differences(
    what: str, wanted: Mapping[Partition, Documents], found: Mapping[Partition, Documents]
) -> Iterator[str]:
    """What `found` lacks, has too much, and has otherwise."""
    for partition in {*wanted, *found}:
        want, have = wanted.get(partition, {}), found.get(partition, {})
        for key in sorted({*want, *have}):
            if want.get(key) != have.get(key):
                state = "lacks" if key not in have else "should not have" if key not in want else "differs in"
                yield f"{what} {state} {partition} {key.collection} {key.key}"
