"""A part of Redis is lost while no projector runs: the guard and the ledger answer as before, later."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from services import StartRedis

from fencepost.ledger import EffectClass, Ledger, VerdictKind
from fencepost.ledger.setup import initialise
from fencepost.ledger.stores import open_store


def _initialised(kafka: str, redis_url: str) -> str:
    url = f"kafka://{kafka}/damage-{uuid.uuid4().hex[:8]}?projection={redis_url}&development=1"

    async def create() -> None:
        store = open_store(url)
        try:
            await initialise(store, partitions=1, development=True)
        finally:
            await store.close()

    asyncio.run(create())
    return url


@contextmanager
def _projector(url: str, log: Path, *, killed: bool = False) -> Iterator[None]:
    command = [sys.executable, "-m", "fencepost.ledger.cli", "--url", url, "projector", "run"]
    with log.open("a") as out:
        process = subprocess.Popen(command, stderr=out)
        try:
            yield
        finally:
            process.kill() if killed else process.terminate()
            process.wait(timeout=60)


def _charge(ledger: Ledger, hits: list[str]) -> None:
    with ledger.session("a") as session:
        for order in ("E1", "E2"):
            with session.attempt("charge", key=order, kind=EffectClass.IRREVERSIBLE) as attempt:
                if attempt.owned:
                    hits.append(order)
                    attempt.commit({"order": order})


@pytest.mark.parametrize("part", ["ops", "fences", "counts"])
def test_no_second_effect_and_no_wrong_verdict(
    kafka_bootstrap: str, private_redis: StartRedis, tmp_path: Path, part: str
) -> None:
    """Operations that were committed stay so: nothing runs again, and the rollback over them is refused."""
    server = private_redis()
    url = _initialised(kafka_bootstrap, server.url)
    hits: list[str] = []
    with _projector(url, tmp_path / "log", killed=True), Ledger.open(url) as ledger:
        with ledger.session("a") as session:
            session.checkpoint("before")
        _charge(ledger, hits)
    client = redis.Redis.from_url(server.url)
    lost = [key for key in client.scan_iter() if b"effects" in key and key.endswith(part.encode())]
    assert lost
    client.delete(*lost)
    client.close()
    with _projector(url, tmp_path / "log"), Ledger.open(url) as ledger:
        _charge(ledger, hits)
        assert hits == ["E1", "E2"]
        verdict = ledger.authorize_rollback("a", checkpoint="before")
        assert verdict.kind is VerdictKind.REFUSE
        assert {reason.effect.op_id for reason in verdict.reasons if reason.effect} == {"charge:E1", "charge:E2"}
        assert ledger.verify().ok
