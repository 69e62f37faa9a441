"""Waiting until the projection of a partition moves on: one task a partition, woken by notices.

Each look reads the header once for everybody who waits:
    1. be subscribed, so that no change after the look goes unnoticed
    2. read the header, answer those whose wait is over
    3. sleep until something else than an advance is announced, a second at most
An advance of the projection that was read is an answer by itself, until the next look is due: who waits
reads what he waits for, with its own header, anyway. A header that somebody reads meanwhile is a look too. A notice can be lost; then the next look finds it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..ledger.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ..ledger.ports import Header

_LOOK_AGAIN_S = 1.0
_BELIEVED_S = 0.9  # less than the time to the next look
_RETRY_S = 0.2
_REMEMBERED = 2_000


@dataclass(slots=True, eq=False)
class _Waiter:
    beyond: int
    answer: asyncio.Future[Header | None]
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
        self._hears = False
        self._known: Header | None = None
        self._known_at = 0.0
        self._noticed: tuple[str, int] | None = None
        self._fingerprints: dict[bytes, int] = {}  # announced of this incarnation → at which offset; oldest first

    async def wait(self, beyond: int, timeout_s: float) -> Header | None:
        """The header once it is beyond the offset or another projection's; None when the time is up.

        While notices arrive without a break, what they said last is known, and nothing needs to be read to begin.
        """
        known = self._believed()
        if known is not None and known.applied_offset > beyond:
            return known
        loop = asyncio.get_running_loop()
        waiter = _Waiter(beyond, loop.create_future(), known)
        self._waiters.add(waiter)
        if known is None:
            self._signal.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        timer = loop.call_later(timeout_s, _answer, waiter, None)
        try:
            return await waiter.answer
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def told(self, fingerprint: bytes, beyond: int) -> bool:
        """Whether a document with this fingerprint was announced beyond an offset, in the projection that `wait` answered for."""
        return self._fingerprints.get(fingerprint, -1) > beyond

    def notice(self, incarnation: str, applied_offset: int, fingerprints: Sequence[bytes] = ()) -> None:
        """Somebody announced this state: an answer if it is the projection that was read; look otherwise."""
        self._noticed = (incarnation, applied_offset)
        if incarnation == self._incarnation:
            self._remember(fingerprints, applied_offset)
        due = any(applied_offset > waiter.beyond for waiter in self._waiters)
        known = self._believed()
        if known is not None and known.incarnation == incarnation:
            self._known = replace(known, applied_offset=max(applied_offset, known.applied_offset))
            if due:
                self._answer(self._known)
        elif due or incarnation != self._incarnation:
            self._known = None
            self._signal.set()

    def _remember(self, fingerprints: Sequence[bytes], applied_offset: int) -> None:
        self._fingerprints.update(dict.fromkeys(fingerprints, applied_offset))
        while len(self._fingerprints) > _REMEMBERED:
            del self._fingerprints[next(iter(self._fingerprints))]

    def saw(self, header: Header) -> None:
        """Somebody has just read this header: as good as a look, while notices arrive without a break."""
        noticed = self._noticed or (header.incarnation, 0)
        if not self._hears or not header.opened or header.halted:
            return
        if header.incarnation == self._incarnation == noticed[0]:
            known = self._known.applied_offset if self._known is not None else 0
            applied_offset = max(header.applied_offset, noticed[1], known)
            self._known, self._known_at = replace(header, applied_offset=applied_offset), time.monotonic()
            self._answer(self._known)

    def look(self) -> None:
        """Notices may have been lost: look at the next opportunity."""
        self._hears = False
        self._known = None
        self._fingerprints.clear()
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
                if self._believed() is None:
                    await self._subscribe()
                    self._hears = True
                    self._noticed = None
                    self._take(await self._read())
            except StoreUnavailableError:
                pause = _RETRY_S
            if not self._waiters:
                return
            try:
                async with asyncio.timeout(pause):
                    await self._signal.wait()
            except TimeoutError:
                continue

    def _take(self, header: Header) -> None:
        """What was read, with what was announced since the read began."""
        if self._noticed is not None and self._noticed[0] == header.incarnation:
            header = replace(header, applied_offset=max(header.applied_offset, self._noticed[1]))
        if self._incarnation != header.incarnation:
            self._incarnation = header.incarnation
            self._fingerprints.clear()
        self._known, self._known_at = header, time.monotonic()
        self._answer(header)

    def _believed(self) -> Header | None:
        """The state that is known without a look; None when there is a reason to look."""
        known = self._known
        if known is None or not known.opened or known.halted or time.monotonic() - self._known_at > _BELIEVED_S:
            return None
        return known

    def _answer(self, header: Header) -> None:
        for waiter in [w for w in self._waiters if w.satisfied(header)]:
            self._waiters.discard(waiter)
            _answer(waiter, header)


def _answer(waiter: _Waiter, header: Header | None) -> None:
    """Tell a waiter the header, or None when its time is up; only the first counts."""
    if not waiter.answer.done():
        waiter.answer.set_result(header)
