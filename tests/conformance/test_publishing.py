"""A log that fails: in our own publish path, before and after the effect. Outcomes stay known, numbers stay complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.waiting import impatient
from conformance.worlds import World, never_suggests_a_retry, until

from fencepost.ledger import (
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    OperationInDoubtError,
    OperationInFlightError,
    OutcomeUnknownError,
    PublishRefusedError,
    ReasonKind,
    StoreError,
    StoreUnavailableError,
    VerdictKind,
)
from fencepost.ledger.engine import Engine, Tried
from fencepost.ledger.facts import decode_agent, decode_effect
from fencepost.ledger.operations import Status
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger import AgentSession
    from fencepost.ledger.history import Record
    from fencepost.ledger.positions import Partition

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}
UNAVAILABLE = StoreUnavailableError("the log is not reachable.", next_step="Wait.")
UNKNOWN = OutcomeUnknownError("it may or may not be written.", next_step="Look.")
REFUSED = PublishRefusedError("the log refuses it.", next_step="Correct it.")


class FaultyLog:
    """Makes the publishing of some kinds of fact fail, before or after it is written."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: dict[str, tuple[Exception, bool]] = {}
        self._afterwards: dict[str, Exception] = {}
        log: Any = ledger._engine.store.log
        original = log.publish

        async def publish(partition: Partition, record: Record) -> int | None:
            error, written = self._met(_kind(partition, record))
            offset: int | None = await original(partition, record) if written else None
            if error is not None:
                raise error
            return offset

        log.publish = publish
        persistent = Engine.publish

        async def hurried(
            engine: Engine, partition: Partition, record: Record, *, tried: Tried | None = None
        ) -> int | None:
            """What is known to fail is not tried for long; what works takes the time that a busy machine needs."""
            if engine is not ledger._engine or _kind(partition, record) not in self.failing:
                return await persistent(engine, partition, record, tried=tried)
            if tried is not None:
                tried.by = engine.clock.monotonic() + 0.3
            with impatient(ledger, publish_s=0.3):
                return await persistent(engine, partition, record, tried=tried)

        monkeypatch.setattr(Engine, "publish", hurried)
        self._make_the_straight_way_fail(log)
        self._make_the_short_way_fail(ledger._engine.store.at_once)

    def _make_the_straight_way_fail(self, log: Any) -> None:
        """The same errors where a log is written to from the caller's thread."""
        original = getattr(log, "publish_here", None)

        def publish_here(partition: Partition, record: Record, **options: Any) -> int | None:
            error, written = self._met(_kind(partition, record))
            offset: int | None = original(partition, record, **options) if original and written else None
            if error is not None:
                raise error
            return offset

        if original is not None:
            log.publish_here = publish_here

    def _make_the_short_way_fail(self, way: Any) -> None:
        """Where a store has one: the same errors, before the transaction is committed or after it."""
        if way is None:
            return
        write, write_here = way.write, way.write_here

        async def awaited(work: Any, *reads: Any) -> Any:
            failing = _FailingWork(self, work)
            found = await write(failing, *reads)
            if failing.after is not None:
                raise failing.after
            return found

        def waiting(work: Any, *reads: Any) -> Any:
            failing = _FailingWork(self, work)
            found = write_here(failing, *reads)
            if failing.after is not None:
                raise failing.after
            return found

        way.write, way.write_here = awaited, waiting

    def fail(self, kind: str, error: Exception, *, written: bool, afterwards: Exception | None = None) -> None:
        """From now on; `afterwards` is what becomes of every try but the first, of which nothing is written."""
        self.failing[kind] = (error, written)
        if afterwards is not None:
            self._afterwards[kind] = afterwards

    def _met(self, kind: str) -> tuple[Exception | None, bool]:
        found = self.failing.get(kind, (None, True))
        if kind in self._afterwards and kind in self.failing:
            self.failing[kind] = (self._afterwards.pop(kind), False)
        return found

    def heal(self) -> None:
        self.failing.clear()


def _kind(partition: Partition, record: Record) -> str:
    decode: Any = decode_effect if partition.topic is Topic.EFFECTS else decode_agent
    return decode(record.fact).kind.value if record.fact else ""


class _FailingWork:
    """A work of the short way, of which the publishing of some kinds of fact fails."""

    def __init__(self, faulty: FaultyLog, work: Any) -> None:
        self._faulty = faulty
        self._work = work
        self.after: Exception | None = None
        """What is raised once the transaction is committed."""

    def __call__(self, writing: Any) -> Any:
        self._writing = writing
        self.read, self.history = writing.read, writing.history
        return self._work(self)

    def publish(self, partition: Partition, record: Record) -> Any:
        error, written = self._faulty._met(_kind(partition, record))
        if error is not None and not written:
            raise error
        self.after = error or self.after
        return self._writing.publish(partition, record)


@pytest.fixture
def failing(world: World) -> Ledger:
    return world.open()


@pytest.fixture
def faulty(failing: Ledger, monkeypatch: pytest.MonkeyPatch) -> FaultyLog:
    return FaultyLog(failing, monkeypatch)


