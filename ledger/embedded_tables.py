"""The tables of the embedded store, and reading and writing their rows.

Values carry a checksum, because SQLite has none: a flipped bit in a history would be believed.
Every function runs in the caller's transaction and lets the client's errors through.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from .errors import InvalidArgumentError, StoreError
from .history import LogEntry, read_entry
from .ports import DocumentKey, Header
from .positions import Partition, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import apsw

APPLICATION_ID = 0x46706F73
SCHEMA_VERSION = 1
PARTITIONS = tuple(Partition(topic, 0) for topic in Topic)
"""One partition per topic: one writer at a time appends anyway."""
REMEMBER_BEATS_MS = 30 * 24 * 3600 * 1000
_CHUNK = 500

_SCHEMA = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE log (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (topic, partition, "offset")
) STRICT;
CREATE TRIGGER log_is_append_only BEFORE UPDATE ON log BEGIN SELECT RAISE(ABORT, 'the log is never edited'); END;
CREATE TRIGGER log_forgets_nothing BEFORE DELETE ON log BEGIN SELECT RAISE(ABORT, 'the log is never edited'); END;
CREATE TABLE documents (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, collection TEXT NOT NULL, key TEXT NOT NULL,
    value BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (topic, partition, collection, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE headers (
    topic TEXT NOT NULL, partition INTEGER NOT NULL,
    applied_offset INTEGER NOT NULL, settled_offset INTEGER NOT NULL, settled_time_ms INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE presence (session_id TEXT PRIMARY KEY, beat_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class Row(NamedTuple):
    """A row of the log."""

    partition: Partition
    offset: int
    time_ms: int
    key: str
    value: bytes


def now_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def require_partition(partition: Partition) -> None:
    """Raise InvalidArgumentError for a partition that this store does not have."""
    if partition not in PARTITIONS:
        raise InvalidArgumentError(
            f"partition: the embedded store has no {partition}.",
            next_step="It has one partition per topic, number 0.",
            field="partition",
        )


def create_tables(sql: apsw.Connection, generation: int) -> None:
    """Make the tables, unless another process did since they were looked for."""
    if sql.pragma("application_id") == APPLICATION_ID:
        return
    sql.execute(_SCHEMA)
    meta = {"log_generation": str(generation), "created_ms": str(now_ms()), "incarnation": ""}
    sql.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    begin_again(sql)


def begin_again(sql: apsw.Connection) -> None:
    """Drop the projection: no documents, nothing applied, another incarnation."""
    sql.execute("DELETE FROM documents")
    sql.execute("UPDATE meta SET value = ? WHERE name = 'incarnation'", (secrets.token_hex(8),))
    for topic, number in PARTITIONS:
        sql.execute("INSERT OR REPLACE INTO headers VALUES (?, ?, 0, 0, 0)", (topic.value, number))


# -- the projection --------------------------------------------------------------------


def read_header(sql: apsw.Connection, partition: Partition) -> Header:
    """The header; the projection is part of every transaction, so it is always opened and never old."""
    require_partition(partition)
    row = sql.execute(
        """SELECT applied_offset, settled_offset, settled_time_ms,
                  (SELECT value FROM meta WHERE name = 'incarnation'),
                  (SELECT value FROM meta WHERE name = 'log_generation')
           FROM headers WHERE topic = ? AND partition = ?""",
        (partition.topic.value, partition.number),
    ).fetchone()
    if row is None or row[3] is None or row[4] is None:
        raise _damaged("a header is missing")
    now = now_ms()
    return Header(
        incarnation=row[3],
        generation=int(row[4]),
        applied_offset=row[0],
        settled_offset=row[1],
        settled_time_ms=row[2],
        opened=True,
        seen_ms=now,
        now_ms=now,
    )


def read_documents(sql: apsw.Connection, partition: Partition, keys: Iterable[DocumentKey]) -> dict[DocumentKey, bytes]:
    """The documents under `keys` that exist."""
    found = {}
    for key in keys:
        row = sql.execute(
            "SELECT value, checksum FROM documents WHERE topic = ? AND partition = ? AND collection = ? AND key = ?",
            (partition.topic.value, partition.number, key.collection, key.key),
        ).fetchone()
        if row is not None:
            found[key] = _intact(key, *row)
    return found


def read_collection(
    sql: apsw.Connection, partition: Partition, collection: str, *, after: str | None = None, count: int = -1
) -> dict[DocumentKey, bytes]:
    """Documents of a collection by ascending key: those behind `after`, at most `count` (-1: all)."""
    bound = "" if after is None else "AND key > :after"
    rows = sql.execute(
        f"""SELECT key, value, checksum FROM documents
            WHERE topic = :topic AND partition = :number AND collection = :collection {bound}
            ORDER BY key LIMIT :count""",  # noqa: S608 - `bound` is one of two constants
        {"topic": partition.topic.value, "number": partition.number, "collection": collection,
         "after": after or "", "count": count},
    )  # fmt: skip
    return {(at := DocumentKey(collection, key)): _intact(at, value, checksum) for key, value, checksum in rows}


def write_step(
    sql: apsw.Connection, partition: Partition, header: Header, step: Mapping[DocumentKey, bytes | None]
) -> None:
    """Store the header's offsets and the documents that changed."""
    place = (partition.topic.value, partition.number)
    sql.execute(
        "UPDATE headers SET applied_offset = ?, settled_offset = ?, settled_time_ms = ? WHERE topic = ? AND partition = ?",
        (header.applied_offset, header.settled_offset, header.settled_time_ms, *place),
    )
    for (collection, key), value in step.items():
        if value is None:
            sql.execute(
                "DELETE FROM documents WHERE topic = ? AND partition = ? AND collection = ? AND key = ?",
                (*place, collection, key),
            )
        else:
            sql.execute(
                "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?, ?)",
                (*place, collection, key, value, crc32(value)),
            )


