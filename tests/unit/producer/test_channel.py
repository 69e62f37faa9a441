"""Sharing, back-pressure, event loops, and the replacement of a failed producer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError
from unit.producer.mock_kafka import PRODUCE, MockKafka, OpenLog, one_record, publish

from fencepost.ledger.errors import OutcomeUnknownError, PublishRefusedError, StoreClosedError
from fencepost.ledger.positions import Topic
from fencepost.producer import errors, sharing
from fencepost.producer.client import Answer, Message
from fencepost.producer.settings import Settings


def test_logs_of_a_process_share_one_client(opened: OpenLog) -> None:
    """Equal settings share; the client lives as long as the last log; other settings have their own."""
    first, second, other = opened(), opened(), opened(Settings(message_timeout_s=3.0, close_timeout_s=1.0))
    channel = first._channel
    assert second._channel is channel
    assert other._channel is not channel
    asyncio.run(first.close())
    assert asyncio.run(publish(second)) == 0
    asyncio.run(second.close())
    assert not channel._poller.is_alive()
    assert channel not in sharing._channels.users
    assert asyncio.run(publish(opened())) == 1


def test_records_wait_a_moment_for_company(mock: MockKafka, opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """One or two records on their way are sent at once; further ones go together, long before the first answer."""
    log = opened()
    client = log._channel._client
    sent: list[Message] = []
    all_sent = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    together: list[int] = []
    send, send_together = client.send, client.send_together

    def noted(message: Message, answer: Answer) -> None:
        sent.append(message)
        send(message, answer)
        tell()

    def noted_together(place: tuple[str, int], messages: Sequence[tuple[Message, Answer]]) -> list[int]:
        sent.extend(message for message, _ in messages)
        together.append(len(messages))
        left = send_together(place, messages)
        tell()
        return left

    def tell() -> None:
        if len(sent) == 12:
            loops[0].call_soon_threadsafe(all_sent.set)  # the poller may be the one who sends

    async def scenario() -> None:
        loops.append(asyncio.get_running_loop())
        await publish(log)
        monkeypatch.setattr(client, "send", noted)
        monkeypatch.setattr(client, "send_together", noted_together)
        mock.delay(500)
        tasks = [asyncio.create_task(publish(log)) for _ in range(12)]
        await asyncio.sleep(0)
        assert len(sent) == 2
        await asyncio.wait_for(all_sent.wait(), 10)
        assert not any(task.done() for task in tasks)
        assert together == [10]
        assert await asyncio.gather(*tasks) == list(range(1, 13))

    asyncio.run(scenario())


def test_what_goes_together_keeps_its_place(opened: OpenLog) -> None:
    """Records that are sent together get into the partitions of their keys, each partition's in the order of the calls."""
    log = opened()
    keys = [f"op{number % 7}" for number in range(140)]
    places = [log.partition_of(Topic.EFFECTS, key) for key in keys]

    async def scenario() -> list[int | None]:
        return await asyncio.gather(*(publish(log, key) for key in keys))

    offsets = asyncio.run(scenario())
    assert len(set(places)) > 1
    for place in set(places):
        mine = [offset for offset, at in zip(offsets, places, strict=True) if at == place]
        assert mine == list(range(len(mine)))


