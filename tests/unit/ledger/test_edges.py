"""Edges of op ids and of the fold that a small change of the code would move unnoticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.ledger.kit import OP, at, committed, effect, failed, fold, intended, resolved

from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind
from fencepost.ledger.identity import canonical, derived_op_id, keyed_op_id
from fencepost.ledger.operations import VOIDED, AttemptState, Status, fold_operation, idempotency_key
from fencepost.ledger.positions import Position

LARGEST = 2**53 - 1


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integer_that_every_reader_holds_exactly(sign: int) -> None:
    """It stands as a number; the next one as tagged text, since a double would make two of them one."""
    assert canonical(sign * LARGEST) == str(sign * LARGEST).encode()
    assert canonical(sign * (LARGEST + 1)) == b'{"$int":"' + str(sign * (LARGEST + 1)).encode() + b'"}'


def test_a_derived_op_id_to_the_letter() -> None:
    """It is written into logs for ever: tool, 120 characters of the scope, 32 of the digest."""
    op_id = derived_op_id(scope="s" * 200, tool="billing.refund", identity={"order": "A1"})
    tool, scope, digest = op_id.split(":")
    assert (tool, len(scope), len(digest)) == ("billing.refund", 120, 32)
    again = derived_op_id(scope="s" * 200, tool="billing.refund", identity={"order": "A1"}, occurrence=2)
    assert again == f"{op_id}#2"
    other = derived_op_id(scope="s" * 199 + "x", tool="billing.refund", identity={"order": "A1"})
    assert other != op_id, "what is cut off of the scope is in the digest"


def test_a_key_with_a_number_sign_is_no_occurrence() -> None:
    """The first "a#2" and the second "a" are two operations."""
    assert keyed_op_id(tool="t", key="a") == "t:a"
    assert keyed_op_id(tool="t", key="a", occurrence=2) == "t:a#2"
    assert keyed_op_id(tool="t", key="a#2") == "t:a#2#1"


def test_the_first_intent_defines_the_operation() -> None:
    """Later ones of the same identity do not take its place."""
    operation = fold(intended("a"), intended("b"))
    assert operation.first is not None
    assert operation.first.attempt_id == "a"
    repeatable = {"effect_class": EffectClass.REPEATABLE}
    unconfirmed = fold(committed("a", **repeatable), committed("b", **repeatable))
    assert unconfirmed.first is not None
    assert unconfirmed.first.attempt_id == "a"


def test_the_same_anomaly_is_noted_once() -> None:
    """A repeat of the fact, written again since its outcome was unknown, tells nothing new and moves no version."""
    operation = fold(intended("a"), committed("a"), failed("a"), failed("a"))
    [anomaly] = operation.anomalies
    assert (anomaly.position, operation.version) == (Position(0, 2), "0.2")


def test_what_an_attempt_said_last_is_kept_with_it() -> None:
    """Failed, in doubt, or committed where another owns: the fact and its position."""
    doubted = fold(intended("a"), effect(EffectKind.IN_DOUBT, "a")).attempts["a"]
    assert doubted.outcome is not None
    assert (doubted.outcome.kind, doubted.outcome_position) == (EffectKind.IN_DOUBT, Position(0, 1))
    undone = fold(intended("a"), failed("a")).attempts["a"]
    assert undone.outcome is not None
    assert (undone.outcome.kind, undone.outcome_position) == (EffectKind.FAILED, Position(0, 1))
    stray = fold(intended("a"), intended("b"), committed("b")).attempts["b"]
    assert (stray.state, stray.outcome_position) == (AttemptState.COMMITTED, Position(0, 2))


def test_a_rejected_attempt_that_withdraws_stays_rejected() -> None:
    """Why it never owned is not overwritten by its saying so itself."""
    facts = at(intended("a"), effect(EffectKind.REJECTED, "a"), failed("a"))
    attempt = fold_operation(OP, facts).attempts["a"]
    assert attempt.state is AttemptState.REJECTED
    assert attempt.outcome is None


def test_an_operation_that_nobody_owns_can_be_resolved() -> None:
    """One of which only an unreadable record is known: there is no attempt to overrule."""
    operation = fold(effect(EffectKind.UNKNOWN), resolved("ABSENT", 0))
    assert (operation.status, operation.version) == (Status.FREE, "0.1")
    assert operation.resolutions[0].effective


def test_a_voided_key_is_not_used_again() -> None:
    """The provider would refuse it for ever: what comes after a probe that voided it gets another one, in this round."""
    absent = resolved("ABSENT", 0)
    plain, voided = fold(intended("a"), absent), fold(intended("a"), replace(absent, reason=VOIDED))
    assert (plain.voids, voided.voids) == (0, 1)
    assert plain.idempotency_key == idempotency_key(OP, 1)
    assert voided.idempotency_key == idempotency_key(OP, 1, 1) != plain.idempotency_key
    assert voided.attempts["a"].state is AttemptState.OVERRULED


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [((intended("a"), committed("a")), "COMMITTED"), ((intended("a"), failed("a")), "ABSENT")],
)
def test_a_resolution_that_affirms_moves_the_version(facts: tuple[EffectFact, ...], outcome: str) -> None:
    """Whoever decided on the version before it has not seen it."""
    operation = fold(*facts, resolved(outcome, 1), resolved(outcome, 1))
    assert [resolution.effective for resolution in operation.resolutions] == [True, False]
    assert (operation.version, operation.last_resolution) == ("0.2", Position(0, 2))
