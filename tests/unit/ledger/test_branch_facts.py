"""Forks that are refused, and branches that are pruned: what the agents log makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from unit.ledger.kit import agent_fact, at, checkpointed, decided, effect, forked, opened, point, requested, token
from unit.ledger.prune_kit import LIFE, A, B, done, prune_decided, pruned

from fencepost.ledger.contexts import fold_context
from fencepost.ledger.facts import AgentFact
from fencepost.ledger.lineage import Agent, fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Status
from fencepost.ledger.positions import Position


def life(*facts: AgentFact | None) -> Agent:
    return fold_agent("agent", at(*facts))


# -- forks that are refused ----------------------------------------------------------------

HELD = (opened("s1"), requested("r", token(0, 3)), forked("b", token(0, 9), time_ms=1))
"""A fork from what the pending rollback would abandon."""


def test_a_fork_that_was_refused_leaves_the_name_free() -> None:
    """The next one of that name begins it, once nothing stands against it."""
    agent = life(*HELD)
    assert not agent.branches["b"].begun
    assert "being decided" in agent.branches["b"].forbidden
    agent = life(*HELD, decided("r", "REFUSE"), forked("b", token(0, 9), time_ms=2, checkpoint_id="c"))
    branch = agent.branches["b"]
    assert (branch.begun, branch.forbidden, branch.origin, branch.fork_checkpoint) == (True, "", point(0, 9), "c")
    assert branch.first_segment == "0.4"
    assert [fact.time_ms for fact in branch.refused] == [1]


def test_a_repeat_of_a_refused_fork_begins_nothing() -> None:
    """Its author was told that it was refused; the same record, published again, must not say otherwise."""
    agent = life(*HELD, decided("r", "REFUSE"), HELD[2])
    assert not agent.branches["b"].begun


def test_no_session_opens_on_a_name_whose_forks_were_refused() -> None:
    """Neither as a branch nor as a root branch of that name."""
    agent = life(*HELD, opened("f", token(0, 9, branch="b"), branch_id="b", segment="0.2"), opened("g", branch_id="b"))
    assert agent.sessions["f"].rejected
    assert agent.sessions["g"].rejected


def test_a_branch_that_began_is_not_begun_anew() -> None:
    """Only a name that stands for nothing is free."""
    agent = life(
        opened("s1"), forked("b", token(0, 4)), forked("b", token(0, 1)), pruned("b"), forked("b", token(0, 2))
    )
    assert agent.branches["b"].origin == point(0, 4)
    assert agent.branches["b"].pruned is not None


def test_a_later_rollback_does_not_take_a_name_for_a_branch() -> None:
    """A refused fork descends from nothing: what is begun under its name meanwhile is not abandoned with it."""
    facts = [*HELD, decided("r", "REFUSE"), requested("r2", token(0, 3)), forked("b", token(0, 2), time_ms=3)]
    agent = life(*facts, decided("r2"))
    assert agent.rollbacks["r2"].branches == ("main",)
    assert (agent.branches["b"].begun, agent.branches["b"].forbidden) == (True, "")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ((opened("s1"), forked("b", "mangled")), "unreadable"),
        ((opened("s1"), requested("r", token(0, 3)), decided("r"), forked("b", token(0, 9))), "abandoned"),
        ((*LIFE, pruned(), forked("b2", token(A, 3, branch="a"))), "pruned before"),
    ],
)
def test_why_a_fork_is_refused(facts: tuple[AgentFact, ...], why: str) -> None:
    """Each with its reason, and none of them takes the name."""
    name = facts[-1].branch_id
    agent = life(*facts)
    assert why in agent.branches[name].forbidden
    assert not agent.branches[name].begun
    assert life(*facts, forked(name, token(0, 1), time_ms=9)).branches[name].begun


# -- pruning -------------------------------------------------------------------------------


def test_a_pruned_branch_is_closed_and_its_session_over() -> None:
    """From that place in the log on: no session, no checkpoint, no rollback, no fork from it."""
    agent = life(
        *LIFE, pruned(by="ann"), opened("sa2", token(A, 4, branch="a"), branch_id="a", segment="0.1"),
        requested("r", token(0, 2), segment="0.1", branch_id="a"), forked("x", token(A, 4, branch="a")),
    )  # fmt: skip
    branch = agent.branches["a"]
    assert branch.pruned is not None
    assert (branch.pruned.prune_id, branch.pruned.position, branch.pruned.fact.by) == ("p", Position(0, 5), "ann")
    assert (agent.sessions["sa"].live, agent.sessions["sa"].ended_at) == (False, Position(0, 5))
    assert agent.sessions["sa2"].rejected == "it was pruned"
    assert agent.rollbacks["r"].rejected == "it was pruned"
    assert not agent.branches["x"].begun
    assert agent.branches["b"].forbidden == ""


def test_a_checkpoint_of_a_pruned_session_does_not_count() -> None:
    """What it registered before the pruning does."""
    mark = {"branch_id": "a", "epoch": Position(0, A)}
    before = checkpointed("before", "sa", token(A, 3, branch="a"), **mark, seq=4)
    after = checkpointed("after", "sa", token(A, 5, branch="a"), **mark, seq=6)
    agent = fold_agent("agent", at(*LIFE, None, pruned()))
    context = fold_context(agent, at(*[None] * len(LIFE), before, None, after))
    assert list(context.checkpoints) == ["before"]
    assert "prune p" in context.every[-1].rejected


def test_a_branch_is_pruned_once() -> None:
    """The first pruning counts, for all who asked at the same time."""
    branch = life(*LIFE, pruned(prune_id="p"), pruned(prune_id="q")).branches["a"]
    assert branch.pruned is not None
    assert branch.pruned.prune_id == "p"


def test_pruning_what_does_not_exist_is_nothing() -> None:
    """Also of a name whose forks were all refused: it can be forked afterwards."""
    assert "nowhere" not in life(*LIFE, pruned("nowhere")).branches
    agent = life(*HELD, pruned("b"), decided("r", "REFUSE"), forked("b", token(0, 9), time_ms=2))
    assert (agent.branches["b"].begun, agent.branches["b"].pruned) == (True, None)


def test_decisions_belong_to_the_pruning_that_they_name() -> None:
    """In log order, newest last; one on another pruning, or before any, is nothing."""
    branch = life(*LIFE, prune_decided(), pruned(), prune_decided(time_ms=1), prune_decided(prune_id="q"),
                  prune_decided(time_ms=2)).branches["a"]  # fmt: skip
    assert branch.pruned is not None
    assert [d.time_ms for d in branch.pruned.decisions] == [1, 2]


def test_a_child_that_was_forked_before_goes_on() -> None:
    """It may resume from what it knew of the pruned branch, and nobody else may."""
    child = forked("child", token(A, 4, branch="a"), parent_branch_id="a")
    facts = [*LIFE, child, pruned()]
    agent = life(*facts, opened("f", token(A, 4, branch="child"), branch_id="child", segment="0.5"))
    assert agent.sessions["f"].live
    beyond = opened("f", token(A, 5, branch="child"), branch_id="child", segment="0.5")
    assert "pruned" in life(*facts, beyond).sessions["f"].rejected
    onto_main = life(*facts, opened("s2", token(A, 4)))
    assert "pruned" in onto_main.sessions["s2"].rejected
    assert onto_main.sessions["s1"].live


def test_what_took_the_branch_over_before_the_pruning_goes_on() -> None:
    """A session of main that resumed from the branch's state while it stood: its path knows what the branch did."""
    agent = life(*LIFE, opened("s2", token(A, 6)), pruned(), opened("s3", token(A, 6)))
    assert agent.sessions["s2"].epoch == Position(0, 5)
    assert agent.sessions["s3"].live
    assert agent.knows(agent.path(agent.head_point(agent.branches["main"])), Position(0, A), 6)


