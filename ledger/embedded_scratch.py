"""Documents on disk that nobody keeps: for work that would not fit into memory.

The file has no name and is gone when it is closed, or when the process ends, however it ends. It
lies where SQLite puts temporary files: SQLITE_TMPDIR, TMPDIR, or /var/tmp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from .ports import DocumentKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CACHE_KIB = 16_000


class Scratch:
    """Documents of one partition, each marked as compared or not. One thread at a time uses it."""

    def __init__(self) -> None:
        self._sql = apsw.Connection("")
        for name, value in (("journal_mode", "off"), ("synchronous", "off"), ("cache_size", -_CACHE_KIB)):
            self._sql.pragma(name, value)
        self._sql.execute(
            """CREATE TABLE documents (
                collection TEXT NOT NULL, key TEXT NOT NULL, value BLOB, compared INTEGER NOT NULL DEFAULT 0,
                PRIMARY KEY (collection, key)
            ) STRICT, WITHOUT ROWID"""
        )
        self._sql.execute('CREATE TABLE gaps (start INTEGER PRIMARY KEY, "end" INTEGER NOT NULL) STRICT')

    def close(self) -> None:
        """Release it."""
        self._sql.close()

    def documents(self, keys: Iterable[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        """The documents under `keys`, None for those that do not exist."""
        found: dict[DocumentKey, bytes | None] = {}
        for key in keys:
            row: Any = self._sql.execute("SELECT value FROM documents WHERE collection = ? AND key = ?", key).get
            found[key] = row
        return found

    def write(self, writes: Mapping[DocumentKey, bytes | None]) -> None:
        """Put documents, None deletes; what is new or changed counts as not compared."""
        with self._sql:
            self._sql.executemany(
                """INSERT INTO documents (collection, key, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE
                   SET value = excluded.value, compared = 0 WHERE value IS NOT excluded.value""",
                [(key.collection, key.key, value) for key, value in writes.items()],
            )

    def suspect(self, keys: Iterable[DocumentKey]) -> None:
        """Note keys, of which there may be no document, as not compared."""
        with self._sql:
            self._sql.executemany("INSERT OR IGNORE INTO documents (collection, key) VALUES (?, ?)", keys)

    def compared(self, keys: Iterable[DocumentKey]) -> None:
        """Mark documents as compared, until they change."""
        with self._sql:
            self._sql.executemany("UPDATE documents SET compared = 1 WHERE collection = ? AND key = ?", keys)

    def not_compared(self, collection: str, *, count: int) -> Iterator[list[DocumentKey]]:
        """The keys of a collection that are not marked, in runs of `count`; one sweep, in the order of keys."""
        return self._keys(collection, "compared = 0", count)

    def keys(self, collection: str, *, count: int) -> Iterator[list[DocumentKey]]:
        """Every key that was ever written or suspected, in runs of `count`; there may be no document any more."""
        return self._keys(collection, "TRUE", count)

    def _keys(self, collection: str, condition: str, count: int) -> Iterator[list[DocumentKey]]:
        after = ""
        while True:
            rows = self._sql.execute(
                f"""SELECT key FROM documents WHERE collection = ? AND {condition} AND key > ?
                   ORDER BY key LIMIT ?""",  # noqa: S608 - one of the two conditions above
                (collection, after, count),
            ).fetchall()
            if not rows:
                return
            keys = [DocumentKey(collection, str(key)) for (key,) in rows]
            after = keys[-1].key
            yield keys

    def collections(self) -> list[str]:
        """The names of all collections that have documents; skips from one to the next."""
        found: list[str] = []
        name: Any = self._sql.execute("SELECT min(collection) FROM documents").get
        while name is not None:
            found.append(name)
            name = self._sql.execute("SELECT min(collection) FROM documents WHERE collection > ?", (name,)).get
        return found

    def collection(self, collection: str, *, count: int = 500) -> Iterator[dict[DocumentKey, bytes]]:
        """The documents of a collection, in runs of `count`."""
        after = ""
        while True:
            rows: list[Any] = self._sql.execute(
                """SELECT key, value FROM documents WHERE collection = ? AND value IS NOT NULL AND key > ?
                   ORDER BY key LIMIT ?""",
                (collection, after, count),
            ).fetchall()
            if not rows:
                return
            after = rows[-1][0]
            yield {DocumentKey(collection, key): value for key, value in rows}

    def size(self) -> int:
        """How many documents there are."""
        count: Any = self._sql.execute("SELECT count(*) FROM documents WHERE value IS NOT NULL").get
        return int(count)

    def note_gap(self, start: int, end: int) -> None:
        """Note offsets, start <= offset < end, that the log does not have."""
        self._sql.execute("INSERT OR REPLACE INTO gaps VALUES (?, ?)", (start, end))

    def in_gap(self, offset: int) -> bool:
        """Whether the log does not have the record at an offset."""
        end: Any = self._sql.execute(
            'SELECT "end" FROM gaps WHERE start <= ? ORDER BY start DESC LIMIT 1', (offset,)
        ).get
        return end is not None and offset < end
