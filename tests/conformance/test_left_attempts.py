"""An attempt that is left undecided, however: once its caller has it, its effect may have run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    AgentSession,
    AsyncLedger,
    EffectClass,
    EffectNotExecuted,
    FencedError,
    InvalidArgumentError,
    Ledger,
    OperationInDoubtError,
    ReasonKind,
    StaleProjectionError,
    VerdictKind,
    attempt_faces,
    running,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger import Attempt

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        yield session


def send(world: World, key: str = "") -> str:
    """The effect: it happens, and nobody hears of that."""
    world.hit("mail")
    raise TimeoutError(f"no answer about {key}")


def raising(session: AgentSession, world: World) -> None:
    with session.attempt(key=world.key("mail"), **SEND) as attempt:
        attempt.commit(send(world, attempt.idempotency_key))


def raising_without_the_key(session: AgentSession, world: World) -> None:
    with session.attempt(key=world.key("mail"), **SEND) as attempt:
        attempt.commit(send(world))


def silent(session: AgentSession, world: World) -> None:
    with session.attempt(key=world.key("mail"), **SEND) as attempt:
        world.hit(f"mail{attempt.idempotency_key[:0]}")


def closing(session: AgentSession, world: World) -> None:
    attempt = session.attempt(key=world.key("mail"), **SEND).begin()
    world.hit(f"mail{attempt.idempotency_key[:0]}")
    session.close()


def closing_without_the_key(session: AgentSession, world: World) -> None:
    session.attempt(key=world.key("mail"), **SEND).begin()
    world.hit("mail")
    session.close()


@pytest.mark.parametrize(
    "way", [raising, raising_without_the_key, silent, closing, closing_without_the_key], ids=lambda way: way.__name__
)
def test_left_without_asking_for_the_permit(
    session: AgentSession, world: World, ledger: Ledger, way: Callable[[AgentSession, World], None]
) -> None:
    """In doubt, whatever was read of the attempt: the effect is not run again, and nobody goes back over it."""
    try:
        way(session, world)
    except TimeoutError:
        assert way in {raising, raising_without_the_key}
    world.status(world.op_id("mail", "mail.send"), Status.IN_DOUBT)
    assert [item.operation.op_id for item in ledger.in_doubt(world.agent)] == [world.op_id("mail", "mail.send")]
    verdict = world.preview("c")
    assert (verdict.kind, verdict.reasons[0].kind) == (VerdictKind.REFUSE, ReasonKind.EFFECT_IN_DOUBT)
    with ledger.session(world.agent) as later, pytest.raises(OperationInDoubtError):
        way(later, world)
    assert world.hits("mail") == 1


@pytest.mark.parametrize("raises", [True, False])
def test_left_without_asking_for_the_permit_awaited(world: World, *, raises: bool) -> None:
    """The same for asyncio."""

    async def attempted(world: World, key: str) -> None:
        async with (
            AsyncLedger.open(world.url) as ledger,
            ledger.session(world.agent) as session,
            session.attempt(key=key, **SEND) as attempt,
        ):
            world.hit(f"mail{attempt.idempotency_key[:0]}")
            if raises:
                raise TimeoutError

    for expected in (TimeoutError if raises else None, OperationInDoubtError):
        try:
            asyncio.run(attempted(world, world.key("mail")))
        except (TimeoutError, OperationInDoubtError) as error:
            assert type(error) is expected  # noqa: PT017 (or none)
    assert world.hits("mail") == 1
    world.status(world.op_id("mail", "mail.send"), Status.IN_DOUBT)


def refused(session: AgentSession, world: World, ledger: Ledger, read: str) -> Attempt:
    """An attempt that was not let start, since its deadline had passed."""
    attempt = session.attempt(key=world.key("mail"), **SEND).begin()
    attempt.claim.expires = ledger._engine.clock.monotonic()
    with pytest.raises(StaleProjectionError, match="withdrawn") as caught:
        getattr(attempt, read)
    on_a_file = world.url.startswith("sqlite:")
    assert ("projector" in caught.value.next_step) is not on_a_file  # a file needs none
    return attempt


@pytest.mark.parametrize("read", ["owned", "idempotency_key"])
def test_refused_by_its_deadline(session: AgentSession, world: World, ledger: Ledger, read: str) -> None:
    """Only the permit that was refused says that nothing ran: the operation is free at once, and runs when next asked for."""
    attempt = refused(session, world, ledger, read)
    world.status(attempt.op_id, Status.FREE)
    for again in ("owned", "idempotency_key"):
        with pytest.raises(StaleProjectionError):
            getattr(attempt, again)
    with session.attempt(key=world.key("mail"), **SEND) as other:
        assert other.owned
        other.commit()
    session.close()
    assert world.status(attempt.op_id, Status.COMMITTED).anomalies == []
    assert [f for f in ledger.verify().findings if f.where == session.session_id] == []


@pytest.mark.parametrize("swallowed", [True, False])
def test_refused_inside_of_a_with_block(
    session: AgentSession, world: World, ledger: Ledger, *, swallowed: bool
) -> None:
    """The same, whether or not the refusal comes out of the block."""
    attempt = session.attempt(key=world.key("mail"), **SEND)
    try:
        with attempt:
            attempt.claim.expires = ledger._engine.clock.monotonic()
            try:
                _ = attempt.idempotency_key
            except StaleProjectionError:
                if not swallowed:
                    raise
    except StaleProjectionError:
        assert not swallowed
    world.status(attempt.op_id, Status.FREE)


def test_run_against_a_refusal(session: AgentSession, world: World, ledger: Ledger) -> None:
    """Whoever ran it all the same can say so: that it happened is evidence, and is kept."""
    attempt = refused(session, world, ledger, "owned")
    attempt.commit("ran")
    assert world.status(attempt.op_id, Status.COMMITTED).owner is not None


def test_given_back(session: AgentSession, world: World) -> None:
    """Who begins and does not run says so: by `fail`, or by an exception that means it."""
    session.attempt(key=world.key("plain"), **SEND).begin().fail("not wanted any more")
    with pytest.raises(EffectNotExecuted), session.attempt(key=world.key("with"), **SEND):
        raise EffectNotExecuted("not wanted any more")
    for name in ("plain", "with"):
        world.status(world.op_id(name, "mail.send"), Status.FREE)


@pytest.mark.parametrize("read", ["owned", "idempotency_key"])
def test_asked_after_it_was_left(session: AgentSession, world: World, read: str) -> None:
    """There is no permit any more, and the error says what became of the attempt."""
    with session.attempt(key=world.key("mail"), **SEND) as attempt:
        pass
    with pytest.raises(InvalidArgumentError, match="in doubt") as caught:
        getattr(attempt, read)
    assert caught.value.field == "attempt"


@pytest.mark.parametrize("decided", ["failed", "in doubt"])
def test_no_permit_once_it_is_decided(session: AgentSession, world: World, decided: str) -> None:
    """An attempt that failed, or is in doubt, permits nothing; its key can still be told to the provider."""
    attempt = session.attempt(key=world.key("mail"), **SEND).begin()
    assert attempt.owned
    if decided == "failed":
        attempt.fail("declined")
    else:
        attempt.doubt("no answer")
    with pytest.raises(InvalidArgumentError, match=decided):
        _ = attempt.owned
    assert attempt.idempotency_key == attempt.claim.idempotency_key


def test_closed_before_its_caller_has_it(session: AgentSession, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session is closed by another thread before `begin` returns: nothing ran, it is free, and `begin` says so."""
    begun = running.begun

    def closing_first(*args: Any) -> Any:
        claim = begun(*args)
        session.close()
        return claim

    monkeypatch.setattr(attempt_faces, "begun", closing_first)
    attempt = session.attempt(key=world.key("mail"), **SEND)
    with pytest.raises(FencedError, match="withdrawn"):
        attempt.begin()
    world.status(attempt.op_id, Status.FREE)


def test_refused_when_the_ledger_is_closed(world: World) -> None:
    """There is nobody to withdraw it: the refusal is told all the same, and the next session finds it in doubt."""
    ledger = world.open()
    attempt = ledger.session(world.agent).open().attempt(key=world.key("mail"), **SEND).begin()
    attempt.claim.expires = ledger._engine.clock.monotonic()
    ledger.close()
    with pytest.raises(StaleProjectionError):
        _ = attempt.owned
    with world.ledger.session(world.agent) as session, pytest.raises(OperationInDoubtError):
        session.attempt(key=world.key("mail"), **SEND).begin()
