"""Debts: what the projection knows and a key's newest record leaves out is noted, and paid before it is forgotten."""

from __future__ import annotations

import pytest
from unit.ledger.kit import (
    AGENTS,
    FENCE,
    OP,
    MemoryPartition,
    committed,
    effect,
    encoded,
    fenced,
    intended,
    opened,
    token,
)

from fencepost.ledger import log_keys
from fencepost.ledger.derived_facts import highest_fence, rejection
from fencepost.ledger.history import Record
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import (
    DEBTS,
    Debt,
    PartitionFold,
    document_of,
    read_history,
    reassertion,
)


@pytest.fixture
def log() -> MemoryPartition:
    return MemoryPartition()


def test_a_record_that_leaves_nothing_out_owes_nothing(log: MemoryPartition) -> None:
    """Each writer copied the history that it knew."""
    log.append(OP, intended("a"))
    log.project()
    log.append(OP, committed("a"), log.history())
    log.project()
    assert log.fold.debts == {}
    assert (log.header.applied_offset, log.header.settled_offset, log.header.settled_time_ms) == (2, 2, 0)


def test_a_record_that_leaves_a_fact_out_is_owed_from_its_offset(log: MemoryPartition) -> None:
    """Noted in the same step that moves the applied offset; the settled offset and its time stop there."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.append("other", intended("c", op_id="other"))
    log.project()
    assert log.collection(DEBTS) == {OP: b"1 1001"}
    assert (log.header.applied_offset, log.header.settled_offset, log.header.settled_time_ms) == (3, 1, 1001)


def test_the_oldest_debt_stands(log: MemoryPartition) -> None:
    """A second incomplete record of the key does not make the debt younger."""
    for attempt in ("a", "b", "c"):
        log.append(OP, intended(attempt))
    log.project()
    assert log.fold.debts == {OP: Debt(1, 1001)}


def test_the_settled_offset_stands_at_the_oldest_of_all_debts(log: MemoryPartition) -> None:
    """Keys owe for themselves; the partition is settled below the first."""
    for op_id in ("x", "y"):
        log.append(op_id, intended("a", op_id=op_id))
    for op_id in ("x", "y"):
        log.append(op_id, intended("b", op_id=op_id))
    log.project()
    assert log.header.settled_offset == 2
    log.append_record(reassertion("x", log.documents[DocumentKey("ops", "x")]))
    log.project()
    assert (set(log.fold.debts), log.header.settled_offset, log.header.settled_time_ms) == ({"y"}, 3, 1003)


def test_a_debt_is_struck_by_a_record_that_contains_every_known_fact(log: MemoryPartition) -> None:
    """It need not be the projector's own: whoever writes the whole history pays."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    log.append(OP, committed("a"), log.history())
    log.project()
    assert (log.fold.debts, log.collection(DEBTS)) == ({}, {})
    assert log.header.settled_offset == 3


def test_a_late_incomplete_reassertion_strikes_nothing(log: MemoryPartition) -> None:
    """A zombie's payment lands after the commit: the commit stands, and is still owed."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    late = reassertion(OP, log.documents[DocumentKey("ops", OP)])
    log.append(OP, committed("a"), log.history()[:1])
    log.append_record(late)
    log.project()
    assert log.fold.debts == {OP: Debt(1, 1001)}
    log.pay()
    log.clean()
    assert [entry.offset for entry in log.log if entry] == [4]
    log.lose()
    log.project()
    assert log.operation().status.value == "committed"


def test_a_reassertion_says_all_and_nothing_new(log: MemoryPartition) -> None:
    """The whole history, byte for byte, and no fact of its own."""
    log.append(OP, intended("a"))
    log.project()
    record = reassertion(OP, log.documents[DocumentKey("ops", OP)])
    assert (record.key, record.history, record.fact) == (OP, log.history(), None)
    assert reassertion("nothing", None) == Record("nothing", (), None, "projector")


def test_debts_survive_the_projector(log: MemoryPartition) -> None:
    """They are documents of the projection: a new projector goes on paying."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b"))
    log.project()
    log.restart()
    assert log.fold.debts == {OP: Debt(1, 1001)}
    log.pay()
    assert log.header.settled_offset == 3


def test_the_settled_offset_never_goes_back() -> None:
    """Also when the fold is started with a debt below it."""
    log = MemoryPartition()
    log.append(OP, intended("a"))
    log.append("z", intended("a", op_id="z"))
    log.project()
    log.fold = PartitionFold(log.partition, log.header, {OP: Debt(0, 5)})
    log.append("z", committed("a", op_id="z"), log.history("z"))
    log.project()
    assert (log.header.settled_offset, log.header.settled_time_ms) == (2, 5)


def test_debts_are_written_and_read_as_text() -> None:
    """Offset and broker time."""
    debt = Debt(12, 1_700_000_000_000)
    assert Debt.read(debt.written()) == debt