def test_what_stands() -> None:
    """Neither pruned, nor left behind, nor on a branch that there is not."""
    agent = life(*LIFE, pruned())
    assert not agent.stands("a", point(A, 1))
    assert agent.stands("b", point(B, 1))
    assert not agent.stands("nowhere", point(B, 1))
    back = life(
        *LIFE, requested("r", token(B, 5, branch="b"), segment="0.2", branch_id="b"), decided("r", branch_id="b")
    )
    assert back.stands("b", point(B, 5))
    assert not back.stands("b", point(B, 6))


def test_what_a_pruned_session_declares_is_not_accepted() -> None:
    """A held attempt is declared by a session that speaks for its branch."""
    said = agent_fact("DIVERGENCE_DECLARED", branch_id="a", session_id="sa", op_id="x", declared_as="new")
    assert life(*LIFE, said).declared == {"x": ("new", "")}
    assert life(*LIFE, pruned(), said).declared == {}


# -- adoption in an operation's history ----------------------------------------------------


@pytest.mark.parametrize(("version", "counts"), [("", True), ("0.1", True), ("0.0", False), ("nonsense", False)])
def test_an_operators_adoption_is_bound_to_the_version_that_was_seen(version: str, counts: bool) -> None:
    """A session's names none: it relies on whatever stands."""
    operation = fold_operation("pay:1", at(*done(), effect("ADOPTED", "o", by="ann", version=version)))
    assert bool(operation.adoptions) is counts
    assert (operation.version, operation.status) == ("0.2" if counts else "0.1", Status.COMMITTED)


def test_the_one_that_comes_first_wins() -> None:
    """An adoption before the undo begins moves the version that the undo names; one after it adopts nothing."""
    undo, adopt = effect("COMPENSATING", "u", version="0.1"), effect("ADOPTED", "o", branch_id="b")
    adopted_first = fold_operation("pay:1", at(*done(), adopt, undo))
    assert (adopted_first.status, len(adopted_first.adoptions)) == (Status.COMMITTED, 1)
    undo_first = fold_operation("pay:1", at(*done(), undo, adopt))
    assert (undo_first.status, undo_first.adoptions) == (Status.COMPENSATING, [])


@pytest.mark.parametrize(
    ("word", "left"),
    [
        ({"by": "bob", "version": "0.3"}, []),
        ({"by": "bob", "version": "0.2"}, ["ann"]),
        ({"by": "bob", "version": "0.3", "round": 2}, ["ann"]),
        ({"by": "", "version": "0.3"}, ["ann", ""]),
    ],
)
def test_an_operators_word_is_taken_back_on_the_version_that_was_seen(word: dict[str, Any], left: list[str]) -> None:
    """By a person, in this round, and on nothing else: what a branch relies on stays; the same person may adopt it again."""
    relied = effect("ADOPTED", "b", branch_id="b")
    facts = (
        *done(),
        relied,
        effect("ADOPTED", "o", by="ann", version="0.2"),
        effect("ADOPTED", "r", reason="released", **word),
    )
    operation = fold_operation("pay:1", at(*facts))
    assert [a.fact.by for a in operation.adoptions] == ["", *left]
    if not left:
        assert operation.version == "0.4"
        again = fold_operation("pay:1", at(*facts, effect("ADOPTED", "p", by="ann", version="0.4")))
        assert [a.fact.by for a in again.adoptions] == ["", "ann"]
