"""The simulation can fail: each safeguard that is taken away is found within the seeds of every day."""

from __future__ import annotations

import pytest
from simulation import seeds
from simulation.broken import BROKEN
from simulation.checker import violations
from simulation.run import simulate


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_ledger_is_found(name: str) -> None:
    """A ledger without this safeguard breaks a promise in some seed, and the checker sees it."""
    for seed in seeds.fixed():
        with BROKEN[name]() as kinds:
            run = simulate(seed, kinds)
        if violations(run):
            return
    pytest.fail(f"{name}: none of {seeds.COUNT // 2} seeds found it")
