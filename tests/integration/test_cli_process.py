"""The command line as a process: its streams, signals, and pipes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fencepost.ledger import EffectClass, Ledger

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-m", "fencepost.ledger.cli"]
_START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from fencepost.ledger.cli import main; main()"
)
INTERRUPTIBLE = [sys.executable, "-c", _START]
"""Hears SIGINT also when the tests run in the background of a shell, which turns it off."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with two charges."""
    url = f"sqlite://{tmp_path}/ledger.db"
    for key in ("A1", "A2"):
        charge(url, key)
    return url


def charge(url: str, key: str) -> None:
    with (
        Ledger.open(url) as ledger,
        ledger.session("nightly") as agent,
        agent.attempt("billing.charge", key=key, kind=EffectClass.IRREVERSIBLE) as attempt,
    ):
        assert attempt.owned
        attempt.commit({"key": key})


def run(url: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "--url", url, *args], capture_output=True, text=True, timeout=30, check=False)


def test_streams_and_exit_codes(url: str, tmp_path: Path) -> None:
    """Data is on stdout, errors are on stderr, and the exit code says which."""
    done = run(url, "agents", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["agents"][0]["agent_id"] == "nightly"
    done = run(url, "ops", "show", "nope")
    assert (done.returncode, done.stdout) == (5, "")
    assert run(f"sqlite://{tmp_path}/none.db", "status").returncode == 7
    assert run(url, "rollback", "authorize", "nightly", "--checkpoint", "none").returncode == 3


def test_follow(url: str) -> None:
    """Facts that are written while it follows appear at once; Ctrl-C ends it with 130 and no traceback."""
    with subprocess.Popen(
        [*INTERRUPTIBLE, "ops", "tail", "--follow", "--json", "-n", "1", "--url", url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["key"] == "billing.charge:A2"
        charge(url, "A3")
        followed = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(f["key"], f["fact"]["kind"]) for f in followed] == [
            ("billing.charge:A3", "INTENDED"),
            ("billing.charge:A3", "COMMITTED"),
        ]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=15)
        assert process.returncode == 130
        assert said.split() == ["Interrupted."]


@pytest.mark.parametrize("args", [["ops", "list"], ["export"], ["--help"], ["ops", "tail"]], ids=" ".join)
def test_closed_pipe(url: str, args: list[str]) -> None:
    """When nobody reads stdout any more it ends without a word, as in `fencepost ops list | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "--quiet", "--url", url, *args], stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def on_a_terminal(url: str, *args: str, **environment: str) -> str:
    """What the command writes on a terminal."""
    leader, follower = pty.openpty()
    settings = {"TERM": "xterm-256color", "COLUMNS": "120", **environment}
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    with subprocess.Popen(
        [*COMMAND, "--url", url, *args], stdin=follower, stdout=follower, stderr=follower, env={**kept, **settings}
    ) as process:
        os.close(follower)
        read = b""
        while True:
            try:
                data = os.read(leader, 65536)
            except OSError:  # the terminal has no other end any more
                break
            if not data:
                break
            read += data
        assert process.wait(timeout=30) in {0, 5}
    os.close(leader)
    return read.decode()


def test_terminal(url: str) -> None:
    """On a terminal tables and errors have colours; with NO_COLOR they have none."""
    assert "\x1b[32mcommitted" in on_a_terminal(url, "ops", "list")
    assert "committed" in (plain := on_a_terminal(url, "ops", "list", NO_COLOR="1"))
    assert "\x1b[3" not in plain
    assert "\x1b[31m" in on_a_terminal(url, "ops", "show", "nope")
    assert "\x1b" not in on_a_terminal(url, "ops", "show", "nope", NO_COLOR="1")


def test_progress_on_a_terminal(url: str) -> None:
    """A rebuild shows its progress on a terminal, unless it is to be quiet."""
    assert "rebuild effects/0" in on_a_terminal(url, "projector", "rebuild")
    assert "rebuild effects/0" not in on_a_terminal(url, "projector", "rebuild", "--quiet")
