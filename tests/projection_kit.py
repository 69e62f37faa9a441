"""What the tests of the projector share: a ledger on real services, writers of raw records, and what must come out."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Producer, murmur2
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from fencepost.consumer import scripts
from fencepost.consumer.command import lag, run_projector
from fencepost.consumer.keys import PartitionKeys, partition_keys
from fencepost.consumer.log_reader import open_reader
from fencepost.consumer.redis_client import connect
from fencepost.consumer.topics import open_admin
from fencepost.deploy.processes import wait_until
from fencepost.ledger import StoreUnavailableError, history, log_keys, urls
from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.history import History, PositionedFact, Record
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import DEBTS, PartitionFold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.consumer.redis_client import SyncClient
    from fencepost.ledger.urls import StoreUrl

Documents = dict[DocumentKey, bytes]
FAST_COMPACTION = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "500",
    "file.delete.delay.ms": "100",
}
RUN = "import sys; from fencepost.consumer.command import run_projector; from fencepost.ledger import urls; run_projector(urls.parse(sys.argv[1]))"


def effect(
    kind: EffectKind, op_id: str, attempt_id: str, *, session: str = "s1", seq: int = 0, epoch: int = 0
) -> bytes:
    return encode_effect(
        EffectFact(
            kind=kind,
            op_id=op_id,
            attempt_id=attempt_id,
            agent_id="agent",
            branch_id="main",
            session_id=session,
            epoch=Position(0, epoch),
            seq=seq,
            tool="tool",
            effect_class=EffectClass.IRREVERSIBLE,
            identity_digest="same",
        )
    )


def fence(epoch: int) -> bytes:
    fact = EffectFact(kind=EffectKind.FENCED, agent_id="agent", branch_id="main", epoch=Position(0, epoch))
    return encode_effect(fact)


def opening(agent_id: str, session_id: str) -> bytes:
    return encode_agent(
        AgentFact(kind=AgentKind.SESSION_OPENED, agent_id=agent_id, branch_id="main", session_id=session_id, seq=1)
    )


@dataclass
class Rig:
    """A ledger of one test, with topics and keys of its own."""

    url: StoreUrl
    partitions: int
    producer: Producer = field(init=False)
    admin: AdminClient = field(init=False)

    def __post_init__(self) -> None:
        common: dict[str, str | int | float | bool] = {"bootstrap.servers": self.url.bootstrap, "log_level": 3}
        self.producer = Producer(
            {**common, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "message.max.bytes": 8 << 20}
        )
        self.admin = AdminClient(common)

    def everything(self) -> list[Partition]:
        return [Partition(topic, number) for topic in Topic for number in range(self.partitions)]

    def partition_of(self, topic: Topic, key: str) -> Partition:
        owner = log_keys.agent_of(key) if topic is Topic.AGENTS else None
        return Partition(topic, murmur2((owner[1] if owner else key).encode(), self.partitions))

    def write(self, topic: Topic, key: str, fact: bytes | None, known: History = ()) -> int:
        """Append one record; return its offset."""
        record = Record(key, known, fact, "test")
        return self.write_raw(self.partition_of(topic, key), key.encode(), history.encode(record))

    def write_many(self, records: list[tuple[Topic, str, bytes]]) -> None:
        for topic, key, fact in records:
            place = self.partition_of(topic, key)
            value = history.encode(Record(key, (), fact, "test"))
            self.producer.produce(self.url.topic(topic), key=key.encode(), value=value, partition=place.number)
            self.producer.poll(0)
        assert self.producer.flush(60) == 0

    def write_raw(self, partition: Partition, key: bytes, value: bytes | None) -> int:
        offsets: list[int] = []

        def report(error: object, message: object) -> None:
            assert error is None, error
            offsets.append(message.offset())  # type: ignore[attr-defined]

        topic = self.url.topic(partition.topic)
        self.producer.produce(topic, key=key, value=value, partition=partition.number, on_delivery=report)
        assert self.producer.flush(30) == 0
        return offsets[0]

    def configure(self, topic: Topic, **settings: str) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.url.topic(topic), incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(timeout=20)

    def keys(self, partition: Partition) -> PartitionKeys:
        return partition_keys(self.url, partition)

    def redis(self) -> SyncClient:
        return connect(self.url.projection)

    def headers(self) -> dict[Partition, Header]:
        return {row.partition: row.header for row in lag(self.url)}

    def at_rest(self) -> bool:
        """Whether everything is applied, open, and nothing is owed; not while the log's ends cannot be told."""
        with self.redis() as client:
            try:
                rows = lag(self.url)
            except (
                StoreUnavailableError
            ):  # after a pause a broker may be without its partitions for longer than asking lasts
                return False
            owed = sum(int(client.hlen(self.keys(p).collection(DEBTS))) for p in self.everything())
        return not owed and all(row.header.opened and row.lag_records == 0 for row in rows)

    def wait_at_rest(self, timeout_s: float = 40.0) -> None:
        assert wait_until(self.at_rest, timeout_s), lag(self.url)

    def projected(self) -> dict[Partition, Documents]:
        """All documents that are in Redis."""
        found: dict[Partition, Documents] = {}
        with self.redis() as client:
            for partition in self.everything():
                keys = self.keys(partition)
                found[partition] = {
                    DocumentKey(name.decode(), key.decode()): value
                    for name in client.smembers(keys.collections)
                    for key, value in client.hgetall(keys.collection(name.decode())).items()
                }
        return found

    def folded(self) -> dict[Partition, Documents]:
        """All documents as the log alone tells them, folded in memory."""
        reader = open_reader(self.url)
        try:
            return {p: fold_log(p, reader.entries(p)) for p in self.everything()}
        finally:
            reader.close()

    def check(self) -> None:
        """Assert that the projection is the fold of the log."""
        self.wait_at_rest()
        expected, actual = self.folded(), self.projected()
        for partition in self.everything():
            assert actual[partition] == expected[partition], partition