def _intact(key: DocumentKey, value: bytes, checksum: int) -> bytes:
    if crc32(value) != checksum:
        raise _damaged(f"document {key.key!r} in {key.collection!r} has a wrong checksum")
    return value


def _damaged(what: str) -> StoreError:
    return StoreError(
        f"The projection is damaged: {what}.",
        next_step="Run `fencepost projector rebuild`: the log has everything. Check the disk as well.",
    )


# -- the log ---------------------------------------------------------------------------


def append(sql: apsw.Connection, rows: Iterable[Row]) -> None:
    """Add rows to the end of the log."""
    for (topic, number), offset, time_ms, key, value in rows:
        sql.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)",
            (topic.value, number, offset, time_ms, key, value, crc32(value)),
        )


def log_end(sql: apsw.Connection, partition: Partition) -> int:
    """The next offset to be written."""
    place = (partition.topic.value, partition.number)
    last = sql.execute('SELECT max("offset") FROM log WHERE topic = ? AND partition = ?', place).get
    return 0 if last is None else last + 1


def log_bounds(sql: apsw.Connection, partition: Partition) -> tuple[int, int]:
    """(first offset, next offset to be written)."""
    require_partition(partition)
    place = (partition.topic.value, partition.number)
    where = "FROM log WHERE topic = ? AND partition = ?"
    first = sql.execute(f'SELECT min("offset") {where}', place).get
    last = sql.execute(f'SELECT max("offset") {where}', place).get
    return (0, 0) if last is None else (first, last + 1)


def log_entries(sql: apsw.Connection, partition: Partition, start: int, end: int) -> Iterator[LogEntry]:
    """Entries with start <= offset < end, read in short runs so that no snapshot is held for long."""
    place = (partition.topic.value, partition.number)
    while start < end:
        rows: list[Any] = sql.execute(
            """SELECT "offset", time_ms, key, value, checksum FROM log
               WHERE topic = ? AND partition = ? AND "offset" >= ? AND "offset" < ? ORDER BY "offset" LIMIT ?""",
            (*place, start, end, _CHUNK),
        ).fetchall()
        if not rows:
            return
        for offset, time_ms, key, value, checksum in rows:
            if crc32(value) == checksum:
                yield read_entry(partition, offset, time_ms, key=key.encode(), value=value)
            else:
                yield LogEntry(partition, offset, time_ms, key, None, "the record has a wrong checksum")
        start = rows[-1][0] + 1


# -- presence --------------------------------------------------------------------------


def write_beats(sql: apsw.Connection, session_ids: Sequence[str]) -> None:
    """Note that these sessions live."""
    now = now_ms()
    sql.executemany("INSERT OR REPLACE INTO presence VALUES (?, ?)", [(s, now) for s in session_ids])


def forget_beats(sql: apsw.Connection) -> None:
    """Drop what is too old to matter."""
    sql.execute("DELETE FROM presence WHERE beat_ms < ?", (now_ms() - REMEMBER_BEATS_MS,))


def read_beats(sql: apsw.Connection, session_ids: Sequence[str]) -> dict[str, float]:
    """Seconds since the last beat of each session that is remembered."""
    now = now_ms()
    found = {}
    for session_id in session_ids:
        beat = sql.execute("SELECT beat_ms FROM presence WHERE session_id = ?", (session_id,)).get
        if beat is not None:
            found[session_id] = max(0, now - beat) / 1000
    return found
