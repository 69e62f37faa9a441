"""What the guard makes of operations that cannot be read, and of effects that were never granted."""

from __future__ import annotations

import pytest
from unit.ledger.guard_kit import BOTH, evidence, here, kinds, seen
from unit.ledger.kit import (
    OP,
    committed,
    effect,
    failed,
    intended,
    point,
    resolved,
)

from fencepost.ledger.facts import EffectClass
from fencepost.ledger.guard import decide
from fencepost.ledger.verdicts import Policy, ReasonKind


@BOTH
@pytest.mark.parametrize("attempt_by", ["agent", "other"])
def test_an_operation_that_cannot_be_read_counts_for_all_who_had_to_do_with_it(policy: Policy, attempt_by: str) -> None:
    """Also where no intent of this agent can be seen: the fact that cannot be read may be its own."""
    unreadable = effect("UNKNOWN", "x", agent_id="agent")
    for facts in ((unreadable,), (intended("b", agent_id=attempt_by), unreadable)):
        assert kinds(decide(evidence(seen(*facts)), policy)) == {ReasonKind.EFFECT_UNSAFE}
    harmless = seen(intended("a", effect_class=EffectClass.READ), unreadable)
    assert kinds(decide(evidence(harmless), policy)) == {ReasonKind.EFFECT_UNSAFE}


def test_an_operation_that_was_resolved_as_done_without_an_owner_counts() -> None:
    """Nobody knows whose it was, so it is everybody's who had to do with it."""
    facts = (here(intended, "a", 6), here(failed, "a", 7), effect("UNKNOWN", "x"), resolved("COMMITTED", 2))
    assert kinds(decide(evidence(seen(*facts)), Policy.STRICT)) == {ReasonKind.EFFECT_NOT_KNOWN}


STRAY = (
    here(intended, "a", 6),
    resolved("ABSENT", 0),
    intended("b", agent_id="other"),
    committed("b", agent_id="other"),
    here(committed, "a", 7),
)
"""Declared absent, done by another agent, and then the first one's late commit arrives."""


@BOTH
@pytest.mark.parametrize("count", [3, 4])
def test_a_late_commit_on_what_another_owns_refuses_until_it_is_looked_at(policy: Policy, count: int) -> None:
    """This agent's effect happened too, although the operation is not its own."""
    facts = (*STRAY[:count], STRAY[4])
    verdict = decide(evidence(seen(*facts)), policy)
    assert kinds(verdict) == {ReasonKind.EFFECT_UNSAFE}
    assert "possible double execution" in verdict.reasons[0].text


@BOTH
def test_a_late_commit_that_is_known_or_acknowledged_does_not(policy: Policy) -> None:
    """The checkpoint stands behind it, or an operator has seen it; and it was not another agent's."""
    assert decide(evidence(seen(*STRAY), seq=7), policy).authorised
    acknowledged = (*STRAY, resolved("COMMITTED", 4))
    assert decide(evidence(seen(*acknowledged)), policy).authorised
    theirs = (intended("a", agent_id="x"), intended("b", agent_id="y"), committed("b", agent_id="y"))
    assert decide(evidence(seen(*theirs)), policy).authorised


@BOTH
def test_a_late_commit_counts_although_the_operation_is_harmless_or_absorbed(policy: Policy) -> None:
    """It was of another identity; what was absorbed is the other's."""
    harmless = {"effect_class": EffectClass.READ}
    stray = (
        committed("b", agent_id="other", **harmless),
        here(committed, "a", 7, effect_class=EffectClass.IRREVERSIBLE),
    )
    assert kinds(decide(evidence(seen(*stray)), policy)) == {ReasonKind.EFFECT_UNSAFE}
    absorbed = {(OP, 1): [point(0, 3)]}
    assert kinds(decide(evidence(seen(*STRAY), absorbed=absorbed), policy)) == {ReasonKind.EFFECT_UNSAFE}
