"""Edges of op ids, of the fold, and of the guard that a small change of the code would move unnoticed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from unit.ledger.guard_kit import done, evidence, here, kinds, seen
from unit.ledger.kit import OP, at, committed, effect, failed, fold, intended, point, resolved

from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, ResultForm
from fencepost.ledger.guard import SeenOperation, decide, unknown_effects
from fencepost.ledger.identity import canonical, derived_op_id, keyed_op_id
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import VOIDED, AttemptState, Status, idempotency_key
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind, VerdictKind
from fencepost.ledger.watermarks import Watermark

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


def test_a_key_that_the_provider_refuses_is_not_used_again() -> None:
    """Its owner has learned that it is void, whoever voided it: nothing can happen under it any more."""
    plain, voided = fold(intended("a"), failed("a")), fold(intended("a"), failed("a", reason=VOIDED))
    assert (plain.status, plain.voids) == (voided.status, 0) == (Status.FREE, 0)
    assert voided.idempotency_key == idempotency_key(OP, 1, 1) != plain.idempotency_key
    late = fold(intended("a"), resolved("ABSENT", 0), intended("b"), failed("a", reason=VOIDED))
    assert late.voids == 0  # of a key that "b" may have used since: only its owner says what became of that
    stands = fold(intended("a"), resolved("COMMITTED", 0), failed("a", reason=VOIDED))
    assert (stands.status, stands.voids, stands.needs_attention) == (Status.COMMITTED, 0, True)
    unsafe = fold(intended("a"), effect("UNKNOWN"), failed("a", reason=VOIDED))
    assert (unsafe.status, unsafe.voids) == (Status.UNSAFE, 1)


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [((intended("a"), committed("a")), "COMMITTED"), ((intended("a"), failed("a")), "ABSENT")],
)
def test_a_resolution_that_affirms_moves_the_version(facts: tuple[EffectFact, ...], outcome: str) -> None:
    """Whoever decided on the version before it has not seen it."""
    operation = fold(*facts, resolved(outcome, 1), resolved(outcome, 1))
    assert [resolution.effective for resolution in operation.resolutions] == [True, False]
    assert (operation.version, operation.last_resolution) == ("0.2", Position(0, 2))


# -- the guard -----------------------------------------------------------------------------


@pytest.mark.parametrize("registered", [True, False])
def test_a_damaged_token_in_the_restored_state_is_told_as_such(registered: bool) -> None:
    """Not as a checkpoint that is not registered: that would send the caller looking for the wrong thing."""
    verdict = decide(
        evidence(done(9), mark=None, restored_problem="a damaged watermark token", registered=registered), Policy.GATED
    )
    assert ReasonKind.WATERMARK_UNREADABLE in kinds(verdict)
    assert ReasonKind.CHECKPOINT_NOT_REGISTERED not in kinds(verdict)
    assert "a damaged watermark token" in verdict.reasons[0].text


@pytest.mark.parametrize("open_as", ["owned", "in doubt"])
def test_a_harmless_effect_that_is_open_does_not_hold_up_others(open_as: str) -> None:
    """Whether it happens once more does not matter; the effect beside it is crossed by a gated rollback."""
    reading = here(intended, "r", 7, op_id="read", effect_class=EffectClass.READ)
    doubt = here(partial(effect, EffectKind.IN_DOUBT), "r", 8, op_id="read", effect_class=EffectClass.READ)
    harmless = SeenOperation(fold_operation("read", at(*((reading,) if open_as == "owned" else (reading, doubt)))))
    assert decide(evidence(done(9), harmless), Policy.GATED).kind is VerdictKind.PROCEED_GATED
    assert kinds(decide(evidence(done(9), harmless), Policy.STRICT)) == {ReasonKind.EFFECT_NOT_KNOWN}


def test_effects_are_named_in_the_order_in_which_they_were_done() -> None:
    """By the fact that settled them, else by the intent that owns them: not by when somebody first meant to."""
    late = SeenOperation(fold_operation("late", at(*op_facts("late", intent=7, commit=12))))
    early = SeenOperation(fold_operation("early", at(*op_facts("early", intent=8, commit=9))))
    owned = SeenOperation(fold_operation("owned", at(here(intended, "a", 11, op_id="owned"))))
    order = [s.operation.op_id for s in unknown_effects(evidence(late, owned, early))]
    assert order == ["early", "owned", "late"]


def op_facts(op_id: str, *, intent: int, commit: int) -> tuple[EffectFact, EffectFact]:
    return here(intended, "a", intent, op_id=op_id), here(committed, "a", commit, op_id=op_id)


@pytest.mark.parametrize(
    "facts",
    [
        (),
        (here(intended, "a", 7), here(failed, "a", 8)),
        tuple(here(f, "a", n, effect_class=EffectClass.READ) for f, n in ((intended, 7), (committed, 8))),
    ],
    ids=["nothing known", "free", "a committed read"],
)
def test_a_record_that_was_set_aside_counts_whatever_else_is_known(facts: tuple[EffectFact, ...]) -> None:
    """What it said may have been an effect that is not harmless at all."""
    one = evidence(seen(*facts, unsafe="the record at effects/0 offset 3 was set aside"))
    for policy in Policy:
        assert kinds(decide(one, policy)) == {ReasonKind.EFFECT_UNSAFE}


def test_a_known_effect_that_became_unsafe_is_not_known_any_more() -> None:
    """What the checkpoint knows of it is not all that there is."""
    facts = (here(intended, "a", 2), here(committed, "a", 3), effect(EffectKind.UNKNOWN))
    assert kinds(decide(evidence(seen(*facts)), Policy.STRICT)) == {ReasonKind.EFFECT_UNSAFE}
    absorbed = {(OP, 1): [point(0, 3)]}
    assert kinds(decide(evidence(seen(*facts), absorbed=absorbed), Policy.GATED)) == {ReasonKind.EFFECT_UNSAFE}


def test_a_watermark_of_another_ledger_says_nothing_else() -> None:
    """Its numbers are those of other sessions: that they differ from the registered ones is no second reason."""
    other = Watermark("another ledger", "agent", "main", Position(0, 0), 49)
    verdict = decide(evidence(claimed=other), Policy.STRICT)
    assert [reason.kind for reason in verdict.reasons] == [ReasonKind.WATERMARK_OF_ANOTHER_LEDGER]


def test_a_blocker_is_named_with_its_number_and_branch() -> None:
    """Settled, owned, or free and unsafe: by the fact that tells most, and of this agent's sessions alone."""
    cases = {
        9: seen(here(intended, "a", 9)),
        10: seen(here(intended, "a", 9), here(committed, "a", 10)),
        7: seen(here(intended, "a", 7), here(failed, "a", 8), unsafe="set aside"),
        0: seen(here(intended, "a", 9, agent_id="other"), unsafe="set aside"),
    }
    for number, one in cases.items():
        [reason] = decide(evidence(one), Policy.STRICT).reasons
        assert reason.effect is not None
        assert (reason.effect.seq, reason.effect.branch_id) == (number, "main")


