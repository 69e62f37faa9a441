"""Secret arguments: they tell operations apart, and no value of one is in the log, in an error, or shown to anybody."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from conformance.worlds import World, until
from conformance.written import everything_written

from fencepost.ledger import (
    DivergenceHeldError,
    EffectClass,
    InvalidArgumentError,
    Ledger,
    OperationConflictError,
    OperationInDoubtError,
    ResultNotRecordedError,
)
from fencepost.ledger.cli_facts import operation_dict
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger import AgentSession

CARD, OTHER_CARD = "4111-2222-3333-4444", "5500-6666-7777-8888"
PAY: dict[str, Any] = {"tool": "bank.pay", "kind": EffectClass.IRREVERSIBLE, "secret": ("card",)}


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


def paying(session: AgentSession, world: World, tool: Callable[[str], Any]) -> Any:
    """A tool that pays with a card; `tool` says what it does with it."""

    @session.effect(identity=("order", "card"), content=("note",), **PAY)
    def pay(order: str, card: str, note: str = "") -> Any:
        world.hit(order.removesuffix(f"-{world.name}"))
        return tool(card)

    return pay


def test_secret_identity(session: AgentSession, world: World, ledger: Ledger) -> None:
    """The same card is absorbed, another card is another operation; neither is written down or shown."""
    pay = paying(session, world, lambda card: f"paid with ...{card[-4:]}")
    first = pay(world.key("A"), CARD)
    assert pay(world.key("A"), card=CARD, note="reworded") == first
    pay(world.key("A"), OTHER_CARD)
    assert world.hits("A") == 2
    op_id = pay.op_id(world.key("A"), CARD)
    assert op_id != pay.op_id(world.key("A"), OTHER_CARD)
    world.status(op_id, Status.COMMITTED)
    shown = json.dumps(operation_dict(ledger.operation(op_id)))
    assert "$secret" in shown
    written = everything_written(world)
    assert world.key("A").encode() in written
    for card in (CARD, OTHER_CARD):
        assert card not in shown
        assert card.encode() not in written


def test_conflict_over_a_secret(session: AgentSession, world: World) -> None:
    """Under one business key another card is a conflict that names both sides, and shows neither card."""

    def call(card: str, cents: int = 50) -> Any:
        identity = {"card": card, "cents": cents}
        return session.attempt(key=world.key("B"), identity=identity, **PAY).begin()

    call(CARD).commit()
    with pytest.raises(OperationConflictError) as caught:
        call(OTHER_CARD)
    assert "secret" in str(caught.value)
    with pytest.raises(OperationConflictError) as amount:
        call(CARD, 70)
    assert '"cents":50' in amount.value.recorded
    assert '"cents":70' in amount.value.given
    told = f"{caught.value.to_dict()} {amount.value.to_dict()}"
    assert CARD not in told
    assert OTHER_CARD not in told


def test_tool_that_says_the_secret(session: AgentSession, world: World, ledger: Ledger) -> None:
    """What the tool says of a failure is recorded without the secret; so is what the caller says of an attempt."""

    def declined(card: str) -> None:
        raise TimeoutError(f"no answer for {card} in time")

    pay = paying(session, world, declined)
    with pytest.raises(TimeoutError):
        pay(world.key("C"), CARD)
    operation = world.status(pay.op_id(world.key("C"), CARD), Status.IN_DOUBT)
    assert operation.owner is not None
    assert operation.owner.outcome is not None
    assert operation.owner.outcome.error == "TimeoutError: no answer for (secret) in time"
    with pytest.raises(OperationInDoubtError) as caught:
        pay(world.key("C"), CARD)
    assert CARD not in str(caught.value.to_dict())
    session.attempt(key=world.key("C2"), identity={"card": CARD}, **PAY).begin().fail(f"{CARD} is not known")
    session.attempt(key=world.key("C3"), identity={"card": CARD}, supplied_key=CARD, **PAY).begin().commit(
        reference=f"https://bank.example/{CARD}"
    )
    world.status(world.op_id("C3", "bank.pay"), Status.COMMITTED)
    assert CARD.encode() not in everything_written(world)
    assert ledger.operation(world.op_id("C2", "bank.pay")).operation.status is Status.FREE


@pytest.mark.parametrize(
    "spell",
    [
        quote,
        lambda card: quote(card).replace("-", "%2d"),
        lambda card: base64.b64encode(f"user:{card}".encode()).decode(),
        lambda card: card.encode().hex(),
        lambda card: card.replace("-", " "),
        lambda card: "x" * 490 + base64.b64encode(card.encode()).decode(),  # cut in the middle of it
    ],
)
def test_tool_that_says_the_secret_otherwise(
    session: AgentSession, world: World, ledger: Ledger, spell: Callable[[str], str]
) -> None:
    """However the tool spells it, in what it says or returns: neither the log nor anybody who asks gets to see it."""

    def declined(card: str) -> None:
        raise RuntimeError(f"POST /v1?card={spell(card)} failed")

    failing, returning = paying(session, world, declined), paying(session, world, lambda card: {"seen": spell(card)})
    with pytest.raises(RuntimeError):
        failing(world.key("G"), CARD)
    returning(world.key("H"), CARD)
    world.status(failing.op_id(world.key("G"), CARD), Status.IN_DOUBT)
    [waiting] = ledger.in_doubt(world.agent)
    written = everything_written(world).decode(errors="replace")
    for text in (
        written,
        json.dumps(waiting.to_dict()),
        json.dumps(operation_dict(ledger.operation(waiting.operation.op_id))),
    ):
        assert spell(CARD)[-20:-4] not in text
    with pytest.raises(ResultNotRecordedError):
        returning(world.key("H"), CARD)


def test_result_that_holds_the_secret(session: AgentSession, world: World) -> None:
    """It is a commit, the caller gets it, and the ledger keeps it not: asked for again it says so, and runs nothing."""
    pay = paying(session, world, lambda card: {"receipt": 7, "card": card})
    assert pay(world.key("D"), CARD) == {"receipt": 7, "card": CARD}
    with pytest.raises(ResultNotRecordedError) as caught:
        pay(world.key("D"), CARD)
    assert CARD not in str(caught.value.to_dict())
    assert world.hits("D") == 1
    assert CARD.encode() not in everything_written(world)


def test_what_is_held_shows_no_secret(world: World, ledger: Ledger) -> None:
    """A call that is held after a gated rollback is told to an operator without its secret."""
    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    session.attempt(key=world.key("E"), identity={"card": CARD}, **PAY).begin().commit()
    successor = session.rollback("c", policy="gated")
    with pytest.raises(DivergenceHeldError):
        successor.attempt(key=world.key("E2"), identity={"card": OTHER_CARD}, **PAY).begin()
    until(lambda: ledger.held(world.agent))
    [waiting] = ledger.held(world.agent)
    assert "$secret" in waiting.arguments
    assert OTHER_CARD.encode() not in everything_written(world)
    successor.close()


def test_secret_of_an_awaited_tool(world: World) -> None:
    """The same for asyncio."""
    from fencepost.ledger import AsyncLedger  # noqa: PLC0415 (only here)

    async def work() -> None:
        async with AsyncLedger.open(world.url) as ledger, ledger.session(world.agent) as session:

            @session.effect(identity=("order", "card"), **PAY)
            async def pay(order: str, card: str) -> str:
                raise TimeoutError(f"{order} {card}")

            with pytest.raises(TimeoutError):
                await pay(world.key("F"), CARD)
            with pytest.raises(InvalidArgumentError):
                session.attempt(key=f"k-{CARD}", identity={"card": CARD}, **PAY)

    asyncio.run(work())
    assert CARD.encode() not in everything_written(world)
