"""What the broker and Redis must guarantee: an agent is refused by the setting's name, and so it is by `fencepost doctor`.

The projector's refusals stand in `tests/integration/test_projector_guarantees.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import NewPartitions, NewTopic
from faults.stack.stage import create
from projection_kit import Rig, projector

from fencepost.consumer.guarantees import wanted_settings
from fencepost.consumer.topics import open_admin
from fencepost.deploy.processes import wait_until
from fencepost.ledger import GuaranteeError, Ledger, urls
from fencepost.ledger.cli import cli
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from services import StartRedis

pytestmark = pytest.mark.slow


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    return create(kafka_bootstrap, redis_url)


def strict(rig: Rig) -> str:
    """The same ledger for production, which one broker cannot serve."""
    return rig.url.text.replace("&development=1", "")


def added_partition(rig: Rig) -> None:
    name = rig.url.topic(Topic.EFFECTS)
    rig.admin.create_partitions([NewPartitions(name, 3)])[name].result(timeout=20)


def made_anew(rig: Rig) -> None:
    name = rig.url.topic(Topic.EFFECTS)
    rig.admin.delete_topics([name])[name].result(timeout=20)
    new = NewTopic(name, 2, 1, config=wanted_settings(development=True, min_compaction_lag_ms=86_400_000))

    def made() -> bool:
        return rig.admin.create_topics([new])[name].exception(timeout=20) is None

    assert wait_until(made, 30)


def configured(**settings: str) -> Callable[[Rig], None]:
    return lambda rig: rig.configure(Topic.AGENTS, **settings)


ALWAYS: dict[str, tuple[Callable[[Rig], None], str]] = {
    "compact,delete": (configured(cleanup_policy="compact,delete"), "cleanup.policy"),
    "CreateTime": (configured(message_timestamp_type="CreateTime"), "message.timestamp.type"),
    "unclean election": (configured(unclean_leader_election_enable="true"), "unclean.leader.election.enable"),
    "an added partition": (added_partition, "partitions"),
    "a topic made anew": (made_anew, "topic id"),
}
IN_PRODUCTION: dict[str, tuple[Callable[[Rig], None], str]] = {
    "a lowered lag": (configured(min_compaction_lag_ms="5000"), "min.compaction.lag.ms"),
    "one copy": (lambda _: None, "replicas"),
    "one copy in sync": (configured(min_insync_replicas="1"), "min.insync.replicas"),
}


def broken(rig: Rig, url: str, setting: str) -> bool:
    """Whether a broker tells the change already."""
    checks = asyncio.run(open_admin(urls.parse(url)).guarantees())
    return any(check.name.endswith(f": {setting}") and not check.ok for check in checks)


def doctor(url: str) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(cli, ["--url", url, "doctor", "--json"])
    return result.exit_code, json.loads(result.stdout), result.stderr


def require_refusal(rig: Rig, url: str, setting: str) -> None:
    assert wait_until(lambda: broken(rig, url, setting), 20)
    with pytest.raises(GuaranteeError, match=setting.replace(".", r"\.")) as caught:
        Ledger.open(url)
    assert not caught.value.retryable
    assert any(check["name"].endswith(setting) for check in caught.value.checks)
    code, payload, said = doctor(url)
    assert code == 1, (payload, said)
    assert not payload["ok"]
    refused = {check["name"].rpartition(": ")[2]: check for check in payload["checks"] if check["state"] == "refuse"}
    assert refused[setting]["found"] != refused[setting]["wanted"]
    assert setting in said


@pytest.mark.parametrize("case", ALWAYS)
def test_refused_in_every_profile(rig: Rig, case: str) -> None:
    """What decides about histories and keys is refused in development too."""
    breaking, setting = ALWAYS[case]
    with projector(rig.url):
        Ledger.open(rig.url.text).close()
    breaking(rig)
    require_refusal(rig, rig.url.text, setting)


@pytest.mark.parametrize("case", IN_PRODUCTION)
def test_refused_in_production(rig: Rig, case: str) -> None:
    """Fewer copies and a shorter lag are refused unless the profile says openly that they are enough."""
    breaking, setting = IN_PRODUCTION[case]
    breaking(rig)
    require_refusal(rig, strict(rig), setting)
    code, payload, _ = doctor(rig.url.text)
    assert (code, payload["ok"]) == (0, True)
    warned = {check["name"].rpartition(": ")[2] for check in payload["checks"] if check["state"] == "warn"}
    assert setting in warned


def test_redis_that_evicts(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """A Redis that may drop keys is refused by its setting's name."""
    server = private_redis(maxmemory="100mb")
    rig = create(kafka_bootstrap, server.url)
    assert server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru") == "+OK"
    with pytest.raises(GuaranteeError, match="maxmemory-policy is allkeys-lru"):
        Ledger.open(rig.url.text)
    code, payload, said = doctor(rig.url.text)
    assert code == 1
    assert {c["name"] for c in payload["checks"] if c["state"] == "refuse"} == {"Redis maxmemory-policy"}
    assert "maxmemory-policy" in said


def test_redis_that_is_away(kafka_bootstrap: str, private_redis: StartRedis) -> None:
    """That is no broken promise: doctor ends with 7, as for any store that does not answer."""
    server = private_redis()
    rig = create(kafka_bootstrap, server.url)
    server.stop()
    code, payload, said = doctor(rig.url.text)
    assert (code, payload["ok"]) == (7, False)
    assert str(server.port) in said
