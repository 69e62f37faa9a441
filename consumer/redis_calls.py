"""What readers ask of Redis: scripts and a few plain commands, on one server or on a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import NoScriptError

from .redis_client import connect_cluster, connected, is_cluster
from .redis_line import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio.cluster import RedisCluster

    from .redis_line import Word
    from .scripts import Call, Reply


class Calls(Protocol):
    """A store's answers. Every method raises RedisError or OSError."""

    line: Line
    """The connection on which announcements come."""

    async def run(self, call: Call) -> Reply:
        """What a script answers; it is loaded first where the server does not have it."""
        ...

    async def each(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """What these commands answer, each by itself."""
        ...

    async def memory(self) -> dict[str, Any]:
        """The answer to INFO MEMORY; by node for a cluster."""
        ...

    async def close(self) -> None:
        """Release the connections."""
        ...


def open_calls(url: str, told: Callable[[list[Any]], None], broken: Callable[[], None]) -> Calls:
    """For the server or cluster that the URL names; connects at the first call."""
    return _OnCluster(url, told, broken) if is_cluster(url) else _OnServer(url, told, broken)


class _OnServer:
    def __init__(self, url: str, told: Callable[[list[Any]], None], broken: Callable[[], None]) -> None:
        self.line = Line(lambda: connected(url), told, broken)

    async def run(self, call: Call) -> Reply:
        count = str(len(call.keys))
        try:
            return await self.line.ask("EVALSHA", call.script.sha, count, *call.keys, *call.args)
        except NoScriptError:
            return await self.line.ask("EVAL", call.script.text, count, *call.keys, *call.args)

    async def each(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        return await asyncio.gather(*(self.line.ask(*words) for words in commands))

    async def memory(self) -> dict[str, Any]:
        told = (await self.line.ask("INFO", "memory")).decode()
        return dict(line.split(":", 1) for line in told.splitlines() if ":" in line)

    async def close(self) -> None:
        await self.line.close()


class _OnCluster:
    """The client library knows where a key is; announcements come on any node."""

    def __init__(self, url: str, told: Callable[[list[Any]], None], broken: Callable[[], None]) -> None:
        self._client: RedisCluster = connect_cluster(url)

        async def connect() -> Any:
            _ = await self._client.initialize()
            node = self._client.get_random_primary_node()
            return await connected(url, node.host, int(node.port))

        self.line = Line(connect, told, broken)

    async def run(self, call: Call) -> Reply:
        words = (*call.keys, *call.args)
        try:
            return await self._client.evalsha(call.script.sha, len(call.keys), *words)
        except NoScriptError:
            return await self._client.eval(call.script.text, len(call.keys), *words)

    async def each(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        if not commands:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for words in commands:
            _ = pipeline.execute_command(*words)
        return list(await pipeline.execute())

    async def memory(self) -> dict[str, Any]:
        return dict(await self._client.info("memory", target_nodes="primaries"))

    async def close(self) -> None:
        await self.line.close()
        await self._client.aclose()
