"""Every state of a small world is safe, and each safeguard is needed: without it the search finds harm."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from property.claim_projector import Bounds, Projector, steps
from property.claim_world import Session, Switches, World, harm, violation

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = Session("A", "A", epoch=0), Session("B", "B", epoch=0)
SUCCESSOR = Session("S", "A", epoch=1)
NO_GUARD = ("done", 0, 0)


def search(
    start: World, switches: Switches, bounds: Bounds, wrong: Callable[[World], str], *, limit: int
) -> tuple[str, list[str], int]:
    """Breadth first: what is wrong in the nearest bad state and how it came to that, and how many states were seen."""
    projector = Projector(switches)
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])
    while queue and len(came_from) < limit:
        world = queue.popleft()
        if found := wrong(world):
            return found, trace(came_from, world), len(came_from)
        for label, after in steps(world, projector, bounds):
            if after not in came_from:
                came_from[after] = (world, label)
                queue.append(after)
    return "", [], len(came_from)


def trace(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    labels = []
    while (step := came_from[world]) is not None:
        world, label = step
        labels.append(label)
    return labels[::-1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("start", "bounds", "complete"),
    [
        pytest.param(World((A, B), guard=NO_GUARD), Bounds(log=5, fences=0), True, id="two sessions"),
        pytest.param(World((A,)), Bounds(log=6, fences=2), True, id="a guard that fences twice"),
        pytest.param(World((A, SUCCESSOR)), Bounds(log=5, zombies=0, crashes=0), True, id="a successor"),
        pytest.param(World((A, B)), Bounds(log=9, resends=1), False, id="all of it, to a depth"),
    ],
)
def test_no_state_within_the_bounds_is_wrong(start: World, bounds: Bounds, *, complete: bool) -> None:
    """No order of steps, losses, crashes and cleanings doubles or forgets an effect, or fools the guard."""
    limit = 200_000 if complete else 40_000
    found, steps_taken, seen = search(start, Switches(), bounds, violation, limit=limit)
    assert not found, (found, steps_taken)
    assert complete == (seen < limit), f"the bounds and the limit do not fit any more: {seen} states"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("switches", "start", "wrong"),
    [
        pytest.param(Switches(debts=False), World((A, B), guard=NO_GUARD), harm, id="no debts"),
        pytest.param(Switches(keep_debts=False), World((A, B)), harm, id="debts forgotten in a crash"),
        pytest.param(Switches(strict_strike=False), World((A, B), guard=NO_GUARD), violation, id="struck early"),
        pytest.param(Switches(horizon=False), World((A,)), harm, id="answers below the horizon"),
        pytest.param(Switches(barrier=False), World((A,)), harm, id="a guard that does not wait"),
    ],
)
def test_each_safeguard_is_needed(switches: Switches, start: World, wrong: Callable[[World], str]) -> None:
    """With one safeguard off, the same search over the same fold finds a counterexample."""
    found, steps_taken, _ = search(start, switches, Bounds(), wrong, limit=300_000)
    assert found, "the search cannot tell this world from a safe one"
    assert steps_taken
