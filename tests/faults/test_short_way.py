"""The short way of an effect on the embedded store: which effects take it, and what its interruptions leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conformance.accounts import refund_of
from conformance.worlds import PATIENCE_S, World
from faults.short_ways import (
    SEND,
    Ways,
    Writing,
    attempts_at,
    complete,
    interrupted,
    ledger,
    runs_elsewhere,
    ways,
    world,
    writer,
)

from fencepost.ledger import AgentSession, AsyncLedger, FencedError, Ledger, Resume
from fencepost.ledger.embedded_store import EmbeddedAtOnce
from fencepost.ledger.operations import AttemptState
from fencepost.ledger.sessions import SessionState

__all__ = ["interrupted", "ledger", "ways", "world", "writer"]  # fixtures
BOTH = [("INTENDED", "short"), ("COMMITTED", "short")]
MOMENTS = ["before", "queued", "reading", "while", "after"]
"""Before its work is given to the store, while that waits, while it reads or is about to publish, and behind its COMMIT."""
STOPS = {"reading": "read", "while": "INTENDED"}
BEGUN = {"reading", "while", "after"}
"""The moments of which the log knows the attempt."""


# -- which effects take it -----------------------------------------------------------------


def test_a_plain_effect_takes_it(world: World, ledger: Ledger, ways: Ways) -> None:
    """Decorated or as an attempt, from a thread or awaited: begun and committed in one transaction each."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        session.attempt(key=world.key("b"), **SEND).begin().commit(1)

    async def main() -> None:
        async with AsyncLedger.open(world.url) as aledger, aledger.session(world.agent) as session:
            await (await session.attempt(key=world.key("c"), **SEND).begin()).commit(1)

    asyncio.run(main())
    assert ways.went("INTENDED", "COMMITTED") == BOTH * 3


def test_not_after_a_gated_rollback(world: World, ledger: Ledger, ways: Ways) -> None:
    """There others decide, too: whether what is asked for is something that was gone back over."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        world.charge(session, "done")
        ways.moments.clear()
        later = session.rollback("c", policy="gated")
        later.attempt(key=world.key("else"), **SEND).begin().commit(1)
        assert ways.went("INTENDED", "COMMITTED")[0] == ("INTENDED", "long")
        world.charge(later, "done")
        later.close()
    assert world.hits("done") == 1


def test_not_where_it_says_how_it_is_undone(world: World, ledger: Ledger, ways: Ways) -> None:
    """The state before it is read between the look at the operation and its intent."""
    with ledger.session(world.agent) as session:
        refund_of(session, world.directory, "give.back")(world.key("r"), "account", 1)
    assert ways.went("INTENDED")[0] == ("INTENDED", "long")


# -- interrupted and cancelled while it begins ---------------------------------------------


@pytest.mark.parametrize("then", ["checkpoint", "close"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_while_it_begins(
    world: World, ledger: Ledger, ways: Ways, writer: Writing, *, interrupted: Any, moment: str, then: str
) -> None:
    """Nothing was run, nothing stays claimed, and neither a checkpoint nor the session's end tells of it as open."""
    with ledger.session(world.agent) as session:
        if moment == "queued":
            writer.hold()
        ways.stop = STOPS.get(moment, "")
        interrupted(moment, (lambda: ways.reached.wait(PATIENCE_S)) if ways.stop else lambda: None)
        with pytest.raises(KeyboardInterrupt):
            world.charge(session, "step")
        told: list[tuple[str, ...]] = []
        if moment == "reading":  # it is about to be published when nobody waits for it any more
            ways.also = lambda _: told.append(session.state.open_operations())
        threading.Timer(0.2, ways.released.set).start()
        threading.Timer(0.2, writer.release).start()
        if then == "checkpoint":
            session.checkpoint("c")
            assert ledger.checkpoints(world.agent)[0].fact.owned == ()
            assert session.state.open_attempts == {}
    assert told[:1] == [()] * (moment == "reading")
    withdrawn = attempts_at(world, world.op_id("step"))
    assert [a.outcome is not None for a in withdrawn] == [True] * (moment in BEGUN)
    runs_elsewhere(world, "step")
    complete(world)


