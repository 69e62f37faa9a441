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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..schemas.errors import EncodeError
from . import history, log_keys, losers
from .debt import UNKNOWN_TIME_MS, Debt
from .derived_facts import agents_in, highest_fence, numbers_in, rejection
from .document_names import (
    AGENTS,
    DEBTS,
    FENCES,
    LAYOUT,
    LEDGER,
    OPEN,
    OPS,
    SET_ASIDE,
    UNJUDGED,
    UNSAFE,
    agent_documents,
    agent_ops,
    document_of,
    fence_document,
    seq_document,
    seqs,
    session_document,
)
from .documents import Documents, Known, read_history, write_history
from .facts import EffectFact, EffectKind, decode_effect
from .history import History, LogEntry, PositionedFact, Record
from .marks import NO_ROOM, TOO_LARGE, mark_of
from .notes import read_note
from .operation_fold import fold_operation, take
from .operations import Operation, Status
from .ports import DocumentKey, Header, Step
from .positions import Partition, Position
from .sayings import Fact, Saying, Told, decoded, said_by
from .seq_bits import SEQ_CHUNK

__all__ = [
    "AGENTS", "DEBTS", "FENCES", "LAYOUT", "LEDGER", "OPEN", "OPS", "SET_ASIDE", "UNJUDGED", "UNKNOWN_TIME_MS", "UNSAFE",
    "Debt", "PartitionFold", "agent_documents", "agent_ops", "document_of", "fence_document", "fence_epoch",
    "read_history", "reassertion", "seq_document", "seqs", "write_history",
]  # fmt: skip

_STATUS = {status: status.value.encode() for status in Status}


def fence_epoch(facts: History) -> Position | None:
    """The highest epoch that a fence's history raises its branch to."""
    epochs = [decode_effect(f).epoch for _, f in facts]
    return max(epochs, default=None)


Intent = tuple[Position, EffectFact]


