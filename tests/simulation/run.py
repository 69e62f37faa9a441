"""One run: a world made from a seed, its actors, what goes wrong, and the time to recover in the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from simulation.agents import Agent, Guard, Operator, User, Work
from simulation.loop import EndlessError, Process, SeededLoop
from simulation.projecting import DiedError, Machine
from simulation.world import Event, Faults, World

from fencepost.ledger import log_keys
from fencepost.ledger.facts import AgentFact, AgentKind, encode_agent
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition
from fencepost.ledger.setup import HOME

_RECOVERY_S = 400.0
"""How long after the last fault everybody must have come to an end (a rollback without a guard counts for 60 s)."""
_REST_S = 120.0


@dataclass(slots=True)
class Kinds:
    """The classes that are run; a test exchanges one for a broken one."""

    agent: type[Agent] = Agent
    guard: type[Guard] = Guard
    operator: type[Operator] = Operator
    machine: type[Machine] = Machine
    cleaner_passes_settled: bool = False


@dataclass(slots=True)
class Left:
    """What is left of a partition at the end."""

    written: list[LogEntry]
    removed: set[int]
    documents: dict[DocumentKey, bytes]
    settled: int


@dataclass(slots=True)
class Recorded:
    """A run as it was recorded: for the checker."""

    seed: int
    events: list[Event]
    left: dict[Partition, Left]
    problems: list[str] = field(default_factory=list)
    steps: int = 0
    lasted_s: float = 0.0


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """What the projector logs as an error; the rest is not heard of."""
    heard: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}".strip())

    logger = logging.getLogger("fencepost.projector")
    handler, before = Handler(), (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def simulate(seed: int, kinds: Kinds | None = None) -> Recorded:
    """Run a seed and record it."""
    rng = Random(seed)
    loop = SeededLoop(rng, shuffled=rng.random() < 0.25)
    with _quiet() as heard:
        run = Run(seed, loop, kinds or Kinds())
        try:
            recorded = loop.run(run.main(), close=run.close)
        except EndlessError as error:
            recorded = record(seed, run.world, [str(error)])
    recorded.problems += [f"unheard of: {what}" for what in (*loop.complaints, *heard)]
    recorded.steps, recorded.lasted_s = loop.steps, loop.now
    return recorded


class Run:
    """The actors of one seed, and the order in which things go wrong."""

    def __init__(self, seed: int, loop: SeededLoop, kinds: Kinds) -> None:
        self.seed = seed
        self.loop = loop
        self.rng = loop.rng
        self.kinds = kinds
        self.world = World(
            loop, effects=self.rng.randint(1, 2), agents=self.rng.randint(1, 2), faults=self._some_faults()
        )
        self.machines: list[Machine] = []
        self.users: list[tuple[Process, asyncio.Task[None]]] = []
        self._numbers = 0
        self._recovering = False

    def _some_faults(self) -> Faults:
        """Each seed has some kinds of faults and no others: what is rare together is found apart."""

        def some(probability: float) -> float:
            return probability if self.rng.random() < 0.5 else 0.0

        return Faults(
            slow=some(0.06), unknown=some(0.06), unavailable=some(0.02), no_offset=some(0.1), reply_lost=some(0.02),
            projector_crash=some(0.01), projector_trouble=some(0.02), interrupted=some(0.03), tool=some(0.25),
            cancelled=some(0.15), stalled=some(0.3), dies_in_tool=some(0.1),
        )  # fmt: skip

    async def main(self) -> Recorded:
        found_ledger(self.world)
        self.world.interruptions = [self._take_another_turn, self._clean, self._remember]
        self.start_machine()
        await asyncio.sleep(0.2)
        self._start_users()
        for _ in range(self.rng.randint(1, 9)):
            await asyncio.sleep(self.rng.choice((0.01, 0.1, 0.3, 1.0)) * self.rng.random())
            self.rng.choice(self._incidents())()
        await self._users_end(60.0)
        self._recover()
        problems = await self._come_to_rest()
        return record(self.seed, self.world, problems)

    def close(self) -> None:
        """Nothing counts any more."""
        self.world.closed = True

    # -- actors --------------------------------------------------------------------------

    def _process(self, kind: str) -> Process:
        self._numbers += 1
        return Process(f"{kind}{self._numbers}")

    def start_machine(self) -> None:
        """A projector that has all partitions; those that there were go on a little without knowing."""
        process = self._process("projector")
        machine = self.kinds.machine(self.world, process)
        for former in self.machines:
            former.owns_group = False
            self.world.later(self.rng.uniform(0.0, 2.0), former.stop)
        self.machines = [m for m in self.machines if not m.process.dead and not m.stopped] + [machine]
        process.on_death = lambda: self.world.later(self.rng.uniform(0.01, 1.0), self._replace_machine)
        _ = self.loop.spawn(process, machine.live())

    def _replace_machine(self) -> None:
        if not any(m.owns_group and not m.process.dead for m in self.machines):
            self.start_machine()

    def _start_users(self) -> None:
        ops = self.rng.choice((("pay",), ("pay", "mail"), ("pay", "harmless")))
        same = self.rng.random() < 0.5
        for number in range(2):
            work = Work("A" if same or number == 0 else "B", op_ids=ops, steps=self.rng.randint(2, 6))
            self._start_agent(work, lives=2)
        if self.rng.random() < 0.8:
            self._start_user(self.kinds.guard(self.world, self._process("guard"), "A"), self.rng.uniform(0.1, 1.0))
        if self.rng.random() < 0.6:
            self._start_user(self.kinds.operator(self.world, self._process("operator")), 0.0)

    def _start_agent(self, work: Work, *, lives: int) -> None:
        process = self._process("agent")
        if self.rng.random() < 0.4:
            process.die_at = self.rng.randrange(20, 250)
        if self.rng.random() < 0.4:
            process.pause_at = [(self.rng.randrange(20, 250), self.rng.choice((0.2, 2.0, 8.0)) * self.rng.random())]

        def succeed() -> None:
            if lives > 1 and not self._recovering:
                self._start_agent(work, lives=lives - 1)

        def died() -> None:
            self.world.note(process.name, "died")
            self.world.later(self.rng.uniform(0.01, 1.0), succeed)

        def paused(seconds: float) -> None:
            self.world.note(process.name, "paused", round(seconds, 3))
            if self.rng.random() < 0.7:  # somebody takes it for dead
                self.world.later(self.rng.uniform(0.01, 0.5), succeed)

        process.on_death, process.on_pause = died, paused
        self._start_user(self.kinds.agent(self.world, process, work), self.rng.uniform(0.0, 0.2))

    def _start_user(self, user: User, after_s: float) -> None:
        async def life() -> None:
            await asyncio.sleep(after_s)
            await user.live()

        self.users.append((user.process, self.loop.spawn(user.process, life())))

    # -- what goes wrong -----------------------------------------------------------------

    def _incidents(self) -> list[Callable[[], None]]:
        return [
            self._lose, self._lose_some, self._go_back, self._go_back, self._remember, self._remember, self._clean,
            self._clean, self._clean, self.start_machine, self._kill_machine, self._outage,
        ]  # fmt: skip

    def _some_place(self) -> Partition:
        return self.rng.choice(list(self.world.places))

    def _lose(self) -> None:
        """The store loses everything."""
        for partition in self.world.places:
            self.world.lose(partition, with_epoch=True)

    def _lose_some(self) -> None:
        self.world.lose(self._some_place(), with_epoch=self.rng.random() < 0.5)

    def _go_back(self) -> None:
        self.world.go_back(self._some_place())

    def _remember(self) -> None:
        for partition in self.world.places:
            self.world.remember(partition)

    def _clean(self) -> None:
        share = self.rng.choice((0.3, 1.0))
        for partition, place in self.world.places.items():
            below = place.end if self.kinds.cleaner_passes_settled else self.rng.randint(0, place.floor)
            self.world.clean(partition, below=below, share=share)

    def _outage(self) -> None:
        """The log takes nothing for a while."""
        self.world.down_until = self.loop.now + self.rng.choice((0.3, 2.0, 15.0)) * self.rng.random()

    def _kill_machine(self) -> None:
        self.loop.kill(self.machines[-1].process)

    def _take_another_turn(self) -> None:
        """Another projector comes in between, if there is one; it may die of it."""
        others = [m for m in self.machines if not m.process.dead and not m.stopped]
        machine = self.rng.choice(others) if others else None
        if machine is not None:
            try:
                machine.turn()
            except DiedError:
                self.loop.kill(machine.process)

    # -- the end -------------------------------------------------------------------------

    async def _users_end(self, seconds: float) -> list[str]:
        """Wait for all users, so long at most; the names of those who are not done."""

        def going_on() -> list[str]:
            return [process.name for process, task in self.users if not task.done() and not process.dead]

        deadline = self.loop.now + seconds
        while going_on() and self.loop.now < deadline:  # noqa: ASYNC110 (this loop's time jumps)
            await asyncio.sleep(0.25)
        return going_on()

    def _recover(self) -> None:
        """From here on nothing goes wrong any more."""
        self._recovering = True
        self.world.faults = Faults()
        self.world.down_until = 0.0
        self.world.interruptions = []
        for process, _ in self.users:
            process.die_at, process.pause_at, process.paused_until = None, [], 0.0
        self.world.note("world", "recovers")
        self.start_machine()

    async def _come_to_rest(self) -> list[str]:
        problems = [f"{name} does not come to an end" for name in await self._users_end(_RECOVERY_S)]
        deadline = self.loop.now + _REST_S
        while (left := self.world.at_rest()) and self.loop.now < deadline:  # noqa: ASYNC110 (this loop's time jumps)
            await asyncio.sleep(0.25)
        if left:
            problems.append(f"no rest: {left}")
        problems += [
            f"{process.name} failed: {task.exception()!r}"
            for process, task in self.users
            if task.done() and not task.cancelled() and task.exception() is not None
        ]
        return problems


def record(seed: int, world: World, problems: list[str]) -> Recorded:
    """What happened in a world, and what is left of it."""
    left = {}
    for partition, place in world.places.items():
        documents = {
            DocumentKey(name, key): data
            for name, found in place.stored.documents.items()
            for key, data in found.items()
        }
        written = [world.entry(raw) for raw in place.written]
        left[partition] = Left(written, set(place.removed), documents, place.floor)
    return Recorded(seed, world.events, left, problems)


def found_ledger(world: World) -> None:
    """Write the record that makes a ledger of the log."""
    created = AgentFact(kind=AgentKind.LEDGER_CREATED, ledger_id="simulated", evidence="simulated")
    world.append(HOME, Record(log_keys.LEDGER, (), encode_agent(created), "init"), "init")
