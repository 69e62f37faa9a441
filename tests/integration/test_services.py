"""The services that the other tests stand on: where they come from, and that they do what the tests ask of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import services
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.deploy import kafka_cluster, kafka_jars
from fencepost.deploy.processes import Process, wait_until
from fencepost.deploy.services import Choice, KafkaCluster, ServiceError, choose, redis_problem

if TYPE_CHECKING:
    from collections.abc import Callable

DEPLOY = Path(kafka_jars.__file__).parent
COMPACTED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


def says(problem: str | None) -> Callable[[], str | None]:
    return lambda: problem


@pytest.mark.parametrize(
    ("wanted", "local", "docker", "expected"),
    [
        ("host:1", None, None, Choice("external", "host:1")),
        (None, None, "no daemon", Choice("local")),
        ("", "no Java", None, Choice("docker")),
        ("docker", None, None, Choice("docker")),
        ("docker", None, "no daemon", Choice("none", "no daemon")),
        ("local", "no Java", None, Choice("none", "no Java")),
        (None, "no Java", "no daemon", Choice("none", "no Java; no daemon")),
    ],
)
def test_choice(wanted: str | None, local: str | None, docker: str | None, expected: Choice) -> None:
    """An address or source that is named is never replaced; else local comes before Docker; nothing keeps every reason."""
    assert choose(wanted, local_problem=says(local), docker_problem=says(docker)) == expected


def test_a_missing_service_skips_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the switch a test that finds no service is skipped, and says why."""
    monkeypatch.delenv("FENCEPOST_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Kafka: no Java"):
        services.unavailable("Kafka", "no Java")


def test_a_missing_service_fails_where_services_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the switch a run that would test nothing is red."""
    monkeypatch.setenv("FENCEPOST_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="Kafka is required and not to be had: no Java"):
        services.unavailable("Kafka", "no Java")


def test_markers_follow_the_fixtures(request: pytest.FixtureRequest, private_redis: services.StartRedis) -> None:
    """A test that takes a service is deselected with its marker, without naming it."""
    assert request.node.get_closest_marker("redis") is not None


def test_settings_are_the_same_everywhere() -> None:
    """compose.yaml, the pom and the code name one version, and compose sets what kafka.properties and redis.conf set."""
    compose = (DEPLOY / "compose.yaml").read_text()
    assert f"<kafka.version>{kafka_jars.KAFKA_VERSION}<" in (DEPLOY / "kafka-pom.xml").read_text()
    assert f"apache/kafka:${{FENCEPOST_KAFKA_VERSION:-{kafka_jars.KAFKA_VERSION}}}" in compose
    assert services.REDIS_IMAGE in compose
    assert "./redis.conf" in compose
    found = dict(re.findall(r"^ +(KAFKA_[A-Z_]+): \"?(.*?)\"?$", compose, re.MULTILINE))
    own = {"KAFKA_ADVERTISED_LISTENERS", "KAFKA_LISTENERS"}  # compose has a variable port
    expected = kafka_cluster.docker_environment(1)
    assert {name: found.get(name) for name in expected if name not in own} == {
        name: value for name, value in expected.items() if name not in own
    }


def test_kafka_takes_a_compacted_topic(kafka_bootstrap: str) -> None:
    """The shared Kafka creates a compacted topic, and acknowledges a record with its own time."""
    topic = f"services-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 2, config=COMPACTED)])[topic].result(timeout=20)
    assert produce(kafka_bootstrap, topic) == [(None, 0, 2)]
    admin.delete_topics([topic])[topic].result(timeout=20)


def test_redis_answers(redis_url: str) -> None:
    """The shared Redis takes scripts and never evicts."""
    with redis.Redis.from_url(redis_url) as client:
        assert client.eval("return 7", 0) == 7
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_redis_of_ones_own(private_redis: services.StartRedis) -> None:
    """Settings arrive; data outlives a kill with fsync always, and nothing outlives a flush; a paused one is silent."""
    server = private_redis(appendfsync="always")
    with redis.Redis.from_url(server.url, socket_timeout=0.3, retry=None) as client:
        client.set("a", "1")
        server.kill()
        server.restart()
        assert client.get("a") == b"1"
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.get("a")
        server.resume()
        server.flushall()
        assert client.get("a") is None


def test_a_failed_start_shows_the_log(private_redis: services.StartRedis) -> None:
    """A server that cannot start says why, with the end of its log."""
    with pytest.raises(ServiceError, match="nonsense"):
        private_redis(maxmemory_policy="nonsense")


def test_no_server_outlives_its_owner(tmp_path: Path) -> None:
    """A server of a test run that is killed without warning dies with it."""
    owner = f"""
