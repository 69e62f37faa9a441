"""One connection to Redis that all calls and subscriptions of an event loop share.

What is asked in one turn of the loop leaves in one write, and the answers come back in its order: nobody waits until
another's answer is read. The client library connects, authenticates, and encrypts; then its streams are set aside,
since for each call they cost several times of what Redis does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import hiredis
from redis.exceptions import ConnectionError as BrokenError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio.connection import AbstractConnection

Word = str | bytes | int

_pack: Any = hiredis.pack_command  # its type says that a command is one word
_MORE = object()
_LOOK_S = 1.0
_ASK_AFTER = 2
"""Looks without a sound from the server, until it is asked whether it is there."""
_GONE_AFTER = 5
"""Looks without a sound while an answer is due, until the connection counts as broken. Looks and not seconds: a process
that was stopped meanwhile has not heard what may have come."""
_PAUSES_S = (0.02, 0.1)
_PING: bytes = _pack(("PING",))


def _refusal(text: str) -> ResponseError:
    if text.startswith("NOSCRIPT"):
        return NoScriptError(text)
    return ReadOnlyError(text) if "READONLY" in text else ResponseError(text)


class _Link(asyncio.Protocol):
    """One connection, from its handshake to its end.

    Args:
        connection: connected by the client library; kept until the end, since its streams close with it.
        told: gets what the server says without being asked.
        ended: called once.
    """

    def __init__(
        self, connection: AbstractConnection, told: Callable[[list[Any]], None], ended: Callable[[_Link], None]
    ) -> None:
        self.connection = connection
        self._told = told
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_refusal, notEnoughData=_MORE)
        self._answers: deque[asyncio.Future[Any]] = deque()
        self._leaving: list[bytes] = []
        self._heard = True
        self._silent = 0
        writer = connection._writer  # noqa: SLF001 - the library has no public name for the transport that it opened
        if writer is None:
            raise BrokenError("it was closed at once")
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """The answer to a command that has one."""
        future = self._loop.create_future()
        self._answers.append(future)
        self.tell(packed)
        return future

    def tell(self, packed: bytes) -> None:
        """Send a command whose answer, if any, comes unasked."""
        if not self._leaving:
            self._loop.call_soon(self._leave)
        self._leaving.append(packed)

    def _leave(self) -> None:
        self._transport.write(b"".join(self._leaving))
        self._leaving.clear()

    def data_received(self, data: bytes) -> None:
        """Hand out the answers and announcements that are complete."""
        self._heard = True
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MORE:
                if isinstance(reply, hiredis.PushNotification):
                    self._told(reply)
                    continue
                _answer(self._answers.popleft(), reply)
                if isinstance(reply, ReadOnlyError):
                    self.cut()  # it was a primary once; whoever connects anew finds the one of today
        except (hiredis.HiredisError, IndexError):  # not what a Redis says: there is no way to go on in it
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits hears of it."""
        self._timer.cancel()
        self._ended(self)
        for future in self._answers:
            _answer(future, BrokenError(f"the connection ended: {exc or 'closed by the server'}"))
        self._answers.clear()

    def cut(self) -> None:
        """End the connection; what was asked is not answered any more."""
        self._transport.abort()

    def _look(self) -> None:
        self._silent = 0 if self._heard else self._silent + 1
        self._heard = False
        if self._answers and self._silent >= _GONE_AFTER:
            self.cut()
            return
        if self._silent >= _ASK_AFTER and not self._answers:
            self._silent = 0
            _ = self.ask(_PING)
        self._timer = self._loop.call_later(_LOOK_S, self._look)


def _answer(future: asyncio.Future[Any], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
        future.exception()  # a question that nobody waits for any more is no error
    else:
        future.set_result(reply)


class Line:
    """A connection that is made anew whenever it is needed and not there.

    Args:
        connect: makes and connects one; raises RedisError or OSError.
        told: gets what the server announces.
        broken: called when the connection ended: announcements may have been missed.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AbstractConnection]],
        told: Callable[[list[Any]], None],
        broken: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._told = told
        self._broken = broken
        self._link: _Link | None = None
        self._former: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None

    async def ask(self, *words: Word) -> Any:
        """The answer to a command that may be given twice: after a broken connection it is asked again, twice at most.

        Raises RedisError, OSError.
        """
        packed: bytes = _pack(words)
        for pause_s in (*_PAUSES_S, None):
            try:
                return await (self._link or await self._linked()).ask(packed)
            except (BrokenError, OSError):
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)
        raise AssertionError("not reached")

    async def tell(self, *words: Word) -> None:
        """Send a command that is answered by an announcement. Raises RedisError, OSError when it cannot be sent."""
        (self._link or await self._linked()).tell(_pack(words))

    async def close(self) -> None:
        """End the connection; what is still asked fails."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._link is not None:
            self._link.cut()
            self._former, self._link = self._link, None
        await self._put_away()

    async def _linked(self) -> _Link:
        """The connection; all who want one wait for the same attempt."""
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._made())
            self._connecting.add_done_callback(self._tried)
        return await asyncio.shield(self._connecting)

    def _tried(self, attempt: asyncio.Task[_Link]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # if nobody waits for it any more, it is no error

    async def _made(self) -> _Link:
        await self._put_away()
        self._link = _Link(await self._connect(), self._told, self._ended)
        return self._link

    def _ended(self, link: _Link) -> None:
        if self._link is link:
            self._former, self._link = link, None
            self._broken()

    async def _put_away(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            try:
                await former.connection.disconnect(nowait=True)
            except (RedisError, OSError):
                return
