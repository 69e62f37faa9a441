"""A partition's worker without Kafka and Redis: what it does in every kind of trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest
from confluent_kafka import murmur2
from projector_fakes import PLACE, Stand, intent

from fencepost.consumer.entries import RawMessage
from fencepost.consumer.kafka_client import Settled
from fencepost.consumer.partition_store import MovedError
from fencepost.consumer.partition_worker import Phase
from fencepost.consumer.scripts import Answer
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.projection import OPS
from fencepost.schemas import RegistryUnavailableError, SingleObjectCodec


@pytest.fixture
def stand() -> Stand:
    return Stand()


def test_a_gap_is_read_twice_before_it_stops_anything(stand: Stand) -> None:
    """Records before the gap are applied; the gap is looked at again; if it is still there the partition halts."""
    stand.opened()
    stand.take((1, intent("x")), (5, intent("y")))
    assert stand.store.header.applied_offset == 2
    assert stand.phase() is Phase.CLAIMING
    assert stand.position() is None
    stand.serve()
    assert stand.position() == 2
    stand.take((5, intent("y")))
    assert stand.phase() is Phase.HALTED
    assert "records 2 to 4" in stand.store.header.halted
    stand.take((6, intent("z")))
    assert stand.store.header.applied_offset == 2


def test_a_gap_that_was_none(stand: Stand) -> None:
    """If the records are there at the second look, nothing happened."""
    stand.opened()
    stand.take((3, intent("y")))
    stand.serve()
    stand.take((1, intent("a")), (2, intent("x")), (3, intent("y")))
    assert stand.store.header.applied_offset == 4
    assert stand.phase() is Phase.FOLDING


def test_gaps_below_the_settled_offset(stand: Stand) -> None:
    """While it is rebuilt the projection may pass over what is settled, and over nothing beyond."""
    stand.log.group = Settled(10, 1, "old", "topic")
    stand.serve()
    stand.log.reports[0](30, "")
    stand.serve()
    stand.take((4, intent("a")), (9, intent("b")), (10, intent("c")))
    assert stand.store.header.applied_offset == 11
    for _ in range(2):
        stand.take((13, intent("d")))
        stand.serve()
    assert stand.phase() is Phase.HALTED


def test_a_gap_that_reaches_over_the_settled_offset(stand: Stand) -> None:
    """A gap that only begins below the settled offset is a loss."""
    stand.log.group = Settled(10, 1, "old", "topic")
    stand.serve()
    stand.log.reports[0](30, "")
    stand.serve()
    for _ in range(2):
        stand.take((11, intent("d")))
        stand.serve()
    assert stand.phase() is Phase.HALTED


def test_accepted_gaps(stand: Stand) -> None:
    """What an operator accepted is passed over, but judged as before."""
    stand.store.accepted = 20
    stand.serve()
    stand.log.reports[0](30, "")
    stand.serve()
    stand.take((15, intent("a")))
    assert stand.store.header.applied_offset == 16
    assert stand.store.header.judge_from == 0


def test_a_projection_behind_what_is_compacted_is_built_again(stand: Stand) -> None:
    """An open projection that meets a gap in what is settled went back in time: it is dropped."""
    stand.opened()
    stand.worker.saved(Settled(50, 1, "i", "topic"))
    stand.worker._floor = 50
    stand.store.header = replace(stand.store.header, settled_offset=0)
    stand.now += 1
    stand.serve()
    stand.serve()
    stand.take((40, intent("a")))
    assert stand.store.header.incarnation == ""
    stand.serve()
    assert stand.phase() is Phase.MARKING


def test_a_dropped_projection_is_noticed(stand: Stand) -> None:
    """Without any record the next look notices, also when the partition is halted."""
    stand.opened()
    stand.store.drop()
    stand.now += 1
    stand.serve()
    assert stand.phase() is Phase.CLAIMING
    stand.serve()
    assert stand.phase() is Phase.MARKING


def test_a_superseded_worker_waits(stand: Stand) -> None:
    """A later owner is left alone until it is sure that the group still counts on this worker."""
    stand.opened()
    stand.store.fails = MovedError(Answer("epoch", "9:other"), "1:x")
    stand.take((1, intent("a")))
    claims = stand.store.claims
    stand.store.fails = None
    stand.now += 5
    stand.serve()
    assert stand.store.claims == claims
    stand.now += 15
    stand.serve()
    assert stand.store.claims == claims + 1


@pytest.mark.parametrize("outcome", ["lost", "damaged", "incarnation", "offset"])
def test_only_a_later_claim_supersedes(outcome: str) -> None:
    """Whatever else was found, in whatever words, is no reason to wait."""
    assert not MovedError(Answer(outcome, "it has 1 of 2"), "1:x").superseded


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailableError("redis is down"),
        RuntimeError("nobody thought of this"),
        RegistryUnavailableError("r", "x"),
    ],
)
def test_trouble_passes(stand: Stand, error: Exception) -> None:
    """Whatever fails, the worker starts again from what is stored, with growing pauses."""
    stand.opened()
    stand.store.fails = error
    stand.take((1, intent("a")))
    assert stand.phase() is Phase.CLAIMING
    for _ in range(20):
        stand.now += 0.5
        stand.serve()
    stand.store.fails = None
    stand.now += 5
    stand.serve()
    stand.take((1, intent("a")))
    assert stand.store.header.applied_offset == 2


def test_kafka_is_down_at_the_claim(stand: Stand) -> None:
    """Without the group's settled offset nothing is begun: it could be too low."""
    stand.log.down = True
    stand.serve()
    assert stand.store.claims == 0
    stand.log.down = False
    stand.now += 5
    stand.serve()
    assert stand.phase() is Phase.MARKING


