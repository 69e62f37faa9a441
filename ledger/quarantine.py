"""What was set aside, and how an operator deals with it.

A record that cannot be taken stops nothing: it is set aside, and its key is unsafe (DESIGN section
3.7). Here it is listed, shown with its bytes, and released:
    - a record of an operation, by resolving the operation: the operator says what became of it
    - any other, by the operator's word that he has looked (`set_aside`)
Each release is bound to the version that was seen, and says who decided and how he knows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..schemas.errors import DecodeError
from . import projection as docs
from . import resolutions
from .engine import Engine
from .errors import InvalidArgumentError, NotFoundError, VersionMovedError
from .facts import EffectFact, EffectKind, Outcome
from .marks import set_aside_mark
from .operations import Operation, Status
from .ports import DocumentKey, RawRecord
from .positions import Partition, Position, Topic
from .set_aside import SetAside, is_given, noted
from .verification import pages
from .view import OperationView

_PLACE = re.compile(r"(effects|agents)/(\d{1,9}):(\d{1,18})")


class Standing(StrEnum):
    """Where a record that was set aside stands.

    UNSAFE: its key is unsafe because of it. REPORTED: it distrusts nothing, and nobody has said
    that he has looked. RELEASED: an operator has dealt with it.
    """

    UNSAFE = "unsafe"
    REPORTED = "reported"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """One record that was set aside.

    Attributes:
        version: what a release must quote.
        operation: the operation that it belongs to, or that keeps the operator's word about it.
    """

    record: SetAside
    standing: Standing
    version: str
    operation: Operation

    @property
    def place(self) -> str:
        """PARTITION:OFFSET."""
        return self.record.place

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        record = self.record
        said = next((r.fact for r in reversed(self.operation.resolutions) if r.effective), None)
        released = said if said is not None and self.standing is Standing.RELEASED else None
        return {
            "place": record.place, "partition": str(record.partition), "offset": record.position.offset,
            "key": record.key, "problem": record.problem, "time_ms": record.time_ms,
            "standing": self.standing.value, "unsafe": self.standing is Standing.UNSAFE,
            "op_id": record.op_id, "version": self.version,
            "released_by": released.by if released else "", "evidence": released.evidence if released else "",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class QuarantinedDetails:
    """A record that was set aside, with its bytes.

    Attributes:
        raw: None when the log cleaner has removed it.
    """

    item: QuarantinedRecord
    raw: RawRecord | None


async def listed(engine: Engine) -> list[QuarantinedRecord]:
    """Everything that was set aside, in the order of partitions and offsets.

    An operation's record is listed also when its note is gone with it: the mark in the operation's
    history is not. Raises StaleProjectionError when a partition cannot be decided from.
    """
    found: list[QuarantinedRecord] = []
    for topic in Topic:
        for partition in engine.view.partitions(topic):
            records = await _noted(engine, partition)
            if topic is Topic.EFFECTS:
                records |= {r.position: r for r in await _marked(engine, partition) if r.position not in records}
            found += [await _standing(engine, record) for _, record in sorted(records.items())]
    return found


async def _noted(engine: Engine, partition: Partition) -> dict[Position, SetAside]:
    await engine.view.read(partition, [])  # refuses what may not be believed
    found = {}
    async for snapshot in pages(engine.store, partition, docs.SET_ASIDE):
        for key, data in snapshot.documents.items():
            record = _read(partition, key, data, snapshot.header.generation)
            found[record.position] = record
    return found


def _read(partition: Partition, key: DocumentKey, data: bytes, generation: int) -> SetAside:
    """What a note says. One that somebody has damaged is listed all the same: its name is the record's offset."""
    try:
        return noted(partition, data, generation)
    except DecodeError:
        problem = "the projection's note about it is damaged: see `fencepost projector verify`"
        return SetAside(partition, Position(generation, int(key.key) if key.key.isdecimal() else -1), None, problem)


async def _marked(engine: Engine, partition: Partition) -> Iterable[SetAside]:
    """Records whose marks stand in the histories of open operations."""
    found = []
    snapshot = await engine.view.scan(partition, docs.OPEN)
    for key in snapshot.documents:
        view = await engine.view.operation(key.key)
        mark = set_aside_mark(key.key)
        problem = "it could not be taken, and may be gone from the log"
        found += [SetAside(partition, at, key.key, problem) for at, data in view.facts if data == mark]
    return found


async def _standing(engine: Engine, record: SetAside) -> QuarantinedRecord:
    if record.op_id:
        view = await engine.view.operation(record.op_id)
        operation = view.operation
        dealt_with = operation.last_resolution > record.position and not view.seen.unsafe
        dealt_with = dealt_with and operation.status is not Status.UNSAFE
        standing = Standing.RELEASED if dealt_with else Standing.UNSAFE
        return QuarantinedRecord(record, standing, operation.version, operation)
    operation, _ = await engine.view.folded(record.word)
    standing = Standing.UNSAFE if record.distrusted else Standing.REPORTED
    if is_given(operation):
        standing = Standing.RELEASED
    return QuarantinedRecord(record, standing, str(record.position), operation)


