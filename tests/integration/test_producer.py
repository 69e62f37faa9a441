"""The log on a real Kafka: where records stand, durability of the answer, and what a broker refuses."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from typing import TYPE_CHECKING, Protocol

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from fencepost.ledger import history, urls
from fencepost.ledger.errors import FencepostError, GuaranteeError, OutcomeUnknownError, RecordTooLargeError
from fencepost.ledger.history import MAX_RECORD_BYTES, PositionedFact, Record
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.producer.settings import Settings
from fencepost.producer.store import KafkaLog, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services import StartKafka

PARTITIONS = 6
CONFIGURATION = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class OpenLog(Protocol):
    """Creates the topics of a new ledger and opens its log."""

    def __call__(self, settings: Settings | None = None, configuration: dict[str, str] | None = None) -> KafkaLog: ...


@pytest.fixture
def opened(kafka_bootstrap: str) -> Iterator[OpenLog]:
    logs: list[KafkaLog] = []

    def start(settings: Settings | None = None, configuration: dict[str, str] | None = None) -> KafkaLog:
        logs.append(_new_ledger(kafka_bootstrap, settings, configuration))
        return logs[-1]

    yield start

    async def close() -> None:
        for log in logs:
            await log.close()

    asyncio.run(close())


def _new_ledger(
    bootstrap: str, settings: Settings | None = None, configuration: dict[str, str] | None = None
) -> KafkaLog:
    url = urls.parse(f"kafka://{bootstrap}/producer-{uuid.uuid4().hex[:8]}?projection=redis://127.0.0.1/0")
    wanted = CONFIGURATION | (configuration or {})
    topics = [NewTopic(url.topic(topic), PARTITIONS, 1, config=wanted) for topic in Topic]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics(topics).values():
        done.result(30)
    return open_log(url, settings=settings)


def _place(log: KafkaLog, key: str) -> Partition:
    return Partition(Topic.EFFECTS, log.partition_of(Topic.EFFECTS, key))


def _read(log: KafkaLog, partition: Partition, count: int) -> list[Message]:
    reader = Consumer({"bootstrap.servers": log._channel.bootstrap, "group.id": "none", "auto.offset.reset": "error"})
    reader.assign([TopicPartition(log._names[partition.topic], partition.number, 0)])
    messages = reader.consume(count, 30)
    reader.close()
    return messages


def test_a_record_stands_where_the_answer_says(opened: OpenLog) -> None:
    """Key, bytes, partition and offset of what is read are those of what was published."""
    log = opened()
    record = Record("op/1", (PositionedFact(Position(0, 7), b"\x00\xff"),), b"fact", writer="w")
    partition = _place(log, "op/1")
    assert asyncio.run(log.publish(partition, Record("op/1", (), None))) == 0
    assert asyncio.run(log.publish(partition, record)) == 1
    [_, message] = _read(log, partition, 2)
    assert (message.key(), message.partition(), message.offset()) == (b"op/1", partition.number, 1)
    assert history.decode(message.value() or b"") == record


def test_many_publishes_keep_their_order(opened: OpenLog) -> None:
    """A thousand concurrent publishes over all partitions stand in the order of the calls in each."""
    log = opened()
    keys = [f"op/{number}" for number in range(1000)]

    async def burst() -> list[int | None]:
        return await asyncio.gather(*(log.publish(_place(log, key), Record(key, (), b"f")) for key in keys))

    offsets = asyncio.run(burst())
    for number in range(PARTITIONS):
        assert [o for key, o in zip(keys, offsets, strict=True) if _place(log, key).number == number] == list(
            range(sum(_place(log, key).number == number for key in keys))
        )


def test_the_largest_record_passes_the_broker_s_defaults(opened: OpenLog) -> None:
    """A record of the limit, which the default limits of a topic must take, is written."""
    log = opened()
    frame = len(history.encode(Record("op", (), bytes(900_000)))) - 900_000
    assert asyncio.run(log.publish(_place(log, "op"), Record("op", (), bytes(MAX_RECORD_BYTES - frame)))) == 0


def test_a_topic_with_a_lower_limit_refuses(opened: OpenLog) -> None:
    """The broker's refusal as too large is certain, and small records beside it are written."""
    log = opened(configuration={"max.message.bytes": "300000"})

    async def both() -> tuple[int | BaseException | None, int | BaseException | None]:
        one, other = (log.publish(_place(log, "op"), Record("op", (), fact)) for fact in (bytes(400_000), b"small"))
        return await asyncio.gather(one, other, return_exceptions=True)

    refused, offset = asyncio.run(both())
    assert isinstance(refused, RecordTooLargeError)
    assert isinstance(refused.__cause__, KafkaException)
    assert offset == 0


def test_added_partitions_are_noticed(opened: OpenLog, kafka_bootstrap: str) -> None:
    """When somebody adds partitions, which moves keys, publishing stops."""
    log = opened(Settings(refresh_s=0.2))
    name = log._names[Topic.EFFECTS]
    assert asyncio.run(log.publish(Partition(Topic.EFFECTS, 0), Record(_key_in(log, 0), (), b"f"))) == 0
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_partitions([NewPartitions(name, PARTITIONS + 2)])[name].result(30)
    deadline = time.monotonic() + 20
    while log._channel.counts[name] == PARTITIONS and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(GuaranteeError, match=f"{PARTITIONS + 2} partitions"):
        log.partitions(Topic.EFFECTS)
    with pytest.raises(GuaranteeError):
        asyncio.run(log.publish(Partition(Topic.EFFECTS, 0), Record("op", (), b"f")))


def _key_in(log: KafkaLog, number: int) -> str:
    return next(key for key in map(str, range(1000)) if _place(log, key).number == number)


def test_a_paused_broker_leaves_the_outcome_unknown(private_kafka: StartKafka) -> None:
    """A broker that hangs may still write what it was sent: unknown, and after it wakes the same record passes."""
    cluster = private_kafka()
    log = _new_ledger(
        cluster.bootstrap, Settings(message_timeout_s=1.5, socket_timeout_s=0.5, close_timeout_s=1.0, refresh_s=0.5)
    )
    partition, record = _place(log, "op"), Record("op", (), b"f")

    async def scenario() -> None:
        assert await log.publish(partition, record) == 0
        cluster.pause(1)
        with pytest.raises(OutcomeUnknownError):
            await log.publish(partition, record)
        cluster.resume(1)
        assert await _until_written(log, partition, record) in {None, 1, 2}
        await log.close()

    asyncio.run(scenario())


async def _until_written(log: KafkaLog, partition: Partition, record: Record) -> int | None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return await log.publish(partition, record)
        except FencepostError:
            if time.monotonic() > deadline:
                raise


def test_latency_is_that_of_the_broker(opened: OpenLog) -> None:
    """One publish at a time takes milliseconds, the first included: nothing lingers (generous: the machine is shared)."""
    log = opened()

    async def one_by_one() -> list[float]:
        took = []
        for number in range(200):
            key = f"op/{number}"
            began = time.perf_counter()
            await log.publish(_place(log, key), Record(key, (), b"f" * 200))
            took.append(time.perf_counter() - began)
        return took

    took = asyncio.run(one_by_one())
    assert took[0] < 5
    assert statistics.median(took) < 0.1
