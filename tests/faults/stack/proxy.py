"""A way to a server that can be cut or made to swallow everything, as a network would."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

_CHUNK = 1 << 16
_LOOK_S = 0.02


class Proxy:
    """Listens on a port of its own and passes on to another one, on the loopback address.

    Attributes:
        port: where clients are to connect.
    """

    def __init__(self, target: int, *, port: int = 0) -> None:
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = port or _free_port()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.mend()

    def swallow(self) -> None:
        """Keep connections open, take new ones, and let nothing through in either direction."""
        self._flows.clear()

    def cut(self) -> None:
        """Break all connections and refuse new ones."""
        self._do(self._close())

    def strand(self) -> None:
        """Forget the connections that are there: they stay open and nothing ever comes through; new ones work."""
        self._do(self._forget())

    def mend(self) -> None:
        """Let everything through again; what was swallowed goes on its way."""
        self._flows.set()
        self._do(self._listen())

    def close(self) -> None:
        """Cut, and end the thread."""
        self._flows.set()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _forget(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                while not self._flows.is_set():  # noqa: ASYNC110 (an event of another thread)
                    await asyncio.sleep(_LOOK_S)
                sink.write(data)
                await sink.drain()
        sink.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