class PartitionFold:
    """The projection of one partition, held as far as the records at hand need it.

    Args:
        header: what the projection store says of itself.
        debts: log key → debt; the complete list.
    """

    def __init__(self, partition: Partition, header: Header, debts: Mapping[str, Debt]) -> None:
        self.partition = partition
        self.applied_offset = header.applied_offset
        self._header = header
        self._floor = Position(header.generation, header.judge_from)  # intents below it were judged
        self._settled = header.settled_offset, header.settled_time_ms
        self.debts = dict(debts)
        self._oldest: Debt | None = None  # of the debts; found anew when they change
        self._documents = Documents(str(partition))
        self._sayings: dict[int, tuple[LogEntry, Saying]] = {}
        self._names_summaries = False  # any of them

    @property
    def header(self) -> Header:
        """What the projection says of itself, with all that was applied."""
        header, (offset, time_ms) = self._header, self._settled
        if (header.applied_offset, header.settled_offset, header.settled_time_ms) != (
            self.applied_offset,
            offset,
            time_ms,
        ):
            self._header = header = replace(
                header, applied_offset=self.applied_offset, settled_offset=offset, settled_time_ms=time_ms
            )
        return header

    @header.setter
    def header(self, header: Header) -> None:
        self._header = header
        self._floor = Position(header.generation, header.judge_from)
        self.applied_offset = header.applied_offset
        self._settled = header.settled_offset, header.settled_time_ms

    # -- documents ---------------------------------------------------------------------

    def needs(self, entry: LogEntry) -> set[DocumentKey]:
        """The documents that `apply` will look at and that are not at hand yet.

        Ask again after providing them, until there are none, if the entry `history.names_a_summary`: what
        that stands for is only looked up as far as the key's own document does not know it.
        """
        return self.wanted((entry,))

    def wanted(self, entries: Iterable[LogEntry]) -> set[DocumentKey]:
        """What `needs` says of each of the entries, together."""
        wanted: set[DocumentKey] = set()
        for entry in entries:
            said = self._saying(entry)
            if said.document is None:
                continue
            wanted.add(said.document)
            wanted.add(DocumentKey(UNSAFE, entry.key or ""))
            for fact in self._perhaps_new(said, said.document):
                if fact.kind is EffectKind.SUMMARISED:
                    wanted |= self._summary_needs(said, said.document)
                    continue
                if fact.seq > 0:
                    wanted.add(session_document(fact.agent_id, fact.epoch, fact.seq // SEQ_CHUNK))
                if fact.kind is EffectKind.INTENDED:
                    wanted.add(fence_document(fact.agent_id, fact.branch_id))
        return self._documents.missing(wanted)

    @property
    def asks_again(self) -> bool:
        """Whether `wanted` must be asked again once what it wanted is provided: an entry of this step names a summary."""
        return self._names_summaries

    def _perhaps_new(self, said: Saying, own: DocumentKey) -> Iterable[Fact]:
        """The facts that may have to be taken: what is known once stays known."""
        if own in self._documents:
            known = self._documents.known(own, "").history
            if known and known == said.history[: len(known)]:
                return said.facts[len(known) :]
        return said.facts

    def _summary_needs(self, said: Saying, own: DocumentKey) -> set[DocumentKey]:
        if own not in self._documents:
            return set()
        known = numbers_in(self._documents.known(own, "").history)
        return {seq_document(number) for number in numbers_in(said.history) - known}

    def _saying(self, entry: LogEntry) -> Saying:
        """What the entry says; `needs` and `apply` both ask."""
        kept = self._sayings.get(entry.offset)
        if kept is None or kept[0] is not entry:
            kept = entry, said_by(entry, self.partition.topic, self._header.generation)
            self._names_summaries |= kept[1].summarised
            self._sayings[entry.offset] = kept
        return kept[1]

    def provide(self, documents: Mapping[DocumentKey, bytes | None]) -> None:
        """Hand over documents that were asked for; absent ones as None."""
        self._documents.provide(documents)

    # -- applying ----------------------------------------------------------------------

    def apply(self, entry: LogEntry) -> None:
        """Take the next record; `needs(entry)` must have been provided.

        Raises ValueError when the record is not the expected next one: a gap is the
        shell's to deal with, since only above the settled offset it is proof of a loss.
        Raises LookupError when a document that it needs was not provided.
        """
        if entry.offset < self.applied_offset:
            raise ValueError(f"{self.partition}: offset {entry.offset} is applied already")
        said = self._saying(entry)
        if entry.record is None:
            self._set_aside(entry)
        elif said.problem:
            self._set_aside(replace(entry, record=None, problem=said.problem))
        elif said.document is not None:
            if said.document.collection == FENCES:
                self._apply_fence(entry, said, said.document)
            else:
                self._apply_history(entry, said, said.document)
        self._advance(entry.offset + 1)

    def skip_to(self, offset: int) -> None:
        """Move over offsets that compaction removed below the settled offset."""
        self._advance(max(offset, self.applied_offset))

    def _advance(self, applied: int) -> None:
        if self.debts and self._oldest is None:
            self._oldest = min(self.debts.values())
        settled, time_ms = self._oldest or (applied, 0)
        if not self._header.opened:
            settled = min(settled, self._header.judge_from)
        self.applied_offset = applied
        self._settled = max(settled, self._settled[0]), time_ms

    def _set_aside(self, entry: LogEntry) -> None:
        place = {"partition": str(self.partition), "offset": entry.offset, "generation": self._header.generation}
        said = {"key": entry.key, "problem": entry.problem, "time_ms": entry.time_ms, "stray": entry.stray}
        note = json.dumps({**place, **said})
        self._documents.put(DocumentKey(SET_ASIDE, str(entry.offset)), note.encode())
        document = document_of(self.partition.topic, entry.key) if entry.key is not None else None
        if entry.key is None or document is None or entry.stray:
            return
        self._documents.put(DocumentKey(UNSAFE, entry.key), note.encode())
        if (mark := mark_of(self.partition.topic, entry.key)) is not None:
            self._mark_unsafe(entry, document, mark)
        if self._documents.get(document):
            self._owe(entry.key, Debt(entry.offset, entry.time_ms))

    def _mark_unsafe(self, entry: LogEntry, document: DocumentKey, mark: bytes) -> None:
        """Put into the key's own history that a record of it could not be taken.

        The record itself is removed by the log cleaner one day; a projection that is rebuilt
        afterwards would take the operation, or the agent, for a safe one.
        """
        position = Position(self._header.generation, entry.offset)
        before = self._documents.known(document, document.key).history
        after = Known(document.key, history.merge(before, (PositionedFact(position, mark),)))
        if document.collection == OPS:
            self._documents.put(DocumentKey(OPEN, document.key), b"unsafe")
        try:
            self._documents.put_history(document, after)
        except EncodeError:  # no room for the mark: the unsafe note stands by itself
            return
        if document.collection == OPS:
            self._index_operation(after, fold_operation(after.key, after.history))

    def _apply_fence(self, entry: LogEntry, said: Saying, document: DocumentKey) -> None:
        known = history.merge(self._documents.known(document, "").history, said.history)
        # Once opened every intent was judged when it was applied, so only the highest fence
        # still decides anything. Below the horizon all are kept: they are judged by later.
        if self._header.opened:
            known = highest_fence(known)
        self._documents.put_history(document, Known(entry.key or "", known))
        self._settle_debt(entry, covered=set(said.history) >= set(highest_fence(known)))

    def _apply_history(self, entry: LogEntry, said: Saying, document: DocumentKey) -> None:
        key = document.key
        before = self._documents.known(document, key)
        union, new, appended = self._union(before.history, said)
        known = union
        if document.collection == OPS:
            if verdicts := self._verdicts(key, new, known):
                known = history.merge(known, verdicts)
            if len(known) >= losers.SUMMARISED_FROM:
                known = self._summarised(key, known)
        after = Known(key, known)
        try:
            self._documents.put_history(document, after)
        except EncodeError as error:
            self._set_aside(replace(entry, record=None, problem=f"{TOO_LARGE}: {error}"))
            return
        if document.collection == OPS:
            operation = self._operation(before, after, new, appended=appended and known is union)
            self._index_operation(after, operation, new, before)
        else:
            self._index_agent(key, known)
        self._note_seqs(new, before.history)
        self._settle_debt(entry, covered=known is said.history or history.contains(said.history, known))

    def _union(self, before: History, said: Saying) -> tuple[History, Sequence[Told], bool]:
        """All that is known now, what of it was not known before, and whether that stands at the end.

        As a rule a record has exactly what is known, and one fact more.
        """
        known = said.history
        if known[:-1] == before:
            return known, [(known[-1], said.facts[-1])] if known else (), True
        if known == before:
            return known, (), True
        former = set(before)
        if not former <= set(known):
            known = history.merge(before, known)
        new = [(item, decoded(self.partition.topic, item.fact)) for item in sorted(set(known) - former)]
        return known, new, known[: len(before)] == before and len(known) == len(before) + len(new)

    def _operation(self, before: Known, after: Known, new: Sequence[Told], *, appended: bool) -> Operation:
        """The fold of what is known after a record. Where facts came in at the end, the former fold goes on by them.

        Not where a verdict came in, or stands: that looks back to its intent.
        """
        former = before.taken_operation() if before.history else Operation(after.key)
        if former is None or not appended or EffectKind.REJECTED in [fact.kind for _, fact in new]:
            operation = fold_operation(after.key, after.history)
            after.operation = None if _has_verdicts(after.history) else operation
            return operation
        for item, fact in new:
            assert isinstance(fact, EffectFact)  # noqa: S101 - the topic's, not input
            take(former, item.position, fact)
        after.operation = former
        return former

    def _summarised(self, op_id: str, known: History) -> History:
        """The history with all but the oldest attempts that never owned the operation as numbers.

        Only once opened: below the horizon a verdict may still be missing.
        """
        if not self._header.opened or len(known) < losers.SUMMARISED_FROM:
            return known
        numbers = losers.to_summarise(fold_operation(op_id, known))
        return history.summarised(op_id, known, numbers) if numbers else known

    # -- verdicts ----------------------------------------------------------------------

    def _verdicts(self, op_id: str, new: Sequence[Told], known: History) -> History:
        candidates = self._to_judge(new)
        if not candidates:
            return ()
        if self._header.opened:
            fenced = [(position, intent) for position, intent in candidates if self._fenced(position, intent)]
            return tuple(self._judge(fenced, known)) if fenced else ()
        self._documents.put(DocumentKey(UNJUDGED, op_id), b"")
        return ()

    def _to_judge(self, facts: Iterable[Told]) -> list[Intent]:
        """The intents among them that a verdict may have to be given on."""
        floor = self._floor
        return [
            (item.position, fact)
            for item, fact in facts
            if isinstance(fact, EffectFact) and fact.kind is EffectKind.INTENDED and item.position >= floor
        ]

    def _judge(self, candidates: Iterable[Intent], known: History) -> Iterable[PositionedFact]:
        """REJECTED facts for the intents among `candidates`, each behind a fence, that have none."""
        facts = [(p, decode_effect(f)) for p, f in known]
        judged = {f.attempt_id for _, f in facts if f.kind is EffectKind.REJECTED}
        first: dict[str, Position] = {}
        for position, fact in facts:
            if fact.kind is EffectKind.INTENDED:
                first.setdefault(fact.attempt_id, position)
        for position, intent in candidates:
            if intent.attempt_id not in judged and first[intent.attempt_id] == position:
                yield PositionedFact(position, rejection(intent))

    def _fenced(self, position: Position, intent: EffectFact) -> bool:
        document = fence_document(intent.agent_id, intent.branch_id)
        # At the horizon the whole collection was provided: what is not in it does not exist.
        if not self._header.opened and document not in self._documents:
            return False
        fences = self._documents.known(document, "").history
        return any(at < position and decode_effect(f).epoch > intent.epoch for at, f in fences)

    # -- the horizon -------------------------------------------------------------------

    def horizon_reached(self) -> bool:
        """Whether the projection may be opened now."""
        return not self._header.opened and self.applied_offset >= self._header.horizon

    def judge(self, op_ids: Iterable[str], fences: Mapping[DocumentKey, bytes]) -> None:
        """At the horizon: give the verdicts that were put off, for these operations.

        Their documents (OPS and UNSAFE) must have been provided; `fences` is the whole collection.
        A verdict given here is not in the log yet, so it is owed from its intent's position.
        """
        self.provide(fences)
        for op_id in op_ids:
            self._judge_at_horizon(op_id)
            self._documents.put(DocumentKey(UNJUDGED, op_id), None)

    def open(self, fences: Mapping[DocumentKey, bytes]) -> None:
        """Open the projection, once every operation noted as unjudged was judged."""
        for key, data in fences.items():
            kept = history.decode(data)
            self._documents.put(key, write_history(kept.key, highest_fence(kept.history)))
        self.header = replace(self.header, opened=True)
        self._advance(self.applied_offset)

    def _judge_at_horizon(self, op_id: str) -> None:
        document = DocumentKey(OPS, op_id)
        before = self._documents.known(document, op_id).history
        candidates = self._to_judge((item, decode_effect(item.fact)) for item in before)
        fenced = [(position, intent) for position, intent in candidates if self._fenced(position, intent)]
        verdicts = tuple(self._judge(fenced, before))
        if not verdicts:
            return
        after = Known(op_id, history.merge(before, verdicts))
        try:
            self._documents.put_history(document, after)
        except EncodeError as error:  # nothing can be decided about it, and nothing else stops
            note = {"offset": verdicts[0].position.offset, "key": op_id, "problem": f"{NO_ROOM}: {error}"}
            self._documents.put(DocumentKey(UNSAFE, op_id), json.dumps(note).encode())
            self._documents.put(DocumentKey(OPEN, op_id), b"unsafe")
            return
        for position, _ in verdicts:
            self._owe(op_id, Debt(position.offset, UNKNOWN_TIME_MS))
        self._index_operation(after, fold_operation(op_id, after.history))

    # -- debts and indexes ---------------------------------------------------------------

    def _settle_debt(self, entry: LogEntry, *, covered: bool) -> None:
        key = entry.key or ""
        if not covered:
            self._owe(key, Debt(entry.offset, entry.time_ms))
        elif key in self.debts:
            del self.debts[key]
            self._oldest = None
            self._documents.put(DocumentKey(DEBTS, key), None)

    def _owe(self, key: str, debt: Debt) -> None:
        since = min(debt, self.debts.get(key, debt))
        if self.debts.get(key) != since:
            self.debts[key] = since
            self._oldest = None
            self._documents.put(DocumentKey(DEBTS, key), since.written())

    def _index_operation(
        self, known: Known, operation: Operation, new: Sequence[Told] = (), before: Known | None = None
    ) -> None:
        op_id = known.key
        unsafe = self._documents.get(DocumentKey(UNSAFE, op_id))
        if unsafe and operation.last_resolution > read_note(unsafe, self._header.generation).position:
            self._documents.put(DocumentKey(UNSAFE, op_id), None)
            unsafe = None
        is_open = bool(unsafe) or not operation.at_rest
        open_document = DocumentKey(OPEN, op_id)
        if before is not None and not before.there and unsafe is None:
            self._documents.suppose_absent(open_document)  # what is open has a history, or is unsafe
        self._documents.put(open_document, _STATUS[operation.status] if is_open else None)
        # Whoever wrote the fact before is in the indexes already: most often it is the same agent.
        last = decode_effect(before.history[-1].fact).agent_id if before and before.history else ""
        for item, fact in new:
            if fact.agent_id == last and fact.kind is not EffectKind.SUMMARISED:
                continue
            for agent_id in (
                agents_in(item.fact) if fact.kind is EffectKind.SUMMARISED else filter(None, [fact.agent_id])
            ):
                self._documents.put(DocumentKey(agent_ops(agent_id), op_id), b"")
                self._documents.put(DocumentKey(AGENTS, agent_id), b"")

    def _index_agent(self, key: str, known: History) -> None:
        owner = log_keys.agent_of(key)
        if not owner:
            return
        self._documents.put(DocumentKey(AGENTS, owner[1]), b"")
        mark = mark_of(self.partition.topic, key)
        marked = [position for position, data in known if data == mark]
        if marked and not self._documents.get(DocumentKey(UNSAFE, key)):  # the record itself is gone from the log
            at = {"partition": str(self.partition), "offset": marked[-1].offset, "generation": marked[-1].generation}
            note = {**at, "key": key, "problem": "it could not be taken", "time_ms": 0, "stray": False}
            self._documents.put(DocumentKey(UNSAFE, key), json.dumps(note).encode())

    def _note_seqs(self, new: Sequence[Told], before: History) -> None:
        for item, fact in new:
            if fact.kind is EffectKind.SUMMARISED:
                for number in losers.numbers(item.fact) - numbers_in(before):
                    self._documents.note(seq_document(number), number.seq)
            elif fact.seq > 0:
                self._documents.note(session_document(fact.agent_id, fact.epoch, fact.seq // SEQ_CHUNK), fact.seq)

    # -- steps -------------------------------------------------------------------------

    def take_step(self) -> Step:
        """What changed since the last step; the fold goes on from there."""
        self._sayings.clear()
        self._names_summaries = False
        return Step(self.header, self._documents.take())

    def forget(self, *, keep: int, keep_bytes: int = 32_000_000) -> None:
        """Of the documents that are at hand, keep at most about so many, and so many bytes. Only between steps."""
        self._documents.forget(keep=keep, keep_bytes=keep_bytes)


def _has_verdicts(facts: History) -> bool:
    return any(decode_effect(item.fact).kind is EffectKind.REJECTED for item in facts)


def reassertion(key: str, document: bytes | None) -> Record:
    """The record that pays a debt: the key's whole known history and no new fact."""
    return Record(key, read_history(document), None, "projector")
