"""The connection that readers share: one write a turn, answers in order, and what happens when it breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from fencepost.consumer import redis_client, redis_line
from fencepost.consumer.redis_client import connected
from fencepost.consumer.redis_line import Line

if TYPE_CHECKING:
    from services import StartRedis

SOON_S = 20.0


class User:
    """Somebody with a line, and what was announced to him."""

    def __init__(self, url: str) -> None:
        self.connections = 0
        self.told: list[list[Any]] = []
        self.broken = 0
        self.heard = asyncio.Event()
        self._url = url
        self.line = Line(self._connect, self._take, self._lost)

    async def _connect(self) -> Any:
        self.connections += 1
        return await connected(self._url)

    def _take(self, message: list[Any]) -> None:
        self.told.append(message)
        self.heard.set()

    def _lost(self) -> None:
        self.broken += 1
        self.heard.set()

    async def hears(self) -> None:
        async with asyncio.timeout(SOON_S):
            await self.heard.wait()
        self.heard.clear()


def use(url: str, work: Callable[[User], Awaitable[None]]) -> None:
    async def run() -> None:
        user = User(url)
        try:
            await work(user)
        finally:
            await user.line.close()

    asyncio.run(run())


def pings(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))


def test_answers_come_in_order(redis_url: str) -> None:
    """Many ask at once on one connection, and each gets his own answer, errors as well."""

    async def work(user: User) -> None:
        asked = [user.line.ask("ECHO", f"{number}") for number in range(500)]
        wrong = asyncio.create_task(user.line.ask("NOSUCHCOMMAND"))
        assert await asyncio.gather(*asked) == [b"%d" % number for number in range(500)]
        with pytest.raises(ResponseError, match="unknown command"):
            await wrong
        with pytest.raises(NoScriptError):
            await user.line.ask("EVALSHA", "0" * 40, "0")
        assert await user.line.ask("ECHO", "x" * 3_000_000) == b"x" * 3_000_000
        assert user.connections == 1

    use(redis_url, work)


def test_who_gives_up_disturbs_nobody(redis_url: str) -> None:
    """An answer that nobody waits for any more is taken off the line all the same."""

    async def work(user: User) -> None:
        await user.line.ask("PING")
        gone = asyncio.create_task(user.line.ask("ECHO", "gone"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stays = asyncio.create_task(user.line.ask("ECHO", "stays"))
        gone.cancel()
        assert await stays == b"stays"
        assert await user.line.ask("ECHO", "next") == b"next"

    use(redis_url, work)


def test_announcements_come_beside_answers(redis_url: str) -> None:
    """What is subscribed to comes on the same connection and is no answer to anything."""

    async def work(user: User) -> None:
        await user.line.tell("SUBSCRIBE", "line-test")
        await user.hears()
        asked = [user.line.ask("ECHO", f"{number}") for number in range(50)]
        published = user.line.ask("PUBLISH", "line-test", b"\x00news")
        assert (await asyncio.gather(*asked, published))[-1] == 1
        while len(user.told) < 2:
            await user.hears()
        assert user.told == [[b"subscribe", b"line-test", 1], [b"message", b"line-test", b"\x00news"]]

    use(redis_url, work)


def test_a_broken_connection_is_made_anew(private_redis: StartRedis) -> None:
    """Whoever asks after a break is asked for again by himself; the break is told once, and one new connection serves all."""
    server = private_redis()

    async def work(user: User) -> None:
        await user.line.ask("PING")
        with redis.Redis.from_url(server.url) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        await user.hears()
        assert await asyncio.gather(*(user.line.ask("ECHO", f"{n}") for n in range(20))) == [
            b"%d" % n for n in range(20)
        ]
        assert (user.broken, user.connections) == (1, 2)

    use(server.url, work)


def test_a_server_that_is_gone(private_redis: StartRedis) -> None:
    """Asking fails within a moment while nobody listens, for all who ask, and works once somebody does."""
    server = private_redis()

    async def work(user: User) -> None:
        await user.line.ask("PING")
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(SOON_S):
            found = await asyncio.gather(*(user.line.ask("PING") for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, (RedisError, OSError)) for one in found)
        assert user.connections <= 1 + 3
        await asyncio.to_thread(server.restart)
        assert await user.line.ask("PING") == b"PONG"

    use(server.url, work)


def test_a_silent_connection_counts_as_broken(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that swallows everything is noticed, whether somebody waits for an answer or only for announcements."""
    monkeypatch.setattr(redis_line, "_LOOK_S", 0.05)

    async def work(user: User) -> None:
        for waiting in (True, False):
            await user.line.ask("PING")
            link = user.line._link
            assert link is not None
            assert isinstance(link._transport, asyncio.Transport)
            link._transport.pause_reading()
            user.heard.clear()
            if waiting:
                assert await asyncio.wait_for(user.line.ask("ECHO", "x"), SOON_S) == b"x"
            else:
                await user.hears()
        assert user.broken == 2

    use(redis_url, work)


def test_an_idle_connection_is_kept(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers when it is asked whether it is there is not given up."""
    monkeypatch.setattr(redis_line, "_LOOK_S", 0.01)

    async def work(user: User) -> None:
        await user.line.ask("PING")
        before = pings(redis_url)
        async with asyncio.timeout(SOON_S):
            while pings(redis_url) < before + 20:  # noqa: ASYNC110 (another server's number)
                await asyncio.sleep(0.05)
        assert (user.broken, user.connections) == (0, 1)

    use(redis_url, work)


def test_what_is_no_redis(private_redis: StartRedis) -> None:
    """Bytes that no Redis says end the connection instead of being taken for somebody's answer."""
    server = private_redis()

    async def work(user: User) -> None:
        await user.line.ask("PING")
        link = user.line._link
        assert link is not None
        link.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await user.hears()
        assert await user.line.ask("ECHO", "again") == b"again"
        assert user.connections == 2

    use(server.url, work)


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that is not answered is given up: all who ask hear of it in a bounded time."""
    monkeypatch.setattr(redis_client, "_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def work(user: User) -> None:
            async with asyncio.timeout(SOON_S):
                found = await asyncio.gather(*(user.line.ask("PING") for _ in range(3)), return_exceptions=True)
            assert all(isinstance(one, RedisTimeoutError) for one in found)
            assert user.connections == 1

        use(f"redis://127.0.0.1:{server.getsockname()[1]}/0", work)


def test_nobody_there() -> None:
    """A port where nobody listens is an error of the client, not a wait."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])

    async def work(user: User) -> None:
        with pytest.raises((RedisError, OSError)):
            await user.line.ask("PING")

    use(f"redis://127.0.0.1:{port}/0", work)
