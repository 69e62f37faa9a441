"""Kafka and Redis that keep running after the command that starts them, described by a state file in their directory."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .processes import Process, ServiceError, port_is_free
from .services import KafkaCluster, RedisServer, choose, local_kafka_problem, redis_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class LocalServices:
    """The services of one directory. Commands on it wait for each other.

    Args:
        directory: state, data and logs.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._state_file = directory / "state.json"

    def up(
        self, *, nodes: int | None = None, kafka_port: int | None = None, redis_port: int | None = None
    ) -> dict[str, Any]:
        """Start what does not run, leave alone what does, and return the status.

        In it "started" names what was not there before: "kafka", "redis", or single nodes of a cluster like "kafka-2".

        Args:
            nodes: how many brokers; None takes those that are there, else one.
            kafka_port: of the first broker, the others follow; None takes the port of the last time if it is free.
            redis_port: likewise.

        Raises:
            ServiceError: something is missing, does not start, or runs with other settings. What was started is
                stopped again; what ran before goes on.
        """
        for problem in (local_kafka_problem, redis_problem):
            choice = choose("local", local_problem=problem, docker_problem=lambda: None)
            if choice.source == "none":
                raise ServiceError(f"{choice.detail}. With Docker: docker compose -f deploy/compose.yaml up")
        with self._alone():
            kafka, redis = self._handles(self._state())
            nodes = nodes or len(kafka.nodes)
            kafka_ports = _ports(kafka_port, nodes, kafka.ports)
            dead = [node for node in kafka.nodes if not kafka.running(node)]
            kafka_runs, redis_runs = len(dead) < len(kafka.nodes), redis.running()
            other_kafka = kafka_runs and not (nodes == len(kafka.nodes) and kafka_ports == kafka.ports)
            if other_kafka or (redis_runs and redis_port not in {None, redis.port}):
                raise ServiceError(f"the services in {self.directory} run with other settings; stop them first: down")
            self._check_nodes(nodes)
            if not redis_runs:
                redis.stop()
                redis = RedisServer(self.directory / "redis", port=redis_port or _if_free(redis.port), tied=False)
            if not kafka_runs:
                kafka.stop()
                if kafka_port is None and not (kafka_ports and all(map(port_is_free, kafka_ports))):
                    kafka_ports = None
                kafka = KafkaCluster(nodes, directory=self.directory / "kafka", ports=kafka_ports, tied=False)
            started = [f"kafka-{node}" for node in dead] if kafka_runs else ["kafka"]
            started += [] if redis_runs else ["redis"]
            return self._report(self._start(kafka, redis, started)) | {"started": started}

    def down(self, *, wipe: bool = False, only: Sequence[str] = ("kafka", "redis")) -> dict[str, Any]:
        """Stop what runs and return the status.

        Args:
            wipe: delete data and logs too.
            only: what to stop, as `up` names it; a single node of a cluster stays up.
        """
        if not self.directory.exists():
            return self.status()
        with self._alone():
            state = self._state()
            kafka, redis = self._handles(state)
            if "kafka" in only:
                kafka.stop()
            if "redis" in only:
                redis.stop()
            if wipe:
                for folder in (kafka.directory, redis.directory):
                    shutil.rmtree(folder, ignore_errors=True)
                self._state_file.unlink(missing_ok=True)
            return self._report(self._state())

    def status(self) -> dict[str, Any]:
        """Return addresses, process ids and logs, and whether all of it runs."""
        return self._report(self._state())

    def _start(self, kafka: KafkaCluster, redis: RedisServer, started: Sequence[str]) -> dict[str, Any]:
        """Start what is named and note what runs now."""
        try:
            if "redis" in started:
                redis.start()
            if "kafka" in started:
                kafka.start()
            elif any(name.startswith("kafka-") for name in started):
                kafka.heal()
            state = {
                "kafka": {"ports": kafka.ports, "processes": [_noted(kafka.processes[node]) for node in kafka.nodes]},
                "redis": {"port": redis.port, "process": _noted(redis.process)},
            }
            fresh = self._state_file.with_suffix(".new")
            fresh.write_text(json.dumps(state, indent=2))
            fresh.replace(self._state_file)
        except BaseException:  # an interruption too must not leave servers that no state file knows
            for node in list(kafka.processes):
                if not {"kafka", f"kafka-{node}"}.isdisjoint(started):
                    kafka.kill(node)
            if "redis" in started:
                redis.kill()
            raise
        return state

    def _handles(self, state: dict[str, Any]) -> tuple[KafkaCluster, RedisServer]:
        """Return the servers of a state, running or not."""
        noted = state.get("kafka", {"ports": [], "processes": []})
        kafka = KafkaCluster(
            len(noted["ports"]) or 1, directory=self.directory / "kafka", ports=noted["ports"], tied=False
        )
        kafka.processes = {node: Process(**one) for node, one in enumerate(noted["processes"], 1)}
        redis = RedisServer(self.directory / "redis", port=state.get("redis", {}).get("port"), tied=False)
        redis.process = Process(**state["redis"]["process"]) if "redis" in state else None
        return kafka, redis

    def _report(self, state: dict[str, Any]) -> dict[str, Any]:
        kafka, redis = self._handles(state)
        running = self._running(kafka, redis)
        report: dict[str, Any] = {"schema": "fencepost.local/1", "directory": str(self.directory), "running": running}
        if state:
            openly = "&development=1" if len(kafka.nodes) == 1 else ""  # one broker keeps one copy: it must be said
            report["url"] = f"kafka://{kafka.bootstrap}/fencepost?projection={redis.url}{openly}"
            report["kafka"] = {
                "bootstrap": kafka.bootstrap,
                "pids": [one.pid for one in kafka.processes.values() if one.alive()],
                "logs": [str(kafka.log(node)) for node in kafka.nodes],
            }
            report["redis"] = {
                "url": redis.url,
                "pids": [redis.process.pid] if redis.process and redis.running() else [],
                "logs": [str(redis.log)],
            }
        return report

    @staticmethod
    def _running(kafka: KafkaCluster, redis: RedisServer) -> bool:
        return all(map(kafka.running, kafka.nodes)) and redis.running()

    def _check_nodes(self, nodes: int) -> None:
        found = len(list((self.directory / "kafka").glob("node-*")))
        if found not in {0, nodes}:
            raise ServiceError(
                f"{self.directory} has the data of {found} broker(s), not {nodes}; delete it: down --wipe"
            )

    def _state(self) -> dict[str, Any]:
        if not self._state_file.exists():
            return {}
        state: dict[str, Any] = json.loads(self._state_file.read_text())
        return state

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield


def _ports(first: int | None, count: int, last_time: list[int]) -> list[int] | None:
    if first is not None:
        return list(range(first, first + count))
    return last_time if len(last_time) == count else None


def _if_free(port: int | None) -> int | None:
    return port if port and port_is_free(port) else None


def _noted(process: Process | None) -> dict[str, Any]:
    return {"pid": process.pid, "born": process.born} if process else {}
