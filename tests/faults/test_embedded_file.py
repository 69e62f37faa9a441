"""Files that are not ours, not ours any more, or damaged: refused, with the way on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import apsw
import pytest
from embedded_fixtures import EFFECTS, assert_sound, attempts_in, claim, ledger_at, log_of

from fencepost.ledger import embedded_file, urls
from fencepost.ledger.embedded import open_store
from fencepost.ledger.embedded_file import may_corrupt
from fencepost.ledger.errors import InvalidArgumentError, StoreError, StoreUnavailableError
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.projection import OPS

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path
    from typing import Any


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def filled(path: Path, count: int = 50) -> None:
    async with ledger_at(path) as store:
        await asyncio.gather(*(store.log.publish(EFFECTS, claim(f"op{i}", f"attempt-{i:04}")) for i in range(count)))


def edit(path: Path, sql: str) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql)


def refused(path: Path, match: str) -> None:
    """Every call is refused and the file stays as it is."""

    async def work() -> None:
        store = open_store(urls.parse(f"sqlite://{path}"))
        with pytest.raises(StoreError, match=match):
            await store.initialise()
        with pytest.raises(StoreError, match=match) as caught:
            await store.log.publish(EFFECTS, claim("a", "1"))
        assert caught.value.next_step
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own
        with pytest.raises(StoreError, match=match):
            await store.projection.read(EFFECTS, [])
        with pytest.raises(StoreError, match=match):
            store.reader().bounds(EFFECTS)
        assert not all(check.ok for check in await store.check())
        await store.close()

    before = path.read_bytes()
    run(work())
    assert path.read_bytes() == before


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    """Another program's tables, or another program's mark on an empty file."""
    for number, sql in enumerate(("CREATE TABLE t (a)", "PRAGMA application_id = 7")):
        path = tmp_path / f"{number}.db"
        edit(path, sql)
        refused(path, "file of another program")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """Text is not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100)
    refused(path, "damaged or is no database")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A later version of Fencepost may have put things there that this one would not heed."""
    path = tmp_path / "ledger.db"
    run(filled(path, 1))
    edit(path, "PRAGMA user_version = 3")
    refused(path, "Upgrade Fencepost")


def test_a_missing_ledger_is_not_created_by_a_read_or_a_publish(tmp_path: Path) -> None:
    """An empty ledger in place of a lost one would authorise anything."""

    async def work() -> None:
        path = tmp_path / "ledger.db"
        store = open_store(urls.parse(f"sqlite://{path}"))
        with pytest.raises(StoreError, match="There is no ledger"):
            await store.projection.read(EFFECTS, [])
        with pytest.raises(StoreError, match="There is no ledger"):
            await store.log.publish(EFFECTS, claim("a", "1"))
        assert not path.exists()
        path.touch()  # an empty file is none either, but may become one
        with pytest.raises(StoreError, match="There is no ledger"):
            await store.projection.read(EFFECTS, [])
        await store.close()
        async with ledger_at(path) as again:
            assert await again.log.publish(EFFECTS, claim("a", "1")) == 0

    run(work())


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    """Directories that are made get 0700; the file and what SQLite puts beside it 0600."""

    async def work() -> None:
        async with ledger_at(tmp_path / "a" / "b" / "ledger.db") as store:
            await store.log.publish(EFFECTS, claim("a", "1"))
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a").rglob("*")}
            assert modes == {"b": 0o700, "ledger.db": 0o600, "ledger.db-shm": 0o600, "ledger.db-wal": 0o600}

    umask = os.umask(0o000)
    try:
        run(work())
    finally:
        os.umask(umask)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a directory should be, and a directory where the file should be."""

    async def work() -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreUnavailableError, match="cannot be created"):
            await open_store(urls.parse(f"sqlite://{tmp_path}/file/ledger.db")).initialise()
        with pytest.raises(StoreUnavailableError, match="cannot be opened"):
            await open_store(urls.parse(f"sqlite://{tmp_path}")).initialise()

    run(work())


def test_only_urls_of_this_store_are_taken() -> None:
    """Another scheme, or a relative path, which would depend on the working directory."""
    kafka = "kafka://host:9092/fencepost?projection=redis://host:6379/0"
    for url in (urls.parse(kafka), urls.StoreUrl("sqlite:ledger.db", "sqlite", path="ledger.db")):
        with pytest.raises(InvalidArgumentError, match="url"):
            open_store(url)


