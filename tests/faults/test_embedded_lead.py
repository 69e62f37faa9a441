"""Who carries out a transaction of the embedded store: the caller's own thread, or the writing one; and what an interrupted one leaves."""

from __future__ import annotations

import asyncio
import functools
import itertools
import linecache
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import PATIENCE_S, World, until
from embedded_fixtures import EFFECTS, assert_sound, claim, ledger_at
from faults.short_ways import SEND, complete, ledger, world, writer
from faults.short_ways import Writing as Held

from fencepost.ledger import EffectClass
from fencepost.ledger.errors import StoreClosedError
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from fencepost.ledger import AgentSession, Ledger
    from fencepost.ledger.embedded_store import EmbeddedStore
    from fencepost.ledger.history import Record
    from fencepost.ledger.ports import Writing

__all__ = ["ledger", "world", "writer"]  # fixtures
WRITER = "fencepost-writer"
STORE = ("ledger/embedded_", "ledger/at_once.py")
EVERY = 3


def name_of_thread(_: object) -> str:
    return threading.current_thread().name


def publish(record: Record, writing: Writing) -> int:
    return writing.publish(EFFECTS, record)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What it returns, in a thread that is not the main one."""
    with ThreadPoolExecutor(1, thread_name_prefix="caller") as one:
        return one.submit(work).result(PATIENCE_S)


# -- whose thread --------------------------------------------------------------------------


def test_a_thread_without_company_writes_itself(tmp_path: Path) -> None:
    """Its work is done in itself; that of the main thread, and that of a loop, is done by the writing thread."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            assert await store.at_once.write(name_of_thread) == WRITER
            assert store.at_once.write_here(name_of_thread) == WRITER
            told = await asyncio.to_thread(in_a_thread, lambda: store.at_once.write_here(name_of_thread))
            assert told.startswith("caller")

    asyncio.run(run())


def test_in_company_one_thread_writes_for_all(world: World, ledger: Ledger, writer: Held) -> None:
    """What comes while somebody writes shares the next transaction, in the writing thread; alone again, each for itself."""
    store: Any = ledger._engine.store

    def told() -> str:
        name: str = store.at_once.write_here(name_of_thread)
        return name

    writer.hold()
    with ThreadPoolExecutor(4) as four:
        running = [four.submit(told) for _ in range(4)]
        writer.wait_for(4)
        writer.release()
        assert [one.result(PATIENCE_S) for one in running] == [WRITER] * 4
    assert [in_a_thread(told) for _ in range(2)][-1] != WRITER


def test_threads_and_loops_write_at_the_same_time(tmp_path: Path) -> None:
    """Records of both are all there, in order, and the projection is what the log says."""
    path = tmp_path / "ledger.db"

    async def run() -> None:
        async with ledger_at(path) as store:

            def in_this_thread(name: str) -> None:
                for number in range(30):
                    record = claim(f"op{number % 7}", f"{name}.{number}")
                    store.at_once.write_here(functools.partial(publish, record))

            async def on_this_loop(name: str) -> None:
                for number in range(30):
                    await store.log.publish(EFFECTS, claim(f"op{number % 7}", f"{name}.{number}"))

            threads = [asyncio.to_thread(in_this_thread, f"t{number}") for number in range(3)]
            await asyncio.gather(*threads, *(on_this_loop(f"l{number}") for number in range(3)))
        assert len(await assert_sound(path)) == 180

    asyncio.run(run())


# -- closing -------------------------------------------------------------------------------


def test_a_thread_that_writes_itself_is_waited_for(tmp_path: Path) -> None:
    """Closing waits for its transaction; what comes later is refused, and no connection is left open."""
    inside, go_on = threading.Event(), threading.Event()

    def stand(_: object) -> str:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return "done"

    async def run(store: EmbeddedStore) -> None:
        standing = asyncio.create_task(asyncio.to_thread(store.at_once.write_here, stand))
        assert await asyncio.to_thread(inside.wait, PATIENCE_S)
        closing = asyncio.create_task(store.close())
        await asyncio.to_thread(until, lambda: store.log._writer._closed)
        go_on.set()
        await closing
        assert await standing == "done"
        with pytest.raises(StoreClosedError):
            await asyncio.to_thread(store.at_once.write_here, stand)
        assert store.log._writer._connection is None

    async def main() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            await run(store)

    asyncio.run(main())