@pytest.mark.parametrize(("committed_at", "known"), [(5, True), (9, False)])
def test_a_stray_effect_is_known_by_its_commit(committed_at: int, known: bool) -> None:
    """It happened when it was committed: a checkpoint that knows only its intent does not know it."""
    one = seen(
        intended("other", agent_id="other"),
        here(intended, "a", 4),
        here(committed, "a", committed_at),
    )
    verdict = decide(evidence(one), Policy.STRICT)
    assert kinds(verdict) == (set() if known else {ReasonKind.EFFECT_UNSAFE})


def test_a_session_that_the_ledger_does_not_know_has_written_nothing() -> None:
    """Not even its first number."""
    one = evidence(seq=1, written={})
    assert kinds(decide(one, Policy.STRICT)) == {ReasonKind.WATERMARK_AHEAD}
    assert decide(evidence(seq=0, written={}), Policy.STRICT).authorised


def test_what_is_committed_is_not_in_doubt_because_its_session_is_over() -> None:
    """The fence of its owner says that nobody could say any more: it was said."""
    one = evidence(seen(here(intended, "a", 8), here(committed, "a", 9), owner_ended=True))
    assert kinds(decide(one, Policy.STRICT)) == {ReasonKind.EFFECT_NOT_KNOWN}
    assert decide(one, Policy.GATED).kind is VerdictKind.PROCEED_GATED


# -- the fold, once more -------------------------------------------------------------------

RESULT, OTHER = (committed("a", result=data, result_form=ResultForm.JSON) for data in (b'"one"', b'"other"'))
STRANGE = effect(EffectKind.UNKNOWN)


def test_a_round_begins_with_keys_that_nobody_voided() -> None:
    """Those of the round before name another effect."""
    void = replace(resolved("ABSENT", 0), reason=VOIDED)
    undone = effect(EffectKind.COMPENSATED, "u")
    operation = fold(intended("a"), void, intended("b"), committed("b"), undone)
    assert (operation.round, operation.voids) == (2, 0)
    assert operation.idempotency_key == idempotency_key(OP, 2)


