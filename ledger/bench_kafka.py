"""Rows on Kafka and Redis: each row has topics and projectors of its own, on servers that the URL names."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from . import bench_filled as filled
from . import urls
from .bench_embedded import OPERATIONS, as_round, operations_of
from .bench_guard import Opened, Opening, decision, preview, replay
from .bench_load import ASYNCIO, DUPLICATE, GUARDED, ORDER_SAFE, THREADS, Load, Loaded, crew
from .bench_machine import Meter, listeners, resident_bytes
from .bench_rows import KAFKA, Measure, Round, Row, Settings
from .cli_projector import projector_commands
from .errors import StoreUnavailableError
from .facade import Ledger
from .ports import Header, Store
from .positions import Partition, Topic
from .setup import initialise
from .stores import open_store

T = TypeVar("T")
Reached = Callable[[Sequence[Header]], bool]
"""Says of the headers of all partitions whether what is waited for is so."""
PARTITIONS = 4
_PROJECTED_EVENTS = 1_000_000
_REPLAYED = 100_000
_START = "from fencepost.ledger.cli import main; main()"
_STOP_S = 30.0
_LOOK_S = 0.05
_PATIENCE_S = 3600.0


@dataclass(slots=True)
class Home:
    """A ledger on Kafka and Redis, and the projectors that serve it."""

    url: str
    projectors: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def meter(self) -> Meter:
        """What the client, the projectors, and the servers cost."""
        return Meter({
            "client": [os.getpid()],
            "projector": [process.pid for process in self.projectors],
            "servers": listeners(_ports(self.url)),
        })  # fmt: skip

    def start(self, count: int) -> None:
        """Start projectors; they serve until `stop`."""
        command = [sys.executable, "-c", _START, "--quiet", "projector", "run", "--url", self.url]
        for _ in range(count):
            self.projectors.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))  # noqa: S603 (our own command)

    def stop(self) -> None:
        """Stop all projectors and wait until they are gone."""
        for process in self.projectors:
            process.terminate()
        for process in self.projectors:
            try:
                process.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.projectors.clear()


@contextmanager
def home(settings: Settings, *, partitions: int = PARTITIONS, projectors: int = 1) -> Iterator[Home]:
    """A new ledger beside the one that the URL names; its topics stay behind, its projectors do not."""
    parsed = urls.parse(settings.kafka_url)
    made = Home(parsed.text.replace(f"/{parsed.prefix}?", f"/{parsed.prefix}-{secrets.token_hex(4)}?", 1))

    async def create(store: Store) -> None:
        await initialise(store, partitions=partitions, development=True)

    on_store(made.url, create)
    try:
        made.start(projectors)
        yield made
    finally:
        made.stop()


def on_store(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """What a coroutine function gives with the store of this URL."""

    async def run() -> T:
        store = open_store(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _ports(url: str) -> list[int]:
    """The ports of servers on this machine."""
    parsed = urls.parse(url)
    found = [address.rpartition(":")[::2] for address in parsed.bootstrap.split(",")]
    projection = urlsplit(parsed.projection)
    found.append((projection.hostname or "", str(projection.port or 6379)))
    return [int(port) for host, port in found if host in {"127.0.0.1", "localhost", socket.gethostname()}]


# -- effects ---------------------------------------------------------------------------


def _effects(
    name: str, *, face: str, agents: int, processes: int = 1, projectors: int = 1, work: str = GUARDED, grown: int = 0
) -> Row:
    def size(settings: Settings) -> Mapping[str, int]:
        each = operations_of(settings, agents, 0)
        sizes = {"agents": agents, "processes": processes, "projectors": projectors, "partitions": PARTITIONS,
                 "operations": each * agents}  # fmt: skip
        return sizes | ({"known_operations": settings.scaled(grown)} if grown else {})

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with home(settings, projectors=projectors) as at, Ledger.open(at.url) as ledger:
            if grown:
                on_store(at.url, lambda store: _grow(store, settings.scaled(grown)))

            def one_round(number: int) -> Round:
                load = Load(
                    url=at.url, face=face, work=work, agents=agents,
                    operations=operations_of(settings, agents, number), tag=f"r{number}",
                )  # fmt: skip
                with ExitStack() as stack:
                    loaded = Loaded(ledger, load) if processes == 1 else stack.enter_context(crew(load, processes))
                    watch = at.meter()
                    return as_round(load, loaded.run(), watch)

            yield one_round

    what = f"{work} effects, {agents} agents ({face})"
    return Row(name, KAFKA, what + (" in a ledger that has many operations" if grown else ""), size, prepare)


async def _grow(store: Store, operations: int) -> None:
    """Have a projection of at least so many operations."""
    before = await _applied(store)
    await filled.fill(store.log, filled.Author(), operations)
    await _until(store, _caught_up(before + 2 * operations))


# -- the projector ---------------------------------------------------------------------


async def _headers(store: Store) -> list[Header]:
    partitions = [Partition(topic, number) for topic in Topic for number in range(store.log.partitions(topic))]
    snapshots = await asyncio.gather(*(store.projection.read(partition, []) for partition in partitions))
    return [snapshot.header for snapshot in snapshots]


async def _applied(store: Store) -> int:
    return sum(header.applied_offset for header in await _headers(store))


async def _until(store: Store, reached: Reached) -> float:
    """Wait until `reached` says so of the headers; when that was, on the clock of `time.perf_counter`."""
    deadline = time.monotonic() + _PATIENCE_S
    while not reached(await _headers(store)):
        if time.monotonic() > deadline:
            raise StoreUnavailableError("the projector does not get on.", next_step="See its log.")
        await asyncio.sleep(_LOOK_S)
    return time.perf_counter()


def _caught_up(total: int) -> Reached:
    def reached(headers: Sequence[Header]) -> bool:
        return all(header.opened for header in headers) and sum(h.applied_offset for h in headers) >= total

    return reached


def _live(name: str, projectors: int) -> Row:
    """How fast an opened projection catches up with what was written while no projector ran."""

    def size(settings: Settings) -> Mapping[str, int]:
        return {"events": settings.scaled(_PROJECTED_EVENTS // 10, least=2), "projectors": projectors,
                "partitions": PARTITIONS}  # fmt: skip

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with home(settings) as at:
            on_store(at.url, lambda store: _until(store, _caught_up(1)))
            at.stop()

            def one_round(number: int) -> Round:
                operations = max(1, size(settings)["events"] // (2 if number >= 0 else 20))
                return on_store(at.url, lambda store: _one_backlog(store, at, operations, projectors))

            yield one_round

    return Row(name, KAFKA, "events projected, with operation states, to an opened projection", size, prepare)


async def _one_backlog(store: Store, at: Home, operations: int, projectors: int) -> Round:
    before = await _applied(store)
    author = filled.Author(session_id=secrets.token_hex(16))
    more = await filled.fill(store.log, author, operations)
    at.start(projectors)
    try:
        await _until(store, lambda headers: sum(h.applied_offset for h in headers) > before)
        first, watch, since = await _applied(store), at.meter(), time.perf_counter()
        ended = await _until(store, _caught_up(before + 2 * operations))
        events = before + 2 * operations - first
        return Round(max(events, 1), max(ended - since, 1e-9), (), watch.spent(), more)
    finally:
        at.stop()


def _rebuild(name: str, projectors: int) -> Row:
    def size(settings: Settings) -> Mapping[str, int]:
        return {"events": settings.scaled(_PROJECTED_EVENTS, least=2), "projectors": projectors,
                "partitions": PARTITIONS}  # fmt: skip

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with home(settings, projectors=projectors) as at:
            operations = size(settings)["events"] // 2
            on_store(at.url, lambda store: filled.fill(store.log, filled.Author(), operations))

            def one_round(number: int) -> Round:
                if number < 0:
                    total = 2 * operations
                    on_store(at.url, lambda store: _until(store, _caught_up(total)))
                return on_store(at.url, lambda store: _one_rebuild(store, at, operations))

            yield one_round

    return Row(name, KAFKA, "events projected in a rebuild, until everything answers again", size, prepare)


async def _one_rebuild(store: Store, at: Home, operations: int) -> Round:
    former = {header.incarnation for header in await _headers(store)}
    watch, began = at.meter(), time.perf_counter()
    parsed = urls.parse(at.url)
    rebuilding = asyncio.create_task(
        asyncio.to_thread(
            projector_commands(parsed.scheme).rebuild, parsed, lambda _: None, accept_gap=False, timeout_s=_PATIENCE_S
        )
    )
    ended = await _until(store, lambda hs: all(h.opened and h.incarnation not in former for h in hs))
    spent = watch.spent()
    await rebuilding
    more = {
        "projector_mib": max(resident_bytes(process.pid) for process in at.projectors) / (1 << 20),
        "redis_bytes_an_operation": _redis_bytes(at.url) / max(operations, 1),
    }
    return Round(2 * operations, ended - began, (), spent, more)


def _redis_bytes(url: str) -> int:
    """The memory of all data of the projection's server; 0 when it does not tell."""
    parts = urlsplit(urls.parse(url).projection)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=5) as connection:
            connection.sendall(b"INFO memory\r\n")
            said = connection.recv(1 << 16).decode(errors="replace")
    except OSError:
        return 0
    found = [line.partition(":")[2] for line in said.splitlines() if line.startswith("used_memory_dataset:")]
    return int(found[0]) if found else 0


