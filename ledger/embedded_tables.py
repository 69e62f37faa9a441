"""The tables of the embedded store, and reading and writing their rows.

Values carry a checksum, because SQLite has none: a flipped bit in a history would be believed.
Every function runs in the caller's transaction and lets the client's errors through.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from .errors import InvalidArgumentError, StoreError
from .history import LogEntry, read_entry
from .ports import DocumentKey, Header, RawRecord
from .positions import Partition, Topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import apsw

APPLICATION_ID = 0x46706F73
FORMAT = 2
"""Of the file, kept as its `user_version`; see `embedded_formats`."""
PARTITIONS = tuple(Partition(topic, 0) for topic in Topic)
"""One partition per topic: one writer at a time appends anyway."""
REMEMBER_BEATS_MS = 30 * 24 * 3600 * 1000
_CHUNK = 500
_READS = (16, 4, 2, 1)
"""So many documents are read with one statement."""
_WRITE = (
    "INSERT INTO documents VALUES ",
    " ON CONFLICT DO UPDATE SET value = excluded.value, checksum = excluded.checksum",
)
_DELETE = ("DELETE FROM documents WHERE topic = ? AND partition = ? AND collection = ? AND key IN (", ")")
_APPEND = ("INSERT INTO log VALUES ", "")
_RUNS = (64, 16, 4, 1)
WRONG_CHECKSUM = "the record has a wrong checksum"


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


def row_checksum(  # noqa: PLR0917 - a row's columns, as SQL hands them over
    topic: str, partition: int, offset: int, time_ms: int, key: str, value: bytes
) -> int:
    """Of a row of the log: of all its columns, so that it cannot be taken for another's."""
    return crc32(value, crc32(f"{topic}/{partition}/{offset}/{time_ms}/{key}".encode(errors="surrogatepass")))


def document_checksum(topic: str, partition: int, collection: str, key: str, value: bytes) -> int:
    """Of a document: of all its columns."""
    return crc32(value, crc32(f"{topic}/{partition}/{collection}\0{key}".encode(errors="surrogatepass")))


def header_checksum(topic: str, partition: int, *offsets_and_generation: int | str) -> int:
    """Of a header, and of the log generation that it goes with."""
    return crc32("/".join(map(str, (topic, partition, *offsets_and_generation))).encode())


def begin_again(sql: apsw.Connection) -> None:
    """Drop the projection: no documents, nothing applied, another incarnation."""
    sql.execute("DELETE FROM documents")
    sql.execute("UPDATE meta SET value = ? WHERE name = 'incarnation'", (secrets.token_hex(8),))
    generation: Any = sql.execute("SELECT value FROM meta WHERE name = 'log_generation'").get
    for topic, number in PARTITIONS:
        checksum = header_checksum(topic.value, number, 0, 0, 0, generation)
        sql.execute("INSERT OR REPLACE INTO headers VALUES (?, ?, 0, 0, 0, ?)", (topic.value, number, checksum))


# -- the projection --------------------------------------------------------------------


def read_header(sql: apsw.Connection, partition: Partition) -> Header:
    """The header; the projection is part of every transaction, so it is always opened and never old."""
    require_partition(partition)
    row: Any = sql.execute(
        """SELECT applied_offset, settled_offset, settled_time_ms,
                  (SELECT value FROM meta WHERE name = 'incarnation'),
                  (SELECT value FROM meta WHERE name = 'log_generation'), checksum
           FROM headers WHERE topic = ? AND partition = ?""",
        (partition.topic.value, partition.number),
    ).fetchone()
    if row is None or row[3] is None or row[4] is None:
        raise _damaged("a header is missing")
    if header_checksum(partition.topic.value, partition.number, *row[:3], row[4]) != row[5]:
        raise _damaged(f"the header of {partition} has a wrong checksum")
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


def fresh(header: Header) -> Header:
    """A header that was read earlier, and is known to be what the file says now."""
    now = now_ms()
    return Header(
        incarnation=header.incarnation,
        generation=header.generation,
        applied_offset=header.applied_offset,
        settled_offset=header.settled_offset,
        settled_time_ms=header.settled_time_ms,
        opened=True,
        seen_ms=now,
        now_ms=now,
    )


def read_documents(sql: apsw.Connection, partition: Partition, keys: Iterable[DocumentKey]) -> dict[DocumentKey, bytes]:
    """The documents under `keys` that exist. Raises StoreError for what is damaged.

    What is not found is looked for a second time, in the index that holds every key once more:
    a damaged key would make an operation look as if nobody had ever run it.
    """
    found: dict[DocumentKey, bytes] = {}
    missing: set[DocumentKey] = set()
    wanted, at = list(keys), 0
    for size in _READS:
        while len(wanted) - at >= size:
            _read_run(sql, partition, wanted[at : at + size], found, missing)
            at += size
    for key in missing:
        if key not in found:
            raise _damaged(f"document {key.key!r} in {key.collection!r} is missing")
    return found


def _read_run(
    sql: apsw.Connection,
    partition: Partition,
    keys: Sequence[DocumentKey],
    found: dict[DocumentKey, bytes],
    missing: set[DocumentKey],
) -> None:
    """Read a few documents with one statement; those that their twins say there are become `missing`, too."""
    place = (partition.topic.value, partition.number)
    for number, value, checksum in sql.execute(_reading(len(keys)), (*place, *chain.from_iterable(keys))):
        key = keys[number]
        if value is None:
            missing.add(key)
        else:
            found[key] = _intact(partition, key, value, checksum)


