"""What Kafka's client says of itself goes to Python's logging, and never by itself to stderr."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fencepost.consumer import command, topics
from fencepost.ledger.client_log import NAME, client_logger
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.urls import parse
from fencepost.producer.client import Client
from fencepost.producer.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def dead() -> Iterator[str]:
    """Where nobody listens, and nobody else can begin to."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def ask_admin(bootstrap: str) -> None:
    asyncio.run(topics.open_admin(parse(f"kafka://{bootstrap}/none?projection=redis://{bootstrap}/0")).check())


def ask_consumer(bootstrap: str) -> None:
    command.lag(parse(f"kafka://{bootstrap}/none?projection=redis://{bootstrap}/0"))


def ask_producer(bootstrap: str) -> None:
    client = Client(bootstrap, Settings(metadata_timeout_s=0.5), on_partitions=lambda *_: None)
    try:
        client.partitions("none")
    finally:
        client.poll(0)
        client.close()


@pytest.mark.parametrize("ask", [ask_admin, ask_consumer, ask_producer])
def test_each_client_logs_to_python(
    ask: Callable[[str], None],
    dead: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever configures logging sees it under its name; the process's own stderr stays clean."""
    monkeypatch.setattr(topics, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr("fencepost.consumer.kafka_client.TIMEOUT_S", 0.5)
    with caplog.at_level(logging.DEBUG, NAME), pytest.raises(StoreUnavailableError):
        ask(dead)
    said = [record for record in caplog.records if record.name == NAME]
    assert any("refused" in record.getMessage() for record in said), caplog.records
    printed = capfd.readouterr().err.splitlines()  # clients that other tests left may still speak, of other brokers
    assert [line for line in printed if dead in line] == []


@pytest.mark.slow
@pytest.mark.parametrize("line", [("ops", "list"), ("projector", "lag"), ("projector", "run")])
def test_a_command_line_user_sees_our_error_alone(line: tuple[str, ...], dead: str, tmp_path: Path) -> None:
    """On stderr: what went wrong, and the next step."""
    url = f"kafka://{dead}/none?projection=redis://{dead}/0"
    done = subprocess.run(
        [sys.executable, "-m", "fencepost.ledger.cli", *line, "--url", url],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 7, done
    assert [text.split(":")[0] for text in done.stderr.strip().splitlines()] == ["Error", "Next"], done.stderr


def test_without_logging_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Python's last resort would print warnings; the logger has a handler that takes them."""
    logger = client_logger()
    assert client_logger() is logger
    assert sum(isinstance(handler, logging.NullHandler) for handler in logger.handlers) == 1
    root = logging.getLogger()
    kept, root.handlers = root.handlers, []
    try:
        logger.error("refused")
    finally:
        root.handlers = kept
    assert capfd.readouterr().err == ""
