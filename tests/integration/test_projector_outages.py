"""Kafka away, and members that come and go: the projector waits, and nothing is lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from projection_kit import Rig, committed, effect, make_rig, projector

from fencepost.deploy.processes import wait_until
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from services import StartKafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def stale(rig: Rig, redis_age_ms: int) -> bool:
    """Whether Redis alone shows that the projector does not claim to have caught up."""
    with rig.redis() as client:
        for partition in rig.everything():
            seen = client.hget(rig.keys(partition).header, "seen_ms")
            if time.time() * 1000 - int(seen or 0) < redis_age_ms:
                return False
    return True


def test_kafka_is_away_for_a_while(private_kafka: StartKafka, redis_url: str) -> None:
    """While the broker is dead the projector does not say that it has caught up; when it is back all goes on, debts too."""
    cluster = private_kafka()
    rig = make_rig(cluster.bootstrap, redis_url)
    with projector(rig.url):
        for number in range(5):
            committed(f"op-{number}", rig)
        rig.check()
        for number in range(5):
            rig.write(Topic.EFFECTS, f"op-{number}", effect(EffectKind.INTENDED, f"op-{number}", "loser"))
        cluster.kill(1)
        assert wait_until(lambda: stale(rig, 2000), 30)
        cluster.restart(1)
        committed("after", rig)
        rig.wait_at_rest(120)
        rig.check()


def test_kafka_hangs(private_kafka: StartKafka, redis_url: str) -> None:
    """The same for a broker that keeps its connections and answers nothing."""
    cluster = private_kafka()
    rig = make_rig(cluster.bootstrap, redis_url)
    with projector(rig.url):
        committed("op", rig)
        rig.check()
        cluster.pause(1)
        assert wait_until(lambda: stale(rig, 5000), 40)
        cluster.resume(1)
        committed("after", rig)
        rig.wait_at_rest(120)
        rig.check()
