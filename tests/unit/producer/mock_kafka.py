"""The mock brokers that are built into the Kafka client's library, with errors on demand. No ledger promise rests on them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Protocol

import confluent_kafka.cimpl

from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Topic

if TYPE_CHECKING:
    from fencepost.producer.settings import Settings
    from fencepost.producer.store import KafkaLog

PRODUCE = 0  # API keys
INIT_PRODUCER_ID = 22

_PRODUCER = 0


class MockKafka:
    """Mock brokers, numbered from 1. No compaction, no in-sync replicas, no configuration."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(library, name).restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        error = ctypes.create_string_buffer(512)
        configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
        library.rd_kafka_conf_set(configuration, b"log_level", b"0", None, ctypes.c_size_t(0))
        handle = library.rd_kafka_new(_PRODUCER, configuration, error, ctypes.c_size_t(len(error)))
        assert handle, error.value
        self._handle = ctypes.c_void_p(handle)
        cluster = library.rd_kafka_mock_cluster_new(self._handle, brokers)
        assert cluster
        self._cluster = ctypes.c_void_p(cluster)
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int = 4, replicas: int = 1) -> None:
        self._call("topic_create", topic.encode(), partitions, replicas)

    def answer_with(self, api_key: int, *errors: int) -> None:
        """The next requests of this kind get these errors, one each."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api_key), ctypes.c_size_t(len(errors)), array
        )

    def delay(self, milliseconds: int, broker: int = 1) -> None:
        self._call("broker_set_rtt", ctypes.c_int32(broker), milliseconds)

    def down(self, broker: int = 1) -> None:
        self._call("broker_set_down", ctypes.c_int32(broker))

    def up(self, broker: int = 1) -> None:
        self._call("broker_set_up", ctypes.c_int32(broker))

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
        assert result == 0, f"{name}: error {result}"


class OpenLog(Protocol):
    """Opens a log on the mock brokers; it is closed after the test."""

    def __call__(self, settings: Settings | None = None) -> KafkaLog: ...


async def publish(log: KafkaLog, key: str = "op", fact: bytes = b"fact") -> int | None:
    """Publish one record to the effects topic, where its key belongs."""
    return await log.publish(*one_record(log, key, fact))


def one_record(log: KafkaLog, key: str = "op", fact: bytes = b"fact") -> tuple[Partition, Record]:
    """A record for the effects topic, and where its key belongs."""
    return Partition(Topic.EFFECTS, log.partition_of(Topic.EFFECTS, key)), Record(key, (), fact)
