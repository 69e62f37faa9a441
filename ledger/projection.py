"""How a partition's projection is derived from its log: pure, one record at a time.

The same code runs inside the embedded store's transactions and in the projector between
Kafka and Redis. A shell loads the documents that `needs` names, calls `apply` for each
record in order, and commits `take_step()` atomically, conditional on the applied offset
that the step started from.

What `apply` does with a record (DESIGN section 3):
    1. set aside what cannot be taken as a record; its key becomes unsafe, by its own history
    2. union: the record's facts join those that are known of the key
    3. verdict: a new intent behind a fence gets its REJECTED fact (only once opened)
    4. debt: noted when the record leaves out a fact that is known, struck when it does not
    5. indexes: agents, open operations, sequence numbers
    6. the applied and the settled offset move
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..schemas.errors import DecodeError, EncodeError
from . import history, log_keys, losers
from .derived_facts import agents_in, highest_fence, numbers_in, rejection
from .facts import EffectFact, EffectKind, decode_agent, decode_effect
from .history import History, LogEntry, PositionedFact, Record
from .losers import Number
from .marks import NO_ROOM, TOO_LARGE, mark_of
from .operation_fold import fold_operation
from .operations import Status
from .ports import DocumentKey, Header, Step
from .positions import Partition, Position, Topic
from .seq_bits import SEQ_CHUNK, set_bits

LAYOUT = 2
"""Of the documents: raised whenever they are named or made differently, so that a projection of another
layout is not there, and is derived anew. (1: sequence numbers by session id.)"""
OPS = "ops"
OPEN = "open"
FENCES = "fences"
DEBTS = "debts"
UNJUDGED = "unjudged"
UNSAFE = "unsafe"
SET_ASIDE = "set-aside"
AGENTS = "agents"
LEDGER = "ledger"
UNKNOWN_TIME_MS = 1
"""Stands for the unknown time of an old record: older than any limit."""


def agent_ops(agent_id: str) -> str:
    """Collection: op_ids that this agent has attempted, in one effects partition."""
    return f"agent-ops/{agent_id}"


def agent_documents(family: str, agent_id: str) -> str:
    """Collection of an agent's keys: structure, checkpoints with compactions, absorbed, calls, or plans."""
    return f"{_AGENT_COLLECTIONS.get(family, 'agent')}/{agent_id}"


_AGENT_COLLECTIONS = {
    "checkpoint": "checkpoints", "compaction": "checkpoints", "absorbed": "absorbed", "call": "calls", "plan": "plans",
}  # fmt: skip


def seqs(agent_id: str, epoch: Position) -> str:
    """Collection: bitmaps of the sequence numbers seen of the session of this agent and epoch."""
    return f"seqs/{agent_id}/{epoch}"


