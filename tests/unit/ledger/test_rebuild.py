"""Losing the projection: below the horizon nobody is judged or answered; at it, in log order, once."""

from __future__ import annotations

import pytest
from unit.ledger.kit import FENCE, OP, MemoryPartition, committed, fenced, intended

from fencepost.ledger import log_keys
from fencepost.ledger.derived_facts import rejection
from fencepost.ledger.facts import EffectFact, EffectKind
from fencepost.ledger.history import LogEntry
from fencepost.ledger.ports import Header
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import DEBTS, FENCES, UNJUDGED, UNKNOWN_TIME_MS, Debt


@pytest.fixture
def log() -> MemoryPartition:
    return MemoryPartition()


def test_below_the_horizon_intents_are_noted_and_not_judged(log: MemoryPartition) -> None:
    """The fence may come later in a cleaned log than it stood."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a"))
    log.append("x", intended("b", op_id="x", branch_id="other"))
    log.lose()
    log.project(2)
    assert not log.header.opened
    assert set(log.collection(UNJUDGED)) == {OP}
    assert len(log.history()) == 1


def test_at_the_horizon_the_verdict_is_owed_from_its_intents_position(log: MemoryPartition) -> None:
    """It is not in the log yet: the settled offset stays below it, however far was read."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a"))
    for n in range(3):
        log.append(f"x{n}", intended("b", op_id=f"x{n}", branch_id="other"))
    log.lose()
    log.project()
    assert log.header.opened
    assert log.collection(UNJUDGED) == {}
    assert rejection(intended("a")) in [fact for _, fact in log.history()]
    assert log.fold.debts == {OP: Debt(1, UNKNOWN_TIME_MS)}
    assert log.collection(DEBTS) == {OP: b"1 1"}
    assert (log.header.settled_offset, log.header.settled_time_ms) == (1, UNKNOWN_TIME_MS)


def test_an_intent_exactly_at_the_settled_offset_is_judged(log: MemoryPartition) -> None:
    """Below it is settled, at it is not."""
    log.append(FENCE, fenced(5))
    log.project()
    assert log.header.settled_offset == 1
    log.append(OP, intended("a"))
    log.lose()
    log.project()
    assert log.operation().status.value == "free"


def test_below_the_settled_offset_intents_carry_their_verdicts(log: MemoryPartition) -> None:
    """An intent that was judged before the loss is not judged by fences that moved since."""
    log.append(OP, intended("a"))
    log.append(FENCE, fenced(5), ())
    log.project()
    log.append(OP, committed("a"), log.history())
    log.project()
    log.clean()
    assert [entry.offset for entry in log.log if entry] == [1, 2]
    log.lose()
    log.project()
    assert log.operation().status.value == "committed"
    assert log.fold.debts == {}


def test_an_intent_that_carries_its_verdict_is_not_judged_again(log: MemoryPartition) -> None:
    """At the horizon it is known already, and nothing is owed."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a"))
    log.pay()
    before = dict(log.documents)
    log.header = Header(opened=True)
    log.lose()
    log.project()
    assert (log.documents, log.fold.debts) == (before, {})


def test_below_the_horizon_all_fences_are_kept_and_then_the_highest(log: MemoryPartition) -> None:
    """An intent between two fences is judged by the one before it."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a", epoch=Position(0, 4)))
    log.append("y", intended("b", op_id="y", epoch=Position(0, 6)))
    log.append(FENCE, fenced(9))
    log.lose()
    log.project()
    assert log.header.opened
    assert log.operation().status.value == "free"
    assert log.operation("y").status.value == "owned"
    assert [p.offset for p, _ in log.history(FENCE)] == [3]


def test_all_fences_are_in_the_document_until_the_horizon(log: MemoryPartition) -> None:
    """Without a debt, as long as a record brings the highest of them."""
    log.append(FENCE, fenced(5))
    log.append(FENCE, fenced(9))
    log.append("x", None)
    log.lose()
    log.project(2)
    assert len(log.history(FENCE)) == 2
    assert log.fold.debts == {}
    assert len(log.collection(FENCES)) == 1