import sys, time
from pathlib import Path
from fencepost.deploy.processes import Process
print(Process.spawn(["sleep", "300"], log=Path({str(tmp_path / "log")!r}), tied=True).pid, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert wait_until(lambda: b"sleep\x00" in cmdline(pid), 10)
        os.kill(running.pid, signal.SIGKILL)
    assert wait_until(lambda: cmdline(pid) == b"", 10)


def test_a_reused_process_id_counts_as_dead() -> None:
    """A state file of yesterday never gets a stranger's process killed."""
    assert not Process(os.getpid(), "0").alive()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_three_nodes_survive_a_kill_and_a_pause(kafka3: KafkaCluster) -> None:
    """Two of three brokers acknowledge for all; a killed and a paused node come back."""
    topic = f"three-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap})
    config = COMPACTED | {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(timeout=20)
    leader = elected(admin, topic)
    kafka3.kill(leader)
    assert [error for error, _, _ in produce(kafka3.bootstrap, topic)] == [None]
    kafka3.restart(leader)
    kafka3.pause(leader)
    assert [error for error, _, _ in produce(kafka3.bootstrap, topic)] == [None]
    kafka3.heal()
    assert all(kafka_cluster.broker_count(port) == 3 for port in kafka3.ports)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_up_starts_only_what_does_not_run(tmp_path: Path) -> None:
    """A dead Redis comes back beside a Kafka that is left alone, a dead Kafka beside a Redis; the addresses stay."""
    for name, problem in (("Kafka", kafka_jars.local_kafka_problem()), ("Redis", redis_problem())):
        if problem is not None:
            services.unavailable(name, problem)

    def local(name: str, *words: str, code: int = 0) -> str:
        """What deploy/local prints, as a process of its own: what it starts outlives it."""
        line = [sys.executable, str(DEPLOY / "local"), name, "--dir", str(tmp_path / "local"), *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == code, done.stderr
        return done.stdout

    def report(name: str, code: int = 0) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(local(name, "--json", code=code))
        return values

    def killed(pids: list[int]) -> None:
        os.kill(pids[0], signal.SIGKILL)
        assert wait_until(lambda: cmdline(pids[0]) == b"", 10)

    try:
        first = report("up")
        assert first["started"] == ["kafka", "redis"]
        assert first["url"].endswith("&development=1")
        killed(first["redis"]["pids"])
        again = report("up")
        assert (again["started"], again["url"], again["kafka"]) == (["redis"], first["url"], first["kafka"])
        killed(again["redis"]["pids"])
        told = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "{kafka}", "{redis}"]
        assert f"['{first['kafka']['bootstrap']}', '{first['redis']['url']}']" in local("run", "--", *told)
        left = report("status", code=1)
        assert (left["kafka"], left["redis"]["pids"]) == (first["kafka"], [])
        redis_only = report("up")
        killed(redis_only["kafka"]["pids"])
        last = report("up")
        assert (last["started"], last["url"], last["redis"]) == (["kafka"], first["url"], redis_only["redis"])
        assert report("up")["started"] == []
        assert local("up").splitlines()[-1] == f"export FENCEPOST_URL='{first['url']}'"
        local("up", "--redis-port", "1", code=1)
    finally:
        local("down", "--wipe")


def elected(admin: AdminClient, topic: str) -> int:
    """Wait until a new topic's one partition has a leader; return the node."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        partition = admin.list_topics(topic, timeout=10).topics[topic].partitions.get(0)
        if partition is not None and partition.leader > 0:
            return partition.leader
    pytest.fail(f"{topic} gets no leader")


def produce(bootstrap: str, topic: str) -> list[tuple[object, int | None, int]]:
    """Produce one record; return its error, offset and kind of timestamp."""
    reports: list[tuple[object, int | None, int]] = []
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "socket.timeout.ms": 3000}
    producer = Producer({**settings, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0})
    producer.produce(
        topic, key="k", value="v", on_delivery=lambda e, m: reports.append((e, m.offset(), m.timestamp()[0]))
    )
    deadline = time.monotonic() + 60
    while not reports and time.monotonic() < deadline:
        producer.poll(0.2)
    return reports


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
