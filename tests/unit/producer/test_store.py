"""The port's promises on one mock broker: partitions, refusals, order, closing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

import confluent_kafka
import pytest
from unit.producer.mock_kafka import MockKafka, OpenLog, publish

from fencepost.ledger import urls
from fencepost.ledger.errors import (
    FencepostError,
    GuaranteeError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PublishRefusedError,
    RecordTooLargeError,
    StoreUnavailableError,
)
from fencepost.ledger.history import MAX_RECORD_BYTES, PositionedFact, Record
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.producer.settings import Settings
from fencepost.producer.store import open_log
from fencepost.schemas.errors import RegistryUnavailableError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QUICK = Settings(metadata_timeout_s=0.5, close_timeout_s=0.2)


def test_partition_of_is_the_client_s_own_partitioner(mock: MockKafka, opened: OpenLog) -> None:
    """Keys go where a client with the murmur2_random partitioner puts them, and to partition_of."""
    log = opened()
    keys = [f"op/{number}" for number in range(200)] + ["ключ", "~fence/a/b/0/1", "x" * 900]
    assert log.partitions(Topic.EFFECTS) == 4
    native = confluent_kafka.Producer({"bootstrap.servers": mock.bootstrap, "partitioner": "murmur2_random"})
    went: dict[str, int | None] = {}

    def delivered(error: confluent_kafka.KafkaError | None, told: confluent_kafka.Message) -> None:
        went[(told.key() or b"").decode()] = told.partition()

    for key in keys:
        native.produce("unit.effects", b"", key.encode(), on_delivery=delivered)
    assert native.flush(10) == 0
    native.close()
    assert went == {key: log.partition_of(Topic.EFFECTS, key) for key in keys}


def test_offsets_follow_the_order_of_calls(opened: OpenLog) -> None:
    """A thousand concurrent publishes to one partition stand in the order in which they were called."""
    log = opened()
    partition = Partition(Topic.AGENTS, 2)

    async def burst() -> list[int | None]:
        return await asyncio.gather(
            *(log.publish(partition, Record(f"session/a/{number}", (), b"f")) for number in range(1000))
        )

    assert asyncio.run(burst()) == list(range(1000))


@pytest.mark.parametrize(
    ("partition", "key", "says"),
    [
        (Partition(Topic.EFFECTS, 0), "", "no key"),
        (Partition(Topic.EFFECTS, 0), "\ud800", "UTF-8"),
        (Partition(Topic.EFFECTS, 4), "op", "there are 4 partitions"),
        (Partition(Topic.AGENTS, -1), "session/a/b", "there are 4 partitions"),
    ],
)
def test_malformed_records_are_refused(opened: OpenLog, partition: Partition, key: str, says: str) -> None:
    """What no reader could use is refused before it is sent."""
    log = opened()
    with pytest.raises(PublishRefusedError, match=says):
        asyncio.run(log.publish(partition, Record(key, (), b"f")))


def test_effects_go_only_where_their_key_belongs(opened: OpenLog) -> None:
    """On the effects topic another partition than the partitioner's is refused; on the agents topic it is explicit."""
    log = opened()
    wrong = (log.partition_of(Topic.EFFECTS, "op") + 1) % 4
    with pytest.raises(PublishRefusedError, match="belongs into partition"):
        asyncio.run(log.publish(Partition(Topic.EFFECTS, wrong), Record("op", (), b"f")))
    assert asyncio.run(log.publish(Partition(Topic.AGENTS, wrong), Record("op", (), b"f"))) == 0


def test_a_record_that_cannot_be_encoded_is_refused(opened: OpenLog) -> None:
    """The codec's complaint arrives as a refusal."""
    record = Record("op", (PositionedFact(Position(1 << 70, 0), b"f"),), b"f")
    log = opened()
    with pytest.raises(PublishRefusedError, match="cannot be encoded"):
        asyncio.run(log.publish(Partition(Topic.EFFECTS, log.partition_of(Topic.EFFECTS, "op")), record))


def test_the_size_limit_is_exact(opened: OpenLog) -> None:
    """A record of exactly the limit is written; one byte more is refused, and so is what the codec could not take."""
    log = opened()
    frame = len(log._encode(Record("op", (), bytes(900_000)))) - 900_000
    largest = MAX_RECORD_BYTES - frame
    assert asyncio.run(publish(log, fact=bytes(largest))) == 0
    for size in (largest + 1, 5_000_000):
        with pytest.raises(RecordTooLargeError) as caught:
            asyncio.run(publish(log, fact=bytes(size)))
        assert caught.value.size_bytes > caught.value.limit_bytes == MAX_RECORD_BYTES


def test_too_many_facts_are_too_large(opened: OpenLog) -> None:
    """A history of more facts than a reader takes is too large, however short they are."""
    history = tuple(PositionedFact(Position(0, number), b"f") for number in range(10_001))
    log = opened()
    with pytest.raises(RecordTooLargeError):
        asyncio.run(log.publish(Partition(Topic.EFFECTS, log.partition_of(Topic.EFFECTS, "op")), Record("op", history)))


