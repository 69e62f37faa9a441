"""A ledger on real services with everything around it that a fault run needs, and its end: evidence, checked."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.stack.checker import Findings, check
from faults.stack.crew import Orders
from faults.stack.evidence import Follower, lines, load, raw_line, write_projection
from projection_kit import Rig

from fencepost.consumer import kafka_client
from fencepost.consumer.command import lag
from fencepost.consumer.guarantees import DAY_MS
from fencepost.consumer.topics import open_admin
from fencepost.deploy.processes import Process, log_tail, wait_until
from fencepost.ledger import Ledger, StoreError, urls
from fencepost.ledger.positions import Partition
from fencepost.ledger.setup import initialise
from fencepost.ledger.stores import open_store

TESTS = Path(__file__).parents[2]
PATIENCE_S = 90.0
LIFE_S = 600.0
"""How long a crew lives that nobody stops: longer than anything waits for what it does."""


def create(
    bootstrap: str,
    redis_url: str,
    *,
    partitions: int = 2,
    development: bool = True,
    copies: int = 1,
    lag_ms: int = DAY_MS,
) -> Rig:
    """A new ledger with topics of its own; with three copies also for one that says it is for development."""
    prefix = f"s{os.getpid()}-{secrets.token_hex(4)}"
    url = f"kafka://{bootstrap}/{prefix}?projection={redis_url}" + ("&development=1" if development else "")
    few = development and copies == 1

    async def work() -> None:
        admin = open_admin(urls.parse(url))
        await admin.initialise(partitions=partitions, development=few, min_compaction_lag_ms=lag_ms)
        store = open_store(url)
        try:
            await initialise(store, partitions=partitions, development=development)
        finally:
            await store.close()

    asyncio.run(work())
    return Rig(urls.parse(url), partitions)


class Crew:
    """A running crew: its processes by the number of the group."""

    def __init__(self, orders: Orders, log: Path) -> None:
        self._told = Path(orders.directory) / f"crew.{orders.name}.jsonl"
        self._log = log
        self.name = orders.name
        self.groups = orders.groups
        self._stop = Path(orders.plan["stop"])
        plan = json.dumps(orders.__dict__)
        self._process = Process.spawn(module("crew", plan), log=log, tied=True)
        assert wait_until(lambda: bool(self.pids()) or not self._process.alive(), 30), log_tail(log)

    def pids(self) -> dict[int, int]:
        """Group → process id, of those that run or ran last."""
        found = [values["pids"] for values in lines(self._told) if "pids" in values]
        return {int(number): pid for number, pid in found[-1].items()} if found else {}

    def ended(self) -> list[tuple[int, int, int]]:
        """(group, which life of it, exit code) of each process that ended."""
        return [(v["ended"], v["life"], v["code"]) for v in lines(self._told) if "ended" in v]

    def send(self, number: int, which: int) -> None:
        """Send a signal to a group's process."""
        with suppress(ProcessLookupError):
            os.kill(self.pids()[number], which)

    def running(self) -> bool:
        return self._process.alive()

    def stop(self) -> None:
        """Let every agent end its session, whatever it has still to do."""
        self._stop.touch()

    def finish(self, timeout_s: float) -> None:
        """Wait until all groups have ended well."""
        assert wait_until(lambda: not self._process.alive(), timeout_s), f"still at work: {log_tail(self._log)}"
        codes = [code for _, _, code in self.ended()]
        assert all(code in {0, -signal.SIGKILL} for code in codes), (codes, log_tail(self._log))

    def kill(self) -> None:
        self._process.kill()


