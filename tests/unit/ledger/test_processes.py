"""Whether a process that the log names has ended: only where that can be told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.ledger import processes
from fencepost.ledger.engine import here


def test_a_process_of_this_machine() -> None:
    """Alive, dead and not yet looked for by its parent, and gone."""
    host, own = here()
    assert not processes.has_ended(host, own)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not processes.has_ended(host, child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table
    assert processes.has_ended(host, child.pid)
    child.communicate()
    assert processes.has_ended(host, child.pid)


def test_nobody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another machine, of no process at all, of one that may not be asked, and where asking would end it."""
    host, own = here()
    assert not processes.has_ended("elsewhere", own)
    assert not processes.has_ended("", 0)
    assert not processes.has_ended(host, 0)
    assert not processes.has_ended(host, 2**70)

    def denied(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", denied)
    assert not processes.has_ended(host, own)

    def gone(*_: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    monkeypatch.setattr(os, "name", "nt")
    assert not processes.has_ended(host, own)
