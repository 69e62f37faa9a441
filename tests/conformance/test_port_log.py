"""The ports of the log, on every store: what `Log` and `LogReader` promise."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance import ports_kit
from conformance.ports_kit import intent, opened, place, published, record
from conformance.worlds import Home, World

from fencepost.ledger import PublishRefusedError, RecordTooLargeError, StoreError
from fencepost.ledger.errors import StoreClosedError
from fencepost.ledger.history import PositionedFact, Record
from fencepost.ledger.positions import Partition, Position, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger.history import LogEntry
    from fencepost.ledger.ports import Store


def entries(store: Store, partition: Partition, start: int = 0, end: int | None = None) -> list[LogEntry]:
    reader = store.reader()
    try:
        return list(reader.entries(partition, start=start, end=end))
    finally:
        reader.close()


def test_partitions(home: Home, world: World) -> None:
    """Every key has one partition, the same in every process, and within the count of its topic."""

    async def places() -> list[tuple[int, int]]:
        async with opened(home.url) as store:
            found = []
            for topic in Topic:
                numbers = [store.log.partition_of(topic, world.key(str(n))) for n in range(50)]
                assert numbers == [store.log.partition_of(topic, world.key(str(n))) for n in range(50)]
                assert set(numbers) == set(range(store.log.partitions(topic)))
                found += [(store.log.partitions(topic), number) for number in numbers]
            return found

    assert asyncio.run(places()) == asyncio.run(places())


def test_published_records_are_read_as_they_were_written(home: Home, world: World) -> None:
    """A record comes back from the log with its key, history and fact byte for byte, and with the broker's time."""
    op_id = world.key("op")

    async def run() -> None:
        async with opened(home.url) as store:
            known = (PositionedFact(Position(0, 0), intent(op_id, "earlier", arguments=b"\x00\xff")),)
            written = record(op_id, "a", known)
            offset = await store.log.publish(place(store, op_id), written)
            assert offset is not None
            [entry] = entries(store, place(store, op_id), offset, offset + 1)
            assert (entry.offset, entry.key, entry.record, entry.problem) == (offset, op_id, written, "")
            assert entry.partition == place(store, op_id)
            assert entry.time_ms > 1_600_000_000_000

    asyncio.run(run())


def test_offsets_rise_in_the_order_of_the_calls(home: Home, world: World) -> None:
    """Records that one process publishes to one partition, without waiting in between, keep their order."""
    op_id = world.key("op")

    async def run() -> None:
        async with opened(home.url) as store:
            partition = place(store, op_id)
            one_by_one = [store.log.publish(partition, record(op_id, f"a{n:03}")) for n in range(100)]
            offsets = await asyncio.gather(*one_by_one)
            assert None not in offsets
            assert offsets == sorted(set(offsets))  # type: ignore[type-var]
            mine = [e for e in entries(store, partition) if e.key == op_id and e.record and e.record.fact]
            expected = [intent(op_id, f"a{n:03}") for n in range(100)]
            assert [e.record.fact for e in mine if e.record] == expected

    asyncio.run(run())


