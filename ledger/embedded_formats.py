"""The formats of the file: how a new ledger gets its tables, and how an older one is brought forward.

The format's number is the file's `user_version`. A new file goes the way of an old one: the
tables of format 1, then every step up to the present format. A released step is never edited.

    1  log, documents, headers, presence, meta
    2  checksums cover keys and places as well as values; the keys of the documents are kept
       twice, since a damaged key would make a document look as if it had never been there; the
       documents are derived anew, since sequence numbers are indexed by agent and epoch
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, cast
from zlib import crc32

import apsw

from .embedded_apply import Transaction
from .embedded_tables import (
    APPLICATION_ID,
    FORMAT,
    begin_again,
    document_checksum,
    header_checksum,
    now_ms,
    row_checksum,
)
from .errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("fencepost.store")
_NEVER = -1
"""A checksum that no row has: what was damaged before a step stays damaged after it."""

_FIRST = f"""
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
"""


def create_tables(sql: apsw.Connection, generation: int) -> None:
    """Make the tables, unless another process did since they were looked for. In the caller's transaction."""
    if sql.pragma("application_id") == APPLICATION_ID:
        return
    sql.execute(_FIRST)
    meta = {"log_generation": str(generation), "created_ms": str(now_ms()), "incarnation": ""}
    sql.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    _step_forward(sql, 1)
    begin_again(sql)


def migrate(sql: apsw.Connection, path: Path) -> None:
    """Bring an older file to the present format: in one transaction, by whichever process comes first."""
    sql.execute("BEGIN IMMEDIATE")
    try:
        found = int(str(sql.pragma("user_version")))
        if 0 < found < FORMAT:
            _step_forward(sql, found)
            Transaction(sql, path, {}).rebuild(lambda *_: None)
            _log.warning("%s was brought from format %d to format %d", path, found, FORMAT)
        sql.execute("COMMIT")
    except BaseException:
        if sql.in_transaction:
            sql.execute("ROLLBACK")
        raise


def require_present(sql: apsw.Connection, path: Path) -> None:
    """Raise StoreError if a newer version has brought the file forward while it was open here."""
    found = int(str(sql.pragma("user_version")))
    if found != FORMAT:
        raise newer(sql, path, found)


def newer(sql: apsw.Connection, path: Path, found: int) -> StoreError:
    """The error for a file in a format that this version does not know; names both versions."""
    ours = version_of("fencepost")
    try:
        by: object = sql.execute("SELECT value FROM meta WHERE name = 'written_by'").get
    except apsw.Error:
        by = None
    return StoreError(
        f"{path} has format {found}, of Fencepost {by or '(a later version)'}; this is Fencepost {ours}, which reads "
        f"formats 1 to {FORMAT}.",
        next_step=f"Upgrade Fencepost to {by or 'that version'} everywhere this ledger is used; there is no way back "
        "to an older format.",
        path=str(path),
        found=found,
        known=FORMAT,
    )


def _step_forward(sql: apsw.Connection, found: int) -> None:
    for step in range(found + 1, FORMAT + 1):
        _STEPS[step](sql)
    sql.execute("INSERT OR REPLACE INTO meta VALUES ('written_by', ?)", (version_of("fencepost"),))
    sql.pragma("user_version", FORMAT)


# -- the steps ---------------------------------------------------------------------------


def _to_2(sql: apsw.Connection) -> None:
    """Checksums over keys and places; the keys of the documents once more."""
    sql.create_scalar_function("row_checksum_2", _or_never(row_checksum), 7, deterministic=True)
    sql.create_scalar_function("document_checksum_2", _or_never(document_checksum), 6, deterministic=True)
    sql.create_scalar_function("header_checksum_2", cast("Callable[..., int]", header_checksum), 6, deterministic=True)
    sql.execute(
        """
        DROP TRIGGER IF EXISTS log_is_append_only;
        UPDATE log SET checksum = row_checksum_2(topic, partition, "offset", time_ms, key, value, checksum);
        CREATE TRIGGER log_is_append_only BEFORE UPDATE ON log
            BEGIN SELECT RAISE(ABORT, 'the log is never edited'); END;
        UPDATE documents SET checksum = document_checksum_2(topic, partition, collection, key, value, checksum);
        CREATE INDEX documents_twin ON documents (topic, partition, collection, key);
        ALTER TABLE headers ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
        UPDATE headers SET checksum = header_checksum_2(topic, partition, applied_offset, settled_offset,
            settled_time_ms, (SELECT value FROM meta WHERE name = 'log_generation'));
        """
    )
    for name in ("row_checksum_2", "document_checksum_2", "header_checksum_2"):
        sql.create_scalar_function(name, None)


def _or_never(checksum: Callable[..., int]) -> Callable[..., int]:
    """The new checksum of a row whose old one, of its value alone and its last column, was right."""

    def carried_over(*columns: object) -> int:
        *row, value, former = columns
        intact = isinstance(value, bytes) and crc32(value) == former
        return checksum(*row, value) if intact else _NEVER

    return carried_over


_STEPS: Mapping[int, Callable[[apsw.Connection], None]] = {2: _to_2}
