"""Does what a schedule says to the services and processes of a stage, and undoes it."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from faults.stack.nemesis import Fault
from faults.stack.stage import Crew, Stage
from projection_kit import drop
from redis.exceptions import RedisError

from fencepost.consumer.command import lag
from fencepost.deploy.kafka_cluster import KafkaCluster
from fencepost.deploy.processes import Process
from fencepost.deploy.redis_server import RedisServer
from fencepost.ledger import StoreError

PROJECTORS = 2
RESOURCES_EVERY_S = 10.0
Act = Callable[[], None]


class Operator:
    """Breaks and heals. One thread calls it; what takes long is done on another one, in order."""

    def __init__(self, stage: Stage, cluster: KafkaCluster, redis: RedisServer) -> None:
        self.stage = stage
        self.cluster = cluster
        self.redis = redis
        self.crew: Crew | None = None
        self._wanted = PROJECTORS
        self._projectors: list[Process] = []
        self._pace = stage.directory / "pace"
        self._slowly = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []
        self._usurpers: list[Crew] = []
        self._told_at = 0.0

    def start(self) -> None:
        """Start what is always there."""
        self.tend()

    def acts(self, fault: Fault) -> tuple[Act, Act | None]:
        """How a fault begins, and how it ends, if that is not at once."""
        begin, end = _ACTS[fault.kind]
        state: dict[str, Any] = {"fault": fault}
        return lambda: begin(self, state), (lambda: end(self, state)) if end else None

    def tend(self) -> None:
        """Start projectors that died; hear what became of what takes long."""
        self._projectors = [p for p in self._projectors if p.alive()]
        while len(self._projectors) < self._wanted:
            self._projectors.append(self.stage.project(slow=self._pace))
        for done in [future for future in self._begun if future.done()]:
            self._begun.remove(done)
            done.result()

    def heal(self) -> None:
        """Undo all that is broken."""
        self._pace.unlink(missing_ok=True)
        for process in self._projectors:
            process.signal(signal.SIGCONT)
        if self.crew is not None:
            for group in self.crew.pids():
                self.crew.send(group, signal.SIGCONT)
        for usurper in self._usurpers:
            usurper.stop()
        for future in self._begun:
            future.result(120)
        self._begun.clear()
        self.redis.resume()
        if not self.redis.running():
            self.redis.start()
        self.redis.command("CONFIG", "SET", "maxmemory", "0")
        self.cluster.heal()
        self._wanted = PROJECTORS
        self.tend()

    # -- resources ---------------------------------------------------------------------

    def resources_due(self) -> bool:
        return time.monotonic() - self._told_at >= RESOURCES_EVERY_S

    def resources(self) -> dict[str, Any]:
        """What the processes hold, and how far the projection is behind."""
        self._told_at = time.monotonic()
        behind = None
        with suppress(StoreError):
            behind = max(row.lag_records for row in lag(self.stage.rig.url)) if self._all_well() else None
        agents = [_held(pid) for pid in self.crew.pids().values()] if self.crew else []
        return {
            "lag": behind,
            "projectors": [_held(process.pid) for process in self._projectors],
            "agents": agents,
            "brokers": [_held(process.pid) for process in self.cluster.processes.values()],
            "redis": _held(self.redis.process.pid) if self.redis.process else None,
        }

    def _all_well(self) -> bool:
        """Whether asking would answer at once."""
        return self.redis.answers() and all(_runs(p.pid) for p in self.cluster.processes.values())

    # -- what is done ------------------------------------------------------------------

    def slowly(self, work: Act) -> None:
        self._begun.append(self._slowly.submit(work))

    def group(self, state: dict[str, Any]) -> int:
        assert self.crew is not None
        return int(state["fault"].target) % max(1, len(self.crew.pids()))

    def signal_group(self, state: dict[str, Any], number: int) -> None:
        assert self.crew is not None
        self.crew.send(self.group(state), number)

    def usurp(self, state: dict[str, Any]) -> None:
        """Stop a group, and let another process speak for its agents meanwhile."""
        assert self.crew is not None
        self.signal_group(state, signal.SIGSTOP)
        agents = self.crew.groups[self.group(state)]
        name = f"usurper-{state['fault'].phase}-{state['fault'].at_s:.0f}"
        plan = {"count": 10**9, "stride": 4, "pause_s": 0.1, "scope": self.crew.name}
        state["crew"] = self.stage.crew(name, groups=[agents], seconds=60, plan=plan)
        self._usurpers.append(state["crew"])

    def give_back(self, state: dict[str, Any]) -> None:
        self.signal_group(state, signal.SIGCONT)
        state["crew"].stop()

    def projector(self, state: dict[str, Any]) -> Process:
        state.setdefault("process", self._projectors[state["fault"].target % len(self._projectors)])
        process: Process = state["process"]
        return process

    def fewer(self, state: dict[str, Any]) -> None:
        """One projector less, by -9, until the end of the fault."""
        self._wanted -= 1
        self.projector(state).kill()

    def more(self) -> None:
        self._wanted += 1

    def leave(self, state: dict[str, Any]) -> None:
        self._wanted -= 1
        self.projector(state).signal(signal.SIGTERM)

    def slow_down(self) -> None:
        self._pace.write_text("0.7")

    def speed_up(self) -> None:
        self._pace.unlink(missing_ok=True)

    def drop_partition(self, state: dict[str, Any]) -> None:
        partitions = self.stage.rig.everything()
        with suppress(StoreError, RedisError):
            drop(self.stage.rig, partitions[state["fault"].target % len(partitions)])

    def start_redis(self) -> None:
        if not self.redis.running():
            self.redis.start()

    def limit_memory(self, size: str) -> None:
        with suppress(OSError):
            self.redis.command("CONFIG", "SET", "maxmemory", size)

    def keep_files(self, state: dict[str, Any]) -> None:
        state["kept"] = self.stage.directory / f"redis-{state['fault'].phase}-{state['fault'].at_s:.0f}"
        shutil.copytree(self._redis_files(), state["kept"])

    def set_back(self, state: dict[str, Any]) -> None:
        self.redis.kill()
        shutil.rmtree(self._redis_files())
        shutil.copytree(state["kept"], self._redis_files())
        self.redis.start()

    def _redis_files(self) -> Path:
        return self.redis.directory / "appendonlydir"

    def leader(self, state: dict[str, Any]) -> int:
        """Who leads the partition that the fault names, as long as all is well."""
        if "leader" not in state:
            places = self.stage.rig.everything()
            place = places[state["fault"].target % len(places)]
            name = self.stage.rig.url.topic(place.topic)
            state["leader"] = 1 + state["fault"].target % len(self.cluster.nodes)
            with suppress(KafkaException):
                known = self.stage.rig.admin.list_topics(name, timeout=5).topics[name].partitions[place.number]
                state["leader"] = known.leader if known.leader > 0 else state["leader"]
        return int(state["leader"])

    def kill_leader(self, state: dict[str, Any]) -> None:
        node = self.leader(state)
        if self.cluster.running(node):
            self.cluster.kill(node)

    def restart_leader(self, state: dict[str, Any]) -> None:
        self.slowly(lambda: self.cluster.restart(self.leader(state)))


_ACTS: dict[
    str, tuple[Callable[[Operator, dict[str, Any]], None], Callable[[Operator, dict[str, Any]], None] | None]
] = {
    "kill agents": (lambda o, s: o.signal_group(s, signal.SIGKILL), None),
    "pause agents": (lambda o, s: o.signal_group(s, signal.SIGSTOP), lambda o, s: o.signal_group(s, signal.SIGCONT)),
    "usurp agents": (Operator.usurp, Operator.give_back),
    "kill projector": (Operator.fewer, lambda o, _: o.more()),
    "pause projector": (
        lambda o, s: o.projector(s).signal(signal.SIGSTOP),
        lambda o, s: o.projector(s).signal(signal.SIGCONT),
    ),
    "slow projector": (lambda o, _: o.slow_down(), lambda o, _: o.speed_up()),
    "one more projector": (lambda o, _: o.more(), Operator.leave),
    "drop partition": (Operator.drop_partition, None),
    "flush Redis": (lambda o, _: o.redis.flushall(), None),
    "kill Redis": (lambda o, _: o.redis.kill(), lambda o, _: o.start_redis()),
    "pause Redis": (lambda o, _: o.redis.pause(), lambda o, _: o.redis.resume()),
    "fill Redis": (lambda o, _: o.limit_memory("100kb"), lambda o, _: o.limit_memory("0")),
    "set Redis back": (Operator.keep_files, Operator.set_back),
    "kill leader": (Operator.kill_leader, Operator.restart_leader),
    "pause leader": (lambda o, s: o.cluster.pause(o.leader(s)), lambda o, s: o.cluster.resume(o.leader(s))),
}


def _held(pid: int) -> dict[str, int] | None:
    """Resident memory in KiB and open files of a process; None once it is gone."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next((int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS")), 0)
        return {"rss_kib": resident, "fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())}
    return None


def _runs(pid: int) -> bool:
    """Whether a process is there and not stopped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"T", "Z"}
    return False
