"""A partition's worker without Kafka and Redis: how a projection begins, is judged, opened, and owes."""

from __future__ import annotations

import pytest
from projector_fakes import PLACE, Stand, intent

from fencepost.consumer.entries import RawMessage
from fencepost.consumer.kafka_client import Settled, partitioner
from fencepost.consumer.partition_worker import Phase
from fencepost.ledger import log_keys, losers
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import PositionedFact, Record
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import DEBTS, OPS, UNSAFE, fence_document, seq_document


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_begins_with_a_horizon_in_the_log(stand: Stand) -> None:
    """Without a projection a marker is written first; its offset is the horizon, and the group's settled offset counts."""
    stand.log.group = Settled(40, 1, "old", "topic")
    stand.serve()
    assert log_keys.is_horizon(stand.log.records[0].key)
    assert stand.store.header.incarnation == ""
    stand.serve()
    stand.log.reports[0](90, "")
    stand.serve()
    header = stand.store.header
    assert (header.horizon, header.judge_from, header.settled_offset, header.applied_offset) == (91, 40, 40, 0)
    assert stand.phase() is Phase.FOLDING
    assert stand.log.position == 0


def test_a_marker_without_an_offset_is_written_again(stand: Stand) -> None:
    """A delivery report may leave out the offset; then another marker tells it."""
    stand.serve()
    stand.log.reports[0](None, "")
    stand.serve()
    assert len(stand.log.records) == 2
    stand.log.reports[1](5, "")
    stand.serve()
    assert stand.store.header.horizon == 6


def test_a_marker_that_fails(stand: Stand) -> None:
    """Without a marker there is no horizon, and no projection; it is tried again later."""
    stand.serve()
    stand.log.reports[0](None, "timed out")
    stand.serve()
    assert stand.store.header.incarnation == ""
    assert stand.phase() is Phase.CLAIMING
    stand.serve()
    assert len(stand.log.records) == 1, "not before its time"
    stand.now += 5
    stand.serve()
    assert len(stand.log.records) == 2


def test_a_late_report_of_an_older_marker_counts_for_nothing(stand: Stand) -> None:
    """Only the marker that was written after the loss is a horizon."""
    stand.serve()
    old = stand.log.reports[0]
    stand.log.reports[0](None, "timed out")
    stand.serve()
    stand.now += 5
    stand.serve()
    old(3, "")
    stand.serve()
    assert stand.store.header.incarnation == ""
    stand.log.reports[1](9, "")
    stand.serve()
    assert stand.store.header.horizon == 10


def test_no_belief_below_the_horizon(stand: Stand) -> None:
    """Fenced intents below the horizon get their verdicts when it is reached, whatever the order of records."""
    stand.serve()
    stand.log.reports[0](3, "")
    stand.serve()
    key = log_keys.fence("g", "b", 0, partitioner(1))
    fence = EffectFact(kind=EffectKind.FENCED, agent_id="g", branch_id="b", epoch=Position(0, 9))
    stand.take((0, Record(key, (), encode_effect(fence))), (1, intent("op")), (2, intent("free", epoch=9)))
    assert not stand.is_open()
    stand.take((3, stand.log.records[0]))
    assert stand.is_open()
    assert b"REJECTED" not in stand.store.docs[DocumentKey(OPS, "free")]
    assert DocumentKey(DEBTS, "op") in stand.store.docs
    assert DocumentKey(DEBTS, "free") not in stand.store.docs
    assert fence_document("g", "b") in stand.store.docs


def test_verdicts_at_the_horizon_keep_unsafe_keys_open(stand: Stand) -> None:
    """An op that is unsafe stays listed as open when its intent is judged at the horizon, by another projector too."""
    stand.serve()
    stand.log.reports[0](3, "")
    stand.serve()
    key = log_keys.fence("g", "b", 0, partitioner(1))
    fence = EffectFact(kind=EffectKind.FENCED, agent_id="g", branch_id="b", epoch=Position(0, 9))
    stand.take((0, Record(key, (), encode_effect(fence))), (1, intent("op")))
    stand.worker.take([(RawMessage(PLACE, 2, 7, b"op", b"junk"), 0)])
    stand.restart()
    stand.take((3, stand.log.records[0]))
    assert stand.is_open()
    assert DocumentKey(UNSAFE, "op") in stand.store.docs
    assert DocumentKey("open", "op") in stand.store.docs


def test_debts_are_paid_and_struck_by_reading_back(stand: Stand) -> None:
    """A loser's record leaves a debt; the re-assertion has the whole history, and only its reading back strikes it."""
    stand.opened()
    stand.take((1, intent("op", "a")), (2, intent("op", "b")))
    assert DocumentKey(DEBTS, "op") in stand.store.docs
    assert stand.store.header.settled_offset == 2
    stand.serve()
    paid = stand.log.records[-1]
    assert (paid.key, paid.fact, len(paid.history)) == ("op", None, 2)
    stand.log.reports[-1](3, "")
    stand.serve()
    assert stand.log.records[-1] is paid
    assert DocumentKey(DEBTS, "op") in stand.store.docs
    stand.take((3, paid))
    assert DocumentKey(DEBTS, "op") not in stand.store.docs
    assert stand.store.header.settled_offset == 4


def test_debts_outlive_the_projector(stand: Stand) -> None:
    """What is owed stands in the projection: the next projector pays it, and settles nothing before that."""
    stand.opened()
    stand.take((1, intent("op", "a")), (2, intent("op", "b")))
    stand.restart()
    stand.take((3, intent("other", "c")))
    assert stand.store.header.settled_offset == 2
    stand.serve()
    paid = stand.log.records[-1]
    assert (paid.key, paid.fact, len(paid.history)) == ("op", None, 2)


def test_a_failed_payment_is_repeated(stand: Stand) -> None:
    """What could not be written stays owed."""
    stand.opened()
    stand.take((1, intent("op", "a")), (2, intent("op", "b")))
    stand.serve()
    count = len(stand.log.records)
    stand.log.reports[-1](None, "no broker")
    stand.now += 3_000_000_000
    stand.serve()
    assert len(stand.log.records) == count + 1


def test_what_a_summary_stands_for_is_looked_up(stand: Stand) -> None:
    """The numbers in a summary are only known once its operation is: their documents are loaded in a second turn."""
    stand.opened()
    numbers = [losers.Number("g", Position(0, 3), seq) for seq in (1, 2)]
    known = (PositionedFact(Position(0, 0), losers.summary("op", numbers)),)
    stand.take((1, Record("op", known)))
    assert stand.phase() is Phase.FOLDING
    assert stand.store.header.applied_offset == 2
    assert seq_document(numbers[0]) in stand.store.docs