def fold_log(partition: Partition, entries: Iterator[history.LogEntry]) -> Documents:
    documents: Documents = {}
    fold = PartitionFold(partition, Header(incarnation="memory", opened=True), {})
    for entry in entries:
        while needed := fold.needs(entry):
            fold.provide({key: documents.get(key) for key in needed})
        fold.apply(entry)
        for key, value in fold.take_step().writes.items():
            if value is None:
                documents.pop(key, None)
            else:
                documents[key] = value
    assert not fold.debts
    return documents


def make_rig(bootstrap: str, redis_url: str, *, partitions: int = 2, lag_ms: int = 86_400_000) -> Rig:
    prefix = f"t{os.getpid()}-{secrets.token_hex(4)}"
    url = urls.parse(f"kafka://{bootstrap}/{prefix}?projection={redis_url}&development=1")
    initialise = open_admin(url).initialise(partitions=partitions, development=True, min_compaction_lag_ms=lag_ms)
    asyncio.run(initialise)
    return Rig(url, partitions)


@contextmanager
def projector(url: StoreUrl) -> Iterator[threading.Event]:
    """A projector in a thread of this process."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            run_projector(url, stop=stop)
        except BaseException as error:  # noqa: BLE001 (handed to the test)
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(30)
    assert not failures, failures
    assert not thread.is_alive()


@contextmanager
def projector_process(url: StoreUrl, failpoint: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A projector in a process of its own."""
    environment = {**os.environ, "FENCEPOST_FAILPOINT": failpoint}
    with subprocess.Popen([sys.executable, "-c", RUN, url.text], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def committed(op_id: str, ledger: Rig) -> Position:
    """Write a whole op: an intent and its commit; the position of the commit."""
    first = effect(EffectKind.INTENDED, op_id, "a1", seq=1)
    at = ledger.write(Topic.EFFECTS, op_id, first)
    known = (PositionedFact(Position(0, at), first),)
    return Position(0, ledger.write(Topic.EFFECTS, op_id, effect(EffectKind.COMMITTED, op_id, "a1", seq=2), known))


def drop(ledger: Rig, partition: Partition) -> None:
    with ledger.redis() as client:
        call = scripts.drop(ledger.keys(partition), accept_below=None)
        client.eval(call.script.text, len(call.keys), *call.keys, *call.args)


def workload(rig: Rig, count: int = 25) -> None:
    """Ops with commits, losers that leave them out, fences with intents behind them, sessions."""
    for number in range(count):
        op_id = f"op-{number}"
        committed(op_id, rig)
        rig.write(Topic.EFFECTS, op_id, effect(EffectKind.INTENDED, op_id, "loser", session="s2", seq=number + 1))
        rig.write(Topic.AGENTS, log_keys.session(f"agent-{number}", "s1"), opening(f"agent-{number}", "s1"))
    for number in range(rig.partitions):
        key = log_keys.fence("agent", "main", number, lambda k: murmur2(k.encode(), rig.partitions))
        rig.write(Topic.EFFECTS, key, fence(7))
    for number in range(count):
        op_id = f"late-{number}"
        rig.write(Topic.EFFECTS, op_id, effect(EffectKind.INTENDED, op_id, "zombie", session="s3", seq=number + 1))