# -- verdicts and fences -------------------------------------------------------------------


def test_a_fenced_intent_gets_its_verdict_and_owes_it(log: MemoryPartition) -> None:
    """The verdict is a fact at the intent's own position, with the same bytes whoever writes it."""
    log.append(FENCE, fenced(5))
    intent = intended("a", epoch=Position(0, 4))
    log.append(OP, intent)
    log.project()
    assert [(p.offset, fact) for p, fact in log.history()] == [(1, encoded(intent)), (1, rejection(intent))]
    assert log.operation().status.value == "free"
    assert log.fold.debts == {OP: Debt(1, 1001)}


@pytest.mark.parametrize(
    "values",
    [
        {"epoch": Position(0, 5)},
        {"epoch": Position(0, 6)},
        {"epoch": Position(1, 0)},
        {"branch_id": "sibling"},
        {"agent_id": "other"},
    ],
)
def test_who_is_not_fenced_is_not_rejected(log: MemoryPartition, values: dict[str, object]) -> None:
    """The session that raised the fence and later ones, other branches, other agents."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a", **values))
    log.project()
    assert log.operation().status.value == "owned"
    assert log.fold.debts == {}


def test_an_intent_that_stood_before_the_fence_stands(log: MemoryPartition) -> None:
    """Also when the same intent is sent again behind the fence: an attempt claims once."""
    log.append(OP, intended("a"))
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a"), ())
    log.project()
    log.pay()
    assert log.operation().status.value == "owned"


def test_outcomes_of_a_fenced_session_are_taken(log: MemoryPartition) -> None:
    """They are evidence of what its earlier intents did."""
    log.append(OP, intended("a"))
    log.append(FENCE, fenced(5))
    log.append(OP, committed("a"), log.history())
    log.project()
    assert log.operation().status.value == "committed"


def test_a_verdict_is_given_once(log: MemoryPartition) -> None:
    """An intent that is sent again gets no second verdict."""
    log.append(FENCE, fenced(5))
    log.append(OP, intended("a"))
    log.append(OP, intended("a"))
    log.project()
    kinds = [f for _, f in log.history() if f == rejection(intended("a"))]
    assert len(kinds) == 1


def test_of_fences_only_the_highest_is_kept_once_open(log: MemoryPartition) -> None:
    """Every intent was judged when it was applied: a lower fence decides nothing any more."""
    for epoch in (5, 9, 7):
        log.append(FENCE, fenced(epoch), log.history(FENCE))
        log.project()
    assert [p.offset for p, _ in log.history(FENCE)] == [1]
    assert log.fold.debts == {}


def test_a_fence_that_leaves_out_the_highest_is_owed(log: MemoryPartition) -> None:
    """A lower fence written by somebody who had not read the higher one must not replace it in the log."""
    log.append(FENCE, fenced(9))
    log.append(FENCE, fenced(7))
    log.project()
    assert log.fold.debts == {FENCE: Debt(1, 1001)}
    log.pay()
    assert [p.offset for p, _ in log.history(FENCE)] == [0]


def test_the_same_fence_written_blindly_again_is_owed_its_first_place(log: MemoryPartition) -> None:
    """After cleaning and a rebuild the fence stands where it stood: projection = fold(log), byte for byte."""
    log.append(FENCE, fenced(9))
    log.append(FENCE, fenced(9))
    log.pay()
    before = dict(log.documents)
    log.clean()
    log.lose()
    log.project()
    assert log.documents == before


def test_highest_fence_takes_the_first_of_equals() -> None:
    """What stands between two equal fences stays rejected."""
    log = MemoryPartition()
    log.append(FENCE, fenced(9))
    log.append(FENCE, fenced(9), log.history(FENCE))
    log.project()
    assert [p.offset for p, _ in log.history(FENCE)] == [0]
    assert highest_fence(()) == ()


# -- the agents topic ----------------------------------------------------------------------


def test_agents_records_owe_too() -> None:
    """A decision that leaves out its request is owed; their histories are kept by family."""
    log = MemoryPartition(AGENTS)
    key = log_keys.session("agent", "s1")
    log.append(key, opened("s1", seq=1))
    log.append(key, opened("s1", token(0, 1), seq=2))
    log.project()
    assert log.fold.debts == {key: Debt(1, 1001)}
    document = document_of(AGENTS.topic, key)
    assert document == DocumentKey("agent/agent", key)
    assert len(read_history(log.documents[document])) == 2


def test_a_fact_of_an_unknown_kind_travels_on(log: MemoryPartition) -> None:
    """It is kept byte for byte, owed like any other, and makes the operation unsafe."""
    log.append(OP, effect("UNKNOWN", "x"))
    log.append(OP, intended("a"))
    log.pay()
    assert log.operation().status.value == "unsafe"
    assert len(log.history()) == 2
