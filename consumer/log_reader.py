"""Reading a ledger's log from the beginning: without a group, without a guess about where to start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError

from ..ledger.client_log import client_logger
from ..ledger.ports import RawRecord
from . import kafka_client
from .codec import codec_of
from .entries import entry_from_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from ..ledger.history import LogEntry
    from ..ledger.ports import LogReader
    from ..ledger.positions import Partition
    from ..ledger.urls import StoreUrl

_POLL_S = 0.5
_FETCHED = 1000
_STALLED_S = 30.0


def open_reader(url: StoreUrl) -> LogReader:
    """A reader of the ledger's log.

    Raises:
        StoreUnavailableError: Kafka does not answer, or a topic is missing.
        RegistryUnavailableError: likewise the schema registry, if one is configured.
    """
    return KafkaLogReader(url)


class KafkaLogReader:
    """The `LogReader` port on Kafka. Iterations are independent of each other; each has a client of its own."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._codec = codec_of(url)
        self._consumer = self._client()
        try:
            self._counts = kafka_client.partition_counts(url, self._consumer)
        except BaseException:
            self._consumer.close()
            raise

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See `LogReader`. The end is a broker's answer, and no proof that nothing stands behind it."""
        return kafka_client.log_bounds(self._url, self._consumer, partition)

    def entries(self, partition: Partition, *, start: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        """See `LogReader`. Offsets that compaction removed are passed over.

        Raises StoreUnavailableError when nothing arrives for half a minute.
        """
        first, present = self.bounds(partition)
        end = present if end is None else min(end, present)
        start = max(start, first)
        if start >= end:
            return
        partition_of = kafka_client.partitioner(self._counts[partition.topic])
        consumer = self._client()
        try:
            consumer.assign([kafka_client.topic_partition(self._url, partition, start)])
            for message in self._messages(consumer, end):
                raw = kafka_client.raw_message(message, partition)
                yield entry_from_message(raw, partition_of, self._codec)
        finally:
            consumer.close()

    def raw(self, partition: Partition, offset: int) -> RawRecord | None:
        """See `LogReader`. Raises StoreUnavailableError when nothing arrives for half a minute."""
        first, present = self.bounds(partition)
        if not first <= offset < present:
            return None
        consumer = self._client()
        try:
            consumer.assign([kafka_client.topic_partition(self._url, partition, offset)])
            for message in self._messages(consumer, offset + 1):
                raw = kafka_client.raw_message(message, partition)
                return RawRecord(raw.time_ms, raw.key, raw.value) if raw.offset == offset else None
        finally:
            consumer.close()
        return None

    def close(self) -> None:
        """See `LogReader`."""
        self._consumer.poll(0)  # hands over what the client has to say of itself
        self._consumer.close()

    def _client(self) -> Consumer:
        settings = kafka_client.reader_settings(self._url, f"{self._url.prefix}.reader")
        return Consumer({**settings, "enable.partition.eof": True}, logger=client_logger())

    def _messages(self, consumer: Consumer, end: int) -> Iterator[Message]:
        deadline = time.monotonic() + _STALLED_S
        while time.monotonic() < deadline:
            first = consumer.poll(_POLL_S)
            if first is None:
                continue
            for message in [first, *consumer.consume(_FETCHED, 0)]:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (its name)
                    if kafka_client.passing(error):
                        continue  # the client goes on by itself
                    raise kafka_client.unavailable(self._url, str(error))
                deadline = time.monotonic() + _STALLED_S
                # The last offsets may be compacted away; then only the end of the partition tells that they are passed.
                if (message.offset() or 0) >= end:
                    return
                if error is None:
                    yield message
        raise kafka_client.unavailable(self._url, f"nothing arrived for {_STALLED_S:.0f} s before offset {end}")
