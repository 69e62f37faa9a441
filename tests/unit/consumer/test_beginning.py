"""A partition's worker without Kafka and Redis: what it says when a projection begins, and when it cannot."""

from __future__ import annotations

import logging

import pytest
from projector_fakes import Stand, intent

from fencepost.consumer import folding
from fencepost.consumer.kafka_client import Settled
from fencepost.consumer.partition_worker import Phase
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import PositionedFact, Record
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import OPS, read_history


@pytest.fixture
def stand() -> Stand:
    return Stand()


def begun(stand: Stand, log: pytest.LogCaptureFixture) -> logging.LogRecord:
    """Let a projection begin; what is said of it."""
    stand.serve()
    stand.log.reports[-1](0, "")
    with log.at_level(logging.INFO, "fencepost.projector"):
        log.clear()
        stand.serve()
    [said] = [record for record in log.records if "begins a new projection" in record.message]
    return said


def test_a_first_start_is_no_trouble(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing was, nothing is lost."""
    said = begun(stand, caplog)
    assert said.levelno == logging.INFO
    assert "former" not in said.message


def test_a_lost_projection_is_said_loudly(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    """A settled offset of the group tells that there was a projection."""
    stand.log.group = Settled(40, 1, "old", "topic")
    said = begun(stand, caplog)
    assert said.levelno == logging.WARNING
    assert "it is gone" in said.message


def test_a_projection_lost_while_it_runs(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    """So does what the worker itself has seen."""
    stand.opened()
    stand.store.drop()
    stand.now += 1
    stand.serve()
    assert stand.phase() is Phase.CLAIMING
    assert begun(stand, caplog).levelno == logging.WARNING


def test_a_damaged_projection_is_begun_anew(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    """A claim that finds damage leads to a new projection, and what was amiss is said."""
    stand.store.header = Header(halted="it has 3 of 5 documents in ops")
    said = begun(stand, caplog)
    assert stand.phase() is Phase.FOLDING
    assert said.levelno == logging.WARNING
    assert "3 of 5 documents in ops" in said.message


def test_a_horizon_that_cannot_be_written_says_what_to_do(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    """The way on stands behind the reason."""
    stand.serve()
    stand.log.reports[0](None, "timed out")
    stand.serve()
    assert "timed out. Check that Kafka takes records" in caplog.text


def building(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Record], int]:
    """A projection that was just begun, keeps hardly any document at hand, and opens at the offset that is given back."""
    monkeypatch.setattr(folding, "_CACHED_DOCUMENTS", 1)
    intents = [intent(f"op{number}") for number in range(20)]
    stand.serve()
    stand.log.reports[-1](60, "")
    stand.serve()
    for offset, record in enumerate(intents):
        stand.take((offset, record))
    return intents, 61


def commit_of(record: Record, offset: int) -> Record:
    fact = EffectFact(kind=EffectKind.COMMITTED, op_id=record.key, attempt_id="a", agent_id="g", branch_id="b")
    return Record(record.key, (PositionedFact(Position(0, offset), record.fact or b""),), encode_effect(fact))


def test_what_a_new_projection_has_not_written_is_not_looked_for(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is there but what was written since it began; that is found again when it is no longer at hand."""
    intents, horizon = building(stand, monkeypatch)
    assert [key for key in stand.store.asked if key.collection == OPS] == []
    for number, record in enumerate(intents):
        stand.take((20 + number, commit_of(record, number)))
    assert DocumentKey(OPS, "op0") in stand.store.asked
    stand.take(*[(offset, intent("late")) for offset in range(40, horizon)])
    assert stand.is_open()
    for number in range(20):
        history = read_history(stand.store.docs[DocumentKey(OPS, f"op{number}")])
        assert [item.position.offset for item in history] == [number, 20 + number]


def test_an_older_projection_is_looked_into(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that did not begin it does not know what is there; and once it is open it may be asked about anything."""
    intents, horizon = building(stand, monkeypatch)
    stand.restart()
    stand.take((20, intents[0]))
    assert DocumentKey(OPS, "op0") in stand.store.asked
    stand.take(*[(offset, intent("late")) for offset in range(21, horizon)])
    assert stand.is_open()
    stand.take((horizon, intent("new")))
    assert DocumentKey(OPS, "new") in stand.store.asked
