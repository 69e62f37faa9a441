"""What the writer keeps from one transaction to the next is what the file says, or is dropped."""

from __future__ import annotations

import asyncio
import contextlib
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import pytest
from embedded_fixtures import EFFECTS, assert_sound, claim, ledger_at, log_of

from fencepost.ledger import embedded_known
from fencepost.ledger.embedded_apply import Transaction
from fencepost.ledger.embedded_known import Documents
from fencepost.ledger.embedded_store import EmbeddedWriting
from fencepost.ledger.embedded_threads import ThreadReply
from fencepost.ledger.embedded_writer import Job
from fencepost.ledger.errors import FencepostError, PublishRefusedError
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.ports import DocumentKey, Snapshot
from fencepost.ledger.projection import OPS, read_history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fencepost.ledger.embedded_store import EmbeddedStore
    from fencepost.ledger.history import Record

FILES = ("", "-wal", "-shm")


class Published(NamedTuple):
    """What a publish left: its record's offset, the attempts of its operation, and where the log ends."""

    offset: int
    attempts: list[str]
    end: int


def publish_in(writing: Transaction | EmbeddedWriting, record: Record) -> Published:
    if isinstance(writing, Transaction):
        writing = EmbeddedWriting(writing)
    offset = writing.publish(EFFECTS, record)
    key = DocumentKey(OPS, record.key)
    snapshot = writing.read(EFFECTS, [key])
    attempts = fold_operation(key.key, read_history(snapshot.documents[key])).attempts
    return Published(offset, list(attempts), snapshot.header.applied_offset)


async def publish(store: EmbeddedStore, record: Record) -> Published:
    return await store.log.write(lambda transaction: publish_in(transaction, record))


def error_of(reply: ThreadReply[Any]) -> FencepostError:
    with pytest.raises(FencepostError) as caught:
        reply.wait()
    return caught.value


def create(path: Path) -> None:
    async def run() -> None:
        async with ledger_at(path):
            pass

    asyncio.run(run())


@contextlib.contextmanager
def transaction_at(path: Path) -> Iterator[Transaction]:
    """A transaction on an existing ledger, committed at the end."""
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        sql.execute("BEGIN IMMEDIATE")
        transaction = Transaction(sql, path, {}, {})
        yield transaction
        transaction.flush()
        sql.execute("COMMIT")