@pytest.mark.parametrize("moment", MOMENTS)
def test_cancelled_while_it_begins(
    world: World, ledger: Ledger, ways: Ways, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The same for a task: cancelled before its transaction, in the queue, in it, and behind it."""
    write = EmbeddedAtOnce.write

    async def main() -> None:
        held = asyncio.Event()

        async def standing(way: EmbeddedAtOnce, work: Any, *reads: Any) -> Any:
            if moment == "after":
                await write(way, work, *reads)
            held.set()
            await asyncio.sleep(PATIENCE_S)

        async with AsyncLedger.open(world.url) as aledger, aledger.session(world.agent) as session:
            writer = Writing(aledger)  # type: ignore[arg-type]
            with monkeypatch.context() as patched:
                if moment in {"before", "after"}:
                    patched.setattr(EmbeddedAtOnce, "write", standing)
                if moment == "queued":
                    writer.hold()
                ways.stop = STOPS.get(moment, "")
                task = asyncio.create_task(session.attempt(key=world.key("b"), **SEND).begin())
                if moment == "queued":
                    await asyncio.to_thread(writer.wait_for, 1)
                elif ways.stop:
                    assert await asyncio.to_thread(ways.reached.wait, PATIENCE_S)
                else:
                    await held.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            asyncio.get_running_loop().call_later(0.2, ways.released.set)
            asyncio.get_running_loop().call_later(0.2, writer.release)
            await session.checkpoint("c")
            assert session.state.open_attempts == {}

    asyncio.run(main())
    assert ledger.checkpoints(world.agent)[0].fact.owned == ()
    withdrawn = attempts_at(world, world.op_id("b", "mail.send"))
    assert [a.outcome is not None for a in withdrawn] == [True] * (moment in BEGUN)
    with ledger.session(f"other-{world.agent}") as other:
        again = other.attempt(key=world.key("b"), wait_s=5, **SEND).begin()
        assert again.owned
        again.commit()
    complete(world)


# -- what else it may find -----------------------------------------------------------------


def test_a_fenced_session_begins_nothing(world: World, ledger: Ledger, ways: Ways) -> None:
    """Its intent is rejected: FencedError, nothing was run, and nothing stays open."""
    first = ledger.session(world.agent).open()
    with world.open().session(world.agent):
        with pytest.raises(FencedError):
            world.charge(first, "late")
        assert ways.went("INTENDED") == [("INTENDED", "short")]
        assert (first.state.open_attempts, first.state.unreturned) == ({}, {})
        assert first.state.ended
    assert world.hits("late") == 0
    assert [a.state for a in ledger.operation(world.op_id("late")).operation.attempts.values()] == [
        AttemptState.REJECTED
    ]
    with ledger.session(world.agent) as third:
        world.charge(third, "late")
    assert world.hits("late") == 1


def test_a_recorded_result_is_not_waited_for(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second session gets it while its note of that is still on its way; the note is there after the next checkpoint."""
    gate, original, noted = threading.Event(), SessionState._publish_absorbed, list[str]()

    async def late(state: SessionState, fact: Any) -> Any:
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        noted.append(fact.op_id)
        return await original(state, fact)

    with ledger.session(world.agent) as first:
        mark = first.checkpoint("start")
        world.charge(first, "step")
    monkeypatch.setattr(SessionState, "_publish_absorbed", late)
    with world.open().session(world.agent, resumed_from=mark) as second:
        assert world.charge(second, "step") == {"order": world.key("step"), "cents": 50}
        assert noted == []
        gate.set()
        second.checkpoint("after")
        assert noted == [world.op_id("step")]
        assert isinstance(ledger.resume(world.agent, checkpoint="after", summary_generation=0), Resume)
        assert second.replay_forward() == []
    assert world.hits("step") == 1


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_what_was_done_before_is_found_by_its_transaction_as_well(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    """After a new effect nothing is looked up first. What a former process has done is absorbed all the same, and not run."""
    looked: list[str] = []
    look = EmbeddedAtOnce.look

    def noted(way: EmbeddedAtOnce, partition: Any, keys: Any) -> Any:
        looked.append(keys[0].key)
        return look(way, partition, keys)

    monkeypatch.setattr(EmbeddedAtOnce, "look", noted)
    with world.open().session(world.agent) as former:
        for name in ("one", "two"):
            former.attempt(key=world.key(name), **SEND).begin().commit(name)
    looked.clear()

    async def main() -> list[Any]:
        async with AsyncLedger.open(world.url) as aledger, aledger.session(world.agent) as session:
            new = await session.attempt(key=world.key("new"), **SEND).begin()
            await new.commit()
            done = [await session.attempt(key=world.key(name), **SEND).begin() for name in ("one", "two", "one")]
            await session.checkpoint("c")
            return [attempt.owned for attempt in (new, *done)]

    def here() -> list[Any]:
        with ledger.session(world.agent) as session:
            new = session.attempt(key=world.key("new"), **SEND).begin()
            new.commit()
            done = [session.attempt(key=world.key(name), **SEND).begin() for name in ("one", "two", "one")]
            session.checkpoint("c")
            return [attempt.owned for attempt in (new, *done)]

    owned = here() if face == "threads" else asyncio.run(main())
    assert owned == [True, False, False, False]
    # the first call of a session may repeat what was done before it; so may one behind a call that did
    one, two = world.op_id("one", "mail.send"), world.op_id("two", "mail.send")
    assert looked == [world.op_id("new", "mail.send"), two, one]
    absorbed = ledger.submit(ledger._engine.view.absorbed(world.agent)).result(PATIENCE_S)
    assert {op_id for op_id, _ in absorbed} == {one, two}
    assert [len(attempts_at(world, op_id)) for op_id in (one, two)] == [1, 1]
    assert world.preview("c").authorised
    complete(world)


# -- several threads of one session --------------------------------------------------------


def test_checkpoints_while_threads_work(world: World, ledger: Ledger) -> None:
    """No checkpoint knows an effect, own or absorbed, whose call had not returned when the checkpoint was called for."""
    tick, returned, asked = iter(range(1, 10**6)), dict[str, int](), dict[str, int]()
    with ledger.session(world.agent) as first:
        mark = first.checkpoint("start")
        for number in range(90):
            world.charge(first, f"old{number % 3}-{number // 3}")
    done = threading.Event()
    with world.open().session(world.agent, resumed_from=mark) as session:

        def work(thread: int) -> None:
            for number in range(60):
                name = f"{'old' if number % 2 else 'new'}{thread}-{number // 2}"
                world.charge(session, name)
                returned[world.op_id(name)] = next(tick)

        def save() -> None:
            while not done.is_set():
                asked[f"c{len(asked)}"] = next(tick)
                session.checkpoint(f"c{len(asked) - 1}")

        with ThreadPoolExecutor(4) as threads:
            saving = threads.submit(save)
            for working in [threads.submit(work, thread) for thread in range(3)]:
                working.result(PATIENCE_S)
            done.set()
            saving.result(PATIENCE_S)
        known = _numbers(world, ledger, session)
        facts = {c.checkpoint_id: c for c in ledger.checkpoints(world.agent) if c.checkpoint_id in asked}
        for name, checkpoint in facts.items():
            stands = checkpoint.mark
            assert stands is not None
            knows = {op for op, seq in known.items() if seq <= stands.seq and op not in checkpoint.fact.owned}
            assert {op: returned[op] for op in knows if returned[op] > asked[name]} == {}
        assert len(facts) >= 5
        assert session.state.open_operations() == ()
    complete(world)


def _numbers(world: World, ledger: Ledger, session: AgentSession) -> dict[str, int]:
    """op_id → the number of the fact of this session that says that it is done."""
    views = ledger.operations(world.agent)
    known = {
        view.operation.op_id: view.operation.settled.seq
        for view in views
        if view.operation.settled is not None and view.operation.settled.session_id == session.session_id
    }
    engine = ledger._engine
    seen = ledger.submit(engine.view.absorbed(world.agent)).result(PATIENCE_S)
    for (op_id, _), places in seen.items():
        for place in places:
            if place.epoch == session.epoch:
                known[op_id] = place.seq
    return known
