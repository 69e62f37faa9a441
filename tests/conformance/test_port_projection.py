"""The port of the projection, on every store: what `Projection` promises to those who read it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest
from conformance.ports_kit import applied, intent, opened, place, published, record
from conformance.worlds import Home, World

from fencepost.ledger import InvalidArgumentError
from fencepost.ledger import projection as docs
from fencepost.ledger.history import PositionedFact
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.seq_bits import bits_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencepost.ledger.history import History
    from fencepost.ledger.ports import Store


def with_store(home: Home, work: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        async with opened(home.url) as store:
            await work(store)

    asyncio.run(run())


def test_read_gives_what_exists(home: Home, world: World) -> None:
    """`read` gives the documents under the keys that exist, and leaves out those that do not."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        offset = await published(store, record(op_id, "a"))
        present, absent = DocumentKey(docs.OPS, op_id), DocumentKey(docs.OPS, world.key("never"))
        snapshot = await store.projection.read(place(store, op_id), [present, absent])
        assert set(snapshot.documents) == {present}
        facts = docs.read_history(snapshot.documents[present])
        assert facts == (PositionedFact(Position(0, offset), intent(op_id, "a")),)

    with_store(home, work)


def test_header_moves_with_the_documents(home: Home, world: World) -> None:
    """What a snapshot shows is what its header says: never a document from beyond the applied offset, never less."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        partition, key = place(store, op_id), DocumentKey(docs.OPS, op_id)
        first = await published(store, record(op_id, "a000"))
        writing = asyncio.gather(*(store.log.publish(partition, record(op_id, f"a{n:03}")) for n in range(1, 40)))
        seen = 0
        while not writing.done() or seen < 40:
            snapshot = await store.projection.read(partition, [key])
            facts = docs.read_history(snapshot.documents.get(key))
            assert all(position.offset < snapshot.header.applied_offset for position, _ in facts)
            assert len(facts) >= seen
            seen = len(facts)
            assert snapshot.header.applied_offset > first
        await writing

    with_store(home, work)


def test_header_fields(home: Home, world: World) -> None:
    """The header of a projection at rest: an incarnation, open, nothing owed, not halted, and its age is small."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        offset = await published(store, record(op_id, "a"))
        partition = place(store, op_id)
        await applied(store, partition, offset)
        deadline = time.monotonic() + 30
        while True:
            header = (await store.projection.read(partition, [])).header
            if header.settled_offset == header.applied_offset or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        assert header.incarnation
        assert (header.opened, header.halted, header.generation) == (True, "", 0)
        assert header.settled_offset == header.applied_offset > offset
        assert header.settled_time_ms == 0
        assert header.horizon <= header.applied_offset
        assert 0 <= header.now_ms - header.seen_ms < 30_000
        again = (await store.projection.read(partition, [])).header
        assert again.incarnation == header.incarnation
        assert again.now_ms >= header.now_ms

    with_store(home, work)


def test_advanced_waits_for_an_offset(home: Home, world: World) -> None:
    """`advanced` comes back when the offset is applied, long before its time is up, whoever wrote the record."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        partition = place(store, op_id)
        before = (await store.projection.read(partition, [])).header
        waiting = asyncio.create_task(store.projection.advanced(partition, before.applied_offset, timeout_s=50))
        started = time.monotonic()
        async with opened(home.url) as other:
            while not waiting.done():
                await other.log.publish(partition, record(op_id, "a"))
                await asyncio.sleep(0.05)
                assert time.monotonic() - started < 40
        assert (await waiting).applied_offset > before.applied_offset

    with_store(home, work)


def test_advanced_gives_up_in_time(home: Home, world: World) -> None:
    """When nothing moves, `advanced` returns the header as it is once the time is up."""

    async def work(store: Store) -> None:
        partition = place(store, world.key("op"))
        started = time.monotonic()
        header = await store.projection.advanced(partition, 10**9, timeout_s=0.3)
        assert header.applied_offset < 10**9
        assert time.monotonic() - started < 20

    with_store(home, work)


def test_advanced_for_the_past_returns_at_once(home: Home, world: World) -> None:
    """An offset that is applied already is not waited for."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        offset = await published(store, record(op_id, "a"))
        started = time.monotonic()
        header = await store.projection.advanced(place(store, op_id), offset, timeout_s=50)
        assert header.applied_offset > offset
        assert time.monotonic() - started < 25

    with_store(home, work)


