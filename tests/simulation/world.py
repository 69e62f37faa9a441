"""What the actors share: the log and its cleaner, the projection store, and the world outside, which never fails.

Everything that happens is noted in order; the checker reads nothing but these notes and what is left at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from simulation.loop import Process, SeededLoop

from fencepost.consumer.entries import RawMessage, entry_from_message
from fencepost.consumer.kafka_client import Settled, partitioner
from fencepost.ledger import history
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import Header
from fencepost.ledger.positions import Partition, Topic

EPOCH_MS = 1_800_000_000_000
"""What the clocks show when a run begins."""


class Event(NamedTuple):
    """Something that happened: when, by whom, what."""

    at: float
    who: str
    kind: str
    what: tuple[Any, ...]


@dataclass(slots=True)
class Faults:
    """How likely what goes wrong is, each time that it could."""

    slow: float = 0.0
    unknown: float = 0.0
    unavailable: float = 0.0
    no_offset: float = 0.0
    reply_lost: float = 0.0
    projector_crash: float = 0.0
    projector_trouble: float = 0.0
    interrupted: float = 0.0
    stalled: float = 0.0
    dies_in_tool: float = 0.0
    tool: float = 0.0
    cancelled: float = 0.0


@dataclass(slots=True)
class Stored:
    """One partition in the projection store. `header` is None when there is no projection."""

    header: Header | None = None
    epoch: str = ""
    documents: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def copy(self) -> Stored:
        return Stored(self.header, self.epoch, {name: dict(found) for name, found in self.documents.items()})


class Place:
    """One partition: every record that was ever written, what the cleaner left of them, and the projection."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.written: list[RawMessage] = []
        self.removed: set[int] = set()
        self.stored = Stored()
        self.snapshots: list[Stored] = []
        self.group: Settled | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def end(self) -> int:
        return len(self.written)

    @property
    def floor(self) -> int:
        """The settled offset that the group keeps: what no loss of the projection takes back."""
        return self.group.offset if self.group else 0

    def removable(self, below: int) -> list[int]:
        """Offsets that are superseded by a later record of their key which stands below `below`."""
        last: dict[bytes | None, int] = {}
        for raw in self.written[:below]:
            last[raw.key] = raw.offset
        return [
            raw.offset for raw in self.written[:below] if raw.offset < last[raw.key] and raw.offset not in self.removed
        ]

    def left(self, start: int = 0) -> list[RawMessage]:
        """What a reader finds from an offset on."""
        return [raw for raw in self.written[start:] if raw.offset not in self.removed]

    def wake(self) -> None:
        """Tell those who wait that the projection may have moved."""
        header = self.stored.header
        applied = header.applied_offset if header else 0
        waiting = []
        for beyond, future in self.waiters:
            if future.done():
                continue
            if applied > beyond or header is None or not header.opened:
                future.set_result(None)
            else:
                waiting.append((beyond, future))
        self.waiters = waiting


