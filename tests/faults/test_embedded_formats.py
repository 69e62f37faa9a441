"""Files of older and newer formats: brought forward, or refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
from pathlib import Path

import apsw
import pytest
from embedded_fixtures import EFFECTS, claim, ledger_at

from fencepost.ledger import EffectClass, Ledger, Watermark, embedded_formats
from fencepost.ledger.embedded_errors import DatabaseError
from fencepost.ledger.embedded_file import DatabaseFile
from fencepost.ledger.embedded_tables import FORMAT, log_entries
from fencepost.ledger.errors import StoreError

FIXTURES = Path(__file__).parent / "fixtures"
OLDER = tuple(range(1, FORMAT))


def copy_of(number: int, directory: Path) -> Path:
    return Path(shutil.copy(FIXTURES / f"ledger-format-{number}.db", directory / "ledger.db"))


def schema_of(path: Path) -> set[tuple[object, ...]]:
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        rows = sql.execute("SELECT type, name, sql FROM sqlite_schema").fetchall()
        return {(kind, name, " ".join(str(text).split())) for kind, name, text in rows}


def test_there_is_a_ledger_of_every_format() -> None:
    """Whoever makes a new format leaves a ledger of it behind: the next one will have to read it."""
    assert {path.name for path in FIXTURES.glob("*.db")} == {f"ledger-format-{n}.db" for n in range(1, FORMAT + 1)}


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_ledger_of_an_older_version_is_brought_forward(tmp_path: Path, number: int) -> None:
    """The same operations, checkpoints, and decisions; nothing runs again; verify and rebuild agree."""
    path = copy_of(number, tmp_path)
    for _ in range(2):
        with Ledger.open(f"sqlite://{path}") as ledger:
            found = {view.operation.op_id: view.operation for view in ledger.operations("nightly")}
            states = {name: operation.status.value for name, operation in found.items()}
            assert states == {"billing.charge:A1": "committed", "docs.read:1": "committed", "mail.send:17": "free"}
            assert found["mail.send:17"].resolutions[0].fact.by == "alice"
            assert [c.checkpoint_id for c in ledger.checkpoints("nightly")][:2] == ["c1", "c2"]
            with ledger.session("nightly") as agent:
                with agent.attempt(
                    "billing.charge", key="A1", kind=EffectClass.IRREVERSIBLE, resource="order:A1"
                ) as one:
                    assert (one.owned, one.result) == (False, {"id": "ch-1"})
                mark = agent.checkpoint(f"c-{agent.session_id}")
                assert Watermark.parse(mark.token) == mark
            report = ledger.verify()
            assert (report.ok, report.findings) == (True, [])
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        assert sql.pragma("user_version") == FORMAT


@pytest.mark.parametrize("number", OLDER)
def test_an_old_file_ends_up_like_a_new_one(tmp_path: Path, number: int) -> None:
    """The same tables and triggers, whichever way they came about."""
    old, new = copy_of(number, tmp_path), tmp_path / "new.db"
    for path in (old, new):
        DatabaseFile(path).create(0)
    assert {row[:2] for row in schema_of(old)} == {row[:2] for row in schema_of(new)}
    assert schema_of(old) == schema_of(new)


def test_what_was_damaged_before_stays_damaged(tmp_path: Path) -> None:
    """Bringing a file forward blesses nothing: a damaged record stays one; documents are derived from what is right."""
    path = copy_of(1, tmp_path)
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        sql.execute("UPDATE documents SET value = zeroblob(9) WHERE key = 'billing.charge:A1' AND collection = 'ops'")
        sql.execute("DROP TRIGGER log_is_append_only; UPDATE log SET value = zeroblob(9) WHERE key = 'docs.read:1'")
    with Ledger.open(f"sqlite://{path}") as ledger:
        assert ledger.operation("billing.charge:A1").operation.status.value == "committed"
        assert "wrong checksum" in ledger.operation("docs.read:1").seen.unsafe
        assert not ledger.verify().ok
    reader = DatabaseFile(path).connect(query_only=True)
    bad = [entry.problem for entry in log_entries(reader.sql, EFFECTS, 0, 99) if entry.record is None]
    reader.close()
    assert bad == ["the record has a wrong checksum"]


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one transaction: the file is as it was, and the next one tries again."""
    path, right = copy_of(1, tmp_path), embedded_formats._STEPS[2]

    def fails(sql: apsw.Connection) -> None:
        right(sql)
        sql.execute("SELECT * FROM nowhere")

    before = schema_of(path)
    monkeypatch.setattr(embedded_formats, "_STEPS", {2: fails})
    with pytest.raises((StoreError, DatabaseError), match="nowhere"):
        DatabaseFile(path).connect()
    assert schema_of(path) == before
    monkeypatch.undo()
    DatabaseFile(path).connect().close()
    assert schema_of(path) != before


def test_several_processes_bring_a_file_forward_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One does it, the others wait and find it done."""
    path = copy_of(1, tmp_path)
    failures: list[BaseException] = []

    def connect() -> None:
        try:
            DatabaseFile(path).connect().close()
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=connect) for _ in range(6)]
    with caplog.at_level(logging.WARNING, logger="fencepost.store"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert failures == []
    assert len([r for r in caplog.records if "brought from format 1 to format" in r.getMessage()]) == 1


def test_a_newer_format_is_refused_by_both_versions_names(tmp_path: Path) -> None:
    """The error says which version wrote it, which this one is, and what to do; nothing is changed."""
    path = tmp_path / "ledger.db"
    DatabaseFile(path).create(0)
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        sql.pragma("user_version", FORMAT + 1)
        sql.execute("UPDATE meta SET value = '9.8.7' WHERE name = 'written_by'")
    before = path.read_bytes()
    for call in (lambda: DatabaseFile(path).connect(), lambda: DatabaseFile(path).create(0)):
        with pytest.raises(StoreError, match=r"format 3, of Fencepost 9\.8\.7; this is Fencepost 0\.") as caught:
            call()
        assert "Upgrade Fencepost to 9.8.7" in caught.value.next_step
        assert (caught.value.found, caught.value.known) == (FORMAT + 1, FORMAT)
    assert path.read_bytes() == before


def test_a_file_that_is_brought_forward_while_it_is_open_is_not_written(tmp_path: Path) -> None:
    """This process would write rows in the old way, and misread those of the new."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as store:
            await store.log.publish(EFFECTS, claim("a", "1"))
            with contextlib.closing(apsw.Connection(str(path))) as other:
                other.execute(f"PRAGMA user_version = {FORMAT + 1}")
            with pytest.raises(StoreError, match="this is Fencepost"):
                await store.log.publish(EFFECTS, claim("a", "2"))
            with pytest.raises(StoreError, match="this is Fencepost"):
                await store.projection.read(EFFECTS, [])

    asyncio.run(run())
