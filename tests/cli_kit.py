"""What the tests of the command line share: a ledger that the Python API has filled, and how to read answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from fencepost.ledger import EffectClass, Ledger
from fencepost.ledger.cli import cli

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Result]
"""Runs a command line on the test's ledger: `run("ops", "list", stdin=None)`."""

CHARGE, DOUBT, MAIL = "billing.charge:A1", "mail.send:17", "mail.send:18"


def fill(url: str) -> None:
    """Two agents; one with a charge, a mail in doubt, a read, two checkpoints, and two branches."""
    with Ledger.open(url) as ledger:
        with ledger.session("nightly") as agent:
            agent.checkpoint("c1", state_digest="d1")
            with agent.attempt("billing.charge", key="A1", kind=EffectClass.IRREVERSIBLE, resource="order:A1") as one:
                assert one.owned
                one.commit({"id": "ch-1"})
            agent.checkpoint("c2")
            agent.fork("plan-b", checkpoint="c2")
            with agent.attempt("docs.read", key="1", kind=EffectClass.READ) as read:
                assert read.owned
                read.commit({"text": "x"})
            with agent.attempt("mail.send", key="17", kind=EffectClass.IRREVERSIBLE) as two:
                assert two.owned
                two.doubt("the connection was lost")
        with ledger.session("other") as other:
            other.checkpoint("c1")


@pytest.fixture(name="template", scope="module")
def template_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    fill(f"sqlite://{path}")
    return path


@pytest.fixture(name="url")
def url_fixture(template: Path, tmp_path: Path) -> str:
    """A filled ledger of the test's own."""
    for part in template.parent.iterdir():
        shutil.copy(part, tmp_path)
    return f"sqlite://{tmp_path}/ledger.db"


@pytest.fixture(name="run")
def run_fixture(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs a command line on the test's ledger, in a directory of the test's own."""
    monkeypatch.setenv("FENCEPOST_URL", url)
    monkeypatch.chdir(tmp_path)

    def command(*args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, list(args), input=stdin)

    return command


def answer(result: Result, code: int = 0) -> dict[str, Any]:
    """The one object on stdout."""
    assert result.exit_code == code, result.stderr
    assert result.stdout.count("\n") == 1
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def error(result: Result, code: int) -> dict[str, Any]:
    """The one object on stderr; there is nothing on stdout."""
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    values: dict[str, Any] = json.loads(result.stderr)
    assert values["schema"] == "fencepost.error.v1"
    return values


def resolve(run: Run, op_id: str, *args: str, code: int = 0) -> Result:
    version = answer(run("ops", "show", op_id, "--json"))["version"]
    result = run(
        "in-doubt", "resolve", op_id, "--version", version, "--evidence", "seen", "--by", "alice", "--json", *args
    )
    assert result.exit_code == code, result.stderr
    return result
