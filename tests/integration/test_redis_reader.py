"""Reading projections: the `Projection` port on a real Redis."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import redis

from fencepost.consumer.keys import PartitionKeys
from fencepost.consumer.partition_store import PartitionStore
from fencepost.consumer.reader import open_projection
from fencepost.consumer.redis_client import connect
from fencepost.deploy.processes import wait_until
from fencepost.ledger import urls
from fencepost.ledger.errors import GuaranteeError, StoreUnavailableError
from fencepost.ledger.ports import DocumentKey, Header, Projection, Step
from fencepost.ledger.positions import Partition, Topic

if TYPE_CHECKING:
    from services import StartRedis

    from fencepost.ledger.urls import StoreUrl

PLACE = Partition(Topic.EFFECTS, 3)


class Writer:
    """A projector's hold on the partition."""

    def __init__(self, url: StoreUrl) -> None:
        self.store = PartitionStore(connect(url.projection), url.projection, PartitionKeys(url.prefix, PLACE))
        self.store.claim()
        self.header = Header(incarnation="one", horizon=1, opened=True)
        self.store.begin(self.header)

    def apply(self, offset: int, documents: dict[DocumentKey, bytes | None] | None = None) -> None:
        self.header = replace(self.header, applied_offset=offset)
        self.store.apply(Step(self.header, documents or {}), 0)


def store_url(redis_url: str) -> StoreUrl:
    return urls.parse(f"kafka://127.0.0.1:1/r{secrets.token_hex(4)}?projection={redis_url}")


@pytest.fixture
def url(redis_url: str) -> StoreUrl:
    return store_url(redis_url)


def use(url: StoreUrl, work: Callable[[Projection], Awaitable[None]]) -> None:
    async def run() -> None:
        projection = open_projection(url)
        try:
            await work(projection)
        finally:
            await projection.close()

    asyncio.run(run())


def test_nothing_there(url: StoreUrl) -> None:
    """A projection that was never begun answers, and is not to be believed."""

    async def work(projection: Projection) -> None:
        key = DocumentKey("ops", "x")
        for snapshot in (await projection.read(PLACE, [key]), await projection.scan(PLACE, "ops")):
            assert not snapshot.documents
            assert (snapshot.header.opened, snapshot.header.incarnation) == (False, "")
            assert abs(snapshot.header.now_ms - time.time() * 1000) < 5000
        assert (await projection.page(PLACE, "ops"))[1] == ""
        assert not (await projection.advanced(PLACE, 5, timeout_s=0.05)).opened

    use(url, work)


def test_documents_with_their_header(url: StoreUrl) -> None:
    """What is read is what was applied, with the header of the same step; values are any bytes."""
    writer = Writer(url)
    documents: dict[DocumentKey, bytes | None] = {
        DocumentKey("ops", "a b\nü"): b"\x00\xff",
        DocumentKey("ops", "empty"): b"",
        DocumentKey("fences", "agent\x1fmain"): b"f",
    }
    big = 2**53 + 1
    writer.apply(big, documents)

    async def work(projection: Projection) -> None:
        snapshot = await projection.read(PLACE, [*documents, DocumentKey("ops", "no"), DocumentKey("none", "no")])
        assert snapshot.documents == documents
        assert snapshot.header.applied_offset == big
        assert replace(snapshot.header, seen_ms=0, now_ms=0) == writer.header
        assert 0 <= snapshot.header.now_ms - snapshot.header.seen_ms < 5000
        assert (await projection.scan(PLACE, "fences")).documents == {DocumentKey("fences", "agent\x1fmain"): b"f"}

    use(url, work)


def test_pages(url: StoreUrl) -> None:
    """All pages together have every document."""
    writer = Writer(url)
    documents: dict[DocumentKey, bytes | None] = {DocumentKey("ops", f"op{n}"): b"%d" % n for n in range(3000)}
    writer.apply(1, documents)

    async def work(projection: Projection) -> None:
        found: dict[DocumentKey, bytes] = {}
        cursor, pages = "", 0
        while True:
            snapshot, cursor = await projection.page(PLACE, "ops", cursor=cursor, count=200)
            found |= snapshot.documents
            pages += 1
            if not cursor:
                break
        assert found == documents
        assert pages > 5

    use(url, work)


def test_advanced(url: StoreUrl) -> None:
    """A waiter wakes when the offset is passed, and not before; one that is too late gets its answer at once."""
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        waiting = asyncio.create_task(projection.advanced(PLACE, 5, timeout_s=10))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(writer.apply, 5)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        began = time.monotonic()
        await asyncio.to_thread(writer.apply, 6)
        assert (await waiting).applied_offset == 6
        assert time.monotonic() - began < 0.5
        assert (await projection.advanced(PLACE, 3, timeout_s=0)).applied_offset == 6
        assert (await projection.advanced(PLACE, 3, timeout_s=5)).applied_offset == 6
        assert (await projection.advanced(PLACE, 6, timeout_s=0.05)).applied_offset == 6

    use(url, work)


def test_many_waiters(url: StoreUrl) -> None:
    """Hundreds wait on one connection, each for an offset of its own."""
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        waiting = [asyncio.create_task(projection.advanced(PLACE, n, timeout_s=20)) for n in range(300)]
        await asyncio.sleep(0.1)
        for offset in range(50, 301, 50):
            await asyncio.to_thread(writer.apply, offset)
        headers = await asyncio.gather(*waiting)
        assert all(header.applied_offset > n for n, header in enumerate(headers))
        with redis.Redis.from_url(url.projection) as client:
            channel = PartitionKeys(url.prefix, PLACE).channel
            assert client.pubsub_numsub(channel) == [(channel.encode(), 1)]

    use(url, work)


