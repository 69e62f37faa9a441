"""Asking where a partition's log begins and ends, while its brokers come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from fencepost.consumer import kafka_client
from fencepost.ledger import urls
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.positions import Partition, Topic

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition


class Leaderless:
    """A client whose partition has no leader; as the real one it finds out that there is one by asking for the topic."""

    def __init__(self, answers: list[int]) -> None:
        self.answers = answers

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert place.partition == 0
        assert timeout > 0
        if self.answers:
            raise KafkaException(KafkaError(self.answers[0]))
        return (3, 7)

    def list_topics(self, topic: str, timeout: float) -> None:
        assert topic == "led.effects"
        assert timeout > 0
        self.answers.pop(0)


URL = urls.parse("kafka://127.0.0.1:1/led?projection=redis://127.0.0.1:1/0")
EFFECTS_0 = Partition(Topic.EFFECTS, 0)


def bounds(answers: list[int], timeout_s: float = 5.0) -> tuple[int, int]:
    return kafka_client.log_bounds(URL, cast("Consumer", Leaderless(answers)), EFFECTS_0, timeout_s)


def test_a_partition_without_a_leader_is_asked_again() -> None:
    """After a broker hung its partitions are without a leader for a moment; that is no reason to give up."""
    assert bounds([KafkaError._UNKNOWN_PARTITION, KafkaError.NOT_LEADER_FOR_PARTITION]) == (3, 7)


def test_a_partition_that_stays_without_a_leader_is_told_in_time() -> None:
    with pytest.raises(StoreUnavailableError, match="_UNKNOWN_PARTITION"):
        bounds([KafkaError._UNKNOWN_PARTITION] * 1000, timeout_s=0.3)


def test_any_other_error_is_told_at_once() -> None:
    with pytest.raises(StoreUnavailableError, match="TOPIC_AUTHORIZATION_FAILED"):
        bounds([KafkaError.TOPIC_AUTHORIZATION_FAILED])
