"""Several processes create one ledger at the same moment."""

from __future__ import annotations

import threading
from pathlib import Path

import apsw

from fencepost.ledger import embedded_file
from fencepost.ledger.embedded_file import DatabaseFile
from fencepost.ledger.embedded_tables import APPLICATION_ID


def test_a_ledger_that_is_created_while_it_is_looked_at_is_ours(tmp_path: Path) -> None:
    """Another process commits its creation between two reads: it is no other program's file."""
    path = tmp_path / "ledger.db"
    path.touch()
    others: list[threading.Thread] = []

    def interfere(_: object, statement: str, __: object) -> bool:
        if "user_version" in statement and not others:
            others.append(threading.Thread(target=DatabaseFile(path).create, args=(0,)))
            others[0].start()
            others[0].join(timeout=1)  # the reader's snapshot may hold it up until it is done
        return True

    sql = apsw.Connection(str(path))
    sql.exec_trace = interfere
    marks = embedded_file._marks(sql)
    sql.exec_trace = None
    others[0].join(timeout=10)
    assert not others[0].is_alive()
    assert marks == (0, 0, 0)
    assert embedded_file._marks(sql)[0] == APPLICATION_ID
    sql.close()
