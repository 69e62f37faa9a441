"""The outside world: a process of its own with a synced append file, which no test ever faults.

    python sink.py FILE

It prints its port and then answers one line of JSON with one line of JSON:
    hit    the effect happens; answered with {"refused": true} if its key was voided before
    void   from now on the key is refused; answered with {"happened": true} if it had been used
It counts every hit, also the second one of a key: it deduplicates nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Sink:
    """The file, and which keys were used and voided."""

    def __init__(self, path: Path) -> None:
        self._out = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._used: set[str] = set()
        self._voided: set[str] = set()

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what was asked, and sync it before answering."""
        do, key = asked["do"], asked["key"]
        if do == "void" and key in self._used:
            return {"happened": True}
        if do == "hit" and key in self._voided:
            return {"refused": True}
        (self._used if do == "hit" else self._voided).add(key)
        os.write(self._out, json.dumps({**asked, "at": time.monotonic_ns()}).encode() + b"\n")
        os.fsync(self._out)
        return {"happened": do == "hit"}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes."""
        try:
            while asked := await reader.readline():
                writer.write(json.dumps(self.answer(json.loads(asked))).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, json.JSONDecodeError):
            return  # it was killed, perhaps in the middle of a line
        finally:
            writer.close()


class Client:
    """The way to the sink; one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def ask(self, **asked: Any) -> dict[str, Any]:
        """The answer to one request, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(json.dumps(asked).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await reader.readline())
            return answer
        finally:
            writer.close()


async def main() -> None:
    """Serve until killed."""
    sink = Sink(Path(sys.argv[1]))
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 (this is its output)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
