"""Kafka → fastavro → Redis with operation states, and none of the ledger's logic: what a projector cannot do without.

An event is one flat Avro record; a batch is what is there, applied with one pipeline of HSETs and the position.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fastavro
from bench import frame
from bench.raw_schema import SCHEMA, TEXT
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings

EVENTS = 200_000
PARTITIONS = 4
_FETCHED = 1000


def event(number: int, kind: str) -> tuple[bytes, bytes]:
    """(key, value) of an event about the operation with this number."""
    key = f"bench.pay:order-{number}"
    values = dict.fromkeys(TEXT, "") | {
        "op_id": key, "attempt_id": uuid.uuid4().hex, "agent_id": "agent-1", "branch_id": "main",
        "session_id": "f" * 32, "tool": "bench.pay", "effect_class": "IRREVERSIBLE", "identity_digest": "a" * 64,
        "content_digest": "b" * 64,
    }  # fmt: skip
    out = io.BytesIO()
    more = {"kind": kind, "seq": number, "time_ms": time.time_ns() // 1_000_000, "payload": b'{"paid":1}'}
    fastavro.schemaless_writer(out, SCHEMA, values | more)
    return key.encode(), out.getvalue()


def filled_topic(settings: Settings, events: int) -> str:
    """A new topic with an intent and a commit for each operation."""
    topic = f"baseline-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": frame.bootstrap(settings)})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(30)
    producer = Producer(
        {"bootstrap.servers": frame.bootstrap(settings), "linger.ms": 20, "partitioner": "murmur2_random"}
    )
    for number in range(events // 2):
        for kind in ("INTENDED", "COMMITTED"):
            key, value = event(number, kind)
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0
    return topic


def project(settings: Settings, topic: str, events: int) -> float:
    """Read the topic from its beginning and write each operation's state; the seconds from the first message."""
    import redis  # noqa: PLC0415 - only where it is measured

    consumer = Consumer({"bootstrap.servers": frame.bootstrap(settings), "group.id": uuid.uuid4().hex,
                         "enable.auto.commit": False, "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    done, began = 0, 0.0
    with redis.Redis.from_url(frame.redis_url(settings)) as client:
        while done < events:
            first = consumer.poll(30)
            began = began or time.perf_counter()
            assert first is not None, "no message for half a minute"
            pipeline = client.pipeline(transaction=True)
            states: dict[int, dict[str, str]] = {}
            for message in (first, *consumer.consume(_FETCHED, 0)):
                value: Any = fastavro.schemaless_reader(io.BytesIO(message.value() or b""), SCHEMA, None)
                states.setdefault(message.partition() or 0, {})[value["op_id"]] = f"{value['kind']} {message.offset()}"
                done += 1
            for partition, changed in states.items():
                pipeline.hset(f"{topic}:{partition}", mapping=changed)
            pipeline.execute()
        ended = time.perf_counter()
        client.delete(*(f"{topic}:{number}" for number in range(PARTITIONS)))
    consumer.close()
    return ended - began


def size(settings: Settings) -> Mapping[str, int]:
    return {"events": settings.scaled(EVENTS, least=4), "partitions": PARTITIONS}


@contextmanager
def prepare(settings: Settings) -> Iterator[Measure]:
    events = size(settings)["events"] // 2 * 2
    topic = filled_topic(settings, events)

    def one_round(number: int) -> Round:
        del number
        watch = frame.meter(settings)
        seconds = project(settings, topic, events)
        return Round(events, max(seconds, 1e-9), (), watch.spent())

    yield one_round


if __name__ == "__main__":
    what = "Kafka, fastavro, Redis with operation states; no logic"
    frame.main([Row("baseline.chain", frame.BASELINE, what, size, prepare)], needs_services=True)
