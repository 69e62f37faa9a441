"""The schedule of faults: from a seed, always the same, and never more than the promises allow for."""

from __future__ import annotations

from collections import defaultdict

import pytest
from faults.stack.nemesis import BROKER_REST_S, FIRST_S, KINDS, QUIET_S, schedule
from faults.stack.operator import _ACTS

PHASE_S = 150.0


def test_the_same_seed_gives_the_same_schedule() -> None:
    """A run can be repeated by its seed; another seed gives another run, and a longer run begins the same."""
    assert schedule(7, phases=3, phase_s=PHASE_S) == schedule(7, phases=3, phase_s=PHASE_S)
    assert schedule(7, phases=3, phase_s=PHASE_S) != schedule(8, phases=3, phase_s=PHASE_S)
    short = schedule(7, phases=1, phase_s=PHASE_S)
    assert schedule(7, phases=3, phase_s=PHASE_S)[: len(short)] == short


@pytest.mark.parametrize("seed", range(20))
def test_what_a_schedule_may_do(seed: int) -> None:
    """Faults of one area do not overlap, one broker at most is away, and each phase ends in peace."""
    last: dict[tuple[int, str], float] = defaultdict(float)
    for fault in schedule(seed, phases=4, phase_s=PHASE_S):
        area = (fault.phase, KINDS[fault.kind].area)
        assert FIRST_S <= fault.at_s <= fault.at_s + fault.for_s <= PHASE_S - QUIET_S
        assert fault.at_s >= last[area]
        last[area] = round(fault.at_s + fault.for_s + (BROKER_REST_S if area[1] == "broker" else 0.0), 1)


def test_every_kind_happens() -> None:
    """A few minutes have every fault in them, and each of them is known to who does it."""
    assert {fault.kind for fault in schedule(1, phases=4, phase_s=PHASE_S)} == set(KINDS) == set(_ACTS)
