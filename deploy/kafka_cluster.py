"""Apache Kafka from its jars, one or three nodes on the loopback address, for local use and tests."""

from __future__ import annotations

import base64
import secrets
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from . import kafka_jars
from .processes import Process, ServiceError, free_ports, log_tail, wait_until

START_TIMEOUT_S = 90.0
_CONFIG = Path(__file__).with_name("kafka.properties")
_LOGGING = Path(__file__).with_name("log4j2.properties")
_ATTEMPTS = 3  # chosen ports may be taken by another process before the broker has them
_JVM = ["-Xms128m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xlog:disable"]
_JVM += ["-Xlog:all=error:stderr", "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={_LOGGING}"]
_FAST_FAILOVER = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}
_DESCRIBE_CLUSTER = 60  # API key; version 0 is the oldest that Kafka 4 takes


class KafkaCluster:
    """Kafka brokers with the settings of kafka.properties; each node is broker and controller.

    Args:
        nodes: how many; numbered from 1.
        directory: data, configuration, logs; made when absent. Data of an earlier run is kept.
        ports: the client ports, one for each node; free ones when None, kept over restarts.
        tied: the brokers die with the process that starts them.
        settings: more broker settings.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        directory: Path,
        ports: list[int] | None = None,
        tied: bool = True,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.nodes = range(1, nodes + 1)
        self.directory = directory
        self.ports = ports or []
        self.processes: dict[int, Process] = {}
        self._chosen = ports is None
        self._controller_ports: list[int] = []
        self._tied = tied
        self._settings = settings or {}

    @property
    def bootstrap(self) -> str:
        """The addresses, as clients take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def log(self, node: int) -> Path:
        """Return the output of a node."""
        return self.directory / f"node-{node}" / "kafka.log"

    def start(self) -> KafkaCluster:
        """Format new nodes, start all, and wait until each sees all.

        Raises:
            ServiceError: no Java or jars, or a node does not come up; the message has the end of its log.
        """
        kafka_jars.install_jars()
        for _ in range(_ATTEMPTS):
            self._configure()
            self._format()
            for node in self.nodes:
                self._launch(node)
            if self._wait_ready(list(self.nodes)):
                return self
            if not (self._chosen and self._lost_a_port()):
                break
            self.kill_all()
        failed = [node for node in self.nodes if not self.running(node)] or list(self.nodes)
        tails = "\n".join(f"the end of {self.log(node)}:\n{log_tail(self.log(node))}" for node in failed)
        self.kill_all()
        raise ServiceError(f"Kafka did not come up; nodes {failed}:\n{tails}")

    def running(self, node: int) -> bool:
        """Whether the process of a node runs (it may be paused)."""
        return node in self.processes and self.processes[node].alive()

    def stop(self) -> None:
        """Stop all nodes: SIGTERM together, SIGKILL after ten seconds."""
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
        for node, process in self.processes.items():
            process.stop()
            keep_class_archive(self.directory / f"node-{node}")
        self.processes.clear()

    def kill_all(self) -> None:
        """Kill all nodes with SIGKILL."""
        for node in list(self.processes):
            self.kill(node)

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL."""
        self.processes.pop(node).kill()

    def restart(self, node: int) -> None:
        """Start a node that was stopped or killed, on its data and ports, and wait until it sees all running ones."""
        if self.running(node):
            self.processes.pop(node).stop()
        self._launch(node)
        if not self._wait_ready([node]):
            raise ServiceError(
                f"node {node} did not come back; the end of {self.log(node)}:\n{log_tail(self.log(node))}"
            )

    def pause(self, node: int) -> None:
        """Freeze a node (SIGSTOP): connections stay open and nothing answers."""
        self.processes[node].signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a node go on after a pause."""
        self.processes[node].signal(signal.SIGCONT)

    def heal(self) -> None:
        """Resume paused nodes, start dead ones, and wait until all see all."""
        for node in self.nodes:
            if self.running(node):
                self.resume(node)
            else:
                self._launch(node)
        if not self._wait_ready(list(self.nodes)):
            raise ServiceError(f"the nodes in {self.directory} do not come together again")

    def _configure(self) -> None:
        count = len(self.nodes)
        if self._chosen:
            self.ports = free_ports(2 * count)
            self.ports, self._controller_ports = self.ports[:count], self.ports[count:]
        elif not self._controller_ports:
            self._controller_ports = free_ports(count)
        voters = ",".join(f"{node}@127.0.0.1:{self._controller_ports[node - 1]}" for node in self.nodes)
        copies, in_sync = (str(min(3, count)), "2" if count > 2 else "1")  # noqa: PLR2004
        for node in self.nodes:
            folder = self.directory / f"node-{node}"
            folder.mkdir(parents=True, exist_ok=True)
            port, controller = self.ports[node - 1], self._controller_ports[node - 1]
            settings = {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(folder / "data"),
                "default.replication.factor": copies,
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": in_sync,
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": in_sync,
                **(_FAST_FAILOVER if count > 1 else {}),
                **self._settings,
            }
            lines = "".join(f"{name}={value}\n" for name, value in settings.items())
            (folder / "server.properties").write_text(f"{_CONFIG.read_text()}\n{lines}")

    def _format(self) -> None:
        """Give each new node its storage; all of one cluster get one cluster id."""
        new = [
            node for node in self.nodes if not (self.directory / f"node-{node}" / "data" / "meta.properties").exists()
        ]
        # 16 bytes; the zero in front keeps a leading "-" away, which the tool would take for an option.
        cluster_id = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        pending = []
        for node in new:
            folder = self.directory / f"node-{node}"
            command = [*_java(), "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
            with (folder / "format.log").open("wb") as out:
                pending.append(
                    (
                        folder,
                        subprocess.Popen(
                            [*command, "--config", str(folder / "server.properties")],
                            stdin=subprocess.DEVNULL,
                            stdout=out,
                            stderr=subprocess.STDOUT,
                        ),
                    )
                )
        for folder, process in pending:
            if process.wait(START_TIMEOUT_S) != 0:
                raise ServiceError(f"formatting {folder} failed:\n{log_tail(folder / 'format.log')}")

    def _launch(self, node: int) -> None:
        folder = self.directory / f"node-{node}"
        command = [*_java(train=folder if node == 1 else None), "kafka.Kafka", str(folder / "server.properties")]
        self.processes[node] = Process.spawn(command, log=self.log(node), tied=self._tied)

    def _wait_ready(self, nodes: list[int]) -> bool:
        """Wait until these nodes know of all that run; false when one of them dies or time is up."""
        ready: set[int] = set()

        def settled() -> bool:
            count = len(self.processes)
            ready.update(n for n in nodes if n not in ready and broker_count(self.ports[n - 1]) >= count)
            return len(ready) == len(nodes) or not all(self.running(node) for node in nodes)

        wait_until(settled, START_TIMEOUT_S)
        return len(ready) == len(nodes)

    def _lost_a_port(self) -> bool:
        return any("Address already in use" in log_tail(self.log(node)) for node in self.nodes)


def docker_environment(port: int) -> dict[str, str]:
    """Return the settings of kafka.properties for one node of the image apache/kafka, reached at a loopback port."""
    lines = (line.partition("=") for line in _CONFIG.read_text().splitlines() if line and not line.startswith("#"))
    settings = {name: value for name, _, value in lines}
    settings |= {
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}


def broker_count(port: int) -> int:
    """Ask the broker at a loopback port how many live brokers it knows; 0 when it does not answer in a second."""
    with suppress(OSError, IndexError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as link:
        # Header version 2: key, version, correlation id, null client id, no tags. Body: one false, no tags.
        request = _DESCRIBE_CLUSTER.to_bytes(2) + bytes(2) + bytes(4) + b"\xff\xff" + bytes(1) + bytes(2)
        link.sendall(len(request).to_bytes(4) + request)
        reader = link.makefile("rb")
        reply = reader.read(int.from_bytes(reader.read(4)))
        # Correlation id 4, tags 1, throttle 4, error 2, message, cluster id, controller 4, then the count of brokers + 1.
        at = 11
        at += max(reply[at], 1)  # compact strings: length + 1, below 128 here; null is 0
        at += max(reply[at], 1)
        return max(reply[at + 4] - 1, 0)
    return 0


def keep_class_archive(node_folder: Path) -> None:
    """Keep the archive of loaded classes that a cleanly stopped broker left, so that later starts are faster."""
    trained, target = node_folder / "classes.jsa", kafka_jars.class_archive()
    if trained.exists() and not target.exists():
        partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        shutil.move(trained, partial)
        partial.replace(target)
    trained.unlink(missing_ok=True)


def _java(train: Path | None = None) -> list[str]:
    """Return the start of a command; with the archive of loaded classes, or set to leave one in the folder at exit."""
    archive = kafka_jars.class_archive()
    command = [kafka_jars.java(), *_JVM]
    if archive.exists():
        command.append(f"-XX:SharedArchiveFile={archive}")
    elif train is not None:
        command.append(f"-XX:ArchiveClassesAtExit={train / 'classes.jsa'}")
    return [*command, "-cp", kafka_jars.class_path()]
