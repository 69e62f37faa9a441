"""Probes, inverses, and readers of a state run later than the call, and may say a secret of it: nobody is shown that, and it is not written."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World
from conformance.written import everything_written

from fencepost.ledger import (
    CompensationBlockedError,
    EffectClass,
    EffectNotExecuted,
    FencepostError,
    InvalidArgumentError,
    Ledger,
    OperationInDoubtError,
    Plan,
    Reconcile,
    StateMoved,
    Undo,
)
from fencepost.ledger.operations import Status, compensation_op_id

if TYPE_CHECKING:
    from collections.abc import Callable

CARD = "4111-2222-3333-4444"


class BrokenError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError(CARD)


@dataclass
class Bank:
    """A payment by card that can be taken back, and what its strangers do when they are asked.

    Attributes:
        secret: the arguments that are declared secret.
        inverse, reader: raise or return for the compensator, and for what reads the state.
    """

    world: World
    secret: tuple[str, ...] = ("card",)
    inverse: Callable[[], Any] = lambda: "taken back"
    reader: Callable[[], str] = lambda: "h"
    _op_id: str = field(init=False, default="")

    @property
    def action(self) -> str:
        return self.world.key("bank.take-back")

    def pay(self, answer: Callable[[], Any] = lambda: "paid") -> str:
        """One payment; its op_id. The tool's own way with the secret is tested elsewhere."""
        tool = self.world.key("bank.pay")
        with self.world.ledger.session(self.world.agent) as session:

            @session.effect(
                tool, kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, secret=self.secret,
                undo=Undo(action=self.action, state_hash=lambda **_: "h", payload=lambda **_: {}),
            )  # fmt: skip
            def pay(order: str, card: str) -> Any:
                del order, card
                return answer()

            with contextlib.suppress(TimeoutError):
                pay("order", CARD)
            self._op_id = pay.op_id("order", CARD)
        return self._op_id

    def plan(self) -> Plan:
        ledger = self.world.ledger
        self.world.status(self.pay(), Status.COMMITTED)

        @ledger.compensator(self.action, state_hash=lambda *_: self.reader())
        def take_back(*_: Any) -> Any:
            return self.inverse()

        return ledger.plan_compensation([self._op_id])

    def undone(self, plan: Plan) -> FencepostError:
        with pytest.raises(FencepostError) as caught:
            self.world.ledger.compensate(plan, approved_by="ann", evidence="ticket")
        return caught.value


def raising(error: Exception) -> Callable[[], Any]:
    def run() -> Any:
        raise error

    return run


def shown(error: BaseException) -> str:
    told = error.to_dict() if isinstance(error, FencepostError) else ""
    return f"{told} {''.join(traceback.format_exception(error))}"


def test_a_probe_that_says_the_secret(world: World, ledger: Ledger) -> None:
    """The operator learns of which type its error is, and that more is not shown; nothing is written."""
    bank = Bank(world)
    op_id = bank.pay(raising(TimeoutError("no answer")))
    operation = world.status(op_id, Status.IN_DOUBT)
    for error in (KeyError(f"no payment by {CARD}"), BrokenError()):
        ledger.probe(operation.tool)(lambda _, error=error: raising(error)())
        with pytest.raises(InvalidArgumentError, match=type(error).__name__) as caught:
            ledger.run_probe(op_id)
        assert "is not shown" in str(caught.value)
        assert CARD not in shown(caught.value)
    assert CARD.encode() not in everything_written(world)


@pytest.mark.parametrize(
    ("strangers", "expected"),
    [
        ({"inverse": raising(RuntimeError(f"refused for {CARD}"))}, OperationInDoubtError),
        ({"inverse": raising(BrokenError())}, OperationInDoubtError),
        ({"inverse": raising(EffectNotExecuted(f"no account for {CARD}"))}, CompensationBlockedError),
        ({"inverse": raising(StateMoved(f"{CARD} was charged again"))}, CompensationBlockedError),
    ],
    ids=["error", "broken error", "not executed", "moved"],
)
def test_an_inverse_that_says_the_secret(
    world: World, ledger: Ledger, strangers: dict[str, Any], expected: type[FencepostError]
) -> None:
    """Neither the error, nor its trace, nor the outcome shows it."""
    bank = Bank(world, **strangers)
    plan = bank.plan()
    error = bank.undone(plan)
    assert isinstance(error, expected)
    assert CARD not in shown(error)
    inverse = compensation_op_id(plan.steps[0].op_id, 1)
    told = [ledger.operation(op_id).operation for op_id in (plan.steps[0].op_id, inverse)]
    assert CARD not in repr(told)
    assert CARD.encode() not in everything_written(world)


def test_a_reader_of_the_state_that_says_the_secret(world: World) -> None:
    """When the plan is made, and when it is carried out."""
    bank = Bank(world)
    plan = bank.plan()
    bank.reader = raising(KeyError(CARD))
    error = bank.undone(plan)
    assert "KeyError" in str(error)
    assert CARD not in shown(error)
    assert CARD.encode() not in everything_written(world)


def test_what_finds_out_about_an_inverse_says_the_secret(world: World, ledger: Ledger) -> None:
    """The inverse is an operation of its own, without that argument; it is known that what it undoes has one."""
    bank = Bank(world, inverse=raising(TimeoutError("no answer")))
    plan = bank.plan()
    bank.undone(plan)
    inverse = compensation_op_id(plan.steps[0].op_id, 1)
    world.status(inverse, Status.IN_DOUBT)
    ledger.probe(bank.action)(lambda _: raising(KeyError(CARD))())
    with pytest.raises(InvalidArgumentError) as caught:
        ledger.run_probe(inverse)
    assert CARD not in shown(caught.value)
    assert CARD not in shown(bank.undone(plan))
    assert CARD.encode() not in everything_written(world)


def test_a_result_of_an_inverse_that_cannot_be_written(world: World) -> None:
    """What the encoder says of it may quote it."""

    class Odd:
        def __repr__(self) -> str:
            return CARD

    bank = Bank(world, inverse=Odd)
    plan = bank.plan()
    world.ledger.compensate(plan, approved_by="ann", evidence="ticket")
    assert CARD.encode() not in everything_written(world)


def test_a_resolver_that_says_the_secret(world: World, ledger: Ledger) -> None:
    """It is asked for a result that is not in the ledger, and what it says of its failure is told to the operator."""
    bank = Bank(world)
    world.status(op_id := bank.pay(lambda: f"paid with {CARD}"), Status.COMMITTED)
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    answer = ledger.resume(
        world.agent, checkpoint="c", summary_generation=0, depends_on=[(op_id, "0" * 64)],
        resolve=lambda _: raising(KeyError(CARD))(),
    )  # fmt: skip
    assert isinstance(answer, Reconcile)
    assert "KeyError" in answer.missing[op_id]
    assert CARD not in repr(answer)


def test_without_a_secret_everything_is_told(world: World) -> None:
    """What went wrong is told as it is, with its cause."""
    bank = Bank(world, secret=(), inverse=raising(RuntimeError("the bank is closed")))
    error = bank.undone(bank.plan())
    assert "RuntimeError: the bank is closed" in str(error)
    assert isinstance(error.__cause__, RuntimeError)