def test_acknowledged_means_durable(home: Home, world: World) -> None:
    """What was acknowledged is in the log although the process that wrote it was killed at once."""
    op_id = world.key("op")
    script = f"""
        import asyncio, os, sys
        sys.path.insert(0, {str(Path(ports_kit.__file__).parent.parent)!r})
        from conformance.ports_kit import opened, place, record

        async def run():
            async with opened({home.url!r}) as store:
                offset = await store.log.publish(place(store, {op_id!r}), record({op_id!r}, "last words"))
                os.write(1, str(offset).encode())
                os.kill(os.getpid(), 9)

        asyncio.run(run())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr

    async def run() -> None:
        async with opened(home.url) as store:
            [entry] = entries(store, place(store, op_id), int(done.stdout), int(done.stdout) + 1)
            assert entry.record == record(op_id, "last words")

    asyncio.run(run())


def test_reader_bounds_and_ranges(home: Home, world: World) -> None:
    """`bounds` tells the first and the next offset; `entries` gives start <= offset < end, in order, and no more."""
    op_id = world.key("op")

    async def run() -> None:
        async with opened(home.url) as store:
            partition = place(store, op_id)
            offsets = [await published(store, record(op_id, f"a{n}")) for n in range(5)]
            reader = store.reader()
            try:
                first, end = reader.bounds(partition)
                assert first == 0
                assert end > offsets[-1]
                found = [e.offset for e in reader.entries(partition)]
                assert found == list(range(end))
                assert [e.offset for e in reader.entries(partition, start=offsets[1], end=offsets[3])] == list(
                    range(offsets[1], offsets[3])
                )
                assert list(reader.entries(partition, start=end)) == []
                one: Iterator[LogEntry] = reader.entries(partition)
                other = reader.entries(partition)
                assert (next(one).offset, next(other).offset, next(one).offset) == (0, 0, 1)
                one.close()  # type: ignore[attr-defined]
                other.close()  # type: ignore[attr-defined]
            finally:
                reader.close()

    asyncio.run(run())


def test_too_large_is_certainly_not_written(home: Home, world: World) -> None:
    """A record over the limit is refused with its size; nothing of it is in the log, and the next one is."""
    op_id = world.key("op")

    async def run() -> None:
        async with opened(home.url) as store:
            partition = place(store, op_id)
            large = Record(op_id, (), intent(op_id, "large", arguments=os.urandom(1_020_000)), "test")
            with pytest.raises(RecordTooLargeError) as caught:
                await store.log.publish(partition, large)
            assert caught.value.size_bytes > caught.value.limit_bytes > 0
            await store.log.publish(partition, record(op_id, "small"))
            mine = [e.record.fact for e in entries(store, partition) if e.key == op_id and e.record]
            assert mine == [intent(op_id, "small")]

    asyncio.run(run())


@pytest.mark.parametrize("key", ["", "bad \ud800 key"])
def test_unusable_key_is_refused(home: Home, key: str) -> None:
    """A record without a key, or with one that is not text, is refused by the publisher and not written."""

    async def run() -> None:
        async with opened(home.url) as store:
            partition = Partition(Topic.EFFECTS, 0)
            reader = store.reader()
            before = reader.bounds(partition)
            with pytest.raises((PublishRefusedError, StoreError)):
                await store.log.publish(partition, Record(key, (), intent("x", "a"), "test"))
            assert reader.bounds(partition) == before
            reader.close()

    asyncio.run(run())


def test_unknown_partition_is_refused(home: Home) -> None:
    """A partition that the topic does not have takes nothing: the missing capability is a refusal."""

    async def run() -> None:
        async with opened(home.url) as store:
            beyond = Partition(Topic.EFFECTS, store.log.partitions(Topic.EFFECTS))
            with pytest.raises((StoreError, ValueError)):
                await store.log.publish(beyond, record("x", "a"))

    asyncio.run(run())


def test_closed_log_refuses(home: Home, world: World) -> None:
    """A log that was closed refuses what comes later as certainly not written; closing twice does nothing."""

    async def run() -> None:
        async with opened(home.url) as store:
            partition = place(store, world.key("op"))
            await store.log.close()
            await store.log.close()
            with pytest.raises(StoreClosedError) as caught:
                await store.log.publish(partition, record(world.key("op"), "late"))
            assert not caught.value.retryable

    asyncio.run(run())


def test_initialising_again_changes_nothing(home: Home) -> None:
    """A ledger that exists keeps its id and its partitions when it is initialised again."""
    from fencepost.ledger.setup import initialise, recorded_id  # noqa: PLC0415

    async def run() -> None:
        async with opened(home.url) as store:
            before = await asyncio.to_thread(recorded_id, store)
            counts = {topic: store.log.partitions(topic) for topic in Topic}
            assert await initialise(store, partitions=counts[Topic.EFFECTS], development=True) == before
            assert {topic: store.log.partitions(topic) for topic in Topic} == counts

    asyncio.run(run())


def test_checks_are_told(home: Home) -> None:
    """The guarantees can be looked at: each check has a name, what was found, and what is wanted; none refuses here."""

    async def run() -> None:
        async with opened(home.url) as store:
            checks = await store.check()
            assert checks
            assert [c for c in checks if not c.ok and c.severity == "refuse"] == []
            assert all(c.name and c.wanted for c in checks)

    asyncio.run(run())
