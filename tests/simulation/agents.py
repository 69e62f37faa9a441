"""Those who use the ledger: agents that run effects, a guard that asks whether one may go back, an operator.

All of them run the real protocol on the real engine. They do what sensible users do: nothing runs without a claim, a
probe voids the key before it says that an effect did not happen, and a tool says honestly what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from simulation.loop import Process
from simulation.ports import SimulatedStore
from simulation.world import World

from fencepost.ledger import attempts, resolutions, rollbacks, settling
from fencepost.ledger.attempts import Claim
from fencepost.ledger.calls import Call
from fencepost.ledger.engine import Clock, Engine
from fencepost.ledger.errors import FencedError, FencepostError, StaleProjectionError, UnsafeRollbackError
from fencepost.ledger.facts import EffectClass, Outcome
from fencepost.ledger.limits import Limits
from fencepost.ledger.operations import Operation, Status
from fencepost.ledger.resolutions import ProbeAnswer
from fencepost.ledger.service import Service
from fencepost.ledger.sessions import SessionState, close_session
from fencepost.ledger.verdicts import NOBODY, Policy, Verdict

LIMITS = Limits(deadline_s=3.0, wait_s=3.0, apply_s=6.0, publish_s=6.0)
_TRIES = 25
"""How often a user tries again before giving the work up; long enough for a rollback without a guard to be withdrawn."""


class SimulatedClock(Clock):
    """The loop's time; the clock that is told to people goes wrong by `skew_s`."""

    def __init__(self, world: World, skew_s: float) -> None:
        self._world = world
        self._skew_ms = int(skew_s * 1000)

    def monotonic(self) -> float:
        return self._world.loop.now

    def wall_ms(self) -> int:
        return self._world.now_ms() + self._skew_ms


@dataclass(frozen=True, slots=True)
class Work:
    """What an agent is about: who it is, how many steps it takes, and which operations it knows."""

    agent_id: str
    branch_id: str = "main"
    steps: int = 4
    op_ids: tuple[str, ...] = ("pay", "mail")
    guarded: bool = True


