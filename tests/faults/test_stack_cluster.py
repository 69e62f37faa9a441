"""Three brokers: leaders that die, and one that freezes, is replaced, and wakes up with the past in its memory.

FENCEPOST_LOAD_OPERATIONS sets how many operations the agents go through; 20000 is the full size.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from faults.stack.stage import Stage, create

from fencepost.consumer.command import lag
from fencepost.deploy.processes import wait_until
from fencepost.deploy.services import KafkaCluster
from fencepost.ledger import Ledger, ReasonKind, VerdictKind
from fencepost.ledger.positions import Partition, Topic

OPERATIONS = int(os.environ.get("FENCEPOST_LOAD_OPERATIONS", "200"))
LIMIT_S = 180 + OPERATIONS * 0.5
LARGE = OPERATIONS >= 2_000
CREW = [[f"agent-{process}-{number}" for number in range(12 if LARGE else 4)] for process in range(4 if LARGE else 2)]
PLAN: dict[str, Any] = {"stride": 24, "rollback": 4, "checkpoint": 20} if LARGE else {"stride": 2}
"""Each operation is asked for by two agents at least; of many operations fewer are followed by a way back, which holds the rest."""
FIRST = Partition(Topic.EFFECTS, 0)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 120)]


@pytest.fixture
def stage(kafka3: KafkaCluster, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(create(kafka3.bootstrap, redis_url, partitions=2, development=False), tmp_path).playing() as stage:
        stage.project()
        yield stage.open()


def leader(stage: Stage, cluster: KafkaCluster, *, without: int = 0) -> int:
    """Who leads the first partition, as the brokers but one say; -1 when none does."""
    ports = [cluster.ports[node - 1] for node in cluster.nodes if node != without]
    # A client of its own for each question: one that knows the broker which stands still may go on asking it.
    asked = AdminClient({"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports), "log_level": 0})
    name = stage.rig.url.topic(FIRST.topic)
    with suppress(KafkaException):
        return int(asked.list_topics(name, timeout=3).topics[name].partitions[FIRST.number].leader)
    return -1


def replaced(stage: Stage, cluster: KafkaCluster, old: int) -> None:
    """Wait until another broker leads."""
    assert wait_until(lambda: leader(stage, cluster, without=old) not in {old, -1}, 60)


def test_nothing_acknowledged_is_lost(stage: Stage, kafka3: KafkaCluster) -> None:
    """While agents work a leader is killed, another one is frozen and comes back: all that was acknowledged is there."""
    crew = stage.crew("work", groups=CREW, count=OPERATIONS, seconds=LIMIT_S, wait_s=20.0, plan=PLAN)
    stage.wait_for_hits(OPERATIONS // 10, LIMIT_S)
    killed = leader(stage, kafka3)
    kafka3.kill(killed)
    replaced(stage, kafka3, killed)
    stage.wait_for_hits(OPERATIONS // 10, LIMIT_S)
    kafka3.restart(killed)
    frozen = leader(stage, kafka3)
    kafka3.pause(frozen)
    replaced(stage, kafka3, frozen)
    stage.wait_for_hits(OPERATIONS // 10, LIMIT_S)
    kafka3.resume(frozen)
    crew.finish(LIMIT_S)
    marks = stage.finish(LIMIT_S).marks
    assert marks["hits"] > OPERATIONS // 2


def test_the_guard_does_not_decide_on_the_past(stage: Stage, kafka3: KafkaCluster) -> None:
    """The old leader wakes up and tells the old end of the log; the guard, asked at that moment, sees the new effect."""
    with Ledger.open(stage.url) as ledger:
        with ledger.session("a") as session:
            session.checkpoint("before")
        assert ledger.preview_rollback("a", checkpoint="before").authorised
        end = Ends(stage)
        old = leader(stage, kafka3)
        kafka3.pause(old)
        replaced(stage, kafka3, old)
        crew = stage.crew("after", groups=[["a"]], count=8, seconds=90, checkpoint=0, rollback=0, decline=0, doubt=0)
        stage.wait_for_hits(4)
        present = next(row.log_end_offset for row in lag(stage.rig.url) if row.partition == FIRST)
        asked = end.ask()
        kafka3.resume(old)
        verdict = ledger.authorize_rollback("a", checkpoint="before")
        assert verdict.kind is VerdictKind.REFUSE
        assert {reason.kind for reason in verdict.reasons} <= {ReasonKind.EFFECT_NOT_KNOWN, ReasonKind.EFFECT_OWNED}
        crew.stop()
        stage.finish()
    assert asked() < present, "the old leader did not tell the past, so this has shown nothing"


class Ends:
    """A client that knew the leader before it froze, and asks it for the end of the log."""

    def __init__(self, stage: Stage) -> None:
        self._place = TopicPartition(stage.rig.url.topic(Topic.EFFECTS), 0)
        self._consumer = Consumer(
            {"bootstrap.servers": stage.rig.url.bootstrap, "group.id": "ends", "topic.metadata.refresh.interval.ms": -1}
        )
        self._consumer.get_watermark_offsets(self._place, timeout=10)

    def ask(self) -> Any:
        found: list[int] = []

        def work() -> None:
            found.append(self._consumer.get_watermark_offsets(self._place, timeout=30)[1])

        thread = threading.Thread(target=work)
        thread.start()

        def answer() -> int:
            thread.join(40)
            self._consumer.close()
            return found[0]

        return answer
