"""The errors about how an effect is undone show no value of a secret argument."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import EffectClass, FencepostError, Ledger, ManifestError, Undo, UndoPath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger import AgentSession

CARD = "4111-2222-3333-4444"
NUMBER = 4111222233334444555
"""A card as a number that canonical JSON cannot hold."""


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


def payment(session: AgentSession, world: World, undo: Undo) -> Callable[[Any], Any]:
    """A tool that pays with a card, by the card alone."""

    @session.effect(
        "bank.pay",
        kind=EffectClass.COMPENSATABLE,
        key=lambda order, **_: order,
        secret=("card",),
        undo=undo,
    )
    def pay(order: str, card: Any) -> str:
        del order, card
        world.hit("order")
        return "paid"

    return lambda card: pay(world.key("order"), card)


def undo(**more: Any) -> Undo:
    return Undo(**{"action": "refund", "state_hash": lambda **_: "h", "payload": lambda **_: {}, **more})


def failing(card: Any, **_: Any) -> Any:
    raise KeyError(f"no account for {card}")


async def failing_later(card: Any, **_: Any) -> Any:
    await asyncio.sleep(0)
    raise KeyError(card)


@pytest.mark.parametrize(
    ("flaw", "field"),
    [
        ({"state_hash": failing}, "pre_state_hash"),
        ({"state_hash": failing_later}, "pre_state_hash"),
        ({"payload": failing}, "payload"),
        ({"irreversible": ("seen:{card}",), "snapshot_of": "db"}, "irreversible"),
        ({"irreversible": ("seen:{card}",)}, "irreversible"),
        ({"covers": ("cache:{card}",)}, "covers"),
        ({"idempotency_key": "{card}" * 40 + "{round}"}, "idempotency_key"),
    ],
)
def test_what_gives_the_way_back_says_the_secret(
    session: AgentSession, world: World, flaw: dict[str, Any], field: str
) -> None:
    """Neither the error nor its trace shows it; the field is named, and nothing was run."""
    with pytest.raises(ManifestError) as caught:
        payment(session, world, undo(**flaw))(CARD)
    assert caught.value.field == field
    assert CARD not in f"{caught.value} {caught.value.to_dict()} {''.join(traceback.format_exception(caught.value))}"
    assert world.hits("order") == 0


def test_a_secret_that_cannot_be_encoded(session: AgentSession, world: World) -> None:
    """The error of the encoder quotes the number that it refuses; ours does not."""
    with pytest.raises(FencepostError) as caught:
        payment(session, world, undo(payload=lambda card, **_: {"card": int(card)}))(str(NUMBER))
    assert str(NUMBER) not in "".join(traceback.format_exception(caught.value))


def test_the_awaited_face_keeps_it_too(session: AgentSession, world: World) -> None:
    """The state's hash of a coroutine function is awaited in the caller's loop; its error is treated the same."""

    @session.effect(
        "bank.pay", kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, secret=("card",),
        undo=undo(state_hash=failing_later),
    )  # fmt: skip
    async def pay(order: str, card: str) -> str:
        raise AssertionError(order + card)

    with pytest.raises(ManifestError) as caught:
        asyncio.run(pay(world.key("order"), CARD))
    assert CARD not in "".join(traceback.format_exception(caught.value))


def test_the_way_back_of_an_attempt(session: AgentSession, world: World) -> None:
    """An incomplete one is refused without showing what its author has written into it."""
    path = UndoPath(action="refund", pre_state_hash="h", irreversible=(f"seen:{CARD}",), snapshot_of="db")
    attempt = session.attempt(
        "bank.pay", key=world.key("order"), kind=EffectClass.COMPENSATABLE, identity={"card": CARD}, secret=("card",),
        undo=path,
    )  # fmt: skip
    with pytest.raises(ManifestError) as caught:
        attempt.begin()
    assert CARD not in "".join(traceback.format_exception(caught.value))


def test_an_error_without_a_secret_keeps_its_cause(session: AgentSession, world: World) -> None:
    """What went wrong is told as it is where no secret is in it."""

    def broken(**_: Any) -> str:
        raise RuntimeError("the books are closed")

    with pytest.raises(ManifestError, match="the books are closed") as caught:
        payment(session, world, undo(state_hash=broken))(CARD)
    assert isinstance(caught.value.__cause__, RuntimeError)
