"""A real redis-server on the loopback address, for local use and tests."""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

from .processes import Process, ServiceError, free_ports, log_tail, wait_until

START_TIMEOUT_S = 20.0
_CONFIG = Path(__file__).with_name("redis.conf")
_ATTEMPTS = 3  # a chosen port may be taken by another process before the server has it


class RedisServer:
    """A redis-server with the settings of redis.conf.

    Args:
        directory: data, log; made when absent. Data of an earlier run is loaded.
        port: TCP port; a free one when None, kept over restarts.
        tied: it dies with the process that starts it.
        settings: more settings, as redis.conf names them.
    """

    def __init__(
        self, directory: Path, *, port: int | None = None, tied: bool = True, settings: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.port = port
        self.process: Process | None = None
        self._tied = tied
        self._settings = settings or {}

    @property
    def url(self) -> str:
        """The address, as clients take it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> Path:
        """The server's output."""
        return self.directory / "redis.log"

    def start(self) -> RedisServer:
        """Start it and wait until it answers with its data loaded.

        Raises:
            ServiceError: there is no redis-server, or it does not come up; the message has the end of its log.
        """
        if (problem := redis_problem()) is not None:
            raise ServiceError(problem)
        self.directory.mkdir(parents=True, exist_ok=True)
        chosen = self.port is None
        for attempt in range(_ATTEMPTS):
            if chosen:
                [self.port] = free_ports(1)
            if self._try_start():
                return self
            if not chosen or attempt == _ATTEMPTS - 1 or "in use" not in log_tail(self.log):
                break
        tail = log_tail(self.log)
        self.kill()
        raise ServiceError(f"redis-server did not start on port {self.port}; the end of {self.log}:\n{tail}")

    def _try_start(self) -> bool:
        argv: list[str | Path] = ["redis-server", _CONFIG, "--port", str(self.port), "--dir", self.directory]
        for name, value in self._settings.items():
            argv += [f"--{name}", value]
        process = self.process = Process.spawn(argv, log=self.log, tied=self._tied)
        wait_until(lambda: self.answers() or not process.alive(), START_TIMEOUT_S)
        return process.alive() and self.answers()

    def running(self) -> bool:
        """Whether the process runs (it may be paused)."""
        return self.process is not None and self.process.alive()

    def answers(self) -> bool:
        """Whether it is up and has loaded its data."""
        try:
            return self.command("PING") == "+PONG"
        except OSError:
            return False

    def command(self, *words: str) -> str:
        """Send one command; return the first line of the reply.

        Raises:
            OSError: no connection, or no reply within two seconds.
        """
        request = f"*{len(words)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port or 0), timeout=2.0) as link:
            link.sendall(request.encode())
            return link.makefile("rb").readline().decode().strip()

    def flushall(self) -> None:
        """Drop all data, as an operator's mistake would."""
        if (reply := self.command("FLUSHALL")) != "+OK":
            raise ServiceError(f"FLUSHALL was refused: {reply}")

    def stop(self) -> None:
        """Stop it; what it acknowledged stays on disk."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def kill(self) -> None:
        """Kill it with SIGKILL; about the last second of data may be lost."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def restart(self) -> None:
        """Start it again on the same port, with the data on disk."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers."""
        if self.process is not None:
            self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        if self.process is not None:
            self.process.signal(signal.SIGCONT)


def redis_problem() -> str | None:
    """Return why no redis-server can be started here, or None."""
    if shutil.which("redis-server") is None:
        return "redis-server is not installed; install it with the system's packages (Debian: apt-get install redis-server)"
    return None
