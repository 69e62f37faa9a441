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
            async with self._connecting:
                await self._send_subscription(channel)
            async with asyncio.timeout(_CONFIRM_S):
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
                message = await pubsub.get_message(timeout=None)
            except (RedisError, OSError):
                # The client subscribes again by itself when it connects; what came in between is lost.
                for confirmed in self._confirmed.values():
                    confirmed.clear()
                self._lost()
                await asyncio.sleep(_RECONNECT_S)
                continue
            if message is not None:
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        if message["type"] == "subscribe":
            self._confirmed[channel].set()
        elif message["type"] == "message":
            self._handlers[channel](message["data"])

    def _lost(self) -> None:
        for handler in self._handlers.values():
            handler(b"")
