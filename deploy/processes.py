"""Child processes that can be stopped, killed, paused, found again by another process, and that do not outlive a dead test run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STOP_TIMEOUT_S = 10.0
_POLL_S = 0.02
_TAIL_LINES = 30

# Replaces itself by the command, which the kernel then kills with the parent (PR_SET_PDEATHSIG is 1; 9 is SIGKILL).
# A wrapper, because code between fork and exec is not safe in a process with threads.
_TIED = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


class ServiceError(RuntimeError):
    """A service cannot be installed, started or stopped; the message says why and what to do."""


class Process:
    """One running program: a child of this process, or one that an earlier process left running."""

    def __init__(self, pid: int, born: str, *, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.born = born
        self._child = child

    @classmethod
    def spawn(cls, argv: Sequence[str | Path], *, log: Path, tied: bool) -> Process:
        """Start a program in a session of its own.

        Args:
            argv: program and arguments.
            log: file that gets its output, appended.
            tied: the kernel kills it when the calling thread's process dies (Linux only).
        """
        command = [os.fspath(part) for part in argv]
        if tied and sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        with log.open("ab") as out:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        return cls(child.pid, _born(child.pid), child=child)

    def alive(self) -> bool:
        """Whether it still runs; a reused process id counts as dead."""
        if self._child is not None:
            return self._child.poll() is None
        return bool(self.born) and _born(self.pid) == self.born

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it: SIGTERM, and SIGKILL after the timeout. Wakes it first if it is paused."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        if not wait_until(lambda: not self.alive(), timeout_s):
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if not wait_until(lambda: not self.alive(), STOP_TIMEOUT_S):
            raise ServiceError(f"process {self.pid} does not die of SIGKILL")


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition; return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports on the loopback address that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def log_tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


def _born(pid: int) -> str:
    """Return what tells this process from a later one with its id: its start time; empty if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
        seen = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return seen.stdout.strip()
    return "" if fields[0] == "Z" else fields[19]  # state; start time in clock ticks (proc(5), fields 3 and 22)