@pytest.mark.parametrize(
    ("version", "corrupts"),
    [
        ("3.44.5", True), ("3.44.6", False), ("3.45.3", True), ("3.50.6", True), ("3.50.7", False),
        ("3.51.2", True), ("3.51.3", False), ("3.52.0", False), ("4.0.0", False),
    ],
)  # fmt: skip
def test_sqlite_versions_with_the_wal_reset_bug_are_refused(version: str, corrupts: bool) -> None:
    """Everything before 3.51.3, but for the two repaired branches."""
    assert may_corrupt(version) is corrupts


def test_an_old_sqlite_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the upgrade, and no file is made."""
    monkeypatch.setattr(embedded_file, "sqlite_version", lambda: "3.46.1")
    store = open_store(urls.parse(f"sqlite://{tmp_path}/ledger.db"))
    with pytest.raises(StoreError, match="pip install --upgrade"):
        asyncio.run(store.initialise())
    assert list(tmp_path.iterdir()) == []


def test_the_client_library_is_loaded_when_a_store_is_opened() -> None:
    """Importing the module is cheap for those who use another store."""
    code = "import sys, fencepost.ledger.embedded; sys.exit('apsw' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_damaged_document_is_not_believed_and_a_rebuild_repairs_it(tmp_path: Path) -> None:
    """A flipped letter in a history is noticed at the read; the log has the right one."""

    async def work() -> None:
        path = tmp_path / "ledger.db"
        await filled(path)
        edit(path, "UPDATE documents SET value = CAST(replace(CAST(value AS TEXT), 'attempt', 'attacks') AS BLOB)")
        async with ledger_at(path) as store:
            with pytest.raises(StoreError, match="fencepost projector rebuild"):
                await store.projection.read(EFFECTS, [DocumentKey(OPS, "op7")])
            with pytest.raises(StoreError, match="fencepost projector rebuild"):
                await store.log.publish(EFFECTS, claim("op7", "next"))
            await store.rebuild()
            assert (
                DocumentKey(OPS, "op7") in (await store.projection.read(EFFECTS, [DocumentKey(OPS, "op7")])).documents
            )
        assert len(await assert_sound(path)) == 50

    run(work())


def test_a_damaged_record_stops_nothing_else_and_makes_its_key_unsafe(tmp_path: Path) -> None:
    """It is reported with its offset; a rebuild sets it aside."""

    async def work() -> None:
        path = tmp_path / "ledger.db"
        await filled(path)
        edit(path, "DROP TRIGGER log_is_append_only; UPDATE log SET value = zeroblob(9) WHERE key = 'op7'")
        async with ledger_at(path) as store:
            (bad,) = [entry for entry in log_of(store) if entry.record is None]
            assert (bad.key, bad.problem) == ("op7", "the record has a wrong checksum")
            assert len(attempts_in(store)) == 49
            await store.rebuild()
            unsafe = await store.projection.scan(EFFECTS, "unsafe")
            assert [key.key for key in unsafe.documents] == ["op7"]
            assert unsafe.header.applied_offset == 51  # with the re-assertion that carries the mark

    run(work())


def test_the_log_cannot_be_edited_by_accident(tmp_path: Path) -> None:
    """Not even with a database shell."""
    path = tmp_path / "ledger.db"
    run(filled(path, 3))
    for sql in ("DELETE FROM log", "UPDATE log SET value = x'00'", 'UPDATE log SET "offset" = 9 WHERE "offset" = 2'):
        with pytest.raises(apsw.ConstraintError, match="never edited"):
            edit(path, sql)


@pytest.mark.parametrize("where", ["header", "truncated", "page"])
def test_a_damaged_file_is_refused(tmp_path: Path, where: str) -> None:
    """Detected when it is opened, read or checked; the error says what to do, and not to restore an old copy."""

    async def work() -> None:
        path = tmp_path / "ledger.db"
        await filled(path, 400)
        data = bytearray(path.read_bytes())
        if where == "header":
            data[:16] = b"SQLite format 9\0"
        elif where == "truncated":
            del data[len(data) // 2 :]
        else:
            data[4096:] = bytes(len(data) - 4096)
        path.write_bytes(data)
        store = open_store(urls.parse(f"sqlite://{path}"))
        checks = await store.check()
        assert [check for check in checks if not check.ok and check.severity == "refuse"]
        publishes = [store.log.publish(EFFECTS, claim(f"op{number}", "new")) for number in range(400)]
        with pytest.raises(StoreError) as caught:
            await asyncio.gather(*publishes)
        assert "Do not put an old copy in its place" in str(caught.value)
        await store.close()

    run(work())
