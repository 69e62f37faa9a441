"""Outcomes that come late or unasked, resolutions by version, and what a person must look at."""

from __future__ import annotations

from typing import Any

import pytest
from unit.ledger.kit import committed, effect, failed, fold, intended, resolved

from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, ResultForm
from fencepost.ledger.operations import AttemptState, Status
from fencepost.ledger.positions import Position

SAFE: dict[str, Any] = {"effect_class": EffectClass.REPEATABLE}


def test_a_late_commit_on_a_free_operation_settles_it_flagged() -> None:
    """It says that an effect happened: it is taken, and marked as what nobody had confirmed."""
    op = fold(intended("a"), failed("a"), committed("a", result=b"1"))
    assert (op.status, op.flagged, op.result) == (Status.COMMITTED, True, b"1")
    assert op.owner is not None
    assert op.owner.attempt_id == "a"
    assert not op.anomalies


@pytest.mark.parametrize("second", [[intended("b")], [intended("b"), committed("b")]])
def test_a_late_commit_on_what_another_owns_is_an_anomaly(second: list[object]) -> None:
    """A possible double execution: the owner stands, the late commit is kept and named."""
    facts = [intended("a"), failed("a"), *second, committed("a")]
    op = fold(*facts)  # type: ignore[arg-type]
    assert op.owner is not None
    assert op.owner.attempt_id == "b"
    assert [(a.attempt_id, a.position) for a in op.anomalies] == [("a", Position(0, len(facts) - 1))]
    assert "possible double execution" in op.anomalies[0].what
    assert op.needs_attention


def test_a_commit_of_a_loser_is_an_anomaly() -> None:
    """It had no permit to run."""
    op = fold(intended("a"), intended("b"), committed("b"))
    assert op.status is Status.OWNED
    assert [a.attempt_id for a in op.anomalies] == ["b"]


def test_a_commit_of_a_rejected_attempt_is_never_dropped() -> None:
    """A fenced session that ran all the same: on a free operation it settles it, flagged."""
    op = fold(intended("a"), effect("REJECTED", "a"), committed("a"))
    assert (op.status, op.flagged) == (Status.COMMITTED, True)


def test_a_late_commit_says_what_the_operation_is() -> None:
    """When no intent counted, the commit's own tool, class and identity hold from then on."""
    op = fold(intended("a"), effect("REJECTED", "a"), committed("a"), intended("b", identity_digest="other"))
    assert (op.tool, op.effect_class) == ("bank.pay", EffectClass.IRREVERSIBLE)
    assert op.attempts["b"].state is AttemptState.CONFLICT


@pytest.mark.parametrize("verdict", [effect("REJECTED", "b"), failed("b")])
def test_a_late_commit_of_another_identity_never_settles(verdict: object) -> None:
    """Its result is not the result of this operation: an anomaly, whatever became of its intent."""
    stray = intended("b", identity_digest="other")
    op = fold(intended("a"), failed("a"), stray, verdict, committed("b", identity_digest="other"))  # type: ignore[arg-type]
    assert op.status is Status.FREE
    assert [a.attempt_id for a in op.anomalies] == ["b"]


def test_a_commit_of_an_ended_round_is_an_anomaly() -> None:
    """It does not settle the present round."""
    op = fold(intended("a"), intended("b"), committed("a"), effect("COMPENSATED", "u"), committed("b"))
    assert (op.status, op.round) == (Status.FREE, 2)
    assert [a.attempt_id for a in op.anomalies] == ["b"]


def test_a_failure_after_the_commit_is_an_anomaly() -> None:
    """Both cannot be true; the commit stands."""
    op = fold(intended("a"), committed("a"), failed("a"))
    assert op.status is Status.COMMITTED
    assert "failed after it had committed" in op.anomalies[0].what


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param([intended("a"), committed("b", identity_digest="other", **SAFE)], id="of another identity"),
        pytest.param([intended("b"), effect("UNKNOWN", "x"), committed("b"), resolved("ABSENT", 2)], id="overruled"),
    ],
)
def test_a_commit_stays_told_whatever_the_same_attempt_says_later(facts: list[EffectFact]) -> None:
    """A failure after it is an anomaly, and the commit sent once more says nothing new: it settles nothing."""
    done = next(fact for fact in facts if fact.kind is EffectKind.COMMITTED)
    before = fold(*facts, failed("b"))
    after = fold(*facts, failed("b"), done)
    assert before.anomalies[-1].what == "failed after it had committed"
    assert (after.status, after.result, after.flagged) == (before.status, before.result, before.flagged)
    assert after.anomalies == before.anomalies


