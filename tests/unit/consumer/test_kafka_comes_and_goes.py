"""Brokers, leaders, and coordinators that come and go, as the consumer's and the producer's clients tell it: no reason to give up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from unit.producer.mock_kafka import PRODUCE, MockKafka

from fencepost.consumer import kafka_client, log_reader, topics
from fencepost.consumer.kafka_log import PartitionLog
from fencepost.consumer.projector import Projector
from fencepost.ledger import urls
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.positions import Partition, Topic
from fencepost.producer.client import Client
from fencepost.producer.settings import Settings

URL = urls.parse("kafka://127.0.0.1:1/led?projection=redis://127.0.0.1:1/0")
GONE = [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_CONTROLLER]


class Asked:
    """A client that answers with these errors first, and tells two partitions of each topic of the ledger then."""

    def __init__(self, errors: list[int], *, missing: int = 0) -> None:
        self.errors = errors
        self.missing = missing
        self.timeouts: list[float] = []

    def list_topics(self, _: str = "", *, timeout: float) -> Any:
        self.timeouts.append(timeout)
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        self.missing -= 1
        gone = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if self.missing >= 0 else None
        told = SimpleNamespace(error=gone, partitions={} if gone else {0: None, 1: None})
        return SimpleNamespace(topics={URL.topic(name): told for name in Topic})


def counts(client: Asked) -> Any:
    return kafka_client.partition_counts(URL, cast("Any", client))


def test_the_topics_are_asked_for_again() -> None:
    """A broker that goes in the middle of the question, and one that does not know the topics yet, are asked again."""
    client = Asked(list(GONE), missing=2)
    assert counts(client) == dict.fromkeys(Topic, 2)
    assert max(client.timeouts) < kafka_client.TIMEOUT_S, "one that hangs would have had all the time"


def test_a_topic_that_stays_missing_is_told_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "_MISSING_S", 0.3)
    with pytest.raises(StoreUnavailableError, match="it has no topic led"):
        counts(Asked([], missing=10_000))


def test_brokers_that_stay_away_are_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "TIMEOUT_S", 0.3)
    with pytest.raises(StoreUnavailableError, match="_TRANSPORT"):
        counts(Asked([KafkaError._TRANSPORT] * 1000))


def test_what_will_not_pass_is_told_at_once() -> None:
    client = Asked([KafkaError.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(StoreUnavailableError, match="AUTHORIZATION"):
        counts(client)
    assert len(client.timeouts) == 1


# -- reading the log ---------------------------------------------------------------------


class Fetched:
    """A consumer with these messages: error codes, and offsets of records."""

    def __init__(self, *told: tuple[int, int]) -> None:
        self.told = [
            SimpleNamespace(error=lambda code=code: KafkaError(code) if code else None, offset=lambda at=at: at)
            for code, at in told
        ]

    def poll(self, _: float) -> Any:
        return self.told.pop(0) if self.told else None

    def consume(self, *_: Any) -> list[Any]:
        return []


def read(*told: tuple[int, int], end: int = 3) -> list[int | None]:
    reader = object.__new__(log_reader.KafkaLogReader)
    reader._url = URL
    return [message.offset() for message in reader._messages(cast("Any", Fetched(*told)), end)]


def test_a_reader_goes_on_when_its_brokers_do() -> None:
    """What the client gets over by itself ends no reading, and takes no record away."""
    eof = KafkaError._PARTITION_EOF
    told = [(0, 0), (KafkaError._TRANSPORT, -1), (0, 1), (KafkaError._ALL_BROKERS_DOWN, -1), (0, 2), (eof, 3)]
    assert read(*told) == [0, 1, 2]


def test_a_reader_says_what_will_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnavailableError, match="AUTHORIZATION"):
        read((0, 0), (KafkaError.TOPIC_AUTHORIZATION_FAILED, -1))
    monkeypatch.setattr(log_reader, "_STALLED_S", 0.2)
    with pytest.raises(StoreUnavailableError, match="nothing arrived"):
        read((0, 0), (KafkaError._TRANSPORT, -1))


# -- the administration ------------------------------------------------------------------


class Questions:
    """An admin client's request, with these errors as its first answers."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.asked = 0

    def __call__(self) -> concurrent.futures.Future[str]:
        self.asked += 1
        future: concurrent.futures.Future[str] = concurrent.futures.Future()
        if self.errors:
            future.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            future.set_result("answered")
        return future


def admin_asked(questions: Questions) -> Any:
    return asyncio.run(topics.open_admin(URL)._ask(questions))