class Outside:
    """The world in which effects happen. It does what it is told, once for each time that it is told, and forgets nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._done: dict[str, str] = {}
        self._void: set[str] = set()

    def carry_out(self, who: str, claim: Any) -> str:
        """The effect happens; its result. "" if its key was voided: then it did not."""
        if claim.idempotency_key in self._void:
            self._world.note(who, "tool refused a void key", claim.call.op_id, claim.attempt_id)
            return ""
        result = f"done by {claim.attempt_id}"
        self._done[claim.idempotency_key] = result
        session = claim.session
        self._world.note(
            who, "ran", claim.call.op_id, claim.round, claim.attempt_id, session.session_id,
            session.agent_id, session.branch_id, claim.call.unconfirmed, result,
        )  # fmt: skip
        return result

    def look(self, key: str) -> str:
        """What a probe learns of a key: the result, or "" after it has voided the key."""
        found = self._done.get(key, "")
        if not found:
            self._void.add(key)
        return found


class World:
    """Everything there is."""

    def __init__(self, loop: SeededLoop, *, effects: int, agents: int, faults: Faults) -> None:
        self.loop = loop
        self.rng = loop.rng
        self.faults = faults
        self.counts = {Topic.EFFECTS: effects, Topic.AGENTS: agents}
        self.partition_of = {topic: partitioner(count) for topic, count in self.counts.items()}
        self.places = {p: Place(p) for t, count in self.counts.items() for p in (Partition(t, n) for n in range(count))}
        self.events: list[Event] = []
        self.outside = Outside(self)
        self.beats: dict[str, float] = {}
        self.closed = False
        self.down_until = 0.0
        self.interruptions: list[Callable[[], None]] = []
        self.grown = asyncio.Event()
        self._nowhere = Context()

    # -- notes, time, chance -------------------------------------------------------------

    def note(self, who: str, kind: str, *what: Any) -> None:
        if not self.closed:
            self.events.append(Event(round(self.loop.now, 6), who, kind, what))

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.now * 1000)

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    @property
    def down(self) -> bool:
        """Whether the log takes nothing now."""
        return self.loop.now < self.down_until

    def delay_s(self) -> float:
        """How long a message is under way."""
        if self.happens(self.faults.slow):
            return self.rng.uniform(0.05, 1.5)
        return self.rng.uniform(0.0005, 0.004)

    async def hop(self) -> None:
        """A message is under way."""
        self.require_open()
        await asyncio.sleep(self.delay_s())
        self.require_open()

    def require_open(self) -> None:
        """Once a run is over, nobody gets anything done any more."""
        if self.closed:
            raise asyncio.CancelledError

    def later(self, seconds: float, work: Callable[[], object]) -> None:
        """Something that happens whoever dies meanwhile."""
        self.loop.call_at(self.loop.now + seconds, work, context=self._nowhere)

    # -- the log -------------------------------------------------------------------------

    def append(self, partition: Partition, record: Record, who: str) -> int:
        """Write a record; its offset."""
        place = self.places[partition]
        offset = place.end
        raw = RawMessage(partition, offset, self.now_ms(), record.key.encode(), history.encode(record))
        place.written.append(raw)
        self.note(who, "wrote", partition, offset)
        self.grown.set()
        return offset

    def entry(self, raw: RawMessage) -> LogEntry:
        """A record as readers see it."""
        return entry_from_message(raw, self.partition_of[raw.partition.topic])

    def clean(self, partition: Partition, *, below: int, share: float) -> None:
        """The log cleaner passes: it removes a part of what it may remove."""
        place = self.places[partition]
        gone = [offset for offset in place.removable(below) if self.rng.random() < share]
        if gone:
            place.removed.update(gone)
            self.note("cleaner", "removed", partition, tuple(gone))

    # -- the projection store --------------------------------------------------------------

    def remember(self, partition: Partition) -> None:
        """A copy of the store's state, to which it may go back."""
        place = self.places[partition]
        if place.stored.header is not None:
            place.snapshots.append(place.stored.copy())

    def go_back(self, partition: Partition) -> None:
        """The store comes back with an older state."""
        place = self.places[partition]
        if place.snapshots:
            place.stored = self.rng.choice(place.snapshots).copy()
            header = place.stored.header
            self.note("store", "went back", partition, header.applied_offset if header else 0)
            place.wake()

    def lose(self, partition: Partition, *, with_epoch: bool) -> None:
        """The store loses a partition."""
        place = self.places[partition]
        if place.stored.header is None:
            return
        place.stored = Stored(epoch="" if with_epoch else place.stored.epoch)
        self.note("store", "lost", partition)
        place.wake()

    def header(self, partition: Partition) -> Header:
        """The header that a reader gets."""
        found = self.places[partition].stored.header
        return replace(found or Header(), now_ms=self.now_ms())

    def at_rest(self) -> str:
        """What the projectors have left to do, or ""."""
        for partition, place in self.places.items():
            header = place.stored.header
            if header is None or not header.opened:
                return f"{partition} is not open"
            if header.halted:
                return f"{partition} is halted: {header.halted}"
            if header.applied_offset != place.end:
                return f"{partition} is applied up to {header.applied_offset} of {place.end}"
            if debts := place.stored.documents.get("debts"):
                return f"{partition} owes {sorted(debts)}"
        return ""


def dead_or_lost(world: World, process: Process) -> bool:
    """Whether what a process handed to its client just before it died never left the machine."""
    return process.dead and world.rng.random() < 0.5
