"""Ports: what the core needs from a log and from a projection, and nothing more.

Adapters: `ledger/embedded.py` (one SQLite file has both), `producer/` (Kafka log),
`consumer/` (Redis projection). One conformance suite (`tests/conformance/`) defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from .history import History, LogEntry, Record
from .positions import Partition, Topic

T = TypeVar("T")


class DocumentKey(NamedTuple):
    """Names one document of a partition's projection."""

    collection: str
    key: str


Reads = tuple[Partition, Sequence[DocumentKey]]
"""Documents that are about to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a partition's projection says about itself.

    Attributes:
        incarnation: changes whenever the projection is lost or dropped and begun again.
        generation: the log generation of the topic that is being read.
        applied_offset: the next offset that the projector will read.
        settled_offset: below it every record is applied and judged, and owes nothing.
        settled_time_ms: broker time of the oldest record that is not settled yet; 0 if none.
        judge_from: intents at or above it get their verdicts at the horizon.
        horizon: where the log ended when the projection was begun.
        opened: whether the horizon is reached; before that nothing may be believed.
        halted: why the projector stopped for an operator; empty when it did not.
        seen_ms: when the projector last said that it had caught up or applied something,
            milliseconds since 1970 by the projection store's clock.
        now_ms: the same clock at the time of this read, so that `now_ms - seen_ms` is the age.
    """

    incarnation: str = ""
    generation: int = 0
    applied_offset: int = 0
    settled_offset: int = 0
    settled_time_ms: int = 0
    judge_from: int = 0
    horizon: int = 0
    opened: bool = False
    halted: str = ""
    seen_ms: int = 0
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Documents of one partition and the header that they belong to, read atomically."""

    header: Header
    documents: Mapping[DocumentKey, bytes]


@dataclass(frozen=True, slots=True)
class Step:
    """What applying a run of records changes; takes effect completely or not at all.

    `writes` maps a document to its new bytes, or to None to delete it.
    """

    header: Header
    writes: Mapping[DocumentKey, bytes | None] = field(default_factory=dict)


class Log(Protocol):
    """The writing side of the log."""

    def partitions(self, topic: Topic) -> int:
        """How many partitions `topic` has; never changes in the life of a ledger."""
        ...

    def partition_of(self, topic: Topic, key: str) -> int:
        """The partition number that the one partitioner gives `key` in `topic`."""
        ...

    async def publish(self, partition: Partition, record: Record) -> int | None:
        """Append `record`; return its offset, or None when the log did not tell it.

        Guarantees: on return the record is durable (acknowledged by all in-sync replicas, or
        synced to disk). Records published by one process to one partition keep their order.

        Raises:
            RecordTooLargeError, PublishRefusedError: certainly not written.
            StoreClosedError, GuaranteeError: certainly not written; this log object serves no more.
            StoreUnavailableError: certainly not written now; retryable.
            OutcomeUnknownError: may or may not be written, now or later; safe to publish
                again, since the same fact twice is the same fact.
        """
        ...

    async def close(self) -> None:
        """Wait for what was published, within a bound, and release everything."""
        ...


class Projection(Protocol):
    """The reading side of the projection. Every answer carries the header it was read with."""

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """The documents under `keys` that exist. Raises StoreUnavailableError."""
        ...

    async def scan(self, partition: Partition, *collections: str) -> Snapshot:
        """Whole (small, for instance one agent's) collections, all from one moment."""
        ...

    async def page(
        self, partition: Partition, collection: str, *, cursor: str = "", count: int = 500
    ) -> tuple[Snapshot, str]:
        """A page of a large collection and the cursor of the next one ("" at the end).

        A document that exists during the whole iteration appears at least once.
        """
        ...

    async def advanced(self, partition: Partition, beyond: int, *, timeout_s: float) -> Header:
        """Wait until `applied_offset > beyond` or the time is up; the header in both cases.

        It may return early; callers look again at what they wait for.
        """
        ...

    async def shows(
        self, partition: Partition, beyond: int, key: DocumentKey, document: bytes, *, timeout_s: float
    ) -> Header | None:
        """The header, if it is heard in time, without a read, that `key` held this very document beyond that offset.

        None says nothing, and may come at once: read then.
        """
        ...

    async def beat(self, session_ids: Sequence[str]) -> None:
        """Say that these sessions live (advisory: no decision rests on it)."""
        ...

    async def beats(self, session_ids: Sequence[str]) -> Mapping[str, float]:
        """Seconds since the last beat of each session that ever beat and is remembered."""
        ...

    async def close(self) -> None:
        """Release everything."""
        ...


class Writing(Protocol):
    """One transaction of a store that applies what it appends; used in the thread that runs it, and never kept."""

    def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """The documents under `keys` that exist, with all that was published before in this transaction."""
        ...

    def history(self, partition: Partition, key: DocumentKey) -> History:
        """The history in a document, as `read` would give it; () where there is none."""
        ...

    def publish(self, partition: Partition, record: Record) -> int:
        """Append `record` and apply it; its offset.

        Raises:
            RecordTooLargeError, PublishRefusedError: nothing was changed, and the transaction goes on.
        """
        ...


class AtOnce(Protocol):
    """A store that applies what it appends, used without the engine: from any thread, on any loop.

    Guarantees: what is written is durable and applied on return; works are done one after the other, those of
    one thread or loop in the order in which they were given; several may share one transaction.
    """

    def look(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot | None:
        """A few documents, read at once in this thread; None when that might have to wait. Raises StoreError."""
        ...

    def knows(self, partition: Partition, key: DocumentKey) -> bool:
        """Whether this process has lately seen such a document: a guess, for which nothing is read."""
        ...

    async def write(self, work: Callable[[Writing], T], reads: Reads | None = None) -> T:
        """What `work` returns, once its transaction is committed. Cancelled, it may still be done.

        Args:
            reads: what it reads for certain; read for all works of a transaction together.

        Raises what `work` raises (it must not after it has published), and the errors of `Log.publish`.
        """
        ...

    def write_here(self, work: Callable[[Writing], T], reads: Reads | None = None) -> T:
        """The same; waits in this thread. Interrupted, it may still be done."""
        ...


class StraightLog(Protocol):
    """A log that is written to without the engine: from any thread, on any loop."""

    async def publish(self, partition: Partition, record: Record) -> int | None:
        """See `Log.publish`. Cancelled, it may still be written."""
        ...

    def publish_here(self, partition: Partition, record: Record, *, timeout_s: float) -> int | None:
        """The same; waits in this thread, so long at most. Interrupted, it may still be written."""
        ...


class RawRecord(NamedTuple):
    """A record's bytes as they stand in the log, whatever they say."""

    time_ms: int
    key: bytes | None
    value: bytes | None


class LogReader(Protocol):
    """Reads the log from the beginning: for verify, export, and rebuilds."""

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """(first offset that is still there, end: the next offset to be written)."""
        ...

    def entries(self, partition: Partition, *, start: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        """Entries with start <= offset < end, in order; end defaults to the present end."""
        ...

    def raw(self, partition: Partition, offset: int) -> RawRecord | None:
        """The bytes of one record; None when the log does not have it (any more)."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Check(NamedTuple):
    """One line of `fencepost doctor`."""

    name: str
    ok: bool
    found: str
    wanted: str
    severity: str = "refuse"
    """"refuse" stops the start, "warn" is said loudly."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a store gives, looked at when it is opened.

    Attributes:
        identity: names the very topics, their partition counts and the partitioner; "" where
            there is nothing that could be exchanged. Recorded when the ledger is created.
        min_compaction_lag_s: how long a superseded record is safe from the log cleaner; None
            where nothing is ever removed.
    """

    identity: str = ""
    min_compaction_lag_s: float | None = None


class Store(Protocol):
    """A ledger's home: the log, the projection, and their administration."""

    url: str

    @property
    def log(self) -> Log:
        """The writing side."""
        ...

    @property
    def projection(self) -> Projection:
        """The reading side."""
        ...

    @property
    def at_once(self) -> AtOnce | None:
        """The short way to both, where the store applies what it appends; else None."""
        ...

    @property
    def straight(self) -> StraightLog | None:
        """The log, where it can be written to without the engine; else None."""
        ...

    def reader(self) -> LogReader:
        """A new reader of the log; the caller closes it."""
        ...

    async def initialise(self, *, partitions: int | None, development: bool, generation: int = 0) -> None:
        """Create topics or tables; does nothing to what exists already.

        Args:
            partitions: of each topic; None: as many as there are, or a default.
            generation: the log generation of a new ledger; higher than 0 for one that takes over.
        """
        ...

    async def generation(self) -> int:
        """The log generation that this store writes."""
        ...

    async def terms(self) -> Terms:
        """What the store gives. Raises GuaranteeError naming each setting that breaks a promise."""
        ...

    async def check(self) -> Sequence[Check]:
        """Every guarantee of DESIGN section 3.7, looked at now."""
        ...

    async def close(self) -> None:
        """Close both sides."""
        ...
