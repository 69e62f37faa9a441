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
from .embedded_reader import Seen

if TYPE_CHECKING:
    import apsw

    from .embedded_file import Connection, DatabaseFile

T = TypeVar("T")
MOST_DOCUMENTS = 32
"""So many documents are read at once; their size is bounded by that of a record."""
MOST_AT_ONCE = 4
"""So many threads may look at the same time; each has a connection."""


class _Eye:
    """A connection that never waits for a lock, and what it showed. One thread at a time uses it.

    Args:
        file: what to connect to.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._seen = Seen(file)
        self._connection: Connection | None = None

    def look(self, work: Callable[[apsw.Connection, Seen], T]) -> T:
        """What `work` reads, from one snapshot. Raises DatabaseError, StoreError."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._file.connect(query_only=True)
            connection.sql.set_busy_timeout(0)
        self._file.require_in_place(writing=False)
        connection.sql.execute("BEGIN")
        try:
            self._seen.begin(connection.sql)
            return work(connection.sql, self._seen)
        finally:
            if not connection.rollback():
                self.close()

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Glance:
    """Owns connections of its own, which never wait for a lock.

    Any thread may look. None waits for another: beyond a number of threads the reading thread should do it.

    Args:
        file: what to connect to.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._changing = threading.Lock()
        self._closed = False
        self._free: list[_Eye] = []
        self._made = 0

    def look(self, work: Callable[[apsw.Connection, Seen], T | None]) -> T | None:
        """What `work` reads, from one snapshot; None when the reading thread should do it.

        Raises StoreError: what is read is damaged, or the file was replaced, or went back to an older state.
        """
        eye = self._taken()
        if eye is None:
            return None
        try:
            return eye.look(work)
        except DatabaseError:
            eye.close()
            return None
        finally:
            self._give_back(eye)

    def close(self) -> None:
        """Close every connection, those in use when their look is over; nothing is read any more."""
        with self._changing:
            self._closed = True
            free, self._free = self._free, []
        for eye in free:
            eye.close()

    def _taken(self) -> _Eye | None:
        with self._changing:
            if self._closed:
                return None
            if self._free:
                return self._free.pop()
            if self._made >= MOST_AT_ONCE:
                return None
            self._made += 1
        return _Eye(self._file)

    def _give_back(self, eye: _Eye) -> None:
        with self._changing:
            if not self._closed:
                self._free.append(eye)
                return
        eye.close()
