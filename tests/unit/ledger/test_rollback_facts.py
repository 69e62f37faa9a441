"""Rollbacks in the log: what a request holds, what a decision abandons, and who is fenced by it."""

from __future__ import annotations

import pytest
from unit.ledger.kit import agent_fact, at, checkpointed, decided, forked, opened, point, requested, token

from fencepost.ledger.contexts import fold_context
from fencepost.ledger.facts import AgentFact, Crossed
from fencepost.ledger.history import History
from fencepost.ledger.lineage import Agent, abandons, fold_agent, on_path
from fencepost.ledger.positions import Position


def life(*facts: AgentFact | None) -> Agent:
    return fold_agent("agent", at(*facts))


def offsets(left: dict[Position, int]) -> dict[int, int]:
    return {epoch.offset: seq for epoch, seq in left.items()}


CRASHED = (opened("s1"), opened("s2", token(0, 5)))
"""Session s1 wrote more than 5 facts and died; s2 resumed from its fifth."""


def test_a_request_ends_the_session_and_holds_what_it_would_abandon() -> None:
    """From its position on nobody speaks for the branch until it is decided."""
    agent = life(*CRASHED, requested("r", token(0, 3)))
    rollback = agent.rollbacks["r"]
    assert (agent.pending, rollback.target, rollback.branches) == (rollback, point(0, 3), ("main",))
    assert offsets(rollback.abandons) == {1: -1, 0: 3}
    assert agent.sessions["s2"].ended == "rollback r"
    assert agent.sessions["s2"].ended_at == Position(0, 2)


@pytest.mark.parametrize("verdict", ["PROCEED", "PROCEED_GATED"])
def test_an_authorised_rollback_begins_a_new_segment_at_the_target(verdict: str) -> None:
    """What stands behind it is abandoned; the next session resumes from the target and names the segment."""
    agent = life(*CRASHED, requested("r", token(0, 3)), decided("r", verdict), opened("s3", token(0, 3), segment="0.2"))
    branch = agent.branches["main"]
    assert (branch.segment, branch.first_segment, branch.origin) == ("0.2", "0.0", point(0, 3))
    assert offsets(agent.abandoned) == {1: -1, 0: 3}
    assert agent.pending is None
    assert agent.sessions["s3"].live
    assert agent.path(point(4, 1)) == {Position(0, 4): 1, Position(0, 0): 3}


@pytest.mark.parametrize("verdict", ["REFUSE", "WITHDRAWN", ""])
def test_a_rollback_that_is_refused_or_withdrawn_changes_nothing_else(verdict: str) -> None:
    """The session is over all the same; a new one goes on where the agent is."""
    agent = life(*CRASHED, requested("r", token(0, 3)), decided("r", verdict), opened("s3", token(1, 8)))
    assert agent.branches["main"].segment == "0.0"
    assert (agent.abandoned, agent.pending) == ({}, None)
    assert agent.sessions["s3"].live


def test_the_first_decision_counts() -> None:
    """Who withdraws first has withdrawn it; a decision on nothing is nothing."""
    agent = life(*CRASHED, requested("r", token(0, 3)), decided("r", "WITHDRAWN"), decided("r", "PROCEED"))
    assert not agent.rollbacks["r"].authorised
    assert agent.rollbacks["r"].decided_at == Position(0, 3)
    assert life(*CRASHED, decided("unknown")).rollbacks == {}


@pytest.mark.parametrize("opening", [opened("s3", token(0, 3)), opened("s3", token(1, 9)), opened("s3")])
def test_while_it_is_pending_no_session_opens_on_the_branch(opening: AgentFact) -> None:
    """Wherever it says that it resumes from."""
    agent = life(*CRASHED, requested("r", token(0, 3)), opening)
    assert "is being decided" in agent.sessions["s3"].rejected


def test_while_it_is_pending_no_fork_begins_on_what_would_be_abandoned() -> None:
    """One at the target or before it may."""
    agent = life(*CRASHED, requested("r", token(0, 3)), forked("late", token(1, 1)), forked("early", token(0, 3)))
    assert "abandoned" in agent.branches["late"].forbidden
    assert agent.branches["early"].forbidden == ""