def test_a_changed_partition_count_stops_everything(opened: OpenLog) -> None:
    """More partitions would move keys: nothing is published any more, and no partition is named."""
    log = opened()
    log._channel.counts["unit.effects"] = 8
    with pytest.raises(GuaranteeError, match="8 partitions") as caught:
        asyncio.run(log.publish(Partition(Topic.EFFECTS, 0), Record("op", (), b"f")))
    assert [check.ok for check in caught.value.checks] == [False]
    with pytest.raises(GuaranteeError):
        log.partition_of(Topic.EFFECTS, "op")
    assert log.partitions(Topic.AGENTS) == 4


def test_with_a_registry_only_the_envelope_changes(mock: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that names a registry has its records framed by the registry's codec; facts go in byte for byte."""
    asked: list[object] = []
    seen: list[Mapping[str, object]] = []

    class Codec:
        def encode_record(self, values: Mapping[str, object]) -> bytes:
            seen.append(values)
            return b"framed"

    def connect(url: str, topics: Sequence[str]) -> Codec:
        asked.append((url, list(topics)))
        return Codec()

    monkeypatch.setattr("fencepost.schemas.registry.connect", connect)
    url = urls.parse(f"kafka://{mock.bootstrap}/unit?projection=redis://127.0.0.1/0&registry=http://registry:8081")
    log = open_log(url, settings=QUICK)
    asyncio.run(publish(log, fact=b"\x01\x02"))
    asyncio.run(log.close())
    assert asked == [("http://registry:8081", ["unit.effects", "unit.agents"])]
    assert seen == [{"key": "op", "history": [], "fact": b"\x01\x02", "writer": ""}]


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (RegistryUnavailableError("schema registry", "no answer"), StoreUnavailableError),
        (SchemaError("schema registry", "incompatible"), GuaranteeError),
    ],
)
def test_a_registry_that_does_not_serve(
    mock: MockKafka, monkeypatch: pytest.MonkeyPatch, problem: SchemaError, kind: type[FencepostError]
) -> None:
    """A registry that is away may be tried again; one that refuses the schemas breaks a promise."""

    def connect(url: str, topics: Sequence[str]) -> NoReturn:
        raise problem

    monkeypatch.setattr("fencepost.schemas.registry.connect", connect)
    url = urls.parse(f"kafka://{mock.bootstrap}/unit?projection=redis://127.0.0.1/0&registry=http://registry:8081")
    with pytest.raises(kind) as caught:
        open_log(url, settings=QUICK)
    assert caught.value.__cause__ is problem


def test_no_broker() -> None:
    """An address where nobody listens is said to be one, in time."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        open_log(urls.parse("kafka://127.0.0.1:1/unit?projection=redis://127.0.0.1/0"), settings=QUICK)
    assert time.monotonic() - began < 5


def test_no_topic(mock: MockKafka) -> None:
    """A prefix without topics is an error and creates none."""
    url = urls.parse(f"kafka://{mock.bootstrap}/other?projection=redis://127.0.0.1/0")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=r"no usable topic 'other\.effects'"):
            open_log(url, settings=QUICK)


def test_options_that_a_promise_rests_on_are_refused() -> None:
    """Acknowledgements and the like are not a matter of taste; others pass through."""
    with pytest.raises(InvalidArgumentError, match="acks"):
        Settings(client_options=(("acks", "1"),))
    assert Settings(client_options=(("client.id", "x"),)).client_configuration("b")["client.id"] == "x"


def test_an_option_that_the_client_does_not_know(mock: MockKafka) -> None:
    """A misspelt option is told as an error of the store."""
    url = urls.parse(f"kafka://{mock.bootstrap}/unit?projection=redis://127.0.0.1/0")
    with pytest.raises(FencepostError, match=r"no\.such"):
        open_log(url, settings=Settings(client_options=(("no.such.option", "x"),)))


def test_a_closed_log_refuses(opened: OpenLog) -> None:
    """After closing, which may be repeated, nothing is published."""
    log = opened()
    asyncio.run(log.close())
    asyncio.run(log.close())
    with pytest.raises(StoreUnavailableError, match="closed"):
        asyncio.run(publish(log))


def test_closing_is_bounded_and_tells_the_waiters(mock: MockKafka, opened: OpenLog) -> None:
    """What is not acknowledged when the bound is over ends as unknown, and closing does not hang."""
    log = opened(QUICK)

    async def scenario() -> None:
        await publish(log)
        mock.down()
        waiter = asyncio.create_task(publish(log))
        await asyncio.sleep(0)  # let it be handed over
        began = time.monotonic()
        await log.close()
        assert time.monotonic() - began < 3
        with pytest.raises(OutcomeUnknownError):
            await waiter

    asyncio.run(scenario())


def test_closing_waits_for_what_was_published(mock: MockKafka, opened: OpenLog) -> None:
    """A record that is on its way is acknowledged before the connections go."""
    log = opened(Settings(close_timeout_s=5.0))

    async def scenario() -> None:
        await publish(log)
        mock.delay(300)
        waiter = asyncio.create_task(publish(log))
        await asyncio.sleep(0)
        await log.close()
        assert await waiter == 1

    asyncio.run(scenario())
