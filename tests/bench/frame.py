"""What every baseline has: options, rounds, and lines of the same form as `fencepost bench --json`.

    PYTHONPATH=tests python -m bench.sqlite_alone --rounds 5 --kafka HOST:PORT --redis redis://HOST:PORT/0

Each script does what a user would write who picks that tool instead: the same unit of work, no checks of ours.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fencepost.ledger.bench_machine import Meter, listeners
from fencepost.ledger.bench_rows import SCHEMA, Measure, Round, Row, Settings, measure

BASELINE = "baseline"
OPERATIONS = {1: 500, 8: 2000, 64: 6400}
AGENTS = tuple(OPERATIONS)
QUICK_SCALE = 0.002

Effect = Callable[[str], None]
AwaitedEffect = Callable[[str], Awaitable[None]]


def need(*modules: str) -> str:
    """Which of these modules is missing, as a row's problem; "" when none is."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def bootstrap(settings: Settings) -> str:
    """The brokers' address."""
    return settings.kafka_url.split(" ")[0]


def redis_url(settings: Settings) -> str:
    """Redis's address."""
    return settings.kafka_url.split(" ")[1]


def server_pids(settings: Settings) -> list[int]:
    """The servers that the addresses name, on this machine."""
    if not settings.kafka_url:
        return []
    ports = [bootstrap(settings).rpartition(":")[2], redis_url(settings).rpartition(":")[2].partition("/")[0]]
    return listeners([int(port) for port in ports])


def meter(settings: Settings, *projectors: int) -> Meter:
    """Watches client, projectors, and servers, as far as there are any."""
    parts: dict[str, Sequence[int]] = {"client": [os.getpid()]}
    if projectors:
        parts["projector"] = projectors
    if servers := server_pids(settings):
        parts["servers"] = servers
    return Meter(parts)


def each_of(settings: Settings, agents: int, number: int) -> int:
    """Operations of one agent in a round; fewer in the warm-up."""
    each = settings.scaled(OPERATIONS[agents] // agents)
    return max(1, each // 5) if number < 0 else each


def in_threads(effect: Effect, agents: int, each: int, tag: str, watch: Meter) -> Round:
    """One round of agents in threads, in a closed loop."""
    latencies: list[int] = []

    def agent(place: int) -> None:
        for number in range(each):
            since = time.perf_counter_ns()
            effect(f"{tag}-{place}-{number}")
            latencies.append(time.perf_counter_ns() - since)

    threads = [threading.Thread(target=agent, args=(place,)) for place in range(agents)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(latencies) == agents * each, "an agent failed"
    return Round(agents * each, time.perf_counter() - began, latencies, watch.spent())


async def in_tasks(effect: AwaitedEffect, agents: int, each: int, tag: str, watch: Meter) -> Round:
    """One round of agents in tasks, in a closed loop."""
    latencies: list[int] = []

    async def agent(place: int) -> None:
        for number in range(each):
            since = time.perf_counter_ns()
            await effect(f"{tag}-{place}-{number}")
            latencies.append(time.perf_counter_ns() - since)

    began = time.perf_counter()
    await asyncio.gather(*(agent(place) for place in range(agents)))
    return Round(agents * each, time.perf_counter() - began, latencies, watch.spent())


@contextmanager
def directory(settings: Settings) -> Iterator[Path]:
    """A place that is thrown away, on the disk that is measured."""
    with tempfile.TemporaryDirectory(prefix="fencepost-baseline-", dir=settings.directory) as path:
        yield Path(path)


def effects_row(name: str, what: str, agents: int, prepare: Callable[[Settings], Iterator[Measure]]) -> Row:
    """A row of effects by so many agents; `prepare` is a generator that yields the measure once."""

    def size(settings: Settings) -> Mapping[str, int]:
        return {"agents": agents, "operations": each_of(settings, agents, 0) * agents}

    return Row(f"{name}.{agents}", BASELINE, what, size, contextmanager(prepare))


def main(rows: Sequence[Row], *, problem: str = "", needs_services: bool = False) -> None:
    """Run the rows and print a line for each; with a problem, say that instead."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--kafka", default="", help="host:port")
    parser.add_argument("--redis", default="", help="redis://host:port/0")
    options = parser.parse_args()
    if needs_services and not (options.kafka and options.redis):
        problem = problem or "needs --kafka and --redis"
    settings = Settings(
        directory=options.directory,
        kafka_url=f"{options.kafka} {options.redis}" if options.kafka else "",
        rounds=1 if options.quick else options.rounds,
        scale=QUICK_SCALE if options.quick else options.scale,
    )
    for row in rows:
        told = {
            "schema": SCHEMA,
            "row": row.name,
            "store": row.store,
            "what": row.what,
            "size": dict(row.size(settings)),
        }
        result = told | {"problem": problem} if problem else measure(row, settings)
        print(json.dumps(result), flush=True)
