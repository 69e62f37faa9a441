"""The ports of the embedded store."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, TypeVar

from . import embedded_tables as tables
from .embedded_apply import as_read, encoded
from .embedded_checks import look_at_place, look_at_projection
from .embedded_errors import DatabaseError, translate
from .embedded_file import DatabaseFile
from .embedded_glance import MOST_DOCUMENTS, Glance
from .embedded_reader import Reader, Seen
from .embedded_threads import Reply
from .embedded_writer import Job, Writer
from .errors import StoreClosedError
from .ports import DocumentKey, Snapshot, Terms
from .positions import Partition, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import apsw

    from .embedded_apply import Transaction
    from .embedded_file import Connection
    from .history import History, LogEntry, Record
    from .ports import Check, Header, RawRecord, Reads, Writing

T = TypeVar("T")


class _Process:
    """The process that opened the store: no other may use it."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """Whether it is the one that runs. A process forked later has no threads and no locks."""
        return os.getpid() == self._pid

    def require(self) -> None:
        """Raise StoreUnavailableError in any other process."""
        if not self.is_this:
            raise StoreClosedError(
                "This ledger was opened before the process was forked.",
                next_step="Open the ledger after the fork, once in each process.",
            )


class EmbeddedLog:
    """Port `Log`: appends to the file; a record is applied when its publish returns."""

    def __init__(self, writer: Writer, process: _Process) -> None:
        self._writer = writer
        self._process = process

    def partitions(self, topic: Topic) -> int:
        """One."""
        del topic
        return 1

    def partition_of(self, topic: Topic, key: str) -> int:
        """0."""
        del topic, key
        return 0

    async def publish(self, partition: Partition, record: Record) -> int:
        """Append `record`, project it, and pay the debts that it leaves; its offset.

        Guarantees: on return it is synced to disk and applied. A cancelled call may still be written.

        Raises:
            RecordTooLargeError, PublishRefusedError: certainly not written.
            StoreUnavailableError: certainly not written, and may succeed later.
            OutcomeUnknownError: the disk failed in the COMMIT; safe to publish again.
        """
        tables.require_partition(partition)
        value, told = encoded(record), as_read(record)
        return await self.write(lambda transaction: transaction.publish(partition, record.key, value, told))

    async def write(self, work: Callable[[Transaction], T], reads: Reads | None = None, *, alone: bool = False) -> T:
        """What `work` returns, once its transaction is committed; see `Job`."""
        self._process.require()
        reply: Reply[T] = Reply()
        self._writer.submit(Job(work, reply, alone, reads))
        return await reply.future

    def write_here(self, work: Callable[[Transaction], T], reads: Reads | None = None) -> T:
        """The same, from any thread, which waits for it."""
        self._process.require()
        return self._writer.do_here(work, reads)

    def applied(self, partition: Partition) -> Header | None:
        """See `Writer.applied`."""
        return self._writer.applied(partition)

    def knows(self, partition: Partition, key: DocumentKey) -> bool:
        """See `Writer.knows`."""
        return self._writer.knows(partition, key)

    async def close(self) -> None:
        """Write what was published, within a bound, and release the connection."""
        if self._process.is_this:
            await self._writer.close()


class EmbeddedProjection:
    """Port `Projection`: reads documents and header from one snapshot."""

    def __init__(self, reader: Reader, glance: Glance, log: EmbeddedLog, process: _Process) -> None:
        self._reader = reader
        self._glance = glance
        self._log = log
        self._process = process

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """The documents under `keys` that exist. Raises StoreError, StoreUnavailableError."""
        self._process.require()
        await asyncio.sleep(0)  # whoever reads again and again must let the others of the loop go on
        found = _glanced(self._glance, partition, keys)
        if found is not None:
            return found
        return await self.look(lambda sql: _snapshot(sql, self._reader.seen, partition, keys))

    async def scan(self, partition: Partition, *collections: str) -> Snapshot:
        """Whole collections, all from one moment. Raises StoreError, StoreUnavailableError."""

        def little(sql: apsw.Connection, seen: Seen) -> Snapshot | None:
            documents: dict[DocumentKey, bytes] = {}
            for collection in collections:
                documents |= tables.read_collection(sql, partition, collection, count=MOST_DOCUMENTS + 1)
                if len(documents) > MOST_DOCUMENTS:
                    return None
            return Snapshot(seen.header(sql, partition), documents)

        def work(sql: apsw.Connection) -> Snapshot:
            documents: dict[DocumentKey, bytes] = {}
            for collection in collections:
                documents |= tables.read_collection(sql, partition, collection)
            return Snapshot(self._reader.seen.header(sql, partition), documents)

        self._process.require()
        await asyncio.sleep(0)  # as in `read`
        found = self._glance.look(little)
        return found if found is not None else await self.look(work)

    async def page(
        self, partition: Partition, collection: str, *, cursor: str = "", count: int = 500
    ) -> tuple[Snapshot, str]:
        """At most `count` documents and the cursor of the next page ("" at the end), in the order of keys.

        Raises:
            StoreError, StoreUnavailableError: nothing could be read.
        """
        after = cursor[1:] if cursor else None  # a cursor is ">" and a key, so that it is never empty

        def work(sql: apsw.Connection) -> Snapshot:
            documents = tables.read_collection(sql, partition, collection, after=after, count=max(count, 1))
            return Snapshot(self._reader.seen.header(sql, partition), documents)

        snapshot = await self.look(work)
        keys = list(snapshot.documents)
        return snapshot, f">{keys[-1].key}" if len(keys) >= max(count, 1) else ""

    async def shows(
        self, partition: Partition, beyond: int, key: DocumentKey, document: bytes, *, timeout_s: float
    ) -> Header | None:
        """See `Projection`: nothing is announced here, a read costs as little."""
        del partition, beyond, key, document, timeout_s
        return None

    async def advanced(self, partition: Partition, beyond: int, *, timeout_s: float) -> Header:
        """Wait until `applied_offset > beyond` or the time is up; the header in both cases.

        What this process committed itself needs no look at the file.

        Raises:
            StoreError, StoreUnavailableError: the file cannot be read.
        """
        self._process.require()
        tables.require_partition(partition)
        known = self._log.applied(partition)
        if known is not None and known.applied_offset > beyond:
            return tables.fresh(known)
        reply: Reply[Header] = Reply()
        self._reader.wait(partition, beyond, timeout_s, reply)
        return await reply.future

    async def beat(self, session_ids: Sequence[str]) -> None:
        """Say that these sessions live; shares a transaction with what is being published."""
        await self._log.write(lambda transaction: transaction.beat(session_ids))

    async def beats(self, session_ids: Sequence[str]) -> Mapping[str, float]:
        """Seconds since the last beat of each session that ever beat and is remembered."""
        return await self.look(lambda sql: tables.read_beats(sql, session_ids))

    async def look(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` reads, from one snapshot."""
        self._process.require()
        reply: Reply[T] = Reply()
        self._reader.submit(work, reply)
        return await reply.future

    async def close(self) -> None:
        """Release the connection."""
        if self._process.is_this:
            self._glance.close()
            await self._reader.close()


