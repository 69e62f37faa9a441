"""The projector's Kafka: one consumer in the group, one producer, and the view of a single partition on them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from ..ledger import history
from . import kafka_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer, Message

    from ..ledger.history import Record
    from ..ledger.positions import Partition
    from ..ledger.urls import StoreUrl
    from ..schemas import Codec
    from .entries import PartitionOf
    from .kafka_client import Settled

    Delivered = Callable[[int | None, str], None]

_log = logging.getLogger("fencepost.projector")
_BOUNDS_TIMEOUT_S = 5.0


class QueueFullError(Exception):
    """The producer takes no more now; serve it and try again. Never leaves the projector."""


class PartitionLog:
    """One partition of the log, to the worker that projects it. Methods raise StoreUnavailableError.

    Args:
        url: of the ledger.
        partition: which one.
        consumer: has it assigned.
        producer: of the projector.
        partition_of: the topic's one partitioner.
        codec: encodes records when a schema registry is configured.
        topic_id: of the topic that is being read.
    """

    def __init__(
        self,
        url: StoreUrl,
        partition: Partition,
        *,
        consumer: Consumer,
        producer: Producer,
        partition_of: PartitionOf,
        codec: Codec | None,
        topic_id: str,
    ) -> None:
        self.partition_of = partition_of
        self.codec = codec
        self.topic_id = topic_id
        self.generation = url.generation
        self.partition = partition
        self._url = url
        self._consumer = consumer
        self._producer = producer

    def start(self, offset: int, leader_epoch: int) -> None:
        """Deliver entries from exactly this offset on.

        Args:
            offset: the next to be delivered.
            leader_epoch: of the record before it, so that a log that was cut is noticed; -1 when not known.
        """
        place = kafka_client.topic_partition(self._url, self.partition, offset)
        if leader_epoch >= 0:
            place = TopicPartition(place.topic, place.partition, offset, leader_epoch=leader_epoch)
        with kafka_client.translated(self._url):
            try:
                self._consumer.seek(place)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (the client's name)
                    raise
                # After an offset that the log does not have, the client fetches nothing until it is assigned anew.
                self._consumer.incremental_unassign([place])
                self._consumer.incremental_assign([place])
            self._consumer.resume([place])

    def stop(self) -> None:
        """Deliver nothing until the next start; what is fetched already is dropped."""
        place = kafka_client.topic_partition(self._url, self.partition)
        try:
            self._consumer.pause([place])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001 (the client's name; it was revoked)
                raise kafka_client.unavailable(self._url, str(error)) from error

    def publish(self, record: Record, delivered: Callable[[int | None, str], None]) -> None:
        """Append `record` to this very partition.

        Args:
            record: an encodable one; EncodeError otherwise.
            delivered: called later with its offset, if the log told it, and why it failed ("" if it did not).

        Raises QueueFullError.
        """

        def report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset() if error is None else None
            delivered(offset if offset is not None and offset >= 0 else None, str(error) if error else "")

        values = history.to_values(record)
        data = self.codec.encode_record(values) if self.codec else history.encode(record)
        try:
            self._producer.produce(
                self._url.topic(self.partition.topic),
                key=record.key.encode(),
                value=data,
                partition=self.partition.number,
                on_delivery=report,
            )
        except BufferError as error:
            raise QueueFullError from error
        except KafkaException as error:
            delivered(None, str(error.args[0]))

    def settled(self) -> Settled | None:
        """The settled offset that the group keeps for this topic, if a projector wrote it."""
        place = kafka_client.topic_partition(self._url, self.partition)
        with kafka_client.translated(self._url):
            [found] = self._consumer.committed([place], timeout=kafka_client.TIMEOUT_S)
        if found.error is not None:
            raise kafka_client.unavailable(self._url, f"the committed offset of {self.partition}: {found.error}")
        if found.offset < 0:
            return None
        settled = kafka_client.Settled.read(found.offset, found.metadata)
        if settled is None or settled.topic_id != self.topic_id:
            _log.warning(
                "%s: the committed offset %d is not this topic's projector's; ignored", self.partition, found.offset
            )
            return None
        return settled

    def bounds(self) -> tuple[int, int]:
        """(first offset that is still there, next offset to be written)."""
        return kafka_client.log_bounds(self._url, self._consumer, self.partition, _BOUNDS_TIMEOUT_S)

    def known_end(self) -> int:
        """The log's end as the last fetch told it; -1 when it has not."""
        place = kafka_client.topic_partition(self._url, self.partition)
        with kafka_client.translated(self._url):
            return int(self._consumer.get_watermark_offsets(place, cached=True)[1])