@cache
def _reading(count: int) -> str:
    """The statement that reads so many documents: (number, value, checksum), and NULLs for each twin that is there."""
    part = """SELECT {0}, value, checksum FROM documents NOT INDEXED
            WHERE topic = ?1 AND partition = ?2 AND collection = ?{1} AND key = ?{2}
        UNION ALL SELECT {0}, NULL, NULL FROM documents INDEXED BY documents_twin
            WHERE topic = ?1 AND partition = ?2 AND collection = ?{1} AND key = ?{2}"""
    return " UNION ALL ".join(part.format(number, 2 * number + 3, 2 * number + 4) for number in range(count))


def read_collection(
    sql: apsw.Connection, partition: Partition, collection: str, *, after: str | None = None, count: int = -1
) -> dict[DocumentKey, bytes]:
    """Documents of a collection by ascending key: those behind `after`, at most `count` (-1: all).

    Raises StoreError for what is damaged: each row has its checksum, and the keys are there twice.
    """
    bound = "" if after is None else "AND key > :after"
    where = (
        f"WHERE topic = :topic AND partition = :number AND collection = :collection {bound} ORDER BY key LIMIT :count"
    )
    values = {
        "topic": partition.topic.value,
        "number": partition.number,
        "collection": collection,
        "after": after or "",
        "count": count,
    }
    select = "SELECT key, value, checksum FROM documents NOT INDEXED "
    select_twins = "SELECT key FROM documents INDEXED BY documents_twin "
    try:
        rows: list[Any] = sql.execute(select + where, values).fetchall()
        twins: list[Any] = sql.execute(select_twins + where, values).fetchall()
    except UnicodeDecodeError as error:
        raise _damaged(f"a key in {collection!r} is not text") from error
    if [row[0] for row in rows] != [twin[0] for twin in twins]:
        raise _damaged(f"the keys in {collection!r} are not what they were")
    return {
        (at := DocumentKey(collection, key)): _intact(partition, at, value, checksum) for key, value, checksum in rows
    }


def write_step(
    sql: apsw.Connection, partition: Partition, header: Header, step: Mapping[DocumentKey, bytes | None]
) -> None:
    """Store the header's offsets and the documents that changed."""
    place = (partition.topic.value, partition.number)
    offsets = (header.applied_offset, header.settled_offset, header.settled_time_ms)
    sql.execute(
        """UPDATE headers SET applied_offset = ?, settled_offset = ?, settled_time_ms = ?, checksum = ?
           WHERE topic = ? AND partition = ?""",
        (*offsets, header_checksum(*place, *offsets, header.generation), *place),
    )
    rows: list[Any] = []
    gone: dict[str, list[str]] = {}
    for key, value in step.items():
        if value is None:
            gone.setdefault(key.collection, []).append(key.key)
        else:
            rows += (*place, *key, value, document_checksum(*place, *key, value))
    for collection, keys in gone.items():
        _in_runs(sql, _DELETE, "?", keys, (*place, collection))
    _in_runs(sql, _WRITE, "(?, ?, ?, ?, ?, ?)", rows)


def _in_runs(
    sql: apsw.Connection, statement: tuple[str, str], mark: str, values: Sequence[Any], before: tuple[Any, ...] = ()
) -> None:
    """Execute a statement that takes any number of rows, for runs of a few sizes, which the client keeps prepared.

    A row a statement would let go of the interpreter for each: others take it, and it has to be waited for.

    Args:
        statement: what stands before and behind the marks of the rows.
        mark: of one row.
        values: of all rows, one after the other; those `before` are the same in every run.
    """
    width, at = mark.count("?"), 0
    for size in _RUNS:
        while len(values) - at >= size * width:
            text = f"{statement[0]}{', '.join([mark] * size)}{statement[1]}"
            sql.execute(text, (*before, *values[at : at + size * width]))
            at += size * width


def _intact(partition: Partition, key: DocumentKey, value: bytes, checksum: int) -> bytes:
    if document_checksum(partition.topic.value, partition.number, *key, value) != checksum:
        raise _wrong(key)
    return value


def _wrong(key: DocumentKey) -> StoreError:
    return _damaged(f"document {key.key!r} in {key.collection!r} has a wrong checksum")


def _damaged(what: str) -> StoreError:
    return StoreError(
        f"The projection is damaged: {what}.",
        next_step="Run `fencepost projector rebuild`: the log has everything. Check the disk as well.",
    )


# -- the log ---------------------------------------------------------------------------


def append(sql: apsw.Connection, rows: Iterable[Row]) -> None:
    """Add rows to the end of the log."""
    values: list[Any] = []
    for (topic, number), offset, time_ms, key, value in rows:
        columns = (topic.value, number, offset, time_ms, key, value)
        values += (*columns, row_checksum(*columns))
    _in_runs(sql, _APPEND, "(?, ?, ?, ?, ?, ?, ?)", values)


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
            """SELECT "offset", time_ms, CAST(key AS BLOB), value, checksum FROM log
               WHERE topic = ? AND partition = ? AND "offset" >= ? AND "offset" < ? ORDER BY "offset" LIMIT ?""",
            (*place, start, end, _CHUNK),
        ).fetchall()
        if not rows:
            return
        for offset, time_ms, key, value, checksum in rows:
            entry = read_entry(partition, offset, time_ms, key=key, value=value)
            if row_checksum(*place, offset, time_ms, entry.key or "", value) != checksum:
                entry = replace(entry, record=None, problem=WRONG_CHECKSUM)
            yield entry
        start = rows[-1][0] + 1


def raw_record(sql: apsw.Connection, partition: Partition, offset: int) -> RawRecord | None:
    """A row's bytes, whatever they say."""
    row: Any = sql.execute(
        """SELECT time_ms, CAST(key AS BLOB), value FROM log WHERE topic = ? AND partition = ? AND "offset" = ?""",
        (partition.topic.value, partition.number, offset),
    ).fetchone()
    return RawRecord(*row) if row else None


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