def test_a_second_request_while_one_is_pending_is_rejected() -> None:
    """One rollback of an agent at a time; and a retried request is the same request."""
    agent = life(*CRASHED, requested("r", token(0, 3)), requested("q", token(0, 1)), requested("r", token(0, 1)))
    assert "r is being decided" in agent.rollbacks["q"].rejected
    assert not agent.rollbacks["q"].pending
    assert agent.rollbacks["r"].target == point(0, 3)


@pytest.mark.parametrize(
    ("request_fact", "why"),
    [
        (requested("r", "mangled"), "unreadable"),
        (requested("r", token(0, 3), branch_id="nowhere"), "does not exist"),
        (requested("r", token(0, 3), segment="0.7"), "another segment"),
        (requested("r", token(0, 6)), "not on the branch's path"),
        (requested("r", token(9, 1)), "not on the branch's path"),
    ],
)
def test_requests_that_do_not_count(request_fact: AgentFact, why: str) -> None:
    """They hold nothing and end nobody; a decision on them does nothing."""
    agent = life(*CRASHED, request_fact, decided("r"))
    assert why in agent.rollbacks["r"].rejected
    assert agent.sessions["s2"].live
    assert agent.branches["main"].segment == "0.0"


def test_a_second_rollback_before_a_session_opened() -> None:
    """It goes back from the first one's target; what was abandoned stays abandoned."""
    agent = life(
        *CRASHED, requested("r", token(0, 3)), decided("r"), requested("q", token(0, 1), segment="0.2"), decided("q")
    )
    assert not agent.rollbacks["q"].rejected
    assert offsets(agent.rollbacks["q"].abandons) == {0: 1}
    assert offsets(agent.abandoned) == {0: 1, 1: -1}
    assert agent.branches["main"].segment == "0.4"
    forward = life(*CRASHED, requested("r", token(0, 3)), decided("r"), requested("q", token(0, 4), segment="0.2"))
    assert "not on the branch's path" in forward.rollbacks["q"].rejected


def test_an_old_segment_is_gone() -> None:
    """A session that was about to open on it is told that the branch moved on."""
    agent = life(*CRASHED, requested("r", token(0, 3)), decided("r"), opened("s3", token(0, 2), segment="0.0"))
    assert "another segment" in agent.sessions["s3"].rejected


def test_nobody_resumes_from_what_is_abandoned() -> None:
    """Neither a session of the new segment nor a fork."""
    facts = (*CRASHED, requested("r", token(0, 3)), decided("r"))
    agent = life(*facts, opened("s3", token(1, 2), segment="0.2"), forked("b", token(0, 4)), forked("c", token(0, 3)))
    assert "abandoned" in agent.sessions["s3"].rejected
    assert "abandoned" in agent.branches["b"].forbidden
    assert agent.branches["c"].forbidden == ""
    assert agent.is_abandoned(point(0, 4))
    assert not agent.is_abandoned(point(0, 3))


def test_going_back_to_the_root_abandons_all_sessions_of_the_branch() -> None:
    """A checkpoint from before everything knows nothing."""
    agent = life(*CRASHED, requested("r", ""), decided("r"))
    assert offsets(agent.abandoned) == {1: -1, 0: -1}
    assert agent.is_abandoned(point(0, 0))


# -- descendants -----------------------------------------------------------------------

FORKED = (
    opened("s1"),
    forked("b", token(0, 4)),
    opened("f1", token(0, 4, branch="b"), branch_id="b", segment="0.1"),
    forked("grandchild", token(2, 1, branch="b"), parent_branch_id="b"),
    forked("early", token(0, 2)),
)


def test_branches_that_descend_from_what_is_abandoned_are_fenced_and_closed() -> None:
    """Children and their children; not those that were forked at the target or before."""
    agent = life(*FORKED, requested("r", token(0, 2)), decided("r"))
    assert set(agent.rollbacks["r"].branches) == {"main", "b", "grandchild"}
    assert "rollback r abandoned" in agent.branches["b"].forbidden
    assert "rollback r abandoned" in agent.branches["grandchild"].forbidden
    assert agent.branches["early"].forbidden == ""
    assert agent.sessions["f1"].ended == "rollback r"


def test_descendants_are_held_while_the_rollback_is_pending() -> None:
    """Their sessions are over and no new one opens, whatever the decision will be."""
    agent = life(*FORKED, requested("r", token(0, 2)), opened("f2", token(2, 1), branch_id="b", segment="0.1"))
    assert "is being decided" in agent.sessions["f2"].rejected
    assert agent.branches["b"].forbidden == ""


