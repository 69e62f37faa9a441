"""Which answers of a projection are believed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from fencepost.ledger.errors import StaleProjectionError
from fencepost.ledger.ports import DocumentKey, Header, Snapshot, Store
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.view import View

PARTITION = Partition(Topic.EFFECTS, 0)


def _header(applied: int, incarnation: str = "i1", **values: Any) -> Header:
    return Header(incarnation=incarnation, applied_offset=applied, opened=True, **values)


class _Projection:
    """Answers each scan when the test says so, with the header that the test says."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Header]] = []

    async def scan(self, partition: Partition, *collections: str) -> Snapshot:
        del partition, collections
        self.asked.append(asyncio.get_running_loop().create_future())
        return Snapshot(await self.asked[-1], {})

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        del keys
        return await self.scan(partition, "")


class _Store:
    def __init__(self) -> None:
        self.projection = _Projection()


def _view() -> tuple[View, _Projection]:
    store = _Store()
    return View(cast("Store", store)), store.projection


async def _asked(projection: _Projection) -> None:
    """Wait until the projection is asked once more: what is wanted in one turn of the loop is asked for in the next."""
    before = len(projection.asked)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(projection.asked) == before + 1


async def _scan(view: View, projection: _Projection, header: Header) -> Snapshot:
    task = asyncio.ensure_future(view.scan(PARTITION, "any"))
    await _asked(projection)
    projection.asked[-1].set_result(header)
    return await task


def test_overlapping_reads_may_be_answered_in_any_order() -> None:
    """An older answer that arrives later is no projection that went back."""

    async def run() -> None:
        view, projection = _view()
        first = asyncio.ensure_future(view.scan(PARTITION, "a"))
        await _asked(projection)
        second = asyncio.ensure_future(view.scan(PARTITION, "b"))
        await _asked(projection)
        projection.asked[1].set_result(_header(282))
        assert (await second).header.applied_offset == 282
        projection.asked[0].set_result(_header(280))
        assert (await first).header.applied_offset == 280
        assert view.applied(PARTITION) == 282

    asyncio.run(run())


def test_a_projection_that_went_back_is_not_believed() -> None:
    """Less than was known before it was asked: a store that was restored to an older state."""

    async def run() -> None:
        view, projection = _view()
        await _scan(view, projection, _header(10))
        with pytest.raises(StaleProjectionError, match="went back from offset 10"):
            await _scan(view, projection, _header(9))
        assert (await _scan(view, projection, _header(10))).header.applied_offset == 10

    asyncio.run(run())


def test_another_incarnation_has_read_at_least_as_much() -> None:
    """One that was begun anew opens behind all that was applied before; one that stands lower is a former one, brought back."""

    async def run() -> None:
        view, projection = _view()
        await _scan(view, projection, _header(10))
        with pytest.raises(StaleProjectionError, match="went back from offset 10"):
            await _scan(view, projection, _header(9, "i0"))
        await _scan(view, projection, _header(12, "i2"))
        with pytest.raises(StaleProjectionError, match="went back from offset 12"):
            await _scan(view, projection, _header(11))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (Header(), "no projector has read"),
        (Header(incarnation="i", applied_offset=3, horizon=9), "being rebuilt"),
        (_header(3, halted="a gap at 7"), "a gap at 7"),
        (_header(3, seen_ms=0, now_ms=60_000), "no projector has been seen for 60 s"),
    ],
)
def test_what_is_closed_halted_or_old_is_not_believed(header: Header, why: str) -> None:
    """Never a guess: each is a refusal that says why."""

    async def run() -> None:
        view, projection = _view()
        with pytest.raises(StaleProjectionError, match=why):
            await _scan(view, projection, header)

    asyncio.run(run())


def test_what_is_asked_at_one_time_is_read_in_one_go() -> None:
    """Two reads of one partition become one request with the keys of both."""

    async def run() -> None:
        view, projection = _view()
        reads = [asyncio.ensure_future(view.read(PARTITION, [DocumentKey("ops", name)])) for name in "ab"]
        for _ in range(5):
            await asyncio.sleep(0)
        projection.asked[0].set_result(_header(1))
        assert [snapshot.header.applied_offset for snapshot in await asyncio.gather(*reads)] == [1, 1]
        assert len(projection.asked) == 1

    asyncio.run(run())
