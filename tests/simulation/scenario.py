"""A stage for one story: the simulated world without chance, in which a test says who does what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from simulation.agents import User
from simulation.checker import violations
from simulation.loop import Process, SeededLoop
from simulation.projecting import Machine
from simulation.run import found_ledger, record
from simulation.world import Faults, World

from fencepost.ledger import attempts, settling
from fencepost.ledger.calls import Call
from fencepost.ledger.errors import FencepostError
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.sessions import SessionState

T = TypeVar("T")
OP = "pay"
EFFECTS, AGENTS = Partition(Topic.EFFECTS, 0), Partition(Topic.AGENTS, 0)
_PATIENCE_S = 120.0


class Attempted:
    """One call of an agent, that goes on when the test lets it: `may_run`, then `may_settle`."""

    def __init__(self, user: User, session: SessionState) -> None:
        self._user = user
        self._session = session
        self.may_run, self.may_settle = asyncio.Event(), asyncio.Event()
        self.granted = self.ran = False
        self.result = ""
        self.error: FencepostError | None = None
        self.done = user.world.loop.spawn(user.process, self._go())

    async def _go(self) -> None:
        call = Call(
            op_id=OP,
            tool="tool",
            effect_class=EffectClass.IRREVERSIBLE,
            identity_digest="same",
            deadline_s=30.0,
            wait_s=20.0,
        )
        try:
            claim = await attempts.begin(self._session, call)
            if not claim.owned:
                self.result = claim.recorded_result()
                return
            claim.start()
            self.granted = True
            await self.may_run.wait()
            self.result = self._user.world.outside.carry_out(self._user.name, claim)
            self.ran = bool(self.result)
            await self.may_settle.wait()
            await (settling.commit(claim, self.result) if self.ran else settling.fail(claim, "the key is void"))
        except FencepostError as error:
            self.error = error

    def go_on(self) -> None:
        """Run and settle without further ado."""
        self.may_run.set()
        self.may_settle.set()


class Stage:
    """The world, its projector, and what a story does with them."""

    def __init__(self, loop: SeededLoop) -> None:
        self.loop = loop
        self.world = World(loop, effects=1, agents=1, faults=Faults())
        self.machine = self.start_machine("projector1")

    def start_machine(self, name: str) -> Machine:
        """A projector that takes everything over."""
        machine = Machine(self.world, Process(name))
        _ = self.loop.spawn(machine.process, machine.live())
        self.machine = machine
        return machine

    async def session(self, agent_id: str, branch_id: str = "main") -> tuple[User, SessionState]:
        """A process of this agent, with a session of its own."""
        user = User(self.world, Process(f"{agent_id}{len(self.world.events)}"))
        await self.as_user(user, user.engine.start())
        opening = user.service.open_session(agent_id, branch_id, resumed_from=None, scope="")
        return user, await self.as_user(user, opening)

    async def attempt(self, agent_id: str) -> Attempted:
        """An attempt at the operation by a new session of this agent."""
        return self.attempted(await self.session(agent_id))

    def attempted(self, who: tuple[User, SessionState]) -> Attempted:
        """An attempt at the operation by a session that there is."""
        return Attempted(*who)

    async def as_user(self, user: User, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, done by the user's process."""
        return await self.loop.spawn(user.process, work)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds. Raises TimeoutError."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 (this loop's time jumps)
                await asyncio.sleep(0.02)

    # -- the log and the projector ---------------------------------------------------------

    def stall(self) -> None:
        """The projector reads nothing from now on."""
        self.world.faults.stalled = 1.0

    async def catch_up(self) -> None:
        """The projector reads on until all is applied and nothing is owed."""
        self.world.faults.stalled = 0.0
        await self.until(lambda: not self.world.at_rest())

    async def settle_and_clean(self) -> int:
        """Everything is settled, and the cleaner removes all that it may; how many records of operations."""
        await self.catch_up()
        await self.until(lambda: all(place.floor == place.end for place in self.world.places.values()))
        before = len(self.world.places[EFFECTS].removed)
        for partition, place in self.world.places.items():
            self.world.clean(partition, below=place.floor, share=1.1)
        return len(self.world.places[EFFECTS].removed) - before

    def lose_store(self) -> None:
        """The projection store is empty."""
        for partition in self.world.places:
            self.world.lose(partition, with_epoch=True)

    def written(self, key: str = OP) -> list[Record]:
        """All records of an effects key, in log order."""
        entries = [self.world.entry(raw) for raw in self.world.places[EFFECTS].written]
        return [entry.record for entry in entries if entry.key == key and entry.record is not None]

    def runs(self) -> int:
        """How often the effect happened."""
        return sum(event.kind == "ran" for event in self.world.events)


def play(story: Callable[[Stage], Awaitable[None]]) -> None:
    """Act a story out; in the end the projection is at rest and the checker finds nothing."""
    loop = SeededLoop(Random(0))
    stages: list[Stage] = []
    found: list[str] = []

    async def main() -> None:
        stage = Stage(loop)
        stages.append(stage)
        found_ledger(stage.world)
        await stage.until(lambda: not stage.world.at_rest())
        await story(stage)
        await asyncio.sleep(1.0)  # what was published in the background lands
        await stage.catch_up()
        found.extend(violations(record(0, stage.world, [])))

    def close() -> None:
        stages[0].world.closed = True

    loop.run(main(), close=close)
    assert not found, found
