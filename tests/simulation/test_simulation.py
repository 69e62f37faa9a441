"""The real agents, guard, and projector on a simulated log and store, with everything going wrong that may: no promise breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from simulation import seeds
from simulation.checker import violations
from simulation.marks import MARKS, marks
from simulation.replay import digest
from simulation.run import simulate

_TOLD = 5


@pytest.mark.slow
@pytest.mark.timeout(1800)  # about 90 s of one core; the machine may be busy with other things
def test_no_seed_breaks_a_promise_and_the_seeds_see_everything() -> None:
    """Of all seeds of the day none breaks a promise, and together they come to every situation that is worth a test."""
    broken: list[str] = []
    reached: Counter[str] = Counter()
    for seed in seeds.seeds():
        run = simulate(seed)
        reached.update(marks(run))
        if found := violations(run):
            broken.append(f"seed {seed}: {'; '.join(found[:3])}\n    replay: {seeds.REPLAY} {seed}")
            if len(broken) == _TOLD:
                break
    assert not broken, "\n".join(broken)
    missing = MARKS - set(reached)
    assert not missing, f"no seed came to: {sorted(missing)} ({seeds.COUNT} seeds of {seeds.today()})"


def test_a_seed_is_one_run() -> None:
    """The same seed gives the same run again, step by step: in this process and in one that hashes differently."""
    for seed in range(12):
        assert simulate(seed).events == simulate(seed).events, f"{seeds.REPLAY} {seed}"
    for seed in (3, 8):
        replay = [sys.executable, str(Path(__file__).with_name("replay.py")), str(seed), "--digest"]
        other = subprocess.run(
            replay, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}
        )
        assert other.stdout.strip() == digest(simulate(seed))


def test_other_seeds_are_other_runs() -> None:
    """No two seeds go the same way: the seed decides."""
    assert len({digest(simulate(seed)) for seed in range(20)}) == 20