def test_the_registry_is_away(stand: Stand) -> None:
    """Bytes that need a registry that does not answer are not set aside."""
    stand.opened()

    class Away(SingleObjectCodec):
        def decode_record(self, data: bytes) -> dict[str, object]:
            raise RegistryUnavailableError("registry", f"away: {len(data)} bytes")

    stand.log.codec = Away()
    stand.worker.take([(RawMessage(PLACE, 1, 7, b"op", b"\x00\x00\x00\x00\x01x"), 0)])
    assert stand.store.header.applied_offset == 1
    assert stand.phase() is Phase.CLAIMING


@pytest.mark.parametrize(
    ("first", "end", "phase", "halted"),
    [(0, 0, Phase.HALTED, "made anew"), (0, 9, Phase.CLAIMING, ""), (5, 9, Phase.CLAIMING, "")],
)
def test_out_of_range(stand: Stand, first: int, end: int, phase: Phase, halted: str) -> None:
    """A log that ends before the position is another one; a position before its beginning is a gap."""
    stand.opened()
    stand.log.first, stand.log.end = first, end
    stand.worker.out_of_range()
    assert stand.phase() is phase
    assert halted in stand.store.header.halted
    if first:
        stand.serve()
        stand.worker.out_of_range()
        assert "records 1 to 4" in stand.store.header.halted


def test_a_log_that_begins_late(stand: Stand) -> None:
    """A rebuild starts where the log begins, if all before that is settled."""
    stand.log.group = Settled(10, 1, "old", "topic")
    stand.serve()
    stand.log.reports[0](30, "")
    stand.serve()
    stand.log.first, stand.log.end = 7, 31
    stand.worker.out_of_range()
    assert stand.store.header.applied_offset == stand.log.position == 7


def test_a_truncated_log(stand: Stand) -> None:
    """Records that were applied and are gone: an operator must look."""
    stand.opened()
    stand.worker.cut()
    assert "truncated" in stand.store.header.halted
    assert stand.phase() is Phase.HALTED


def test_settled_offsets_to_save(stand: Stand) -> None:
    """Only what is stored, only what is beyond what the group keeps, and again when saving failed."""
    assert stand.worker.unsaved() is None
    stand.opened()
    settled = stand.worker.unsaved()
    assert settled is not None
    assert (settled.offset, settled.incarnation, settled.topic_id) == (1, stand.store.header.incarnation, "topic")
    stand.worker.saved(settled)
    assert stand.worker.unsaved() is None
    stand.worker.saved(None)
    assert stand.worker.unsaved() is not None


def test_the_group_keeps_nothing_past_a_debt(stand: Stand) -> None:
    """What is owed bounds what the group is told: after a loss the cleaner may have been everywhere below that."""
    stand.opened()
    stand.take((1, intent("op", "a")), (2, intent("op", "b")), (3, intent("other", "c")))
    settled = stand.worker.unsaved()
    assert stand.store.header.applied_offset == 4
    assert settled is not None
    assert settled.offset == 2


def test_the_group_is_never_taken_back(stand: Stand) -> None:
    """A store that went back does not lower what the group keeps."""
    stand.log.group = Settled(50, 1, "old", "topic")
    stand.store.header = Header(incarnation="i", opened=True, applied_offset=20, settled_offset=20)
    stand.serve()
    stand.take((20, intent("a")))
    assert stand.worker.unsaved() is None


def test_caught_up(stand: Stand) -> None:
    """It says that it has caught up only when it reached the end that the log told, and the log answers."""
    stand.opened()
    stand.store.touched = 0
    stand.log.end = 5
    stand.now += 1
    stand.serve()
    assert stand.store.touched == 0
    stand.log.end = 1
    stand.now += 1
    stand.worker.serve(alive=False)
    assert stand.store.touched == 0
    stand.now += 1
    stand.serve()
    assert stand.store.touched == 1
    stand.serve()
    assert stand.store.touched == 1


def test_stale_messages(stand: Stand) -> None:
    """What was fetched before the position went forward is skipped; what comes in the wrong phase is dropped."""
    stand.opened()
    stand.take((0, intent("old")), (1, intent("a")))
    assert DocumentKey(OPS, "old") not in stand.store.docs
    assert stand.store.header.applied_offset == 2
    assert murmur2(b"a", 1) == 0
