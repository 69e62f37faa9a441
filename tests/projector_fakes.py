"""A log and a projection in memory, and a worker between them, whose every step a test takes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from fencepost.consumer.entries import RawMessage
from fencepost.consumer.kafka_client import Settled, partitioner
from fencepost.consumer.kafka_log import PartitionLog
from fencepost.consumer.partition_store import MovedError, PartitionStore
from fencepost.consumer.partition_worker import PartitionWorker, Phase
from fencepost.consumer.scripts import Answer, Claimed
from fencepost.ledger import history
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.ports import DocumentKey, Header, Step
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.schemas import Codec

PLACE = Partition(Topic.EFFECTS, 0)


class FakeLog(PartitionLog):
    """A log in memory; deliveries are reported when the test says so."""

    def __init__(self) -> None:
        self.partition = PLACE
        self.partition_of = partitioner(1)
        self.codec: Codec | None = None
        self.topic_id = "topic"
        self.generation = 0
        self.records: list[Record] = []
        self.reports: list[Callable[[int | None, str], None]] = []
        self.position: int | None = None
        self.first, self.end = 0, 0
        self.group: Settled | None = None
        self.down = False

    def start(self, offset: int, leader_epoch: int) -> None:
        del leader_epoch
        self.position = offset

    def stop(self) -> None:
        self.position = None

    def publish(self, record: Record, delivered: Callable[[int | None, str], None]) -> None:
        self.records.append(record)
        self.reports.append(delivered)

    def settled(self) -> Settled | None:
        if self.down:
            raise StoreUnavailableError("kafka is down")
        return self.group

    def bounds(self) -> tuple[int, int]:
        return self.first, self.end

    def known_end(self) -> int:
        return self.end


class FakeStore(PartitionStore):
    """A projection in memory."""

    def __init__(self) -> None:
        self.header = Header()
        self.held: Header | None = None
        self.docs: dict[DocumentKey, bytes] = {}
        self.claims = 0
        self.accepted = 0
        self.fails: Exception | None = None
        self.touched = 0
        self.asked: list[DocumentKey] = []

    def claim(self) -> Claimed:
        self._check()
        self.claims += 1
        self.held = self.header
        return Claimed(f"{self.claims}:x", self.header, -1, self.accepted)

    def drop(self) -> None:
        self.header = Header()

    def begin(self, header: Header) -> None:
        self._check()
        self.header = self.held = header
        self.docs.clear()

    def apply(self, step: Step, leader_epoch: int) -> None:
        del leader_epoch
        self._check()
        self._expect_held()
        self.header = self.held = step.header
        for key, value in step.writes.items():
            if value is None:
                self.docs.pop(key, None)
            else:
                self.docs[key] = value

    def heartbeat(self, *, touch: bool, halted: str = "") -> None:
        self._check()
        self._expect_held()
        self.touched += touch
        if halted:
            self.header = self.held = replace(self.header, halted=halted)

    def documents(self, wanted: Iterable[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        wanted = list(wanted)
        self._check()
        self._expect_held()
        self.asked += wanted
        return {key: self.docs.get(key) for key in wanted}

    def collection(self, name: str) -> Iterator[dict[DocumentKey, bytes]]:
        yield {key: value for key, value in self.docs.items() if key.collection == name}

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    def _expect_held(self) -> None:
        if not self.header.incarnation:
            raise MovedError(Answer("lost", ""), f"{self.claims}:x")
        if self.header != self.held:
            raise MovedError(Answer("offset", str(self.header.applied_offset)), f"{self.claims}:x")


class Stand:
    """A worker between a fake log and a fake store, and a clock that the test sets."""

    def __init__(self) -> None:
        self.log, self.store, self.now = FakeLog(), FakeStore(), 100.0
        self.worker = PartitionWorker(self.log, self.store, clock=lambda: self.now)

    def restart(self) -> None:
        """Go on with a worker that knows only what is stored."""
        self.worker = PartitionWorker(self.log, self.store, clock=lambda: self.now)
        self.serve()

    def serve(self) -> None:
        self.worker.serve(alive=True)

    def phase(self) -> Phase:
        return self.worker.phase

    def position(self) -> int | None:
        return self.log.position

    def is_open(self) -> bool:
        return self.store.header.opened

    def opened(self, at: int = 1) -> Stand:
        """Begin a projection whose horizon is the record at offset 0, and read up to it."""
        self.serve()
        self.log.reports[-1](at - 1, "")
        self.serve()
        marker = self.log.records[-1]
        self.take(*[(n, marker) for n in range(at)])
        assert self.store.header.opened
        return self

    def take(self, *records: tuple[int, Record]) -> None:
        raws = [
            (RawMessage(PLACE, offset, 7, record.key.encode(), history.encode(record)), 0) for offset, record in records
        ]
        self.worker.take(raws)


def intent(op_id: str, attempt_id: str = "a", epoch: int = 0) -> Record:
    fact = EffectFact(
        kind=EffectKind.INTENDED,
        op_id=op_id,
        attempt_id=attempt_id,
        agent_id="g",
        branch_id="b",
        epoch=Position(0, epoch),
    )
    return Record(op_id, (), encode_effect(fact))
