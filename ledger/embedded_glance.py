"""Small reads of the embedded store, done at once in the thread of whoever asks.

To the reading thread and back are two changes of threads, which take several times as long as reading
a few documents. What may take longer is left to that thread: more than a few documents, and a lock
that another process holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .embedded_errors import DatabaseError
from .embedded_formats import require_present
from .embedded_reader import Seen

if TYPE_CHECKING:
    import apsw

    from .embedded_file import Connection, DatabaseFile

T = TypeVar("T")
MOST_DOCUMENTS = 32
"""So many documents are read at once; their size is bounded by that of a record."""


class Glance:
    """Owns a connection of its own, which never waits for a lock.

    Args:
        file: what to connect to.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._using = threading.Lock()
        self._closed = False
        self._connection: Connection | None = None
        self.seen = Seen(file)

    def look(self, work: Callable[[apsw.Connection], T | None]) -> T | None:
        """What `work` reads, from one snapshot; None when the reading thread should do it.

        Raises StoreError: the file was replaced, or went back to an older state.
        """
        if not self._using.acquire(blocking=False):
            return None
        try:
            return None if self._closed else self._in_snapshot(work)
        except DatabaseError:
            self._drop()
            return None
        finally:
            self._using.release()

    def close(self) -> None:
        """Close the connection; nothing is read any more."""
        with self._using:
            self._closed = True
            self._drop()

    def _in_snapshot(self, work: Callable[[apsw.Connection], T | None]) -> T | None:
        if self._connection is None:
            self._connection = self._file.connect(query_only=True)
            self._connection.sql.set_busy_timeout(0)
        self._file.require_in_place(writing=False)
        self._connection.sql.execute("BEGIN")
        try:
            require_present(self._connection.sql, self._file.path)
            return work(self._connection.sql)
        finally:
            if not self._connection.rollback():
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
