"""With a schema registry: the record is in Confluent's wire format, its facts are as always."""

from __future__ import annotations

import asyncio
import uuid

from confluent_kafka import Consumer, TopicPartition

from fencepost.ledger import log_keys
from fencepost.ledger.facts import AgentFact, AgentKind, decode_agent, encode_agent
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.setup import initialise, recorded_id
from fencepost.ledger.stores import open_store

HOME = Partition(Topic.AGENTS, 0)


def _raw(bootstrap: str, topic: str, offset: int) -> bytes:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert value is not None
        return value
    finally:
        consumer.close()


def test_records_are_framed_and_facts_are_not(kafka_bootstrap: str, redis_url: str) -> None:
    """What Kafka's tools see is the wire format; the fact inside is the same bytes as without a registry."""
    prefix = f"wire-{uuid.uuid4().hex[:8]}"
    url = f"kafka://{kafka_bootstrap}/{prefix}?projection={redis_url}&development=1&registry=mock://wire"
    fact = encode_agent(AgentFact(kind=AgentKind.SESSION_OPENED, agent_id="a", branch_id="main", session_id="s"))

    async def write() -> int | None:
        store = open_store(url)
        try:
            await initialise(store, partitions=1, development=True)
            return await store.log.publish(HOME, Record(log_keys.session("a", "s"), (), fact))
        finally:
            await store.close()

    offset = asyncio.run(write())
    assert offset is not None
    assert _raw(kafka_bootstrap, f"{prefix}.agents", offset)[:1] == b"\x00"
    reader = open_store(url).reader()
    try:
        read = list(reader.entries(HOME))[-1]
    finally:
        reader.close()
    assert read.record is not None
    assert read.record.fact == fact
    assert decode_agent(fact).session_id == "s"
    assert recorded_id(open_store(url))


def test_a_reader_without_the_registry_sets_it_aside(kafka_bootstrap: str, redis_url: str) -> None:
    """Nothing is guessed: the record is reported as undecodable, with the way on."""
    prefix = f"wire-{uuid.uuid4().hex[:8]}"
    plain = f"kafka://{kafka_bootstrap}/{prefix}?projection={redis_url}&development=1"

    async def write() -> None:
        store = open_store(plain + "&registry=mock://wire")
        try:
            await initialise(store, partitions=1, development=True)
        finally:
            await store.close()

    asyncio.run(write())
    reader = open_store(plain).reader()
    try:
        (entry,) = reader.entries(HOME)
    finally:
        reader.close()
    assert entry.record is None
    assert "registry" in entry.problem
