"""The life of one operation: what each fact does in each state, by the rules of the fold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.ledger.kit import OP, at, committed, effect, failed, fold, intended, resolved

from fencepost.ledger.facts import EffectClass, EffectKind, ResultForm
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Status, idempotency_key, skips_confirmation
from fencepost.ledger.positions import Position


def test_without_facts_an_operation_is_free() -> None:
    """Nothing is known, nothing is owned, and the version is empty."""
    op = fold_operation(OP, ())
    assert (op.status, op.round, op.owner, op.version, op.tool) == (Status.FREE, 1, None, "", "")
    assert op.effect_class is EffectClass.UNKNOWN
    assert not op.harmless


def test_the_first_intent_on_a_free_operation_owns_it() -> None:
    """The one that stands first in the log, whoever it is."""
    op = fold(intended("b"), intended("a"))
    assert op.status is Status.OWNED
    assert op.owner is not None
    assert op.owner.attempt_id == "b"
    assert op.version == "0.0"


def test_an_intent_on_an_owned_or_committed_operation_is_absorbed() -> None:
    """It is kept as evidence and changes nothing."""
    owned = fold(intended("a"), intended("b"))
    done = fold(intended("a"), committed("a"), intended("b"))
    for op, status, version in ((owned, Status.OWNED, "0.0"), (done, Status.COMMITTED, "0.1")):
        assert op.attempts["b"].state is AttemptState.LOST
        assert (op.status, op.version) == (status, version)
        assert not op.anomalies


def test_a_definite_failure_frees_the_operation_for_the_next_intent() -> None:
    """FAILED says that the effect certainly did not happen."""
    op = fold(intended("a"), failed("a"))
    assert (op.status, op.owner, op.version) == (Status.FREE, None, "0.1")
    op = fold(intended("a"), failed("a"), intended("b"))
    assert op.owner is not None
    assert op.owner.attempt_id == "b"
    assert op.attempts["a"].state is AttemptState.FAILED


def test_a_loser_that_failed_does_not_free_the_operation() -> None:
    """Only the owner can say that nothing happened."""
    op = fold(intended("a"), intended("b"), failed("b"))
    assert op.status is Status.OWNED
    assert op.attempts["b"].state is AttemptState.FAILED


def test_an_intent_that_lost_does_not_become_the_owner_later() -> None:
    """An attempt claims once: when the owner fails, the op is free, and not the loser's."""
    op = fold(intended("a"), intended("b"), failed("a"))
    assert op.status is Status.FREE
    op = fold(intended("a"), intended("b"), failed("a"), intended("b"))
    assert op.status is Status.FREE
    assert op.attempts["b"].state is AttemptState.LOST


def test_the_owner_settles_it_with_its_result() -> None:
    """COMMITTED by the owner: the recorded result is the operation's."""
    done = committed("a", result=b'"ok"', result_form=ResultForm.JSON)
    op = fold(intended("a"), done)
    assert (op.status, op.result, op.result_form) == (Status.COMMITTED, b'"ok"', ResultForm.JSON)
    assert (op.settled, op.settled_at) == (done, Position(0, 1))
    assert not op.flagged


def test_a_result_is_given_only_while_the_operation_is_committed() -> None:
    """After the round was undone, the old result does not come back."""
    done = committed("a", result=b"1", result_form=ResultForm.JSON)
    op = fold(intended("a"), done, effect("COMPENSATED", "u", round=1))
    assert (op.result, op.result_form) == (None, ResultForm.UNKNOWN)


def test_in_doubt_is_terminal_without_help() -> None:
    """Neither an intent nor time ends it; the owner's own outcome does."""
    doubt = effect("IN_DOUBT", "a")
    op = fold(intended("a"), doubt, intended("b"))
    assert (op.status, op.version) == (Status.IN_DOUBT, "0.1")
    assert op.owner is not None
    assert (op.owner.attempt_id, op.owner.state) == ("a", AttemptState.IN_DOUBT)
    assert fold(intended("a"), doubt, committed("a")).status is Status.COMMITTED
    assert fold(intended("a"), doubt, failed("a")).status is Status.FREE


