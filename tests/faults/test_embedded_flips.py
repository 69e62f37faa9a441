"""Single bytes flipped, or the end cut off, anywhere in the files: refused, or nothing is different."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from embedded_fixtures import EFFECTS, attempts_in, claim, ledger_at

from fencepost.ledger import urls
from fencepost.ledger.embedded import open_store
from fencepost.ledger.errors import FencepostError, StoreError
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import AGENTS, OPEN, OPS, agent_ops, seqs

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

OPERATIONS = 40
SCANNED = (agent_ops("nightly"), OPEN, AGENTS, seqs("nightly", Position(0, 1)))
T = TypeVar("T")
Answers = dict[object, Any]


async def answers(path: Path) -> Answers:
    """What the ledger says of each operation, one that nobody ran included, and in each list. Raises StoreError."""
    store = open_store(urls.parse(f"sqlite://{path}"))
    try:
        said: Answers = {}
        for number in range(OPERATIONS + 1):
            key = DocumentKey(OPS, f"op{number}")
            said[key] = (await store.projection.read(EFFECTS, [key])).documents.get(key)
        for collection in SCANNED:
            said[collection] = dict((await store.projection.scan(EFFECTS, collection)).documents)
        return said
    finally:
        await store.close()


def files_of(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()


async def filled(path: Path) -> tuple[bytes, bytes]:
    """A ledger of transactions of one record each: its file, and its write-ahead log."""
    async with ledger_at(path) as store:
        for number in range(OPERATIONS):
            await store.log.publish(EFFECTS, claim(f"op{number}", f"a{number}", seq=number + 1))
        return files_of(path)


def asked(work: Coroutine[Any, Any, T]) -> T | StoreError:
    try:
        return asyncio.run(work)
    except StoreError as error:
        return error


def put(path: Path, database: bytes, wal: bytes | None = None) -> None:
    for name in ("-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    path.write_bytes(database)
    if wal is not None:
        path.with_name(path.name + "-wal").write_bytes(wal)


def flipped(data: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_in_the_file_never_changes_an_answer(tmp_path: Path, seed: int) -> None:
    """An operation that somebody ran never looks free, and no list leaves one out: the read is refused."""
    path = tmp_path / "ledger.db"
    asyncio.run(filled(path))
    whole = path.read_bytes()
    truth = asyncio.run(answers(path))
    refused = 0
    for data in flipped(whole, random.Random(seed), 150):
        put(path, data)
        said = asked(answers(path))
        assert isinstance(said, StoreError) or said == truth
        refused += said != truth
    assert refused >= 15


@pytest.mark.parametrize("prefix", [b"effectsops", b"effectsagent-ops/nightly", b"effectsopen"])
def test_a_damaged_key_is_no_absence(tmp_path: Path, prefix: bytes) -> None:
    """Wherever a document's key stands in the file: damaged, the document is missed, and not taken for one that never was."""
    path = tmp_path / "ledger.db"
    asyncio.run(filled(path))
    whole, truth = path.read_bytes(), asyncio.run(answers(path))
    for number in (0, 7, 17, OPERATIONS - 1):
        place, refused = -1, 0
        while (place := whole.find(prefix + f"op{number}".encode(), place + 1)) >= 0:
            changed = bytearray(whole)
            changed[place + len(prefix)] ^= 0x01
            put(path, bytes(changed))
            said = asked(answers(path))
            assert isinstance(said, StoreError) or said == truth  # it may stand in a part of a page that is free
            refused += isinstance(said, StoreError)
        assert refused, "in the table at least: what is found there is not looked for in the index"


def test_a_flipped_bit_in_the_write_ahead_log_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """SQLite would stop at the damage and go on from there; the file is refused, and stays as it is for a repair.

    The last transaction is the exception: a damaged one looks like one that a crash cut off.
    """
    path = tmp_path / "ledger.db"
    database, wal = asyncio.run(filled(path))
    put(path, database, wal)
    truth = asyncio.run(attempts(path))
    assert len(truth) == OPERATIONS
    last, refused = f"a{OPERATIONS - 1}", 0
    for data in [*flipped(wal, random.Random(3), 25), *flipped_at(wal, range(0, 32, 5))]:
        put(path, database, data)
        for _ in range(2):
            said = asked(attempts(path))
            if isinstance(said, StoreError):
                assert "write-ahead log is damaged" in str(said)
                assert "Do not put an old copy" in str(said)
                assert files_of(path) == (database, data)
                refused += 1
            else:
                assert said >= truth - {last}
    assert refused >= 50


def flipped_at(data: bytes, places: range) -> Iterator[bytes]:
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 0x10
        yield bytes(changed)


async def attempts(path: Path) -> set[str]:
    store = open_store(urls.parse(f"sqlite://{path}"))
    try:
        await store.projection.read(EFFECTS, [])
        return attempts_in(store)
    finally:
        await store.close()


def test_a_crash_in_a_transaction_is_no_damage(tmp_path: Path) -> None:
    """A log that was cut off anywhere opens, with all that had been committed before; so does one with a torn end."""
    path = tmp_path / "ledger.db"
    database, wal = asyncio.run(filled(path))
    chance, frame = random.Random(5), 24 + 4096
    for _ in range(25):
        whole = chance.randrange(len(wal) - 3 * frame)
        put(path, database, wal[:whole] + bytes(chance.randrange(0, 2 * frame)))
        assert asyncio.run(attempts(path)) <= {f"a{number}" for number in range(OPERATIONS)}
    put(path, database, wal)
    assert len(asyncio.run(attempts(path))) == OPERATIONS


def test_a_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """At any length."""
    path = tmp_path / "ledger.db"
    asyncio.run(filled(path))
    whole, chance = path.read_bytes(), random.Random(8)
    truth = asyncio.run(answers(path))
    for _ in range(25):
        put(path, whole[: chance.randrange(1, len(whole))])
        with pytest.raises(FencepostError):
            assert asyncio.run(answers(path)) != truth


def test_a_missing_record_is_not_passed_over_by_a_rebuild(tmp_path: Path) -> None:
    """The rebuild names the offsets, and leaves the projection as it was."""
    import apsw  # noqa: PLC0415 - the damage

    path = tmp_path / "ledger.db"
    asyncio.run(filled(path))
    sql = apsw.Connection(str(path))
    sql.execute('DROP TRIGGER log_forgets_nothing; DELETE FROM log WHERE "offset" IN (7, 8)')
    sql.close()

    async def work() -> None:
        before = await answers(path)
        async with ledger_at(path) as store:
            with pytest.raises(StoreError, match="records 7 to 8 are missing"):
                await store.rebuild()
        assert await answers(path) == before

    asyncio.run(work())
