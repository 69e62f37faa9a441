"""Export and import: a settled ledger as lines of JSON, facts byte for byte.

The way to another topic, partition count, or store: every key's history is written out; the
import writes it as histories of re-assertions, under a log generation that is one higher, so
that all that was positioned before stays before all that comes after. Fences are left out:
they start anew, since sessions of a former generation can publish nothing here.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TextIO

from . import log_keys
from . import projection as docs
from .engine import Engine
from .errors import ConflictError, InvalidArgumentError, StaleProjectionError
from .facts import decode_agent, decode_effect
from .history import PositionedFact, Record, decode
from .operation_fold import fold_operation
from .operations import Status
from .ports import Store
from .positions import Partition, Position, Topic
from .setup import creation
from .verification import pages

SCHEMA = "fencepost.export.v1"
NAMED = 10
"""How many operations a refusal names."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Line:
    """One key of an export."""

    topic: Topic
    key: str
    history: tuple[PositionedFact, ...]

    def written(self) -> str:
        """As a line of JSON."""
        history = [[p.generation, p.offset, base64.b64encode(f).decode()] for p, f in self.history]
        return json.dumps({"topic": self.topic.value, "key": self.key, "history": history}, ensure_ascii=False)

    @classmethod
    def read(cls, values: dict[str, Any], number: int) -> Line:
        """From a line's values; every fact is decoded. Raises InvalidArgumentError naming the line."""
        try:
            topic = Topic(values["topic"])
            history = tuple(
                PositionedFact(Position(int(g), int(o)), base64.b64decode(f, validate=True))
                for g, o, f in values["history"]
            )
            for _, fact in history:
                (decode_effect if topic is Topic.EFFECTS else decode_agent)(fact)
            return cls(topic, str(values["key"]), history)
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(number, str(error)) from error


def _bad(number: int, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"import: line {number} cannot be taken: {why}.",
        next_step="Export again; nothing of this file was imported.",
        field="import",
        line=number,
    )


async def export(engine: Engine, out: TextIO, *, progress: Progress | None = None) -> int:
    """Write a settled ledger to `out`; the number of keys written.

    Raises StaleProjectionError when the ledger is not settled: records not applied, debts not
    paid, operations owned, being undone, or unsafe. Nothing but complete exports end with an "end" line.
    """
    generation = await _require_settled(engine)
    digest, count = hashlib.sha256(), 0
    head = {"schema": SCHEMA, "ledger_id": engine.ledger_id, "generation": generation}
    out.write(json.dumps(head) + "\n")
    async for line in _lines(engine):
        text = line.written()
        digest.update(text.encode())
        out.write(text + "\n")
        count += 1
        if progress and count % 500 == 0:
            progress("keys", count, 0)
    out.write(json.dumps({"end": True, "keys": count, "sha256": digest.hexdigest()}) + "\n")
    return count


async def _require_settled(engine: Engine) -> int:
    reader, generation = engine.store.reader(), 0
    try:
        for topic in Topic:
            for partition in engine.view.partitions(topic):
                snapshot = await engine.view.scan(partition, docs.DEBTS)
                unsafe = await engine.view.scan(partition, docs.UNSAFE)
                _, end = await asyncio.to_thread(reader.bounds, partition)
                generation = snapshot.header.generation
                if snapshot.documents or snapshot.header.applied_offset < end:
                    raise _unsettled(f"{partition} is not settled")
                if await engine.view.not_released(partition, [key.key for key in unsafe.documents]):
                    raise _unsettled(f"{partition} has unsafe keys")
    finally:
        reader.close()
    found = [view.operation for view in await engine.view.open_operations()]
    for status, said in ((Status.OWNED, "owned"), (Status.COMPENSATING, "being undone")):
        names = sorted(operation.op_id for operation in found if operation.status is status)
        if names:
            more = f", and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise _unsettled(f"operations are {said}: {', '.join(names[:NAMED])}{more}")
    return generation


def _unsettled(why: str) -> StaleProjectionError:
    return StaleProjectionError(
        f"the ledger is not settled: {why}.",
        next_step="Stop the agents, carry plans to their end, settle what `fencepost in-doubt list --all` shows, and export "
        "again.",
    )


