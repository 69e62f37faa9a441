"""The broker's disk fills up: nothing is begun, with a typed error, and with room again all goes on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from faults.stack.stage import Stage, create
from services import unavailable

from fencepost.deploy.processes import wait_until
from fencepost.deploy.services import KafkaCluster, local_kafka_problem
from fencepost.ledger import EffectClass, Ledger, Limits, StoreError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LIMITS = Limits(deadline_s=4, wait_s=4, apply_s=4, publish_s=6)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB, where the broker keeps its data."""
    if (problem := local_kafka_problem()) is not None:
        unavailable("Kafka of one's own", problem)
    place = tmp_path / "kafka" / "node-1" / "data"
    place.mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"mounting a small disk is not permitted: {mount.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take all room that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as out, suppress(OSError):
        while out.write(bytes(1 << 16)):
            continue
    assert os.statvfs(disk).f_bavail == 0
    return ballast


def test_a_full_disk(disk: Path, redis_url: str, tmp_path: Path) -> None:
    """Effects are not started, also not later by those that waited; what was acknowledged before is all there."""
    cluster = KafkaCluster(directory=tmp_path / "kafka").start()
    (tmp_path / "stage").mkdir()
    try:
        with Stage(create(cluster.bootstrap, redis_url), tmp_path / "stage").playing() as stage:
            stage.project()
            stage.open()
            limits = {"deadline_s": 6.0, "apply_s": 10.0, "publish_s": 10.0}
            crew = stage.crew("work", groups=[["a", "b", "c"]], count=10_000, limits=limits, pause_s=0.02)
            with Ledger.open(stage.url, limits=LIMITS) as ledger:
                session = ledger.session("bystander").open()
                stage.wait_for_hits(10)
                ballast = fill(disk)
                assert wait_until(lambda: not cluster.running(1), 60), "the broker goes on without room"
                quiet = stage.wait_until_quiet(2)
                began = time.monotonic()
                with pytest.raises(StoreError) as caught:
                    session.attempt("pay", key="full", kind=EffectClass.IRREVERSIBLE, deadline_s=4, wait_s=4).begin()
                assert caught.value.next_step
                assert time.monotonic() - began < 20
                assert stage.hits() == quiet
                ballast.unlink()
                cluster.restart(1)
                stage.wait_for_hits(10)
                with suppress(StoreError):  # that the claim could not be withdrawn in time is told here once more
                    session.close()
            crew.stop()
            stage.finish()
    finally:
        cluster.kill_all()
