"""A partition's worker without Kafka and Redis: what it says when a projection begins, and when it cannot."""

from __future__ import annotations

import logging

import pytest
from projector_fakes import Stand

from fencepost.consumer.kafka_client import Settled
from fencepost.consumer.partition_worker import Phase
from fencepost.ledger.ports import Header


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
