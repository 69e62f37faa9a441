"""Small reads of the embedded store are done at once, large and locked ones by the reading thread; all are checked alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from embedded_fixtures import EFFECTS, claim, ledger_at

from fencepost.ledger.embedded_glance import MOST_AT_ONCE, MOST_DOCUMENTS, Glance, _Eye
from fencepost.ledger.embedded_reader import Reader
from fencepost.ledger.embedded_tables import header_checksum
from fencepost.ledger.errors import StoreError, StoreUnavailableError
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.projection import OPS, agent_ops, read_history

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.ledger.embedded_store import EmbeddedStore


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each job that the reading thread got."""
    jobs: list[str] = []
    submit = Reader.submit

    def noted(self: Reader, *arguments: Any) -> None:
        jobs.append("job")
        submit(self, *arguments)

    monkeypatch.setattr(Reader, "submit", noted)
    return jobs


async def _filled(store: EmbeddedStore, count: int) -> list[DocumentKey]:
    names = [f"op{number}" for number in range(count)]
    await asyncio.gather(*(store.log.publish(EFFECTS, claim(name, "a")) for name in names))
    return [DocumentKey(OPS, name) for name in names]


def _has_connection(eye: _Eye) -> bool:
    return eye._connection is not None


def test_what_is_small_is_read_at_once(tmp_path: Path, submitted: list[str]) -> None:
    """Up to a bound documents and collections are read without the thread; both ways give the same."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            keys = await _filled(store, MOST_DOCUMENTS)
            few = await store.projection.read(EFFECTS, keys)
            collection = await store.projection.scan(EFFECTS, agent_ops("nightly"))
            assert submitted == []
            assert len(few.documents) == len(collection.documents) == MOST_DOCUMENTS
            keys += [DocumentKey(OPS, "none")]
            many = await store.projection.read(EFFECTS, keys)
            assert submitted == ["job"]
            assert many.documents == few.documents
            await store.log.publish(EFFECTS, claim("one-more", "a"))
            assert len((await store.projection.scan(EFFECTS, agent_ops("nightly"))).documents) == MOST_DOCUMENTS + 1
            assert submitted == ["job", "job"]

    asyncio.run(run())


def test_a_read_shows_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    """Also when another process wrote it: each look is a snapshot of its own."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as here, ledger_at(path) as there:
            for number in range(20):
                offset = await there.log.publish(EFFECTS, claim(f"op{number}", "a"))
                snapshot = await here.projection.read(EFFECTS, [DocumentKey(OPS, f"op{number}")])
                assert snapshot.header.applied_offset == offset + 1
                assert len(snapshot.documents) == 1

    asyncio.run(run())


def test_what_cannot_be_read_at_once_is_left_to_the_thread(tmp_path: Path, submitted: list[str]) -> None:
    """While as many threads as may look at once do so, and when a connection fails; a failed one is replaced."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            [key] = await _filled(store, 1)
            await store.projection.read(EFFECTS, [key])
            glance = store.projection._glance
            eyes = [glance._taken() for _ in range(MOST_AT_ONCE)]
            assert store.at_once.look(EFFECTS, [key]) is None
            assert (await store.projection.read(EFFECTS, [key])).documents
            assert submitted == ["job"]
            for eye in eyes:
                assert eye is not None
                glance._give_back(eye)
            assert store.at_once.look(EFFECTS, [key]) is not None
            connection = glance._free[-1]._connection
            assert connection is not None
            connection.sql.close()
            assert (await store.projection.read(EFFECTS, [key])).documents
            assert submitted == ["job", "job"]
            assert (await store.projection.read(EFFECTS, [key])).documents
            assert submitted == ["job", "job"]

    asyncio.run(run())


def test_any_thread_may_look(tmp_path: Path) -> None:
    """Many threads look while records are written: none waits, each answer is of one moment, and none goes back."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            key = DocumentKey(OPS, "op")
            await store.log.publish(EFFECTS, claim("op", "a0"))
            writing, wrong, seen = True, list[str](), list[int]()

            def look() -> None:
                last = 0
                while writing:
                    time.sleep(0.0005)  # nobody waits for it: only so that the others get their turn
                    found = store.at_once.look(EFFECTS, [key, DocumentKey(OPS, "none")])
                    if found is None:
                        continue
                    facts = len(read_history(found.documents.get(key)))
                    if facts * 2 - 1 != found.header.applied_offset or facts < last:
                        wrong.append(f"{facts} facts at {found.header.applied_offset}, after {last}")
                    last = facts
                seen.append(last)

            looking = [asyncio.create_task(asyncio.to_thread(look)) for _ in range(MOST_AT_ONCE + 2)]
            for number in range(1, 40):  # each leaves a debt that is paid at once: two records
                await store.log.publish(EFFECTS, claim("op", f"a{number}"))
            writing = False
            await asyncio.gather(*looking)
            assert wrong == []
            assert max(seen) > 1

    asyncio.run(run())


def test_a_replaced_file_is_refused(tmp_path: Path) -> None:
    """A file that was exchanged or went back is noticed by the small reads themselves."""

    async def run() -> None:
        path = tmp_path / "ledger.db"
        async with ledger_at(path) as store:
            [key] = await _filled(store, 1)
            await store.projection.read(EFFECTS, [key])
            with contextlib.closing(apsw.Connection(str(path))) as sql:
                right = header_checksum("effects", 0, 0, 0, 0, 0)
                sql.execute(
                    "UPDATE headers SET applied_offset = 0, settled_offset = 0, settled_time_ms = 0, checksum = ?"
                    " WHERE topic = 'effects' AND partition = 0",
                    (right,),
                )
            with pytest.raises(StoreError, match="older state"):
                await store.projection.read(EFFECTS, [key])
            with contextlib.closing(apsw.Connection(str(path))) as sql:
                sql.pragma("user_version", 99)
            with pytest.raises(StoreError, match="format 99"):
                await store.projection.read(EFFECTS, [key])
            path.rename(tmp_path / "moved.db")
            with pytest.raises(StoreError, match="removed or replaced"):
                await store.projection.read(EFFECTS, [key])
            (tmp_path / "moved.db").rename(path)

    asyncio.run(run())


def test_nothing_is_read_after_the_close(tmp_path: Path) -> None:
    """A closed store refuses, and keeps no connection: one that is in use is closed when its look is over."""

    async def run() -> None:
        async with ledger_at(tmp_path / "ledger.db") as store:
            [key] = await _filled(store, 1)
            await store.projection.read(EFFECTS, [key])
            glance: Glance = store.projection._glance
            free, other = glance._taken(), glance._taken()
            assert free is not None
            assert other is not None
            assert _has_connection(free)
            other.look(lambda _sql, _seen: None)
            glance._give_back(free)
            await store.close()
            assert [_has_connection(eye) for eye in (free, other)] == [False, True]
            glance._give_back(other)
            assert not _has_connection(other)
            assert glance.look(lambda _sql, _seen: 1) is None
            with pytest.raises(StoreUnavailableError, match="closed"):
                await store.projection.read(EFFECTS, [key])

    asyncio.run(run())
