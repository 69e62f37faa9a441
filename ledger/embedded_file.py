"""The file of the embedded store and how it is opened.

Every connection is of one kind: write-ahead log, synchronous FULL, a bounded wait for other
writers, to a file that is ours and still in its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import time
import weakref
from functools import cache
from typing import TYPE_CHECKING

import apsw

from .embedded_errors import DAMAGED, DatabaseError, set_back, translate
from .embedded_formats import create_tables, migrate, newer
from .embedded_place import require_local
from .embedded_tables import APPLICATION_ID, FORMAT
from .embedded_wal import has_lost_commits
from .errors import StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

BUSY_TIMEOUT_S = 10.0
WAL_LIMIT_BYTES = 64 << 20
_LONGEST_NAP_S = 0.002
_FIRST_SAFE = (3, 51, 3)
_SAFE_BRANCHES = ((3, 50, 7), (3, 44, 6))
_open_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def sqlite_version() -> str:
    """The version of the SQLite library in use."""
    return apsw.sqlite_lib_version()


def may_corrupt(version: str) -> bool:
    """Whether this SQLite can damage a file that several connections write and checkpoint.

    Source: SQLite documentation, "Write-Ahead Logging", the WAL-reset bug: 3.7.0 to 3.51.2,
    repaired in 3.51.3 and on the branches in 3.50.7 and 3.44.6.
    """
    numbers = tuple(int(part) for part in version.split(".")[:3])
    branch_is_safe = any(numbers[:2] == safe[:2] and numbers >= safe for safe in _SAFE_BRANCHES)
    return numbers < _FIRST_SAFE and not branch_is_safe


class DatabaseFile:
    """One file and the way to open it.

    Args:
        path: absolute.
        vfs: name of the client library's file system layer; None for the usual one.
        exclusive: keep the file locked for one connection (needed by layers without shared memory).
    """

    def __init__(self, path: Path, *, vfs: str | None = None, exclusive: bool = False) -> None:
        self.path = path
        self._vfs = vfs
        self._exclusive = exclusive
        self._identity: tuple[int, int] | None = None
        self._local = False

    def create(self, generation: int) -> None:
        """Make the directory (0700), the file (0600) and its tables, as far as they do not exist yet.

        Raises:
            StoreError: the file is another program's, or of a newer version.
            StoreUnavailableError: it is locked, or the place cannot be written.
        """
        _refuse_corrupting_sqlite()
        self._require_local()
        try:
            self._make_file()
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.path} cannot be created: {error.strerror}.",
                next_step="Make its directory writable, or name another file in the store URL.",
            ) from error
        try:
            with contextlib.closing(self._opened()) as sql:
                self._require_whole(sql)
                if self._is_fresh(sql):
                    self._set_up(sql)
                    sql.execute("BEGIN IMMEDIATE")
                    create_tables(sql, generation)
                    sql.execute("COMMIT")
                else:
                    self._bring_forward(sql)
        except DatabaseError as error:
            raise translate(error, self.path, writing=False) from error

    def connect(self, *, query_only: bool = False) -> Connection:
        """A connection to the file, which must have been created.

        Raises:
            StoreError: there is no ledger in it, it is another program's, damaged, of a newer version, or
                not the file that was connected to before.
            StoreUnavailableError: it is locked, or cannot be opened.
        """
        _refuse_corrupting_sqlite()
        self._require_local()
        identity = _identity_of(self.path)
        if identity is None and self._identity is None:
            raise self._missing()
        self._identity = self._identity or identity
        self.require_in_place(writing=False)
        try:
            sql = self._opened()
            try:
                self._make_ready(sql, query_only=query_only)
            except BaseException:
                sql.close()
                raise
        except DatabaseError as error:
            raise translate(error, self.path, writing=False) from error
        return Connection(sql)

    def require_in_place(self, *, writing: bool) -> None:
        """Raise StoreError (PublishRefusedError when writing) if the path leads to another file than before.

        Writing on would be acknowledged and lost: the open file has no name any more.
        """
        if _identity_of(self.path) != self._identity:
            raise set_back(self.path, "was removed or replaced while it was open", writing=writing)

    def _make_file(self) -> None:
        # Never open an existing database by hand: closing it would drop the locks that SQLite
        # holds on it in this process (POSIX advisory locks belong to the process).
        missing = [p for p in (self.path.parent, *self.path.parent.parents) if not p.exists()]
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            for directory in {self.path.parent, *(p.parent for p in missing)}:
                _sync_directory(directory)

    def _opened(self) -> apsw.Connection:
        sql = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
        sql.set_busy_handler(_Patience())
        sql.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if self._exclusive:
            sql.pragma("locking_mode", "exclusive")
        return sql

    def _require_local(self) -> None:
        if not self._local:
            require_local(self.path)
            self._local = True

    def _require_whole(self, sql: apsw.Connection) -> None:
        """Raise StoreError if the write-ahead log is damaged; until then closing `sql` must not remove it."""
        if self._vfs is None and has_lost_commits(sql, self.path):
            raise StoreError(
                f"{self.path}: its write-ahead log is damaged, and acknowledged records are behind the damage.",
                next_step=DAMAGED,
            )
        sql.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)

    def _make_ready(self, sql: apsw.Connection, *, query_only: bool) -> None:
        self._require_whole(sql)
        if self._is_fresh(sql):
            raise self._missing()
        self._set_up(sql)
        self._bring_forward(sql)
        sql.pragma("query_only", int(query_only))

    def _bring_forward(self, sql: apsw.Connection) -> None:
        if int(str(sql.pragma("user_version"))) < FORMAT:
            self._set_up(sql)
            migrate(sql, self.path)

    def _is_fresh(self, sql: apsw.Connection) -> bool:
        """Whether nothing was ever written into it. Raises StoreError unless it is empty or ours."""
        application_id, version, tables = _marks(sql)
        if application_id != APPLICATION_ID:
            if application_id or version or tables:
                raise StoreError(
                    f"{self.path} is the file of another program.", next_step="Name another file in the store URL."
                )
            return True
        if version > FORMAT:
            raise newer(sql, self.path, version)
        return False

    def _set_up(self, sql: apsw.Connection) -> None:
        mode = sql.pragma("journal_mode", "wal")
        if mode != "wal":
            raise StoreError(
                f"{self.path} cannot have a write-ahead log here (journal mode {mode}).",
                next_step="Put the ledger on a local file system.",
            )
        sql.pragma("synchronous", "full")
        sql.pragma("journal_size_limit", WAL_LIMIT_BYTES)
        sql.pragma("temp_store", "memory")
        sql.pragma("trusted_schema", 0)
        sql.pragma("cell_size_check", 1)

    def _missing(self) -> StoreError:
        return StoreError(
            f"There is no ledger at {self.path}.",
            next_step="Create it with `fencepost init`; if there was one, find out first who removed it.",
        )


def _marks(sql: apsw.Connection) -> tuple[int, int, int]:
    """(application id, format version, number of tables), all as of one moment.

    Read one by one, they could be from before and after another process created the ledger.
    """
    sql.execute("BEGIN")
    try:
        tables = sql.execute("SELECT count(*) FROM sqlite_schema").get
        return sql.pragma("application_id"), sql.pragma("user_version"), tables
    finally:
        if sql.in_transaction:
            sql.execute("ROLLBACK")


class Connection:
    """An open connection."""

    def __init__(self, sql: apsw.Connection) -> None:
        self.sql = sql
        _leak_in_forked_processes()
        _open_connections.add(self)

    def rollback(self) -> bool:
        """Undo the open transaction, if there is one; whether that is certain."""
        try:
            if self.sql.in_transaction:
                self.sql.execute("ROLLBACK")
        except DatabaseError:
            return False
        return not self.sql.in_transaction

    def close(self) -> None:
        """Close, whatever state it is in."""
        with contextlib.suppress(DatabaseError):
            self.sql.close()


class _Patience:
    """Waits for another writer by short naps of random length, and gives up in the end.

    SQLite's own handler naps up to 100 ms, which leaves the disk idle between two processes.
    """

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        if now - self._since > BUSY_TIMEOUT_S:
            return False
        time.sleep(random.uniform(0.1, 1.0) * _LONGEST_NAP_S)  # noqa: S311 - no secret
        return True


@cache
def _leak_in_forked_processes() -> None:
    """See to it that a forked process never closes what it inherits.

    A mutex of SQLite that a thread held at the fork stays locked in the child for ever, so that
    even the garbage collector would hang there. The child may open connections of its own.
    """
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes = [ctypes.py_object]

    def keep_all() -> None:
        for connection in tuple(_open_connections):
            keep(connection.sql)

    os.register_at_fork(after_in_child=keep_all)


def _refuse_corrupting_sqlite() -> None:
    version = sqlite_version()
    if may_corrupt(version):
        raise StoreError(
            f"SQLite {version} can corrupt a file that several connections write (the WAL-reset bug).",
            next_step="Upgrade it: pip install --upgrade 'apsw>=3.51.3'.",
        )


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every transaction
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
