"""What `fencepost doctor` looks at in the embedded store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from . import embedded_tables as tables
from .embedded_file import may_corrupt, sqlite_version
from .embedded_place import NETWORK, file_system
from .errors import FencepostError
from .ports import Check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import apsw

    from .embedded_apply import Transaction

T = TypeVar("T")
LEAST_FREE_BYTES = 100_000_000
_FULL = 2
_SHARED = NETWORK | {"9p"}
"""9p is often the whole file system of a container, so that it is not refused, but told."""


def look_at_place(path: Path) -> Sequence[Check]:
    """Whether the library and the place of the file are what a ledger needs."""
    version = sqlite_version()
    kind = file_system(path)
    existing = next(p for p in (path.parent, *path.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    return (
        Check("SQLite", not may_corrupt(version), version, "3.51.3 or newer (or 3.50.7, 3.44.6)"),
        Check("file system", kind not in _SHARED, kind or "unknown", "a local one: all processes on one machine"),
        Check("free space", free >= LEAST_FREE_BYTES, f"{free >> 20} MiB", f"{LEAST_FREE_BYTES >> 20} MiB", "warn"),
        _outside_of_state(path),
        _private(path),
    )


def _outside_of_state(path: Path) -> Check:
    """A ledger that is checked out or restored together with the agent's files forgets effects."""
    wanted = "outside of what agents restore, as in the user's state directory"
    tree = next((p for p in path.parents if (p / ".git").exists()), None)
    if tree is not None:
        return Check("place", ok=False, found=f"in the git working tree {tree}", wanted=wanted, severity="warn")
    here, home = Path.cwd(), Path.home()
    if path.is_relative_to(here) and not home.is_relative_to(here):
        return Check("place", ok=False, found=f"in the working directory {here}", wanted=wanted, severity="warn")
    return Check("place", ok=True, found=str(path), wanted=wanted, severity="warn")


def _private(path: Path) -> Check:
    wanted = "no access for other users"
    if not path.exists():
        return Check("permissions", ok=False, found="no file", wanted="a ledger: run `fencepost init`")
    mode = path.stat().st_mode & 0o777
    return Check("permissions", not mode & 0o077, f"{mode:04o}", wanted, "warn")


class Write(Protocol):
    """Does work in a transaction of the writer."""

    def __call__(self, work: Callable[[Transaction], T], *, alone: bool = False) -> Awaitable[T]:
        """See `EmbeddedLog.write`."""
        ...


class Look(Protocol):
    """Does work in a snapshot of the reader."""

    def __call__(self, work: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        """See `EmbeddedProjection.look`."""
        ...


async def look_at_projection(write: Write, look: Look) -> Sequence[Check]:
    """Whether the file is sound, synced, and applied to its end."""
    try:
        settings = await write(lambda transaction: _settings(transaction.sql), alone=True)
        return [*settings, *await look(_contents)]
    except FencepostError as error:
        return [Check("file", ok=False, found=error.message, wanted=error.next_step)]


def _settings(sql: apsw.Connection) -> Sequence[Check]:
    mode: Any = sql.pragma("journal_mode")
    level: Any = sql.pragma("synchronous")
    return (
        Check("journal mode", mode == "wal", str(mode), "wal"),
        Check("synchronous", level == _FULL, str(level), f"{_FULL} (FULL)"),
    )


def _contents(sql: apsw.Connection) -> Sequence[Check]:
    sound = str(sql.execute("PRAGMA quick_check(1)").get)
    checks = [Check("integrity", sound == "ok", sound, "ok")]
    for partition in tables.PARTITIONS:
        _, end = tables.log_bounds(sql, partition)
        header = tables.read_header(sql, partition)
        applied, settled = header.applied_offset, header.settled_offset
        wanted = f"the log's end, {end}"
        checks.append(Check(f"projection {partition}", applied == end, f"applied to {applied}", wanted))
        checks.append(Check(f"debts {partition}", settled == applied, f"settled to {settled}", wanted, "warn"))
    return checks