def seq_document(number: Number) -> DocumentKey:
    """Where it is kept that a fact with this number was seen."""
    return DocumentKey(seqs(number.agent_id, number.epoch), str(number.seq // SEQ_CHUNK))


def fence_document(agent_id: str, branch_id: str) -> DocumentKey:
    """Where the fence of a branch is kept in an effects partition."""
    return DocumentKey(FENCES, f"{agent_id}\x1f{branch_id}")


def document_of(topic: Topic, key: str) -> DocumentKey | None:
    """Where the history of a log key is kept; None for keys that have none (horizons)."""
    if log_keys.is_horizon(key):
        return None
    if topic is Topic.EFFECTS:
        if log_keys.is_operation(key):
            return DocumentKey(OPS, key)
        fence = log_keys.fence_of(key)
        return fence_document(*fence) if fence else None
    if key == log_keys.LEDGER:
        return DocumentKey(LEDGER, key)
    owner = log_keys.agent_of(key)
    return DocumentKey(agent_documents(*owner), key) if owner else None


def read_history(data: bytes | None) -> History:
    """The history in a document."""
    return history.decode(data).history if data else ()


def write_history(key: str, facts: History) -> bytes:
    """A document that holds a key's history."""
    return history.encode(Record(key, facts))


def fence_epoch(facts: History) -> Position | None:
    """The highest epoch that a fence's history raises its branch to."""
    epochs = [decode_effect(f).epoch for _, f in facts]
    return max(epochs, default=None)


class Debt(NamedTuple):
    """Since which record a key owes a re-assertion, and that record's broker time."""

    offset: int
    time_ms: int

    @classmethod
    def read(cls, document: bytes) -> Debt:
        """The debt that a document notes."""
        offset, _, time_ms = document.decode().partition(" ")
        return cls(int(offset), int(time_ms))

    def written(self) -> bytes:
        """The document that notes it."""
        return f"{self.offset} {self.time_ms}".encode()


class PartitionFold:
    """The projection of one partition, held as far as the records at hand need it.

    Args:
        header: what the projection store says of itself.
        debts: log key → debt; the complete list.
    """

    def __init__(self, partition: Partition, header: Header, debts: Mapping[str, Debt]) -> None:
        self.partition = partition
        self.header = header
        self.debts = dict(debts)
        self._loaded: dict[DocumentKey, bytes | None] = {}
        self._writes: dict[DocumentKey, bytes | None] = {}

    # -- documents ---------------------------------------------------------------------

    def needs(self, entry: LogEntry) -> set[DocumentKey]:
        """The documents that `apply` will look at and that are not at hand yet.

        Ask again after providing them, until there are none, if the entry `history.names_a_summary`: what
        that stands for is only looked up as far as the key's own document does not know it.
        """
        wanted: set[DocumentKey] = set()
        own = None
        if entry.key is not None and (own := document_of(self.partition.topic, entry.key)):
            wanted.add(own)
            wanted.add(DocumentKey(UNSAFE, entry.key))
        if entry.record is not None:
            position = Position(self.header.generation, entry.offset)
            for _, fact in history.facts_of(entry.record, position):
                wanted |= self._summary_needs(fact, own) if losers.is_summary(fact) else self._fact_needs(fact)
        return {key for key in wanted if key not in self._loaded and key not in self._writes}

    def _fact_needs(self, data: bytes) -> set[DocumentKey]:
        number, fence = self._coordinates(data)
        wanted = {seq_document(number)} if number else set()
        if fence:
            wanted.add(fence)
        return wanted

    def _summary_needs(self, data: bytes, own: DocumentKey | None) -> set[DocumentKey]:
        if own is None or (own not in self._loaded and own not in self._writes):
            return set()
        known = numbers_in(read_history(self._get(own)))
        return {seq_document(number) for number in losers.numbers(data) - known}

    def _coordinates(self, data: bytes) -> tuple[Number | None, DocumentKey | None]:
        """The fact's number, if it has one, and the fence that an intent is judged by."""
        try:
            if self.partition.topic is Topic.AGENTS:
                agent = decode_agent(data)
                return (Number(agent.agent_id, agent.epoch, agent.seq) if agent.seq > 0 else None), None
            effect = decode_effect(data)
        except DecodeError:
            return None, None
        fence = None
        if effect.kind is EffectKind.INTENDED:
            fence = fence_document(effect.agent_id, effect.branch_id)
        return (losers.number_of(effect) if effect.seq > 0 else None), fence

    def provide(self, documents: Mapping[DocumentKey, bytes | None]) -> None:
        """Hand over documents that were asked for; absent ones as None."""
        self._loaded.update(documents)

    def _get(self, key: DocumentKey) -> bytes | None:
        """A document. One that is not at hand is never taken for absent: its history would be overwritten."""
        if key not in self._writes and key not in self._loaded:
            raise LookupError(f"{self.partition}: document {key} was not provided")
        return self._at_hand(key)

    def _at_hand(self, key: DocumentKey) -> bytes | None:
        return self._writes[key] if key in self._writes else self._loaded.get(key)

    def _put(self, key: DocumentKey, value: bytes | None) -> None:
        if self._at_hand(key) != value or (value is None and key not in self._loaded):
            self._writes[key] = value

    # -- applying ----------------------------------------------------------------------

    def apply(self, entry: LogEntry) -> None:
        """Take the next record; `needs(entry)` must have been provided.

        Raises ValueError when the record is not the expected next one: a gap is the
        shell's to deal with, since only above the settled offset it is proof of a loss.
        Raises LookupError when a document that it needs was not provided.
        """
        if entry.offset < self.header.applied_offset:
            raise ValueError(f"{self.partition}: offset {entry.offset} is applied already")
        if entry.record is None:
            self._set_aside(entry)
        elif self.partition.topic is Topic.EFFECTS and log_keys.fence_of(entry.record.key):
            self._apply_fence(entry, entry.record)
        elif (document := document_of(self.partition.topic, entry.record.key)) is not None:
            self._apply_history(entry, entry.record, document)
        elif not log_keys.is_horizon(entry.record.key):
            self._set_aside(replace(entry, record=None, problem="the key is of an unknown form"))
        self._advance(entry.offset + 1)

    def skip_to(self, offset: int) -> None:
        """Move over offsets that compaction removed below the settled offset."""
        self._advance(max(offset, self.header.applied_offset))

    def _advance(self, applied: int) -> None:
        oldest = min(self.debts.values(), default=Debt(applied, 0))
        settled = oldest.offset if self.header.opened else min(oldest.offset, self.header.judge_from)
        self.header = replace(
            self.header,
            applied_offset=applied,
            settled_offset=max(settled, self.header.settled_offset),
            settled_time_ms=oldest.time_ms,
        )

    def _set_aside(self, entry: LogEntry) -> None:
        place = {"partition": str(self.partition), "offset": entry.offset, "generation": self.header.generation}
        said = {"key": entry.key, "problem": entry.problem, "time_ms": entry.time_ms, "stray": entry.stray}
        note = json.dumps({**place, **said})
        self._put(DocumentKey(SET_ASIDE, str(entry.offset)), note.encode())
        document = document_of(self.partition.topic, entry.key) if entry.key is not None else None
        if entry.key is None or document is None or entry.stray:
            return
        self._put(DocumentKey(UNSAFE, entry.key), note.encode())
        if (mark := mark_of(self.partition.topic, entry.key)) is not None:
            self._mark_unsafe(entry, document, mark)
        if self._get(document):
            self._owe(entry.key, Debt(entry.offset, entry.time_ms))

    def _mark_unsafe(self, entry: LogEntry, document: DocumentKey, mark: bytes) -> None:
        """Put into the key's own history that a record of it could not be taken.

        The record itself is removed by the log cleaner one day; a projection that is rebuilt
        afterwards would take the operation, or the agent, for a safe one.
        """
        position = Position(self.header.generation, entry.offset)
        known = history.merge(read_history(self._get(document)), (PositionedFact(position, mark),))
        if document.collection == OPS:
            self._put(DocumentKey(OPEN, document.key), b"unsafe")
        try:
            written = write_history(document.key, known)
        except EncodeError:  # no room for the mark: the unsafe note stands by itself
            return
        self._put(document, written)
        if document.collection == OPS:
            self._index_operation(document.key, known, ())

    def _apply_fence(self, entry: LogEntry, record: Record) -> None:
        owner = log_keys.fence_of(record.key)
        document = fence_document(*owner) if owner else None
        said = history.facts_of(record, Position(self.header.generation, entry.offset))
        if document is None or not self._readable(entry, said):
            return
        known = history.merge(read_history(self._get(document)), said)
        # Once opened every intent was judged when it was applied, so only the highest fence
        # still decides anything. Below the horizon all are kept: they are judged by later.
        if self.header.opened:
            known = highest_fence(known)
        self._put(document, write_history(record.key, known))
        self._settle_debt(entry, covered=set(said) >= set(highest_fence(known)))

    def _apply_history(self, entry: LogEntry, record: Record, document: DocumentKey) -> None:
        said = history.facts_of(record, Position(self.header.generation, entry.offset))
        if not self._readable(entry, said):
            return
        before = read_history(self._get(document))
        known = said if set(before) <= set(said) else history.merge(before, said)
        new = tuple(sorted(set(known) - set(before))) if before else known
        if document.collection == OPS:
            if verdicts := self._verdicts(record.key, new, known):
                known = history.merge(known, verdicts)
            known = self._summarised(record.key, known)
        try:
            written = write_history(record.key, known)
        except EncodeError as error:
            self._set_aside(replace(entry, record=None, problem=f"{TOO_LARGE}: {error}"))
            return
        self._put(document, written)
        if document.collection == OPS:
            self._index_operation(record.key, known, new)
        else:
            self._index_agent(record.key, known)
        self._note_seqs(new, before)
        self._settle_debt(entry, covered=history.contains(said, known))

    def _summarised(self, op_id: str, known: History) -> History:
        """The history with all but the oldest attempts that never owned the operation as numbers.

        Only once opened: below the horizon a verdict may still be missing.
        """
        if not self.header.opened or len(known) < losers.SUMMARISED_FROM:
            return known
        numbers = losers.to_summarise(fold_operation(op_id, known))
        return history.summarised(op_id, known, numbers) if numbers else known

    def _readable(self, entry: LogEntry, said: History) -> bool:
        """Whether every fact decodes; sets the whole record aside otherwise."""
        decode: Callable[[bytes], object] = decode_effect if self.partition.topic is Topic.EFFECTS else decode_agent
        try:
            facts = [decode(fact) for _, fact in said]
        except DecodeError as error:
            self._set_aside(replace(entry, record=None, problem=f"a fact is undecodable: {error}"))
            return False
        own = entry.key if entry.key and log_keys.is_operation(entry.key) else ""
        if any(
            isinstance(f, EffectFact) and f.kind is EffectKind.SUMMARISED and not losers.is_summary(item.fact)
            for f, item in zip(facts, said, strict=True)
        ):
            self._set_aside(replace(entry, record=None, problem="a fact is undecodable: a summary's numbers"))
            return False
        if any(isinstance(f, EffectFact) and f.op_id != own for f in facts):
            self._set_aside(replace(entry, record=None, problem="a fact names another operation"))
            return False
        return True

    # -- verdicts ----------------------------------------------------------------------

    def _verdicts(self, op_id: str, new: History, known: History) -> History:
        if self.header.opened:
            return tuple(self._judge(new, known))
        if any(self._needs_judging(position, decode_effect(fact)) for position, fact in new):
            self._put(DocumentKey(UNJUDGED, op_id), b"")
        return ()

    def _needs_judging(self, position: Position, fact: EffectFact) -> bool:
        floor = Position(self.header.generation, self.header.judge_from)
        return fact.kind is EffectKind.INTENDED and position >= floor

    def _judge(self, candidates: History, known: History) -> Iterable[PositionedFact]:
        """REJECTED facts for the intents among `candidates` that a fence stands before."""
        if not any(self._needs_judging(position, decode_effect(data)) for position, data in candidates):
            return
        facts = [(p, decode_effect(f)) for p, f in known]
        judged = {f.attempt_id for _, f in facts if f.kind is EffectKind.REJECTED}
        first: dict[str, Position] = {}
        for position, fact in facts:
            if fact.kind is EffectKind.INTENDED:
                first.setdefault(fact.attempt_id, position)
        for position, data in candidates:
            fact = decode_effect(data)
            if not self._needs_judging(position, fact) or fact.attempt_id in judged:
                continue
            if first[fact.attempt_id] == position and self._fenced(position, fact):
                yield PositionedFact(position, rejection(fact))

    def _fenced(self, position: Position, intent: EffectFact) -> bool:
        document = fence_document(intent.agent_id, intent.branch_id)
        # At the horizon the whole collection was provided: what is not in it does not exist.
        fences = read_history(self._get(document) if self.header.opened else self._at_hand(document))
        return any(at < position and decode_effect(f).epoch > intent.epoch for at, f in fences)

    # -- the horizon -------------------------------------------------------------------

    def horizon_reached(self) -> bool:
        """Whether the projection may be opened now."""
        return not self.header.opened and self.header.applied_offset >= self.header.horizon

    def judge(self, op_ids: Iterable[str], fences: Mapping[DocumentKey, bytes]) -> None:
        """At the horizon: give the verdicts that were put off, for these operations.

        Their documents (OPS and UNSAFE) must have been provided; `fences` is the whole collection.
        A verdict given here is not in the log yet, so it is owed from its intent's position.
        """
        self.provide(fences)
        for op_id in op_ids:
            self._judge_at_horizon(op_id)
            self._put(DocumentKey(UNJUDGED, op_id), None)

    def open(self, fences: Mapping[DocumentKey, bytes]) -> None:
        """Open the projection, once every operation noted as unjudged was judged."""
        for key, data in fences.items():
            kept = history.decode(data)
            self._put(key, write_history(kept.key, highest_fence(kept.history)))
        self.header = replace(self.header, opened=True)
        self._advance(self.header.applied_offset)

    def _judge_at_horizon(self, op_id: str) -> None:
        document = DocumentKey(OPS, op_id)
        known = read_history(self._get(document))
        verdicts = tuple(self._judge(known, known))
        if not verdicts:
            return
        known = history.merge(known, verdicts)
        try:
            written = write_history(op_id, known)
        except EncodeError as error:  # nothing can be decided about it, and nothing else stops
            note = {"offset": verdicts[0].position.offset, "key": op_id, "problem": f"{NO_ROOM}: {error}"}
            self._put(DocumentKey(UNSAFE, op_id), json.dumps(note).encode())
            self._put(DocumentKey(OPEN, op_id), b"unsafe")
            return
        for position, _ in verdicts:
            self._owe(op_id, Debt(position.offset, UNKNOWN_TIME_MS))
        self._put(document, written)
        self._index_operation(op_id, known, ())

    # -- debts and indexes ---------------------------------------------------------------

    def _settle_debt(self, entry: LogEntry, *, covered: bool) -> None:
        key = entry.key or ""
        if not covered:
            self._owe(key, Debt(entry.offset, entry.time_ms))
        elif key in self.debts:
            del self.debts[key]
            self._put(DocumentKey(DEBTS, key), None)

    def _owe(self, key: str, debt: Debt) -> None:
        since = min(debt, self.debts.get(key, debt))
        if self.debts.get(key) != since:
            self.debts[key] = since
            self._put(DocumentKey(DEBTS, key), since.written())

    def _index_operation(self, op_id: str, known: History, new: History) -> None:
        operation = fold_operation(op_id, known)
        unsafe = self._get(DocumentKey(UNSAFE, op_id))
        if unsafe and operation.cleared_by(json.loads(unsafe)["offset"], self.header.generation):
            self._put(DocumentKey(UNSAFE, op_id), None)
            unsafe = None
        settled = operation.status in {Status.FREE, Status.COMMITTED} and not operation.needs_attention
        is_open = bool(unsafe) or not settled
        self._put(DocumentKey(OPEN, op_id), operation.status.value.encode() if is_open else None)
        for _, data in new:
            for agent_id in agents_in(data):
                self._put(DocumentKey(agent_ops(agent_id), op_id), b"")
                self._put(DocumentKey(AGENTS, agent_id), b"")

    def _index_agent(self, key: str, known: History) -> None:
        owner = log_keys.agent_of(key)
        if not owner:
            return
        self._put(DocumentKey(AGENTS, owner[1]), b"")
        mark = mark_of(self.partition.topic, key)
        marked = [position for position, data in known if data == mark]
        if marked and not self._get(DocumentKey(UNSAFE, key)):  # the record itself is gone from the log
            at = {"partition": str(self.partition), "offset": marked[-1].offset, "generation": marked[-1].generation}
            note = {**at, "key": key, "problem": "it could not be taken", "time_ms": 0, "stray": False}
            self._put(DocumentKey(UNSAFE, key), json.dumps(note).encode())

    def _note_seqs(self, new: History, before: History) -> None:
        chunks: dict[DocumentKey, list[int]] = {}
        for _, data in new:
            if losers.is_summary(data):
                noted = losers.numbers(data) - numbers_in(before)
            else:
                number, _ = self._coordinates(data)
                noted = frozenset({number} if number else ())
            for one in noted:
                chunks.setdefault(seq_document(one), []).append(one.seq)
        for document, found in chunks.items():
            self._put(document, set_bits(self._get(document), found))

    # -- steps -------------------------------------------------------------------------

    def take_step(self) -> Step:
        """What changed since the last step; the fold goes on from there."""
        step = Step(self.header, self._writes)
        self._loaded.update(self._writes)
        self._writes = {}
        return step

    def forget(self, *, keep: int, keep_bytes: int = 32_000_000) -> None:
        """Drop cached documents when there are more than `keep` of them, or more than so many bytes."""
        if len(self._loaded) > keep or sum(len(data or b"") for data in self._loaded.values()) > keep_bytes:
            self._loaded.clear()


def reassertion(key: str, document: bytes | None) -> Record:
    """The record that pays a debt: the key's whole known history and no new fact."""
    return Record(key, read_history(document), None, "projector")
