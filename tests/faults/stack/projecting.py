"""A projector as `fencepost projector run` has it, with what a test may turn.

    python projecting.py URL

STACK_SESSION_MS: the session timeout in the group. STACK_SLOW: a file; what it says is slept before each step, in seconds.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from faults.stack.broken import break_what_is_named

from fencepost.consumer import folding, kafka_client
from fencepost.consumer.command import run_projector
from fencepost.ledger import urls


def _shorten_session(session_ms: int) -> None:
    original = kafka_client.projector_settings

    def settings(url: Any, group: str) -> dict[str, Any]:
        return {**original(url, group), "session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 6}

    kafka_client.projector_settings = settings


def _slow_down(file: Path) -> None:
    original = folding.Folding.commit

    def commit(self: folding.Folding) -> None:
        time.sleep(float(file.read_text() or 0) if file.exists() else 0.0)
        original(self)

    folding.Folding.commit = commit  # type: ignore[method-assign]


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if session_ms := os.environ.get("STACK_SESSION_MS"):
        _shorten_session(int(session_ms))
    if slow := os.environ.get("STACK_SLOW"):
        _slow_down(Path(slow))
    break_what_is_named()
    run_projector(urls.parse(sys.argv[1]))


if __name__ == "__main__":
    main()