def test_what_another_process_wrote_is_heeded(tmp_path: Path) -> None:
    """Two stores, connected by the file alone, take turns on one operation: each sees the attempts of both."""
    path = tmp_path / "ledger.db"

    async def run() -> None:
        async with ledger_at(path) as here, ledger_at(path) as there:
            made: list[str] = []
            for number in range(12):
                store = (here, there)[number // 2 % 2]  # each twice in a row: the second time it knows what it wrote
                made.append(f"a{number:02}")
                published = await publish(store, claim("op", made[-1]))
                assert published.attempts == made
                assert published.offset == max(0, 2 * number - 1)  # all but the first leave a debt that is paid
        await assert_sound(path)

    asyncio.run(run())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_nothing_is_known_of_a_transaction_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The disk is full before or after the rows are written: what was folded is forgotten, and the next publish is right."""
    path = tmp_path / "ledger.db"
    flush = Transaction.flush

    def fail(self: Transaction) -> None:
        if moment == "after":
            flush(self)
        raise apsw.FullError("no room")

    async def run() -> None:
        async with ledger_at(path) as store:
            await publish(store, claim("op", "first"))
            with monkeypatch.context() as patched:
                patched.setattr(Transaction, "flush", fail)
                lost = [publish(store, claim(key, "lost")) for key in ("op", "other")]
                answers = await asyncio.gather(*lost, return_exceptions=True)
                assert [type(answer) for answer in answers] == [PublishRefusedError] * 2
            published = await publish(store, claim("op", "second"))
            assert (published.offset, published.attempts) == (1, ["first", "second"])
            assert (await publish(store, claim("other", "third"))).attempts == ["third"]
        await assert_sound(path)

    asyncio.run(run())


def test_a_defect_while_writing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever published hears that nothing was written, and the writer goes on."""
    path = tmp_path / "ledger.db"

    def fail(_: Transaction) -> None:
        raise KeyError("defect")

    async def run() -> None:
        async with ledger_at(path) as store:
            with monkeypatch.context() as patched:
                patched.setattr(Transaction, "flush", fail)
                with pytest.raises(FencepostError, match="KeyError"):
                    await asyncio.wait_for(publish(store, claim("op", "lost")), 20)
            assert (await publish(store, claim("op", "first"))).attempts == ["first"]
            assert [entry.offset for entry in log_of(store)] == [0]

    asyncio.run(run())


def test_a_failed_job_is_answered_once(tmp_path: Path) -> None:
    """A job that failed by itself is not answered again when its transaction fails: the writer goes on, and nobody hangs."""
    path = tmp_path / "ledger.db"

    def refused(_: Transaction) -> None:
        raise PublishRefusedError("by itself", next_step="Nothing.")

    def full(_: Transaction) -> None:
        raise apsw.FullError("no room")

    async def run() -> None:
        async with ledger_at(path) as store:
            await publish(store, claim("op", "first"))
            for failing in (full, refused):
                replies = [ThreadReply[None](), ThreadReply[None](), ThreadReply[None]()]
                jobs = (Job(refused, replies[0]), Job(failing, replies[1]), Job(full, replies[2]))
                await asyncio.to_thread(store.log._writer._serve, list(jobs))
                told = [str(await asyncio.to_thread(error_of, reply)) for reply in replies]
                assert told[0].startswith("by itself")
                assert "no room" in told[2]
            assert (await publish(store, claim("op", "second"))).attempts == ["first", "second"]

    asyncio.run(run())


def test_what_is_damaged_is_told_to_whose_work_reads_it(tmp_path: Path) -> None:
    """Works of one transaction are read for together; a damaged document among them fails its own work, and no other."""
    path = tmp_path / "ledger.db"
    sound, damaged = DocumentKey(OPS, "sound"), DocumentKey(OPS, "damaged")

    async def run() -> None:
        async with ledger_at(path) as store:
            for name in ("sound", "damaged"):
                await publish(store, claim(name, "first"))
            with contextlib.closing(apsw.Connection(str(path))) as sql:
                sql.execute("UPDATE documents SET value = x'00' WHERE collection = ? AND key = ?", damaged)
            replies = [ThreadReply[Snapshot](), ThreadReply[Snapshot](), ThreadReply[Snapshot]()]
            jobs = [
                Job(methodcaller("read", EFFECTS, [key]), reply, reads=(EFFECTS, [key]))
                for key, reply in zip((sound, damaged, sound), replies, strict=True)
            ]
            await asyncio.to_thread(store.log._writer._serve, jobs)
            assert "wrong checksum" in str(await asyncio.to_thread(error_of, replies[1]))
            assert [sound in reply.wait().documents for reply in (replies[0], replies[2])] == [True, True]

    asyncio.run(run())


def test_an_older_copy_in_its_place_is_not_written(tmp_path: Path) -> None:
    """Restored into the very files that are open, an older copy is noticed although the writer knows how it stands."""
    path = tmp_path / "ledger.db"

    async def run() -> None:
        async with ledger_at(path) as store:
            await publish(store, claim("op", "first"))
            older = {name: path.with_name(path.name + name).read_bytes() for name in FILES}
            await publish(store, claim("op", "second"))
            for name in FILES:
                with path.with_name(path.name + name).open("r+b") as file:
                    file.write(older[name])
            with pytest.raises(PublishRefusedError, match="older state"):
                await publish(store, claim("op", "third"))

    asyncio.run(run())


def test_a_document_that_many_records_change_is_written_once(tmp_path: Path) -> None:
    """Publishes that share a transaction write their rows, and each document and the header once."""
    path = tmp_path / "ledger.db"
    create(path)
    with transaction_at(path) as transaction:
        before = transaction.sql.total_changes()
        found = [publish_in(transaction, claim("op", f"a{number}", seq=number + 1)) for number in range(20)]
        assert [one.attempts[-1] for one in found] == [f"a{number}" for number in range(20)]
        assert found[-1].end == 39  # all but the first leave a debt that is paid
        documents = 5  # the operation, that it is open, its agent, the agent's operation, the numbers that were seen
        assert transaction.sql.total_changes() - before == found[-1].end + documents + 1
    asyncio.run(assert_sound(path))


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of large records writes before its end; a record that fails in it leaves the others as they were."""
    monkeypatch.setattr(embedded_known, "MOST_GATHERED_BYTES", 5_000)
    path = tmp_path / "ledger.db"
    create(path)
    with transaction_at(path) as transaction:
        for number in range(20):
            publish_in(transaction, claim("op", f"a{number}", seq=number + 1))
            with pytest.raises(PublishRefusedError):
                transaction.publish(EFFECTS, "op", b"no record")
        [known] = transaction._known.values()
        assert len(known.rows) < 10
    assert len(asyncio.run(assert_sound(path))) == 20


def test_work_on_the_connection_sees_what_was_published(tmp_path: Path) -> None:
    """Whoever takes the connection finds everything in the tables; what he changes there is read again."""
    path = tmp_path / "ledger.db"
    create(path)
    with transaction_at(path) as transaction:
        publish_in(transaction, claim("op", "first"))
        assert transaction.sql.execute("SELECT count(*) FROM log WHERE key = 'op'").get == 1
        transaction.sql.execute("DELETE FROM documents")
        assert publish_in(transaction, claim("op", "second")).attempts == ["second"]


def test_known_documents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; what was used lately stays, and what is absent is known to be."""
    monkeypatch.setattr(embedded_known, "MOST_DOCUMENTS", 10)
    monkeypatch.setattr(embedded_known, "MOST_BYTES", 1_000)
    keys = [DocumentKey(OPS, str(number)) for number in range(1000)]
    for size in (1, 200):
        documents = Documents()
        documents.put({keys[0]: None})
        for key in keys[1:]:
            documents.put({key: bytes(size)})
            documents.trim()
            assert documents.pick([keys[0], key]) == ({keys[0]: None, key: bytes(size)}, [])
        found, missing = documents.pick(keys)
        assert len(found) <= 22
        assert len(found) + len(missing) == len(keys)
        documents.put({keys[0]: b"new"})
        assert documents.pick([keys[0]]) == ({keys[0]: b"new"}, [])
