"""The demo's data, its plan of kills, and how it counts: no process, no ledger."""

from __future__ import annotations

from collections import Counter

import pytest

from fencepost.ledger.demo_audit import problems, tally
from fencepost.ledger.demo_runs import DATA, HAND_OVER, Moment, Step, load, plan_kills
from fencepost.ledger.demo_world import Hit, count_duplicates
from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import PositionedFact
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation
from fencepost.ledger.positions import Position


def operation(op_id: str, *kinds: EffectKind) -> Operation:
    facts = tuple(
        PositionedFact(
            Position(0, number),
            encode_effect(
                EffectFact(
                    kind=kind,
                    op_id=op_id,
                    attempt_id="attempt",
                    agent_id="agent",
                    tool="tool",
                    effect_class=EffectClass.IRREVERSIBLE,
                    round=1,
                    seq=number + 1,
                )
            ),
        )
        for number, kind in enumerate(kinds)
    )
    return fold_operation(op_id, facts)


def hit(op_id: str, branch: str = "a/trial-0", life: int = 0) -> Hit:
    return Hit(op_id, "tool", branch, life, "done")


COMMITTED = (EffectKind.INTENDED, EffectKind.COMMITTED)
REFUSED = (EffectKind.INTENDED, EffectKind.FAILED)


def test_data_is_whole() -> None:
    """Fifty tasks with four trials each come with the package, and the licence beside them."""
    runs = load(50)
    assert Counter(run.task for run in runs) == dict.fromkeys(range(50), 4)
    note = (DATA.parent / "LICENSE-tau-bench").read_text()
    assert "MIT License" in note
    assert "Copyright (c) 2024 Sierra" in note


def test_siblings_share_an_operation() -> None:
    """The words of a hand-over may differ between trials; its operation is the same, another task's is not."""
    one = Step(HAND_OVER, {"summary": "wants a refund"}, "Transfer successful")
    other = Step(HAND_OVER, {"summary": "asks for money back"}, "Transfer successful")
    assert one.op_id("task-1") == other.op_id("task-1")
    assert one.op_id("task-1") != one.op_id("task-2")
    assert Step("book", {"seat": 1}, "").op_id("t") != Step("book", {"seat": 2}, "").op_id("t")


def test_plan_of_kills_follows_from_the_seed() -> None:
    """The same seed gives the same kills, each in a call that writes, and every moment has its turn."""
    runs = load(50)
    plan = plan_kills(runs, seed=3, count=9)
    assert plan == plan_kills(runs, seed=3, count=9)
    assert plan != plan_kills(runs, seed=4, count=9)
    assert Counter(kill.moment for kill in plan.values()) == dict.fromkeys(Moment, 3)
    steps = {run.name: run.steps for run in runs}
    assert all(steps[name][kill.index].writes for name, kill in plan.items())


def test_duplicates_by_where_they_come_from() -> None:
    """Hits beyond the first are told apart: by a sibling, by a later life, by the run itself; in any order."""
    hits = [
        hit("x"),
        hit("x"),
        hit("x", life=1),
        hit("x", "a/trial-1"),
        hit("y", "a/trial-1"),
    ]
    for ordered in (hits, hits[::-1]):
        found = count_duplicates(ordered)
        assert (found.operations, found.hits, found.total) == (2, 5, 3)
        assert (found.sibling, found.restored, found.repeated) == (1, 1, 1)
        assert found.tools == (("tool", 3),)


@pytest.mark.parametrize(
    ("hits", "kinds", "said"),
    [
        ([hit("x")], COMMITTED, []),
        ([], (EffectKind.INTENDED,), []),
        ([hit("x")], (EffectKind.INTENDED,), []),
        ([], REFUSED, []),
        ([hit("x"), hit("x")], COMMITTED, ["x was executed 2 times"]),
        ([hit("x")], REFUSED, ["x was executed, and the ledger says that it was not"]),
        ([], COMMITTED, ["x is committed, and was never executed"]),
        ([hit("y")], REFUSED, ["y was executed, and the ledger does not know it"]),
    ],
)
def test_audit(hits: list[Hit], kinds: tuple[EffectKind, ...], said: list[str]) -> None:
    """World and ledger are held against each other; what is in doubt may have happened or not."""
    assert problems(hits, [operation("x", *kinds)]) == said


def test_tally() -> None:
    """Committed, refused, and refused but done later are counted from the attempts."""
    found = tally([operation("x", *COMMITTED), operation("y", *REFUSED), operation("z", EffectKind.INTENDED)])
    assert (found.operations, found.committed, found.undecided) == (3, 1, 1)
    assert (found.refused, found.refused_operations, found.done_later) == (1, 1, 0)
