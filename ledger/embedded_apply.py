"""What one transaction of the embedded store does: append records, project them, pay debts.

The projection is a part of the transaction that appends, so it is always applied and owes
nothing; the fold is the same pure code that the projector runs. What is known of a partition takes the
change of a record once it is complete: what fails changes nothing, and the fold that met it is dropped.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..schemas.errors import EncodeError
from . import history
from .embedded_errors import DAMAGED, set_back
from .embedded_known import Known
from .embedded_tables import (
    PARTITIONS,
    Row,
    append,
    begin_again,
    fresh,
    log_bounds,
    log_end,
    log_entries,
    now_ms,
    read_collection,
    read_documents,
    read_header,
    write_beats,
    write_step,
)
from .errors import FencepostError, PublishRefusedError, RecordTooLargeError, StoreError
from .history import MAX_RECORD_BYTES, History, LogEntry, Record
from .ports import DocumentKey, Header, Snapshot
from .projection import DEBTS, SET_ASIDE, Debt, PartitionFold, document_of, read_history, reassertion
from .written import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    import apsw

    from .ports import Reads
    from .positions import Partition

MAX_REASSERTIONS = 16
_STEP_RECORDS = 500
_KEEP_DOCUMENTS = 20_000
_WRITTEN_BITS = 1 << 24  # two megabytes: one partition holds everything
_FACT_TYPES = (bytes, type(None))


class Transaction:
    """Appends and projects within one open transaction.

    Args:
        sql: the connection; whoever began the transaction commits it.
        path: the file, for messages.
        last: partition → its header as this process saw it last; the log never gets shorter.
        known: partition → what is known of it, if nobody else has written since; kept up to date, and of no
            use when the transaction is not committed.
    """

    def __init__(
        self,
        sql: apsw.Connection,
        path: Path,
        last: Mapping[Partition, Header],
        known: dict[Partition, Known] | None = None,
    ) -> None:
        self._sql = sql
        self._path = path
        self._last = last
        self._known = {} if known is None else known
        self._looked_at: set[Partition] = set()

    @property
    def sql(self) -> apsw.Connection:
        """The connection, with everything written that was published; what is done with it is not known here."""
        self.flush()
        self._known.clear()
        self._looked_at.clear()
        return self._sql

    @property
    def headers(self) -> dict[Partition, Header]:
        """Partition → header, of the partitions that were written."""
        return {partition: self._known[partition].header for partition in self._looked_at}

    def flush(self) -> None:
        """Write what was published: to be called before the COMMIT."""
        for partition, known in self._known.items():
            if known.rows:
                append(self._sql, known.rows)
                write_step(self._sql, partition, known.header, known.writes)
                known.written()

    def beat(self, session_ids: Sequence[str]) -> None:
        """Note that these sessions live."""
        write_beats(self._sql, session_ids)

    def publish(self, partition: Partition, key: str, value: bytes, record: Record | None = None) -> int:
        """Append a record and everything that follows from it; the record's offset.

        Args:
            record: what the value says, where that is known; see `as_read`.

        1. assign the offset and fold the record
        2. while it leaves a debt, append the re-assertion and fold that
        3. take the rows, the documents and the header for what is known; `flush` writes them

        Guarantees: when it raises one of the errors below, the transaction is as it was before.

        Raises:
            RecordTooLargeError: the key's history would not fit into a record any more.
            PublishRefusedError: the record cannot be taken, or the projection is not where the log ends.
        """
        known = self._look_at(partition)
        fold = known.begin_fold()
        offset = fold.applied_offset
        writes: dict[DocumentKey, bytes | None] = {}
        try:
            rows = [self._applied(fold, key, value, writes, record)]  # 1
            rows += self._pay(fold, writes)  # 2
        except EncodeError as error:
            raise RecordTooLargeError(
                f"The history of {key!r} would not fit into a record: {error.reason}.",
                next_step="Give this unit of work another op_id.",
                size_bytes=len(value),
                limit_bytes=MAX_RECORD_BYTES,
            ) from error
        if note := writes.get(DocumentKey(SET_ASIDE, str(offset))):
            raise self._unusable(key, value, json.loads(note)["problem"])
        if known.take(fold, rows, writes):  # 3
            self.flush()
        return offset

    def read(self, partition: Partition, keys: Collection[DocumentKey]) -> Snapshot:
        """The documents under `keys` that exist, with all that was published in this transaction, and the header."""
        known = self._look_at(partition)
        found = self._read(partition, keys)
        return Snapshot(fresh(known.header), {key: data for key, data in found.items() if data is not None})

    def read_ahead(self, reads: Iterable[Reads]) -> None:
        """Read for several works at once. Of what is damaged nothing is taken: it is whose work reads it that is told."""
        wanted: dict[Partition, list[DocumentKey]] = {}
        for partition, keys in reads:
            wanted.setdefault(partition, []).extend(keys)
        with suppress(FencepostError):
            for partition, keys in wanted.items():
                self._look_at(partition)
                self._read(partition, list(dict.fromkeys(keys)))

    def history(self, partition: Partition, key: DocumentKey) -> History:
        """The history in a document, with all that was published in this transaction; () where there is none."""
        found = self._look_at(partition).history(key)
        return read_history(self._read(partition, [key])[key]) if found is None else found

    def _unusable(self, key: str, value: bytes, problem: str) -> FencepostError:
        """Here whoever publishes can be told at once; on a log that others write the record is set aside."""
        if "too large" in problem:
            return RecordTooLargeError(
                f"The history of {key!r} would not fit into a record: {problem}.",
                next_step="Give this unit of work another op_id.",
                size_bytes=len(value),
                limit_bytes=MAX_RECORD_BYTES,
            )
        return PublishRefusedError(
            f"A record under {key!r} cannot be taken: {problem}.",
            next_step="Publish facts of this key only, under a key of a known form.",
            key=key,
        )

    def _pay(self, fold: PartitionFold, writes: dict[DocumentKey, bytes | None]) -> list[Row]:
        """Re-assertions, already folded, that pay the oldest debts: all of them, but for a bound."""
        rows: list[Row] = []
        while fold.debts and len(rows) < MAX_REASSERTIONS:
            owed = min(fold.debts, key=lambda name: (fold.debts[name], name))
            rows.append(self._applied(fold, owed, self._reassertion(fold.partition, owed, writes), writes))
            if owed in fold.debts:  # it cannot be paid, by this version at least; it stays noted
                break
        return rows

    def rebuild(self, progress: Callable[[Partition, int, int], None]) -> None:
        """Drop the projection and derive it again from the whole log, which holds every record."""
        begin_again(self.sql)
        for partition in PARTITIONS:
            self._rebuild(partition, log_bounds(self.sql, partition)[1], progress)

    def _rebuild(self, partition: Partition, end: int, progress: Callable[[Partition, int, int], None]) -> None:
        fold = PartitionFold(partition, read_header(self.sql, partition), {})
        written = Written(bits=_WRITTEN_BITS)
        progress(partition, 0, end)
        for start in range(0, end, _STEP_RECORDS):
            stop = min(end, start + _STEP_RECORDS)
            entries = list(log_entries(self.sql, partition, start, stop))
            wanted: set[DocumentKey] = set().union(*map(fold.needs, entries))
            fold.provide(dict.fromkeys(wanted))  # nothing is there but what this rebuild wrote
            fold.provide(self._read(partition, written.perhaps(wanted)))
            for entry in entries:
                _require_next(fold, entry.offset)
                if history.names_a_summary(entry):
                    self._apply(fold, entry)
                else:
                    fold.apply(entry)
            _require_next(fold, stop)
            step = fold.take_step()
            write_step(self.sql, partition, step.header, step.writes)
            written.note(step.writes)
            fold.forget(keep=_KEEP_DOCUMENTS)
            progress(partition, stop, end)
        writes: dict[DocumentKey, bytes | None] = {}
        append(self.sql, self._pay(fold, writes))  # only verdicts of a newer version are not in the log yet
        write_step(self.sql, partition, fold.header, writes)

    def _look_at(self, partition: Partition) -> Known:
        """What is known of a partition; it stands at the log's end."""
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = self._read_partition(partition)
        self._looked_at.add(partition)
        return known

    def _read_partition(self, partition: Partition) -> Known:
        header = read_header(self._sql, partition)
        end = log_end(self._sql, partition)
        last = self._last.get(partition)
        if last is not None and end < last.applied_offset:
            raise set_back(self._path, "went back to an older state", writing=True)
        if header.applied_offset != end:
            raise PublishRefusedError(
                f"The projection of {partition} stands at {header.applied_offset} and the log ends at {end}.",
                next_step="Run `fencepost projector rebuild`.",
            )
        debts = read_collection(self._sql, partition, DEBTS)
        return Known(partition, header, {document.key: Debt.read(value) for document, value in debts.items()})

    def _read(self, partition: Partition, keys: Collection[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        """The documents under `keys`, None for those that do not exist."""
        known = self._known.get(partition)
        if known is None:  # a rebuild, which writes them itself
            read = read_documents(self._sql, partition, keys)
            return {key: read.get(key) for key in keys}
        found, missing = known.documents.pick(keys)
        if missing:
            read = read_documents(self._sql, partition, missing)
            more = {key: read.get(key) for key in missing}
            known.documents.put(more)
            found |= more
        return found

    def _applied(
        self,
        fold: PartitionFold,
        key: str,
        value: bytes,
        writes: dict[DocumentKey, bytes | None],
        record: Record | None = None,
    ) -> Row:
        row = Row(fold.partition, fold.applied_offset, now_ms(), key, value)
        # What is folded is what a rebuild will read: the bytes, or exactly what they say.
        if record is None:
            entry = history.read_entry(row.partition, row.offset, row.time_ms, key=key.encode(), value=value)
        else:
            entry = LogEntry(row.partition, row.offset, row.time_ms, key, record)
        self._apply(fold, entry)
        writes.update(fold.take_step().writes)
        return row

    def _apply(self, fold: PartitionFold, entry: LogEntry) -> None:
        while needs := fold.needs(entry):
            fold.provide(self._read(fold.partition, needs))
            if not history.names_a_summary(entry):
                break
        fold.apply(entry)

    def _reassertion(self, partition: Partition, key: str, writes: dict[DocumentKey, bytes | None]) -> bytes:
        document = document_of(partition.topic, key)
        known = None
        if document is not None:
            known = writes.get(document) or self._read(partition, [document])[document]
        return history.encode(reassertion(key, known))


def _require_next(fold: PartitionFold, offset: int) -> None:
    """Raise StoreError where rows are missing: nothing is ever removed from this log."""
    expected = fold.applied_offset
    if offset != expected:
        raise StoreError(
            f"The log of {fold.partition} is damaged: the records {expected} to {offset - 1} are missing.",
            next_step=DAMAGED,
        )


def as_read(record: Record) -> Record | None:
    """What a reader makes of the bytes of a record that was encoded, without decoding them; None: decode them."""
    if not all(type(item.fact) is bytes for item in record.history) or type(record.fact) not in _FACT_TYPES:
        return None
    known = history.merge(record.history)
    return record if known == record.history else replace(record, history=known)


def encoded(record: Record) -> bytes:
    """The record's bytes for the log.

    Raises:
        RecordTooLargeError: over the limit.
        PublishRefusedError: a value does not fit the record's schema.
    """
    try:
        value = history.encode(record)
    except EncodeError as error:
        size = sum(len(fact) for _, fact in record.history) + len(record.fact or b"")
        if size > MAX_RECORD_BYTES // 2:
            raise _too_large(record.key, size) from error
        raise PublishRefusedError(
            f"The record of {record.key!r} cannot be encoded: {error.reason}. Nothing was written.",
            next_step="Correct the value.",
        ) from error
    if len(value) > MAX_RECORD_BYTES:
        raise _too_large(record.key, len(value))
    return value


def _too_large(key: str, size: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"The record of {key!r} has {size} bytes, more than {MAX_RECORD_BYTES}. Nothing was written.",
        next_step="Hand large arguments and results over by digest and reference.",
        size_bytes=size,
        limit_bytes=MAX_RECORD_BYTES,
    )