def test_repeated_late_commits_are_one_anomaly() -> None:
    """A retried publish is the same event."""
    op = fold(intended("a"), intended("b"), committed("b"), committed("b"))
    assert len(op.anomalies) == 1


# -- commits without an intent -----------------------------------------------------------


def test_an_unconfirmed_commit_settles_a_free_operation() -> None:
    """Of effects of which a repeat does no harm, one record is enough."""
    op = fold(committed("a", **SAFE))
    assert (op.status, op.flagged, op.anomalies) == (Status.COMMITTED, False, [])
    assert op.owner is not None
    assert op.owner.attempt_id == "a"


def test_a_second_unconfirmed_commit_is_a_repeat() -> None:
    """The first result stands; the second did no harm."""
    op = fold(committed("a", result=b"1", **SAFE), committed("b", result=b"2", **SAFE))
    assert (op.result, op.attempts["b"].state, op.anomalies) == (b"1", AttemptState.REPEATED, [])
    op = fold(committed("a", **SAFE), committed("b", **SAFE), committed("b", **SAFE), failed("b", **SAFE))
    assert "failed after" in op.anomalies[0].what


def test_an_unconfirmed_commit_of_another_round_settles_nothing() -> None:
    """The round is part of what was done."""
    op = fold(committed("a", round=2, **SAFE))
    assert (op.status, op.attempts["a"].state) == (Status.FREE, AttemptState.REPEATED)


def test_an_unconfirmed_commit_of_a_harmful_effect_is_flagged_or_an_anomaly() -> None:
    """It ran without a permit: never dropped, never taken as normal."""
    assert fold(committed("a")).flagged
    op = fold(intended("b"), committed("a"))
    assert [a.attempt_id for a in op.anomalies] == ["a"]


def test_an_unconfirmed_commit_of_another_identity_is_an_anomaly_once() -> None:
    """Something was done under an id that means something else; a retry says nothing new."""
    stray = committed("b", identity_digest="other", **SAFE)
    op = fold(committed("a", **SAFE), stray, stray)
    assert op.attempts["b"].state is AttemptState.CONFLICT
    assert len(op.anomalies) == 1


# -- resolutions -------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [[intended("a")], [intended("a"), effect("IN_DOUBT", "a")]])
def test_a_resolution_of_the_version_seen_settles_or_frees(facts: list[object]) -> None:
    """COMMITTED and ABSENT, on an owned operation and on one in doubt."""
    seen = len(facts) - 1
    done = fold(*facts, resolved("COMMITTED", seen, result=b"7", result_form=ResultForm.JSON))  # type: ignore[arg-type]
    assert (done.status, done.result) == (Status.COMMITTED, b"7")
    gone = fold(*facts, resolved("ABSENT", seen))  # type: ignore[arg-type]
    assert (gone.status, gone.owner, gone.version) == (Status.FREE, None, f"0.{seen + 1}")
    assert gone.attempts["a"].state is AttemptState.OVERRULED


@pytest.mark.parametrize("version", ["", "0.0", "0.7", "1.1"])
def test_a_resolution_of_another_version_is_kept_and_does_nothing(version: str) -> None:
    """It was bound to what its author saw."""
    op = fold(intended("a"), effect("IN_DOUBT", "a"), resolved("ABSENT", version))
    assert op.status is Status.IN_DOUBT
    assert [r.effective for r in op.resolutions] == [False]


def test_of_two_resolutions_of_one_version_the_first_counts() -> None:
    """Like intents, they are judged in the log."""
    op = fold(intended("a"), resolved("ABSENT", 0), resolved("COMMITTED", 0))
    assert op.status is Status.FREE
    assert [r.effective for r in op.resolutions] == [True, False]


