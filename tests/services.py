"""Real Kafka and Redis for tests: where they come from, decided once a run, and the fixtures (imported by conftest.py).

FENCEPOST_TEST_KAFKA and FENCEPOST_TEST_REDIS name an address, "local" or "docker"; unset takes the first that works.
FENCEPOST_REQUIRE_SERVICES=1 turns every skip into a failure: a run that must be whole leaves nothing out.
"""

from __future__ import annotations

import gc
import os
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import pytest

from fencepost.deploy.processes import free_ports, wait_until
from fencepost.deploy.services import (
    Choice,
    KafkaCluster,
    RedisServer,
    choose,
    kafka_version,
    local_kafka_problem,
    redis_problem,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testcontainers.core.container import DockerContainer

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
REDIS_IMAGE = "redis:7.2"
DOCKER_TIMEOUT_S = 120.0
MARKERS = {  # a test that uses the fixture gets the marker
    "kafka_bootstrap": "kafka",
    "private_kafka": "kafka",
    "kafka3": "kafka3",
    "kafka3_cluster": "kafka3",
    "redis_url": "redis",
    "private_redis": "redis",
}


class StartRedis(Protocol):
    """Starts a Redis server that this test alone uses; settings as redis.conf names them, with underscores."""

    def __call__(self, **settings: str) -> RedisServer: ...


class StartKafka(Protocol):
    """Starts a Kafka cluster that this test alone uses; settings of the broker."""

    def __call__(self, nodes: int = 1, settings: dict[str, str] | None = None) -> KafkaCluster: ...


@cache
def kafka_choice() -> Choice:
    return choose(
        os.environ.get("FENCEPOST_TEST_KAFKA"), local_problem=local_kafka_problem, docker_problem=docker_problem
    )


@cache
def redis_choice() -> Choice:
    return choose(os.environ.get("FENCEPOST_TEST_REDIS"), local_problem=redis_problem, docker_problem=docker_problem)


def docker_problem() -> str | None:
    """Return why no container can be started, or None. The client's presence proves nothing: a daemon must answer."""
    problem = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a failed ping leaves a socket to the collector
        try:
            import docker  # noqa: PLC0415  slow, and only wanted when nothing else is there

            docker.from_env(timeout=5).ping()
        except Exception as error:  # noqa: BLE001  any reason means that Docker is not to be had
            problem = f"Docker does not answer: {error}"
        gc.collect()
    return problem


def unavailable(service: str, reason: str) -> NoReturn:
    """End the test: skipped with the reason, or failed where services are required."""
    if os.environ.get("FENCEPOST_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{service} is required and not to be had: {reason}", pytrace=False)
    pytest.skip(f"no {service}: {reason}")


def whole(report: Report) -> Report:
    """The report; where services are required, that of what was skipped for any reason is a failure."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("FENCEPOST_REQUIRE_SERVICES") == "1":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"nothing may be left out of this run: {why}"
    return report


def report_header() -> list[str]:
    return [f"kafka: {kafka_choice()}", f"redis: {redis_choice()}"]


def add_markers(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKERS:
                item.add_marker(MARKERS[fixture])


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka of one node. Shared: use topics and groups of your own."""
    choice = kafka_choice()
    if choice.source == "none":
        unavailable("Kafka", choice.detail)
    elif choice.source == "external":
        yield choice.detail
    elif choice.source == "docker":
        yield from _docker_kafka()
    else:
        cluster = KafkaCluster(directory=tmp_path_factory.mktemp("kafka")).start()
        yield cluster.bootstrap
        cluster.stop()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis. Shared: use keys of your own, flush nothing."""
    choice = redis_choice()
    if choice.source == "none":
        unavailable("Redis", choice.detail)
    elif choice.source == "external":
        yield choice.detail
    elif choice.source == "docker":
        yield from _docker_redis()
    else:
        server = RedisServer(tmp_path_factory.mktemp("redis")).start()
        yield server.url
        server.stop()


@pytest.fixture(scope="session")
def kafka3_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers for the whole run; a test takes kafka3, which repairs them afterwards."""
    _need_local_kafka()
    cluster = KafkaCluster(3, directory=tmp_path_factory.mktemp("kafka3")).start()
    yield cluster
    cluster.kill_all()  # a clean stop of a whole quorum takes seconds, and the data goes anyway


@pytest.fixture
def kafka3(kafka3_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """Three brokers that this test may kill and pause; killed and paused ones run again afterwards."""
    yield kafka3_cluster
    kafka3_cluster.heal()


@pytest.fixture
def private_kafka(tmp_path: Path) -> Iterator[StartKafka]:
    """Start Kafka clusters that only this test uses."""
    _need_local_kafka()
    clusters: list[KafkaCluster] = []

    def start(nodes: int = 1, settings: dict[str, str] | None = None) -> KafkaCluster:
        clusters.append(KafkaCluster(nodes, directory=tmp_path / f"kafka-{len(clusters)}", settings=settings))
        return clusters[-1].start()

    yield start
    for cluster in clusters:
        cluster.kill_all()


@pytest.fixture
def private_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Start Redis servers that only this test uses, to flush, kill and pause."""
    if (problem := redis_problem()) is not None:
        unavailable("Redis of one's own", problem)
    servers: list[RedisServer] = []

    def start(**settings: str) -> RedisServer:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        servers.append(RedisServer(tmp_path / f"redis-{len(servers)}", settings=named))
        return servers[-1].start()

    yield start
    for server in servers:
        server.kill()


def _need_local_kafka() -> None:
    if (problem := local_kafka_problem()) is not None:
        unavailable("Kafka of one's own", problem)


def _docker_kafka() -> Iterator[str]:
    from fencepost.deploy.kafka_cluster import broker_count, docker_environment  # noqa: PLC0415

    [port] = free_ports(1)  # clients are told the outer port, so it must be known before the start
    container = _container(f"apache/kafka:{kafka_version()}").with_bind_ports(port, port)
    for name, value in docker_environment(port).items():
        container = container.with_env(name, value)
    with container:
        if not wait_until(lambda: broker_count(port) == 1, DOCKER_TIMEOUT_S):
            unavailable("Kafka", f"the container did not come up in {DOCKER_TIMEOUT_S} s")
        yield f"127.0.0.1:{port}"


def _docker_redis() -> Iterator[str]:
    [port] = free_ports(1)
    command = "redis-server --appendonly yes --maxmemory-policy noeviction"
    with _container(REDIS_IMAGE).with_bind_ports(6379, port).with_command(command):
        if not wait_until(RedisServer(Path(), port=port).answers, DOCKER_TIMEOUT_S):
            unavailable("Redis", f"the container did not come up in {DOCKER_TIMEOUT_S} s")
        yield f"redis://127.0.0.1:{port}/0"


def _container(image: str) -> DockerContainer:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415  slow, and only wanted with Docker

    return DockerContainer(image)
