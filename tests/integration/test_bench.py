"""`fencepost bench`: every row runs, counts what it did, and tells it in the fields that are promised. Nothing is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from fencepost.ledger.bench import all_rows
from fencepost.ledger.bench_rows import EMBEDDED, KAFKA, SCHEMA, Settings

FIELDS = {
    "schema", "row", "store", "what", "size", "rounds", "operations", "per_s", "p50_ms", "p99_ms", "cpu_us",
    "others_share", "more", "took_s",
}  # fmt: skip
SINGLE = ("embedded.threads", "embedded.asyncio", "kafka.threads", "kafka.asyncio")
PARTS = {EMBEDDED: {"client"}, KAFKA: {"client", "projector", "servers"}}


def bench(*arguments: str) -> list[dict[str, Any]]:
    """The lines of a quick run."""
    command = [sys.executable, "-m", "fencepost.ledger.cli", "bench", "--json", "--quick", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "FENCEPOST_URL"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_fields(lines: list[dict[str, Any]], store: str) -> None:
    """The calibration comes first; then a result for each row of the store, with all its fields and right counts."""
    calibration, *results = lines
    assert calibration["row"] == "calibration"
    assert {"schema", "loop_ns", "sync_ms", "processors", "time", "scale"} <= calibration.keys()
    assert calibration["loop_ns"] > 0
    assert [result["row"] for result in results] == [row.name for row in all_rows() if row.store == store]
    for result in results:
        assert result["schema"] == SCHEMA
        assert result.keys() == FIELDS, result
        assert result["per_s"]["low"] <= result["per_s"]["median"] <= result["per_s"]["high"]
        assert result["operations"] >= 1
        if result["row"].startswith(SINGLE):
            assert result["operations"] == result["size"]["operations"] >= result["size"]["agents"]
            assert result["p50_ms"]["median"] <= result["p99_ms"]["median"]
        assert not result["cpu_us"] or result["cpu_us"].keys() == PARTS[store]


def test_embedded_rows(tmp_path: Path) -> None:
    """Every row of the embedded store runs, and leaves nothing behind."""
    require_fields(bench("--row", "embedded", "--directory", str(tmp_path)), EMBEDDED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kafka_rows(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> None:
    """Every row on Kafka and Redis runs, with projectors that it starts and stops."""
    url = f"kafka://{kafka_bootstrap}/bench{uuid.uuid4().hex[:8]}?projection={redis_url}&development=1"
    require_fields(bench("--row", "kafka", "--url", url, "--directory", str(tmp_path)), KAFKA)


def test_a_size_of_every_row_is_told(tmp_path: Path) -> None:
    """A smaller scale makes every row smaller, and the row says how large it was."""
    large, small = Settings(directory=tmp_path), Settings(directory=tmp_path, scale=0.01)
    for row in all_rows():
        assert sum(row.size(small).values()) < sum(row.size(large).values()), row.name
