"""What a measurement cost the machine: processor time of whole process trees, memory, and how busy others kept it.

Reads `/proc`, so it needs Linux; a row that was measured elsewhere says that its costs are not known.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal (proc(5), /proc/stat)
_LOOP_STEPS = 200_000
_SYNCS = 50
_SYNCED_BYTES = 4096
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How fast this machine is now: what a ratio to another machine, or to a noisy hour, is told by.

    Attributes:
        loop_ns: one step of a pure-Python loop, the best of several runs.
        sync_ms: writing 4 KiB and waiting until the disk has it (fdatasync), median.
        sync_ms_p99: the slow ones.
        processors: how many there are.
    """

    loop_ns: float
    sync_ms: float
    sync_ms_p99: float
    processors: int

    def to_dict(self) -> dict[str, float]:
        """As plain data."""
        return {
            "loop_ns": round(self.loop_ns, 2), "sync_ms": round(self.sync_ms, 3),
            "sync_ms_p99": round(self.sync_ms_p99, 3), "processors": self.processors,
        }  # fmt: skip


def calibrate(directory: Path) -> Calibration:
    """Measure the machine by itself; `directory` is on the disk that is to be measured."""
    loops = [_loop_ns() for _ in range(5)]
    syncs = sorted(_sync_times_ms(directory))
    return Calibration(min(loops), statistics.median(syncs), syncs[int(len(syncs) * 0.99)], os.cpu_count() or 1)


def _loop_ns() -> float:
    began, total = time.perf_counter_ns(), 0
    for step in range(_LOOP_STEPS):
        total += step & 3
    return (time.perf_counter_ns() - began) / _LOOP_STEPS


def _sync_times_ms(directory: Path) -> list[float]:
    path = directory / "calibration"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    sync = getattr(os, "fdatasync", os.fsync)
    try:
        times = []
        for number in range(_SYNCS):
            os.pwrite(descriptor, os.urandom(_SYNCED_BYTES), number * _SYNCED_BYTES)
            began = time.perf_counter_ns()
            sync(descriptor)
            times.append((time.perf_counter_ns() - began) / 1e6)
        return times
    finally:
        os.close(descriptor)
        path.unlink()


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used between two looks.

    Attributes:
        cpu_s: part → processor seconds of its process trees; empty where that cannot be told.
        others_share: of all processors' time, what processes of no part used; None where that cannot be told.
    """

    cpu_s: Mapping[str, float]
    others_share: float | None


class Meter:
    """Watches the parts of a measurement.

    Args:
        parts: name → process ids, each with all that descend from it. A tree inside another part's
            tree counts only for itself: projectors that this process started are not its own work.
    """

    def __init__(self, parts: Mapping[str, Sequence[int]]) -> None:
        self._parts = parts
        self._before = self._look()
        self._machine = _machine_s()

    def spent(self) -> Spent:
        """What was used since the meter was made."""
        after, machine = self._look(), _machine_s()
        used = {name: after[name] - self._before[name] for name in after if name in self._before}
        if machine is None or self._machine is None or not used:
            return Spent(used, None)
        busy, total = machine[0] - self._machine[0], machine[1] - self._machine[1]
        others = max(0.0, busy - sum(used.values())) / total if total > 0 else 0.0
        return Spent(used, min(1.0, others))

    def _look(self) -> dict[str, float]:
        if not _PROC.joinpath("self/stat").exists():
            return {}
        children = _children()
        roots = {pid for pids in self._parts.values() for pid in pids}
        return {
            name: sum(_cpu_s(pid) for root in pids for pid in _tree(root, children, roots))
            for name, pids in self._parts.items()
        }


def _tree(root: int, children: Mapping[int, Sequence[int]], roots: Iterable[int]) -> list[int]:
    """The process and its descendants, without those that are roots themselves."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += [child for child in children.get(pid, ()) if child not in roots]
    return found


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the command's name; none when the process is gone."""
    try:
        return _PROC.joinpath(str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_s(pid: int) -> float:
    """Processor time of all threads, and of the children that were waited for."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) / _TICKS_S if fields else 0.0


def _machine_s() -> tuple[float, float] | None:
    """(busy, available) processor seconds of the whole machine."""
    try:
        line = _PROC.joinpath("stat").read_text().splitlines()[0]
    except OSError:
        return None
    fields = [int(field) for field in line.split()[1:9]]
    return sum(fields[i] for i in _BUSY_FIELDS) / _TICKS_S, sum(fields) / _TICKS_S


def resident_bytes(pid: int) -> int:
    """How much memory a process holds now; 0 when that cannot be told."""
    try:
        return int(_PROC.joinpath(str(pid), "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def listeners(ports: Iterable[int]) -> list[int]:
    """The processes on this machine that listen on these TCP ports; none when that cannot be told."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(set(ports))}
    running = [entry for entry in _PROC.iterdir() if entry.name.isdigit()] if inodes else []
    return sorted(int(entry.name) for entry in running if inodes & _open_files(entry / "fd"))


def _listening_inodes(ports: set[int]) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = _PROC.joinpath("net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) in ports:
                found.add(fields[9])
    return found


def _open_files(directory: Path) -> set[str]:
    found = set()
    try:
        for link in directory.iterdir():
            found.add(os.readlink(link))  # noqa: PTH115 - the text itself, not a path
    except OSError:
        pass  # it ended, or belongs to another user
    return found