async def shown(engine: Engine, place: str) -> QuarantinedDetails:
    """One record that was set aside, with its bytes if the log still has them.

    Args:
        place: PARTITION:OFFSET, as in "effects/3:17".

    Raises:
        InvalidArgumentError: it is not written like that.
        NotFoundError: nothing was set aside there.
    """
    item = await _found(engine, place)
    partition, offset = item.record.partition, item.record.position.offset
    reader = await asyncio.to_thread(engine.store.reader)
    try:
        ours = item.record.position.generation == (await engine.view.read(partition, [])).header.generation
        raw = await asyncio.to_thread(reader.raw, partition, offset) if ours else None
    finally:
        await asyncio.to_thread(reader.close)
    return QuarantinedDetails(item, raw)


async def _found(engine: Engine, place: str) -> QuarantinedRecord:
    matched = _PLACE.fullmatch(place)
    if matched is None:
        raise InvalidArgumentError(
            f"place: {place!r} is not PARTITION:OFFSET.", next_step="Write it like effects/3:17.", field="place"
        )
    partition, offset = Partition(Topic(matched[1]), int(matched[2])), int(matched[3])
    if partition in engine.view.partitions(partition.topic):
        note = DocumentKey(docs.SET_ASIDE, str(offset))
        snapshot = await engine.view.read(partition, [note])
        if note in snapshot.documents:
            record = _read(partition, note, snapshot.documents[note], snapshot.header.generation)
            return await _standing(engine, record)
        for item in await listed(engine):
            if (item.record.partition, item.record.position.offset) == (partition, offset):
                return item
    raise NotFoundError(
        f"nothing was set aside at {place}.",
        next_step="List what was with `fencepost projector quarantine list`.",
        field="place",
    )


async def release(
    engine: Engine,
    place: str,
    *,
    version: str,
    by: str,
    evidence: str,
    outcome: Outcome | None = None,
    result: Any = None,
    risk_accepted: bool = False,
) -> QuarantinedRecord:
    """Record that an operator has dealt with a record that was set aside; the record afterwards.

    Args:
        version: as it was seen.
        outcome: what became of the operation, COMMITTED or ABSENT; for an operation's record only.
        result: the effect's result, with COMMITTED.
        risk_accepted: with ABSENT, the operator takes the risk that the effect still happens.

    Raises:
        NotFoundError: nothing was set aside there.
        InvalidArgumentError: an outcome is missing, or given where there is no operation.
        VersionMovedError: it is not what was looked at any more.
        RefusedError: ABSENT cannot be known yet.
        StaleProjectionError: not confirmed in time; look again.
    """
    item = await _found(engine, place)
    if item.standing is Standing.RELEASED:
        raise InvalidArgumentError(
            f"place: {place} is released already.",
            next_step="See by whom with `fencepost projector quarantine show`.",
            field="place",
        )
    if bool(item.record.op_id) != (outcome is not None):
        raise _outcome_error(item)
    if version != item.version:
        raise _moved(item, version)
    if outcome is not None:
        await resolutions.resolve(
            engine, item.record.op_id, outcome, version=version, by=by, evidence=evidence, result=result,
            risk_accepted=risk_accepted,
        )  # fmt: skip
    else:
        await _give_word(engine, item, by=by, evidence=evidence)
    return await _standing(engine, item.record)


async def _give_word(engine: Engine, item: QuarantinedRecord, *, by: str, evidence: str) -> None:
    view: OperationView = await engine.view.operation(item.record.word)
    fact = EffectFact(
        kind=EffectKind.RESOLVED,
        op_id=item.record.word,
        attempt_id=engine.new_id(),
        outcome=Outcome.ABSENT,
        version=view.operation.version,
        by=by,
        evidence=evidence,
        reason=f"the record set aside at {item.place} was looked at: {item.record.problem}"[:500],
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_effect(fact, view.facts)
    await resolutions.confirmed(engine, view, fact, offset)


def _outcome_error(item: QuarantinedRecord) -> InvalidArgumentError:
    if item.record.op_id:
        return InvalidArgumentError(
            f"outcome: the record at {item.place} belongs to operation {item.record.op_id}: say what became of it.",
            next_step="Say committed or absent.",
            field="outcome",
        )
    return InvalidArgumentError(
        f"outcome: the record at {item.place} belongs to no operation.",
        next_step="Leave the outcome out.",
        field="outcome",
    )


def _moved(item: QuarantinedRecord, seen: str) -> VersionMovedError:
    return VersionMovedError(
        f"the record at {item.place} is not what you saw: you saw version {seen or '(none)'}, it is "
        f"{item.version or '(none)'} now.",
        next_step="Look at it with `fencepost projector quarantine show` and decide anew.",
        op_id=item.record.op_id,
        seen=seen,
        current=item.version,
    )
