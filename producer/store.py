"""The log on Kafka: `open_log` is what a `kafka://` URL leads to."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from ..ledger import client_properties, history
from ..ledger.history import MAX_RECORD_BYTES
from ..ledger.positions import Partition, Topic
from ..schemas.bounds import Limits
from ..schemas.errors import SchemaError
from . import errors, sharing
from .client import Delivered, Message, partition_for
from .errors import Failure
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..ledger.history import Record
    from ..ledger.urls import StoreUrl
    from .channel import Channel, Outcome


_MIN_ITEM_BYTES = 3  # generation, offset and length of a fact take a byte each at least
_MAX_ITEMS = Limits().max_items


def open_log(url: StoreUrl, *, settings: Settings | None = None) -> KafkaLog:
    """The log that `url` names, ready to publish. Blocks for the metadata of both topics.

    Logs of one process on the same brokers share one client. It gets its producer id in the background, about half a
    second after it was made; a record that is published earlier waits for that, no longer.

    Args:
        url: of the scheme kafka.
        settings: the bounds; the default ones suit a claim deadline of half a minute, with the TLS and SASL
            settings of the file that the URL names.

    Raises:
        StoreUnavailableError: the brokers or a topic cannot be reached; trying again is safe.
        GuaranteeError: the schema registry refuses the schemas.
        InvalidArgumentError: that file is not usable.
    """
    encode = _encoder(url)
    settings = settings or Settings(client_options=client_properties.read(url.client))
    channel = sharing.acquire(url.bootstrap, settings)
    try:
        counts = {topic: channel.partitions(url.topic(topic)) for topic in Topic}
    except BaseException:
        sharing.release(channel)
        raise
    return KafkaLog(channel, names={topic: url.topic(topic) for topic in Topic}, counts=counts, encode=encode)


class KafkaLog:
    """The `Log` port on Kafka.

    `publish` may be called in any event loop of the process; the rest, and `publish_here`, from any thread. A log that was opened before a
    fork refuses to work in the child.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        names: Mapping[Topic, str],
        counts: Mapping[Topic, int],
        encode: Callable[[Record], bytes],
    ) -> None:
        self._channel = channel
        self._names = names
        self._counts = counts
        self._encode = encode
        self._pid = os.getpid()
        self._closed = False

    def partitions(self, topic: Topic) -> int:
        """How many partitions `topic` has. Raises GuaranteeError once the brokers tell another number."""
        name, count = self._names[topic], self._counts[topic]
        told = self._channel.counts.get(name, count)
        if told != count:
            raise errors.repartitioned(name, told, count)
        return count

    def partition_of(self, topic: Topic, key: str) -> int:
        """The partition that murmur2 gives `key`: the one that any client with Kafka's own partitioner would choose."""
        return partition_for(key.encode(), self.partitions(topic))

    async def publish(self, partition: Partition, record: Record) -> int | None:
        """Append `record`; return its offset, or None when the broker did not tell it.

        1. Check and encode. 2. Hand the record to the client before anything is awaited, so that the order of calls is
        the order in the log; wait for room if there is none. 3. Wait until all in-sync replicas have it.

        Raises:
            RecordTooLargeError, PublishRefusedError: certainly not written.
            OutcomeUnknownError: may or may not be written, now or later; safe to publish again.
            GuaranteeError: the partition count changed; not written.
            StoreUnavailableError: closed, or opened before a fork; not written.
        """
        message = self._message(partition, record)  # 1
        return _offset(await self._channel.publish(self, message), partition, message)  # 2, 3

    def publish_here(self, partition: Partition, record: Record, *, timeout_s: float) -> int | None:
        """The same; waits in this thread. Raises OutcomeUnknownError as well once the time is up."""
        message = self._message(partition, record)
        future = self._channel.publish_here(self, message)
        try:
            outcome = future.result(timeout_s)
        except TimeoutError:
            outcome = Failure(errors.NOT_TOLD, f"nothing was told in {timeout_s:g} s", handed_over=True)
        return _offset(outcome, partition, message)

    def _message(self, partition: Partition, record: Record) -> Message:
        self._require_usable()
        key = self._checked_key(partition, record)
        return Message(self._names[partition.topic], partition.number, key, self._encoded(partition, record))

    async def close(self) -> None:
        """Wait for what this log published, within a bound, and give the client back; again does nothing.

        Publishes that are still open then end with OutcomeUnknownError.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        await asyncio.to_thread(self._release)

    def _release(self) -> None:
        self._channel.drain(self, self._channel.settings.close_timeout_s)
        sharing.release(self._channel)

    def _require_usable(self) -> None:
        if self._pid != os.getpid():
            raise errors.forked()
        if self._closed:
            raise errors.closed()

    def _checked_key(self, partition: Partition, record: Record) -> bytes:
        count = self.partitions(partition.topic)
        try:
            key = record.key.encode()
        except UnicodeEncodeError as error:
            reason = "its key cannot be written as UTF-8"
            raise errors.refused(partition, reason, "Take another key.") from error
        if not key:
            raise errors.refused(partition, "it has no key", "Give it the key of its history.")
        if not 0 <= partition.number < count:
            raise errors.refused(partition, f"there are {count} partitions", "Ask partition_of.")
        if partition.topic is Topic.EFFECTS and partition.number != (right := partition_for(key, count)):
            reason = f"key {record.key!r} belongs into partition {right}"
            raise errors.refused(partition, reason, "Ask partition_of.")
        return key

    def _encoded(self, partition: Partition, record: Record) -> bytes:
        facts = sum(len(one.fact) + _MIN_ITEM_BYTES for one in record.history) + len(record.fact or b"")
        try:
            value = self._encode(record)
        except SchemaError as error:
            if facts > MAX_RECORD_BYTES // 2 or len(record.history) > _MAX_ITEMS:
                raise errors.too_large(facts, MAX_RECORD_BYTES) from error
            raise errors.refused(partition, f"it cannot be encoded ({error})", "Correct the record.") from error
        if len(value) > MAX_RECORD_BYTES:
            raise errors.too_large(len(value), MAX_RECORD_BYTES)
        return value


def _offset(outcome: Outcome, partition: Partition, message: Message) -> int | None:
    if isinstance(outcome, Delivered):
        return outcome.offset
    raise errors.of_publish(outcome, partition, len(message.value)) from outcome.cause


def _encoder(url: StoreUrl) -> Callable[[Record], bytes]:
    """How records become bytes: single-object encoding, or the registry's wire format where the URL names one."""
    if not url.registry:
        return history.encode
    from ..schemas.registry import connect  # noqa: PLC0415 - only with a registry

    try:
        codec = connect(url.registry, [url.topic(topic) for topic in Topic])
    except SchemaError as error:
        raise errors.of_registry(error) from error
    return lambda record: codec.encode_record(history.to_values(record))
