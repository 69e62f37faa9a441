"""SQLite alone, WAL and synchronous=FULL: claim and commit as two transactions; and with group commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw
from bench import frame

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings

CLAIM = "INSERT INTO ops (key, state) VALUES (?, 'owned')"
COMMIT = "UPDATE ops SET state = 'committed', result = '{\"paid\":1}' WHERE key = ?"
Statement = tuple[str, str]


def connect(path: Path) -> apsw.Connection:
    sql = apsw.Connection(str(path))
    sql.set_busy_timeout(60_000)
    sql.pragma("journal_mode", "wal")
    sql.pragma("synchronous", "full")
    sql.execute("CREATE TABLE IF NOT EXISTS ops (key TEXT PRIMARY KEY, state TEXT, result TEXT) WITHOUT ROWID")
    return sql


def write(sql: apsw.Connection, statements: list[Statement]) -> None:
    """All of them in one transaction: one sync of the disk."""
    sql.execute("BEGIN IMMEDIATE")
    for text, key in statements:
        sql.execute(text, (key,))
    sql.execute("COMMIT")


def separate(settings: Settings, agents: int) -> Iterator[Measure]:
    """A connection an agent, two transactions an effect."""
    with frame.directory(settings) as directory:
        path = directory / "alone.db"
        connect(path).close()
        mine = threading.local()

        def effect(key: str) -> None:
            if not hasattr(mine, "sql"):
                mine.sql = connect(path)
            write(mine.sql, [(CLAIM, key)])
            write(mine.sql, [(COMMIT, key)])

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            return frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings))

        yield one_round


class Callers:
    """Group commit by the callers: who finds nobody committing commits for all that wait."""

    def __init__(self, path: Path) -> None:
        self._sql = connect(path)
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        self._waiting: list[tuple[Statement, threading.Event]] = []

    def write(self, statement: Statement) -> None:
        done = threading.Event()
        with self._lock:
            self._waiting.append((statement, done))
        with self._committing:
            if done.is_set():
                return
            with self._lock:
                batch, self._waiting = self._waiting, []
            write(self._sql, [one for one, _ in batch])
            for _, waiter in batch:
                waiter.set()


def by_callers(settings: Settings, agents: int) -> Iterator[Measure]:
    with frame.directory(settings) as directory:
        callers = Callers(directory / "callers.db")

        def effect(key: str) -> None:
            callers.write((CLAIM, key))
            callers.write((COMMIT, key))

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            return frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings))

        yield one_round


class Committer:
    """Group commit by one thread, for asyncio: one wake-up of the loop a commit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._waiting: list[tuple[Statement, asyncio.Future[None]]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def write(self, statement: Statement) -> None:
        done = asyncio.get_running_loop().create_future()
        with self._changed:
            self._waiting.append((statement, done))
            self._changed.notify()
        await done

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        sql = connect(self._path)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                batch, self._waiting = self._waiting, []
            if not batch:
                return
            write(sql, [one for one, _ in batch])
            batch[0][1].get_loop().call_soon_threadsafe(_resolve, [done for _, done in batch])


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


def by_one_thread(settings: Settings, agents: int) -> Iterator[Measure]:
    with frame.directory(settings) as directory:
        committer = Committer(directory / "committer.db")

        async def effect(key: str) -> None:
            await committer.write((CLAIM, key))
            await committer.write((COMMIT, key))

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            return asyncio.run(frame.in_tasks(effect, agents, each, f"r{number}", frame.meter(settings)))

        try:
            yield one_round
        finally:
            committer.close()


def rows() -> list[Row]:
    kinds = (
        ("baseline.sqlite", "SQLite FULL, two transactions, a connection an agent", separate),
        ("baseline.sqlite.group.threads", "SQLite FULL, group commit by the callers", by_callers),
        ("baseline.sqlite.group.asyncio", "SQLite FULL, group commit by one thread", by_one_thread),
    )
    return [
        frame.effects_row(name, what, agents, partial(prepare, agents=agents))
        for name, what, prepare in kinds
        for agents in frame.AGENTS
    ]


if __name__ == "__main__":
    frame.main(rows(), problem=frame.need("apsw"))
