"""One agent of a fault run: it goes through a list of operations that others go through as well, and says what it saw."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.stack.evidence import Called, Decided
from faults.stack.sink import Client

from fencepost.ledger import (
    AsyncAgentSession,
    AsyncLedger,
    DivergenceHeldError,
    EffectClass,
    EffectNotExecuted,
    FencedError,
    FencepostError,
    KeyVoided,
    Outcome,
    ProbeAnswer,
)
from fencepost.ledger.lineage import ROOT
from fencepost.ledger.operations import Operation

TOOL = "pay"


@dataclass(frozen=True)
class Plan:
    """What a crew does.

    Attributes:
        scope: names its operations; agents with equal scopes compete for the same ones.
        count: how many operations there are; each agent asks for all of them, in about the same order.
        stride: an agent asks only for every so-manieth.
        seconds: it stops then, done or not.
        stop: it stops as well once this file exists.
        pause_s: between two calls.
        private: how many of its operations nobody else asks for, in parts of a thousand; the same for what it does
            instead of an operation (checkpoint, rollback, reopen, crash, probe), and for what an operation comes to.
    """

    scope: str
    count: int
    seconds: float
    stop: str
    stride: int = 1
    pause_s: float = 0.0
    deadline_s: float = 10.0
    wait_s: float = 5.0
    private: int = 0
    checkpoint: int = 60
    rollback: int = 40
    reopen: int = 20
    crash: int = 10
    decline: int = 30
    doubt: int = 30
    probe: int = 60


class Notes:
    """Where an agent writes down what its calls came to."""

    def __init__(self, called: Any, decided: Any) -> None:
        self.called = called
        self.decided = decided


class Agent:
    """One agent, from session to session until its list is done or its time is up."""

    def __init__(self, name: str, plan: Plan, *, ledger: AsyncLedger, sink: Client, notes: Notes, seed: int) -> None:
        self.name = name
        self._plan = plan
        self._ledger = ledger
        self._sink = sink
        self._notes = notes
        self._random = random.Random(seed)
        self._next = self._random.randrange(plan.stride)
        self._checkpoints: list[str] = []
        self._ends = time.monotonic() + plan.seconds

    async def run(self) -> None:
        """Live. A session that ends for any reason is followed by another."""
        while not self._done():
            began = time.monotonic()
            try:
                session = await self._ledger.session(self.name, scope=self._plan.scope).open()
                await self._life(session)
            except FencepostError as error:
                self._say("", "fail", error, began)
                await asyncio.sleep(0.2)
            except Exception as error:  # noqa: BLE001 (that there is none is one of the claims)
                self._say("", "foreign", error, began)
                await asyncio.sleep(0.2)

    def _done(self) -> bool:
        over = self._next >= self._plan.count or time.monotonic() >= self._ends
        return over or Path(self._plan.stop).exists()

    async def _life(self, session: AsyncAgentSession) -> None:
        while not self._done():
            did = self._choose()
            if did == "crash":
                return  # left as a process that died would leave it: never closed
            if did == "reopen":
                break
            if did == "rollback" and self._checkpoints:
                if await self._roll_back():
                    return
            elif did == "checkpoint":
                await self._checkpoint(session)
            elif did == "probe":
                await self._probe()
            else:
                await self._work(session)
            await asyncio.sleep(self._plan.pause_s)
        await session.close()

    def _choose(self) -> str:
        roll = self._random.randrange(1000)
        for name in ("checkpoint", "rollback", "reopen", "crash", "probe"):
            roll -= getattr(self._plan, name)
            if roll < 0:
                return name
        return "work"

    # -- what it does ------------------------------------------------------------------

    async def _work(self, session: AsyncAgentSession) -> None:
        number = max(0, min(self._plan.count - 1, self._next + self._random.randrange(-2, 3) * self._plan.stride))
        self._next += self._plan.stride
        whose = f"{self._plan.scope}-{self.name}" if self._sometimes(self._plan.private) else self._plan.scope
        attempt = session.attempt(
            TOOL,
            key=f"{whose}-{number}",
            kind=EffectClass.IRREVERSIBLE,
            deadline_s=self._plan.deadline_s,
            wait_s=self._plan.wait_s,
        )
        began, asked = time.monotonic(), False
        declines, doubts = self._sometimes(self._plan.decline), self._sometimes(self._plan.doubt)
        try:
            async with attempt:
                if attempt.owned:
                    self._perhaps(declines, EffectNotExecuted("declined"))
                    asked = True
                    asked = await self._hit(session, attempt)
                    self._perhaps(not asked, KeyVoided("its key was voided"))
                    self._perhaps(doubts, TimeoutError("no answer"))
                    await attempt.commit({"paid": number})
            self._say(attempt.op_id, "ok", None, began, attempt=attempt, value=attempt.result, ran=asked)
        except DivergenceHeldError as error:
            self._say(attempt.op_id, "fail", error, began)
            await session.declare_new(attempt.op_id)
        except FencedError:
            raise
        except (FencepostError, EffectNotExecuted) as error:
            self._say(attempt.op_id, "unknown" if asked else "fail", error, began, attempt=attempt)
        except TimeoutError as error:
            self._say(attempt.op_id, "unknown" if doubts else "foreign", error, began, attempt=attempt)

    def _sometimes(self, thousandths: int) -> bool:
        return self._random.randrange(1000) < thousandths

    @staticmethod
    def _perhaps(raised: bool, error: Exception) -> None:
        if raised:
            raise error

    async def _hit(self, session: AsyncAgentSession, attempt: Any) -> bool:
        """Change the outside world; whether it let itself be changed."""
        answer = await self._sink.ask(
            do="hit",
            key=attempt.idempotency_key,
            op_id=attempt.op_id,
            attempt_id=attempt.claim.attempt_id,
            agent_id=self.name,
            session_id=session.session_id,
        )
        return "refused" not in answer

    async def _checkpoint(self, session: AsyncAgentSession) -> None:
        name = f"c{self._random.randrange(10**9)}-{time.monotonic_ns()}"
        await session.checkpoint(name)
        self._checkpoints.append(name)

    async def _roll_back(self) -> bool:
        """Ask the guard about one of its last checkpoints; whether its session is over then."""
        checkpoint = self._random.choice(self._checkpoints[-2:])
        policy = "gated" if self._random.random() < 0.4 else "strict"
        verdict = await self._ledger.authorize_rollback(self.name, checkpoint=checkpoint, policy=policy)
        said = Decided(self.name, verdict.rollback_id, verdict.kind.value, verdict.target or ROOT, time.monotonic_ns())
        self._notes.decided(said)
        return verdict.fenced

    async def _probe(self) -> None:
        for item in (await self._ledger.in_doubt(self.name))[:2]:
            began = time.monotonic()
            try:
                await self._ledger.run_probe(item.operation.op_id)
            except FencepostError as error:
                self._say("", "fail", error, began)

    def _say(
        self,
        op_id: str,
        outcome: str,
        error: BaseException | None,
        began: float,
        *,
        attempt: Any = None,
        value: Any = None,
        ran: bool = False,
    ) -> None:
        claim = getattr(attempt, "_claim", None)
        attempt_id = claim.attempt_id if claim is not None and claim.owned else ""
        told = f"{type(error).__name__}: {error}" if error else ""
        took = time.monotonic() - began
        self._notes.called(Called(self.name, op_id, outcome, ran, attempt_id, value, told, took))


def probe_of(sink: Client) -> Any:
    """What finds out about an operation of the tool: it voids the key, unless the effect happened."""

    async def look(operation: Operation) -> ProbeAnswer:
        answer = await sink.ask(do="void", key=operation.idempotency_key, op_id=operation.op_id)
        if answer.get("happened"):
            number = int(operation.op_id.rpartition("-")[2])
            return ProbeAnswer(Outcome.COMMITTED, result={"paid": number}, evidence="the sink")
        return ProbeAnswer(Outcome.ABSENT, evidence="the sink", voided=True)

    return look
