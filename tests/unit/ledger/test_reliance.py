"""For whom an effect stands, from what the logs of the agents tell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from unit.ledger.kit import OP, agent_fact, at, committed, fold, forked, intended, opened, resolved, token
from unit.ledger.plan_kit import sealed as sealed_manifest
from unit.ledger.prune_kit import LIFE, A, B, adopted, by, done, pruned, sealed

from fencepost.ledger.errors import StaleProjectionError
from fencepost.ledger.facts import AgentFact
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.positions import Position
from fencepost.ledger.reliance import Witness, relied_on_by
from fencepost.ledger.watermarks import Point
from fencepost.ledger.witnesses import MOST_AGENTS, witnesses_elsewhere

CHILD = forked("child", token(A, 5, branch="a"), parent_branch_id="a", checkpoint_id="c-a")
EFFECT = fold(*done(5, **sealed()))


def witness(*more: AgentFact, **values: Any) -> Witness:
    return Witness.of(fold_agent("agent", at(*LIFE, *more)), **values)


def test_the_branch_that_made_it_is_not_counted() -> None:
    """Nor what its own sessions absorbed; others that know the place are, unless they leave."""
    absorbed = {(OP, 1): [Point(Position(0, A), 7), Point(Position(0, B), 3)]}
    assert relied_on_by(EFFECT, [witness()]) == ()
    assert relied_on_by(EFFECT, [witness(CHILD, absorbed=absorbed)]) == ("agent/b", "agent/child")
    leaving = frozenset({("agent", "b")})
    assert relied_on_by(EFFECT, [witness(CHILD, absorbed=absorbed)], leaving=leaving) == ("agent/child",)


def test_an_owners_commit_beside_an_operators_word_is_a_place_too() -> None:
    """The word stands for good with the result that it gave; a child of the owner still knows that it happened."""
    word = resolved("COMMITTED", 0, result=b"1")
    op = fold(by("a", intended, "a1", 4), word, by("a", committed, "a1", 5))
    assert op.settled is not None
    assert op.settled.result == b"1"
    assert relied_on_by(op, [witness(CHILD)]) == ("agent/child",)


def test_an_adoption_of_which_the_session_is_not_known_counts_while_its_branch_stands() -> None:
    """Nobody can tell where it lies, so nobody can say that its branch has gone back over it."""
    lost = fold(*done(5), adopted("b", epoch=Position(0, 77)))
    assert relied_on_by(lost, [witness()]) == ("agent/b",)
    assert relied_on_by(lost, [witness(pruned("b", "p2"))]) == ()


def test_another_agents_adoption_counts_as_written_where_its_log_is_not_at_hand() -> None:
    """With the log, its branches are judged in the same way: one that was pruned, one that was forked after it."""
    op = fold(*done(5), adopted("x", 4, agent_id="other", epoch=Position(0, 1)))
    life = (
        opened("o1", agent_id="other"),
        opened("o2", agent_id="other", branch_id="x"),
        forked("y", token(1, 6, branch="x", agent="other"), agent_id="other", parent_branch_id="x"),
        agent_fact("PRUNED", agent_id="other", branch_id="x", rollback_id="p"),
    )
    other = [Witness.of(fold_agent("other", at(*life[:n]))) for n in (2, 3, 4)]
    assert relied_on_by(op, [witness()]) == ("other/x",)
    assert [relied_on_by(op, [witness(), one]) for one in other] == [
        ("other/x",), ("other/x", "other/y"), ("other/y",),
    ]  # fmt: skip


def test_what_an_operator_adopted_stands_for_good() -> None:
    """Whatever becomes of the branch for which it was adopted."""
    manifest = sealed_manifest(OP)
    op = fold(
        *done(5, manifest=manifest.data, manifest_digest=manifest.digest),
        adopted("b", epoch=Position(0, -1), seq=0, by="ann", version="0.1"),
    )
    assert relied_on_by(op, [witness(pruned("b", "p2"))], leaving=frozenset({("agent", "b")})) == ("ann",)


class Logs:
    """Agents' logs of which some cannot be believed; counts what is read."""

    def __init__(self, *stale: str) -> None:
        self.stale, self.read = stale, list[str]()

    async def agent(self, name: str) -> Any:
        self.read.append(name)
        if name in self.stale:
            raise StaleProjectionError("not now.", partition="agents/0")
        facts = at(opened("o1", agent_id=name, branch_id="x"))
        return SimpleNamespace(agent=fold_agent(name, facts))

    async def absorbed(self, name: str) -> Any:
        del name
        return {}


def test_the_logs_of_other_agents_are_read_once_each_and_not_without_bound() -> None:
    """One that cannot be believed now, and one beyond the bound, bears no witness: its adoption counts as written."""
    names = [f"other-{number:03}" for number in range(MOST_AGENTS + 5)]
    adoptions = [adopted("x", agent_id=name) for name in names]
    op = fold(*done(5), *adoptions)
    logs = Logs(names[0])
    engine: Any = SimpleNamespace(view=logs)
    found = asyncio.run(witnesses_elsewhere(engine, "agent", [op, op]))
    assert logs.read == names[:MOST_AGENTS]
    assert [one.agent.agent_id for one in found] == names[1:MOST_AGENTS]
    assert set(relied_on_by(op, [witness(), *found])) >= {f"{names[0]}/x", f"{names[-1]}/x"}
