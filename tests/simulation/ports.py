"""The ports of the ledger on the simulated world: `Log`, `Projection`, `LogReader`, `Store`. Each call may go wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

from simulation.loop import Process
from simulation.world import World, dead_or_lost

from fencepost.ledger import history
from fencepost.ledger.errors import OutcomeUnknownError, StoreUnavailableError
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import Check, DocumentKey, Header, RawRecord, Snapshot, Terms
from fencepost.ledger.positions import Partition, Topic

_TIMEOUT_S = (0.2, 1.5)
"""After how long a client gives an outcome up."""


class SimulatedLog:
    """Port `Log`. What one process publishes to one partition keeps its order, unless its outcome is unknown."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._last: dict[Partition, float] = {}

    def partitions(self, topic: Topic) -> int:
        return self._world.counts[topic]

    def partition_of(self, topic: Topic, key: str) -> int:
        return self._world.partition_of[topic](key)

    async def publish(self, partition: Partition, record: Record) -> int | None:
        world, faults = self._world, self._world.faults
        world.require_open()
        history.encode(record)
        if world.happens(faults.unavailable) or (world.down and world.happens(0.5)):
            await world.hop()
            raise StoreUnavailableError("the log is away", next_step="Wait.")
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        if world.down or world.happens(faults.unknown):
            self._publish_unknown(partition, record, answer)
        else:
            self._publish(partition, record, answer)
        offset = await answer
        world.require_open()
        world.note(self._process.name, "acknowledged", partition, offset)
        return None if world.happens(faults.no_offset) else offset

    def _publish(self, partition: Partition, record: Record, answer: asyncio.Future[int | None]) -> None:
        world = self._world
        at = max(world.loop.now + world.delay_s(), self._last.get(partition, 0.0) + 1e-6)
        self._last[partition] = at

        def land() -> None:
            if dead_or_lost(world, self._process):
                return
            offset = world.append(partition, record, self._process.name)
            world.later(world.delay_s(), lambda: None if answer.done() else answer.set_result(offset))

        world.later(at - world.loop.now, land)

    def _publish_unknown(self, partition: Partition, record: Record, answer: asyncio.Future[int | None]) -> None:
        """It is written, or written only after everybody gave it up, or never."""
        world = self._world
        gives_up = world.rng.uniform(*_TIMEOUT_S)
        lands = world.rng.choice((world.delay_s(), gives_up + world.rng.uniform(0.0, 3.0), -1.0))

        def land() -> None:
            world.note(
                self._process.name, "wrote unheard", partition, world.append(partition, record, self._process.name)
            )

        def give_up() -> None:
            if not answer.done():
                answer.set_exception(OutcomeUnknownError("no answer", next_step="Publish it again.", key=record.key))

        if lands >= 0:
            world.later(lands, land)
        world.later(gives_up, give_up)

    async def close(self) -> None:
        self._world.require_open()


class SimulatedProjection:
    """Port `Projection`. A read sees the store as it is at one moment between the question and the answer."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._newest: dict[Partition, tuple[str, int]] = {}

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        await self._asked()
        documents = self._world.places[partition].stored.documents
        found = {key: data for key in keys if (data := documents.get(key.collection, {}).get(key.key)) is not None}
        return await self._answered(partition, found)

    async def scan(self, partition: Partition, *collections: str) -> Snapshot:
        await self._asked()
        found = [self._collection(partition, collection) for collection in collections]
        return await self._answered(partition, {key: data for one in found for key, data in one.items()})

    async def page(
        self, partition: Partition, collection: str, *, cursor: str = "", count: int = 500
    ) -> tuple[Snapshot, str]:
        await self._asked()
        keys = sorted(key for key in self._collection(partition, collection) if key.key > cursor)[:count]
        found = self._collection(partition, collection)
        snapshot = await self._answered(partition, {key: found[key] for key in keys})
        return snapshot, keys[-1].key if len(keys) == count else ""

    async def shows(
        self, partition: Partition, beyond: int, key: DocumentKey, document: bytes, *, timeout_s: float
    ) -> Header | None:
        header = await self.advanced(partition, beyond, timeout_s=timeout_s)
        shown = self._world.places[partition].stored.documents.get(key.collection, {}).get(key.key) == document
        return header if shown and header.applied_offset > beyond else None

    async def advanced(self, partition: Partition, beyond: int, *, timeout_s: float) -> Header:
        world = self._world
        world.require_open()
        place = world.places[partition]
        header = self._header(partition)
        if header.applied_offset > beyond:
            return header
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place.waiters.append((beyond, moved))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await moved
        await self._asked()
        return self._header(partition)

    async def beat(self, session_ids: Sequence[str]) -> None:
        await self._asked()
        self._world.beats.update(dict.fromkeys(session_ids, self._world.loop.now))

    async def beats(self, session_ids: Sequence[str]) -> Mapping[str, float]:
        await self._asked()
        now, beats = self._world.loop.now, self._world.beats
        return {session_id: now - beats[session_id] for session_id in session_ids if session_id in beats}

    async def close(self) -> None:
        self._world.require_open()

    async def _asked(self) -> None:
        await self._world.hop()
        if self._world.happens(self._world.faults.unavailable):
            raise StoreUnavailableError("the projection store is away", next_step="Wait.")

    async def _answered(self, partition: Partition, found: Mapping[DocumentKey, bytes]) -> Snapshot:
        header = self._header(partition)
        snapshot = Snapshot(header, found if header.incarnation else {})
        if self._world.happens(0.3):  # else the answer takes no time of its own
            await self._world.hop()
        return snapshot

    def _header(self, partition: Partition) -> Header:
        header = self._world.header(partition)
        incarnation, applied = self._newest.get(partition, ("", 0))
        if incarnation == header.incarnation and header.applied_offset < applied:
            self._world.note(self._process.name, "read an older projection", partition)
        self._newest[partition] = (header.incarnation, header.applied_offset)
        return header

    def _collection(self, partition: Partition, collection: str) -> dict[DocumentKey, bytes]:
        found = self._world.places[partition].stored.documents.get(collection, {})
        return {DocumentKey(collection, key): data for key, data in found.items()}


class SimulatedReader:
    """Port `LogReader`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return 0, self._world.places[partition].end

    def entries(self, partition: Partition, *, start: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        for raw in self._world.places[partition].left(start):
            if end is None or raw.offset < end:
                yield self._world.entry(raw)

    def raw(self, partition: Partition, offset: int) -> RawRecord | None:
        found = [raw for raw in self._world.places[partition].left(offset) if raw.offset == offset]
        return RawRecord(found[0].time_ms, found[0].key, found[0].value) if found else None

    def close(self) -> None:
        pass


class SimulatedStore:
    """Port `Store`, as one process has it open."""

    def __init__(self, world: World, process: Process) -> None:
        self.url = "simulated:"
        self.at_once = None
        self.straight = None
        self.log = SimulatedLog(world, process)
        self.projection = SimulatedProjection(world, process)
        self._world = world

    def reader(self) -> SimulatedReader:
        return SimulatedReader(self._world)

    async def initialise(self, *, partitions: int | None, development: bool, generation: int = 0) -> None:
        del partitions, development, generation

    async def generation(self) -> int:
        return 0

    async def terms(self) -> Terms:
        return Terms("simulated")

    async def check(self) -> Sequence[Check]:
        return ()

    async def close(self) -> None:
        await self.log.close()
