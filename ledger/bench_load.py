"""The load of a benchmark: agents that do a fixed number of effects each, in a closed loop.

    python -m fencepost.ledger.bench_load '{"url": …}'     one process of several; see `Crew`

An effect here is a trivial function: what is measured is the ledger around it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from .errors import StoreUnavailableError
from .facade import Ledger
from .facts import EffectClass
from .running import wait
from .session_faces import AgentSession, AsyncAgentSession

THREADS, ASYNCIO = "threads", "asyncio"
GUARDED, DUPLICATE, ORDER_SAFE = "guarded", "duplicate", "order-safe"
_STOP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one process does.

    Attributes:
        face: `threads` (each agent one), or `asyncio`.
        work: `guarded` (claimed, run, recorded), `duplicate` (recorded before; nothing may run),
            or `order-safe` (one record, without confirmation).
        agents: how many; each has a session of its own.
        operations: of each agent.
        first: number of the first agent.
        tag: makes agents and operations of this round its own.
    """

    url: str
    face: str
    work: str
    agents: int
    operations: int
    first: int = 0
    tag: str = ""

    def agent(self, number: int) -> str:
        """An agent's id."""
        return f"bench{self.tag}-{number}"


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a load: seconds from the first call to the last outcome, and each call's latency."""

    seconds: float
    latencies_ns: list[int]
    ran: int


class Loaded:
    """A load with its sessions opened, ready to go once.

    Args:
        ledger: stays open.
        load: what to do.
    """

    def __init__(self, ledger: Ledger, load: Load) -> None:
        self._ledger = ledger
        self._load = load
        self._ran = 0
        if load.work == DUPLICATE:
            Loaded(ledger, replace(load, work=GUARDED)).run()
        self._agents = [load.agent(number) for number in range(load.first, load.first + load.agents)]
        self._sessions: list[AgentSession] = []
        self._awaited: list[AsyncAgentSession] = []
        self._open = AsyncExitStack()
        self._runner = asyncio.Runner()
        if load.face == THREADS:
            self._sessions = [ledger.session(agent).open() for agent in self._agents]
        else:
            self._runner.run(self._open_awaited())

    async def _open_awaited(self) -> None:
        for agent in self._agents:
            self._awaited.append(await self._open.enter_async_context(self._ledger.session(agent)))

    def run(self) -> Done:
        """Do all of it, and close the sessions (the close is not counted)."""
        with self._runner as runner:
            began = time.perf_counter()
            latencies = self._in_threads() if self._sessions else runner.run(self._in_tasks())
            seconds = time.perf_counter() - began
            for session in self._sessions:
                session.close()
            runner.run(self._open.aclose())
        return Done(seconds, latencies, self._ran)

    def _in_threads(self) -> list[int]:
        latencies: list[int] = []
        threads = [
            threading.Thread(target=self._one_thread, args=(session, latencies), daemon=True)
            for session in self._sessions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return latencies

    def _one_thread(self, session: AgentSession, latencies: list[int]) -> None:
        effect = _decorated(session, self._load.work, self._act)
        for number in range(self._load.operations):
            began = time.perf_counter_ns()
            effect(session.agent_id, number)
            latencies.append(time.perf_counter_ns() - began)
        wait(session.submit(session.state.drain()))

    def _act(self, agent: str, number: int) -> dict[str, int]:
        del agent
        self._ran += 1
        return {"paid": number}

    async def _in_tasks(self) -> list[int]:
        latencies: list[int] = []
        await asyncio.gather(*(self._one_task(session, latencies) for session in self._awaited))
        return latencies

    async def _one_task(self, session: AsyncAgentSession, latencies: list[int]) -> None:
        async def act(agent: str, number: int) -> dict[str, int]:
            return self._act(agent, number)

        effect = _decorated(session, self._load.work, act)
        for number in range(self._load.operations):
            began = time.perf_counter_ns()
            await effect(session.agent_id, number)
            latencies.append(time.perf_counter_ns() - began)
        await asyncio.wrap_future(session.submit(session.state.drain()))


def _decorated(session: Any, work: str, function: Callable[..., Any]) -> Any:
    if work == ORDER_SAFE:
        return session.effect("bench.set", kind=EffectClass.IDEMPOTENT, order_safe=True)(function)
    return session.effect("bench.pay", kind=EffectClass.IRREVERSIBLE)(function)


# -- several processes -----------------------------------------------------------------


class Crew:
    """Worker processes with equal shares of a load, ready to go. Raises StoreUnavailableError when one fails."""

    def __init__(self, workers: list[subprocess.Popen[str]]) -> None:
        self._workers = workers

    def run(self) -> Done:
        """Let all of them go at once; the whole of what they did."""
        began = time.perf_counter()
        for worker in self._workers:
            _to(worker, "go")
        told = [json.loads(_from(worker)) for worker in self._workers]
        seconds = time.perf_counter() - began
        latencies = [latency for one in told for latency in one["latencies_ns"]]
        return Done(seconds, latencies, sum(one["ran"] for one in told))


@contextmanager
def crew(load: Load, processes: int) -> Iterator[Crew]:
    """Processes that have opened the ledger and their sessions; they end with the block."""
    share = load.agents // processes
    with ExitStack() as stack:
        workers = []
        for place in range(processes):
            mine = replace(load, agents=share, first=load.first + place * share)
            workers.append(stack.enter_context(_worker(mine)))
        for worker in workers:
            _from(worker)
        yield Crew(workers)


@contextmanager
def _worker(load: Load) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(load))]
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)  # noqa: S603 (this module itself)
    try:
        yield worker
    finally:
        worker.communicate(timeout=_STOP_S)


def _to(worker: subprocess.Popen[str], word: str) -> None:
    if worker.stdin is not None:
        worker.stdin.write(f"{word}\n")
        worker.stdin.flush()


def _from(worker: subprocess.Popen[str]) -> str:
    line = worker.stdout.readline() if worker.stdout is not None else ""
    if not line:
        raise StoreUnavailableError(
            f"a worker of the benchmark ended early (exit code {worker.poll()}).",
            next_step="See what it printed on stderr.",
        )
    return line


def main() -> None:
    """One worker: says "ready", waits for a line, works, and says what came of it."""
    load = Load(**json.loads(sys.argv[1]))
    with Ledger.open(load.url) as ledger:
        loaded = Loaded(ledger, load)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if sys.stdin.readline():
            sys.stdout.write(json.dumps(asdict(loaded.run())) + "\n")
            sys.stdout.flush()
            sys.stdin.read()


if __name__ == "__main__":
    main()
