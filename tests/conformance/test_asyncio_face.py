"""The asyncio face: the same calls, awaited; what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, let_time_pass, until

from fencepost.ledger import (
    AgentSession,
    AsyncAgentSession,
    AsyncAttempt,
    AsyncLedger,
    Attempt,
    EffectClass,
    FencedError,
    Ledger,
    OperationConflictError,
    OperationInDoubtError,
    Outcome,
    ProbeAnswer,
    VerdictKind,
)
from fencepost.ledger.embedded_store import EmbeddedAtOnce
from fencepost.ledger.engine import Engine
from fencepost.ledger.operations import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


def run(world: World, work: Callable[[AsyncLedger, AsyncAgentSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncLedger.open(world.url) as ledger, ledger.session(world.agent) as session:
            await work(ledger, session)

    asyncio.run(main())


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("plain", "awaited"), [(Ledger, AsyncLedger), (AgentSession, AsyncAgentSession), (Attempt, AsyncAttempt)]
)
def test_both_faces_offer_the_same(plain: type, awaited: type) -> None:
    """Every public call of one face is there in the other, with the same parameters."""
    only_sync = {"verify", "export", "import_"}  # of the whole ledger: for the command line and for scripts
    for name, member in inspect.getmembers(plain, inspect.isfunction):
        if name.startswith("_") or name in only_sync:
            continue
        twin = getattr(awaited, name)
        assert list(inspect.signature(member).parameters) == list(inspect.signature(twin).parameters), name
    missing = {n for n, _ in inspect.getmembers(awaited) if not n.startswith("_")} - set(dir(plain))
    assert missing == set()


def test_the_same_calls(world: World) -> None:
    """Effects, checkpoints, forks, rollbacks, questions: what the synchronous face does, awaited."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        runs = []

        @session.effect("order", kind=EffectClass.IRREVERSIBLE, identity=("item",))
        async def order(item: str) -> dict[str, str]:
            await asyncio.sleep(0)
            runs.append(session.current.idempotency_key)
            return {"item": item}

        assert await order(world.key("a")) == await order(world.key("a")) == {"item": world.key("a")}
        assert len(runs) == 1
        mark = await session.checkpoint("c")
        await session.fork("b", checkpoint="c")
        async with ledger.session(world.agent, "b") as sibling, sibling.attempt(key=world.key("m"), **SEND) as attempt:
            assert attempt.owned
            await attempt.commit(1)
        assert attempt.result == 1
        verdict = await ledger.preview_rollback(world.agent, checkpoint="c")
        assert verdict.kind is VerdictKind.REFUSE
        assert [op.op_id for op in await ledger.replay_forward(world.agent, since=mark)] == [attempt.op_id]
        successor = await session.rollback("c", policy="gated")
        with pytest.raises(FencedError):
            await order(world.key("b"))
        assert not (await successor.attempt(key=world.key("m"), **SEND).begin()).owned
        await successor.report_call("ls", kind=EffectClass.READ)
        await successor.close()
        assert world.agent in await ledger.agents()
        assert (await ledger.watermark(world.agent)).sealed
        assert len(await ledger.checkpoints(world.agent)) == 1
        assert (await ledger.operation(attempt.op_id)).operation.tool == "mail.send"
        assert await ledger.in_doubt(world.agent) == []

    run(world, work)


def test_probe_and_resolve(world: World) -> None:
    """What is in doubt is settled by the same calls."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        @ledger.probe("mail.send")
        def probe(operation: Operation) -> ProbeAnswer:
            return ProbeAnswer(Outcome.COMMITTED, result=operation.op_id, evidence="found")

        attempt = await session.attempt(key=world.key("p"), **SEND).begin()
        assert attempt.owned
        await attempt.doubt("no answer")
        world.status(attempt.op_id, Status.IN_DOUBT)
        _, operation = await ledger.run_probe(attempt.op_id)
        assert operation.status is Status.COMMITTED
        again = await session.attempt(key=world.key("p"), **SEND).begin()
        assert again.result == attempt.op_id

    run(world, work)


def test_cancelled_in_the_middle_of_an_effect(world: World) -> None:
    """Nobody knows what became of an effect whose task was cancelled: in doubt, and not run again."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        started = asyncio.Event()

        @session.effect("slow", kind=EffectClass.IRREVERSIBLE)
        async def slow(item: str) -> None:
            world.hit("slow")
            started.set()
            await asyncio.sleep(60)
            raise AssertionError(item)

        task = asyncio.create_task(slow(world.key("s")))
        await started.wait()
        await cancelled(task)
        assert task.cancelled()
        until(lambda: [item.state for item in world.ledger.in_doubt(world.agent)] == ["in doubt"])
        with pytest.raises(OperationInDoubtError):
            await slow(world.key("s"))
        assert world.hits("slow") == 1

    run(world, work)


