"""One session in several threads, and several ledgers in one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from conformance.worlds import PATIENCE_S, World, until

from fencepost.ledger import EffectClass, Ledger
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable


def at_the_same_time(count: int, work: Callable[[int], object]) -> list[object]:
    """What `work` gives in as many threads, which begin together."""
    barrier = threading.Barrier(count)

    def run(number: int) -> object:
        barrier.wait(PATIENCE_S)
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_of_a_session_race_on_one_op(world: World, ledger: Ledger, threads: int) -> None:
    """Two threads, and eight, call the same effect at the same time: it runs once, and all get its result."""
    with ledger.session(world.agent) as session:
        results = at_the_same_time(threads, lambda _: world.charge(session, "race"))
        session.checkpoint("c")
    assert results == [{"order": world.key("race"), "cents": 50}] * threads
    assert world.hits("race") == 1
    assert ledger.operation(world.op_id("race")).operation.anomalies == []
    assert world.preview("c").authorised


def test_threads_with_effects_of_their_own(world: World, ledger: Ledger) -> None:
    """Threads of one session do different effects and take checkpoints: no number is lost or given twice."""
    with ledger.session(world.agent) as session:

        def work(number: int) -> None:
            for step in range(5):
                world.charge(session, f"t{number}-{step}")
            session.checkpoint(f"c{number}")

        at_the_same_time(4, work)
        assert sum(world.hits(f"t{n}-{s}") for n in range(4) for s in range(5)) == 20
        session.checkpoint("end")
        until(lambda: ledger.watermark(world.agent).mark.seq == ledger.watermark(world.agent).highest_seq > 40)
    assert len(ledger.checkpoints(world.agent)) == 5
    assert world.preview("end").authorised


def test_agents_of_several_ledgers_race(world: World, ledger: Ledger) -> None:
    """The same effect through handles of their own: one run, nobody fenced, the same result."""
    sessions = [world.open().session(f"{world.agent}-{n}").open() for n in range(3)]
    results = at_the_same_time(3, lambda n: world.charge(sessions[n], "shared"))
    assert len({str(result) for result in results}) == 1
    assert world.hits("shared") == 1
    for session in sessions:
        session.close()
    world.status(world.op_id("shared"), Status.COMMITTED)


def test_current_belongs_to_its_thread(world: World, ledger: Ledger) -> None:
    """Inside concurrent effects `current` is each one's own claim."""
    with ledger.session(world.agent) as session:
        inside = threading.Barrier(3)

        @session.effect("own", kind=EffectClass.IRREVERSIBLE)
        def own(number: int, name: str) -> list[str]:
            del number, name
            inside.wait(PATIENCE_S)
            return [session.current.call.op_id, session.current.idempotency_key]

        found = at_the_same_time(3, lambda n: own(n, world.name))
        expected = [own.op_id(n, world.name) for n in range(3)]
    assert [one[0] for one in found] == expected  # type: ignore[index]
    assert len({one[1] for one in found}) == 3  # type: ignore[index]


def test_session_closed_under_running_threads(world: World, ledger: Ledger) -> None:
    """Closing a session while a thread runs an effect leaves that effect in doubt until its outcome comes, and takes it."""
    session = ledger.session(world.agent).open()
    inside, go = threading.Event(), threading.Event()

    @session.effect("long", kind=EffectClass.IRREVERSIBLE, key=lambda order: order)
    def long(order: str) -> str:
        world.hit("long")
        inside.set()
        assert go.wait(PATIENCE_S)
        return order

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(long, world.key("long"))
        assert inside.wait(PATIENCE_S)
        session.close()
        until(lambda: [item.state for item in ledger.in_doubt(world.agent)] == ["in doubt"])
        go.set()
        assert running.result(PATIENCE_S) == world.key("long")
    assert world.status(f"long:{world.key('long')}", Status.COMMITTED).anomalies == []
    assert world.hits("long") == 1
