"""What the projection store announces: which partitions moved. Each message goes to its channel's handler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from .redis_client import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .redis_line import Line

_CONFIRM_S = 1.0


class Notices:
    """Channels and their handlers, on a connection that may break.

    Args:
        url: of the projection store.
        line: hands everything announced to `take`, and calls `lost` when it broke.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}

    async def subscribe(self, line: Line, channel: str, handler: Callable[[bytes], None]) -> None:
        """Return when messages of the channel arrive.

        `handler` is called with each message, and with b"" when messages may have been lost: then subscribe again.

        Raises StoreUnavailableError, TimeoutError; trying again is safe.
        """
        confirmed = self._confirmed.setdefault(channel, asyncio.Event())
        if confirmed.is_set():
            return
        self._handlers[channel] = handler
        try:
            async with asyncio.timeout(_CONFIRM_S):
                await line.tell("SUBSCRIBE", channel)
                await confirmed.wait()
        except (RedisError, OSError) as error:
            raise unavailable(self._url, error) from error

    def take(self, message: list[Any]) -> None:
        """Something was announced."""
        kind, channel = message[0], message[1].decode()
        if kind == b"subscribe":
            self._confirmed[channel].set()
        elif kind == b"message":
            self._handlers[channel](message[2])

    def lost(self) -> None:
        """The connection broke: nothing is heard until the next subscription."""
        for confirmed in self._confirmed.values():
            confirmed.clear()
        for handler in list(self._handlers.values()):
            handler(b"")
