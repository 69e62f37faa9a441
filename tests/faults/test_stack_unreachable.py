"""Kafka or Redis cannot be reached, or swallows everything: at the opening, at the claim, and when the outcome is to be written.

Every call ends within its bound with a typed error, no effect starts without its claim, and a result is never lost.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from faults.stack.proxy import Proxy
from faults.stack.stage import create
from projection_kit import Rig, projector
from services import unavailable

from fencepost.deploy.processes import free_ports, wait_until
from fencepost.deploy.redis_server import RedisServer
from fencepost.deploy.services import KafkaCluster, local_kafka_problem, redis_problem
from fencepost.ledger import (
    AgentSession,
    Attempt,
    EffectClass,
    Ledger,
    Limits,
    NotFoundError,
    OutcomeUnknownError,
    StoreError,
)
from fencepost.ledger.operations import Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LIMITS = Limits(deadline_s=3, wait_s=3, apply_s=3, publish_s=4)
OPENING_S = 30.0
BEGINNING_S = 20.0
SETTLING_S = 6.0
"""`publish_s`, and what a loaded machine needs."""


class Ways:
    """The ledger, and the two ways to it that can be cut. The projector has ways of its own."""

    def __init__(self, rig: Rig, kafka: Proxy, redis: Proxy) -> None:
        self.rig = rig
        self.kafka = kafka
        self.redis = redis
        direct = rig.url.text
        where = direct.split("redis://127.0.0.1:")[1].split("/")[0]
        self.url = direct.replace(f"redis://127.0.0.1:{where}/", f"redis://127.0.0.1:{redis.port}/")

    def port(self, how: str) -> int:
        return self.kafka.port if how.startswith("Kafka") else self.redis.port

    def mend(self) -> None:
        self.kafka.mend()
        self.redis.mend()


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """A broker that tells clients to come by the proxy; everybody comes by it, the projector as well."""
    if (problem := local_kafka_problem() or redis_problem()) is not None:
        unavailable("Kafka and Redis of one's own", problem)
    [port] = free_ports(1)
    kafka_way = Proxy(port)
    cluster = KafkaCluster(
        directory=tmp_path_factory.mktemp("kafka"),
        ports=[port],
        settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{kafka_way.port}"},
    ).start()
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    redis_way = Proxy(server.port or 0)
    rig = create(f"127.0.0.1:{kafka_way.port}", server.url, partitions=1)
    ways = Ways(rig, kafka_way, redis_way)
    try:
        with projector(rig.url):
            assert wait_until(lambda: all(header.opened for header in rig.headers().values()), 40)
            yield ways
    finally:
        kafka_way.close()
        redis_way.close()
        cluster.kill_all()
        server.kill()


Breaking = Callable[[Ways], None]
BREAKS: dict[str, Breaking] = {
    "Kafka refuses": lambda ways: ways.kafka.cut(),
    "Kafka swallows": lambda ways: ways.kafka.swallow(),
    "Redis refuses": lambda ways: ways.redis.cut(),
    "Redis swallows": lambda ways: ways.redis.swallow(),
}


@dataclass
class Ended:
    """How a call ended, and after how long."""

    took_s: float
    value: Any = None
    error: Exception | None = None


def ended(call: Callable[[], Any]) -> Ended:
    began = time.monotonic()
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 (which it is, is what is looked at)
        return Ended(time.monotonic() - began, error=error)
    return Ended(time.monotonic() - began, value)


def claim(session: AgentSession, key: str, ran: list[str]) -> Attempt:
    """Begin, and run it if it may be run."""
    attempt = session.attempt("pay", key=key, kind=EffectClass.IRREVERSIBLE, deadline_s=3, wait_s=3).begin()
    if attempt.owned:
        ran.append(key)
    return attempt


@pytest.mark.parametrize("how", BREAKS)
def test_cut_off(ways: Ways, how: str) -> None:
    """Who opens is told which service is missing; who claims runs nothing; who has run gets the result back. All in time."""
    name, ran = how.replace(" ", "-"), []  # type: ignore[var-annotated]
    with Ledger.open(ways.url, limits=LIMITS) as ledger:
        session = ledger.session(name).open()
        owned = claim(session, f"owned-{name}", ran)
        BREAKS[how](ways)
        try:
            with ThreadPoolExecutor() as threads:
                opening = threads.submit(ended, lambda: Ledger.open(ways.url, limits=LIMITS))
                claiming = threads.submit(ended, lambda: claim(session, f"late-{name}", ran))
                settling = threads.submit(ended, lambda: owned.commit({"receipt": name}))
        finally:
            ways.mend()
        require_refused(opening.result(), OPENING_S, str(ways.port(how)))
        require_refused(claiming.result(), BEGINNING_S)
        require_settled(settling.result(), how, {"receipt": name})
        assert ran == [f"owned-{name}"]
        with suppress(StoreError):
            session.close()
    with Ledger.open(ways.url) as ledger:
        ledger.session(name).open().close()
        assert wait_until(lambda: status(ledger, f"pay:late-{name}") is Status.FREE, 20)
        wanted = {Status.COMMITTED} if how.startswith("Redis") else {Status.COMMITTED, Status.OWNED, Status.IN_DOUBT}
        assert wait_until(lambda: status(ledger, f"pay:owned-{name}") in wanted, 20)


def require_refused(call: Ended, within_s: float, named: str = "") -> None:
    assert isinstance(call.error, StoreError), call
    assert isinstance(call.error, OutcomeUnknownError) or call.error.retryable
    assert named in str(call.error)
    assert call.took_s < within_s


def require_settled(call: Ended, how: str, result: dict[str, str]) -> None:
    """Redis is not needed to write an outcome; without Kafka the error has the result attached."""
    assert call.took_s < SETTLING_S
    if how.startswith("Redis"):
        assert call.error is None
    else:
        assert isinstance(call.error, OutcomeUnknownError)
        assert call.error.result == result


def status(ledger: Ledger, op_id: str) -> Status:
    """Of an operation; free if the ledger has never heard of it."""
    try:
        return ledger.operation(op_id).operation.status
    except NotFoundError:
        return Status.FREE


def test_connections_that_the_network_forgot(ways: Ways) -> None:
    """Redis is there, and of the old connections nothing is ever heard again: claims are soon as fast as before."""
    ran: list[str] = []
    with Ledger.open(ways.url) as ledger, ledger.session("forgotten") as session:
        claim(session, "before", ran).commit()
        ways.redis.strand()
        numbers = itertools.count()

        def fast() -> bool:
            key = f"after-{next(numbers)}"
            began = time.monotonic()
            claim(session, key, ran).commit()
            return time.monotonic() - began < 0.5  # without notices it is looked once a second

        assert wait_until(lambda: fast() and fast() and fast(), 40)
