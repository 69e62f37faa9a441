"""Projectors: the real `PartitionWorker` on a partition of the simulated log and store, and what may happen to it.

Between any two of its steps a projector may die, be told that a step failed although it did not, or find that
somebody else (another projector, the cleaner, a loss) was there in the meantime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from simulation.loop import Process
from simulation.world import World

from fencepost.consumer.entries import RawMessage
from fencepost.consumer.kafka_client import Settled
from fencepost.consumer.kafka_log import PartitionLog
from fencepost.consumer.partition_store import MovedError, PartitionStore
from fencepost.consumer.partition_worker import PartitionWorker
from fencepost.consumer.scripts import Answer, Claimed
from fencepost.ledger import history
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.history import Record
from fencepost.ledger.ports import DocumentKey, Header, Step
from fencepost.ledger.positions import Partition
from fencepost.ledger.projection import DEBTS, UNKNOWN_TIME_MS, Debt

TOPIC_ID = "simulated"
_IDLE_S = 0.5
_COMMIT_S = 0.5


class DiedError(BaseException):
    """The process is gone; not an Exception, so that nothing handles it."""


class SimulatedPartitionLog(PartitionLog):
    """A partition of the log, to one worker."""

    def __init__(self, machine: Machine, partition: Partition) -> None:
        self.partition = partition
        self.partition_of = machine.world.partition_of[partition.topic]
        self.codec = None
        self.topic_id = TOPIC_ID
        self.generation = 0
        self.position: int | None = None
        self._stalled_until = 0.0
        self._machine = machine
        self._place = machine.world.places[partition]
        self._reports: list[Callable[[], None]] = []

    def start(self, offset: int, leader_epoch: int) -> None:
        del leader_epoch
        self.position = offset

    def stop(self) -> None:
        self.position = None

    def publish(self, record: Record, delivered: Callable[[int | None, str], None]) -> None:
        machine, world, faults = self._machine, self._machine.world, self._machine.world.faults
        machine.step("publish")
        history.encode(record)
        unheard = world.down or world.happens(faults.unknown)
        lost = world.down or (unheard and world.happens(0.5))

        def land() -> None:
            offset = None if lost else world.append(self.partition, record, machine.process.name)
            told = None if world.happens(faults.no_offset) else offset
            self._reports.append(lambda: delivered(told, "no answer" if unheard else ""))

        world.later(world.delay_s(), land)

    def settled(self) -> Settled | None:
        self._machine.step("ask the group")
        return self._place.group

    def bounds(self) -> tuple[int, int]:
        return 0, self._place.end

    def known_end(self) -> int:
        return self._place.end

    def fetch(self) -> list[tuple[RawMessage, int]]:
        """The next entries, some of them; now and then the broker of a partition is slow."""
        world = self._machine.world
        if self.position is None or self.position >= self._place.end or world.loop.now < self._stalled_until:
            return []
        if world.happens(world.faults.stalled):
            self._stalled_until = world.loop.now + world.rng.uniform(0.02, 0.8)
            return []
        found = self._place.left(self.position)[: world.rng.randint(1, 6)]
        if found:
            self.position = found[-1].offset + 1
        return [(raw, 0) for raw in found]

    @property
    def behind(self) -> bool:
        stalled = self._machine.world.loop.now < self._stalled_until
        return not stalled and self.position is not None and self.position < self._place.end

    def hear(self) -> None:
        """Take the delivery reports that have come."""
        reports, self._reports = self._reports, []
        for report in reports:
            report()


class SimulatedPartitionStore(PartitionStore):
    """A partition of the projection store, to one worker: the checks of the scripts, in memory."""

    def __init__(self, machine: Machine, partition: Partition) -> None:
        self._machine = machine
        self._place = machine.world.places[partition]
        self._partition = partition
        self._epoch = ""
        self._header: Header | None = None

    def claim(self) -> Claimed:
        self._machine.step("claim")
        stored = self._place.stored
        number = int(stored.epoch.partition(":")[0] or 0) + 1
        self._machine.claims += 1
        self._epoch = stored.epoch = f"{number}:{self._machine.process.name}.{self._machine.claims}"
        self._header = stored.header or Header()
        self._machine.reply("claim")
        return Claimed(self._epoch, self._header, -1, 0)

    def drop(self) -> None:
        self._machine.step("drop")
        self._proven_owner()
        self._place.stored.header = None
        self._place.wake()
        self._machine.world.note(self._machine.process.name, "dropped", self._partition)

    def begin(self, header: Header) -> None:
        self.drop()
        self._machine.step("begin")
        self._proven_owner()
        self._place.stored.documents.clear()
        self._place.stored.header = replace(header, seen_ms=self._machine.world.now_ms())
        self._header = header
        self._machine.world.note(self._machine.process.name, "began", self._partition, header.horizon)
        self._place.wake()
        self._machine.reply("begin")

    def apply(self, step: Step, leader_epoch: int) -> None:
        del leader_epoch
        self._machine.step("apply")
        self._proven()
        stored = self._place.stored
        was = stored.header
        stored.header = replace(step.header, seen_ms=self._machine.world.now_ms())
        for (collection, key), data in step.writes.items():
            if collection == DEBTS and data is not None and Debt.read(data).time_ms == UNKNOWN_TIME_MS:
                self._machine.world.note(self._machine.process.name, "judged at the horizon", self._partition, key)
            documents = stored.documents.setdefault(collection, {})
            if data is None:
                documents.pop(key, None)
            else:
                documents[key] = data
        if step.header.opened and was and not was.opened:
            self._machine.world.note(self._machine.process.name, "opened", self._partition)
        self._place.wake()
        self._machine.reply("apply")
        self._header = step.header

    def heartbeat(self, *, touch: bool, halted: str = "") -> None:
        self._machine.step("heartbeat")
        self._proven()
        stored = self._place.stored
        assert stored.header is not None
        if touch:
            stored.header = replace(stored.header, seen_ms=self._machine.world.now_ms())
        if halted:
            stored.header = replace(stored.header, halted=halted)
            self._machine.world.note(self._machine.process.name, "halted", self._partition, halted)

    def documents(self, wanted: Iterable[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        self._machine.step("read")
        self._expect(self._place.stored.header or Header())
        documents = self._place.stored.documents
        return {key: documents.get(key.collection, {}).get(key.key) for key in wanted}

    def collection(self, name: str) -> Iterator[dict[DocumentKey, bytes]]:
        self._machine.step("read")
        self._expect(self._place.stored.header or Header())
        yield {DocumentKey(name, key): data for key, data in self._place.stored.documents.get(name, {}).items()}

    def _proven_owner(self) -> None:
        epoch = self._place.stored.epoch
        if epoch != self._epoch:
            self._refuse("epoch" if epoch else "lost", epoch)

    def _proven(self) -> None:
        self._proven_owner()
        header, owner = self._place.stored.header, self._owner()
        if header is None:
            self._refuse("lost", "")
        elif header.incarnation != owner.incarnation:
            self._refuse("incarnation", header.incarnation)
        elif header.applied_offset != owner.applied_offset:
            self._refuse("offset", str(header.applied_offset))

    def _refuse(self, outcome: str, found: str) -> None:
        error = MovedError(Answer(outcome, found), self._epoch)
        name = "was superseded" if error.superseded else f"found another {outcome}"
        self._machine.world.note(self._machine.process.name, name, self._partition)
        raise error


class Machine:
    """One projector with all partitions: takes turns until it is stopped or dies."""

    worker_kind: type[PartitionWorker] = PartitionWorker

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.claims = 0
        self.owns_group = True
        self.stopped = False
        self._busy = False
        self._committed_at = 0.0
        self._workers: list[tuple[SimulatedPartitionLog, PartitionWorker]] = []
        for partition in world.places:
            log = SimulatedPartitionLog(self, partition)
            store = SimulatedPartitionStore(self, partition)
            self._workers.append((log, self.worker_kind(log, store, clock=lambda: world.loop.now)))

    async def live(self) -> None:
        """Take turns, when something was written or from time to time."""
        loop, world = self.world.loop, self.world
        while not self.stopped and not self.process.dead:
            try:
                self.turn()
            except DiedError:
                loop.kill(self.process)
                return
            if not self._behind():
                await self._something_new()
            await world.hop()

    def stop(self) -> None:
        """After the turn that it is in."""
        self.stopped = True

    def turn(self) -> None:
        """What `Projector` does in a turn: fetch and apply, hear reports, serve, commit settled offsets."""
        if self._busy:
            return
        self._busy = True
        try:
            for log, worker in self._workers:
                if messages := log.fetch():
                    worker.take(messages)
                log.hear()
                worker.serve(alive=True)
            if self.world.loop.now - self._committed_at >= _COMMIT_S:
                self._committed_at = self.world.loop.now
                self._commit()
        finally:
            self._busy = False

    def step(self, name: str) -> None:
        """Before a step: the process may die, the step may fail, or somebody may come in between."""
        world, faults = self.world, self.world.faults
        if world.happens(faults.projector_crash):
            world.note(self.process.name, "died", f"before {name}")
            raise DiedError
        if world.happens(faults.projector_trouble):
            raise StoreUnavailableError(f"{name} failed", next_step="Wait.")
        if world.interruptions and world.happens(faults.interrupted):
            world.rng.choice(world.interruptions)()

    def reply(self, name: str) -> None:
        """After a step that took effect: the process may die, or never hear of it."""
        world, faults = self.world, self.world.faults
        if world.happens(faults.projector_crash):
            world.note(self.process.name, "died", f"after {name}")
            raise DiedError
        if world.happens(faults.reply_lost):
            world.note(self.process.name, "heard nothing", name)
            raise StoreUnavailableError(f"{name}: no answer", next_step="Wait.")

    def _behind(self) -> bool:
        return any(log.behind for log, _ in self._workers)

    async def _something_new(self) -> None:
        grown = self.world.grown
        grown.clear()
        self.world.loop.call_later(_IDLE_S, grown.set)
        await grown.wait()

    def _commit(self) -> None:
        if not self.owns_group:  # the group refuses the commits of former members
            return
        for log, worker in self._workers:
            if (settled := worker.unsaved()) is not None:
                with contextlib.suppress(StoreUnavailableError):  # it is committed later
                    self.step("commit")
                    self.world.places[log.partition].group = settled
                    worker.saved(settled)
