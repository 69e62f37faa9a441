"""Redis killed, flushed, set back, full, and paused while agents work: nothing runs twice, and all is put right afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.waiting import let_time_pass
from faults.stack.evidence import lines
from faults.stack.stage import Crew, Stage, create
from services import unavailable

from fencepost.deploy.redis_server import RedisServer, redis_problem
from fencepost.ledger import EffectClass, Ledger, Limits, StoreError
from fencepost.ledger.positions import Partition

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CREW: dict[str, Any] = {"groups": [["a", "b", "c"], ["d", "e"]], "count": 10_000, "pause_s": 0.02}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if (problem := redis_problem()) is not None:
        unavailable("Redis of one's own", problem)
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def stage(kafka_bootstrap: str, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One ledger for the module; what each test leaves behind is checked together with all that was before."""
    with Stage(create(kafka_bootstrap, redis.url), tmp_path_factory.mktemp("stage")).playing() as stage:
        stage.project()
        yield stage.open()


def begun(stage: Stage, name: str) -> Crew:
    crew = stage.crew(name, **CREW)
    stage.wait_for_hits(10)
    return crew


def ended(stage: Stage, crew: Crew) -> None:
    """It gets on afterwards, and everything that happened so far is sound."""
    stage.wait_for_hits(10)
    crew.stop()
    stage.finish()


def incarnations(stage: Stage) -> dict[Partition, str]:
    return {partition: header.incarnation for partition, header in stage.rig.headers().items()}


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_killed(stage: Stage, redis: RedisServer, fsync: str) -> None:
    """After a kill -9 position and projection are back together; what was lost of both is read again."""
    assert redis.command("CONFIG", "SET", "appendfsync", fsync) == "+OK"
    before = incarnations(stage)
    crew = begun(stage, f"killed-{fsync}")
    for _ in range(2):
        redis.kill()
        let_time_pass(0.5)
        redis.start()
        stage.wait_for_hits(5)
    ended(stage, crew)
    assert incarnations(stage) == before


def test_flushed(stage: Stage, redis: RedisServer) -> None:
    """FLUSHALL again and again, also before the projection was built anew: it is, and nothing runs twice."""
    before = incarnations(stage)
    crew = begun(stage, "flushed")
    redis.flushall()
    let_time_pass(0.1)
    redis.flushall()
    stage.wait_for_hits(5)
    redis.flushall()
    ended(stage, crew)
    assert all(incarnation != before[partition] for partition, incarnation in incarnations(stage).items())


def test_set_back(stage: Stage, redis: RedisServer, tmp_path: Path) -> None:
    """An older append-only file is restored while agents live: offsets go back, nobody believes the past."""
    crew = begun(stage, "set-back")
    files = redis.directory / "appendonlydir"
    redis.stop()
    shutil.copytree(files, tmp_path / "old")
    redis.start()
    stage.wait_for_hits(20)
    newer = {partition: header.applied_offset for partition, header in stage.rig.headers().items()}
    redis.kill()
    shutil.rmtree(files)
    shutil.copytree(tmp_path / "old", files)
    redis.start()
    ended(stage, crew)
    later = {partition: header.applied_offset for partition, header in stage.rig.headers().items()}
    assert all(later[partition] >= offset for partition, offset in newer.items())
    assert sum(later.values()) > sum(newer.values())


def test_full(stage: Stage, redis: RedisServer) -> None:
    """Over maxmemory writes are refused: nothing is claimed any more, with a typed error; with room all goes on."""
    crew = begun(stage, "full")
    assert redis.command("CONFIG", "SET", "maxmemory", "100kb") == "+OK"
    try:
        before = time.monotonic()
        with pytest.raises(StoreError) as caught:
            _claim_late(stage)
        assert caught.value.retryable
        assert time.monotonic() - before < 20
        quiet = stage.wait_until_quiet()
        let_time_pass(2)
        assert stage.hits() == quiet
    finally:
        assert redis.command("CONFIG", "SET", "maxmemory", "0") == "+OK"
    ended(stage, crew)


def _claim_late(stage: Stage) -> None:
    with (
        Ledger.open(stage.url, limits=Limits(deadline_s=2, apply_s=2, publish_s=5)) as ledger,
        ledger.session("full") as session,
    ):
        session.attempt("pay", key="full", kind=EffectClass.IRREVERSIBLE, deadline_s=2).begin()


def test_paused(stage: Stage, redis: RedisServer) -> None:
    """A Redis that hangs confirms nothing; calls end with a typed error in time, and go on when it wakes up."""
    crew = begun(stage, "paused")
    redis.pause()
    quiet = stage.wait_until_quiet()
    let_time_pass(4)
    assert stage.hits() == quiet
    redis.resume()
    ended(stage, crew)
    late = [values for values in lines(stage.directory / "calls.paused-0.jsonl") if values["took_s"] > 60]
    assert not late
