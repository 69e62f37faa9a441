"""Records and histories: what a log record carries, and how histories merge.

A record carries its key's whole history, so that a log cleaner which keeps only the newest
record of a key forgets nothing (DESIGN section 3). A history is a set of (position, fact
bytes) that only grows; merging two is set union, so the order in which records are seen,
repeats, and any legal compaction of the log make no difference. A summary of attempts that never
owned their operation stands in it for their facts (`losers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from ..schemas import codec
from ..schemas.errors import SchemaError
from . import losers
from .facts import decode_effect
from .positions import NOWHERE, Partition, Position

MAX_RECORD_BYTES = 1_000_000
"""Of a published record, inclusive. A re-assertion may take what the codec allows: it is in no one's hand."""


class PositionedFact(NamedTuple):
    """A fact's bytes and where it stands."""

    position: Position
    fact: bytes


History = tuple[PositionedFact, ...]
"""Positioned facts in log order, without repeats."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one log record says: a key's known history and at most one new fact.

    `fact` is None in a re-assertion, which pays a debt and says nothing new.
    """

    key: str
    history: History = ()
    fact: bytes | None = None
    writer: str = ""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A record as it was read from the log.

    `record` is None when the bytes could not be taken as one; `problem` then says why.
    `key` is None when the log key itself is missing or not text. `stray` says that the key belongs
    to another partition, where its history stands untouched by this record.
    """

    partition: Partition
    offset: int
    time_ms: int
    key: str | None
    record: Record | None
    problem: str = ""
    stray: bool = False


def merge(*histories: Iterable[PositionedFact]) -> History:
    """The union of histories, in log order. What a summary stands for is part of it."""
    together = tuple(histories[0] if len(histories) == 1 else chain(*histories))
    if _is_plain(together):
        return together
    facts = set(together)
    summaries = [item for item in facts if losers.is_summary(item.fact)]
    return tuple(sorted(_with_one_summary(facts, summaries) if summaries else facts))


def _is_plain(facts: Sequence[PositionedFact]) -> bool:
    """Whether facts are a history as they stand, without a summary: as a rule what is told last is added at the end."""
    before = _FIRST
    summaries = losers.beginnings()
    for item in facts:
        if before >= item or item[1].startswith(summaries):
            return False
        before = item
    return True


_FIRST = PositionedFact(NOWHERE, b"")


def _with_one_summary(facts: set[PositionedFact], summaries: list[PositionedFact]) -> set[PositionedFact]:
    """The facts without those that the summaries stand for, and one summary for all of them."""
    one = max(summaries)
    numbers = losers.numbers(one.fact)
    plain = facts.difference(summaries)
    more = losers.withdrawn((item.fact for item in plain), numbers.union(*(losers.numbers(s.fact) for s in summaries)))
    if len(summaries) > 1 or not more <= numbers:
        numbers = numbers.union(more, *(losers.numbers(item.fact) for item in summaries))
        op_id = decode_effect(one.fact).op_id
        one = PositionedFact(one.position, losers.summary(op_id, numbers))
    gone = losers.covered((item.fact for item in plain), numbers)
    return {item for item in plain if item.fact not in gone} | {one}


def contains(history: History, other: History) -> bool:
    """Whether nothing that `other` says is missing from `history`."""
    return history == other or merge(history, other) == history


def names_a_summary(entry: LogEntry) -> bool:
    """Whether an entry names attempts that are only kept as numbers."""
    if entry.record is None:
        return False
    facts = (*(item.fact for item in entry.record.history), entry.record.fact or b"")
    return any(losers.is_summary(fact) for fact in facts if fact.startswith(losers.beginnings()))


def summarised(key: str, history: History, numbers: frozenset[losers.Number]) -> History:
    """The history with these numbers in a summary instead of the facts that they belong to."""
    last = max(item.position for item in history)
    return merge(history, (PositionedFact(last, losers.summary(key, numbers)),))


def facts_of(record: Record, position: Position) -> History:
    """All that a record at `position` says: its history and its own new fact."""
    if record.fact is None:
        return merge(record.history)
    own = PositionedFact(position, record.fact)
    return merge((*record.history, own)) if record.history else (own,)


def encode(record: Record) -> bytes:
    """The record's bytes in single-object encoding; facts go in byte for byte."""
    return codec.encode_record(_values(record))


def decode(data: bytes) -> Record:
    """The record in `data`. Raises schemas.DecodeError."""
    values = _reader()(data)
    told = values.get
    known: History = told("history", ())
    return Record(told("key", ""), merge(known) if len(known) > 1 else known, told("fact"), told("writer", ""))


@cache
def _reader() -> Callable[[bytes], dict[str, Any]]:
    return codec.SINGLE_OBJECT.told_reader("record", {"history": _positioned})


def _positioned(generation: int, offset: int, fact: bytes) -> PositionedFact:
    return PositionedFact(Position(generation, offset), fact)


def _values(record: Record) -> dict[str, object]:
    return {
        "key": record.key,
        "history": [{"generation": p.generation, "offset": p.offset, "fact": f} for p, f in record.history],
        "fact": record.fact,
        "writer": record.writer,
    }


def from_values(values: dict[str, object]) -> Record:
    """The record that a codec decoded into plain values."""
    items = values["history"]
    assert isinstance(items, list)  # noqa: S101 (the codec's type, not input)
    history = (PositionedFact(Position(i["generation"], i["offset"]), i["fact"]) for i in items)
    fact = values["fact"]
    assert fact is None or isinstance(fact, bytes)  # noqa: S101
    return Record(str(values["key"]), merge(history), fact, str(values["writer"]))


def to_values(record: Record) -> dict[str, object]:
    """The record as plain values, for a codec of another wire format."""
    return _values(record)


def read_entry(partition: Partition, offset: int, time_ms: int, *, key: bytes | None, value: bytes | None) -> LogEntry:
    """The log entry for raw bytes; never raises, a problem is part of the answer."""
    try:
        text = key.decode("utf-8") if key else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        return LogEntry(partition, offset, time_ms, None, None, "the key is missing or is not UTF-8")
    if value is None:
        return LogEntry(partition, offset, time_ms, text, None, "the value is null (a tombstone)")
    try:
        record = decode(value)
    except SchemaError as error:
        return LogEntry(partition, offset, time_ms, text, None, f"undecodable: {error}")
    if record.key != text:
        problem = f"the record names another key ({record.key!r}) than the log key"
        return LogEntry(partition, offset, time_ms, text, None, problem)
    return LogEntry(partition, offset, time_ms, text, record)
