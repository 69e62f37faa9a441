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
    from collections.abc import Iterator
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
        """Start what does not run and return the status, with "started" telling whether it was needed.

        Args:
            nodes: how many brokers; None takes those that are there, else one.
            kafka_port: of the first broker, the others follow; None takes the port of the last time if it is free.
            redis_port: likewise.

        Raises:
            ServiceError: something is missing, does not start, or runs with other ports. Nothing is left half started.
        """
        for problem in (local_kafka_problem, redis_problem):
            choice = choose("local", local_problem=problem, docker_problem=lambda: None)
            if choice.source == "none":
                raise ServiceError(f"{choice.detail}. With Docker: docker compose -f deploy/compose.yaml up")
        with self._alone():
            state = self._state()
            kafka, redis = self._handles(state)
            nodes = nodes or len(kafka.nodes)
            kafka_ports = _ports(kafka_port, nodes, kafka.ports)
            if self._running(kafka, redis):
                same = nodes == len(kafka.nodes) and kafka_ports == kafka.ports and redis_port in {None, redis.port}
                if not same:
                    raise ServiceError(
                        f"the services in {self.directory} run with other settings; stop them first: down"
                    )
                return self._report(state) | {"started": False}
            self._check_nodes(nodes)
            kafka.stop()
            redis.stop()
            if redis_port is None and redis.port and port_is_free(redis.port):
                redis_port = redis.port
            if kafka_port is None and not (kafka_ports and all(map(port_is_free, kafka_ports))):
                kafka_ports = None
            state = self._start(
                KafkaCluster(nodes, directory=self.directory / "kafka", ports=kafka_ports, tied=False),
                RedisServer(self.directory / "redis", port=redis_port, tied=False),
            )
            return self._report(state) | {"started": True}

    def down(self, *, wipe: bool = False) -> dict[str, Any]:
        """Stop what runs and return the status.

        Args:
            wipe: delete data and logs too.
        """
        if not self.directory.exists():
            return self.status()
        with self._alone():
            state = self._state()
            kafka, redis = self._handles(state)
            kafka.stop()
            redis.stop()
            if wipe:
                for folder in (kafka.directory, redis.directory):
                    shutil.rmtree(folder, ignore_errors=True)
                self._state_file.unlink(missing_ok=True)
            return self._report(self._state())

    def status(self) -> dict[str, Any]:
        """Return addresses, process ids and logs, and whether all of it runs."""
        return self._report(self._state())

    def _start(self, kafka: KafkaCluster, redis: RedisServer) -> dict[str, Any]:
        try:
            redis.start()
            kafka.start()
            state = {
                "kafka": {"ports": kafka.ports, "processes": [_noted(kafka.processes[node]) for node in kafka.nodes]},
                "redis": {"port": redis.port, "process": _noted(redis.process)},
            }
            fresh = self._state_file.with_suffix(".new")
            fresh.write_text(json.dumps(state, indent=2))
            fresh.replace(self._state_file)
        except BaseException:  # an interruption too must not leave servers that no state file knows
            kafka.kill_all()
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
            report["url"] = f"kafka://{kafka.bootstrap}/fencepost?projection={redis.url}"
            report["kafka"] = {
                "bootstrap": kafka.bootstrap,
                "pids": [one.pid for one in kafka.processes.values() if one.alive()],
                "logs": [str(kafka.log(node)) for node in kafka.nodes],
            }
            alive = redis.process is not None and redis.process.alive()
            report["redis"] = {
                "url": redis.url,
                "pids": [redis.process.pid] if redis.process and alive else [],
                "logs": [str(redis.log)],
            }
        return report

    @staticmethod
    def _running(kafka: KafkaCluster, redis: RedisServer) -> bool:
        return all(map(kafka.running, kafka.nodes)) and redis.process is not None and redis.process.alive()

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


def _noted(process: Process | None) -> dict[str, Any]:
    return {"pid": process.pid, "born": process.born} if process else {}