@pytest.fixture
def session(failing: Ledger, faulty: FaultyLog, world: World) -> Iterator[AgentSession]:
    session = failing.session(world.agent).open()
    yield session
    faulty.heal()
    try:
        session.close()
    except StoreError:
        session.close()


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", [UNAVAILABLE, UNKNOWN, REFUSED], ids=lambda e: type(e).__name__)
def test_publish_fails_after_the_effect(
    world: World, ledger: Ledger, session: AgentSession, faulty: FaultyLog, error: Exception, *, written: bool
) -> None:
    """The effect happened and its commit cannot be published: told with the result attached, and never run again."""
    if written and error is not UNKNOWN:
        written = False  # what is certainly not written is not
    faulty.fail("COMMITTED", error, written=written)
    with pytest.raises(OutcomeUnknownError) as caught:
        world.charge(session, "effect")
    assert caught.value.result == {"order": world.key("effect"), "cents": 50}
    assert caught.value.op_id == world.op_id("effect")
    assert not caught.value.retryable
    assert never_suggests_a_retry(str(caught.value))
    faulty.heal()
    if written:
        assert world.charge(session, "effect") == caught.value.result
    else:
        with pytest.raises((OperationInFlightError, OperationInDoubtError)):
            world.charge(session, "effect", wait_s=0.2)
        session.close()
        until(lambda: ledger.in_doubt(world.agent))
        [item] = ledger.in_doubt(world.agent)
        assert item.operation.op_id == world.op_id("effect")
        settled = ledger.resolve(
            item.operation.op_id, outcome="committed", version=item.operation.version, by="ann", evidence="kept",
            result=caught.value.result,
        )  # fmt: skip
        assert settled.status is Status.COMMITTED
        with ledger.session(world.agent) as later:
            assert world.charge(later, "effect") == caught.value.result
    assert world.hits("effect") == 1


def test_commit_can_be_said_again(world: World, ledger: Ledger, session: AgentSession, faulty: FaultyLog) -> None:
    """An attempt whose commit could not be published is still open, and can be committed once the log is back."""
    attempt = session.attempt(key=world.key("again"), **SEND).begin()
    assert attempt.owned
    faulty.fail("COMMITTED", UNKNOWN, written=False)
    with pytest.raises(OutcomeUnknownError):
        attempt.commit({"id": 7})
    faulty.heal()
    attempt.commit({"id": 7})
    assert world.status(attempt.op_id, Status.COMMITTED).anomalies == []


def test_what_was_said_to_have_happened_is_not_withdrawn(
    world: World, session: AgentSession, faulty: FaultyLog
) -> None:
    """A commit that cannot be published says that the effect was run, though its permit was never asked for."""
    attempt = session.attempt(key=world.key("said"), **SEND).begin()
    faulty.fail("COMMITTED", UNKNOWN, written=False)
    with pytest.raises(OutcomeUnknownError):
        attempt.commit({"id": 7})
    faulty.heal()
    session.close()
    world.status(attempt.op_id, Status.IN_DOUBT)


