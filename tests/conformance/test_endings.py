"""How an effect's end is recorded when it is an unusual one, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    OutcomeUnknownError,
    StoreClosedError,
)
from fencepost.ledger.operations import Status


def test_a_coroutine_that_is_returned_has_not_run(world: World, ledger: Ledger) -> None:
    """It is not committed: the operation is free, and the error says what to decorate."""
    ran = []

    async def send(name: str) -> None:
        ran.append(name)

    with ledger.session(world.agent) as session:

        @session.effect("mail", kind=EffectClass.IRREVERSIBLE, key=lambda name: f"{world.agent}-{name}")
        def mail(name: str) -> Coroutine[Any, Any, None]:
            return send(name)

        op_id = mail.op_id("a")
        with pytest.raises(InvalidArgumentError, match="function: mail returned a coroutine"):
            str(mail("a"))
    assert ran == []
    assert world.status(op_id, Status.FREE).owner is None


def test_a_session_can_be_entered_by_asyncio(world: World, ledger: Ledger) -> None:
    """`async with` on a synchronous ledger's session: opened, awaited calls, closed and sealed."""

    async def run() -> str:
        async with ledger.session(world.agent) as session:
            async with session.attempt("mail", key=f"{world.agent}-async", kind=EffectClass.IRREVERSIBLE) as attempt:
                assert attempt.owned
                await attempt.commit("sent")
            return session.session_id

    session_id = asyncio.run(run())
    (known,) = ledger.watermarks(world.agent)
    assert (known.session_id, known.sealed) == (session_id, True)


def test_an_exception_without_a_message_is_recorded(world: World, ledger: Ledger) -> None:
    """Its own message fails: the operation is in doubt all the same, and the tool's exception comes out."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    with ledger.session(world.agent) as session:

        @session.effect("mail", kind=EffectClass.IRREVERSIBLE, key=lambda name: f"{world.agent}-{name}")
        def mail(name: str) -> None:
            del name
            raise MuteError

        with pytest.raises(MuteError):
            mail("b")
        op_id = mail.op_id("b")
    operation = world.status(op_id, Status.IN_DOUBT)
    assert operation.owner is not None
    assert operation.owner.outcome is not None
    assert operation.owner.outcome.reason == "MuteError"


def test_a_ledger_closed_under_an_effect_gives_the_result_back(world: World) -> None:
    """The commit cannot be published: it is said so, with the result; later calls say that the ledger is closed."""
    ledger = Ledger.open(world.url)
    session = ledger.session(world.agent).open()

    @session.effect("mail", kind=EffectClass.IRREVERSIBLE, key=lambda name: f"{world.agent}-{name}")
    def mail(name: str) -> str:
        ledger.close()
        return name

    with pytest.raises(OutcomeUnknownError) as raised:
        mail("c")
    assert raised.value.result == "c"
    with pytest.raises(StoreClosedError, match="closed"):
        ledger.agents()
