"""Sessions, branches and what a point knows: the chain of points from which sessions resumed."""

from __future__ import annotations

import pytest
from unit.ledger.kit import agent_fact, at, forked, opened, point, token

from fencepost.ledger.facts import AgentFact
from fencepost.ledger.lineage import ROOT, Agent, fold_agent
from fencepost.ledger.positions import Position


def life(*facts: AgentFact | None) -> Agent:
    """The agent that these facts, at offsets 0, 1, … tell of."""
    return fold_agent("agent", at(*facts))


def path(agent: Agent, epoch: int, seq: int) -> dict[int, int]:
    return {at.offset: number for at, number in agent.path(point(epoch, seq)).items()}


def closed(session_id: str, seq: int, **values: object) -> AgentFact:
    return agent_fact("SESSION_CLOSED", session_id=session_id, sealed_seq=seq, seq=seq, **values)


def test_the_first_session_begins_the_branch() -> None:
    """Its position is the epoch, and the first segment of the branch; it knows nothing of before."""
    agent = life(opened("s1"))
    session, branch = agent.sessions["s1"], agent.branches["main"]
    assert (session.epoch, session.parent, session.live) == (Position(0, 0), ROOT, True)
    assert (branch.segment, branch.first_segment, branch.head, branch.origin) == ("0.0", "0.0", session, ROOT)
    assert path(agent, 0, 3) == {0: 3}


def test_a_later_session_ends_its_predecessor() -> None:
    """One session at a time speaks for a branch; the later one has the higher epoch."""
    agent = life(opened("s1"), opened("s2", token(0, 5), segment="0.0"))
    first, second = agent.sessions["s1"], agent.sessions["s2"]
    assert (first.live, first.ended_at) == (False, Position(0, 1))
    assert "s2 took over" in first.ended
    assert second.live
    assert agent.branches["main"].sessions == [first, second]
    assert path(agent, 1, 2) == {1: 2, 0: 5}


def test_a_crashed_predecessor_is_known_only_up_to_the_point_resumed() -> None:
    """What it wrote beyond lies beside the path, for the successor and for all that come after."""
    agent = life(opened("s1"), opened("s2", token(0, 5)), opened("s3", token(1, 9)))
    known = agent.path(point(2, 1))
    assert agent.knows(known, Position(0, 0), 5)
    assert not agent.knows(known, Position(0, 0), 6)
    assert agent.knows(known, Position(0, 1), 9)
    assert not agent.knows(known, Position(0, 1), 10)


def test_a_session_without_a_point_resumes_from_nothing() -> None:
    """An agent that begins anew on its branch knows nothing of the sessions before."""
    agent = life(opened("s1"), opened("s2"))
    assert path(agent, 1, 4) == {1: 4}


def test_facts_outside_any_session_are_never_known() -> None:
    """Number 0 stands for "no session wrote it"."""
    agent = life(opened("s1"))
    assert not agent.knows(agent.path(point(0, 5)), Position(0, 0), 0)
    assert not agent.knows(agent.path(ROOT), Position(0, 0), 1)


def test_closing_seals_the_last_number_once() -> None:
    """The first close counts; a superseded session may still seal what it wrote."""
    agent = life(opened("s1"), closed("s1", 7, voided=(3,)), closed("s1", 9))
    session = agent.sessions["s1"]
    assert (session.sealed_seq, session.voided, session.ended, session.ended_at) == (7, (3,), "closed", Position(0, 1))
    agent = life(opened("s1"), opened("s2", token(0, 2)), closed("s1", 4), closed("nobody", 1))
    assert (agent.sessions["s1"].sealed_seq, agent.sessions["s1"].ended_at) == (4, Position(0, 1))
    assert agent.sessions["s2"].live


def test_the_same_opening_twice_is_one_session() -> None:
    """A retried publish: the first position is the epoch."""
    agent = life(opened("s1"), opened("s1"))
    assert list(agent.sessions) == ["s1"]
    assert agent.sessions["s1"].epoch == Position(0, 0)
    assert agent.by_epoch(Position(0, 1)) is None


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (opened("s2", branch_id="nowhere", segment="0.0"), "does not exist"),
        (opened("s2", "no token"), "unreadable"),
        (opened("s2", token(7, 1)), "not in this ledger"),
        (opened("s2", segment="0.9"), "another segment"),
    ],
)
def test_openings_that_do_not_count(fact: AgentFact, why: str) -> None:
    """Rejected with its reason; the present session goes on speaking."""
    agent = life(opened("s1"), fact, opened("s3", token(1, 1)))
    assert why in agent.sessions["s2"].rejected
    assert not agent.sessions["s2"].live
    assert agent.by_epoch(Position(0, 1)) is None
    assert agent.sessions["s1"].live
    assert "not in this ledger" in agent.sessions["s3"].rejected


