"""The baselines run, and a package that is missing is said in the row. Nothing is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fencepost.ledger.bench_rows import SCHEMA

TESTS = Path(__file__).parents[1]
ALONE = ("sqlite_alone", "dbos_on_sqlite", "eventsourcing_on_sqlite")
SERVED = ("redis_alone", "kafka_floor", "raw_chain", "quixstreams_projection")


def run(script: str, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", f"bench.{script}", "--quick", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(TESTS)}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_told(lines: list[dict[str, Any]]) -> None:
    assert lines
    for line in lines:
        assert line["schema"] == SCHEMA
        assert line["row"].startswith("baseline.")
        if "problem" in line:
            assert line["problem"].startswith("not installed: ")
        else:
            assert line["operations"] >= 1
            assert line["per_s"]["median"] > 0


@pytest.mark.parametrize("script", ALONE)
def test_what_needs_no_services(script: str, tmp_path: Path) -> None:
    """The baselines on SQLite run, or say what is not installed; they leave nothing behind."""
    require_told(run(script, "--directory", str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("script", SERVED)
def test_what_needs_services(script: str, kafka_bootstrap: str, redis_url: str) -> None:
    """The baselines on Kafka and Redis run, or say what is not installed."""
    require_told(run(script, "--kafka", kafka_bootstrap, "--redis", redis_url))


@pytest.mark.parametrize("script", SERVED)
def test_without_services_it_is_said(script: str) -> None:
    """A baseline that needs services says so, or what else is missing, instead of a number."""
    for line in run(script):
        assert line["problem"].startswith(("needs --kafka and --redis", "not installed: "))