def test_without_certain_room_records_go_one_by_one(opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the client might take some and refuse others in between, nothing is sent together: their order would be lost."""
    log = opened(Settings(max_queued=40))
    together: list[int] = []
    client = log._channel._client
    send_together = client.send_together

    def noted(place: tuple[str, int], messages: Sequence[tuple[Message, Answer]]) -> list[int]:
        assert len(messages) <= 20
        together.append(len(messages))
        return send_together(place, messages)

    monkeypatch.setattr(client, "send_together", noted)

    async def scenario() -> None:
        assert await asyncio.gather(*(publish(log) for _ in range(200))) == list(range(200))

    asyncio.run(scenario())
    assert sum(together) < 200
    large = Message("t", 0, b"k", b"x" * (Settings().max_queued_kib << 9))
    assert not log._channel._client.has_room([large])
    assert log._channel._client._taken_bytes == 0


def test_a_client_that_failed_takes_nothing_together(mock: MockKafka, opened: OpenLog) -> None:
    """What a client that failed for good does not take is left to the next one; its outcome is not told."""
    log = opened()
    asyncio.run(publish(log))
    client = log._channel._client
    answers: list[object] = []
    topic = log._names[Topic.EFFECTS]
    messages = [(Message(topic, 0, b"k", b"v"), answers.append)] * 3
    with log._channel._lock:
        client._producer = _Failed(client._producer)  # type: ignore[assignment]
        assert client.send_together((topic, 0), messages) == [0, 1, 2]
        client._producer = client._producer._real  # type: ignore[attr-defined]
        failed, client.failed = client.failed, False
    assert failed
    assert not answers


class _Failed:
    """A producer that has failed for good."""

    def __init__(self, real: object) -> None:
        self._real = real

    def produce_batch(self, topic: str, rows: list[dict[str, object]], partition: int) -> int:
        del topic, partition
        for row in rows:
            row["_error"] = KafkaError(KafkaError._FATAL)
        return 0


def test_what_waits_is_sent_without_its_loop(mock: MockKafka, opened: OpenLog) -> None:
    """A loop that ends while its records wait for company keeps nobody up: the poller sends them, and later ones wait no longer."""
    log = opened()

    async def leave() -> None:
        await publish(log)
        mock.delay(100)
        left_behind = [asyncio.create_task(publish(log)) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in left_behind)

    asyncio.run(leave())
    assert asyncio.run(publish(log)) is not None
    assert not log._channel._gathering


def test_a_full_queue_makes_publishers_wait_in_order(mock: MockKafka, opened: OpenLog) -> None:
    """With room for three records, fifty publishes all get through, in the order of their calls."""
    log = opened(Settings(max_queued=3, close_timeout_s=1.0))

    async def burst() -> list[int | None]:
        await publish(log)
        mock.delay(20)
        return await asyncio.gather(*(publish(log) for _ in range(50)))

    assert asyncio.run(burst()) == list(range(1, 51))


def test_waiting_for_room_is_bounded(mock: MockKafka, opened: OpenLog) -> None:
    """Who waits for room too long is refused, certainly unwritten; what the client had taken is unknown."""
    log = opened(Settings(max_queued=2, room_timeout_s=0.3, message_timeout_s=1.5, max_waiting=2, close_timeout_s=1.0))

    async def scenario() -> list[int | BaseException | None]:
        await publish(log)
        mock.down()
        return await asyncio.gather(*(publish(log) for _ in range(5)), return_exceptions=True)

    got = asyncio.run(scenario())
    assert [type(one) for one in got] == [OutcomeUnknownError] * 2 + [PublishRefusedError] * 3
    assert [getattr(one, "code", None) for one in got[2:]] == [errors.NO_ROOM] * 3


def test_a_cancelled_waiter_is_never_sent(mock: MockKafka, opened: OpenLog) -> None:
    """A publish that is given up while it waits for room leaves no record and keeps nobody up."""
    log = opened(Settings(max_queued=1, close_timeout_s=1.0))

    async def scenario() -> None:
        await publish(log)
        mock.delay(200)
        sent, dropped, later = (asyncio.create_task(publish(log)) for _ in range(3))
        await asyncio.sleep(0)
        dropped.cancel()
        assert [await sent, await later] == [1, 2]
        assert not log._channel._open

    asyncio.run(scenario())


def test_outcomes_come_in_the_loop_that_asked(opened: OpenLog) -> None:
    """Two threads with an event loop each share a log; asyncio's debug mode would object to a foreign thread."""
    log = opened()
    offsets: list[int | None] = []

    async def burst() -> None:
        offsets.extend(await asyncio.gather(*(publish(log) for _ in range(200))))

    threads = [threading.Thread(target=lambda: asyncio.run(burst(), debug=True)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(offset for offset in offsets if offset is not None) == list(range(400))


def test_an_outcome_for_a_closed_loop_harms_nobody(mock: MockKafka, opened: OpenLog) -> None:
    """A loop that went away before the outcome came does not stop the poller."""
    log = opened()
    asyncio.run(publish(log))
    mock.delay(200)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(publish(log), 0.05))
    assert asyncio.run(publish(log)) == 2


def test_a_producer_that_fails_for_good_is_replaced(mock: MockKafka, opened: OpenLog) -> None:
    """What it had taken is unknown; later publishes go through a new one."""
    log = opened()
    asyncio.run(publish(log))
    failed = log._channel._client
    mock.answer_with(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(publish(log))
    assert asyncio.run(publish(log)) == 1
    assert failed.failed
    assert log._channel._client is not failed


def test_a_producer_that_keeps_failing_is_replaced_slowly(mock: MockKafka, opened: OpenLog) -> None:
    """A failure that comes back does not make the poller spin: replacements are a second apart."""
    log = opened()
    asyncio.run(publish(log))
    began = time.monotonic()
    for _ in range(3):
        mock.answer_with(PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(OutcomeUnknownError):
            asyncio.run(publish(log))
    assert asyncio.run(publish(log)) == 1
    assert time.monotonic() - began > 2


def test_threads_publish_without_a_loop(mock: MockKafka, opened: OpenLog) -> None:
    """Each thread waits for its own record; those that wait for company leave with the next answer, in their order."""
    log = opened()
    asyncio.run(publish(log))
    mock.delay(50)
    with ThreadPoolExecutor(12) as threads:
        offsets = list(threads.map(lambda _: log.publish_here(*one_record(log), timeout_s=20), range(36)))
    assert sorted(offset for offset in offsets if offset is not None) == list(range(1, 37))
    assert not log._channel._open


def test_a_thread_waits_no_longer_than_it_said(mock: MockKafka, opened: OpenLog) -> None:
    """Then nobody knows whether the record is or will be written."""
    log = opened(Settings(message_timeout_s=1.5, close_timeout_s=0.1))
    asyncio.run(publish(log))
    mock.down()
    began = time.monotonic()
    with pytest.raises(OutcomeUnknownError):
        log.publish_here(*one_record(log), timeout_s=0.2)
    assert time.monotonic() - began < 1.0


def test_a_closed_log_takes_nothing_from_threads(opened: OpenLog) -> None:
    """As from loops: certainly not written."""
    log = opened()
    asyncio.run(log.close())
    with pytest.raises(StoreClosedError):
        log.publish_here(*one_record(log), timeout_s=1.0)
