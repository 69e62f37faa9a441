"""Waiting until the projection of a partition moves on: one task a partition, woken by notices.

A notice can be lost, so it only says when to look. Each look reads the header once for everybody who waits:
    1. be subscribed, so that no change after the look goes unnoticed
    2. read the header, answer those whose wait is over
    3. sleep until the next notice that could end a wait, a second at most
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ledger.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..ledger.ports import Header

_LOOK_AGAIN_S = 1.0
_RETRY_S = 0.2


@dataclass(slots=True, eq=False)
class _Waiter:
    beyond: int
    answer: asyncio.Future[Header]
    first: Header | None = None

    def satisfied(self, header: Header) -> bool:
        """Whether to answer: it moved far enough, or became another projection than the one first seen."""
        if self.first is None:
            self.first = header
        changed = _condition(header) != _condition(self.first)
        return changed or header.applied_offset > self.beyond


def _condition(header: Header) -> tuple[str, bool, str]:
    return header.incarnation, header.opened, header.halted


class Watch:
    """Everybody in this process who waits for one partition.

    Args:
        subscribe: makes sure that notices of the partition arrive; returns early rather than late.
        read: the partition's header; raises StoreUnavailableError.
    """

    def __init__(self, subscribe: Callable[[], Awaitable[None]], read: Callable[[], Awaitable[Header]]) -> None:
        self._subscribe = subscribe
        self._read = read
        self._waiters: set[_Waiter] = set()
        self._signal = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._incarnation = ""

    async def wait(self, beyond: int, timeout_s: float) -> Header | None:
        """The header once it is beyond the offset or another projection's; None when the time is up."""
        waiter = _Waiter(beyond, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        self._signal.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(timeout_s):
                return await waiter.answer
        except TimeoutError:
            return None
        finally:
            self._waiters.discard(waiter)

    def notice(self, incarnation: str, applied_offset: int) -> None:
        """Somebody announced this state; look if it could end a wait."""
        due = any(applied_offset > waiter.beyond for waiter in self._waiters)
        if due or incarnation != self._incarnation:
            self._signal.set()

    def look(self) -> None:
        """Notices may have been lost: look at the next opportunity."""
        self._signal.set()

    async def close(self) -> None:
        """Stop looking; those who still wait get their time-out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiters:
            self._signal.clear()
            pause = _LOOK_AGAIN_S
            try:
                await self._subscribe()
                self._answer(await self._read())
            except StoreUnavailableError:
                pause = _RETRY_S
            if not self._waiters:
                return
            try:
                async with asyncio.timeout(pause):
                    await self._signal.wait()
            except TimeoutError:
                continue

    def _answer(self, header: Header) -> None:
        self._incarnation = header.incarnation
        for waiter in [w for w in self._waiters if w.satisfied(header)]:
            self._waiters.discard(waiter)
            if not waiter.answer.done():
                waiter.answer.set_result(header)
