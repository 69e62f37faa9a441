"""Which fault happens when, drawn from a seed: the same seed gives the same schedule. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

FIRST_S = 10.0
QUIET_S = 25.0
"""At the end of a phase nothing is broken any more."""
BROKER_REST_S = 15.0
"""Between two faults of brokers: a quorum of two is not broken again before the third is back in sync."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        at_s: since the beginning of the phase; it ends `for_s` later, and the next of its area is after that.
        target: which one of several, as a number that is taken modulo how many there are.
    """

    phase: int
    at_s: float
    kind: str
    for_s: float
    target: int

    def __str__(self) -> str:
        return f"phase {self.phase} {self.at_s:6.1f} s  {self.kind} [{self.target}] for {self.for_s:.1f} s"


class Kind(NamedTuple):
    """How often a fault is drawn, how long it lasts, and what it must not overlap with."""

    weight: int
    shortest_s: float
    longest_s: float
    area: str


KINDS = {
    "kill agents": Kind(6, 0.0, 0.0, "agents"),
    "pause agents": Kind(3, 1.0, 8.0, "agents"),
    "usurp agents": Kind(2, 6.0, 9.0, "agents"),
    "kill projector": Kind(4, 1.0, 3.0, "projector"),
    "pause projector": Kind(3, 2.0, 8.0, "projector"),
    "slow projector": Kind(1, 3.0, 6.0, "projector"),
    "one more projector": Kind(3, 2.0, 6.0, "projector"),
    "drop partition": Kind(2, 0.0, 0.0, "redis"),
    "flush Redis": Kind(3, 0.0, 0.0, "redis"),
    "kill Redis": Kind(3, 0.2, 2.0, "redis"),
    "pause Redis": Kind(2, 1.0, 6.0, "redis"),
    "fill Redis": Kind(2, 1.0, 5.0, "redis"),
    "set Redis back": Kind(2, 4.0, 10.0, "redis"),
    "kill leader": Kind(3, 3.0, 8.0, "broker"),
    "pause leader": Kind(3, 4.0, 12.0, "broker"),
}


def schedule(seed: int, *, phases: int, phase_s: float) -> list[Fault]:
    """The faults of all phases, in order. At least one of each kind if there is time for so many."""
    found = [fault for phase in range(phases) for fault in _phase(random.Random(f"{seed}/{phase}"), phase, phase_s)]
    return sorted(found)


def _phase(chance: random.Random, phase: int, phase_s: float) -> Iterator[Fault]:
    free = dict.fromkeys({kind.area for kind in KINDS.values()}, FIRST_S)
    once = list(KINDS)
    chance.shuffle(once)
    now = FIRST_S
    while now < phase_s - QUIET_S:
        wanted = once.pop() if once else chance.choices(list(KINDS), [kind.weight for kind in KINDS.values()])[0]
        kind = KINDS[wanted]
        for_s = round(chance.uniform(kind.shortest_s, kind.longest_s), 1)
        at_s = round(max(now, free[kind.area]), 1)
        target = chance.randrange(1000)
        now += chance.uniform(1.0, 6.0)
        if at_s + for_s > phase_s - QUIET_S:
            continue
        free[kind.area] = round(at_s + for_s + (BROKER_REST_S if kind.area == "broker" else 1.0), 1)
        yield Fault(phase, at_s, wanted, for_s, target)
