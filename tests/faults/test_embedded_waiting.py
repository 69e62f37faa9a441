"""Calls of the embedded store that wait, are cancelled, or meet a lock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from embedded_fixtures import EFFECTS, claim, ledger_at, log_of

from fencepost.ledger import embedded_file
from fencepost.ledger.embedded_reader import Reader
from fencepost.ledger.embedded_threads import Answers, Reply
from fencepost.ledger.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context
    from pathlib import Path


def test_waiting_ends_when_another_process_writes_or_the_time_is_up(tmp_path: Path) -> None:
    """A second store on the file stands for the other process: only the file connects them."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as here, ledger_at(path) as there:
            started = time.monotonic()
            header = await here.projection.advanced(EFFECTS, 0, timeout_s=0.2)
            assert header.applied_offset == 0
            assert 0.15 < time.monotonic() - started < 5
            waiting = asyncio.ensure_future(here.projection.advanced(EFFECTS, 0, timeout_s=30))
            own = asyncio.ensure_future(there.projection.advanced(EFFECTS, 0, timeout_s=30))
            gone = asyncio.ensure_future(here.projection.advanced(EFFECTS, 99, timeout_s=30))
            await asyncio.sleep(0.05)
            gone.cancel()
            await there.log.publish(EFFECTS, claim("a", "1"))
            async with asyncio.timeout(5):
                assert (await waiting).applied_offset == (await own).applied_offset == 1

    asyncio.run(run())


def test_what_this_process_committed_needs_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a record of one's own does not read the file; for another's it does, and a closed store answers nothing."""
    looks: list[int] = []
    wait = Reader.wait

    def noted(self: Reader, *arguments: Any) -> None:
        looks.append(arguments[1])
        wait(self, *arguments)

    monkeypatch.setattr(Reader, "wait", noted)

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as here, ledger_at(path) as there:
            assert await here.log.publish(EFFECTS, claim("a", "1")) == 0
            assert (await here.projection.advanced(EFFECTS, 0, timeout_s=5)).applied_offset == 1
            assert looks == []
            assert await there.log.publish(EFFECTS, claim("b", "1")) == 1
            assert (await here.projection.advanced(EFFECTS, 1, timeout_s=5)).applied_offset == 2
            assert looks == [1]
            await here.close()
            with pytest.raises(StoreUnavailableError, match="closed"):
                await here.projection.advanced(EFFECTS, 0, timeout_s=5)

    asyncio.run(run())


def test_calls_of_one_commit_are_answered_together(tmp_path: Path) -> None:
    """However many calls share a commit, their loop is woken once; each gets its own answer, and a cancelled one none."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            loop = asyncio.get_running_loop()
            replies = [Reply[int]() for _ in range(50)]
            replies[3].future.cancel()
            answers = Answers()
            for number, reply in enumerate(replies):
                answers.give(reply, number)
            wakes: list[str] = []
            post = loop.call_soon_threadsafe

            def noted(callback: Callable[..., Any], *arguments: Any, context: Context | None = None) -> asyncio.Handle:
                wakes.append(callback.__module__)
                return post(callback, *arguments, context=context)

            loop.call_soon_threadsafe = noted  # type: ignore[method-assign, assignment]
            await asyncio.to_thread(answers.send)
            told = [await reply.future for number, reply in enumerate(replies) if number != 3]
            assert told == [number for number in range(50) if number != 3]
            assert wakes.count(Answers.__module__) == 1
            loop.call_soon_threadsafe = post  # type: ignore[method-assign]
            assert sorted(
                await asyncio.gather(*(store.log.publish(EFFECTS, claim(f"o{i}", "a")) for i in range(20)))
            ) == list(range(20))

    asyncio.run(run())


def test_closing_ends_every_wait_and_refuses_what_comes_later(tmp_path: Path) -> None:
    """Nobody is left hanging; what was published before is written."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            waiting = asyncio.ensure_future(store.projection.advanced(EFFECTS, 99, timeout_s=60))
            publishing = [asyncio.ensure_future(store.log.publish(EFFECTS, claim(f"o{i}", "a"))) for i in range(20)]
            await asyncio.sleep(0)
            await store.close()
            assert sorted(await asyncio.gather(*publishing)) == list(range(20))
            with pytest.raises(StoreUnavailableError, match="closed"):
                await waiting
            with pytest.raises(StoreUnavailableError, match="closed"):
                await store.log.publish(EFFECTS, claim("a", "1"))
            with pytest.raises(StoreUnavailableError, match="closed"):
                await store.projection.read(EFFECTS, [])

    asyncio.run(run())


def test_a_cancelled_publish_harms_nobody(tmp_path: Path) -> None:
    """It may be written all the same, and the others are."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            tasks = [asyncio.ensure_future(store.log.publish(EFFECTS, claim(f"o{i}", "a"))) for i in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            offsets = {answer for answer in answers if isinstance(answer, int)}
            assert len(offsets) >= 10
            assert offsets <= {entry.offset for entry in log_of(store)}

    asyncio.run(run())


def test_a_lock_that_is_held_too_long_is_an_error_that_can_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certainly not written; and the event loop runs on meanwhile."""
    monkeypatch.setattr(embedded_file, "BUSY_TIMEOUT_S", 0.4)
    path = tmp_path / "ledger.db"

    async def longest_pause(until: asyncio.Future[int]) -> float:
        longest, last = 0.0, time.monotonic()
        while not until.done():
            await asyncio.sleep(0.005)
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        return longest

    async def run() -> None:
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "1"))
            with contextlib.closing(apsw.Connection(str(path))) as other:
                other.execute("BEGIN IMMEDIATE")
                publishing = asyncio.ensure_future(store.log.publish(EFFECTS, claim("a", "2")))
                assert await longest_pause(publishing) < 0.3
                assert (await store.projection.read(EFFECTS, [])).header.applied_offset == 1
                with pytest.raises(StoreUnavailableError) as caught:
                    await publishing
                assert caught.value.retryable
            assert await store.log.publish(EFFECTS, claim("a", "2")) == 1

    asyncio.run(run())
