"""What is said of an operation on which an undo was begun, and of one that cannot be read."""

from __future__ import annotations

import pytest
from unit.ledger.kit import OP, MemoryPartition, at, committed, effect, fold, intended, resolved

from fencepost.ledger.facts import EffectFact
from fencepost.ledger.operations import Status

DONE = (intended("a"), committed("a"))  # stands at 0.1
UNREADABLE = effect("UNKNOWN", "x")


def undoing(attempt: str, version: int) -> EffectFact:
    return effect("COMPENSATING", attempt, version=f"0.{version}", plan_digest="p", by="ann")


def undone(attempt: str = "u") -> EffectFact:
    return effect("COMPENSATED", attempt, plan_digest="p")


def withdrawn(attempt: str = "u") -> EffectFact:
    return effect("COMPENSATION_WITHDRAWN", attempt, plan_digest="p")


@pytest.mark.parametrize("facts", [(*DONE, UNREADABLE), (*DONE, undoing("u", 1), UNREADABLE)])
def test_an_unsafe_operation_can_be_resolved_as_undone(facts: tuple[EffectFact, ...]) -> None:
    """It ends the round, with what was lost, at the version that was looked at and no other."""
    at_version = len(facts) - 1
    op = fold(*facts, resolved("COMPENSATED", at_version, losses=("mail",)))
    assert (op.status, op.round, op.losses, op.undoing) == (Status.FREE, 2, ("mail",), None)
    stale = fold(*facts, resolved("COMPENSATED", at_version - 1))
    assert (stale.status, stale.round) == (Status.UNSAFE, 1)
    assert fold(*facts, resolved("COMPENSATED", at_version), intended("b")).status is Status.FREE
    assert fold(*facts, resolved("COMPENSATED", at_version), intended("b", round=2)).status is Status.OWNED


def test_who_did_not_see_the_end_of_an_undo_does_not_make_it_stand() -> None:
    """The undo ends while nobody can read the operation: that moves the version, and a word on the former is nothing."""
    facts = (*DONE, undoing("u", 1), UNREADABLE, undone())
    assert (fold(*facts).status, fold(*facts).round) == (Status.UNSAFE, 1)
    assert fold(*facts, resolved("COMMITTED", 3)).status is Status.UNSAFE
    assert fold(*facts, resolved("COMPENSATED", 4)).round == 2


@pytest.mark.parametrize("fact", [withdrawn(), undoing("v", 3)])
def test_no_undo_makes_an_unsafe_operation_safe(fact: EffectFact) -> None:
    """Neither its withdrawal nor a further run of its plan: somebody has to look."""
    assert fold(*DONE, undoing("u", 1), UNREADABLE, fact).status is Status.UNSAFE


def test_an_unsafe_operation_stays_one_through_a_withdrawal_and_a_rebuild() -> None:
    """A record that was set aside, then the withdrawal, then another projection of the same log: still unsafe."""
    log = MemoryPartition()
    log.append(OP, DONE[0])
    log.append(OP, DONE[1], at(DONE[0]))
    log.project()
    log.append(OP, undoing("u", 1), log.history())
    log.project()
    log.append_raw(OP, "undecodable")
    log.project()
    log.append(OP, withdrawn(), log.history())
    log.pay()
    assert log.operation().status is Status.UNSAFE
    log.clean()
    log.lose()
    log.project()
    log.pay()
    assert log.operation().status is Status.UNSAFE
    assert log.collection("open")
