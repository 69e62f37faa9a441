"""What the conformance tests share: a ledger on each store, a world that counts hits, and processes that act in it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fencepost.consumer import keys as redis_keys
from fencepost.deploy.processes import Process, wait_until
from fencepost.ledger import EffectClass, Ledger, Limits, StoreError, urls
from fencepost.ledger.setup import initialise
from fencepost.ledger.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
WORKER = Path(__file__).with_name("worker.py")
PARTITIONS = 4
PATIENCE_S = 60.0
RUN_PROJECTOR = (
    "import sys; from fencepost.consumer.command import run_projector; from fencepost.ledger import urls; "
    "run_projector(urls.parse(sys.argv[1]))"
)
_numbers = itertools.count(1)


@dataclass
class Home:
    """A ledger and, where the store needs one, its projector."""

    kind: str
    url: str
    directory: Path
    projector: Process | None = None

    @property
    def embedded(self) -> bool:
        return self.kind == "embedded"

    def set_up(self) -> Home:
        async def create() -> None:
            store = open_store(self.url)
            try:
                await initialise(store, partitions=PARTITIONS, development=True)
            finally:
                await store.close()

        asyncio.run(create())
        self.start_projector()
        return self

    def start_projector(self) -> None:
        if not self.embedded and self.projector is None:
            command = [sys.executable, "-c", RUN_PROJECTOR, self.url]
            self.projector = Process.spawn(command, log=self.directory / "projector.log", tied=True)

    def stop_projector(self) -> None:
        if self.projector is not None:
            self.projector.stop()
            self.projector = None

    def lose_projection(self) -> None:
        """Delete everything that the projection store holds of this ledger."""
        if self.embedded:
            self._lose_documents()
            return
        import redis  # noqa: PLC0415 (only where there is one)

        parsed = urls.parse(self.url)
        with redis.Redis.from_url(parsed.projection) as client:
            for pattern in (f"{{{parsed.prefix}.*", redis_keys.beat(parsed.prefix, "*"), redis_keys.meta(parsed.prefix)):
                for key in client.scan_iter(match=pattern, count=1000):
                    client.delete(key)

    def _lose_documents(self) -> None:
        import apsw  # noqa: PLC0415

        from fencepost.ledger import embedded_tables  # noqa: PLC0415

        sql = apsw.Connection(urls.parse(self.url).path)
        sql.set_busy_timeout(10_000)
        sql.execute("BEGIN IMMEDIATE")
        embedded_tables.begin_again(sql)
        sql.execute("COMMIT")
        sql.close()

    def rebuild(self) -> None:
        """Bring a lost projection back; a projector does it by itself."""
        if self.embedded:
            from fencepost.ledger.embedded import open_store as open_embedded  # noqa: PLC0415

            async def run() -> None:
                store = open_embedded(urls.parse(self.url))
                try:
                    await store.rebuild()
                finally:
                    await store.close()

            asyncio.run(run())
        else:
            self.start_projector()


def new_home(kind: str, directory: Path, kafka: tuple[str, str] | None = None) -> Home:
    """A ledger that was just created; `kafka` has the addresses of Kafka and Redis."""
    if kafka is None:
        return Home(kind, f"sqlite://{directory / 'state' / 'ledger.db'}", directory).set_up()
    bootstrap, redis_url = kafka
    prefix = f"c{os.getpid()}-{secrets.token_hex(4)}"
    return Home(kind, f"kafka://{bootstrap}/{prefix}?projection={redis_url}&development=1", directory).set_up()


@dataclass
class World:
    """One test's part of a ledger: names of its own, and the outside world, which is an appended file."""

    home: Home
    ledger: Ledger
    directory: Path
    name: str = field(default_factory=lambda: f"w{next(_numbers)}-{secrets.token_hex(3)}")
    workers: list[Worker] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)

    @property
    def agent(self) -> str:
        return f"agent-{self.name}"

    @property
    def url(self) -> str:
        return self.home.url

    @property
    def hits_file(self) -> Path:
        return self.directory / "hits"

    def key(self, name: str) -> str:
        """A business key that no other test uses."""
        return f"{name}-{self.name}"

    def op_id(self, name: str, tool: str = "billing.charge") -> str:
        return f"{tool}:{self.key(name)}"

    def hit(self, name: str, cents: int = 50) -> dict[str, Any]:
        """What `charge` does to the outside world, done in this process."""
        with self.hits_file.open("a") as file:
            file.write(f"{self.key(name)} {cents}\n")
        return {"order": self.key(name), "cents": cents}

    def hits(self, name: str) -> int:
        """How often the world was changed under this name."""
        if not self.hits_file.exists():
            return 0
        return sum(line.split()[0] == self.key(name) for line in self.hits_file.read_text().splitlines())

    def open(self, **limits: Any) -> Ledger:
        """Another handle on the same ledger, as another process would have it."""
        ledger = Ledger.open(self.url, limits=Limits(**limits))
        self.ledgers.append(ledger)
        return ledger

    def charge(self, session: Any, name: str, *, cents: int = 50, note: str = "", **options: Any) -> Any:
        """Run the tool `billing.charge` once in this process; its result, own or recorded."""

        @session.effect(
            "billing.charge",
            kind=options.pop("kind", EffectClass.IRREVERSIBLE),
            key=lambda order, **_: order,
            identity=("order", "cents"),
            content=("note",),
            **options,
        )
        def charge(order: str, cents: int, note: str = "") -> dict[str, Any]:
            del order, note
            return self.hit(name, cents)

        return charge(self.key(name), cents, note)

    def worker(self, *steps: dict[str, Any], agent: str = "", branch: str = "main", **options: Any) -> Worker:
        """Start a process that opens a session and takes these steps; see `worker.py`."""
        plan = {
            "url": self.url,
            "agent": agent or self.agent,
            "branch": branch,
            "hits": str(self.hits_file),
            "signals": str(self.directory),
            "steps": [self._named(step) for step in steps],
            **options,
        }
        self.workers.append(Worker(plan, self.directory))
        return self.workers[-1]

    def run(self, *steps: dict[str, Any], agent: str = "", branch: str = "main", **options: Any) -> list[Answer]:
        """The same, to its end."""
        return self.worker(*steps, agent=agent, branch=branch, **options).finish()

    def _named(self, step: dict[str, Any]) -> dict[str, Any]:
        return {**step, "order": self.key(step["order"])} if "order" in step else step

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for ledger in self.ledgers:
            ledger.close()


