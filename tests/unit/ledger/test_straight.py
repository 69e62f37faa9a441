"""An outcome that is published straight from where its effect ran: one try, and what it leaves to the long way."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencepost.ledger import settling, straight
from fencepost.ledger.attempts import Claim
from fencepost.ledger.calls import Call
from fencepost.ledger.engine import Engine
from fencepost.ledger.errors import OutcomeUnknownError, PublishRefusedError, RecordTooLargeError
from fencepost.ledger.facts import EffectClass, EffectFact
from fencepost.ledger.history import Record
from fencepost.ledger.limits import Limits
from fencepost.ledger.operations import Operation
from fencepost.ledger.positions import Partition, Position
from fencepost.ledger.sessions import SessionState
from fencepost.ledger.watermarks import Point

UNKNOWN = OutcomeUnknownError("nobody answered.", next_step="Look.")
REFUSED = PublishRefusedError("the log refuses it.", next_step="Correct it.")
PUBLISH_S = 0.3


class _Log:
    """Answers with errors, one after the other; then it takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.records: list[Record] = []
        self.silent = False

    def partition_of(self, *_: object) -> int:
        return 0

    def publish_here(self, partition: Partition, record: Record, *, timeout_s: float) -> int:
        assert timeout_s == PUBLISH_S
        return self._taken(partition, record)

    async def publish(self, partition: Partition, record: Record) -> int:
        if self.silent:
            await asyncio.sleep(60)
        return self._taken(partition, record)

    def _taken(self, partition: Partition, record: Record) -> int:
        del partition
        if self.errors:
            raise self.errors.pop(0)
        self.records.append(record)
        return len(self.records)


def claimed(log: _Log, kind: EffectClass = EffectClass.IRREVERSIBLE) -> Claim:
    store: Any = SimpleNamespace(log=log, straight=log, at_once=None)
    engine = Engine(store, limits=Limits(publish_s=PUBLISH_S))
    session = SessionState(engine, "a", "main", "s", Position(0, 0), Point(Position(0, 0), 0), "0")
    call = Call(op_id="op", tool="t", effect_class=kind)
    return Claim(session, call, Operation("op"), owned=True, attempt_id="one", started=True)


def settled(claim: Claim, fact: EffectFact, *, awaited: bool) -> bool:
    return asyncio.run(straight.settled(claim, fact)) if awaited else straight.settled_here(claim, fact)


@pytest.mark.parametrize("awaited", [False, True])
def test_one_try_is_enough(*, awaited: bool) -> None:
    """The fact is in the log, once."""
    log = _Log()
    claim = claimed(log)
    fact = settling.committed(claim, {"v": 1})
    assert settled(claim, fact, awaited=awaited)
    assert [record.key for record in log.records] == ["op"]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(("first", "perhaps"), [(UNKNOWN, True), (REFUSED, False)])
def test_what_the_first_try_left_open_the_second_does_not_settle(
    first: Exception, *, perhaps: bool, awaited: bool
) -> None:
    """A refusal of the second try says nothing of the first: then the number is not given out again."""
    log = _Log(first, RecordTooLargeError("too large.", next_step="Shorten.", size_bytes=2, limit_bytes=1))
    claim = claimed(log)
    fact = settling.committed(claim, {"v": 1})
    assert not settled(claim, fact, awaited=awaited)
    assert claim.tried is not None
    assert claim.tried.perhaps_written is perhaps
    with pytest.raises(OutcomeUnknownError) as caught:
        asyncio.run(settling.settle(claim, fact, settling.COMMITTED))
    assert caught.value.result == {"v": 1}
    sequence = claim.session.sequence
    assert (sequence.last == fact.seq, fact.seq in sequence.voided) == (perhaps, perhaps)


def test_the_very_same_fact_goes_the_long_way() -> None:
    """After a try of which nobody knows, the same bytes are published."""
    log = _Log(UNKNOWN)
    claim = claimed(log)
    fact = settling.committed(claim, {"v": 1})
    assert not straight.settled_here(claim, fact)
    asyncio.run(settling.settle(claim, fact, settling.COMMITTED))
    assert [record.fact for record in log.records] == [claim.session.engine.encoded(fact)]
    assert claim.decided == settling.COMMITTED


def test_both_ways_together_take_no_longer_than_one_may() -> None:
    """An outcome that nobody acknowledges is told within `publish_s`, over all tries."""
    log = _Log()
    log.silent = True
    claim = claimed(log)
    fact = settling.committed(claim, {"v": 1})
    began = time.monotonic()
    assert not settled(claim, fact, awaited=True)
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(settling.settle(claim, fact, settling.COMMITTED))
    assert time.monotonic() - began < 2 * PUBLISH_S


def test_what_is_not_waited_for_goes_the_long_way() -> None:
    """The record of an effect that needs no confirmation is published in the background."""
    log = _Log()
    claim = claimed(log, EffectClass.REPEATABLE)
    assert not straight.settled_here(claim, cast("EffectFact", None))
    assert not log.records
