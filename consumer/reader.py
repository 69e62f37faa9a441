"""Reading projections in Redis: the asyncio side, for sessions, the guard and everybody else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from . import keys, scripts
from .announcing import Announcement, fingerprint
from .notices import Notices
from .redis_calls import open_calls
from .redis_client import refuse_eviction, translated
from .waiting import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..ledger.ports import DocumentKey, Header, Projection, Snapshot
    from ..ledger.positions import Partition
    from ..ledger.urls import StoreUrl
    from .scripts import Call, Reply

_BEATS_REMEMBERED_MS = 24 * 3600 * 1000


def open_projection(url: StoreUrl) -> Projection:
    """The projection of a ledger on Redis; connects at the first call.

    It belongs to the event loop that uses it first.
    """
    return RedisProjection(url)


class RedisProjection:
    """The `Projection` port on Redis. Every answer comes from a primary, in one script with its header.

    The first call raises GuaranteeError, and so does every later one, when Redis may evict keys.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._ledger = url
        self._url = url.projection
        self._prefix = url.prefix
        self._notices = Notices(self._url)
        self._calls = open_calls(self._url, self._notices.take, self._notices.lost)
        self._watches: dict[Partition, Watch] = {}
        self._checking = asyncio.Lock()
        self._checked = False

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """See `Projection`."""
        call, order = scripts.read(self._keys(partition), keys)
        return self._seen(partition, scripts.read_snapshot(await self._run(call), order))

    async def scan(self, partition: Partition, *collections: str) -> Snapshot:
        """See `Projection`."""
        reply = await self._run(scripts.scan(self._keys(partition), collections))
        return self._seen(partition, scripts.scan_snapshot(reply, collections))

    async def page(
        self, partition: Partition, collection: str, *, cursor: str = "", count: int = 500
    ) -> tuple[Snapshot, str]:
        """See `Projection`."""
        reply = await self._run(scripts.page(self._keys(partition), collection, cursor=cursor, count=count))
        return scripts.page_snapshot(reply, collection)

    async def advanced(self, partition: Partition, beyond: int, *, timeout_s: float) -> Header:
        """See `Projection`. Returns early when the projection is begun again, opened, or halted meanwhile."""
        header = await self._watched(partition).wait(beyond, timeout_s)
        return header if header is not None else await self._header(partition)

    async def shows(
        self, partition: Partition, beyond: int, key: DocumentKey, document: bytes, *, timeout_s: float
    ) -> Header | None:
        """See `Projection`. What the step that applied it announced tells, if it was heard."""
        watch = self._watched(partition)
        header = await watch.wait(beyond, timeout_s)
        if header is None or header.applied_offset <= beyond or not watch.told(fingerprint(key, document), beyond):
            return None
        return header

    async def beat(self, session_ids: Sequence[str]) -> None:
        """See `Projection`."""
        await self._check()
        lifetime = str(_BEATS_REMEMBERED_MS)
        with translated(self._url):
            await self._calls.each([("SET", keys.beat(self._prefix, s), b"", "PX", lifetime) for s in session_ids])

    async def beats(self, session_ids: Sequence[str]) -> Mapping[str, float]:
        """See `Projection`. Remembered for a day; the time that a beat has left to live tells its age."""
        await self._check()
        with translated(self._url):
            left = await self._calls.each([("PTTL", keys.beat(self._prefix, s)) for s in session_ids])
        ages = {s: (_BEATS_REMEMBERED_MS - ms) / 1000 for s, ms in zip(session_ids, left, strict=True) if ms >= 0}
        return {session_id: max(0.0, age) for session_id, age in ages.items()}

    async def close(self) -> None:
        """See `Projection`."""
        for watch in self._watches.values():
            await watch.close()
        with translated(self._url):
            await self._calls.close()

    def _keys(self, partition: Partition) -> keys.PartitionKeys:
        return keys.partition_keys(self._ledger, partition)

    async def _run(self, call: Call) -> Reply:
        await self._check()
        with translated(self._url):
            return await self._calls.run(call)

    def _seen(self, partition: Partition, snapshot: Snapshot) -> Snapshot:
        """The snapshot, of which whoever waits for the partition hears."""
        if (watch := self._watches.get(partition)) is not None:
            watch.saw(snapshot.header)
        return snapshot

    async def _header(self, partition: Partition) -> Header:
        return (await self.read(partition, ())).header

    async def _check(self) -> None:
        if self._checked:
            return
        async with self._checking:
            with translated(self._url):
                memory = await self._calls.memory()
            refuse_eviction(memory)
            self._checked = True

    def _watched(self, partition: Partition) -> Watch:
        watch = self._watches.get(partition)
        if watch is None:
            watch = self._watches[partition] = self._watch(partition)
        return watch

    def _watch(self, partition: Partition) -> Watch:
        channel = self._keys(partition).channel

        def handle(message: bytes) -> None:
            if message:
                watch.notice(*Announcement.read(message))
            else:
                watch.look()

        async def subscribe() -> None:
            await self._check()
            await self._notices.subscribe(self._calls.line, channel, handle)

        async def read() -> Header:
            return await self._header(partition)

        watch = Watch(subscribe, read)
        return watch
