"""Compaction by a real cleaner: it forgets nothing that was settled, and what it took too early stops the partition."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic
from projection_kit import FAST_COMPACTION, Rig, committed, effect, make_rig, projector, projector_process

from fencepost.consumer.command import rebuild
from fencepost.consumer.guarantees import DAY_MS
from fencepost.consumer.log_reader import open_reader
from fencepost.deploy.processes import wait_until
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Status
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import OPS, read_history

if TYPE_CHECKING:
    from services import StartRedis

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PLACE = Partition(Topic.EFFECTS, 0)


@pytest.fixture
def rig(kafka_bootstrap: str, private_redis: StartRedis) -> Rig:
    rig = make_rig(kafka_bootstrap, private_redis().url, partitions=1)
    settings = {name.replace(".", "_"): value for name, value in FAST_COMPACTION.items()}
    rig.configure(Topic.EFFECTS, **settings)
    return rig


def offsets(rig: Rig, key: str) -> list[int]:
    reader = open_reader(rig.url)
    try:
        return [entry.offset for entry in reader.entries(PLACE) if entry.key == key]
    finally:
        reader.close()


def compact(rig: Rig, key: str) -> None:
    """Let the cleaner at the log, and write filler until of the records of `key` only the newest is left."""
    rig.configure(Topic.EFFECTS, min_compaction_lag_ms="0")
    deadline = time.monotonic() + 60
    while len(offsets(rig, key)) > 1:
        assert time.monotonic() < deadline
        rig.write(Topic.EFFECTS, "filler", effect(EffectKind.INTENDED, "filler", "same"))
        time.sleep(0.1)
    rig.configure(Topic.EFFECTS, min_compaction_lag_ms=str(DAY_MS))


def status(rig: Rig, op_id: str) -> Status:
    document = rig.projected()[PLACE][DocumentKey(OPS, op_id)]
    return fold_operation(op_id, read_history(document)).status


def test_a_loser_cannot_erase_a_commit(rig: Rig) -> None:
    """A loser stands last, the projector dies before it pays, the rest is compacted, Redis is lost: the commit stands."""
    with projector(rig.url):
        committed("op", rig)
        rig.check()
    rig.write(Topic.EFFECTS, "op", effect(EffectKind.INTENDED, "op", "loser"))
    with projector_process(rig.url, "before_reassert:kill") as process:
        assert process.wait(60) == -9
    with projector(rig.url):
        rig.check()
        compact(rig, "op")
        with rig.redis() as client:
            client.flushall()
        rig.check()
    assert status(rig, "op") is Status.COMMITTED
    assert len(offsets(rig, "op")) == 1


def test_rebuilds_over_gaps_below_the_settled_offset(rig: Rig) -> None:
    """A rebuild from a compacted log gives the documents that were there before, byte for byte."""
    with projector(rig.url):
        for number in range(20):
            committed(f"op-{number}", rig)
            rig.write(Topic.EFFECTS, f"op-{number}", effect(EffectKind.INTENDED, f"op-{number}", "loser"))
        rig.check()
        compact(rig, "op-19")
        rig.check()
        before = {key: value for key, value in rig.projected()[PLACE].items() if "filler" not in key.key}
        incarnation = rig.headers()[PLACE].incarnation
        rebuild(rig.url, lambda _: None, timeout_s=60)
        rig.check()
        after = {key: value for key, value in rig.projected()[PLACE].items() if "filler" not in key.key}
        assert after == before
        assert rig.headers()[PLACE].incarnation != incarnation


def test_an_unseen_record_that_was_compacted_halts_the_partition(rig: Rig) -> None:
    """A gap above the settled offset proves a loss: this partition stops and says so, until an operator accepts the gap."""
    with projector(rig.url):
        committed("op", rig)
        rig.check()
    for attempt in ("x", "y", "z"):
        rig.write(Topic.EFFECTS, "unseen", effect(EffectKind.INTENDED, "unseen", attempt))
    compact(rig, "unseen")
    with projector(rig.url):
        assert wait_until(lambda: bool(rig.headers()[PLACE].halted), 30)
        reason = rig.headers()[PLACE].halted
        assert "effects/0" in reason
        assert "settled offset" in reason
        assert rig.headers()[Partition(Topic.AGENTS, 0)].opened
        halted = rig.headers()[PLACE].applied_offset
        rebuild(rig.url, lambda _: None, timeout_s=60)
        assert rig.headers()[PLACE].halted, "a rebuild that accepts nothing meets the same gap"
        rebuild(rig.url, lambda _: None, accept_gap=True, timeout_s=60)
        assert rig.headers()[PLACE].applied_offset > halted
        rig.check()
        assert status(rig, "op") is Status.COMMITTED


def test_a_halted_partition_stays_halted_over_a_restart(rig: Rig) -> None:
    """Nobody but an operator lets it go on."""
    with projector(rig.url):
        committed("op", rig)
        rig.check()
    for attempt in ("x", "y"):
        rig.write(Topic.EFFECTS, "unseen", effect(EffectKind.INTENDED, "unseen", attempt))
    compact(rig, "unseen")
    for _ in range(2):
        with projector(rig.url):
            assert wait_until(lambda: bool(rig.headers()[PLACE].halted), 30)
            threading.Event().wait(1)
            assert rig.headers()[PLACE].halted


def test_redis_goes_back_behind_what_is_compacted(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """An old state of Redis whose next records are compacted is not continued but built again."""
    server = private_redis(appendonly="no")
    rig = make_rig(kafka_bootstrap, server.url, partitions=1)
    rig.configure(Topic.EFFECTS, **{name.replace(".", "_"): value for name, value in FAST_COMPACTION.items()})
    with projector(rig.url):
        committed("op", rig)
        rig.check()
        assert server.command("SAVE") == "+OK"
        old, incarnation = (server.directory / "dump.rdb").read_bytes(), rig.headers()[PLACE].incarnation
        for attempt in ("x", "y", "z"):
            rig.write(Topic.EFFECTS, "op", effect(EffectKind.INTENDED, "op", attempt))
        rig.check()
        compact(rig, "op")
        rig.check()
        time.sleep(1.5)  # the settled offset reaches the group
        server.kill()
        (server.directory / "dump.rdb").write_bytes(old)
        server.restart()
        assert wait_until(lambda: rig.headers()[PLACE].incarnation != incarnation, 30)
        rig.check()
        assert status(rig, "op") is Status.COMMITTED


def cut_front(rig: Rig, before: int) -> None:
    """Delete the records before an offset, as nobody should."""
    rig.configure(Topic.EFFECTS, cleanup_policy="delete")
    place = TopicPartition(rig.url.topic(Topic.EFFECTS), 0, before)

    def deleted() -> bool:
        return bool(rig.admin.delete_records([place])[place].exception(timeout=20) is None)

    assert wait_until(deleted, 20)
    rig.configure(Topic.EFFECTS, cleanup_policy="compact")


def test_a_log_whose_front_is_cut(rig: Rig) -> None:
    """A rebuild begins where the log does, if all before it is settled; records that nobody saw are missed."""
    with projector(rig.url):
        for number in range(5):
            committed(f"op-{number}", rig)
        rig.check()
    cut_front(rig, 4)
    with projector(rig.url):
        rebuild(rig.url, lambda _: None, timeout_s=60)
        rig.wait_at_rest()
        assert not rig.headers()[PLACE].halted
    last = [rig.write(Topic.EFFECTS, "op", effect(EffectKind.INTENDED, "op", f"a{n}")) for n in range(4)][-1]
    cut_front(rig, last)
    with projector(rig.url):
        assert wait_until(lambda: bool(rig.headers()[PLACE].halted), 30)
        assert f"to {last - 1} of effects/0 are gone" in rig.headers()[PLACE].halted


def test_a_topic_made_anew_under_a_running_projector(rig: Rig) -> None:
    """Its projection is not continued with the records of another log: it halts, or stands still and says so."""
    with projector(rig.url):
        for number in range(5):
            committed(f"op-{number}", rig)
        rig.check()
        before = rig.projected()[PLACE]
        name = rig.url.topic(Topic.EFFECTS)
        rig.admin.delete_topics([name])[name].result(timeout=20)

        def made() -> bool:
            return rig.admin.create_topics([NewTopic(name, 1, 1)])[name].exception(timeout=20) is None

        assert wait_until(made, 30)
        committed("other", rig)
        assert wait_until(lambda: bool(rig.headers()[PLACE].halted) or age_s(rig) > 5, 60)
        assert rig.projected()[PLACE] == before


def age_s(rig: Rig) -> float:
    header = rig.headers()[PLACE]
    return (header.now_ms - header.seen_ms) / 1000
