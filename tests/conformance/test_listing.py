"""Operations in the order of their names: by agent, tool, and status, a page at a time, on every store."""

from __future__ import annotations

import asyncio

import pytest
from conformance.worlds import World, until

from fencepost.ledger import AsyncLedger, EffectClass, InvalidArgumentError, Ledger, NotFoundError, listing
from fencepost.ledger.operations import Status


@pytest.fixture
def op_ids(world: World, ledger: Ledger) -> list[str]:
    """Seven committed operations of two tools and one in doubt, by name."""
    made = []
    with ledger.session(world.agent) as session:
        for number in range(7):
            tool = f"tool{number % 2}"
            attempt = session.attempt(tool, key=world.key(f"k{number}"), kind=EffectClass.IRREVERSIBLE).begin()
            attempt.commit(number)
            made.append(attempt.op_id)
        open_ = session.attempt("tool0", key=world.key("k7"), kind=EffectClass.IRREVERSIBLE).begin()
        assert open_.owned
        open_.doubt("no answer")
        made.append(open_.op_id)
        session.checkpoint("drained")
    world.status(open_.op_id, Status.IN_DOUBT)
    until(lambda: len(ledger.operations(world.agent, status="committed")) == 7)
    return sorted(made)


def test_pages_are_the_whole(world: World, ledger: Ledger, op_ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is cut into pages, the list has each operation once, in order; also when chunks are read one by one."""
    monkeypatch.setattr(listing, "CHUNK", 3)
    for size in (1, 3, 5, 100):
        found: list[str] = []
        while page := ledger.operations(world.agent, after=found[-1] if found else "", limit=size):
            assert len(page) <= size
            found += [view.operation.op_id for view in page]
        assert found == op_ids
    assert [view.operation.op_id for view in ledger.each_operation(world.agent)] == op_ids
    everything = [view.operation.op_id for view in ledger.each_operation()]
    assert everything == sorted(everything)
    assert set(op_ids) <= set(everything)


def test_filters(world: World, ledger: Ledger, op_ids: list[str]) -> None:
    """By tool and by status, together with pages; a status that there is not is refused by name."""
    by_tool = [view.operation.op_id for view in ledger.operations(world.agent, tool="tool1")]
    assert by_tool == [op_id for op_id in op_ids if op_id.startswith("tool1:")]
    [doubt] = ledger.operations(world.agent, status="in doubt")
    assert doubt.operation.op_id == world.op_id("k7", "tool0")
    page = ledger.operations(world.agent, tool="tool0", status="committed", after=op_ids[0], limit=2)
    assert [view.operation.op_id for view in page] == op_ids[1:3]
    with pytest.raises(NotFoundError):
        ledger.operations(world.key("nobody"))
    for field, options in (("status", {"status": "lost"}), ("limit", {"limit": 0})):
        with pytest.raises(InvalidArgumentError) as caught:
            ledger.operations(world.agent, **options)
        assert caught.value.field == field


def test_owner_that_is_gone_is_listed_as_in_doubt(world: World, ledger: Ledger) -> None:
    """The status is the one that is decided by: an owner that was fenced leaves its operation in doubt."""
    session = ledger.session(world.agent).open()
    attempt = session.attempt("tool0", key=world.key("gone"), kind=EffectClass.IRREVERSIBLE).begin()
    assert attempt.owned
    ledger.session(world.agent).open().close()
    assert ledger.operation(attempt.op_id).operation.status is Status.OWNED
    [view] = ledger.operations(world.agent, status="in doubt")
    assert view.operation.op_id == attempt.op_id
    assert ledger.operations(world.agent, status="owned") == []


def test_listing_for_asyncio(world: World, op_ids: list[str]) -> None:
    """The awaited calls give the same."""

    async def work() -> list[str]:
        async with AsyncLedger.open(world.url) as ledger:
            first = [view.operation.op_id for view in await ledger.operations(world.agent, limit=3)]
            return first + [v.operation.op_id async for v in ledger.each_operation(world.agent, after=first[-1])]

    assert asyncio.run(work()) == op_ids
