"""Verify holds no more in memory for a long log than for a short one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import apsw
from embedded_fixtures import EFFECTS, intent, ledger_at

from fencepost.ledger import Ledger, history, refolding
from fencepost.ledger.embedded_apply import Transaction
from fencepost.ledger.embedded_scratch import Scratch
from fencepost.ledger.history import Record
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.projection import PartitionFold
from fencepost.ledger.refolding import Gap, Refold
from fencepost.ledger.verification import MAX_FINDINGS, Finding, VerifyReport, runs_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def filled(path: Path, count: int) -> None:
    """A ledger of that many operations, in one transaction."""

    async def create() -> None:
        async with ledger_at(path):
            pass

    asyncio.run(create())
    sql = apsw.Connection(str(path))
    sql.execute("BEGIN IMMEDIATE")
    transaction = Transaction(sql, path, {})
    for number in range(count):
        op_id = f"op{number:05}"
        record = Record(op_id, (), intent(op_id, f"a{number}", seq=number + 1))
        transaction.publish(EFFECTS, op_id, history.encode(record))
    transaction.flush()
    sql.execute("COMMIT")
    sql.close()


def test_the_fold_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many operations there are, few documents are at hand at any time; all are compared."""
    monkeypatch.setattr(refolding, "_KEPT_DOCUMENTS", 100)
    monkeypatch.setattr(refolding, "_STEP_RECORDS", 50)
    held: list[int] = []
    forget = PartitionFold.forget

    def watched(fold: PartitionFold, **bounds: int) -> None:
        held.append(len(fold._documents))
        forget(fold, **bounds)

    for count in (300, 1500):
        path = tmp_path / f"{count}.db"
        filled(path, count)
        held.clear()
        monkeypatch.setattr(PartitionFold, "forget", watched)
        with Ledger.open(f"sqlite://{path}") as ledger:
            report = ledger.verify()
        monkeypatch.setattr(PartitionFold, "forget", forget)
        assert report.counts["operations"] == count
        assert [f for f in report.findings if f.grave] == []
        assert max(held) <= 100 + 100 // 2 + 50 * 5
        assert len(held) >= count // 50


def test_what_was_put_on_disk_is_read_back() -> None:
    """Documents, absences, what is compared, the runs of a collection, and what the log does not have."""
    scratch = Scratch()
    keys = [DocumentKey("ops", f"op{number:03}") for number in range(7)]
    scratch.write({key: key.key.encode() for key in keys} | {DocumentKey("open", "x"): b""})
    assert scratch.documents([keys[0], DocumentKey("ops", "none")]) == {
        keys[0]: b"op000",
        DocumentKey("ops", "none"): None,
    }
    assert scratch.collections() == ["open", "ops"]
    assert [len(run) for run in scratch.collection("ops", count=3)] == [3, 3, 1]
    scratch.compared(keys[:5])
    scratch.write({keys[0]: b"op000", keys[1]: b"changed", keys[2]: None})
    scratch.suspect([DocumentKey("ops", "made-up"), keys[3]])
    again = [key.key for run in scratch.not_compared("ops", count=2) for key in run]
    assert again == ["made-up", "op001", "op002", "op005", "op006"]
    assert [len(run) for run in scratch.keys("ops", count=5)] == [5, 3]
    assert scratch.size() == 7
    for start, end in ((0, 2), (7, 9)):
        scratch.note_gap(start, end)
    assert [offset for offset in range(-1, 11) if scratch.in_gap(offset)] == [0, 1, 7, 8]
    scratch.close()


def test_missing_records_are_gaps(tmp_path: Path) -> None:
    """They are named, wherever they are: nothing is ever removed from a file."""
    path = tmp_path / "ledger.db"
    filled(path, 20)
    sql = apsw.Connection(str(path))
    sql.execute('DROP TRIGGER log_forgets_nothing; DELETE FROM log WHERE "offset" IN (0, 1, 7, 8, 19)')
    sql.close()

    async def gaps() -> list[Gap]:
        async with ledger_at(path) as store:
            reader, scratch = store.reader(), Scratch()
            refold = Refold(EFFECTS, Header(applied_offset=20, settled_offset=20), scratch)
            refold.read_on(reader, 20)
            scratch.close()
            reader.close()
            return refold.gaps

    assert asyncio.run(gaps()) == [Gap(0, 2), Gap(7, 9), Gap(19, 20)]
    with Ledger.open(f"sqlite://{path}") as ledger:
        found = [f.text for f in ledger.verify().findings if f.kind == "log"]
    assert found == [
        "the records 0 to 1 are missing, and nothing may have removed them",
        "the records 7 to 8 are missing, and nothing may have removed them",
        "the records 19 to 19 are missing, and nothing may have removed them",
    ]


def test_a_report_is_bounded() -> None:
    """What is too much to list is counted, and still breaks the promise."""
    report = VerifyReport()
    for number in range(MAX_FINDINGS + 7):
        report.add(Finding("owner", f"op{number}", "twice"))
    report.add(Finding("unaccounted", "s", "3", grave=False))
    assert (len(report.findings), report.more, report.ok) == (MAX_FINDINGS + 1, 7, False)
    assert report.to_dict()["more"] == 7


def test_numbers_are_named_in_runs() -> None:
    """All of them, unless there are very many runs."""
    assert runs_of([]) == ""
    assert runs_of([3]) == "3"
    assert runs_of([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    many = runs_of(range(1, 300, 2))
    assert many.endswith("97, 99, and 100 more runs up to 299")