@dataclass
class Stage:
    """A ledger, its outside world, its archive, and whoever acts on it."""

    rig: Rig
    directory: Path
    port: int = 0
    crews: list[Crew] = field(default_factory=list)
    projectors: list[Process] = field(default_factory=list)
    _held: ExitStack = field(default_factory=ExitStack)
    _started: int = 0
    _hits: int = 0

    def __post_init__(self) -> None:
        self._sunk = Follower(self.directory / "sink.jsonl")
        self._tapped = Follower(self.directory / "tap.jsonl")
        self._last: dict[tuple[str, int], int] = {}

    @property
    def url(self) -> str:
        return self.rig.url.text

    @contextmanager
    def playing(self) -> Iterator[Stage]:
        """With the sink and the tap; everything is killed at the end."""
        with self._held:
            sink = subprocess.Popen(module("sink", str(self.directory / "sink.jsonl")), stdout=subprocess.PIPE)
            self._held.callback(sink.wait)
            self._held.callback(sink.kill)
            assert sink.stdout is not None
            self._held.callback(sink.stdout.close)
            self.port = int(sink.stdout.readline())
            archive = str(self.directory / "tap.jsonl")
            self._spawn("tap", module("tap", self.url, str(self.rig.partitions), archive))
            yield self

    def project(self, *, failpoint: str = "", session_ms: int = 3000, slow: Path | None = None) -> Process:
        """Start a projector."""
        environment = {"FENCEPOST_FAILPOINT": failpoint, "STACK_SESSION_MS": str(session_ms)}
        if slow is not None:
            environment["STACK_SLOW"] = str(slow)
        process = self._spawn("projector", module("projecting", self.url, **environment))
        self.projectors.append(process)
        return process

    def open(self) -> Stage:
        """Wait until the ledger answers."""

        def answers() -> bool:
            with suppress(StoreError):
                Ledger.open(self.url).close()
                return True
            return False

        assert wait_until(answers, PATIENCE_S)
        return self

    def crew(
        self,
        name: str,
        *,
        groups: list[list[str]],
        failpoints: dict[str, str] | None = None,
        differs: dict[str, dict[str, Any]] | None = None,
        limits: dict[str, Any] | None = None,
        seed: int = 1,
        plan: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Crew:
        """Start a crew; see `agents.Plan` for the plan, which may also be given piece by piece."""
        named = {"scope": name, "stop": str(self.directory / f"stop.{name}"), "seconds": LIFE_S}
        orders = Orders(
            self.url,
            str(self.directory),
            name,
            self.port,
            groups,
            {**named, **(plan or {}), **more},
            seed=seed,
            limits={"deadline_s": 10.0, "apply_s": 20.0, "publish_s": 30.0, **(limits or {})},
            failpoints=failpoints or {},
            differs=differs or {},
        )
        crew = Crew(orders, self.directory / f"crew.{name}.log")
        self._held.callback(crew.kill)
        self.crews.append(crew)
        return crew

    def hits(self) -> int:
        """How often the outside world was changed so far."""
        self._hits += sum(values["do"] == "hit" for values in self._sunk.new())
        return self._hits

    def wait_for_hits(self, more: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the outside world was changed so much more often: the agents get on."""
        wanted = self.hits() + more
        assert wait_until(lambda: self.hits() >= wanted, timeout_s), (
            f"{self.hits()} hits, wanted {wanted}; {self.said()}"
        )

    def wait_until_quiet(self, for_s: float = 1.0, timeout_s: float = 30.0) -> int:
        """Wait until the outside world has not been changed for a while; how often it was changed till then."""
        seen, since = self.hits(), time.monotonic()

        def quiet() -> bool:
            nonlocal seen, since
            if (now := self.hits()) != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() - since >= for_s

        assert wait_until(quiet, timeout_s), "the agents go on"
        return seen

    def said(self) -> str:
        """The ends of the logs, for an error message."""
        return "\n".join(f"{path.name}:\n{log_tail(path)}" for path in sorted(self.directory.glob("*.log")))

    def settle(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until everything is applied, nothing is owed, and the archive has everything."""

        def at_rest() -> bool:
            with suppress(StoreError):
                return self.rig.at_rest()
            return False

        assert wait_until(at_rest, timeout_s), (lag(self.rig.url), self.said())
        ends = {row.partition: row.log_end_offset for row in lag(self.rig.url)}
        assert wait_until(lambda: self._archived(ends), timeout_s), self.said()

    def findings(self) -> Findings:
        """Check everything; the stage must be at rest."""
        with (self.directory / "log.jsonl").open("wb") as out:
            for partition in self.rig.everything():
                for raw in kafka_records(self.rig, partition):
                    out.write(raw_line(partition, raw))
        write_projection(self.directory / "projection.jsonl", self.rig.projected())
        return check(load(self.directory, self.rig.partitions))

    def finish(self, timeout_s: float = PATIENCE_S) -> Findings:
        """Wait for the crews and for rest, check, and fail on any violation."""
        for crew in self.crews:
            crew.finish(timeout_s)
        self.settle(timeout_s)
        findings = self.findings()
        assert not findings.violations, findings.violations[:20]
        return findings

    def _archived(self, ends: dict[Partition, int]) -> bool:
        for values in self._tapped.new():
            self._last[values["topic"], values["number"]] = values["offset"]
        return all(self._last.get((p.topic.value, p.number), -1) >= end - 1 for p, end in ends.items())

    def _spawn(self, what: str, argv: list[str]) -> Process:
        self._started += 1
        process = Process.spawn(argv, log=self.directory / f"{self._started:02}-{what}.log", tied=True)
        self._held.callback(process.kill)
        return process


def module(name: str, *arguments: str, **environment: str) -> list[str]:
    """The command that runs a module of this folder."""
    words = [f"{variable}={value}" for variable, value in environment.items()]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return ["env", f"PYTHONPATH={path}", *words, sys.executable, "-m", f"faults.stack.{name}", *arguments]


def kafka_records(rig: Rig, partition: Partition) -> Iterator[Any]:
    """The records that are in a partition now, as they stand there."""
    from confluent_kafka import Consumer, KafkaError  # noqa: PLC0415
    from faults.stack.evidence import Raw  # noqa: PLC0415

    settings = {**kafka_client.reader_settings(rig.url, f"{rig.url.prefix}.final"), "enable.partition.eof": True}
    consumer = Consumer(settings)
    try:
        first, end = kafka_client.log_bounds(rig.url, consumer, partition)
        consumer.assign([kafka_client.topic_partition(rig.url, partition, first)])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if (error is None or error.code() == KafkaError._PARTITION_EOF) and (message.offset() or 0) >= end:
                return
            if error is not None:
                assert kafka_client.passing(error) or error.code() == KafkaError._PARTITION_EOF, error
                continue
            key, value = kafka_client.as_bytes(message.key()), kafka_client.as_bytes(message.value())
            yield Raw(message.offset() or 0, message.timestamp()[1], key, value)
        raise AssertionError(f"{partition} cannot be read to its end")
    finally:
        consumer.close()