def test_the_owner_may_confirm_what_a_resolution_said() -> None:
    """Its result fills in the one that the resolution did not know; no anomaly."""
    op = fold(intended("a"), resolved("COMMITTED", 0), committed("a", result=b"1", result_form=ResultForm.JSON))
    assert (op.result, op.settled_at, op.anomalies) == (b"1", Position(0, 2), [])
    kept = fold(intended("a"), resolved("COMMITTED", 0, result=b"7", result_form=ResultForm.JSON), committed("a"))
    assert (kept.result, kept.settled_at) == (b"7", Position(0, 1))


def test_a_commit_after_absent_is_flagged_or_an_anomaly() -> None:
    """The operator was wrong, or the effect came late: both are told."""
    assert fold(intended("a"), resolved("ABSENT", 0), committed("a")).flagged
    op = fold(intended("a"), resolved("ABSENT", 0), intended("b"), committed("a"))
    assert [a.attempt_id for a in op.anomalies] == ["a"]


def test_compensated_outside_ends_the_round() -> None:
    """An operator records that a committed effect was undone."""
    op = fold(intended("a"), committed("a"), resolved("COMPENSATED", 1))
    assert (op.status, op.round) == (Status.FREE, 2)
    assert fold(intended("a"), resolved("COMPENSATED", 0)).status is Status.OWNED


def test_an_unsafe_operation_is_resolved_like_one_in_doubt() -> None:
    """By the version at which it became unsafe."""
    unsafe = [intended("a"), effect("UNKNOWN", "x")]
    assert fold(*unsafe, resolved("COMMITTED", 1)).status is Status.COMMITTED
    assert fold(*unsafe, resolved("ABSENT", 1)).status is Status.FREE
    assert fold(*unsafe, resolved("ABSENT", 0)).status is Status.UNSAFE


def test_a_recorded_result_survives_the_resolution_of_an_unsafe_operation() -> None:
    """The operator says that it stands; what it returned is still what its owner recorded."""
    done = committed("a", result=b"1", result_form=ResultForm.JSON)
    before = fold(intended("a"), done, effect("UNKNOWN", "x"), resolved("COMMITTED", 2))
    after = fold(intended("a"), effect("UNKNOWN", "x"), done, resolved("COMMITTED", 2))
    assert (before.status, before.result, before.settled_at) == (Status.COMMITTED, b"1", Position(0, 1))
    assert (after.status, after.result, after.settled_at) == (Status.COMMITTED, b"1", Position(0, 2))


def test_a_commit_on_an_unsafe_operation_changes_the_version() -> None:
    """A resolution that was decided before the commit arrived does not overrule it."""
    op = fold(intended("a"), effect("UNKNOWN", "x"), committed("a"), resolved("ABSENT", 1))
    assert (op.status, [r.effective for r in op.resolutions]) == (Status.UNSAFE, [False])


def test_absent_leaves_nothing_of_a_settlement_behind() -> None:
    """An operation that had been settled, became unsafe, and is resolved as absent is free, and only that."""
    flagged = [intended("a"), failed("a"), committed("a")]
    op = fold(*flagged, effect("UNKNOWN", "x"), resolved("ABSENT", 3))
    assert (op.status, op.settled, op.flagged) == (Status.FREE, None, False)
    assert op.settled_at < Position(0, 0)


def test_affirming_acknowledges_anomalies() -> None:
    """An operator who saw the anomaly says that the operation stands as it is."""
    facts = [intended("a"), committed("a"), intended("b"), committed("b")]
    assert fold(*facts).needs_attention
    op = fold(*facts, resolved("COMMITTED", fold(*facts).version))
    assert (op.status, op.needs_attention) == (Status.COMMITTED, False)
    free = fold(resolved("ABSENT", ""))
    assert (free.status, free.last_resolution) == (Status.FREE, Position(0, 0))


def test_an_anomaly_changes_the_version() -> None:
    """Who resolves must have seen it: a resolution that was decided before it acknowledges nothing."""
    facts = [intended("a"), committed("a"), intended("b"), committed("b"), resolved("COMMITTED", 1)]
    op = fold(*facts)
    assert [r.effective for r in op.resolutions] == [False]
    assert op.needs_attention
