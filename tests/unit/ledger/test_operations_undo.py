"""Undoing one operation, by the rules of the fold: begun, taken over, withdrawn, done, settled by somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from unit.ledger.kit import OP, committed, effect, failed, fold, intended, resolved

from fencepost.ledger.facts import EffectClass, EffectFact, ResultForm
from fencepost.ledger.operations import Status

DONE = (intended("a"), committed("a"))  # stands at 0.1


def undoing(attempt: str, version: int, plan: str = "p", **values: Any) -> EffectFact:
    return effect("COMPENSATING", attempt, version=f"0.{version}", plan_digest=plan, **{"by": "ann", **values})


def withdrawn(attempt: str, **values: Any) -> EffectFact:
    return effect("COMPENSATION_WITHDRAWN", attempt, plan_digest="p", **values)


def undone(attempt: str = "u", **values: Any) -> EffectFact:
    return effect("COMPENSATED", attempt, plan_digest="p", **values)


def adopted(agent: str, branch: str = "main", **values: Any) -> EffectFact:
    return effect("ADOPTED", f"{agent}-{branch}", agent_id=agent, branch_id=branch, **values)


def test_an_undo_begins_on_the_version_that_it_names() -> None:
    """The effect still stands, with its result, and the version moves: nobody else's undo can begin on the old one."""
    op = fold(*DONE, undoing("u", 1))
    assert (op.status, op.version, op.stands) == (Status.COMPENSATING, "0.2", True)
    assert op.undoing is not None
    assert [(u.fact.attempt_id, u.effective) for u in op.undoings] == [("u", True)]
    late = fold(*DONE, undoing("u", 1), undoing("v", 1, "q"))
    assert [u.effective for u in late.undoings] == [True, False]
    assert late.undoing is not None
    assert late.undoing.attempt_id == "u"


@pytest.mark.parametrize(
    "facts",
    [
        (intended("a"), undoing("u", 0)),
        (intended("a"), effect("IN_DOUBT", "a"), undoing("u", 1)),
        (intended("a"), failed("a"), undoing("u", 1)),
        (*DONE, undoing("u", 0)),
        (*DONE, undoing("u", 1, round=2)),
        (*DONE, adopted("other"), undoing("u", 1)),
        (*DONE, undone(), undoing("u", 2)),
    ],
)
def test_an_undo_does_not_begin_otherwise(facts: tuple[EffectFact, ...]) -> None:
    """On what is not committed, on another version or round, or when somebody came to rely on the effect meanwhile."""
    before, after = fold(*facts[:-1]), fold(*facts)
    assert (after.status, after.version, after.round) == (before.status, before.version, before.round)
    assert [u.effective for u in after.undoings] == [False]
    assert after.undoing is None


def test_nobody_comes_to_rely_on_what_is_being_undone() -> None:
    """An adoption after the beginning of an undo adopts nothing, and does not move the version."""
    op = fold(*DONE, undoing("u", 1), adopted("other"))
    assert (op.adoptions, op.version, op.status) == ([], "0.2", Status.COMPENSATING)


def test_an_intent_does_not_own_what_is_being_undone() -> None:
    """Not in the round that is being undone, nor in the next one, which has not begun."""
    op = fold(*DONE, undoing("u", 1), intended("b"), intended("c", round=2))
    assert op.status is Status.COMPENSATING
    assert op.owner is not None
    assert op.owner.attempt_id == "a"
    assert fold(*DONE, undoing("u", 1), undone(), intended("d", round=2)).status is Status.OWNED


def test_a_withdrawn_undo_leaves_the_effect_as_it_was() -> None:
    """At a version of its own: what was looked at before the undo is outdated."""
    op = fold(*DONE, undoing("u", 1), withdrawn("u"))
    assert (op.status, op.version, op.undoing, op.round) == (Status.COMMITTED, "0.3", None, 1)
    again = fold(*DONE, undoing("u", 1), withdrawn("u"), undoing("v", 3))
    assert again.status is Status.COMPENSATING
    stale = fold(*DONE, undoing("u", 1), withdrawn("u"), undoing("v", 1))
    assert stale.status is Status.COMMITTED


@pytest.mark.parametrize("facts", [(withdrawn("u"),), (undoing("u", 1), withdrawn("x"))])
def test_only_the_undo_that_is_under_way_can_be_withdrawn(facts: tuple[EffectFact, ...]) -> None:
    """A withdrawal that names another one is nothing."""
    assert fold(*DONE, *facts).version == fold(*DONE, *facts[:-1]).version


def test_another_run_of_the_plan_takes_over() -> None:
    """What the former run withdraws afterwards is nothing; another plan cannot take over."""
    op = fold(*DONE, undoing("u", 1), undoing("v", 2), withdrawn("u"))
    assert (op.status, op.version) == (Status.COMPENSATING, "0.3")
    assert op.undoing is not None
    assert op.undoing.attempt_id == "v"
    assert [u.effective for u in op.undoings] == [True, True]
    other = fold(*DONE, undoing("u", 1), undoing("v", 2, "q"))
    assert [u.effective for u in other.undoings] == [True, False]
    unnamed = fold(*DONE, undoing("u", 1, ""), undoing("v", 2, ""))
    assert [u.effective for u in unnamed.undoings] == [True, False]
    outdated = fold(*DONE, undoing("u", 1), undoing("v", 1))
    assert [u.effective for u in outdated.undoings] == [True, False]