def test_a_gap_below_the_settled_offset_is_passed(log: MemoryPartition) -> None:
    """What compaction removed there was settled; the position moves on and never back."""
    log.lose()
    log.fold.skip_to(7)
    assert log.fold.header.applied_offset == 7
    log.fold.skip_to(3)
    assert log.fold.header.applied_offset == 7


def test_the_horizon_is_where_the_log_ended(log: MemoryPartition) -> None:
    """Not before it is applied, and not again once open."""
    log.append(OP, intended("a"))
    log.lose()
    assert not log.fold.horizon_reached()
    log.fold.skip_to(1)
    assert log.fold.horizon_reached()
    log.commit()
    log.project()
    assert log.header.opened
    assert not log.fold.horizon_reached()


def test_the_settled_offset_stays_at_the_floor_until_the_horizon(log: MemoryPartition) -> None:
    """A half-rebuilt projection has settled nothing new."""
    for attempt in ("a", "b"):
        log.append(attempt, intended(attempt, op_id=attempt))
    log.project()
    for attempt in ("c", "d"):
        log.append(attempt, intended(attempt, op_id=attempt))
    log.lose()
    log.project(3)
    assert (log.header.applied_offset, log.header.settled_offset) == (3, 2)
    log.project()
    assert log.header.settled_offset == 4


def test_markers_of_a_horizon_change_no_document(log: MemoryPartition) -> None:
    """They only take up an offset."""
    key = log_keys.horizon(0, lambda _: 0)
    log.append(key, EffectFact(kind=EffectKind.HORIZON))
    log.project()
    assert (log.documents, log.header.applied_offset) == ({}, 1)


def test_a_record_that_is_applied_already_is_refused(log: MemoryPartition) -> None:
    """Applying twice would be harmless; a shell that goes back is broken."""
    log.append(OP, intended("a"))
    log.project()
    first = log.log[0]
    assert isinstance(first, LogEntry)
    with pytest.raises(ValueError, match="applied already"):
        log.fold.apply(first)


def test_documents_that_were_not_provided_are_not_taken_for_absent(log: MemoryPartition) -> None:
    """A shell that forgot to load a history, or dropped it, is stopped: the history would be overwritten."""
    log.append(OP, intended("a"))
    log.project()
    log.append(OP, committed("a"))
    log.fold.forget(keep=0)
    entry = log.log[1]
    assert isinstance(entry, LogEntry)
    with pytest.raises(LookupError):
        log.fold.apply(entry)


def test_what_was_cached_is_forgotten_only_beyond_the_limit(log: MemoryPartition) -> None:
    """What is needed again is asked for again."""
    log.append(OP, intended("a"))
    log.project()
    log.append(OP, committed("a", seq=7))
    entry = log.log[1]
    assert isinstance(entry, LogEntry)
    log.fold.provide(dict.fromkeys(log.fold.needs(entry)))
    log.fold.forget(keep=1000)
    assert log.fold.needs(entry) == set()
    log.fold.forget(keep=0)
    assert len(log.fold.needs(entry)) == 3


def test_a_rebuild_gives_the_same_documents_byte_for_byte(log: MemoryPartition) -> None:
    """With losers, verdicts, fences, and after cleaning."""
    log.append(OP, intended("a", seq=1))
    log.append(OP, intended("b", seq=1, branch_id="other"))
    log.append(FENCE, fenced(5))
    log.append("y", intended("c", op_id="y", seq=2))
    log.pay()
    log.append(OP, committed("a", seq=3), log.history())
    log.pay()
    before = dict(log.documents)
    log.clean()
    assert None in log.log
    log.lose()
    log.project()
    assert log.documents == before


def test_what_was_cached_is_bounded_in_bytes(log: MemoryPartition) -> None:
    """A few large documents weigh as much as very many small ones."""
    log.append(OP, intended("a", arguments=b"x" * 10_000))
    log.project()
    entry = log.log[0]
    assert isinstance(entry, LogEntry)
    log.fold.forget(keep=1000, keep_bytes=50_000)
    assert log.fold.needs(entry) == set()
    log.fold.forget(keep=1000, keep_bytes=9_000)
    assert log.fold.needs(entry) != set()