def test_an_opening_that_names_the_present_segment_counts() -> None:
    """And one that names none means the branch's first."""
    assert life(opened("s1"), opened("s2", segment="0.0")).sessions["s2"].live
    assert life(opened("s1"), opened("s2")).sessions["s2"].live


# -- forks -----------------------------------------------------------------------------


def test_a_fork_begins_a_branch_at_a_point() -> None:
    """Its sessions know what that point knows, and nothing that the parent did later."""
    agent = life(
        opened("s1"),
        forked("b", token(0, 4), checkpoint_id="c"),
        opened("f1", token(0, 4, branch="b"), branch_id="b", segment="0.1"),
    )
    branch = agent.branches["b"]
    assert (branch.parent_branch_id, branch.fork_checkpoint, branch.segment) == ("main", "c", "0.1")
    assert path(agent, 2, 1) == {2: 1, 0: 4}
    assert agent.sessions["s1"].live
    assert agent.sessions["f1"].live


def test_the_end_of_a_branch_is_its_last_session_or_its_origin() -> None:
    """Whatever the last session wrote, also what is not seen yet."""
    agent = life(opened("s1"), forked("b", token(0, 4)))
    assert agent.head_point(agent.branches["b"]) == point(0, 4)
    head = agent.head_point(agent.branches["main"])
    assert head.epoch == Position(0, 0)
    assert head.seq > 10**15


def test_a_branch_is_forked_once() -> None:
    """The name is taken from then on, by a fork or by a first session."""
    agent = life(opened("s1"), forked("b", token(0, 4)), forked("b", token(0, 1)), forked("main", token(0, 1)))
    assert agent.branches["b"].origin == point(0, 4)
    assert agent.branches["main"].origin == ROOT


def test_a_fork_from_an_unreadable_point_is_closed() -> None:
    """It exists, so that the name is taken, and nobody may open it."""
    agent = life(opened("s1"), forked("b", "mangled"), opened("f1", branch_id="b", segment="0.1"))
    assert "unreadable" in agent.branches["b"].forbidden
    assert agent.sessions["f1"].rejected


def test_a_fork_from_nothing_begins_at_the_root() -> None:
    """No point was named: the branch knows nothing."""
    agent = life(opened("s1"), forked("b", ""))
    assert (agent.branches["b"].origin, agent.branches["b"].forbidden) == (ROOT, "")


# -- what cannot be read, and order ----------------------------------------------------


@pytest.mark.parametrize("kind", ["UNKNOWN", "CHECKPOINTED", "HORIZON", "CALL_REPORTED"])
def test_a_fact_that_has_no_place_among_these_makes_the_agent_unsafe(kind: str) -> None:
    """Never ignored: the guard refuses on it."""
    agent = life(opened("s1"), agent_fact(kind))
    assert kind in agent.unsafe
    assert life(opened("s1")).unsafe == ""


@pytest.mark.parametrize(
    "kind",
    ["SESSION_OPENED", "SESSION_CLOSED", "FORKED", "ROLLBACK_REQUESTED", "ROLLBACK_DECIDED", "DIVERGENCE_DECLARED"],
)
def test_the_kinds_that_are_read_do_not_make_it_unsafe(kind: str) -> None:
    """However little such a fact says."""
    assert life(opened("s1"), agent_fact(kind)).unsafe == ""


def test_the_order_of_reading_makes_no_difference() -> None:
    """Facts are folded in log order, each once, however they are handed over."""
    facts = at(opened("s1"), opened("s2", token(0, 5)), forked("b", token(1, 2)), closed("s2", 9))
    assert fold_agent("agent", reversed(facts + facts)) == fold_agent("agent", facts)


def test_declared_divergences_are_kept_by_operation() -> None:
    """The first declaration counts."""
    first = agent_fact("DIVERGENCE_DECLARED", op_id="x", declared_as="new")
    second = agent_fact("DIVERGENCE_DECLARED", op_id="x", declared_as="same", other_op_id="y")
    assert life(opened("s1"), first, second).declared == {"x": ("new", "")}


def test_a_path_ends_where_a_session_is_not_known() -> None:
    """What cannot be looked up is known up to the point itself, and nothing before it."""
    assert path(life(opened("s1")), 42, 3) == {42: 3}