class User:
    """A process that has the ledger open."""

    engine_kind: type[Engine] = Engine

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.rng = world.rng
        self.process = process
        self.name = process.name
        self._made = 0
        clock = SimulatedClock(world, world.rng.uniform(-20.0, 20.0))
        store = SimulatedStore(world, process)
        self.engine = self.engine_kind(store, LIMITS, clock, self._new_id)
        self.service = Service(self.engine)

    async def live(self) -> None:
        """What it does."""
        raise NotImplementedError

    def _new_id(self) -> str:
        self._made += 1
        return f"{self.name}-{self._made}"

    def note(self, kind: str, *what: Any) -> None:
        self.world.note(self.name, kind, *what)

    async def persistently(self, what: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """What `attempt` returns, tried again while the ledger cannot serve; None when it was given up."""
        for _ in range(_TRIES):
            try:
                return await attempt()
            except FencepostError as error:
                self.note("refused", what, type(error).__name__, _reason(error))
                if isinstance(error, (UnsafeRollbackError, FencedError)):
                    return None
            await asyncio.sleep(self.rng.uniform(1.0, 5.0))
        return None


def _reason(error: FencepostError) -> str:
    found = str(error.details.get("reason", ""))
    return "went back" if "went back" in error.message else found[:40]


class Agent(User):
    """Opens a session and works: effects, checkpoints, forks, rollbacks of its own."""

    def __init__(self, world: World, process: Process, work: Work) -> None:
        super().__init__(world, process)
        self.work = work
        self._checkpoints: list[str] = []

    async def live(self) -> None:
        await self.persistently("start", self.engine.start)
        session = await self._open(self.work.branch_id)
        steps = (
            (self._effect, 6), (self._checkpoint, 3), (self._take_over, 1), (self._fork, 1), (self._roll_back, 1),
            (self._reopen, 1),
        )  # fmt: skip
        for _ in range(self.work.steps):
            if session is None or session.ended:
                session = await self._open(self.work.branch_id)
            if session is None:
                return
            await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.4)) * self.rng.random())
            [step] = self.rng.choices([step for step, _ in steps], [weight for _, weight in steps])
            session = await step(session)
        if session is not None:
            await self._attempt("close", close_session(session))

    async def _attempt(self, what: str, work: Awaitable[Any]) -> Any:
        """What a call returns, or None; what it raises is noted."""
        try:
            return await work
        except FencepostError as error:
            self.note("refused", what, type(error).__name__, _reason(error))
            return None

    async def _open(self, branch_id: str) -> SessionState | None:
        def opening() -> Awaitable[SessionState]:
            return self.service.open_session(self.work.agent_id, branch_id, resumed_from=None, scope="")

        session: SessionState | None = await self.persistently("open", opening)
        if session is not None:
            self.note("opened", session.session_id, session.epoch)
        return session

    # -- steps -----------------------------------------------------------------------------

    async def _checkpoint(self, session: SessionState) -> SessionState:
        checkpoint_id = f"c{self.rng.randrange(100)}"
        if await self._attempt(
            "checkpoint", self.service.checkpoint(session, checkpoint_id, state_digest="", generation=0)
        ):
            self._checkpoints.append(checkpoint_id)
            self.note("checkpoint", checkpoint_id)
        return session

    async def _take_over(self, session: SessionState) -> SessionState:
        if await self._attempt("take over", self.service.take_over(session)):
            self.note("took over")
        return session

    async def _reopen(self, session: SessionState) -> SessionState | None:
        if self.rng.random() < 0.5:
            await self._attempt("close", close_session(session))
        return await self._open(session.branch_id)

    async def _fork(self, session: SessionState) -> SessionState:
        """A branch from the last checkpoint, and one effect on it."""
        if self._checkpoints:
            name = f"b{self.rng.randrange(100)}"
            fork = self.service.fork(session.agent_id, name, checkpoint_id=self._checkpoints[-1])
            try:
                await fork
            except FencepostError as error:
                self.note("refused", "fork", type(error).__name__, _reason(error))
            else:
                self.note("forked", name)
                branch = await self._open(name)
                if branch is not None:
                    await self._effect(branch)
        return session

    async def _roll_back(self, session: SessionState) -> SessionState | None:
        if not (self._checkpoints and self.work.guarded):
            return session
        policy = self.rng.choice((Policy.STRICT, Policy.GATED))
        try:
            successor = await self.service.roll_back(
                session, self.rng.choice(self._checkpoints), policy, "", word=NOBODY
            )
        except FencepostError as error:
            self.note("refused", "roll back", type(error).__name__, _why(error))
            return session
        self.note("rolled back")
        return successor

    # -- effects ---------------------------------------------------------------------------

    def _call(self) -> Call:
        op_id = self.rng.choice(self.work.op_ids)
        harmless = op_id.startswith("harmless")
        kind = EffectClass.REPEATABLE if harmless else EffectClass.IRREVERSIBLE
        return Call(
            op_id=op_id,
            tool=f"tool of {op_id}",
            effect_class=kind,
            identity_digest="same",
            content_digest=self.rng.choice(("", "reworded")),
            deadline_s=LIMITS.deadline_s,
            wait_s=LIMITS.wait_s,
        )

    async def _effect(self, session: SessionState) -> SessionState:
        call = self._call()
        number = len(self.world.events)
        self.note("begin", number, call.op_id)
        try:
            claim = await self._begin(session, call)
        except (FencepostError, TimeoutError) as error:
            self.note("ended", number, type(error).__name__)
            return session
        if not claim.owned:
            result = claim.recorded_result()
            self.note("ended", number, "recorded")
            self.note("recorded", call.op_id, claim.round, result)
            return session
        try:
            await self._run(claim)
        except FencepostError as error:
            self.note("ended", number, type(error).__name__)
        else:
            self.note("ended", number, claim.decided)
        return session

    async def _begin(self, session: SessionState, call: Call) -> Claim:
        if not self.world.happens(self.world.faults.cancelled):
            return await attempts.begin(session, call)
        async with asyncio.timeout(self.rng.uniform(0.0, 0.05)):
            return await attempts.begin(session, call)

    async def _run(self, claim: Claim) -> None:
        """The tool: it may refuse, or fail without anybody knowing on which side of the effect."""
        try:
            claim.start()
        except StaleProjectionError:
            await settling.fail(claim, "too late to start")
            return
        await asyncio.sleep(self.rng.choice((0.002, 0.05, 0.5)) * self.rng.random())
        if self.world.happens(self.world.faults.tool):
            if self.rng.random() < 0.5:
                await settling.fail(claim, "the tool refused")
                return
            if self.rng.random() < 0.5:
                self.world.outside.carry_out(self.name, claim)
            await settling.doubt(claim, "no answer from the tool")
            return
        result = self.world.outside.carry_out(self.name, claim)
        if self.world.happens(self.world.faults.dies_in_tool):
            self.world.loop.kill(self.process)
        await self.world.hop()
        if result:
            await settling.commit(claim, result)
        else:
            await settling.fail(claim, "the key is void")