def test_a_commit_that_is_told_again_changes_nothing() -> None:
    """The first result stands; there is no anomaly, and no other version."""
    operation = fold(intended("a"), RESULT, OTHER)
    assert (operation.result, operation.anomalies, operation.version) == (b'"one"', [], "0.1")


def test_the_states_of_attempts_that_went_their_way() -> None:
    """Owner, committed, committed late, committed without an intent, failed before its intent came."""
    assert fold(intended("a")).attempts["a"].state is AttemptState.OWNER
    after = fold(intended("a"), committed("a"), failed("a"))
    assert (after.status, after.attempts["a"].state) == (Status.COMMITTED, AttemptState.COMMITTED)
    late = fold(intended("a"), failed("a"), committed("a"))
    assert (late.flagged, late.attempts["a"].state) == (True, AttemptState.COMMITTED)
    assert late.first is not None
    assert late.first.kind is EffectKind.INTENDED
    unconfirmed = fold(committed("a", effect_class=EffectClass.READ))
    assert unconfirmed.attempts["a"].state is AttemptState.COMMITTED
    withdrawn = fold(failed("a"), intended("a"))
    assert (withdrawn.status, withdrawn.owner) == (Status.FREE, None)
    assert withdrawn.attempts["a"].state is AttemptState.FAILED


def test_an_unsafe_operation_has_no_result() -> None:
    """Nor a form of one: what was committed may not be all."""
    operation = fold(intended("a"), RESULT, STRANGE)
    assert (operation.status, operation.result, operation.result_form) == (Status.UNSAFE, None, ResultForm.UNKNOWN)


def test_the_owners_commit_on_an_unsafe_operation_is_evidence() -> None:
    """It settles nothing and is no anomaly; whoever resolves it must have seen it, and need not repeat its result."""
    facts = (intended("a"), STRANGE, RESULT)
    unsafe = fold(*facts)
    assert (unsafe.status, unsafe.version, unsafe.anomalies) == (Status.UNSAFE, "0.2", [])
    assert unsafe.attempts["a"].state is AttemptState.COMMITTED
    assert fold(*facts, resolved("COMMITTED", 1)).status is Status.UNSAFE
    assert fold(*facts, resolved("COMMITTED", 2)).result == b'"one"'
    told = replace(resolved("COMMITTED", 2), result=b'"operator"', result_form=ResultForm.JSON)
    assert fold(*facts, told).result == b'"operator"'


def test_a_resolution_settles_what_its_owner_left_in_doubt() -> None:
    """By itself, until the owner confirms it: then the owner's result fills in what the resolution did not tell."""
    doubt = (intended("a"), effect(EffectKind.IN_DOUBT, "a"), resolved("COMMITTED", 1))
    operation = fold(*doubt)
    assert operation.settled is not None
    assert (operation.settled.kind, operation.result) == (EffectKind.RESOLVED, None)
    confirmed = fold(*doubt, RESULT)
    assert (confirmed.result, confirmed.attempts["a"].state) == (b'"one"', AttemptState.COMMITTED)
    assert confirmed.anomalies == []
    told = replace(resolved("COMMITTED", 1), result=b'"operator"', result_form=ResultForm.JSON)
    kept = fold(*doubt[:2], told, RESULT)
    assert (kept.result, kept.settled_at) == (b'"operator"', Position(0, 2))


def test_an_idempotency_key_to_the_letter() -> None:
    """Providers remember it: the same for ever."""
    assert idempotency_key("pay:1", 2) == "fencepost-2676e2f3ce84245a8a571dfea6fc2ed02772ac5b-2"


def test_a_commit_of_somebody_else_on_an_unsafe_operation_is_an_anomaly() -> None:
    """It is no evidence of what the owner did: two may have done it."""
    operation = fold(intended("a"), intended("b"), STRANGE, committed("b"))
    assert [anomaly.attempt_id for anomaly in operation.anomalies] == ["b"]
    assert operation.needs_attention


def test_a_commit_without_an_intent_is_taken_once() -> None:
    """Told twice it is neither a repeat nor an anomaly, whatever its class."""
    for effect_class in (EffectClass.READ, EffectClass.IRREVERSIBLE):
        once = committed("a", effect_class=effect_class)
        operation = fold(once, once)
        assert (operation.anomalies, operation.version) == ([], "0.0")
        assert operation.attempts["a"].state is AttemptState.COMMITTED