def test_the_administration_asks_again() -> None:
    """Checking the guarantees and creating topics goes on while controllers and connections change."""
    questions = Questions(*GONE)
    assert admin_asked(questions) == "answered"
    assert questions.asked == len(GONE) + 1


def test_the_administration_tells_what_stood_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the time is up it is the last answer that is told, and it is one that may be tried again."""
    monkeypatch.setattr(topics, "_TIMEOUT_S", 0.5)
    with pytest.raises(StoreUnavailableError, match="NOT_CONTROLLER") as caught:
        admin_asked(Questions(*[KafkaError.NOT_CONTROLLER] * 1000))
    assert caught.value.retryable


def test_the_administration_does_not_insist() -> None:
    questions = Questions(KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(StoreUnavailableError, match="AUTHORIZATION"):
        admin_asked(questions)
    assert questions.asked == 1


# -- the agents' producer ----------------------------------------------------------------


def client_of(asked: Asked, settings: Settings) -> Client:
    client = Client("127.0.0.1:1", settings, on_partitions=lambda *_: None)
    client._producer = cast("Any", asked)
    return client


def test_an_agent_that_opens_asks_again() -> None:
    """The connection that breaks under the question about a topic does not end the opening."""
    client = client_of(Asked([KafkaError._TRANSPORT, KafkaError._TIMED_OUT], missing=1), Settings())
    assert client.partitions(URL.topic(Topic.EFFECTS)) == 2


def test_an_agent_is_told_in_time_that_nobody_answers() -> None:
    client = client_of(Asked([KafkaError._TRANSPORT] * 1000), Settings(metadata_timeout_s=0.3))
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="_TRANSPORT"):
        client.partitions(URL.topic(Topic.EFFECTS))
    assert time.monotonic() - began < 5


# -- the projector -----------------------------------------------------------------------


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    brokers = MockKafka()
    for topic in Topic:
        brokers.create(URL.topic(topic), partitions=1)
    yield brokers
    brokers.close()


def test_a_producer_that_fails_for_good_ends_the_projector_by_name(mock: MockKafka) -> None:
    """The client's own error does not get out: a new projector can go on, and is told so."""
    url = urls.parse(f"kafka://{mock.bootstrap}/led?projection=redis://127.0.0.1:1/0")
    projector = Projector(url, group="g", topic_ids=dict.fromkeys(Topic, "id"), codec=None)
    projector._producer.produce(url.topic(Topic.EFFECTS), value=b"first", partition=0)
    assert projector._producer.flush(10) == 0
    mock.answer_with(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    projector._producer.produce(url.topic(Topic.EFFECTS), value=b"second", partition=0)
    with pytest.raises(StoreUnavailableError, match="OUT_OF_ORDER") as caught:
        projector.run(threading.Event())
    assert caught.value.retryable


class Kept:
    """A consumer whose group keeps one offset."""

    def __init__(self, offset: int, metadata: str) -> None:
        self.found = SimpleNamespace(offset=offset, metadata=metadata, error=None)

    def committed(self, _: Any, timeout: float) -> list[Any]:
        assert timeout > 0
        return [self.found]


@pytest.mark.parametrize(("topic_id", "offset"), [("this", 7), ("another", None)])
def test_the_group_is_believed_about_its_own_topic_alone(topic_id: str, offset: int | None) -> None:
    """A topic that was made anew begins at 0; what the group keeps of the former one would pass over all of it."""
    kept = kafka_client.Settled(7, 1, "incarnation", topic_id)
    log = PartitionLog(
        URL,
        Partition(Topic.EFFECTS, 0),
        consumer=cast("Any", Kept(7, kept.metadata())),
        producer=cast("Any", None),
        partition_of=kafka_client.partitioner(1),
        codec=None,
        topic_id="this",
    )
    settled = log.settled()
    assert (settled and settled.offset) == offset


def test_a_commit_of_the_group_that_failed_is_repeated(mock: MockKafka) -> None:
    """What the group could not be told of settled offsets is told again."""
    url = urls.parse(f"kafka://{mock.bootstrap}/led?projection=redis://127.0.0.1:1/0")
    projector = Projector(url, group="g", topic_ids=dict.fromkeys(Topic, "id"), codec=None)
    place = Partition(Topic.EFFECTS, 0)
    told: list[Any] = []
    projector._workers[place] = cast("Any", SimpleNamespace(saved=told.append))
    places = [kafka_client.topic_partition(url, place, 7)]
    projector._heard_commit(None, places)
    assert told == []
    projector._heard_commit(KafkaError(KafkaError.NOT_COORDINATOR), places)
    assert told == [None]
    projector._consumer.close()
