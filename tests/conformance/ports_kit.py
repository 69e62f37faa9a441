"""What the tests of the ports share: a store in an event loop, and records of operations."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencepost.ledger.history import History
    from fencepost.ledger.ports import Header, Store

PATIENCE_S = 30.0


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        await store.close()


def intent(
    op_id: str, attempt_id: str, *, session_id: str = "s", seq: int = 0, arguments: bytes | None = None
) -> bytes:
    """The bytes of an intent."""
    return encode_effect(
        EffectFact(
            kind=EffectKind.INTENDED,
            op_id=op_id,
            attempt_id=attempt_id,
            agent_id=f"agent-of-{op_id}",
            branch_id="main",
            session_id=session_id,
            epoch=Position(0, 0),
            seq=seq,
            tool="tool",
            effect_class=EffectClass.IRREVERSIBLE,
            arguments=arguments,
        )
    )


def record(op_id: str, attempt_id: str, known: History = (), *, seq: int = 0, session_id: str = "s") -> Record:
    """A record with one intent."""
    return Record(op_id, known, intent(op_id, attempt_id, seq=seq, session_id=session_id), "test")


def place(store: Store, op_id: str) -> Partition:
    """Where an operation's records stand."""
    return Partition(Topic.EFFECTS, store.log.partition_of(Topic.EFFECTS, op_id))


async def published(store: Store, one: Record) -> int:
    """The offset of a record that was just published and is applied."""
    partition = place(store, one.key)
    offset = await store.log.publish(partition, one)
    assert offset is not None
    await applied(store, partition, offset)
    return offset


async def applied(store: Store, partition: Partition, offset: int) -> Header:
    """The header once the record at `offset` is applied and the projection is open."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        left = deadline - time.monotonic()
        assert left > 0, "never applied"
        header = await store.projection.advanced(partition, offset, timeout_s=min(left, 1.0))
        if header.opened and header.applied_offset > offset:
            return header
        await asyncio.sleep(0.01)