@pytest.mark.parametrize("who", ["b", "stranger"])
def test_only_the_owner_can_put_it_in_doubt(who: str) -> None:
    """IN_DOUBT of a loser or of nobody changes nothing."""
    op = fold(intended("a"), intended("b"), effect("IN_DOUBT", who))
    assert op.status is Status.OWNED


def test_in_doubt_after_the_commit_changes_nothing() -> None:
    """A commit is not taken back by a later doubt."""
    assert fold(intended("a"), committed("a"), effect("IN_DOUBT", "a")).status is Status.COMMITTED


@pytest.mark.parametrize("kind", ["INTENDED", "COMMITTED", "FAILED", "IN_DOUBT"])
def test_a_repeat_of_an_attempts_fact_is_nothing(kind: str) -> None:
    """A publish that is retried writes the same fact twice; the operation is the same."""
    before = [intended("a")] if kind == "INTENDED" else [intended("a"), effect(kind, "a")]
    once, twice = fold(*before), fold(*before, before[-1])
    assert (once.status, once.version, once.settled_at) == (twice.status, twice.version, twice.settled_at)
    assert twice.anomalies == []


def test_a_rejected_intent_never_owns_wherever_the_verdict_stands() -> None:
    """The verdict holds for the attempt, also when it was written much later."""
    verdict = effect("REJECTED", "a")
    for op in (fold(intended("a"), intended("b"), verdict), fold(verdict, intended("a"), intended("b"))):
        assert op.attempts["a"].state is AttemptState.REJECTED
        assert op.owner is not None
        assert op.owner.attempt_id == "b"


def test_a_rejected_intent_is_told_as_rejected_whatever_the_status() -> None:
    """Its session must learn that it is fenced, and not that somebody was faster."""
    op = fold(intended("a"), intended("b"), effect("REJECTED", "b"))
    assert (op.attempts["b"].state, op.status) == (AttemptState.REJECTED, Status.OWNED)


def test_a_rejected_intent_does_not_define_the_operation() -> None:
    """What never counted cannot make a later, different call a conflict."""
    op = fold(intended("a", identity_digest="other"), effect("REJECTED", "a"), intended("b"))
    assert op.first is not None
    assert op.first.identity_digest == "same"
    assert op.owner is not None


@pytest.mark.parametrize(
    "other",
    [
        {"tool": "bank.refund"},
        {"identity_digest": "different"},
        {"effect_class": EffectClass.IDEMPOTENT},
        {"effect_class": EffectClass.IDEMPOTENT, "order_safe": True},
    ],
)
def test_another_identity_tool_or_class_is_a_conflict(other: dict[str, object]) -> None:
    """One op, one tool, one class, one identity: what differs never owns, also when the op is free."""
    op = fold(intended("a"), failed("a"), intended("b", **other))
    assert op.attempts["b"].state is AttemptState.CONFLICT
    assert op.status is Status.FREE


def test_reworded_content_is_a_variant() -> None:
    """Content arguments may differ from attempt to attempt; each wording is kept once, in log order."""
    op = fold(intended("a", content_digest="x"), intended("b", content_digest="y"), intended("c", content_digest="x"))
    assert op.variants == ("x", "y")
    assert op.attempts["b"].state is AttemptState.LOST


@pytest.mark.parametrize("kind", ["UNKNOWN", "HORIZON", "FENCED"])
def test_a_fact_of_an_unknown_kind_makes_the_operation_unsafe(kind: str) -> None:
    """Never ignored: nobody may own it any more, until somebody resolves it."""
    op = fold(effect(kind, "x"), intended("a"))
    assert (op.status, op.owner, op.version) == (Status.UNSAFE, None, "0.0")
    op = fold(intended("a"), effect(kind, "x"), failed("a"))
    assert (op.status, op.version) == (Status.UNSAFE, "0.2")  # who resolves it must have seen that it failed