def test_cancelled_inside_of_a_with_block(world: World) -> None:
    """The same for a context manager, also where nobody had asked for the permit yet."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        async def body(name: str, entered: asyncio.Event, *, start: bool) -> None:
            async with session.attempt(key=world.key(name), **SEND) as attempt:
                assert not start or attempt.owned
                entered.set()
                await asyncio.sleep(60)

        for name, start in [("started", True), ("idle", False)]:
            entered = asyncio.Event()
            task = asyncio.create_task(body(name, entered, start=start))
            await entered.wait()
            await cancelled(task)
        world.status(world.op_id("started", "mail.send"), Status.IN_DOUBT)
        world.status(world.op_id("idle", "mail.send"), Status.IN_DOUBT)
        assert (await ledger.in_doubt(world.agent))[0].operation.op_id == world.op_id("started", "mail.send")

    run(world, work)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_cancelled_while_it_begins(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Cancelled before or after its intent is written, an attempt runs nothing and leaves the operation free."""
    held = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def standing(original: Any) -> Any:
        async def stand(self: object, *args: Any) -> Any:
            if moment == "after":
                await original(self, *args)
            loops[0].call_soon_threadsafe(held.set)
            await asyncio.sleep(60)

        return stand

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        loops.append(asyncio.get_running_loop())
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "publish_effect", standing(Engine.publish_effect))
            patched.setattr(EmbeddedAtOnce, "write", standing(EmbeddedAtOnce.write))
            task = asyncio.create_task(session.attempt(key=world.key("b"), **SEND).begin())
            await held.wait()
        await cancelled(task)
        await session.checkpoint("c")
        again = await session.attempt(key=world.key("b"), wait_s=5, **SEND).begin()
        assert again.owned
        await again.commit()
        assert (await asyncio.to_thread(world.preview, "c")).kind is VerdictKind.REFUSE
        assert (await ledger.operation(again.op_id)).operation.anomalies == []

    run(world, work)


@pytest.mark.parametrize("decorated", [False, True])
def test_cancelled_at_the_moment_of_its_confirmation(world: World, *, decorated: bool) -> None:
    """Cancelled when the claim is confirmed and the caller has not heard of it yet: withdrawn, as if it had not begun."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        @session.effect("mail.send", kind=EffectClass.IRREVERSIBLE, key=lambda key: key, identity=())
        async def send(key: str) -> None:
            world.hit(key)

        attempt = session.attempt(key=world.key("b"), **SEND)
        task = asyncio.create_task(send(world.key("b")) if decorated else attempt.begin())
        await asyncio.sleep(0)
        until(lambda: [i.operation.op_id for i in world.ledger.open_operations(world.agent)] == [attempt.op_id])
        let_time_pass(0.2)  # this loop stands still meanwhile, so that the answer waits for it
        await cancelled(task)
        assert task.cancelled()
        again = await session.attempt(key=world.key("b"), wait_s=5, **SEND).begin()
        assert again.owned
        await again.commit()
        assert world.status(attempt.op_id, Status.COMMITTED).anomalies == []

    run(world, work)
    assert not world.hits_file.exists()


@pytest.mark.slow
def test_cancelled_at_any_moment(world: World) -> None:
    """However the moment falls, a cancelled call leaves its operation free, committed, or in doubt; never owned for ever."""
    moments = random.Random(7)

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        @session.effect("quick", kind=EffectClass.IRREVERSIBLE)
        async def quick(item: str) -> str:
            world.hit(item)
            return item

        for number in range(150):
            task = asyncio.create_task(quick(f"item-{number}."))
            await asyncio.sleep(moments.random() * 0.012)
            await cancelled(task)
        await session.checkpoint("c")
        until(lambda: not [v for v in world.ledger.operations(world.agent) if v.operation.status is Status.OWNED])
        ran = world.hits_file.read_text() if world.hits_file.exists() else ""
        for view in await ledger.operations(world.agent):
            [item] = {(a.intent.arguments or b"").decode() for a in view.operation.attempts.values()}
            if view.operation.status is Status.FREE:
                assert json.loads(item)["item"] not in ran

    run(world, work)


def test_many_attempts_in_one_session(world: World) -> None:
    """A hundred effects of one session at the same time: each runs once, and a checkpoint knows all of them."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        del ledger
        runs: list[str] = []

        @session.effect("many", kind=EffectClass.IRREVERSIBLE)
        async def many(item: str) -> str:
            runs.append(item)
            await asyncio.sleep(0)
            return session.current.idempotency_key

        items = [world.key(f"i{n}") for n in range(50)] * 2
        keys = await asyncio.gather(*(many(item) for item in items))
        assert sorted(runs) == sorted(set(items))
        assert keys[:50] == keys[50:]
        assert len(set(keys)) == 50
        await session.checkpoint("c")
        assert (await asyncio.to_thread(world.preview, "c")).authorised

    run(world, work)


def test_conflict_and_errors_are_the_same(world: World) -> None:
    """The errors are those of the synchronous face, raised where it is awaited."""

    async def work(ledger: AsyncLedger, session: AsyncAgentSession) -> None:
        del ledger

        def pay(cents: int) -> Coroutine[Any, Any, AsyncAttempt]:
            return session.attempt(
                "pay", kind=EffectClass.IRREVERSIBLE, key=world.key("k"), identity={"c": cents}
            ).begin()

        await (await pay(50)).commit()
        with pytest.raises(OperationConflictError) as caught:
            await pay(70)
        assert "50" in caught.value.recorded
        assert "70" in caught.value.given

    run(world, work)
