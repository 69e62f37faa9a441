"""The checker sees each promise that is broken, in histories that were broken by hand, and nothing where none is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulation.checker import violations
from simulation.tape import AGENTS, EFFECTS, Tape

from fencepost.ledger import log_keys
from fencepost.ledger.facts import EffectKind, Outcome
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.projection import DEBTS, OPS, seqs


def found(tape: Tape) -> list[str]:
    """The rules that a history breaks."""
    return sorted({line.partition(":")[0] for line in violations(tape.recorded())})


def test_a_clean_history_is_clean() -> None:
    """An effect that was intended, ran, was committed and absorbed breaks nothing."""
    tape = Tape()
    tape.note("begin", 1, "pay")
    tape.whole_effect()
    tape.note("acknowledged", EFFECTS, 1)
    tape.note("ended", 1, "committed")
    tape.note("recorded", "pay", 1, "done")
    assert violations(tape.recorded()) == []


def test_a_second_execution_is_seen() -> None:
    """Two executions in one round, even by one and the same attempt."""
    tape = Tape()
    tape.whole_effect()
    tape.ran()
    assert "at most once" in found(tape)


def test_an_execution_without_an_intent_is_seen() -> None:
    """What ran without any intent in the log."""
    tape = Tape()
    tape.ran()
    assert "mediated" in found(tape)


def test_an_execution_before_its_intent_is_seen() -> None:
    """What ran before its intent was written."""
    tape = Tape()
    tape.ran()
    tape.effect(EffectKind.INTENDED)
    tape.effect(EffectKind.COMMITTED, seq=2)
    assert found(tape) == ["mediated"]


def test_an_execution_of_a_loser_is_seen() -> None:
    """What ran although another attempt owned the operation."""
    tape = Tape()
    tape.effect(EffectKind.INTENDED)
    tape.effect(EffectKind.INTENDED, attempt_id="b", seq=2)
    tape.ran(attempt_id="b")
    assert found(tape) == ["mediated", "remembered"]


def test_an_execution_of_a_fenced_attempt_is_seen() -> None:
    """What ran although its intent stands behind a fence; its own commit does not excuse it."""
    tape = Tape()
    tape.go_back(0, "REFUSE")
    tape.effect(EffectKind.INTENDED)
    tape.ran()
    tape.effect(EffectKind.REJECTED, seq=0)
    tape.effect(EffectKind.COMMITTED, seq=2)
    assert "mediated" in found(tape)


def test_an_execution_that_the_log_forgot_is_seen() -> None:
    """What ran and is free in the log: it would run again."""
    tape = Tape()
    tape.effect(EffectKind.INTENDED)
    tape.ran()
    tape.effect(EffectKind.FAILED, seq=2)
    assert "remembered" in found(tape)


def test_a_result_from_nowhere_is_seen() -> None:
    """A recorded result that no execution gave."""
    tape = Tape()
    tape.whole_effect()
    tape.note("recorded", "pay", 1, "something else")
    assert found(tape) == ["results"]


@pytest.mark.parametrize(
    ("seq", "verdict", "wrong"),
    [
        pytest.param(2, "PROCEED", [], id="the checkpoint knows it"),
        pytest.param(0, "REFUSE", [], id="refused"),
        pytest.param(0, "PROCEED_GATED", [], id="absorbed after a gated rollback"),
        pytest.param(0, "PROCEED", ["guard"], id="authorised over it"),
        pytest.param(1, "PROCEED", ["guard"], id="the checkpoint knows the intent only"),
    ],
)
def test_a_rollback_over_an_effect_is_seen(seq: int, verdict: str, wrong: list[str]) -> None:
    """The guard may go back over what the checkpoint knows, or gated over what is committed, and over nothing else."""
    tape = Tape()
    tape.whole_effect()
    tape.go_back(seq, verdict)
    assert found(tape) == wrong


@pytest.mark.parametrize("verdict", ["PROCEED", "PROCEED_GATED"])
def test_an_effect_after_the_rollback_is_seen(verdict: str) -> None:
    """What was owned before the decision and ran after it; that it was committed later is no excuse."""
    tape = Tape()
    tape.effect(EffectKind.INTENDED)
    tape.go_back(0, verdict)
    tape.ran()
    tape.effect(EffectKind.COMMITTED, seq=2)
    assert found(tape) == ["guard"]


@pytest.mark.parametrize(("early", "wrong"), [(True, ["guard"]), (False, [])])
def test_an_effect_of_a_branch_that_was_not_fenced_counts_before_the_fence(*, early: bool, wrong: list[str]) -> None:
    """The guard must have seen what stands before its fences, on every branch of the agent; what comes later need not stop."""
    tape = Tape()
    tape.branch_id = "sibling"
    if early:
        tape.effect(EffectKind.INTENDED)
    tape.go_back(0, "PROCEED")
    if not early:
        tape.effect(EffectKind.INTENDED)
    tape.ran()
    tape.effect(EffectKind.COMMITTED, seq=2)
    assert found(tape) == wrong


def test_a_rollback_over_an_undone_effect_is_right() -> None:
    """What was undone before the decision stands in nobody's way."""
    tape = Tape()
    tape.whole_effect()
    tape.effect(EffectKind.RESOLVED, attempt_id="undo", seq=0, outcome=Outcome.COMPENSATED, version="0.1")
    tape.go_back(0, "PROCEED")
    assert found(tape) == []