def _opening(partitions: int) -> Opening:
    @contextmanager
    def opened(settings: Settings) -> Iterator[Opened]:
        with home(settings, partitions=partitions) as at, Ledger.open(at.url) as ledger:
            yield Opened(ledger, at.meter)

    return opened


def rows() -> list[Row]:
    """All rows on Kafka and Redis."""
    found = [
        _effects(f"kafka.{face}.{agents}", face=face, agents=agents)
        for face in (THREADS, ASYNCIO)
        for agents in OPERATIONS
    ]
    found += [
        _effects("kafka.asyncio.64.two-projectors", face=ASYNCIO, agents=64, projectors=2),
        _effects("kafka.asyncio.64x4.two-projectors", face=ASYNCIO, agents=64, processes=4, projectors=2),
        _effects("kafka.duplicate", face=THREADS, agents=1, work=DUPLICATE),
        _effects("kafka.order-safe", face=THREADS, agents=1, work=ORDER_SAFE),
        _effects("kafka.order-safe.64", face=ASYNCIO, agents=64, work=ORDER_SAFE),
        _live("kafka.projector.live", 1),
        _live("kafka.projector.live.two", 2),
        _rebuild("kafka.projector.rebuild", 1),
        _rebuild("kafka.projector.rebuild.two", 2),
        _effects("kafka.grown.10k", face=THREADS, agents=1, grown=10_000),
        _effects("kafka.grown.1m", face=THREADS, agents=1, grown=1_000_000),
    ]
    for partitions in (12, 64):
        found += [
            preview(f"kafka.preview.{partitions}", KAFKA, _opening(partitions)),
            preview(f"kafka.preview.{partitions}.moved", KAFKA, _opening(partitions), moving=True),
            decision(f"kafka.decision.{partitions}", KAFKA, _opening(partitions)),
        ]
    return [*found, replay("kafka.replay", KAFKA, _opening(PARTITIONS), _REPLAYED)]