Answer = dict[str, Any]


class Worker:
    """A process that acts in a world. Its answers are read as they come."""

    def __init__(self, plan: dict[str, Any], directory: Path) -> None:
        self._directory = directory
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        self.answers: list[Answer] = []
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(plan)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def next(self) -> Answer:
        """The answer to its next step."""
        answer = self._answers.get(timeout=PATIENCE_S)
        assert answer is not None, f"the worker ended: {''.join(self._errors)}"
        self.answers.append(answer)
        return answer

    def finish(self) -> list[Answer]:
        """All its answers, once it has ended well."""
        self._drain()
        assert self.process.returncode == 0, "".join(self._errors)
        return self.answers

    def dies(self) -> list[Answer]:
        """All that it answered before it was killed."""
        self._drain()
        assert self.process.returncode == -signal.SIGKILL, "".join(self._errors)
        return self.answers

    def _drain(self) -> None:
        while (answer := self._answers.get(timeout=PATIENCE_S)) is not None:
            self.answers.append(answer)
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_held(self, name: str) -> None:
        """Until it has come to the hold of this name."""
        reached = wait_until(lambda: self._signal(name, "held").exists() or self.process.poll() is not None, PATIENCE_S)
        assert reached, f"never came to {name}"
        assert self.process.poll() is None, "".join(self._errors)

    def release(self, name: str) -> None:
        """Let it go on from that hold."""
        self._signal(name, "go").touch()

    def _signal(self, name: str, what: str) -> Path:
        return self._directory / f"{name}.{what}"

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP), and wait until it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: self._state() == "T", PATIENCE_S)

    def _state(self) -> str:
        found = re.search(r"\) (\S)", Path(f"/proc/{self.process.pid}/stat").read_text())
        return found[1] if found else ""

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def charge(order: str, cents: int = 50, **more: Any) -> dict[str, Any]:
    """A worker's step: call the tool `billing.charge`; see `worker.py` for what more it takes."""
    return {"do": "charge", "order": order, "cents": cents, **more}


def never_suggests_a_retry(text: str) -> bool:
    """Whether a message keeps from telling the caller to do the same again."""
    return not re.search(r"\bretr(y|ies|ying)\b|\btry(ing)? again\b|\bagain later\b|\bre-?run\b", text, re.IGNORECASE)


def until(condition: Any, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    assert wait_until(lambda: bool(condition()), timeout_s), "the condition did not come true in time"


def answer_when_back(ask: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """The answer of a ledger whose projection was lost: refusals until it is back, and only those."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except StoreError:
            if time.monotonic() > deadline:
                raise
        let_time_pass(0.05)


def let_time_pass(seconds: float) -> None:
    """Time passes because the case says so; no outcome is awaited by it."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 1)