@pytest.mark.parametrize("decision", [None, decided("r")])
def test_no_branch_escapes_through_a_descendant(decision: AgentFact | None) -> None:
    """What a descendant's session wrote came from the abandoned stretch: nobody may fork or resume there either."""
    escape = forked("escape", token(2, 1, branch="b"), parent_branch_id="b")
    agent = life(*FORKED, requested("r", token(0, 2)), decision, escape)
    assert "abandoned" in agent.branches["escape"].forbidden
    if decision:
        resumed = life(*FORKED, requested("r", token(0, 2)), decision, opened("s2", token(2, 1), segment="0.5"))
        assert "abandoned" in resumed.sessions["s2"].rejected


def test_a_branch_goes_back_beyond_its_fork_and_leaves_its_parent_alone() -> None:
    """Only its own sessions are abandoned; the parent's go on with the parent."""
    agent = life(*FORKED, requested("r", token(0, 3), branch_id="b", segment="0.1"), decided("r"))
    assert offsets(agent.abandoned) == {2: -1}
    assert set(agent.rollbacks["r"].branches) == {"b", "grandchild"}
    assert agent.sessions["s1"].live
    assert agent.branches["b"].origin == point(0, 3)
    assert not on_path(agent, agent.branches["b"], point(2, 1))
    assert offsets(abandons(agent, agent.branches["main"], point(0, 1))) == {0: 1}


def test_crossed_effects_are_told_along_the_line_of_branches() -> None:
    """A gated rollback of a branch or of one it came from; a refused one crossed nothing."""
    over = (Crossed("x", "bank.pay"),)
    gated = decided("r", "PROCEED_GATED", crossed=over)
    agent = life(*CRASHED, requested("r", token(0, 3)), gated, forked("b", token(0, 3)))
    assert set(agent.crossed("main")) == set(agent.crossed("b")) == {"x"}
    assert agent.crossed("nowhere") == {}
    for verdict in ("PROCEED", "REFUSE"):
        other = decided("r", verdict, crossed=over)
        assert life(*CRASHED, requested("r", token(0, 3)), other).crossed("main") == {}


# -- checkpoints -----------------------------------------------------------------------


def marks(*facts: AgentFact, start: int) -> History:
    return at(*facts, start=start)


def test_a_checkpoint_counts_while_its_session_speaks() -> None:
    """One of an ended, rejected or unknown session does not."""
    agent = life(*CRASHED, opened("bad", "mangled"))
    facts = marks(
        checkpointed("late", "s1", token(0, 9)),
        checkpointed("now", "s2", token(1, 2)),
        checkpointed("bad", "bad", token(2, 1)),
        checkpointed("nobody", "s9", token(9, 1)),
        start=3,
    )
    assert set(fold_context(agent, facts).checkpoints) == {"now"}
    why = {c.checkpoint_id: c.rejected for c in fold_context(agent, facts).every}
    assert "its session had ended: session s2 took over" in why["late"]
    assert why["bad"] == why["nobody"] == "its session is not known"


def test_a_checkpoint_written_before_the_session_ended_still_counts() -> None:
    """It is what a rollback goes back to."""
    agent = life(opened("s1"), None, requested("r", token(0, 3)))
    assert set(fold_context(agent, marks(checkpointed("c", "s1", token(0, 3)), start=1)).checkpoints) == {"c"}


def test_an_id_belongs_to_its_first_point() -> None:
    """The same point again is the same checkpoint; another point under the id is rejected."""
    agent = life(opened("s1"))
    facts = marks(
        checkpointed("c", "s1", token(0, 2)), checkpointed("c", "s1", token(0, 2)), checkpointed("c", "s1", token(0, 5)),
        start=1,
    )  # fmt: skip
    found = fold_context(agent, facts).every
    assert [(c.rejected, c.position.offset) for c in found] == [("", 1), ("its id was taken", 3)]
    assert fold_context(agent, facts).checkpoints["c"].mark == found[0].mark


def test_a_checkpoint_with_an_unreadable_watermark_is_registered_without_one() -> None:
    """The guard tells that from a checkpoint that was never registered."""
    facts = marks(checkpointed("c", "s1", "mangled"), agent_fact("COMPACTED", session_id="s1"), start=1)
    found = fold_context(life(opened("s1")), facts).checkpoints
    assert (set(found), found["c"].mark) == ({"c"}, None)
