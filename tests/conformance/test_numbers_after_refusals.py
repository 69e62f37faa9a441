"""A log that refuses for a while, as one with too few replicas does: a session that is closed accounts for every number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from conformance.test_publishing import REFUSED, UNAVAILABLE, UNKNOWN, FaultyLog
from conformance.worlds import World, until

from fencepost.ledger import AgentSession, EffectClass, Ledger, OutcomeUnknownError, StoreError
from fencepost.ledger.operations import Status

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


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


def require_complete(world: World, session: AgentSession) -> None:
    with suppress(StoreError):  # what was refused is told here
        session.close()
    until(lambda: world.ledger.watermark(world.agent).sealed)
    assert [f for f in world.ledger.verify().findings if session.session_id in f.where] == []


@pytest.mark.parametrize("error", [UNAVAILABLE, REFUSED], ids=lambda e: type(e).__name__)
def test_neither_the_claim_nor_its_withdrawal(
    world: World, session: AgentSession, faulty: FaultyLog, error: StoreError
) -> None:
    """Nothing of it is written: no number is missing, and the operation is free."""
    faulty.fail("INTENDED", error, written=False)
    faulty.fail("FAILED", error, written=False)
    with pytest.raises(StoreError):
        session.attempt(key=world.key("claim"), **SEND).begin()
    faulty.heal()
    world.charge(session, "later")
    require_complete(world, session)


def test_a_withdrawal_of_a_claim_that_is_written(
    world: World, session: AgentSession, faulty: FaultyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim stands, came too late, and cannot be withdrawn: its own number and that of the withdrawal are no riddle."""
    faulty.fail("FAILED", REFUSED, written=False)
    with pytest.raises(StoreError):
        session.attempt(key=world.key("late"), deadline_s=0.0, **SEND).begin()
    op_id = f"mail.send:{world.key('late')}"
    until(lambda: [view.operation.status for view in world.ledger.operations(world.agent)] == [Status.OWNED])
    assert world.ledger.operation(op_id).operation.status is Status.OWNED
    faulty.heal()
    require_complete(world, session)


@pytest.mark.parametrize("kind", ["IN_DOUBT", "FAILED"])
def test_a_call_that_is_open_at_the_close(world: World, session: AgentSession, faulty: FaultyLog, kind: str) -> None:
    """The close cannot say what became of it, and still accounts for every number."""
    attempt = session.attempt(key=world.key("open"), **SEND).begin()
    if kind == "IN_DOUBT":
        assert attempt.owned
    faulty.fail(kind, REFUSED, written=False)
    require_complete(world, session)


def test_a_refusal_after_a_try_that_perhaps_succeeded(world: World, session: AgentSession, faulty: FaultyLog) -> None:
    """The outcome was written, and nobody knows; the next try is refused for certain: its number is not given out again."""
    faulty.fail("COMMITTED", UNKNOWN, written=True, afterwards=REFUSED)
    with pytest.raises(OutcomeUnknownError):
        world.charge(session, "first")
    faulty.heal()
    world.charge(session, "second")
    settled = [world.status(world.op_id(name), Status.COMMITTED).settled for name in ("first", "second")]
    assert len({fact.seq for fact in settled if fact is not None}) == 2
    require_complete(world, session)
