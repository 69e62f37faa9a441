"""What the projector refuses to start on, by name."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import NewPartitions, NewTopic
from projection_kit import Rig, committed, make_rig, projector

from fencepost.consumer.command import run_projector
from fencepost.consumer.guarantees import DAY_MS, MAX_MESSAGE_BYTES
from fencepost.consumer.topics import open_admin
from fencepost.deploy.processes import wait_until
from fencepost.ledger import urls
from fencepost.ledger.errors import GuaranteeError, StoreUnavailableError
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from services import StartRedis


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    return make_rig(kafka_bootstrap, redis_url)


def refused(rig: Rig) -> str:
    stop = threading.Event()
    stop.set()
    with pytest.raises(GuaranteeError) as caught:
        run_projector(rig.url, stop=stop)
    return str(caught.value)


def broken(rig: Rig) -> str:
    """What the checks find; a broker tells a change a moment after it was made."""
    checks = asyncio.run(open_admin(rig.url).guarantees())
    return "; ".join(f"{c.name} is {c.found}, and must be {c.wanted}" for c in checks if not c.ok)


def strict(rig: Rig) -> Rig:
    """The same ledger without the development profile."""
    return Rig(urls.parse(rig.url.text.replace("&development=1", "")), rig.partitions)


def test_development_warns(rig: Rig) -> None:
    """One copy and a short lag are refused in production, and said loudly in development."""
    rig.configure(Topic.EFFECTS, min_compaction_lag_ms="5000")
    assert wait_until(lambda: "min.compaction.lag.ms is 5000" in broken(rig), 20)
    checks = asyncio.run(open_admin(rig.url).check())
    loud = {c.name.partition(": ")[2] for c in checks if not c.ok}
    assert loud >= {"min.compaction.lag.ms", "replicas", "min.insync.replicas"}
    assert all(c.severity == "warn" for c in checks if not c.ok)
    said = refused(strict(rig))
    assert f"min.compaction.lag.ms is 5000, and must be at least {DAY_MS}" in said
    assert "min.insync.replicas is 1, and must be at least 2" in said
    assert "replicas is 1, and must be at least 3" in said


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("cleanup.policy", "compact,delete", "exactly compact"),
        ("cleanup.policy", "delete", "exactly compact"),
        ("message.timestamp.type", "CreateTime", "exactly LogAppendTime"),
        ("unclean.leader.election.enable", "true", "exactly false"),
        ("max.message.bytes", "300000", f"at least {MAX_MESSAGE_BYTES}"),
    ],
)
def test_changed_settings(rig: Rig, name: str, value: str, wanted: str) -> None:
    """A setting that breaks a promise is refused in every profile, with its value and the wanted one."""
    rig.configure(Topic.AGENTS, **{name.replace(".", "_"): value})
    said = f"{rig.url.topic(Topic.AGENTS)}: {name} is {value}, and must be {wanted}"
    assert wait_until(lambda: said in broken(rig), 20)
    assert said in refused(rig)


def test_an_added_partition(rig: Rig) -> None:
    """Another partition count gives keys to other partitions; it is refused."""
    name = rig.url.topic(Topic.EFFECTS)
    rig.admin.create_partitions([NewPartitions(name, 3)])[name].result(timeout=20)
    said = "partitions is 3, and must be exactly 2"
    assert wait_until(lambda: said in broken(rig), 20)
    assert said in refused(rig)


def test_a_topic_made_anew(rig: Rig) -> None:
    """A topic of the same name is not the same log; it is refused."""
    name = rig.url.topic(Topic.EFFECTS)
    config = asyncio.run(open_admin(rig.url).facts())
    rig.admin.delete_topics([name])[name].result(timeout=20)
    settings = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}

    def made() -> bool:
        return rig.admin.create_topics([NewTopic(name, 2, 1, config=settings)])[name].exception(timeout=20) is None

    assert wait_until(made, 30)
    assert wait_until(lambda: f"{name}: topic id is" in broken(rig), 20)
    assert f"must be {config.topic_ids[Topic.EFFECTS]}" in refused(rig)


def test_a_topic_id_that_the_caller_knows(rig: Rig) -> None:
    """After the loss of Redis the caller's own knowledge of the topic still counts."""
    admin = open_admin(rig.url, known_topic_ids={Topic.EFFECTS: "another"})
    assert [c.wanted for c in asyncio.run(admin.guarantees()) if not c.ok and c.severity == "refuse"] == ["another"]


def test_missing_topics(kafka_bootstrap: str, redis_url: str) -> None:
    """A ledger that was never initialised is refused by the names of its topics."""
    rig = Rig(urls.parse(f"kafka://{kafka_bootstrap}/nothing?projection={redis_url}&development=1"), 1)
    assert "nothing.effects: exists is no, and must be yes" in refused(rig)


def test_evicting_redis(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """A Redis that may drop keys is refused."""
    server = private_redis(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    rig = make_rig(kafka_bootstrap, server.url)
    assert "maxmemory-policy is allkeys-lru, and must be noeviction" in refused(rig)


def test_redis_away_at_the_start(rig: Rig) -> None:
    """Without Redis the start fails in a way that can be tried again."""
    away = Rig(urls.parse(f"kafka://{rig.url.bootstrap}/{rig.url.prefix}?projection=redis://127.0.0.1:1/0"), 2)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1") as caught:
        run_projector(away.url, stop=threading.Event())
    assert caught.value.next_step
    assert str(caught.value).endswith(caught.value.next_step)


def test_initialise_again(rig: Rig) -> None:
    """Initialising what is there changes nothing; another partition count is refused."""
    admin = open_admin(rig.url)
    before = asyncio.run(admin.facts())
    asyncio.run(open_admin(rig.url).initialise(partitions=2, development=True))
    assert asyncio.run(open_admin(rig.url).facts()) == before
    assert before.partitions == {Topic.EFFECTS: 2, Topic.AGENTS: 2}
    assert before.min_compaction_lag_ms == DAY_MS
    with pytest.raises(GuaranteeError, match="other partition counts"):
        asyncio.run(open_admin(rig.url).initialise(partitions=3, development=True))


def test_all_is_well(rig: Rig) -> None:
    """With a projector running, nothing but the copies is amiss in development."""
    with projector(rig.url):
        committed("op", rig)
        rig.check()
        amiss = {c.name.partition(": ")[2] for c in asyncio.run(open_admin(rig.url).check()) if not c.ok}
        assert amiss == {"replicas", "min.insync.replicas"}
