"""The short way of an effect when its COMMIT fails: the long way goes on from what is known, and no number is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Timer
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from conformance.worlds import PATIENCE_S, World
from faults.short_ways import SEND, Ways, Writing, attempts_at, complete, interrupted, ledger, ways, world, writer

from fencepost.ledger import EffectClass, Ledger
from fencepost.ledger.embedded_writer import Writer
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.moments import Moment

__all__ = ["interrupted", "ledger", "ways", "world", "writer"]  # fixtures
BUSY = (apsw.BusyError("locked"), False)
LOST = (apsw.IOError("the disk failed"), False)
DONE = (apsw.IOError("the disk failed, and it was written"), True)
FAILURES = pytest.mark.parametrize("failure", [BUSY, LOST, DONE], ids=["busy", "unknown-lost", "unknown-written"])


class FailingSql:
    """A connection of which a COMMIT fails, done or not."""

    def __init__(self, sql: apsw.Connection, failing: Commits) -> None:
        self._sql = sql
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sql, name)

    def execute(self, statement: str, *args: Any) -> Any:
        if statement != "COMMIT" or self._failing.next is None:
            return self._sql.execute(statement, *args)
        (error, written), self._failing.next = self._failing.next, None
        self._failing.failed += 1
        if written:
            self._sql.execute(statement)
        raise error


@dataclass
class Connected:
    """What the writer has of a connection."""

    sql: FailingSql


@dataclass
class Commits:
    """How the next COMMIT fails, and how many did."""

    next: tuple[Exception, bool] | None = None
    failed: int = 0
    kinds: list[str] = field(default_factory=list)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    commits, begin = Commits(), Writer._begin
    monkeypatch.setattr(Writer, "_begin", lambda self: Connected(FailingSql(begin(self).sql, commits)))
    return commits


def fail_with(ways: Ways, commits: Commits, kind: str, failure: tuple[Exception, bool]) -> None:
    """The COMMIT fails, once, of the transaction that publishes a fact of this kind on the short way."""
    armed = [failure]

    def before(moment: Moment) -> None:
        if moment.kind == kind and moment.short and armed:
            commits.next = armed.pop()

    ways.also = before


@FAILURES
def test_the_commit_of_an_intent_fails(
    world: World, ledger: Ledger, ways: Ways, commits: Commits, failure: tuple[Exception, bool]
) -> None:
    """Certainly not written, the long way runs it. Not known: that attempt is withdrawn, and another one runs it, once."""
    with ledger.session(world.agent) as session:
        session.checkpoint("start")
        fail_with(ways, commits, "INTENDED", failure)
        assert world.charge(session, "step", wait_s=10) == {"order": world.key("step"), "cents": 50}
        assert commits.failed == 1
        assert ways.went("INTENDED") == [("INTENDED", "long")]
        assert (session.state.open_attempts, session.state.unreturned) == ({}, {})
        session.checkpoint("c")
        assert world.preview("c").authorised
    assert world.hits("step") == 1
    operation = world.status(world.op_id("step"), Status.COMMITTED)
    assert operation.anomalies == []
    assert len([a for a in operation.attempts.values() if a.owned]) == (2 if failure is DONE else 1)
    complete(world)


@FAILURES
def test_the_commit_of_an_outcome_fails(
    world: World, ledger: Ledger, ways: Ways, commits: Commits, failure: tuple[Exception, bool]
) -> None:
    """Whatever became of it, the very same fact is published the long way: committed, once, and asked for again absorbed."""
    with ledger.session(world.agent) as session:
        fail_with(ways, commits, "COMMITTED", failure)
        assert world.charge(session, "step") == world.charge(session, "step")
        assert commits.failed == 1
        assert ways.went("COMMITTED") == [("COMMITTED", "long")]
        assert session.state.open_operations() == ()
        session.checkpoint("c")
        assert world.preview("c").authorised
    assert world.hits("step") == 1
    operation = world.status(world.op_id("step"), Status.COMMITTED)
    assert (operation.anomalies, len(operation.attempts)) == ([], 1)
    complete(world)


@pytest.mark.parametrize("failure", [BUSY, LOST], ids=["busy", "unknown-lost"])
def test_what_was_read_in_a_transaction_that_failed_is_not_used(
    world: World, ledger: Ledger, ways: Ways, writer: Writing, *, commits: Commits, failure: tuple[Exception, bool]
) -> None:
    """Two sessions begin one effect in one transaction, one as its owner: the COMMIT fails, and it is run once all the same."""
    with (
        ledger.session(world.agent) as one,
        ledger.session(f"other-{world.agent}") as other,
        ThreadPoolExecutor(2) as two,
    ):
        fail_with(ways, commits, "INTENDED", failure)
        writer.hold()
        running = [two.submit(world.charge, session, "step", wait_s=20) for session in (one, other)]
        writer.wait_for(2)
        writer.release()
        results = [future.result(PATIENCE_S) for future in running]
    assert commits.failed == 1
    assert ways.went("INTENDED")[0] == ("INTENDED", "long")
    assert results[0] == results[1]
    assert world.hits("step") == 1
    assert world.status(world.op_id("step"), Status.COMMITTED).anomalies == []
    complete(world)


def test_a_repeatable_effect_rests_on_nothing_that_was_rolled_back(
    world: World, ledger: Ledger, ways: Ways, writer: Writing, commits: Commits
) -> None:
    """It claims nothing; of an operation that it read in a transaction that failed, it takes the state that stands."""
    with ledger.session(world.agent) as session, ThreadPoolExecutor(2) as two:
        fail_with(ways, commits, "INTENDED", BUSY)
        writer.hold()
        claiming = two.submit(session.attempt(key=world.key("claimed"), **SEND).begin)
        writer.wait_for(1)
        fill: dict[str, Any] = {"tool": "cache.fill", "kind": EffectClass.REPEATABLE}
        filling = two.submit(session.attempt(key=world.key("filled"), **fill).begin)
        writer.wait_for(2)
        writer.release()
        claimed, filled = claiming.result(PATIENCE_S), filling.result(PATIENCE_S)
        assert commits.failed == 1
        assert (claimed.owned, filled.owned) == (True, True)
        assert len(attempts_at(world, claimed.op_id)) == 1
        assert attempts_at(world, filled.op_id) == []
        claimed.commit(1)
        filled.commit(2)
    assert ways.went("COMMITTED") == [("COMMITTED", "short"), ("COMMITTED", "long")]
    assert world.status(filled.op_id, Status.COMMITTED).anomalies == []
    complete(world)


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_interrupted_while_it_is_committed(
    world: World, ledger: Ledger, ways: Ways, *, interrupted: Callable[..., None], moment: str
) -> None:
    """The effect has happened, and its commit goes on: committed, once, and the session's end changes nothing of that."""
    with ledger.session(world.agent) as session:

        @session.effect("mail.send", kind=EffectClass.IRREVERSIBLE, key=lambda key: key)
        def send(key: str) -> str:
            del key
            world.hit("sent")
            ways.stop = "COMMITTED" if moment == "while" else ""
            interrupted(moment, (lambda: ways.reached.wait(PATIENCE_S)) if ways.stop else lambda: None)
            return "sent"

        with pytest.raises(KeyboardInterrupt):
            send(world.key("sent"))
        Timer(0.2, ways.released.set).start()
    operation = world.status(world.op_id("sent", "mail.send"), Status.COMMITTED)
    assert (operation.anomalies, len(operation.attempts), world.hits("sent")) == ([], 1, 1)
    complete(world)
