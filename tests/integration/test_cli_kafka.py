"""The command line on Kafka and Redis: from `init` to a ledger that has moved."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from fencepost.ledger import EffectClass, Ledger
from fencepost.ledger.cli import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import services


@pytest.fixture
def url(kafka_bootstrap: str, redis_url: str) -> str:
    """Where no ledger is yet; one copy of each record is enough here."""
    prefix = f"cli-{secrets.token_hex(4)}"
    return f"kafka://{kafka_bootstrap}/{prefix}?projection={redis_url}&development=1"


def run(url: str, *args: str) -> Result:
    return CliRunner().invoke(cli, ["--url", url, *args])


def answer(url: str, *args: str, code: int = 0) -> dict[str, Any]:
    result = run(url, *args, "--json")
    assert result.exit_code == code, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


@contextmanager
def projector(url: str) -> Iterator[None]:
    """`fencepost projector run`, stopped by SIGTERM: it leaves with 0."""
    command = [sys.executable, "-m", "fencepost.ledger.cli", "projector", "run", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, ""), said


@pytest.mark.slow
def test_life_of_a_ledger(url: str, tmp_path: Path) -> None:
    """Create, check, look, decide, rebuild, verify, and export: each with its own exit code."""
    assert run(url, "status").exit_code == 7
    created = run(url, "init", "--partitions", "2")
    assert created.exit_code == 0, created.stderr
    assert "projector run" in created.stderr
    idle = answer(url, "status", code=7)
    assert len(idle["problems"]) == 4
    assert idle["ledger_id"] == created.stdout.strip()
    with projector(url):
        with Ledger.open(url) as ledger, ledger.session("nightly") as agent:
            agent.checkpoint("c1")
            with agent.attempt("billing.charge", key="A1", kind=EffectClass.IRREVERSIBLE) as attempt:
                assert attempt.owned
                attempt.commit({"id": "ch-1"})
        look(url, created.stdout.strip())
        decide(url)
        rebuild(url)
        answer(url, "export", str(tmp_path / "out.ndjson"))
        moved = f"sqlite://{tmp_path}/moved.db"
        answer(moved, "import", str(tmp_path / "out.ndjson"))
        assert answer(moved, "ops", "show", "billing.charge:A1")["result"] == {"id": "ch-1"}


def look(url: str, ledger_id: str) -> None:
    checks = answer(url, "doctor")
    assert checks["ok"] is True
    assert {c["state"] for c in checks["checks"]} <= {"ok", "warn"}
    status = answer(url, "status")
    assert (status["ledger_id"], status["problems"], status["counts"]["agents"]) == (ledger_id, [], 1)
    rows = answer(url, "projector", "lag")["partitions"]
    assert [(r["partition"], r["lag"]) for r in rows] == [
        ("effects/0", 0), ("effects/1", 0), ("agents/0", 0), ("agents/1", 0),
    ]  # fmt: skip
    assert answer(url, "agents", "list")["agents"][0]["agent_id"] == "nightly"
    assert answer(url, "ops", "show", "billing.charge:A1")["status"] == "committed"
    lines = [json.loads(line) for line in run(url, "ops", "tail", "--json").stdout.splitlines()]
    assert [line["fact"]["kind"] for line in lines] == ["INTENDED", "COMMITTED"]


def decide(url: str) -> None:
    line = ("rollback", "authorize", "nightly", "--checkpoint", "c1")
    assert answer(url, *line, code=3)["verdict"] == "REFUSE"
    assert answer(url, *line, "--policy", "gated")["verdict"] == "PROCEED_GATED"


def rebuild(url: str) -> None:
    before = {p["incarnation"] for p in answer(url, "status")["partitions"]}
    after = answer(url, "projector", "rebuild", "--timeout", "60")["partitions"]
    assert all(p["opened"] for p in after)
    assert not before & {p["incarnation"] for p in after}
    assert answer(url, "projector", "verify")["ok"] is True


def test_a_missing_ledger_leads_to_init(url: str) -> None:
    """Where the topics do not exist every command that looks says how to create them."""
    for line in (("doctor",), ("status",), ("agents", "list"), ("ops", "tail"), ("projector", "lag")):
        result = run(url, *line)
        assert result.exit_code in {1, 7}, line
        assert "Next:  Run `fencepost init`" in result.stderr, line


def test_doctor_knows_the_topics_without_redis(kafka_bootstrap: str, private_redis: services.StartRedis) -> None:
    """A topic that was deleted and made anew is found by the ledger's own log, when Redis has lost everything."""
    server = private_redis()
    prefix = f"cli-{secrets.token_hex(4)}"
    url = f"kafka://{kafka_bootstrap}/{prefix}?projection={server.url}&development=1"
    assert run(url, "init", "--partitions", "1").exit_code == 0
    server.flushall()
    assert own_topics(answer(url, "doctor")) == "ok"
    text = run(url, "doctor")
    assert (text.exit_code, text.stderr) == (0, "")
    assert max(map(len, text.stdout.splitlines())) <= 120
    admin, name = AdminClient({"bootstrap.servers": kafka_bootstrap}), f"{prefix}.effects"
    admin.delete_topics([name])[name].result(timeout=20)
    deadline = time.monotonic() + 20
    while name in admin.list_topics(timeout=10).topics and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run(url, "init", "--partitions", "1").exit_code == 0
    server.flushall()
    assert own_topics(answer(url, "doctor", code=1)) == "refuse"
    assert "created on" in run(url, "doctor").stderr


def own_topics(payload: dict[str, Any]) -> str:
    return next(str(c["state"]) for c in payload["checks"] if c["name"] == "the ledger's own topics")


def test_nobody_answers() -> None:
    """Where neither Kafka nor Redis is, the commands that look say so: exit code 7."""
    nowhere = "kafka://127.0.0.1:9/none?projection=redis://127.0.0.1:9/0"
    result = run(nowhere, "projector", "lag", "--json")
    assert result.exit_code == 7, result.stderr
    assert json.loads(result.stderr)["schema"] == "fencepost.error.v1"
