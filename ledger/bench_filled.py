"""Ledgers with many operations, made quickly: the records are those of guarded effects, written without running any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from . import embedded, history, urls
from .embedded_apply import Transaction
from .embedded_tables import Row, append, log_bounds, now_ms
from .facts import EffectClass, EffectFact, EffectKind, ResultForm, encode_effect
from .history import PositionedFact, Record
from .identity import canonical, digest, keyed_op_id
from .operations import idempotency_key
from .ports import Log
from .positions import Partition, Position, Topic

TOOL = "bench.pay"
_CHUNK = 5_000
_AT_ONCE = 1_000
_NOWHERE_ASKED = Position(0, 0)


@dataclass(frozen=True, slots=True)
class Author:
    """The session that the facts name: one that was opened, or one that nobody asks about."""

    agent_id: str = "bench-filler"
    session_id: str = "f" * 32
    epoch: Position = _NOWHERE_ASKED


def facts_of(author: Author, number: int, *, first_seq: int = 1) -> tuple[EffectFact, EffectFact]:
    """The intent and the commit of the author's operation with this number, as a guarded effect writes them."""
    arguments = canonical({"agent": author.agent_id, "number": number})
    op_id = keyed_op_id(tool=TOOL, key=f"{author.session_id}-{number}", occurrence=1)
    intended = EffectFact(
        kind=EffectKind.INTENDED, op_id=op_id, attempt_id=f"{author.session_id[:20]}{number:012}",
        agent_id=author.agent_id, branch_id="main", session_id=author.session_id, epoch=author.epoch,
        seq=first_seq + 2 * number, tool=TOOL, effect_class=EffectClass.IRREVERSIBLE, identity_digest=digest(arguments),
        content_digest=digest(b"{}"), arguments=arguments, idempotency_key=idempotency_key(op_id, 1), deadline_s=30.0,
        time_ms=now_ms(),
    )  # fmt: skip
    result = b'{"paid":%d}' % number
    committed = replace(
        intended, kind=EffectKind.COMMITTED, seq=intended.seq + 1, arguments=None, idempotency_key="", deadline_s=0.0,
        result=result, result_form=ResultForm.JSON, result_digest=digest(result),
    )  # fmt: skip
    return intended, committed


# -- any log ---------------------------------------------------------------------------


async def fill(log: Log, author: Author, operations: int, *, first_seq: int = 1) -> Mapping[str, float]:
    """Write operations to a log, each an intent and a commit on top of it; bytes of an operation by name."""
    size = 0
    for start in range(0, operations, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, operations))
        pairs = [facts_of(author, number, first_seq=first_seq) for number in numbers]
        intents = [Record(i.op_id, (), encode_effect(i), i.session_id) for i, _ in pairs]
        offsets = await asyncio.gather(*(_publish(log, record) for record in intents))
        commits = [
            Record(
                c.op_id, (PositionedFact(Position(0, offset or 0), intent.fact or b""),), encode_effect(c), c.session_id
            )
            for (_, c), intent, offset in zip(pairs, intents, offsets, strict=True)
        ]
        await asyncio.gather(*(_publish(log, record) for record in commits))
        size += sum(len(history.encode(r)) + len(r.key.encode()) for r in (*intents, *commits))
    return {"log_bytes_an_operation": size / max(operations, 1)}


async def _publish(log: Log, record: Record) -> int | None:
    return await log.publish(Partition(Topic.EFFECTS, log.partition_of(Topic.EFFECTS, record.key)), record)


# -- the embedded store ----------------------------------------------------------------


async def fill_embedded(url: str, operations: int) -> Mapping[str, float]:
    """Append operations to a file that nobody else uses and project them; bytes of an operation by name."""
    store = embedded.open_store(urls.parse(url))
    size = 0
    try:
        for start in range(0, operations, _CHUNK):
            numbers = range(start, min(start + _CHUNK, operations))
            size += await store.log.write(partial(_append, numbers=numbers), alone=True)
        await store.rebuild()
    finally:
        await store.close()
    return {"log_bytes_an_operation": size / max(operations, 1)}


def _append(transaction: Transaction, numbers: range) -> int:
    partition = Partition(Topic.EFFECTS, 0)
    rows = list(_rows(partition, log_bounds(transaction.sql, partition)[1], numbers))
    append(transaction.sql, rows)
    return sum(len(row.value) + len(row.key) for row in rows)


def _rows(partition: Partition, offset: int, numbers: range) -> Iterator[Row]:
    author, time_ms = Author(), now_ms()
    for number in numbers:
        pair = facts_of(author, number)
        key, intended, committed = pair[0].op_id, *map(encode_effect, pair)
        yield Row(partition, offset, time_ms, key, history.encode(Record(key, (), intended, author.session_id)))
        known = (PositionedFact(Position(0, offset), intended),)
        yield Row(partition, offset + 1, time_ms, key, history.encode(Record(key, known, committed, author.session_id)))
        offset += 2


async def rebuild_embedded(url: str) -> float:
    """Rebuild the projection of a file; the seconds that it took."""
    store = embedded.open_store(urls.parse(url))
    try:
        await store.generation()  # connected
        began = time.perf_counter()
        await store.rebuild()
        return time.perf_counter() - began
    finally:
        await store.close()
