"""Kafka as the consumer side needs it: settings, the one partitioner, and the translation of errors.

Source: librdkafka's CONFIGURATION.md for the settings; the reasons stand beside them.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition, murmur2

from ..ledger import client_properties
from ..ledger.errors import StoreUnavailableError
from ..ledger.positions import Partition, Topic
from .entries import RawMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..ledger.urls import StoreUrl
    from .entries import PartitionOf

_Answer = TypeVar("_Answer")
TIMEOUT_S = 10.0
_RETRY_S = 0.1
_MISSING_S = 3.0
"""So long a topic that is not there is asked for again: a broker that has just started may not know of it yet."""
_PASSING = {  # what a client is told while brokers, leaders, and coordinators come and go
    KafkaError._TRANSPORT,  # noqa: SLF001 (the client's names)
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
_COMMON: dict[str, Any] = {
    "socket.timeout.ms": 10_000,  # a hung broker stalls an idempotent producer for this long
    "topic.metadata.refresh.interval.ms": 10_000,
    "reconnect.backoff.max.ms": 2_000,
    "log_level": 3,
}


class Settled(NamedTuple):
    """The settled offset as the consumer group keeps it."""

    offset: int
    time_ms: int
    incarnation: str
    topic_id: str

    def metadata(self) -> str:
        """What goes beside the offset; an offset without it was not written by a projector."""
        return json.dumps({"time_ms": self.time_ms, "incarnation": self.incarnation, "topic_id": self.topic_id})

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Settled | None:
        """The settled offset in a commit; None when it carries no metadata of a projector."""
        try:
            values = json.loads(metadata or "")
            return cls(offset, int(values["time_ms"]), str(values["incarnation"]), str(values["topic_id"]))
        except (ValueError, KeyError, TypeError):
            return None


def _common(url: StoreUrl) -> dict[str, Any]:
    """What every client is told. Raises InvalidArgumentError when the file that the URL names is not usable."""
    return {**dict(client_properties.read(url.client)), **_COMMON, "bootstrap.servers": url.bootstrap}


def admin_settings(url: StoreUrl) -> dict[str, Any]:
    """Settings of an admin client."""
    return _common(url)


def reader_settings(url: StoreUrl, group: str) -> dict[str, Any]:
    """Settings of a consumer that is told where to start, and never guesses."""
    return {
        **_common(url),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # the default jumps silently when the log was cut or made anew
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 100,
        "fetch.queue.backoff.ms": 10,
        "queued.max.messages.kbytes": 16_384,
        "check.crcs": True,
    }


def projector_settings(url: StoreUrl, group: str) -> dict[str, Any]:
    """Settings of the projector's consumer."""
    return {
        **reader_settings(url, group),
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 10_000,
        "heartbeat.interval.ms": 1_000,
        "statistics.interval.ms": 1_000,
    }


def producer_settings(url: StoreUrl) -> dict[str, Any]:
    """Settings of the projector's producer, which writes re-assertions and horizons."""
    return {
        **_common(url),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "message.timeout.ms": 30_000,
        "message.max.bytes": 4
        << 20,  # the topic decides; a re-assertion is longer than any record that made it necessary
        "partitioner": "murmur2_random",
    }


def partitioner(count: int) -> PartitionOf:
    """The one partitioner: murmur2 of the text's UTF-8, as Kafka's own clients compute it."""
    return lambda text: murmur2(text.encode(), count)


@contextmanager
def translated(url: StoreUrl) -> Iterator[None]:
    """Turn every error of the client into StoreUnavailableError."""
    try:
        yield
    except KafkaException as error:
        raise unavailable(url, str(error.args[0])) from error


def unavailable(url: StoreUrl, why: str) -> StoreUnavailableError:
    """The error to raise when Kafka cannot serve."""
    return StoreUnavailableError(
        f"Kafka at {url.bootstrap} does not answer as it should: {why}.",
        next_step="Check that the brokers run and can be reached, then try again; nothing is lost.",
        store=url.bootstrap,
    )


def passing(error: KafkaError) -> bool:
    """Whether the same question may well be answered in a moment, by another broker or by the next leader."""
    return error.code() in _PASSING


def partition_counts(url: StoreUrl, client: Consumer) -> dict[Topic, int]:
    """How many partitions each topic of the ledger has.

    Brokers that are not to be had are asked again until TIMEOUT_S is over, and about a missing topic for a moment.
    Raises StoreUnavailableError, also when a topic is missing.
    """
    deadline, missing_by = time.monotonic() + TIMEOUT_S, time.monotonic() + _MISSING_S
    while True:
        topics = _patiently(url, lambda left: client.list_topics(timeout=left), deadline).topics
        found = {topic: topics.get(url.topic(topic)) for topic in Topic}
        counts = {topic: len(told.partitions) for topic, told in found.items() if told and told.error is None}
        if all(counts.get(topic) for topic in Topic):
            return counts
        if time.monotonic() + _RETRY_S >= missing_by:
            missing = next(url.topic(topic) for topic in Topic if not counts.get(topic))
            raise unavailable(url, f"it has no topic {missing}; create it with: fencepost init")
        time.sleep(_RETRY_S)


def topic_partition(url: StoreUrl, partition: Partition, offset: int = OFFSET_INVALID) -> TopicPartition:
    """The client's word for a partition and an offset."""
    return TopicPartition(url.topic(partition.topic), partition.number, offset)


def log_bounds(url: StoreUrl, client: Consumer, partition: Partition, timeout_s: float = TIMEOUT_S) -> tuple[int, int]:
    """(first offset that is still there, next offset to be written).

    A partition without a leader, as after a broker that hung or died, is asked again until `timeout_s` is over.
    Raises StoreUnavailableError.
    """
    place = topic_partition(url, partition)
    deadline = time.monotonic() + timeout_s

    def ask(left: float) -> tuple[int, int]:
        try:
            return client.get_watermark_offsets(place, timeout=left)
        except KafkaException as error:
            if passing(
                error.args[0]
            ):  # a client that heard of no leader says so for long after there is one, unless it asks
                client.list_topics(place.topic, timeout=left)
            raise

    bounds = _patiently(url, ask, deadline)
    # Offset requests can fail open: a negative offset means "not known" and must not be compared with anything.
    if min(bounds) < 0:
        raise unavailable(url, f"the bounds of {partition} cannot be told")
    return bounds


def _patiently(url: StoreUrl, ask: Callable[[float], _Answer], deadline: float) -> _Answer:
    """What `ask` answers; asked again while what stands in the way may pass.

    It is given half of the seconds that are left: after a broker that hangs there is time to ask another one.
    """
    while True:
        try:
            return ask(max(_RETRY_S, (deadline - time.monotonic()) / 2))
        except KafkaException as error:
            if not passing(error.args[0]) or time.monotonic() + _RETRY_S >= deadline:
                raise unavailable(url, str(error.args[0])) from error
        time.sleep(_RETRY_S)


def names(url: StoreUrl) -> Mapping[str, Topic]:
    """Kafka's topic names → topics of the ledger."""
    return {url.topic(topic): topic for topic in Topic}


def raw_message(message: Message, partition: Partition) -> RawMessage:
    """A message of this partition as the rest of the consumer sees it."""
    offset = message.offset()
    if offset is None:
        raise ValueError("a message without an offset")
    return RawMessage(partition, offset, message.timestamp()[1], as_bytes(message.key()), as_bytes(message.value()))


def as_bytes(data: Any) -> bytes | None:
    """Keys and values as they are: no deserialiser is configured."""
    return None if data is None else bytes(data)