def test_waiting_survives_a_lost_connection(private_redis: StartRedis) -> None:
    """When the connection for notices dies, the waiter finds out within about a second, and notices come again."""
    url = store_url(private_redis().url)
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        for offset in range(1, 6):
            waiting = asyncio.create_task(projection.advanced(PLACE, offset, timeout_s=10))
            await asyncio.sleep(0.05)
            with redis.Redis.from_url(url.projection) as client:
                client.client_kill_filter(_type="pubsub")
            await asyncio.to_thread(writer.apply, offset + 1)
            began = time.monotonic()
            assert (await waiting).applied_offset == offset + 1
            assert time.monotonic() - began < 3

    use(url, work)


def test_waiting_ends_when_the_projection_is_begun_again(url: StoreUrl) -> None:
    """Whoever waits on a projection that is dropped looks again at once, instead of at the end of its time."""
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        waiting = asyncio.create_task(projection.advanced(PLACE, 99, timeout_s=30))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(writer.store.drop)
        await asyncio.to_thread(writer.store.begin, Header(incarnation="two", horizon=1))
        async with asyncio.timeout(5):
            assert (await waiting).incarnation in {"", "two"}

    use(url, work)


def test_a_dead_redis(private_redis: StartRedis) -> None:
    """Every call says StoreUnavailableError, naming the host and no password; afterwards all works again."""
    server = private_redis()
    url = store_url(server.url.replace("redis://", "redis://:secret@"))
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "secret")
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        assert (await projection.read(PLACE, [])).header.incarnation == "one"
        await asyncio.to_thread(server.kill)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: projection.read(PLACE, [DocumentKey("ops", "x")]),
            lambda: projection.scan(PLACE, "ops"),
            lambda: projection.page(PLACE, "ops"),
            lambda: projection.advanced(PLACE, 1, timeout_s=0.3),
            lambda: projection.beat(["s"]),
            lambda: projection.beats(["s"]),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1") as caught:
                await call()
            assert "secret" not in str(caught.value)
            assert caught.value.retryable
        await asyncio.to_thread(server.restart)
        assert wait_until(server.answers, 10)

    use(url, work)
    del writer


def test_beats(url: StoreUrl) -> None:
    """The age of a session's last beat; nothing for sessions that never beat."""

    async def work(projection: Projection) -> None:
        await projection.beat(["s1", "s2"])
        await asyncio.sleep(0.3)
        await projection.beat(["s2"])
        ages = await projection.beats(["s1", "s2", "s3"])
        assert set(ages) == {"s1", "s2"}
        assert 0 <= ages["s2"] < 0.3 <= ages["s1"] < 5
        assert await projection.beats([]) == {}
        await projection.beat([])

    use(url, work)


def test_scripts_are_loaded_again(private_redis: StartRedis) -> None:
    """A server that forgot the scripts (a restart, a failover) gets them again."""
    url = store_url(private_redis().url)
    writer = Writer(url)

    async def work(projection: Projection) -> None:
        await projection.read(PLACE, [])
        with redis.Redis.from_url(url.projection) as client:
            client.script_flush()
        assert (await projection.read(PLACE, [])).header.opened
        with redis.Redis.from_url(url.projection) as client:
            client.script_flush()
        await asyncio.to_thread(writer.apply, 1)

    use(url, work)


def test_a_replica_is_refused(private_redis: StartRedis) -> None:
    """A replica may lag, so it does not answer."""
    primary, replica = private_redis(), private_redis()
    url = store_url(replica.url)
    Writer(url)
    with redis.Redis.from_url(replica.url) as client:
        client.replicaof("127.0.0.1", str(primary.port))

    async def work(projection: Projection) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: projection.read(PLACE, []),
            lambda: projection.scan(PLACE, "ops"),
            lambda: projection.page(PLACE, "ops"),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailableError, match=r"(?i)read.only"):
                await call()

    use(url, work)


def test_evicting_redis_is_refused(private_redis: StartRedis) -> None:
    """A Redis that may drop keys is refused, also when it is found out later; without a limit it never drops any."""
    server = private_redis(maxmemory="200mb", maxmemory_policy="allkeys-lru")

    async def refused(projection: Projection) -> None:
        for _ in range(2):
            with pytest.raises(GuaranteeError, match="allkeys-lru"):
                await projection.read(PLACE, [])

    async def taken(projection: Projection) -> None:
        assert not (await projection.read(PLACE, [])).header.opened

    use(store_url(server.url), refused)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "0")
    use(store_url(server.url), taken)


def test_a_document_that_was_announced(url: StoreUrl) -> None:
    """What the step announced is heard without a read; another document, or none that was told, is not."""
    writer = Writer(url)
    key = DocumentKey("ops", "op")

    async def work(projection: Projection) -> None:
        waiting = asyncio.create_task(projection.shows(PLACE, 5, key, b"mine", timeout_s=10))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(writer.apply, 6, {key: b"mine", DocumentKey("open", "op"): b"x"})
        header = await waiting
        assert header is not None
        assert header.applied_offset == 6
        assert await projection.shows(PLACE, 5, key, b"mine", timeout_s=0) == header
        assert await projection.shows(PLACE, 5, key, b"another's", timeout_s=0) is None
        assert await projection.shows(PLACE, 5, DocumentKey("ops", "other"), b"mine", timeout_s=0) is None
        assert await projection.shows(PLACE, 6, key, b"mine", timeout_s=0.05) is None

    use(url, work)
