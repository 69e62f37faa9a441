"""The loop: time that jumps, an order that is drawn, processes that die and pause as processes do."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from simulation.loop import EndlessError, Process, SeededLoop


def test_time_jumps_to_the_next_timer() -> None:
    """A day of sleep takes no time, and the clock shows it."""

    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert SeededLoop(Random(1)).run(main()) == 86_400


def test_the_seed_decides_the_order_of_processes() -> None:
    """Which process goes next is drawn: different seeds give different orders, one seed always the same."""

    def order(seed: int) -> list[str]:
        loop, taken = SeededLoop(Random(seed)), []

        async def step(name: str) -> None:
            for _ in range(3):
                taken.append(name)
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(loop.spawn(Process(name), step(name)) for name in "abc"))

        loop.run(main())
        return taken

    assert order(5) == order(5)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_killed_process_takes_no_further_step() -> None:
    """Not even its clean-up runs: what died left everything as it was."""
    loop, done = SeededLoop(Random(1)), []
    process = Process("p")

    async def work() -> None:
        try:
            done.append("began")
            await asyncio.sleep(1)
        finally:
            if not closed:
                done.append("cleaned up")

    closed: list[bool] = []

    async def main() -> None:
        _ = loop.spawn(process, work())
        await asyncio.sleep(0.5)
        loop.kill(process)
        await asyncio.sleep(5)

    loop.run(main(), close=lambda: closed.append(True))
    assert done == ["began"]


def test_a_process_dies_before_the_step_that_is_named() -> None:
    """`die_at` kills between two steps, and tells it."""
    loop, done = SeededLoop(Random(1)), []
    process = Process("p")
    process.die_at = 3
    process.on_death = lambda: done.append("died")

    async def work() -> None:
        for number in range(5):
            done.append(str(number))
            await asyncio.sleep(0)

    async def main() -> None:
        _ = loop.spawn(process, work())
        await asyncio.sleep(1)

    loop.run(main())
    assert done == ["0", "1", "died"]


def test_a_paused_process_goes_on_as_if_nothing_had_been() -> None:
    """What was due during the pause runs after it, in its order."""
    loop, at = SeededLoop(Random(1)), []
    process = Process("p")

    async def work() -> None:
        await asyncio.sleep(1)
        at.append(loop.now)
        await asyncio.sleep(1)
        at.append(loop.now)

    async def main() -> None:
        task = loop.spawn(process, work())
        await asyncio.sleep(0.5)
        loop.pause(process, 7)
        await task

    loop.run(main())
    assert at == [7.5, 8.5]


def test_a_run_without_an_end_is_stopped() -> None:
    """A task that goes round in circles ends the run with an error instead of hanging the tests."""

    async def main() -> None:
        while True:  # noqa: ASYNC110 (it is meant to go round)
            await asyncio.sleep(0)

    with pytest.raises(EndlessError, match="no end"):
        SeededLoop(Random(1)).run(main())


def test_a_run_in_which_nothing_can_happen_is_stopped() -> None:
    """Somebody who waits for what never comes is a deadlock, and is told as one."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(EndlessError, match="nothing can run"):
        SeededLoop(Random(1)).run(main())