def test_a_cleaner_that_removed_too_much_is_seen() -> None:
    """A record that alone held a fact is gone."""
    tape = Tape()
    tape.whole_effect()
    tape.effect(EffectKind.INTENDED, attempt_id="b", seq=3, blind=True)
    tape.removed[EFFECTS] = {0, 1}
    assert found(tape) == ["kept"]
    tape.write(EFFECTS, "pay", None)
    assert found(tape) == [], "it is paid for"


@pytest.mark.parametrize(
    "document", [DocumentKey(OPS, "pay"), DocumentKey("agent-ops/A", "pay"), DocumentKey(seqs("A", Tape().epoch), "0")]
)
def test_a_projection_that_is_not_the_fold_is_seen(document: DocumentKey) -> None:
    """A document that is missing, or one too many."""
    tape = Tape()
    tape.whole_effect()
    run = tape.recorded()
    kept = run.left[EFFECTS].documents.pop(document)
    assert any("differs" in line for line in violations(run))
    run.left[EFFECTS].documents[document] = kept
    assert violations(run) == []
    run.left[EFFECTS].documents[document._replace(key="stray")] = kept
    assert any("differs" in line for line in violations(run))
    del run.left[EFFECTS].documents[document._replace(key="stray")]
    run.left[EFFECTS].documents[DocumentKey(DEBTS, "pay")] = b"0 0"
    assert violations(run) == [], "bookkeeping is compared elsewhere"


def test_an_acknowledged_fact_that_is_gone_is_seen() -> None:
    """What somebody was told to be written, and the projection does not have: of an operation, a session, a fence."""
    tape = Tape()
    tape.whole_effect()
    tape.go_back(2, "REFUSE")
    for partition, entries in tape.written.items():
        for entry in entries:
            tape.note("acknowledged", partition, entry.offset)
    assert found(tape) == []
    run = tape.recorded()
    run.left[EFFECTS].documents.clear()
    run.left[AGENTS].documents.clear()
    gone = [line for line in violations(run) if line.startswith("acknowledged")]
    assert len(gone) == sum(map(len, tape.written.values()))
    assert any(log_keys.fence("A", "main", 0, lambda _: 0) in line for line in gone)


@pytest.mark.parametrize(
    ("sealed_seq", "voided", "wrong"), [(3, (), []), (4, (), ["accounted"]), (5, (3, 4), []), (5, (4,), ["accounted"])]
)
def test_a_number_that_is_missing_is_seen(sealed_seq: int, voided: tuple[int, ...], wrong: list[str]) -> None:
    """A closed session whose numbers are neither in the log nor given up."""
    tape = Tape()
    tape.whole_effect()
    tape.close(sealed_seq, voided)
    assert found(tape) == wrong


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda tape: tape.note("begin", 7, "pay"), id="a call that never ended"),
        pytest.param(lambda tape: tape.note("halted", EFFECTS, "a gap", who="projector"), id="a projector that halted"),
        pytest.param(lambda tape: tape.problems.append("no rest: effects/0 owes pay"), id="no rest"),
    ],
)
def test_what_does_not_come_to_an_end_is_seen(spoil: Callable[[Tape], None]) -> None:
    """A call that neither returned nor raised, a projector that stopped for an operator, a debt that is never paid."""
    tape = Tape()
    spoil(tape)
    assert found(tape) == ["liveness"]


def test_a_call_of_a_dead_process_need_not_end() -> None:
    """Who died ends nothing any more."""
    tape = Tape()
    tape.note("begin", 7, "pay")
    tape.note("died")
    assert found(tape) == []
