"""The simulated log and store keep what the ports promise, whatever goes wrong in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from simulation.loop import Process, SeededLoop
from simulation.ports import SimulatedStore
from simulation.projecting import Machine, SimulatedPartitionStore
from simulation.world import Faults, World

from fencepost.consumer.partition_store import MovedError
from fencepost.ledger.errors import OutcomeUnknownError
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.ports import Header, Step
from fencepost.ledger.positions import Partition, Topic

PLACE = Partition(Topic.EFFECTS, 0)


def record(key: str) -> Record:
    return Record(key, (), encode_effect(EffectFact(kind=EffectKind.INTENDED, op_id=key, attempt_id="a")))


def in_world(work: Callable[[World], Awaitable[None]], *, seed: int = 0, faults: Faults | None = None) -> None:
    loop = SeededLoop(Random(seed))
    world = World(loop, effects=1, agents=1, faults=faults or Faults())

    async def main() -> None:
        await work(world)

    loop.run(main())


def keys(world: World) -> list[str]:
    return [raw.key.decode() for raw in world.places[PLACE].written if raw.key]


@pytest.mark.parametrize("seed", range(10))
def test_what_a_process_publishes_keeps_its_order(seed: int) -> None:
    """However slow the way is, records of one process stand in the order in which they were published."""

    async def work(world: World) -> None:
        log = SimulatedStore(world, Process("p")).log
        offsets = await asyncio.gather(*(log.publish(PLACE, record(f"op{n}")) for n in range(8)))
        assert offsets == list(range(8))
        assert keys(world) == [f"op{n}" for n in range(8)]

    in_world(work, seed=seed, faults=Faults(slow=0.5))


def test_an_unknown_outcome_is_written_or_not_or_later() -> None:
    """Of publishes whose outcome is unknown some stand in the log at once, some come later, some never."""
    seen: set[tuple[bool, bool]] = set()

    async def work(world: World) -> None:
        with pytest.raises(OutcomeUnknownError):
            await SimulatedStore(world, Process("p")).log.publish(PLACE, record("op"))
        at_once = bool(keys(world))
        await asyncio.sleep(10)
        seen.add((at_once, bool(keys(world))))

    for seed in range(30):
        in_world(work, seed=seed, faults=Faults(unknown=1.0))
    assert seen == {(True, True), (False, True), (False, False)}


def test_the_cleaner_keeps_the_newest_of_a_key_and_what_is_not_settled() -> None:
    """It removes what a later record below the bound supersedes, and nothing else."""

    async def work(world: World) -> None:
        for key in ("a", "b", "a", "a", "b"):
            world.append(PLACE, record(key), "p")
        place = world.places[PLACE]
        assert [place.removable(below) for below in range(6)] == [[], [], [], [0], [0, 2], [0, 1, 2]]
        world.clean(PLACE, below=4, share=1.1)
        assert [raw.offset for raw in place.left()] == [1, 3, 4]
        assert [raw.offset for raw in place.left(2)] == [3, 4]

    in_world(work)


def test_a_store_takes_steps_of_its_last_owner_only() -> None:
    """A former owner is refused, and so is one that did not see that the projection was lost or went back."""

    async def work(world: World) -> None:
        first, second = (SimulatedPartitionStore(Machine(world, Process(name)), PLACE) for name in "12")
        _ = first.claim()
        first.begin(Header(incarnation="i", opened=True))
        world.remember(PLACE)
        first.apply(Step(Header(incarnation="i", opened=True, applied_offset=1)), 0)
        _ = second.claim()
        with pytest.raises(MovedError) as moved:
            first.apply(Step(Header(incarnation="i")), 0)
        assert moved.value.superseded
        with pytest.raises(MovedError):
            first.drop()
        world.go_back(PLACE)
        with pytest.raises(MovedError, match="epoch"):
            second.heartbeat(touch=True)
        _ = second.claim()
        world.lose(PLACE, with_epoch=True)
        with pytest.raises(MovedError, match="lost"):
            second.documents(())

    in_world(work)


def test_a_reader_gets_documents_and_the_header_they_belong_to() -> None:
    """What is read stands at one applied offset; without a projection there is nothing to read."""

    async def work(world: World) -> None:
        projection = SimulatedStore(world, Process("p")).projection
        machine = Machine(world, Process("projector"))
        _ = world.loop.spawn(machine.process, machine.live())
        world.append(PLACE, record("op"), "p")
        header = await projection.advanced(PLACE, 0, timeout_s=30)
        assert header.applied_offset > 0
        snapshot = await projection.scan(PLACE, "ops")
        assert [key.key for key in snapshot.documents] == ["op"]
        page, cursor = await projection.page(PLACE, "ops", count=1)
        assert (dict(page.documents), cursor) == (dict(snapshot.documents), "op")
        machine.stop()
        world.lose(PLACE, with_epoch=False)
        assert not (await projection.read(PLACE, list(snapshot.documents))).documents

    in_world(work)
