"""The Kafka client, with nothing of it showing: the only module of this package that imports it."""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from ..ledger.client_log import client_logger
from . import errors
from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .settings import Settings

logger = logging.getLogger("fencepost.producer")

_PURGE_TIMEOUT_S = 2.0
_NOT_YET = frozenset({"UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE"})  # a new topic takes a moment to be known
_NOT_YET_TIMEOUT_S = 3.0
_PASSING = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE"})
_AGAIN_S = 0.05
_HAS_TO_WAIT = frozenset({"_FATAL", "_QUEUE_FULL"})


@dataclass(frozen=True, slots=True)
class Message:
    """One record on its way, as bytes."""

    topic: str
    partition: int
    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        """In bytes, as the client counts what is queued."""
        return len(self.key) + len(self.value)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The record is durable. `offset` is None when a lost answer was made up for (the client then knows no offset)."""

    offset: int | None


Answer = Callable[[Delivered | Failure], None]
"""Called once, while polling."""


class NotNowError(Exception):
    """The record was not taken: the client's queue is full, or the client failed. It has to wait."""


class RefusedByClientError(Exception):
    """The client did not take the record."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def partition_for(key: bytes, count: int) -> int:
    """The partition that the one partitioner, murmur2, gives `key` among `count`."""
    return confluent_kafka.murmur2(key, count)


class Client:
    """One idempotent producer. Callbacks run in the thread that polls.

    Args:
        bootstrap: brokers, comma separated.
        settings: the bounds.
        on_partitions: called now and then with a topic and the partition count that the brokers tell.

    Attributes:
        failed: whether this producer can never send again.
    """

    def __init__(
        self,
        bootstrap: str,
        settings: Settings,
        *,
        on_partitions: Callable[[str, int], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self.failed = False
        self._taken_bytes = 0  # of messages that the client has not answered
        self._on_partitions = on_partitions
        configuration = {
            **settings.client_configuration(bootstrap),
            "error_cb": self._told_error,
            "stats_cb": self._told_statistics,
        }
        try:
            self._producer = confluent_kafka.Producer(configuration, logger=client_logger())
        except KafkaException as error:
            raise errors.unreachable(bootstrap, *_words(error.args[0])) from error

    def send(self, message: Message, answer: Answer) -> None:
        """Take a record; `answer` is called once while polling.

        Raises:
            NotNowError: the record has to wait for room or for another client.
            RefusedByClientError: for another reason. In both cases the record was not taken.
        """
        try:
            self._producer.produce(
                message.topic,
                message.value,
                message.key,
                partition=message.partition,
                on_delivery=self._delivery(message, answer),
            )
        except BufferError as error:
            raise NotNowError from error
        except KafkaException as error:
            code, text = _words(error.args[0])
            if code == "_FATAL":
                self.failed = True
                raise NotNowError from error
            raise RefusedByClientError(Failure(code, text, handed_over=False, cause=error)) from error
        self._taken_bytes += message.size

    def has_room(self, messages: Sequence[Message]) -> bool:
        """Whether there is room for all of these for certain, with as much again to spare."""
        size = self._taken_bytes + sum(message.size for message in messages)
        count = len(self._producer) + len(messages)
        return 2 * count <= self._settings.max_queued and 2 * size <= self._settings.max_queued_kib << 10

    def send_together(self, partition: tuple[str, int], messages: Sequence[tuple[Message, Answer]]) -> list[int]:
        """As `send`, for messages of one topic and partition that the client `has_room` for, in one call of it.

        Returns the places of those that have to wait all the same: this client has failed.
        """
        topic, number = partition
        rows: list[dict[str, Any]] = [
            {"value": message.value, "key": message.key, "callback": self._delivery(message, answer)}
            for message, answer in messages
        ]
        try:
            self._producer.produce_batch(topic, rows, partition=number)
        except (KafkaException, BufferError) as error:  # it says of each message by itself; of this nobody knows more
            for _, answer in messages:
                answer(Failure(errors.NOT_TOLD, str(error), handed_over=True, cause=error))
            return []
        left: list[int] = []
        for place, (row, (message, answer)) in enumerate(zip(rows, messages, strict=True)):
            refusal: KafkaError | None = row.get("_error")
            if refusal is None:
                self._taken_bytes += message.size
                continue
            code, text = _words(refusal)
            if code in _HAS_TO_WAIT:
                self.failed = self.failed or code == "_FATAL"
                left.append(place)
            else:
                answer(Failure(code, text, handed_over=False, cause=KafkaException(refusal)))
        return left

    def _delivery(
        self, message: Message, answer: Answer
    ) -> Callable[[KafkaError | None, confluent_kafka.Message], None]:
        began = time.monotonic()

        def delivered(error: KafkaError | None, told: confluent_kafka.Message) -> None:
            self._taken_bytes -= message.size
            if error is None:
                offset = told.offset()
                answer(Delivered(offset if offset is not None and offset >= 0 else None))
                return
            code, text = _words(error)
            if error.fatal():
                self.failed = True
            answer(
                Failure(code, text, handed_over=True, elapsed_s=time.monotonic() - began, cause=KafkaException(error))
            )

        return delivered

    def poll(self, timeout_s: float) -> None:
        """Wait for answers up to `timeout_s` and hand out those that are there."""
        try:
            self._producer.poll(timeout_s)
        except KafkaException as error:  # only a failure for good comes up here
            self._told_error(error.args[0])

    def partitions(self, topic: str) -> int:
        """How many partitions the brokers say that `topic` has. Raises StoreUnavailableError."""
        began = time.monotonic()
        deadline = began + self._settings.metadata_timeout_s
        missing_by = min(deadline, began + _NOT_YET_TIMEOUT_S)
        while True:
            left = max(_AGAIN_S, (deadline - time.monotonic()) / 2)  # there is time to ask another broker then
            try:
                told = self._producer.list_topics(topic, timeout=left).topics[topic]
            except KafkaException as error:
                code, text = _words(error.args[0])
                if code not in _PASSING or time.monotonic() + _AGAIN_S >= deadline:
                    raise errors.unreachable(self._bootstrap, code, text) from error
            else:
                if told.error is None and told.partitions:
                    return len(told.partitions)
                code = told.error.name() if told.error else "it has no partitions"
                if code not in _NOT_YET or time.monotonic() > missing_by:
                    raise errors.missing_topic(self._bootstrap, topic, code)
            time.sleep(_AGAIN_S)

    def close(self) -> None:
        """Drop what is still on its way (answering it) and release the connections."""
        for step in (partial(self._producer.purge, blocking=False), partial(self._producer.flush, _PURGE_TIMEOUT_S)):
            try:
                step()
            except KafkaException as error:
                logger.debug("while closing: %s", error)
        self._producer.close()

    def leak(self) -> None:
        """Never free the producer: in a forked child that would wait for threads and locks which only the parent has."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))

    def _told_error(self, error: KafkaError) -> None:
        if error.fatal() or error.name() == "_FATAL":
            logger.error("the producer failed for good and is replaced: %s", error)
            self.failed = True
        else:
            client_logger().warning("the client reports %s", error)

    def _told_statistics(self, text: str) -> None:
        for topic, told in json.loads(text).get("topics", {}).items():
            known = [number for number, one in told["partitions"].items() if number != "-1" and not one["unknown"]]
            if known:
                self._on_partitions(topic, len(known))


def _words(error: KafkaError) -> tuple[str, str]:
    return error.name(), error.str()