def test_a_repeat_of_an_undos_fact_is_nothing() -> None:
    """The same attempt begins once, and ends its round once."""
    op = fold(*DONE, undoing("u", 1), undoing("u", 1))
    assert (len(op.undoings), op.version) == (1, "0.2")
    op = fold(*DONE, undoing("u", 1), undone(losses=("mail",)), undone(losses=("mail",)))
    assert (op.round, op.losses, len(op.compensations)) == (2, ("mail",), 1)


def test_the_end_of_an_undo_ends_the_round() -> None:
    """The operation is free, for intents of the next round only, and what was lost stays known."""
    op = fold(*DONE, undoing("u", 1), undone(losses=("mail:A1",)))
    assert (op.status, op.round, op.undoing, op.settled, op.result) == (Status.FREE, 2, None, None, None)
    assert op.losses == ("mail:A1",)
    second = fold(*DONE, undoing("u", 1), undone(losses=("mail:A1",)), intended("b", round=2), committed("b", round=2))
    assert (second.status, second.losses) == (Status.COMMITTED, ("mail:A1",))


def test_an_operator_settles_an_undo_that_was_left_in_the_middle() -> None:
    """COMMITTED: it changed nothing; COMPENSATED: it is undone. Each only at the version that was looked at."""
    begun = (*DONE, undoing("u", 1))
    op = fold(*begun, resolved("COMMITTED", 2))
    assert (op.status, op.undoing, op.round) == (Status.COMMITTED, None, 1)
    assert op.settled == DONE[1]
    op = fold(*begun, resolved("COMPENSATED", 2, losses=("mail",)))
    assert (op.status, op.round, op.losses) == (Status.FREE, 2, ("mail",))
    for outcome, version in (("COMMITTED", 1), ("COMPENSATED", 1), ("ABSENT", 2)):
        op = fold(*begun, resolved(outcome, version))
        assert (op.status, op.resolutions[-1].effective) == (Status.COMPENSATING, False)


SEALED = {"manifest": b"{}", "manifest_digest": "d"}


def test_a_manifest_counts_while_its_effect_stands() -> None:
    """Only as sealed: the path of an intent alone undoes nothing."""
    assert fold(intended("a", manifest=b"{}"), committed("a")).sealed_manifest is None
    sealed = (intended("a", manifest=b"{}"), committed("a", **SEALED))
    assert fold(*sealed).sealed_manifest == b"{}"
    assert fold(*sealed, undoing("u", 1)).sealed_manifest == b"{}"
    assert fold(*sealed, undoing("u", 1), undone()).sealed_manifest is None


def test_a_resolution_can_seal_and_a_late_commit_does_not_take_that_away() -> None:
    """The way back that a probe or operator has sealed stays, whatever the owner tells later, unless it seals itself."""
    resolution = resolved("COMMITTED", 0, **SEALED)
    assert fold(intended("a"), resolution).sealed_manifest == b"{}"
    late = committed("a", result=b"1", result_form=ResultForm.JSON)
    op = fold(intended("a"), resolution, late)
    assert (op.status, op.sealed_manifest) == (Status.COMMITTED, b"{}")
    own = committed("a", result=b"1", result_form=ResultForm.JSON, manifest=b"[]", manifest_digest="e")
    op = fold(intended("a"), resolution, own)
    assert (op.sealed_manifest, op.result) == (b"[]", b"1")


def test_a_commit_that_was_told_while_nothing_could_be_decided() -> None:
    """A resolution of an unsafe operation takes the owner's own commit, unless that would lose a sealed way back."""
    told = (intended("a"), effect("UNKNOWN", "x"), committed("a", **SEALED))
    assert fold(*told, resolved("COMMITTED", 2)).sealed_manifest == b"{}"
    bare = (intended("a"), effect("UNKNOWN", "x"), committed("a"))
    assert fold(*bare, resolved("COMMITTED", 2, **SEALED)).sealed_manifest == b"{}"


def test_an_idempotent_effect_is_undone_like_any_other() -> None:
    """What is not order-safe goes through the same states."""
    values = {"effect_class": EffectClass.IDEMPOTENT}
    op = fold(intended("a", **values), committed("a", **values), undoing("u", 1))
    assert op.status is Status.COMPENSATING
    assert op.op_id == OP


def test_a_resolution_of_an_unsafe_operation_ends_the_undo_that_it_was_in() -> None:
    """Committed, and nobody is undoing it; what that undo withdraws afterwards moves nothing."""
    begun = (*DONE, undoing("u", 1), effect("UNKNOWN", "x"), resolved("COMMITTED", 3))
    op = fold(*begun)
    assert (op.status, op.undoing, op.version) == (Status.COMMITTED, None, "0.4")
    assert fold(*begun, withdrawn("u")).version == "0.4"
