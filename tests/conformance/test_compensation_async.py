"""Undoing effects from asyncio code: what is awaited is awaited in the user's own loop; what a cancellation leaves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, until

from fencepost.ledger import (
    AsyncAgentSession,
    AsyncLedger,
    EffectClass,
    Ledger,
    Limits,
    Operation,
    Undo,
    UndoPath,
    UnsafeRollbackError,
    VerdictKind,
)
from fencepost.ledger.operations import Status, compensation_op_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def run(world: World, work: Callable[[AsyncLedger, AsyncAgentSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncLedger.open(world.url, limits=Limits()) as ledger, ledger.session(world.agent) as session:
            await work(ledger, session)

    asyncio.run(main())


class Till:
    """State that belongs to one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.balance = 0

    async def hash(self, **_: Any) -> str:
        assert asyncio.get_running_loop() is self.loop
        return f"h{self.balance}"

    async def hash_of(self, op: Operation) -> str:
        del op
        return await self.hash()

    async def move(self, cents: int) -> None:
        assert asyncio.get_running_loop() is self.loop
        self.balance += cents


def test_the_whole_way(world: World) -> None:
    """Sealed, refused with a plan, approved, carried out, and gone back, all awaited."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        till = Till()

        @ledger.compensator("till.back", state_hash=till.hash_of)
        async def back(op: Operation, payload: Any, idempotency_key: str) -> str:
            del op, idempotency_key
            await till.move(-payload["cents"])
            return "done"

        await session.checkpoint("c")

        @session.effect(
            "till.pay", kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, resource="till",
            undo=Undo(action="till.back", state_hash=till.hash, payload_after=lambda result, **_: {"cents": result}),
        )  # fmt: skip
        async def pay(order: str, cents: int) -> int:
            del order
            await till.move(cents)
            return cents

        assert await pay(world.key("a"), 5) == 5
        assert await pay(world.key("b"), 7) == 7
        with pytest.raises(UnsafeRollbackError) as caught:
            await session.rollback("c")
        plan = caught.value.verdict.plan
        assert set((await ledger.verify_plan(plan)).values()) == {"FULL_ROLLBACK_POSSIBLE"}
        approval = await ledger.approve_plan(plan, by="ann", evidence="e")
        report = await ledger.compensate(plan)
        assert [step.result for step in report.steps] == ["done", "done"]
        assert (report.approval, till.balance) == (approval, 0)
        assert [p.done for p in await ledger.plans(world.agent)] == [True]
        assert await ledger.standing_effects(world.agent) == []
        verdict = await ledger.authorize_rollback(world.agent, checkpoint="c")
        assert verdict.kind is VerdictKind.PROCEED

    run(world, work)


def test_attempts_and_plain_functions(world: World) -> None:
    """An attempt is committed with the state after it; a plain compensator runs in a thread, off the loop."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        loop = asyncio.get_running_loop()

        @ledger.compensator("x.back", state_hash=lambda _: "after")
        def back(op: Operation, payload: Any, idempotency_key: str) -> None:
            del op, payload, idempotency_key
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            assert loop.is_running()

        path = UndoPath(action="x.back", pre_state_hash="before")
        async with session.attempt("x", key=world.key("a"), kind=EffectClass.COMPENSATABLE, undo=path) as attempt:
            assert attempt.owned
            await attempt.commit({"id": 1}, post_state_hash="after", payload={"id": 1})
        plan = await ledger.plan_compensation([world.op_id("a", "x")])
        assert plan.steps[0].manifest.action.payload == {"id": 1}
        await ledger.compensate(plan, approved_by="ann")

    run(world, work)
    assert world.ledger.operation(world.op_id("a", "x")).operation.round == 2


def committed_unsealed(world: World, why: str) -> None:
    operation = world.status(world.op_id("a", "x"), Status.COMMITTED)
    assert operation.settled is not None
    assert why in operation.settled.reason
    assert (operation.sealed_manifest, operation.result is not None) == (None, True)


def test_cancelled_while_the_state_after_the_effect_is_read(world: World) -> None:
    """The effect has happened, so its commit is recorded, unsealed; it is not run again."""

    async def work(_: AsyncLedger, session: AsyncAgentSession) -> None:
        reading = asyncio.Event()
        asked: list[int] = []

        async def state_hash(**_: Any) -> str:
            asked.append(1)
            if len(asked) == 2:
                reading.set()
                await asyncio.Event().wait()
            return "h"

        @session.effect(
            "x", kind=EffectClass.COMPENSATABLE, key=lambda order: order, undo=Undo(action="y", state_hash=state_hash)
        )
        async def do(order: str) -> str:
            return order

        task = asyncio.ensure_future(do(world.key("a")))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(world, work)
    committed_unsealed(world, "CancelledError")


def test_interrupted_while_the_state_after_the_effect_is_read(world: World, ledger: Ledger) -> None:
    """The same in synchronous code."""
    states = iter(["h"])

    def state_hash(**_: Any) -> str:
        for state in states:
            return state
        raise KeyboardInterrupt

    with ledger.session(world.agent) as session:

        @session.effect(
            "x", kind=EffectClass.COMPENSATABLE, key=lambda order: order, undo=Undo(action="y", state_hash=state_hash)
        )
        def do(order: str) -> str:
            return order

        with pytest.raises(KeyboardInterrupt):
            do(world.key("a"))
    committed_unsealed(world, "KeyboardInterrupt")


def test_cancelled_while_a_plan_is_carried_out(world: World) -> None:
    """Whoever waited for it is gone; what was begun goes on to its end."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def state_hash(op: Operation) -> str:
            del op
            return "h"

        @ledger.compensator("x.back", state_hash=state_hash)
        async def back(op: Operation, payload: Any, idempotency_key: str) -> None:
            del op, payload, idempotency_key
            started.set()
            await go.wait()

        path = UndoPath(action="x.back", pre_state_hash="h")
        async with session.attempt("x", key=world.key("a"), kind=EffectClass.COMPENSATABLE, undo=path) as attempt:
            assert attempt.owned
            await attempt.commit(post_state_hash="h")
        plan = await ledger.plan_compensation([world.op_id("a", "x")])
        task = asyncio.ensure_future(ledger.compensate(plan, approved_by="ann"))
        await started.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        go.set()
        await asyncio.to_thread(until, lambda: world.ledger.operation(plan.steps[0].op_id).operation.round == 2)

    run(world, work)
    inverse = compensation_op_id(world.op_id("a", "x"), 1)
    until(lambda: world.ledger.operation(inverse).operation.status is Status.COMMITTED)
