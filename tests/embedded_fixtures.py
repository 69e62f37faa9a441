"""What the tests of the embedded store share. Importable by the processes that they spawn."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from fencepost.ledger import urls
from fencepost.ledger.embedded import open_store
from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Position, Topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencepost.ledger.embedded_store import EmbeddedStore
    from fencepost.ledger.history import History, LogEntry

EFFECTS = Partition(Topic.EFFECTS, 0)
AGENTS = Partition(Topic.AGENTS, 0)


def intent(op_id: str, attempt_id: str, *, arguments: bytes = b"", branch_id: str = "main", seq: int = 0) -> bytes:
    return encode_effect(
        EffectFact(
            kind=EffectKind.INTENDED,
            op_id=op_id,
            attempt_id=attempt_id,
            agent_id="nightly",
            branch_id=branch_id,
            session_id=f"session-{branch_id}",
            epoch=Position(0, 1),
            seq=seq,
            tool="mail.send",
            effect_class=EffectClass.IRREVERSIBLE,
            identity_digest="d",
            arguments=arguments,
        )
    )


def claim(op_id: str, attempt_id: str, history: History = (), **more: object) -> Record:
    return Record(op_id, history, intent(op_id, attempt_id, **more), "test")  # type: ignore[arg-type]


def fence(key: str, branch_id: str, epoch: int) -> Record:
    fact = EffectFact(kind=EffectKind.FENCED, agent_id="nightly", branch_id=branch_id, epoch=Position(0, epoch))
    return Record(key, (), encode_effect(fact), "test")


@contextlib.asynccontextmanager
async def ledger_at(path: Path) -> AsyncIterator[EmbeddedStore]:
    """An initialised store that is closed at the end."""
    store = open_store(urls.parse(f"sqlite://{path}"))
    try:
        await store.initialise()
        yield store
    finally:
        await store.close()


def log_of(store: EmbeddedStore, partition: Partition = EFFECTS) -> list[LogEntry]:
    reader = store.reader()
    try:
        return list(reader.entries(partition))
    finally:
        reader.close()


def attempts_in(store: EmbeddedStore) -> set[str]:
    """Attempts of which the log has a record of their own."""
    from fencepost.ledger.facts import decode_effect  # noqa: PLC0415 - keeps the children's start short

    facts = [entry.record.fact for entry in log_of(store) if entry.record and entry.record.fact]
    return {decode_effect(fact).attempt_id for fact in facts}


def documents_at(path: Path) -> list[tuple[object, ...]]:
    """Every document and header offset of a file that nobody has open."""
    with contextlib.closing(apsw.Connection(str(path))) as sql:
        documents = sql.execute("SELECT topic, partition, collection, key, value FROM documents").fetchall()
        return [*documents, *sql.execute("SELECT * FROM headers").fetchall()]


async def assert_sound(path: Path) -> set[str]:
    """The file is whole, offsets are dense, and the projection is what the log gives; the attempts in it."""
    async with ledger_at(path) as store:
        checks = await store.check()
        assert [check for check in checks if not check.ok and check.severity == "refuse"] == []
        entries = log_of(store)
        assert [entry.offset for entry in entries] == list(range(len(entries)))
        attempts = attempts_in(store)
    before = documents_at(path)
    async with ledger_at(path) as store:
        await store.rebuild()
    assert documents_at(path) == before
    return attempts


async def publish_many(path: Path, name: str, *, agents: int, count: int, ops: int = 0) -> None:
    """Publish `count` claims from each of several agents; every acknowledged attempt is a line on stdout.

    With `ops`, they claim that many operations between them, knowing nothing of each other.
    """
    async with ledger_at(path) as store:

        async def agent(number: int) -> None:
            for i in range(count):
                attempt_id = f"{name}.{number}.{i}"
                op_id = f"op{(number + i) % ops}" if ops else attempt_id
                await store.log.publish(EFFECTS, claim(op_id, attempt_id, seq=i + 1))
                sys.stdout.write(f"{attempt_id}\n")
                sys.stdout.flush()

        await asyncio.gather(*(agent(number) for number in range(agents)))


def main() -> None:
    path, name, agents, count, ops = sys.argv[1:]
    asyncio.run(publish_many(Path(path), name, agents=int(agents), count=int(count), ops=int(ops)))


if __name__ == "__main__":
    main()
