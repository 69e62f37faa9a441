"""The projector on real Kafka and Redis: at rest, and after any crash, the projection is the fold of the log."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
from projection_kit import (
    Rig,
    committed,
    drop,
    effect,
    make_rig,
    projector,
    projector_process,
    workload,
)

from fencepost.consumer.command import Progress, lag, rebuild
from fencepost.consumer.kafka_client import Settled
from fencepost.deploy.processes import wait_until
from fencepost.ledger import history
from fencepost.ledger.facts import EffectKind, decode_effect
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Status
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import OPS, read_history

if TYPE_CHECKING:
    from pathlib import Path

    from services import StartRedis

FAILPOINTS = [
    "before_horizon:kill",
    "after_begin_incarnation:kill",
    "before_apply:kill",
    "after_apply:kill",
    "after_apply:kill:4",
    "before_reassert:kill",
    "before_reassert:kill:7",
    "after_reassert:kill",
]


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    return make_rig(kafka_bootstrap, redis_url)


def status(rig: Rig, op_id: str) -> Status:
    documents = rig.projected()[rig.partition_of(Topic.EFFECTS, op_id)]
    return fold_operation(op_id, read_history(documents[DocumentKey(OPS, op_id)])).status


def test_projection_is_the_fold_of_the_log(rig: Rig) -> None:
    """What is in Redis at rest is, byte for byte, what folding the log in memory gives; before and after new records."""
    workload(rig)
    with projector(rig.url):
        rig.check()
        workload(rig)
        rig.check()
        assert status(rig, "op-3") is Status.COMMITTED


def test_newest_record_of_every_key_is_complete(rig: Rig) -> None:
    """At rest the newest record of each op carries all that is known of it: compaction could come now."""
    from fencepost.consumer.log_reader import open_reader  # noqa: PLC0415

    with projector(rig.url):
        workload(rig)
        rig.check()
    newest: dict[str, history.History] = {}
    reader = open_reader(rig.url)
    for partition in [p for p in rig.everything() if p.topic is Topic.EFFECTS]:
        for entry in reader.entries(partition):
            assert entry.record is not None
            newest[entry.record.key] = history.facts_of(entry.record, Position(0, entry.offset))
    reader.close()
    for documents in rig.projected().values():
        for (collection, key), document in documents.items():
            if collection == OPS:
                assert read_history(document) == newest[key]


def test_a_fenced_intent_is_rejected_in_its_own_history(rig: Rig) -> None:
    """An intent behind a fence carries its verdict afterwards, in the log too."""
    with projector(rig.url):
        workload(rig)
        rig.check()
    documents = rig.projected()[rig.partition_of(Topic.EFFECTS, "late-1")]
    kinds = [decode_effect(f).kind for _, f in read_history(documents[DocumentKey(OPS, "late-1")])]
    assert kinds == [EffectKind.INTENDED, EffectKind.REJECTED]


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_killed_anywhere(rig: Rig, failpoint: str) -> None:
    """A projector that is killed at any step leaves nothing that its successor does not put right."""
    workload(rig, 12)
    with projector_process(rig.url, failpoint) as process:
        assert process.wait(60) == -signal.SIGKILL
    with projector(rig.url):
        rig.check()
        assert status(rig, "op-3") is Status.COMMITTED


@pytest.mark.slow
def test_killed_while_it_catches_up(rig: Rig) -> None:
    """The same for a projection that is open: losers behind commits are applied, the projector dies, nothing is owed after."""
    with projector(rig.url):
        workload(rig, 12)
        rig.check()
    for failpoint in ("before_apply:kill", "after_apply:kill", "before_reassert:kill:2", "after_reassert:kill:2"):
        for number in range(12):
            op_id = f"op-{number}"
            rig.write(Topic.EFFECTS, op_id, effect(EffectKind.INTENDED, op_id, f"loser {failpoint}"))
        with projector_process(rig.url, failpoint) as process:
            assert process.wait(60) == -signal.SIGKILL
    with projector(rig.url):
        rig.check()


def test_stops_on_sigterm(rig: Rig) -> None:
    """SIGTERM ends it with 0, and the settled offsets stand in the group with their metadata."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

    workload(rig, 5)
    with projector_process(rig.url) as process:
        rig.wait_at_rest()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    settings = {"bootstrap.servers": rig.url.bootstrap, "group.id": f"{rig.url.prefix}.projector"}
    consumer = Consumer(settings)
    places = [TopicPartition(rig.url.topic(p.topic), p.number) for p in rig.everything()]
    found = consumer.committed(places, timeout=20)
    consumer.close()
    for partition, place in zip(rig.everything(), found, strict=True):
        settled = Settled.read(place.offset, place.metadata)
        header = rig.headers()[partition]
        assert settled is not None
        assert (settled.offset, settled.incarnation) == (header.settled_offset, header.incarnation)
        assert header.settled_offset == header.applied_offset