def test_who_was_about_to_write_when_it_closed_is_refused(tmp_path: Path) -> None:
    """A thread that waits for the lead meanwhile opens no connection any more."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            writer = store.log._writer
            writer._has_company = lambda: False  # type: ignore[method-assign] # as it was a moment ago
            with writer._lead:
                waiting = asyncio.create_task(asyncio.to_thread(store.at_once.write_here, name_of_thread))
                writer._closed = True
            with pytest.raises(StoreClosedError):
                await waiting
            assert writer._connection is None

    asyncio.run(run())


# -- interrupted ---------------------------------------------------------------------------


class Interrupting:
    """Puts an exception into this thread at the n-th line of the store that it comes to.

    Not where a `with` ends: there a lock is let go of, and the interpreter comes to no exception in between.
    """

    def __init__(self, at: int = 0) -> None:
        self._lines = 0
        self.raised = False
        self._at = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not any(part in frame.f_code.co_filename for part in STORE):
            return self if event == "call" else None
        if event == "line" and not _line_of(frame).startswith("with "):
            self._lines += 1
            if self._lines == self._at:
                self.raised = True
                raise KeyboardInterrupt
        return self

    def during(self, work: Callable[[], Any]) -> None:
        """Have it interrupted; `work` calls `sys.settrace` as soon as it may be."""
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)


def test_interrupted_between_any_two_lines_of_its_own_transaction(world: World, ledger: Ledger) -> None:
    """Nothing stays claimed, whoever writes next is not disturbed, and the projection is what the log says."""
    with ledger.session(world.agent) as session, ledger.session(f"other-{world.agent}") as other:

        def begin(name: str, interrupting: Interrupting) -> None:
            in_a_thread(lambda: interrupting.during(lambda: begin_and_fail(session, world.key(name), interrupting)))

        begin("warm", Interrupting())
        for at in itertools.count(1, EVERY):
            begin(f"op{at}", interrupting := Interrupting(at))
            if not interrupting.raised:
                break
            begun = in_a_thread(functools.partial(begins, other, world.key(f"op{at}")))
            assert begun, f"interrupted at line {at}, it stays claimed"
        assert at > 100
        session.checkpoint("c")
        assert session.state.open_attempts == {}
    complete(world)
    asyncio.run(sound(world))


def test_interrupted_between_any_two_lines_while_it_commits(world: World, ledger: Ledger) -> None:
    """The effect has happened, and is committed, once, whatever became of the first try."""
    with ledger.session(world.agent) as session:
        interrupting = Interrupting()

        @session.effect("mail.send", kind=EffectClass.IRREVERSIBLE, key=world.key)
        def send(name: str) -> str:
            world.hit(name)
            sys.settrace(interrupting)
            return name

        for at in itertools.count(0, EVERY):
            interrupting = Interrupting(at)
            in_a_thread(functools.partial(interrupting.during, functools.partial(send, f"op{at}")))
            operation = world.status(world.op_id(f"op{at}", "mail.send"), Status.COMMITTED)
            assert (operation.anomalies, len(operation.attempts), world.hits(f"op{at}")) == ([], 1, 1)
            if at and not interrupting.raised:
                break
        assert at > 100
    complete(world)
    asyncio.run(sound(world))


def _line_of(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def begin_and_fail(session: AgentSession, key: str, interrupting: Interrupting) -> None:
    """Begin an effect, and withdraw it at once: what is of interest is what an interruption leaves."""
    sys.settrace(interrupting)
    session.attempt(key=key, **SEND).begin().fail("not wanted")


def begins(other: AgentSession, key: str) -> bool:
    """Whether another session owns it now, or as soon as it was withdrawn."""
    begun = other.attempt(key=key, wait_s=10, **SEND).begin()
    if begun.owned:
        begun.commit(1)
    return begun.owned


async def sound(world: World) -> None:
    store: Any = world.ledger._engine.store
    world.ledger.close()
    await assert_sound(store.path)