def test_a_session_that_is_closed_lets_nothing_start(world: World, session: AgentSession) -> None:
    """Closed, by another thread perhaps, between the claim and the effect: in doubt, and the permit is not given."""
    attempt = session.attempt(key=world.key("late"), **SEND).begin()
    session.close()
    for _ in range(2):
        with pytest.raises(FencedError, match="in doubt"):
            _ = attempt.owned
    assert world.status(attempt.op_id, Status.IN_DOUBT).anomalies == []


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", [UNAVAILABLE, UNKNOWN, REFUSED], ids=lambda e: type(e).__name__)
def test_publish_fails_before_the_effect(
    world: World, ledger: Ledger, session: AgentSession, faulty: FaultyLog, error: Exception, *, written: bool
) -> None:
    """An intent that cannot be published runs nothing, and leaves the operation free for the next who asks."""
    if written and error is not UNKNOWN:
        written = False
    faulty.fail("INTENDED", error, written=written)
    with pytest.raises(StoreError):
        world.charge(session, "effect")
    assert world.hits("effect") == 0
    faulty.heal()
    session.checkpoint("c")  # drains what was withdrawn
    world.charge(session, "effect")
    assert world.hits("effect") == 1
    assert world.status(world.op_id("effect"), Status.COMMITTED).anomalies == []


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("INTENDED", UNAVAILABLE),
        ("INTENDED", UNKNOWN),  # its withdrawal says that it means nothing, whether it arrives or not
        ("INTENDED", REFUSED),
        ("CHECKPOINTED", UNAVAILABLE),
        ("CHECKPOINTED", REFUSED),
        ("CALL_REPORTED", UNAVAILABLE),
        ("CALL_REPORTED", REFUSED),
    ],
)
def test_numbers_stay_complete(
    world: World, session: AgentSession, faulty: FaultyLog, error: Exception, kind: str
) -> None:
    """What was certainly not written leaves no hole in the sequence: later checkpoints can be gone back to."""
    faulty.fail(kind, error, written=False)
    with pytest.raises(StoreError):
        act(world, session, kind)
    faulty.heal()
    world.charge(session, "later")
    mark = session.checkpoint("c")
    until(lambda: world.ledger.watermark(world.agent).mark.seq >= mark.seq)
    session.close()
    assert world.preview("c").kind is VerdictKind.PROCEED
    assert [f for f in world.ledger.verify().findings if f.where == session.session_id] == []


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", ["CHECKPOINTED", "CALL_REPORTED", "COMMITTED", "ABSORBED"])
def test_number_of_a_fact_that_may_be_written(
    world: World, ledger: Ledger, session: AgentSession, faulty: FaultyLog, kind: str, *, written: bool
) -> None:
    """Nobody knows whether a fact was written: once the log is back its number is accounted for, and nothing is lost."""
    world.charge(ledger.session(f"other-{world.agent}").open(), "shared")
    faulty.fail(kind, UNKNOWN, written=written)
    with pytest.raises(OutcomeUnknownError):
        act(world, session, kind)
    if kind in {"CALL_REPORTED", "ABSORBED"}:
        with pytest.raises(OutcomeUnknownError):
            session.checkpoint("while it fails")
    faulty.heal()
    session.checkpoint("c")
    until(lambda: "c" in ledger.agent(world.agent).checkpoints)
    verdict = world.preview("c")
    assert ReasonKind.WATERMARK_AHEAD not in {reason.kind for reason in verdict.reasons}
    calls = ledger.submit(ledger._engine.view.calls(world.agent)).result()
    assert [call.tool for call in calls] == (["shell"] if kind == "CALL_REPORTED" else [])
    registered = ledger.agent(world.agent).checkpoints.keys() - {"while it fails"}
    assert registered == ({"c", "lost"} if kind == "CHECKPOINTED" and written else {"c"})
    told = [reason.kind for reason in verdict.reasons]
    if kind == "COMMITTED" and not written:  # still open, and told so
        assert told in ([], [ReasonKind.EFFECT_OWNED])
    elif (
        kind == "COMMITTED"
    ):  # its call has not returned: no state is sure to hold the effect until it is asked for again
        assert told == [ReasonKind.EFFECT_NOT_KNOWN]
        world.charge(session, "effect")
        session.checkpoint("again")
        until(lambda: "again" in ledger.agent(world.agent).checkpoints)
        assert world.preview("again").authorised
    else:
        assert verdict.authorised


def act(world: World, session: AgentSession, kind: str) -> None:
    """Publish a fact of this kind."""
    if kind == "INTENDED":
        world.charge(session, "effect")
    elif kind == "CHECKPOINTED":
        session.checkpoint("lost")
    elif kind == "COMMITTED":
        world.charge(session, "effect")
    elif kind == "ABSORBED":
        world.charge(session, "shared")
        session.checkpoint("lost")
    else:
        session.report_call("shell", kind=EffectClass.READ)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"state_digest": "half \ud800"}, "state_digest"), ({"state_digest": "x" * 2_000_000}, "state_digest"), ({"generation": -1}, "generation")],
)  # fmt: skip
def test_checkpoint_with_unusable_values(
    world: World, ledger: Ledger, session: AgentSession, options: dict[str, Any], field: str
) -> None:
    """Values that cannot be recorded are refused by name, and leave no hole either."""
    with pytest.raises(InvalidArgumentError) as caught:
        session.checkpoint("c", **options)
    assert caught.value.field == field
    mark = session.checkpoint("c")
    assert ledger.watermark(world.agent).mark.seq >= mark.seq


def test_what_was_published_in_the_background_is_not_lost_silently(
    world: World, ledger: Ledger, session: AgentSession, faulty: FaultyLog
) -> None:
    """An asynchronous commit that failed is raised by the next checkpoint, which then is not registered."""
    faulty.fail("COMMITTED", REFUSED, written=False)
    with session.attempt("cache.fill", key=world.key("c"), kind=EffectClass.REPEATABLE) as attempt:
        attempt.commit()
    with pytest.raises(StoreError):
        session.checkpoint("c")
    assert ledger.checkpoints(world.agent) == []
    faulty.heal()
    session.checkpoint("c")
    until(lambda: len(ledger.checkpoints(world.agent)) == 1)


def test_absorbed_result_is_noted_although_its_first_note_failed(
    world: World, failing: Ledger, session: AgentSession, faulty: FaultyLog
) -> None:
    """A note that a result was absorbed, once lost, is written when the result is absorbed again."""
    mark = session.checkpoint("before")
    world.charge(session, "shared")
    again = failing.session(world.agent, resumed_from=mark).open()
    faulty.fail("ABSORBED", REFUSED, written=False)
    world.charge(again, "shared")
    with pytest.raises(StoreError):
        again.checkpoint("lost")
    faulty.heal()
    world.charge(again, "shared")
    again.checkpoint("c")
    again.close()
    assert world.preview("c").authorised