def _why(error: FencepostError) -> str:
    verdict = error.details.get("verdict")
    return ",".join(sorted({reason.kind.value for reason in verdict.reasons})) if isinstance(verdict, Verdict) else ""


class Guard(User):
    """Somebody who asks whether an agent may go back to one of its checkpoints."""

    def __init__(self, world: World, process: Process, agent_id: str) -> None:
        super().__init__(world, process)
        self._agent_id = agent_id

    async def live(self) -> None:
        await self.persistently("start", self.engine.start)
        for _ in range(self.rng.randint(1, 2)):
            verdict = await self.persistently("guard", self._ask)
            if isinstance(verdict, Verdict):
                reasons = ",".join(sorted({reason.kind.value for reason in verdict.reasons}))
                self.note("verdict", verdict.kind.value, verdict.rollback_id, reasons, verdict.fenced)
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    async def _ask(self) -> Verdict:
        view = await self.engine.view.known_agent(self._agent_id)
        checkpoint_id = self.rng.choice(sorted(view.checkpoints)) if view.checkpoints else "none"
        policy = self.rng.choice((Policy.STRICT, Policy.STRICT, Policy.GATED))
        return await rollbacks.authorize(self.engine, self._agent_id, checkpoint_id, policy=policy)


class Operator(User):
    """Somebody who settles what is in doubt, and undoes an effect now and then."""

    async def live(self) -> None:
        await self.persistently("start", self.engine.start)
        for _ in range(2):
            await asyncio.sleep(self.rng.uniform(0.5, 4.0))
            await self._look()

    async def _look(self) -> None:
        try:
            for item in await resolutions.open_operations(self.engine):
                if item.state in {"in doubt", "silent"}:
                    answer, _ = await resolutions.probe(self.engine, item, self._probe, by="operator")
                    self.note("probed", item.operation.op_id, answer.outcome.value)
            await self._undo()
        except FencepostError as error:
            self.note("refused", "operator", type(error).__name__, _reason(error))

    def _probe(self, operation: Operation) -> ProbeAnswer:
        found = self.world.outside.look(operation.idempotency_key)
        if found:
            return ProbeAnswer(Outcome.COMMITTED, result=found, evidence="it is there")
        return ProbeAnswer(Outcome.ABSENT, evidence="it is not there", voided=True)

    async def _undo(self) -> None:
        view = await self.engine.view.operation("pay")
        if view.operation.status is Status.COMMITTED and self.rng.random() < 0.3:
            await resolutions.resolve(
                self.engine,
                "pay",
                Outcome.COMPENSATED,
                version=view.operation.version,
                by="operator",
                evidence="undone",
            )
            self.note("undone", "pay", view.operation.round)
