"""The projector: reads the partitions that the group gives it and projects each into Redis. One thread.

Each turn of the loop:
    1. fetch what is there and hand each partition its messages
    2. hear what became of published re-assertions
    3. let each partition do what is due: claim, pay debts, look
    4. commit settled offsets that Redis has, about once a second
"""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ..ledger.client_log import client_logger
from ..ledger.errors import StoreUnavailableError
from ..ledger.positions import Partition
from . import kafka_client
from .kafka_log import PartitionLog
from .keys import partition_keys
from .partition_store import PartitionStore
from .partition_worker import PartitionWorker
from .redis_client import connect

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message

    from ..ledger.positions import Topic
    from ..ledger.urls import StoreUrl
    from ..schemas import Codec
    from .kafka_client import Settled

_log = logging.getLogger("fencepost.projector")
_POLL_S = 0.02
_FETCHED = 2000
_COMMIT_EVERY_S = 1.0
_FLUSH_S = 5.0
_SILENT_AFTER_S = 3.0


class Projector:
    """A member of the group of projectors of a ledger.

    Args:
        url: of the ledger.
        group: the consumer group; it keeps the settled offsets.
        topic_ids: of the topics as they were checked.
        codec: reads and writes values when a schema registry is configured.

    Raises StoreUnavailableError when Kafka cannot be reached at the start.
    """

    def __init__(self, url: StoreUrl, *, group: str, topic_ids: Mapping[Topic, str], codec: Codec | None) -> None:
        self._url = url
        self._topics = kafka_client.names(url)
        self._topic_ids = topic_ids
        self._codec = codec
        self._redis = connect(url.projection)
        self._producer = Producer(kafka_client.producer_settings(url), logger=client_logger())
        settings = kafka_client.projector_settings(url, group)
        self._consumer = Consumer(
            {**settings, "stats_cb": self._heard, "error_cb": _report, "on_commit": self._heard_commit},
            logger=client_logger(),
        )
        self._partitioners = {
            topic: kafka_client.partitioner(count)
            for topic, count in kafka_client.partition_counts(url, self._consumer).items()
        }
        self._workers: dict[Partition, PartitionWorker] = {}
        self._answered: dict[Partition, float] = {}
        self._committed_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """Project until `stop` is set; then finish the step at hand, commit, and leave the group.

        Raises StoreUnavailableError when the client cannot go on; a new projector can.
        """
        self._consumer.subscribe(
            list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        try:
            while not stop.is_set():
                self._turn()
        finally:
            self._close()

    def _turn(self) -> None:
        with kafka_client.translated(self._url):
            messages = self._fetch()
        self._dispatch(messages)
        with kafka_client.translated(self._url):
            self._producer.poll(0)  # raises when the producer has failed for good
        now = time.monotonic()
        for partition, worker in list(self._workers.items()):
            worker.serve(alive=now - self._answered.get(partition, 0.0) < _SILENT_AFTER_S)
        if now - self._committed_at >= _COMMIT_EVERY_S:
            self._committed_at = now
            self._commit(asynchronous=True)

    # -- messages ------------------------------------------------------------------------

    def _fetch(self) -> list[Message]:
        # consume() waits until it has all it was asked for; so wait for one, then take what is there.
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return []
        return [first, *self._consumer.consume(_FETCHED, 0)]

    def _dispatch(self, messages: Iterable[Message]) -> None:
        by_place: dict[tuple[str | None, int | None], list[Message]] = {}
        for message in messages:
            error = message.error()
            if error is None:
                by_place.setdefault((message.topic(), message.partition()), []).append(message)
            else:
                self._fault(message, error)
        for some in by_place.values():
            partition = self._partition(some[0])
            worker = self._workers.get(partition) if partition else None
            if partition is not None and worker is not None:
                worker.take([(kafka_client.raw_message(m, partition), _epoch(m)) for m in some])

    def _partition(self, message: Message) -> Partition | None:
        topic = self._topics.get(message.topic() or "")
        number = message.partition()
        return None if topic is None or number is None else Partition(topic, number)

    def _fault(self, message: Message, error: KafkaError) -> None:
        partition = self._partition(message)
        worker = self._workers.get(partition) if partition else None
        if error.fatal():
            raise kafka_client.unavailable(self._url, str(error))
        _log.warning("%s: %s", partition or "kafka", error)
        if worker is None:
            return
        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001 (its name)
            worker.out_of_range()
        elif error.code() == KafkaError._LOG_TRUNCATION:  # noqa: SLF001 (its name)
            worker.cut()

    def _heard(self, statistics: str) -> None:
        """Note which partitions' leaders answered lately."""
        told = json.loads(statistics)
        now = time.monotonic()
        idle_us = {broker["nodeid"]: broker.get("rxidle", -1) for broker in told["brokers"].values()}
        for partition in self._workers:
            name = self._url.topic(partition.topic)
            known = told["topics"].get(name, {}).get("partitions", {}).get(str(partition.number), {})
            idle = idle_us.get(known.get("leader"), -1)
            if 0 <= idle < _SILENT_AFTER_S * 1_000_000:
                self._answered[partition] = now

    # -- the group -----------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            place.offset = 0  # a placeholder: the worker starts where Redis says
        consumer.incremental_assign(places)
        consumer.pause(places)
        for place in places:
            worker = self._worker(Partition(self._topics[place.topic], place.partition))
            self._workers[worker.partition] = worker
            _log.info("%s: assigned", worker.partition)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        # Nothing is at hand here: callbacks run inside poll(), between two turns.
        self._commit(asynchronous=False)
        self._forget(places)
        consumer.incremental_unassign(places)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places)
        consumer.incremental_unassign(places)

    def _forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            partition = Partition(self._topics[place.topic], place.partition)
            self._workers.pop(partition, None)
            _log.info("%s: given up", partition)

    def _worker(self, partition: Partition) -> PartitionWorker:
        log = PartitionLog(
            self._url,
            partition,
            consumer=self._consumer,
            producer=self._producer,
            partition_of=self._partitioners[partition.topic],
            codec=self._codec,
            topic_id=self._topic_ids[partition.topic],
        )
        store = PartitionStore(self._redis, self._url.projection, partition_keys(self._url, partition))
        return PartitionWorker(log, store)

    # -- settled offsets -----------------------------------------------------------------

    def _commit(self, *, asynchronous: bool) -> None:
        due = {w: settled for w in self._workers.values() if (settled := w.unsaved()) is not None}
        if not due:
            return
        places = [self._place(worker.partition, settled) for worker, settled in due.items()]
        try:
            if asynchronous:
                self._consumer.commit(offsets=places, asynchronous=True)
            else:
                self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            _log.warning("settled offsets are not committed, and will be later: %s", error)
            return
        for worker, settled in due.items():
            worker.saved(settled)

    def _heard_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if error is None:
            return
        _log.warning("settled offsets are not committed, and will be later: %s", error)
        for place in places:
            worker = self._workers.get(Partition(self._topics[place.topic], place.partition))
            if worker is not None:
                worker.saved(None)

    def _place(self, partition: Partition, settled: Settled) -> TopicPartition:
        name = self._url.topic(partition.topic)
        return TopicPartition(name, partition.number, settled.offset, settled.metadata())

    def _close(self) -> None:
        self._commit(asynchronous=False)
        try:
            left = self._producer.flush(_FLUSH_S)
            if left:
                _log.warning("%d re-assertions are unconfirmed; whoever comes next publishes them again", left)
        except KafkaException as error:
            _log.warning("re-assertions may be unconfirmed (%s); whoever comes next publishes them again", error)
        self._consumer.close()
        try:
            self._redis.close()
        except StoreUnavailableError:
            _log.debug("closing Redis failed", exc_info=True)


def _epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return -1 if epoch is None else epoch


def _report(error: KafkaError) -> None:
    _log.warning("kafka: %s", error)
