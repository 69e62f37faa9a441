"""The reading thread of the embedded store: it does not wait for the writer.

Every answer comes from one snapshot. The thread also tells those who wait for the projection
when it has moved, whichever process has moved it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .embedded_errors import DatabaseError, defect, set_back, translate
from .embedded_formats import require_present
from .embedded_tables import fresh, read_header
from .embedded_threads import Reply, Worker
from .errors import FencepostError, StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import apsw

    from .embedded_file import DatabaseFile
    from .ports import Header
    from .positions import Partition

T = TypeVar("T")
POLL_S = 0.015
"""How long a commit of another process may go unnoticed."""


class Seen:
    """What the last snapshots of a connection showed, so that a file that went back is noticed.

    Snapshots of several connections overlap, so each connection remembers its own. As long as no other connection
    commits, which SQLite's `data_version` tells, the format and the headers are what they were.

    Args:
        file: for messages.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._ends: dict[Partition, int] = {}
        self._headers: dict[Partition, Header] = {}
        self._at: tuple[apsw.Connection, object] | None = None

    def begin(self, sql: apsw.Connection) -> None:
        """To be called first in each transaction. Raises StoreError for a format that a newer version has made."""
        at = (sql, sql.execute("PRAGMA data_version").get)
        if at != self._at:
            self._headers.clear()
            require_present(sql, self._file.path)
            self._at = at

    def header(self, sql: apsw.Connection, partition: Partition) -> Header:
        """The header, for work within a transaction. Raises StoreError if the log has become shorter."""
        known = self._headers.get(partition)
        if known is not None:
            return fresh(known)
        header = read_header(sql, partition)
        if header.applied_offset < self._ends.get(partition, 0):
            raise set_back(self._file.path, "went back to an older state", writing=False)
        self._ends[partition] = header.applied_offset
        self._headers[partition] = header
        return header


@dataclass(frozen=True, slots=True)
class _Waiter:
    partition: Partition
    beyond: int
    deadline: float
    reply: Reply[Header]


class Reader(Worker):
    """Owns the reading connection.

    Args:
        file: what to connect to.
    """

    def __init__(self, file: DatabaseFile) -> None:
        super().__init__("fencepost-reader", file)
        self._jobs: deque[tuple[Callable[[apsw.Connection], Any], Reply[Any]]] = deque()
        self._arriving: list[_Waiter] = []
        self._waiters: list[_Waiter] = []
        self.seen = Seen(file)
        self._version: object = None
        self._poked = False

    def submit(self, work: Callable[[apsw.Connection], T], reply: Reply[T]) -> None:
        """Queue something to read, atomically. Raises StoreUnavailableError."""
        with self._changed:
            self._admit(len(self._jobs))
            self._jobs.append((work, reply))
            self._changed.notify()

    def wait(self, partition: Partition, beyond: int, timeout_s: float, reply: Reply[Header]) -> None:
        """Give the header to `reply` when `applied_offset > beyond`, or when the time is up."""
        with self._changed:
            self._admit(len(self._arriving) + len(self._waiters))
            self._arriving.append(_Waiter(partition, beyond, time.monotonic() + timeout_s, reply))
            self._changed.notify()

    def poke(self) -> None:
        """Something was committed in this process: look at once. Whoever only begins to wait looks anyway."""
        if not self._waiters:
            return
        with self._changed:
            self._poked = True
            self._changed.notify()

    def _run(self) -> None:
        while self._has_work():
            with self._changed:
                jobs, self._jobs = self._jobs, deque()
                arrived, self._arriving = self._arriving, []
                self._poked = False
            for work, reply in jobs:
                self._serve(work, reply)
            self._look(arrived)
        self._drop()
        self._fail_waiters(StoreClosedError("The ledger was closed.", next_step="Open it again."))

    def _has_work(self) -> bool:
        """Wait for something to do, or for the time to poll; False when the thread is to end."""
        with self._changed:
            if not (self._jobs or self._arriving or self._poked or self._closed):
                self._changed.wait(POLL_S if self._waiters else None)
            return bool(self._jobs or self._arriving or not self._closed)

    def _serve(self, work: Callable[[apsw.Connection], T], reply: Reply[T]) -> None:
        try:
            reply.give(self._in_snapshot(work))
        except FencepostError as error:
            reply.fail(error)

    def _in_snapshot(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` reads, in one transaction. Raises FencepostError and nothing else."""
        try:
            connection = self._connected(query_only=True)
            self._file.require_in_place(writing=False)
            connection.sql.execute("BEGIN")
            try:
                self.seen.begin(connection.sql)
                return work(connection.sql)
            finally:
                connection.rollback()
        except DatabaseError as error:
            self._drop()
            raise translate(error, self._file.path, writing=False) from error
        except FencepostError:
            raise
        except Exception as error:
            self._drop()
            raise defect(error) from error

    def _look(self, arrived: list[_Waiter]) -> None:
        """Answer the waiters that are due. Their headers are read only when there is a reason to."""
        self._waiters += arrived
        if not self._waiters:
            return
        now = time.monotonic()
        overdue = any(waiter.deadline <= now for waiter in self._waiters)
        try:
            if not (self._moved() or arrived or overdue):
                return
            wanted = {waiter.partition for waiter in self._waiters}
            headers = self._in_snapshot(lambda sql: {p: self.seen.header(sql, p) for p in wanted})
        except FencepostError as error:
            self._fail_waiters(error)
        else:
            self._answer(headers, now)

    def _moved(self) -> bool:
        """Whether another connection, of whatever process, has committed since the last look."""
        try:
            version: object = self._connected(query_only=True).sql.pragma("data_version")
        except DatabaseError as error:
            self._drop()
            raise translate(error, self._file.path, writing=False) from error
        moved, self._version = version != self._version, version
        return moved

    def _answer(self, headers: Mapping[Partition, Header], now: float) -> None:
        waiting = []
        for waiter in self._waiters:
            header = headers[waiter.partition]
            if header.applied_offset > waiter.beyond or waiter.deadline <= now:
                waiter.reply.give(header)
            elif not waiter.reply.future.cancelled():
                waiting.append(waiter)
        self._waiters = waiting

    def _fail_waiters(self, error: FencepostError) -> None:
        with self._changed:
            waiters, self._waiters, self._arriving = self._waiters + self._arriving, [], []
        for waiter in waiters:
            waiter.reply.fail(error)