class EmbeddedWriting:
    """Port `Writing`: one transaction of the writer."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """See `Writing`."""
        return self._transaction.read(partition, keys)

    def publish(self, partition: Partition, record: Record) -> int:
        """See `Writing`."""
        tables.require_partition(partition)
        return self._transaction.publish(partition, record.key, encoded(record), as_read(record))

    def history(self, partition: Partition, key: DocumentKey) -> History:
        """See `Writing`."""
        return self._transaction.history(partition, key)


class EmbeddedAtOnce:
    """Port `AtOnce`: each work is a job of the writer; what is looked at is read in the thread that asks."""

    def __init__(self, log: EmbeddedLog, glance: Glance, process: _Process) -> None:
        self._log = log
        self._glance = glance
        self._process = process

    def look(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot | None:
        """See `AtOnce`. Raises StoreError."""
        self._process.require()
        return _glanced(self._glance, partition, keys)

    def knows(self, partition: Partition, key: DocumentKey) -> bool:
        """See `AtOnce`."""
        return self._log.knows(partition, key)

    async def write(self, work: Callable[[Writing], T], reads: Reads | None = None) -> T:
        """See `AtOnce`."""
        return await self._log.write(lambda transaction: work(EmbeddedWriting(transaction)), reads)

    def write_here(self, work: Callable[[Writing], T], reads: Reads | None = None) -> T:
        """See `AtOnce`."""
        return self._log.write_here(lambda transaction: work(EmbeddedWriting(transaction)), reads)


def _glanced(glance: Glance, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot | None:
    """A few documents, read in this thread; None when the reading thread should do it."""
    if len(keys) > MOST_DOCUMENTS:
        return None
    return glance.look(lambda sql, seen: _snapshot(sql, seen, partition, keys))


def _snapshot(sql: apsw.Connection, seen: Seen, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
    return Snapshot(seen.header(sql, partition), tables.read_documents(sql, partition, keys))


class EmbeddedReader:
    """Port `LogReader`: reads on a connection of its own, in the caller's thread."""

    def __init__(self, file: DatabaseFile, process: _Process) -> None:
        self._file = file
        self._process = process
        self._connection: Connection | None = None

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """(first offset, next offset to be written). Raises StoreError, StoreUnavailableError."""
        try:
            return tables.log_bounds(self._sql(), partition)
        except DatabaseError as error:
            raise translate(error, self._file.path, writing=False) from error

    def entries(self, partition: Partition, *, start: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        """Entries with start <= offset < end, in order; end defaults to the present end.

        Raises:
            StoreError, StoreUnavailableError: the file cannot be read (on).
        """
        first, present = self.bounds(partition)
        try:
            yield from tables.log_entries(self._sql(), partition, max(start, first), present if end is None else end)
        except DatabaseError as error:
            raise translate(error, self._file.path, writing=False) from error

    def raw(self, partition: Partition, offset: int) -> RawRecord | None:
        """The bytes of one record; None when there is none. Raises StoreError, StoreUnavailableError."""
        tables.require_partition(partition)
        try:
            return tables.raw_record(self._sql(), partition, offset)
        except DatabaseError as error:
            raise translate(error, self._file.path, writing=False) from error

    def close(self) -> None:
        """Release the connection."""
        connection, self._connection = self._connection, None
        if connection is not None and self._process.is_this:
            connection.close()

    def _sql(self) -> apsw.Connection:
        self._process.require()
        if self._connection is None:
            self._connection = self._file.connect(query_only=True)
        return self._connection.sql


class EmbeddedStore:
    """Port `Store`: a ledger in one file.

    Args:
        url: as the user gave it.
        path: the file.
    """

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self._process = _Process()
        self._file = DatabaseFile(path)
        self._reading = Reader(self._file)
        self.log = EmbeddedLog(Writer(self._file, self._reading.poke), self._process)
        glance = Glance(self._file)
        self.projection = EmbeddedProjection(self._reading, glance, self.log, self._process)
        self.at_once = EmbeddedAtOnce(self.log, glance, self._process)
        self.straight = None  # `at_once` is

    def reader(self) -> EmbeddedReader:
        """A new reader of the log; the caller closes it."""
        return EmbeddedReader(self._file, self._process)

    async def initialise(
        self, *, partitions: int | None = None, development: bool = False, generation: int = 0
    ) -> None:
        """Create the file and its tables; does nothing to what exists already.

        Args:
            partitions: not heeded, there is always one per topic.
            development: not heeded, nothing is weaker here.
            generation: the log generation of a new file (higher than that of the ledger it takes over from).

        Raises:
            StoreError: the file is another program's, or of a newer version.
            StoreUnavailableError: it is locked, or the place cannot be written.
        """
        del partitions, development
        self._process.require()
        await asyncio.get_running_loop().run_in_executor(None, self._file.create, generation)

    async def terms(self) -> Terms:
        """Nothing is removed from the file, and it names its ledger itself."""
        return Terms()

    async def generation(self) -> int:
        """The log generation of the file. Raises StoreError, StoreUnavailableError."""
        return (await self.projection.read(Partition(Topic.AGENTS, 0), [])).header.generation

    async def rebuild(self, progress: Callable[[Partition, int, int], None] = lambda *_: None) -> None:
        """Drop the projection and derive it again from the log: other incarnation, same documents.

        Writers wait meanwhile (and give up after ten seconds); readers see the former projection
        until it is done. An error leaves everything as it was.

        Args:
            progress: called as (partition, records applied, records in all) in the writer's thread.

        Raises:
            StoreError: the log cannot be read, or the result not be written.
        """
        await self.log.write(lambda transaction: transaction.rebuild(progress), alone=True)

    async def check(self) -> Sequence[Check]:
        """Every guarantee that this store gives, looked at now."""
        self._process.require()
        place = await asyncio.get_running_loop().run_in_executor(None, look_at_place, self.path)
        return [*place, *await look_at_projection(self.log.write, self.projection.look)]

    async def close(self) -> None:
        """Close both sides."""
        await self.log.close()
        await self.projection.close()
