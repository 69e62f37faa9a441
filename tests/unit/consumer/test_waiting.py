"""Waiting for a partition, without Redis: lost notices, late subscriptions, dead stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from fencepost.consumer.waiting import Watch
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.ports import Header

OPEN = Header(incarnation="i", opened=True)


class Place:
    """A projection that a test moves by hand."""

    def __init__(self) -> None:
        self.header = OPEN
        self.reads = 0
        self.subscribed = 0
        self.dead = False
        self.watch = Watch(self.subscribe, self.read)

    async def subscribe(self) -> None:
        if self.dead:
            raise StoreUnavailableError("dead")
        self.subscribed += 1

    async def read(self) -> Header:
        self.reads += 1
        assert self.subscribed, "a change between the read and the subscription would go unnoticed"
        await asyncio.sleep(0)
        return self.header

    def move(self, offset: int, *, tell: bool = True) -> None:
        self.header = replace(self.header, applied_offset=offset)
        if tell:
            self.watch.notice(self.header.incarnation, offset)


def use(work: Callable[[Place], Awaitable[None]]) -> None:
    async def run() -> None:
        place = Place()
        await work(place)
        await place.watch.close()

    asyncio.run(run())


def test_notices_wake_only_when_they_can_end_a_wait() -> None:
    """A busy partition costs a distant waiter no reads."""

    async def work(place: Place) -> None:
        waiting = asyncio.create_task(place.watch.wait(1000, 10))
        await asyncio.sleep(0.05)
        before = place.reads
        for offset in range(1, 500):
            place.move(offset)
        await asyncio.sleep(0.05)
        assert place.reads == before
        place.move(1001)
        header = await waiting
        assert header is not None
        assert header.applied_offset == 1001

    use(work)


def test_a_lost_notice_costs_a_second() -> None:
    """Without any notice the wait ends at the next look."""

    async def work(place: Place) -> None:
        waiting = asyncio.create_task(place.watch.wait(0, 10))
        await asyncio.sleep(0.05)
        place.move(1, tell=False)
        began = time.monotonic()
        assert await waiting is not None
        assert time.monotonic() - began < 2

    use(work)


def test_time_is_up() -> None:
    """None when nothing happens; nobody is left waiting, and the looking ends."""

    async def work(place: Place) -> None:
        assert await place.watch.wait(0, 0.05) is None
        assert await place.watch.wait(0, 0) is None
        await asyncio.sleep(1.2)
        before = place.reads
        await asyncio.sleep(1.2)
        assert place.reads == before

    use(work)


def test_a_dead_store_is_tried_again() -> None:
    """While the store does not answer the wait goes on; it ends soon after the store is back."""

    async def work(place: Place) -> None:
        place.dead = True
        waiting = asyncio.create_task(place.watch.wait(0, 10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        place.dead = False
        place.move(1, tell=False)
        began = time.monotonic()
        assert await waiting is not None
        assert time.monotonic() - began < 1

    use(work)


def test_another_projection_ends_a_wait_once() -> None:
    """A wait ends early when the projection is begun again, opened or halted; not merely because it is in such a state."""

    async def work(place: Place) -> None:
        for change in ({"incarnation": "j"}, {"opened": False}, {"halted": "x"}):
            waiting = asyncio.create_task(place.watch.wait(99, 10))
            await asyncio.sleep(0.05)
            place.header = replace(place.header, **change)
            place.watch.look()
            assert await waiting == place.header
            assert await place.watch.wait(99, 0.1) is None

    use(work)


def test_cancelled_waiters_leave() -> None:
    """A cancelled waiter disturbs nobody."""

    async def work(place: Place) -> None:
        one, two = (asyncio.create_task(place.watch.wait(0, 10)) for _ in range(2))
        await asyncio.sleep(0.05)
        one.cancel()
        await asyncio.sleep(0)
        place.move(1)
        assert await two is not None
        assert one.cancelled()

    use(work)


def test_an_announced_advance_needs_no_look() -> None:
    """Once the header was read, a wait begins and ends without another read; what was announced before it began counts."""

    async def work(place: Place) -> None:
        place.move(1)
        assert await place.watch.wait(0, 10) is not None
        before = place.reads
        for offset in range(2, 20):
            waiting = asyncio.create_task(place.watch.wait(offset - 1, 10))
            await asyncio.sleep(0)
            place.move(offset)
            header = await waiting
            assert header is not None
            assert header.applied_offset == offset
        place.move(20)
        assert await place.watch.wait(19, 10) is not None
        assert place.reads == before

    use(work)


def test_after_a_break_the_header_is_read() -> None:
    """When notices may have been lost, or another projection is announced, what was known before is not believed."""

    async def work(place: Place) -> None:
        place.move(5)
        assert await place.watch.wait(0, 10) is not None
        place.move(3, tell=False)
        place.watch.look()
        assert await place.watch.wait(4, 0.1) is None
        place.header = replace(place.header, incarnation="j", applied_offset=0)
        place.watch.notice("j", 0)
        assert await place.watch.wait(2, 0.1) is None
        before = place.reads
        place.move(3)
        assert await place.watch.wait(2, 10) == place.header
        assert place.reads == before

    use(work)


def test_what_is_announced_while_the_header_is_read_counts() -> None:
    """The read may be older than the announcement that came meanwhile."""

    async def work(place: Place) -> None:
        old = place.header

        async def read() -> Header:
            place.watch.notice("i", 7)
            return old

        place.watch._read = read
        header = await place.watch.wait(6, 10)
        assert header is not None
        assert header.applied_offset == 7

    use(work)


def test_what_was_announced_of_documents() -> None:
    """Fingerprints count for the projection that was read, until notices may have been lost; only the newest are kept."""

    async def work(place: Place) -> None:
        assert await place.watch.wait(-1, 10) is not None
        place.watch.notice("i", 1, (b"a", b"b"))
        assert place.watch.told(b"a", -1)
        assert not place.watch.told(b"a", 1)
        place.watch.notice("j", 2, (b"of another",))
        assert not place.watch.told(b"of another", -1)
        place.watch.notice("i", 3, [b"%d" % n for n in range(3000)])
        assert place.watch.told(b"2999", -1)
        assert not place.watch.told(b"a", -1)
        place.watch.look()
        assert not place.watch.told(b"2999", -1)

    use(work)


def test_another_projection_forgets_what_was_announced() -> None:
    """Once the header of another incarnation is read, nothing that was told of the former one counts."""

    async def work(place: Place) -> None:
        assert await place.watch.wait(-1, 10) is not None
        place.watch.notice("i", 1, (b"a",))
        place.header = replace(place.header, incarnation="j", applied_offset=9)
        place.watch._known = None
        assert await place.watch.wait(5, 10) == place.header
        assert not place.watch.told(b"a", -1)

    use(work)


def test_a_header_that_was_read_is_a_look() -> None:
    """Whoever waits after somebody has read the partition reads nothing, and who waits already hears of it."""

    async def work(place: Place) -> None:
        assert await place.watch.wait(-1, 10) is not None
        reads = place.reads
        for offset in range(1, 4):
            waiting = asyncio.create_task(place.watch.wait(offset - 1, 10))
            await asyncio.sleep(0.6)  # in all longer than what was announced is believed
            place.move(offset, tell=False)
            place.watch.saw(place.header)
            header = await waiting
            assert header is not None
            assert header.applied_offset == offset
        assert place.reads == reads

    use(work)


def test_what_was_read_is_no_look_once_notices_were_lost() -> None:
    """A header of another projection, or of one that stopped, or one read while nothing is heard, is looked at again."""

    async def work(place: Place) -> None:
        for header, broken in (
            (replace(OPEN, applied_offset=5), True),
            (replace(OPEN, applied_offset=5, incarnation="other"), False),
            (replace(OPEN, applied_offset=5, halted="a gap"), False),
            (replace(OPEN, applied_offset=5, opened=False), False),
        ):
            assert await place.watch.wait(-1, 10) is not None
            if broken:
                place.watch.look()
            place.watch.saw(header)
            assert await place.watch.wait(4, 0.05) is None

    use(work)


def test_a_notice_that_comes_late_takes_nothing_back() -> None:
    """Within one projection the applied offset only grows, whatever is heard last."""

    async def work(place: Place) -> None:
        assert await place.watch.wait(-1, 10) is not None
        place.watch.saw(replace(OPEN, applied_offset=7))
        place.watch.notice("i", 3)
        header = await place.watch.wait(6, 10)
        assert header is not None
        assert header.applied_offset == 7
        place.watch.notice("new", 0)
        place.watch.saw(replace(OPEN, applied_offset=9))
        assert await place.watch.wait(8, 0.05) is None

    use(work)
