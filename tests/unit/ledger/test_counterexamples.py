"""Histories that broke earlier designs, one by one, on the real fold and projection: none of them breaks it now."""

from __future__ import annotations

import pytest
from unit.ledger.kit import FENCE, OP, MemoryPartition, committed, effect, fenced, intended, resolved

from fencepost.ledger.facts import ResultForm
from fencepost.ledger.history import History
from fencepost.ledger.operations import AttemptState, Status
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import reassertion

DONE = committed("a", result=b'"receipt"', result_form=ResultForm.JSON)


@pytest.fixture
def log() -> MemoryPartition:
    return MemoryPartition()


def owner(log: MemoryPartition) -> str:
    operation = log.operation()
    return operation.owner.attempt_id if operation.owner else ""


def openings(log: MemoryPartition) -> list[bool]:
    """Whether it was open before and after reading on."""
    before = log.header.opened
    log.project()
    return [before, log.header.opened]


def read(log: MemoryPartition) -> History:
    """What a writer knows who has waited until everything was applied."""
    log.project()
    return log.history()


def test_a_later_intent_alone_in_the_log_does_not_become_the_owner(log: MemoryPartition) -> None:
    """The owner acts; the store is lost; b intends; cleaning leaves one record: it still owns the operation."""
    log.append(OP, intended("a"))
    log.project()
    assert owner(log) == "a"
    log.lose()
    log.append(OP, intended("b"))
    log.pay()
    assert (owner(log), log.operation().attempts["b"].state) == ("a", AttemptState.LOST)
    log.clean()
    assert [entry.offset for entry in log.log if entry] == [2]
    log.lose()
    log.project()
    assert owner(log) == "a"


def test_the_cleaner_may_not_pass_what_is_not_paid(log: MemoryPartition) -> None:
    """As long as b's record stands alone for the key, nothing below it is settled."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    assert log.header.settled_offset == 1
    log.clean()
    assert None not in log.log


def test_an_acknowledged_commit_survives_a_stale_reassertion(log: MemoryPartition) -> None:
    """The owner acts; b intends; it commits; what the projector re-asserted before it had seen the commit lands last."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    stale = reassertion(OP, log.documents[DocumentKey("ops", OP)])
    log.append(OP, DONE, log.history())
    log.append_record(stale)
    log.pay()
    log.clean()
    assert len([entry for entry in log.log if entry]) == 1
    log.lose()
    log.project()
    assert (log.operation().status, log.operation().result) == (Status.COMMITTED, b'"receipt"')


def test_a_lost_projection_does_not_look_like_an_empty_one(log: MemoryPartition) -> None:
    """An owner is confirmed; the store is lost and its position with it: until the horizon it is not open."""
    log.append(OP, intended("a"))
    log.project()
    log.lose()
    assert openings(log) == [False, True]
    assert owner(log) == "a"


def test_a_resent_intent_does_not_flip_the_owner(log: MemoryPartition) -> None:
    """a, b, a again; the first record is cleaned away: the history that was paid keeps a first."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.append(OP, intended("a"))
    log.pay()
    log.clean()
    log.lose()
    log.project()
    assert (owner(log), log.operation().attempts["a"].position) == ("a", Position(0, 0))


def test_during_a_rebuild_a_later_record_does_not_win_before_the_earlier_facts_are_read(log: MemoryPartition) -> None:
    """The commit of the first stands behind the intent of the second in the cleaned log: nobody is answered in between."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.append(OP, DONE, log.history()[:1])
    log.lose()
    log.project(2)
    assert not log.header.opened
    log.project()
    assert (owner(log), log.operation().status) == ("a", Status.COMMITTED)


def test_two_projectors_decide_the_same(log: MemoryPartition) -> None:
    """The old one pauses with its payment; a is sent again; a new one takes over; the zombie's record changes nothing."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    zombie = reassertion(OP, log.documents[DocumentKey("ops", OP)])
    log.append(OP, intended("a"))
    log.lose()
    log.pay()
    assert owner(log) == "a"
    log.append_record(zombie)
    log.pay()
    log.clean()
    log.lose()
    log.project()
    assert owner(log) == "a"


def test_a_horizon_that_was_too_early_answers_no_differently_later(log: MemoryPartition) -> None:
    """What owns the operation is in the history, not in who has caught up: reading on changes nothing."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.pay()
    log.append(OP, intended("c"))
    log.lose()
    log.project()
    first = owner(log)
    log.pay()
    assert first == owner(log) == "a"


def test_an_abandoned_attempt_that_acted_all_the_same_is_told(log: MemoryPartition) -> None:
    """An operator says absent, b is granted and acts, a was only paused and commits: an anomaly, and b's commit stands."""
    log.append(OP, intended("a"))
    log.append(OP, resolved("ABSENT", 0, by="operator", risk_accepted=True), read(log))
    log.append(OP, intended("b"), read(log))
    log.append(OP, committed("b"), read(log))
    log.append(OP, committed("a"), read(log))
    log.project()
    operation = log.operation()
    assert (operation.status, owner(log)) == (Status.COMMITTED, "b")
    assert [a.attempt_id for a in operation.anomalies] == ["a"]
    assert operation.needs_attention
    assert OP in log.collection("open")


def test_a_fence_that_cleaning_moved_behind_an_intent_judges_the_same(log: MemoryPartition) -> None:
    """fence, intent, higher fence; the first fence's record is gone: the verdict stands in the operation's history."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a", epoch=Position(0, 1)))
    log.append(FENCE, fenced(6), log.history(FENCE))
    log.pay()
    log.clean()
    assert log.log[0] is None
    log.lose()
    log.project()
    assert log.operation().attempts["a"].state is AttemptState.REJECTED
    log.append(OP, intended("b", branch_id="sibling"), log.history())
    log.project()
    assert owner(log) == "b"


def test_a_fenced_loser_does_not_free_or_take_anything(log: MemoryPartition) -> None:
    """Doubt about an attempt that never owned is no doubt about the operation."""
    log.append(OP, intended("a"))
    log.append(FENCE, fenced(5))
    log.append(OP, intended("b"), log.history())
    log.append(OP, effect("IN_DOUBT", "b"))
    log.pay()
    assert (owner(log), log.operation().status) == ("a", Status.OWNED)
