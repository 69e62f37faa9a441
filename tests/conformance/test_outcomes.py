"""Outcomes that are hard to write down, and bounds that keep them writable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    EffectNotExecuted,
    InvalidArgumentError,
    Ledger,
    RecordTooLargeError,
    ResultNotRecordedError,
    TooManyAttemptsError,
    VersionMovedError,
)
from fencepost.ledger.operations import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger import AgentSession

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


def break_off(session: AgentSession, key: str, error: Exception, *, start: bool = True) -> None:
    """Leave an attempt by an exception, after its effect was started or before."""
    with session.attempt(key=key, **SEND) as attempt:
        assert not start or attempt.owned
        raise error


@pytest.mark.parametrize(
    ("value", "form"), [(object(), "NOT_ENCODABLE"), (float("nan"), "NOT_ENCODABLE"), ("\ud800", "NOT_ENCODABLE"), ("x" * 300_000, "TOO_LARGE")]
)  # fmt: skip
def test_result_that_cannot_be_kept_is_still_a_commit(
    session: AgentSession, world: World, value: Any, form: str
) -> None:
    """The effect happened: it is committed, its result is told to be elsewhere, and nobody runs it again."""
    with session.attempt(key=world.key("r"), **SEND) as attempt:
        assert attempt.owned
        attempt.commit(value, reference="s3://bucket/result")
    assert attempt.result is value
    again = session.attempt(key=world.key("r"), **SEND).begin()
    assert not again.owned
    with pytest.raises(ResultNotRecordedError) as caught:
        _ = again.result
    assert (caught.value.form, caught.value.reference) == (form, "s3://bucket/result")
    assert not caught.value.retryable


def test_error_text_of_any_kind_is_recorded(session: AgentSession, world: World, ledger: Ledger) -> None:
    """An exception whose text cannot be written as UTF-8, or is very long, still leaves its effect in doubt."""
    for name, text in [("surrogate", "file \ud800 name"), ("long", "x" * 3_000_000)]:
        with pytest.raises(TimeoutError):
            break_off(session, world.key(name), TimeoutError(text))
        world.status(world.op_id(name, "mail.send"), Status.IN_DOUBT)


def test_words_of_the_caller_do_not_lose_the_outcome(session: AgentSession, world: World, ledger: Ledger) -> None:
    """What a caller says beside an outcome (a reason, a reference) cannot keep the outcome from being recorded."""
    for name, text in [("surrogate", "\ud800"), ("long", "x" * 3_000_000)]:
        for decision, status in [("fail", Status.FREE), ("doubt", Status.IN_DOUBT)]:
            attempt = session.attempt(key=world.key(f"{name}-{decision}"), **SEND).begin()
            assert attempt.owned
            getattr(attempt, decision)(text)
            world.status(attempt.op_id, status)
        attempt = session.attempt(key=world.key(f"{name}-commit"), **SEND).begin()
        assert attempt.owned
        attempt.commit(reference=text)
        world.status(attempt.op_id, Status.COMMITTED)


def test_attempts_are_capped(world: World) -> None:
    """An operation that fails for ever ends with a clear error, not with a record that no longer fits."""
    ledger = world.open(max_attempts=3)
    with ledger.session(world.agent) as session:
        for _ in range(3):
            session.attempt(key=world.key("c"), **SEND).begin().fail("no")
        with pytest.raises(TooManyAttemptsError) as caught:
            session.attempt(key=world.key("c"), **SEND).begin()
        assert (caught.value.attempts, caught.value.limit) == (3, 3)
        assert "max_attempts" in caught.value.next_step


def test_an_operator_lets_a_capped_operation_go_on(world: World) -> None:
    """By the version that was seen, as the error names it: so many attempts again, and only then; not before the cap."""
    ledger = world.open(max_attempts=3)

    def resolve(version: str) -> Operation:
        return ledger.resolve(
            world.op_id("step"), outcome="absent", version=version, by="ann", evidence="the provider is back"
        )

    with ledger.session(world.agent) as session:
        with pytest.raises(TooManyAttemptsError) as caught:
            failing(session, world.key("step"))
        version = world.status(world.op_id("step"), Status.FREE).version
        assert f"in-doubt resolve {world.op_id('step')} --absent --version {version}" in caught.value.next_step
        with pytest.raises(VersionMovedError):
            resolve("0.0")
        assert resolve(version).status is Status.FREE
        with pytest.raises(InvalidArgumentError, match="does not apply"):
            resolve(ledger.operation(world.op_id("step")).operation.version)
        with pytest.raises(TooManyAttemptsError):
            failing(session, world.key("step"))
        resolve(ledger.operation(world.op_id("step")).operation.version)
        world.charge(session, "step")
    assert world.hits("step") == 1
    assert sum(a.owned for a in world.status(world.op_id("step"), Status.COMMITTED).attempts.values()) == 7


def failing(session: AgentSession, order: str) -> None:
    """Ten calls of a tool whose provider is down."""
    identity = {"order": order, "cents": 50}
    for _ in range(10):
        attempt = session.attempt("billing.charge", key=order, kind=EffectClass.IRREVERSIBLE, identity=identity)
        with pytest.raises(EffectNotExecuted), attempt:
            raise EffectNotExecuted("the provider is down")


@pytest.mark.parametrize("cap", ["max_attempts", "max_history_bytes"])
def test_the_way_on_from_a_cap(world: World, cap: str) -> None:
    """It is named by the error, and works: under a higher limit the effect runs, under its own name, once."""
    before, after = {"max_attempts": (3, 5), "max_history_bytes": (1_000, 100_000)}[cap]
    low = world.open(**{cap: before})
    with low.session(world.agent) as session, pytest.raises((TooManyAttemptsError, RecordTooLargeError), match=cap):
        failing(session, world.key("step"))
    with world.open(**{cap: after}).session(world.agent) as session:
        world.charge(session, "step")
        world.charge(session, "step")
    assert world.hits("step") == 1


def test_history_keeps_room_for_the_outcome(world: World) -> None:
    """An intent is refused when the largest outcome might not fit into the operation's record any more."""
    ledger = world.open(max_history_bytes=3000)
    with ledger.session(world.agent) as session:

        def fill() -> None:
            for _ in range(20):
                session.attempt(key=world.key("h"), **SEND).begin().fail("x" * 400)

        with pytest.raises(RecordTooLargeError) as caught:
            fill()
        assert caught.value.size_bytes > caught.value.limit_bytes == 3000
        session.checkpoint("c")  # and leaves no hole in the sequence
    assert ledger.watermark(world.agent).mark.seq == ledger.watermark(world.agent).highest_seq
