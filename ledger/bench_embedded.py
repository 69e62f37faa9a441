"""Rows on the embedded store: guarded effects, duplicates, the guard, replay, rebuild, and what a ledger's size costs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import bench_filled as filled
from .bench_guard import Opened, decision, preview, replay
from .bench_load import ASYNCIO, DUPLICATE, GUARDED, ORDER_SAFE, THREADS, Done, Load, Loaded, crew
from .bench_machine import Meter, Spent
from .bench_rows import EMBEDDED, Measure, Round, Row, Settings
from .errors import StoreError
from .facade import Ledger
from .setup import initialise
from .stores import open_store

OPERATIONS = {1: 500, 8: 2000, 64: 6400}
"""Agents → operations of a round, all agents together."""
_WARM_UP = 5
_REBUILT_EVENTS = 1_000_000
_REPLAYED = 100_000


@contextmanager
def ledger_file(settings: Settings) -> Iterator[Path]:
    """The file of a new ledger that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-", dir=settings.directory) as directory:
        path = Path(directory) / "ledger.db"
        asyncio.run(_create(f"sqlite://{path}"))
        yield path


async def _create(url: str) -> None:
    store = open_store(url)
    try:
        await initialise(store)
    finally:
        await store.close()


def meter() -> Meter:
    """What the client costs; the embedded store has no other part."""
    return Meter({"client": [os.getpid()]})


def as_round(load: Load, done: Done, watch: Meter) -> Round:
    """One round of a load. Raises StoreError when other effects ran than should have."""
    spent, asked = watch.spent(), load.agents * load.operations
    wanted = 0 if load.work == DUPLICATE else asked
    if done.ran != wanted or len(done.latencies_ns) != asked:
        raise StoreError(
            f"{done.ran} effects ran where {wanted} should have, in {len(done.latencies_ns)} calls of {asked}.",
            next_step="This breaks a promise of the ledger; report it with the ledger's file or topics.",
        )
    return Round(asked, done.seconds, done.latencies_ns, spent)


def operations_of(settings: Settings, agents: int, number: int) -> int:
    """Operations of each agent in a round."""
    each = settings.scaled(OPERATIONS[agents] // agents)
    return max(1, each // _WARM_UP) if number < 0 else each


def _effects(name: str, *, face: str, agents: int, processes: int = 1, work: str = GUARDED, grown: int = 0) -> Row:
    def size(settings: Settings) -> Mapping[str, int]:
        each = operations_of(settings, agents, 0)
        known = {"agents": agents, "processes": processes, "operations": each * agents}
        return known | ({"known_operations": settings.scaled(grown)} if grown else {})

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with ledger_file(settings) as path, Ledger.open(f"sqlite://{path}") as ledger:
            if grown:
                asyncio.run(filled.fill_embedded(ledger.url, settings.scaled(grown)))

            def one_round(number: int) -> Round:
                load = Load(
                    url=ledger.url, face=face, work=work, agents=agents,
                    operations=operations_of(settings, agents, number), tag=f"r{number}",
                )  # fmt: skip
                return run_load(ledger, load, processes)

            yield one_round

    what = f"{work} effects, {agents} agents ({face})" + (f" in {processes} processes" if processes > 1 else "")
    return Row(name, EMBEDDED, what + (" in a ledger that has many operations" if grown else ""), size, prepare)


def run_load(ledger: Ledger, load: Load, processes: int) -> Round:
    """One round of a load in this process, or in several."""
    if processes == 1:
        loaded, watch = Loaded(ledger, load), meter()
        return as_round(load, loaded.run(), watch)
    with crew(load, processes) as workers:
        watch = meter()
        return as_round(load, workers.run(), watch)


def _rebuild() -> Row:
    def size(settings: Settings) -> Mapping[str, int]:
        return {"events": settings.scaled(_REBUILT_EVENTS, least=2)}

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        events = size(settings)["events"]
        with ledger_file(settings) as path:
            url = f"sqlite://{path}"
            written = asyncio.run(filled.fill_embedded(url, events // 2))

            def one_round(number: int) -> Round:
                if number < 0:
                    return Round(1, 1.0, (), Spent({}, None))  # filling was the warm-up
                watch = meter()
                seconds = asyncio.run(filled.rebuild_embedded(url))
                more = {"file_bytes_an_operation": path.stat().st_size / (events // 2)}
                return Round(events, seconds, (), watch.spent(), {**more, **written})

            yield one_round

    return Row("embedded.rebuild", EMBEDDED, "events projected in a rebuild", size, prepare)


def rows() -> list[Row]:
    """All rows of the embedded store."""
    found = [
        _effects(f"embedded.{face}.{agents}", face=face, agents=agents)
        for face in (THREADS, ASYNCIO)
        for agents in OPERATIONS
    ]
    found += [_effects(f"embedded.{face}.64x4", face=face, agents=64, processes=4) for face in (THREADS, ASYNCIO)]
    found += [
        _effects("embedded.duplicate", face=THREADS, agents=1, work=DUPLICATE),
        _effects("embedded.order-safe", face=THREADS, agents=1, work=ORDER_SAFE),
        _effects("embedded.order-safe.64", face=ASYNCIO, agents=64, work=ORDER_SAFE),
        _effects("embedded.grown.10k", face=THREADS, agents=1, grown=10_000),
        _effects("embedded.grown.1m", face=THREADS, agents=1, grown=1_000_000),
        _rebuild(),
        preview("embedded.preview", EMBEDDED, _opened),
        preview("embedded.preview.moved", EMBEDDED, _opened, moving=True),
        decision("embedded.decision", EMBEDDED, _opened),
        replay("embedded.replay", EMBEDDED, _opened, _REPLAYED),
    ]
    return found


@contextmanager
def _opened(settings: Settings) -> Iterator[Opened]:
    with ledger_file(settings) as path, Ledger.open(f"sqlite://{path}") as ledger:
        yield Opened(ledger, meter)