def test_what_is_heard_is_what_is_there(home: Home, world: World) -> None:
    """`shows` tells of a document only if it is that very one; nothing at all is heard where nothing is announced."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        partition, key = place(store, op_id), DocumentKey(docs.OPS, op_id)
        before = (await store.projection.read(partition, [])).header
        await store.projection.advanced(partition, before.applied_offset - 1, timeout_s=5)
        heard = 0
        facts: History = ()
        for number in range(20):
            one = record(op_id, f"a{number}", facts)
            offset = await store.log.publish(partition, one)
            assert offset is not None
            another = docs.write_history(op_id, facts)
            facts = (*facts, PositionedFact(Position(0, offset), one.fact or b""))
            mine = docs.write_history(op_id, facts)
            header = await store.projection.shows(partition, offset, key, mine, timeout_s=5)
            if header is not None:
                heard += 1
                assert header.opened
                assert header.applied_offset > offset
                assert (await store.projection.read(partition, [key])).documents[key] == mine
            assert await store.projection.shows(partition, offset, key, another, timeout_s=0) is None
            await applied(store, partition, offset)
        assert (heard > 0) is not home.embedded

    with_store(home, work)


def test_scan_gives_a_whole_collection(home: Home, world: World) -> None:
    """`scan` gives all documents of one collection and none of another."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        await published(store, record(op_id, "a"))
        found = await store.projection.scan(place(store, op_id), docs.agent_ops(f"agent-of-{op_id}"))
        assert set(found.documents) == {DocumentKey(docs.agent_ops(f"agent-of-{op_id}"), op_id)}
        nothing = await store.projection.scan(place(store, op_id), docs.agent_ops(world.key("nobody")))
        assert nothing.documents == {}
        assert nothing.header.opened

    with_store(home, work)


@pytest.mark.parametrize("count", [1, 7, 500])
def test_pages_cover_a_collection(home: Home, world: World, count: int) -> None:
    """Paging through a collection shows every document that was there from the beginning to the end, then stops."""

    async def work(store: Store) -> None:
        op_ids = {world.key(f"op{n}-{count}") for n in range(25)}
        for op_id in op_ids:
            await published(store, record(op_id, "a"))
        seen: set[str] = set()
        for number in range(store.log.partitions(Topic.EFFECTS)):
            partition, cursor, pages = Partition(Topic.EFFECTS, number), "", 0
            while True:
                snapshot, cursor = await store.projection.page(partition, docs.OPS, cursor=cursor, count=count)
                assert snapshot.header.applied_offset > 0
                seen |= {key for _, key in snapshot.documents}
                await published(store, record(world.key(f"new-{count}-{number}-{pages % 3}"), f"a{pages}"))
                pages += 1
                assert pages < 5000
                if not cursor:
                    break
        assert op_ids <= seen

    with_store(home, work)


def test_sequence_numbers_are_indexed(home: Home, world: World) -> None:
    """The numbers that a session wrote can be read back, over several documents when there are many."""

    async def work(store: Store) -> None:
        op_id, session_id = world.key("op"), world.key("session")
        for seq in (1, 2, 1030):
            await published(store, record(op_id, f"a{seq}", seq=seq, session_id=session_id))
        found = await store.projection.scan(place(store, op_id), docs.seqs(f"agent-of-{op_id}", Position(0, 0)))
        chunks = {int(key): data for (_, key), data in found.documents.items()}
        assert bits_of(chunks) == {1, 2, 1030}

    with_store(home, work)


def test_a_loser_that_leaves_out_the_winner_is_put_right(home: Home, world: World) -> None:
    """A record that leaves out what is known is followed by one that says all of it: the newest record is complete."""

    async def work(store: Store) -> None:
        op_id = world.key("op")
        partition = place(store, op_id)
        await published(store, record(op_id, "winner"))
        last = await published(store, record(op_id, "loser"))
        deadline = time.monotonic() + 30
        facts: set[bytes] = set()
        while len(facts) < 2 and time.monotonic() < deadline:
            reader = store.reader()
            newest = [e for e in reader.entries(partition, start=last) if e.key == op_id and e.record][-1]
            reader.close()
            assert newest.record is not None
            facts = {fact for _, fact in newest.record.history}
            await asyncio.sleep(0.02)
        assert facts == {intent(op_id, "winner"), intent(op_id, "loser")}

    with_store(home, work)


def test_beats_tell_who_lives(home: Home, world: World) -> None:
    """A session that beat is remembered with the seconds since; one that never did is not listed."""

    async def work(store: Store) -> None:
        living, silent = world.key("living"), world.key("silent")
        await store.projection.beat([living])
        first = await store.projection.beats([living, silent])
        assert set(first) == {living}
        assert 0 <= first[living] < 20
        await asyncio.sleep(0.3)
        assert (await store.projection.beats([living]))[living] >= 0.25
        await store.projection.beat([living])
        assert (await store.projection.beats([living]))[living] < 20
        assert await store.projection.beats([]) == {}

    with_store(home, work)


def test_unknown_partition_is_not_answered_for(home: Home) -> None:
    """A partition that the topic does not have is refused, or shown as one that nobody has read: never as open."""

    async def work(store: Store) -> None:
        beyond = Partition(Topic.EFFECTS, store.log.partitions(Topic.EFFECTS))
        with contextlib.suppress(InvalidArgumentError):
            header = (await store.projection.read(beyond, [])).header
            assert (header.opened, header.applied_offset) == (False, 0)

    with_store(home, work)
