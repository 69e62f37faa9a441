"""Claim and confirm on Kafka and Redis with nothing else: produce, wait until a projector has applied it, produce again.

The projector is this script in another process: it writes keys to Redis and announces them, a batch at a time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from bench import frame
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings

PARTITIONS = 4
_FETCHED = 1000
_JOIN_S = 10.0


def project(bootstrap: str, redis_url: str, topic: str) -> None:
    """Apply everything that is written to the topic, until killed."""
    import redis  # noqa: PLC0415 - only where it is measured

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False,
                         "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100})  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    client = redis.Redis.from_url(redis_url)
    print("ready", flush=True)
    while True:
        first = consumer.poll(1.0)
        if first is None:
            continue
        messages = [first, *consumer.consume(_FETCHED, 0)]
        keys = [m.key() or b"" for m in messages if m.error() is None]
        pipeline = client.pipeline(transaction=True)
        pipeline.hset(f"{topic}:state", mapping=dict.fromkeys(keys, b"1"))
        pipeline.publish(topic, b"\n".join(m.key() or b"" for m in messages if m.value() == b"INTENDED"))
        pipeline.execute()


class Floor:
    """A producer with its poller, and a listener; each resolves many waiters with one wake-up of a loop."""

    def __init__(self, settings: Settings, topic: str, linger_ms: int) -> None:
        import redis  # noqa: PLC0415 - only where it is measured

        self._topic = topic
        self._producer = Producer({"bootstrap.servers": frame.bootstrap(settings), "enable.idempotence": True,
                                   "acks": "all", "linger.ms": linger_ms})  # fmt: skip
        self._client = redis.Redis.from_url(frame.redis_url(settings), socket_timeout=None)
        self._pubsub: Any = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.subscribe(topic)
        self._confirmed: dict[str, Any] = {}
        self._answered: list[Any] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._poll, self._listen)]
        for thread in self._threads:
            thread.start()

    def publish(self, key: str, value: bytes, done: Any) -> None:
        self._producer.produce(self._topic, value, key, on_delivery=lambda *_: self._answered.append(done))

    def expect(self, key: str, confirmed: Any) -> None:
        self._confirmed[key] = confirmed

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self._producer.flush(_JOIN_S)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(0.1)
            answered, self._answered = self._answered, []
            _settle(answered)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            message = self._pubsub.get_message(timeout=0.2)
            if message is not None:
                _settle([self._confirmed.pop(key, None) for key in message["data"].decode().split("\n")])


def _settle(waiters: list[Any]) -> None:
    loops: dict[Any, list[Any]] = {}
    for waiter in waiters:
        if isinstance(waiter, asyncio.Future):
            loops.setdefault(waiter.get_loop(), []).append(waiter)
        elif waiter is not None:
            waiter.set_result(None)
    for loop, some in loops.items():
        loop.call_soon_threadsafe(lambda some=some: [waiter.set_result(None) for waiter in some])


@contextmanager
def floor(settings: Settings, linger_ms: int) -> Iterator[tuple[Floor, int]]:
    """A topic of its own with its projector; (what produces and listens, process id of the projector)."""
    topic = f"floor-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": frame.bootstrap(settings)})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(30)
    command = [sys.executable, "-m", "bench.kafka_floor", frame.bootstrap(settings), frame.redis_url(settings), topic]
    projector = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert projector.stdout is not None
        assert projector.stdout.readline() == "ready\n"
        made = Floor(settings, topic, linger_ms)
        time.sleep(2.0)  # the producer gets its id, which must not be measured
        yield made, projector.pid
        made.close()
    finally:
        projector.kill()
        projector.communicate()


def threads(settings: Settings, agents: int) -> Iterator[Measure]:
    with floor(settings, 0) as (made, projector):

        def effect(key: str) -> None:
            claimed, confirmed, committed = Future[None](), Future[None](), Future[None]()
            made.expect(key, confirmed)
            made.publish(key, b"INTENDED", claimed)
            claimed.result(60)
            confirmed.result(60)
            made.publish(key, b"COMMITTED", committed)
            committed.result(60)

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            return frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings, projector))

        yield one_round


def tasks(settings: Settings, agents: int) -> Iterator[Measure]:
    with floor(settings, 1) as (made, projector):

        async def effect(key: str) -> None:
            loop = asyncio.get_running_loop()
            claimed, confirmed, committed = loop.create_future(), loop.create_future(), loop.create_future()
            made.expect(key, confirmed)
            made.publish(key, b"INTENDED", claimed)
            await claimed
            await confirmed
            made.publish(key, b"COMMITTED", committed)
            await committed

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            watch = frame.meter(settings, projector)
            return asyncio.run(frame.in_tasks(effect, agents, each, f"r{number}", watch))

        yield one_round


def rows() -> list[Row]:
    kinds = (
        ("baseline.kafka.threads", "claim and confirm on Kafka and Redis, nothing else, linger 0", threads),
        ("baseline.kafka.asyncio", "claim and confirm on Kafka and Redis, nothing else, linger 1 ms", tasks),
    )
    return [
        frame.effects_row(name, what, agents, partial(prepare, agents=agents))
        for name, what, prepare in kinds
        for agents in frame.AGENTS
    ]


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[1].startswith("-"):
        project(*sys.argv[1:])
    else:
        frame.main(rows(), problem=frame.need("confluent_kafka", "redis"), needs_services=True)