def test_a_commit_of_the_owner_leaves_an_unsafe_operation_unsafe() -> None:
    """The unreadable fact may say more; only a resolution ends it."""
    op = fold(intended("a"), effect("UNKNOWN", "x"), committed("a"))
    assert op.status is Status.UNSAFE
    assert op.attempts["a"].state is AttemptState.COMMITTED


def test_compensation_ends_the_round_and_the_next_takes_only_intents_that_name_it() -> None:
    """A stale sibling cannot fire again what was undone; who names the new round can."""
    undone = (intended("a"), committed("a"), effect("COMPENSATED", "u", round=1))
    op = fold(*undone)
    assert (op.status, op.round, op.owner, op.settled) == (Status.FREE, 2, None, None)
    assert [fact.attempt_id for fact in op.compensations] == ["u"]
    stale = fold(*undone, intended("b", round=1))
    assert (stale.status, stale.attempts["b"].state) == (Status.FREE, AttemptState.WRONG_ROUND)
    fresh = fold(*undone, intended("b", round=2))
    assert fresh.owner is not None
    assert fresh.owner.attempt_id == "b"


def test_an_intent_that_names_a_coming_round_does_not_own_the_present_one() -> None:
    """The round is part of what is intended."""
    op = fold(intended("a", round=2))
    assert (op.status, op.attempts["a"].state) == (Status.FREE, AttemptState.WRONG_ROUND)


def test_compensation_counts_only_of_the_committed_round() -> None:
    """A second undo of the same round, or an undo of nothing, ends nothing."""
    undo = effect("COMPENSATED", "u", round=1)
    assert fold(intended("a"), undo).round == 1
    assert fold(intended("a"), committed("a"), undo, undo).round == 2
    again = fold(intended("a"), committed("a"), undo, intended("b", round=2), committed("b", round=2), undo)
    assert (again.round, again.status) == (2, Status.COMMITTED)


def test_the_idempotency_key_is_of_the_operation_and_its_round() -> None:
    """The same in every attempt and branch; another once the round is over."""
    first = fold(intended("a"))
    second = fold(intended("a"), committed("a"), effect("COMPENSATED", "u"))
    assert first.idempotency_key == fold(intended("b", branch_id="other")).idempotency_key == idempotency_key(OP, 1)
    assert second.idempotency_key == idempotency_key(OP, 2) != first.idempotency_key


@pytest.mark.parametrize("effect_class", list(EffectClass))
@pytest.mark.parametrize("order_safe", [True, False])
def test_which_classes_may_skip_confirmation(effect_class: EffectClass, order_safe: bool) -> None:
    """Reads, repeatable effects, and idempotent ones that are declared safe in any order; nothing else."""
    allowed = effect_class in {EffectClass.READ, EffectClass.REPEATABLE} or (
        effect_class is EffectClass.IDEMPOTENT and order_safe
    )
    assert skips_confirmation(effect_class, order_safe=order_safe) is allowed
    assert fold(intended("a", effect_class=effect_class, order_safe=order_safe)).harmless is allowed


def test_facts_decide_in_log_order_across_generations() -> None:
    """Facts of a former topic come first, whatever their offsets."""
    old = at(intended("old"), start=900, generation=0)
    new = at(intended("new"), start=3, generation=1)
    op = fold_operation(OP, new + old)
    assert op.owner is not None
    assert op.owner.attempt_id == "old"


def test_every_kind_of_fact_has_a_rule_or_is_unsafe() -> None:
    """Each kind alone on an operation: total, and only the unknown ones make it unsafe."""
    harmless = {EffectKind.INTENDED, EffectKind.COMMITTED, EffectKind.FAILED, EffectKind.IN_DOUBT}
    harmless |= {EffectKind.COMPENSATED, EffectKind.REJECTED, EffectKind.RESOLVED}
    harmless |= {EffectKind.ADOPTED, EffectKind.COMPENSATING, EffectKind.COMPENSATION_WITHDRAWN}
    harmless |= {EffectKind.SUMMARISED}
    for kind in EffectKind:
        op = fold(replace(resolved("ABSENT", "nowhere"), kind=kind))
        assert (op.status is Status.UNSAFE) == (kind not in harmless), kind
