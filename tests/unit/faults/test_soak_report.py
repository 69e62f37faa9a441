"""What a soak tells at its end: what it did, and whether that was what its seed says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from faults.soak import END, PHASE_S, Result, idle, missed, told
from faults.stack.nemesis import Fault, schedule

MARKS = {
    "operation COMMITTED": 40,
    "operation IN_DOUBT": 2,
    "hits": 43,
    "absorbed": 17,
    "verdict REFUSE": 5,
    "verdict PROCEED": 3,
    "verdict PROCEED_GATED": 4,
    "records": 300,
    "removed by compaction": 120,
}


def result(**changed: int) -> Result:
    faults = Counter({"kill agents": 6, "kill leader": 2, "flush Redis": 3})
    return Result(
        7, 10, "abc", faults, outcomes=Counter(ok=60, unknown=4), marks=Counter({**MARKS, **changed}), checks=4
    )


def test_the_report_says_what_was_done() -> None:
    """Operations, calls, kills, flushes, authorised and refused rollbacks, and what was absorbed."""
    text = told(result())
    for wanted in (
        "42: 40 COMMITTED, 2 IN_DOUBT",
        "64: 60 ok, 4 unknown",
        "17 calls got the recorded result",
        "7 authorised (3 PROCEED, 4 PROCEED_GATED), 5 refused",
        "6 of agents, 0 of projectors, 0 of Redis, 2 of leaders",
        "3 flushes",
        "changed 43 times",
        "compaction removed 120",
    ):
        assert wanted in text, text


@pytest.mark.parametrize("mark", ["hits", "absorbed", "verdict REFUSE"])
def test_an_idle_run_has_shown_nothing(mark: str) -> None:
    assert idle(result()) == []
    assert len(idle(result(**{mark: 0}))) == 1


def happened(faults: list[Fault]) -> list[dict[str, object]]:
    begun = [{"phase": fault.phase, "at_s": fault.at_s, "what": fault.kind} for fault in faults]
    return [*begun[:3], {"phase": 0, "at_s": 1.0, "what": f"{END}kill Redis"}, *begun[3:]]


def test_a_run_is_held_to_its_schedule() -> None:
    """A fault that did not happen, and one that happened in another place, are told."""
    faults = schedule(7, phases=2, phase_s=PHASE_S)
    done = result()
    done.happened = happened(faults)
    assert missed(done, faults) == []
    done.happened = happened(faults[:-1])
    assert len(missed(done, faults)) == 1
    done.happened = happened([faults[1], faults[0], *faults[2:]])
    assert len(missed(done, faults)) == 1


def test_a_seed_says_the_same_in_every_process() -> None:
    """The schedule does not depend on how a process hashes."""
    code = "from faults.stack.nemesis import schedule; print(schedule(21, phases=4, phase_s=150.0))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{schedule(21, phases=4, phase_s=150.0)}\n"}
