"""The one pub/sub connection of a process: which partitions moved."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from .redis_client import connect_listener, unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio.client import PubSub

_CONFIRM_S = 1.0
_SILENCE_S = 2.0  # after it the server is asked whether it is there, and has as long again to answer
_RECONNECT_S = 0.1


class Notices:
    """Listens on channels and hands each message to the channel's handler.

    Args:
        url: of the projection store.
        locate: host and port of a node to listen on, for a cluster; ("", 0) otherwise.
    """

    def __init__(self, url: str, locate: Callable[[], Awaitable[tuple[str, int]]]) -> None:
        self._url = url
        self._locate = locate
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}
        self._connecting = asyncio.Lock()

    async def subscribe(self, channel: str, handler: Callable[[bytes], None]) -> None:
        """Return when messages of the channel arrive.

        `handler` is called with each message, and with b"" when messages may have been lost.

        Raises StoreUnavailableError; trying again is safe.
        """
        if channel in self._confirmed and self._confirmed[channel].is_set():
            return
        self._handlers[channel] = handler
        self._confirmed.setdefault(channel, asyncio.Event())
        try:
            async with asyncio.timeout(_CONFIRM_S):
                async with self._connecting:
                    await self._send_subscription(channel)
                await self._confirmed[channel].wait()
        except (RedisError, OSError) as error:
            raise unavailable(self._url, error) from error

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._pubsub is not None:
            with suppress(RedisError, OSError):
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]
                await self._client.aclose()

    async def _send_subscription(self, channel: str) -> None:
        if self._pubsub is None:
            host, port = await self._locate()
            self._client = connect_listener(self._url, host, port)
            self._pubsub = self._client.pubsub()
        await self._pubsub.subscribe(channel)
        if self._task is None:
            self._task = asyncio.create_task(self._listen(self._pubsub))

    async def _listen(self, pubsub: PubSub) -> None:
        while True:
            try:
                self._take(await self._next(pubsub))
            except (RedisError, OSError):
                # The client subscribes again by itself when it connects; what came in between is lost.
                for confirmed in self._confirmed.values():
                    confirmed.clear()
                self._lost()
                await self._disconnect(pubsub)
                await asyncio.sleep(_RECONNECT_S)

    async def _next(self, pubsub: PubSub) -> dict[str, Any]:
        """The next message. Raises RedisError or OSError also when the server does not say that it is there.

        A network that has forgotten a connection says nothing of it: without the question nothing would ever be heard again.
        """
        async with asyncio.timeout(3 * _SILENCE_S):  # connecting anew may hang as well
            message: dict[str, Any] | None = await pubsub.get_message(timeout=_SILENCE_S)
            if message is None:
                await pubsub.ping()
                message = await pubsub.get_message(timeout=_SILENCE_S)
        if message is None:
            raise TimeoutError
        return message

    @staticmethod
    async def _disconnect(pubsub: PubSub) -> None:
        with suppress(RedisError, OSError):
            connection: Any = pubsub.connection  # its type says that there is never one
            if connection is not None:
                await connection.disconnect(nowait=True)

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._confirmed[message["channel"].decode()].set()
        elif message["type"] == "message":
            self._handlers[message["channel"].decode()](message["data"])

    def _lost(self) -> None:
        for handler in self._handlers.values():
            handler(b"")