async def _lines(engine: Engine) -> AsyncIterator[Line]:
    store = engine.store
    yield await _ledger_line(engine)
    for partition in engine.view.partitions(Topic.EFFECTS):
        async for line in _collection(store, partition, docs.OPS):
            yield line
    for partition in engine.view.partitions(Topic.AGENTS):
        agents = await engine.view.scan(partition, docs.AGENTS)
        for _, agent_id in sorted(agents.documents):
            for family in ("session", "checkpoint", "absorbed", "call", "plan"):
                async for line in _collection(store, partition, docs.agent_documents(family, agent_id)):
                    yield line


async def _ledger_line(engine: Engine) -> Line:
    snapshot = await engine.view.scan(Partition(Topic.AGENTS, 0), docs.LEDGER)
    document = next(iter(snapshot.documents.values()))
    return Line(Topic.AGENTS, log_keys.LEDGER, docs.read_history(document))


async def _collection(store: Store, partition: Partition, collection: str) -> AsyncIterator[Line]:
    seen: set[str] = set()
    async for snapshot in pages(store, partition, collection):
        for data in snapshot.documents.values():
            record = decode(data)
            if record.key not in seen:
                seen.add(record.key)
                yield Line(partition.topic, record.key, record.history)


# -- import ----------------------------------------------------------------------------


def read_export(lines: Iterable[str]) -> tuple[dict[str, Any], list[Line]]:
    """(head, keys) of a complete export. Raises InvalidArgumentError naming the line."""
    head: dict[str, Any] | None = None
    found: list[Line] = []
    digest = hashlib.sha256()
    for number, text in enumerate(lines, start=1):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise _bad(number, f"not JSON ({error})") from error
        if not isinstance(values, dict):
            raise _bad(number, "not an object")
        if head is None:
            if values.get("schema") != SCHEMA:
                raise _bad(number, f"not an export of schema {SCHEMA}")
            head = values
        elif values.get("end"):
            if values.get("keys") != len(found) or values.get("sha256") != digest.hexdigest():
                raise _bad(number, "the checksum does not fit: the file was changed or cut")
            return head, found
        else:
            digest.update(text.rstrip("\r\n").encode())
            found.append(Line.read(values, number))
    raise _bad(len(found) + 1, "the end line is missing: the file was cut")


async def import_(
    store: Store,
    lines: Iterable[str],
    *,
    partitions: int | None = None,
    development: bool = False,
    progress: Progress | None = None,
) -> int:
    """Bring an export into a new, empty ledger; the number of keys written.

    The store is created here, under a log generation one higher than the export's. The ledger
    keeps its id, so its watermarks go on to be valid.

    Raises:
        InvalidArgumentError: the file is damaged, or the URL names another generation; nothing
            was written.
        ConflictError: there is a ledger already.
    """
    head, found = read_export(lines)
    for line in found:
        if line.topic is Topic.EFFECTS:
            fold_operation(line.key, line.history)
    generation = int(head["generation"]) + 1
    await store.initialise(partitions=partitions, development=development, generation=generation)
    if await store.generation() != generation:
        raise _taken(store)
    await asyncio.to_thread(_require_empty, store)
    for number, line in enumerate(found, start=1):
        fact = await creation(store, str(head["ledger_id"])) if line.key == log_keys.LEDGER else None
        await store.log.publish(_home(store, line), Record(line.key, line.history, fact, "import"))
        if progress and number % 100 == 0:
            progress("keys", number, len(found))
    return len(found)


def _taken(store: Store) -> ConflictError:
    return ConflictError(
        f"there is a ledger at {store.url} already.",
        next_step="Import into a new one: another file, or the next generation of the topics.",
    )


def _home(store: Store, line: Line) -> Partition:
    if line.topic is Topic.EFFECTS:
        return Partition(line.topic, store.log.partition_of(line.topic, line.key))
    owner = log_keys.agent_of(line.key)
    number = store.log.partition_of(line.topic, owner[1]) if owner else 0
    return Partition(line.topic, number)


def _require_empty(store: Store) -> None:
    reader = store.reader()
    try:
        for topic in Topic:
            for number in range(store.log.partitions(topic)):
                for entry in reader.entries(Partition(topic, number)):
                    if entry.key is not None and not log_keys.is_horizon(entry.key):
                        raise _taken(store)
    finally:
        reader.close()