def test_flushall_begins_anew(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """After FLUSHALL the running projector begins again, opens at the horizon and not before, and gets the same documents."""
    server = private_redis()
    rig = make_rig(kafka_bootstrap, server.url)
    with projector(rig.url):
        workload(rig, 60)
        rig.check()
        before, incarnations = rig.projected(), {h.incarnation for h in rig.headers().values()}
        server.flushall()
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            headers = rig.headers().values()
            for header in headers:
                assert header.incarnation not in incarnations
                assert not header.opened or header.applied_offset >= header.horizon > 0
            if all(header.opened for header in headers):
                break
        rig.check()
        assert rig.projected() == before


def test_redis_goes_back_in_time(kafka_bootstrap: str, private_redis: StartRedis, tmp_path: Path) -> None:
    """When Redis comes back with an older state, the projector goes back to exactly its position and on from there."""
    server = private_redis(appendonly="no")
    rig = make_rig(kafka_bootstrap, server.url)
    with projector(rig.url):
        workload(rig, 10)
        rig.check()
        assert server.command("SAVE") == "+OK"
        old = (server.directory / "dump.rdb").read_bytes()
        headers = rig.headers()
        workload(rig, 20)
        rig.check()
        server.kill()
        (server.directory / "dump.rdb").write_bytes(old)
        server.restart()
        workload(rig, 5)
        rig.check()
        assert {p: h.incarnation for p, h in rig.headers().items()} == {p: h.incarnation for p, h in headers.items()}


def test_redis_is_away_for_a_while(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """While Redis is dead nothing is lost; the projector goes on when it is back."""
    server = private_redis(appendfsync="always")
    rig = make_rig(kafka_bootstrap, server.url)
    with projector(rig.url):
        workload(rig, 5)
        rig.check()
        server.kill()
        workload(rig, 10)
        server.restart()
        rig.check()


@pytest.mark.slow
def test_a_superseded_projector_changes_nothing(rig: Rig) -> None:
    """A projector that was paused past its session wakes up, and nothing that it still tries takes effect."""
    with projector_process(rig.url) as first:
        workload(rig, 10)
        rig.wait_at_rest()
        first.send_signal(signal.SIGSTOP)
        workload(rig, 15)
        with projector(rig.url):
            rig.check()
            first.send_signal(signal.SIGCONT)
            workload(rig, 20)
            rig.check()
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
            rig.check()


@pytest.mark.slow
def test_projectors_share_partitions(kafka_bootstrap: str, redis_url: str) -> None:
    """Two run at a time, each with a part; one is killed, and the other takes all."""
    rig = make_rig(kafka_bootstrap, redis_url, partitions=4)
    with projector(rig.url):
        workload(rig, 10)
        rig.check()
        epochs = owners(rig)
        with projector_process(rig.url) as second:
            assert wait_until(lambda: sum(owners(rig)[p] != epochs[p] for p in epochs) == len(epochs) // 2, 40)
            workload(rig, 20)
            rig.check()
            second.kill()
        workload(rig, 25)
        rig.check()


def owners(rig: Rig) -> dict[Partition, bytes | None]:
    with rig.redis() as client:
        return {p: client.get(rig.keys(p).epoch) for p in rig.everything()}


def test_rebuild_on_command(rig: Rig) -> None:
    """The operator's command drops the projection, shows progress, and returns when it is built again."""
    shown: list[Progress] = []
    with projector(rig.url):
        workload(rig, 30)
        rig.check()
        before = rig.projected()
        rebuild(rig.url, shown.append, timeout_s=40)
        assert rig.projected() == before
        assert shown[-1].applied == shown[-1].total
        assert shown[-1].open_partitions == shown[-1].partitions == 4


def test_rebuild_of_one_partition(rig: Rig) -> None:
    """A projection that is dropped while nothing is written is noticed too."""
    place = Partition(Topic.EFFECTS, 1)
    with projector(rig.url):
        workload(rig, 5)
        rig.check()
        before = rig.headers()
        drop(rig, place)
        assert wait_until(lambda: rig.headers()[place].opened, 20)
        rig.check()
        changed = {p for p, h in rig.headers().items() if h.incarnation != before[p].incarnation}
        assert changed == {place}


def test_heartbeats(rig: Rig) -> None:
    """An idle projector keeps saying that it has caught up; a dead one does not."""
    workload(rig, 3)
    with projector(rig.url):
        rig.check()
        assert wait_until(lambda: all(h.now_ms - h.seen_ms < 1500 for h in rig.headers().values()), 20)
        seen = {p: h.seen_ms for p, h in rig.headers().items()}
        assert wait_until(lambda: all(h.seen_ms > seen[p] for p, h in rig.headers().items()), 20)
    assert wait_until(lambda: all(h.now_ms - h.seen_ms > 1500 for h in rig.headers().values()), 20)


def test_lag(rig: Rig) -> None:
    """Without a projector the lag is the whole log, and nothing is open."""
    committed("op", rig)
    rows = {row.partition: row for row in lag(rig.url)}
    assert rows[rig.partition_of(Topic.EFFECTS, "op")].lag_records == 2
    assert not any(row.header.opened for row in rows.values())


def test_redis_paused(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """A Redis that hangs is waited for; it answers again, and nothing is lost."""
    server = private_redis()
    rig = make_rig(kafka_bootstrap, server.url)
    with projector(rig.url):
        workload(rig, 5)
        rig.check()
        server.pause()
        workload(rig, 8)
        time.sleep(1)
        server.resume()
        rig.check()
