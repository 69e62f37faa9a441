"""A crew of agents: a parent that forks one process for each group of them, and starts again those that are killed.

    python crew.py PLAN      (JSON; see `Orders`)

The parent touches no client library, so its children may. They die with it. A failpoint "before KIND" or "after KIND",
with ":3" for the third time there, kills a child around the publishing of a fact of that kind.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from conformance import moments
from conformance.moments import Moment
from faults.stack.agents import TOOL, Agent, Notes, Plan, probe_of
from faults.stack.broken import break_what_is_named
from faults.stack.evidence import Acked, acked_line, decided_line, line
from faults.stack.sink import Client

from fencepost.ledger import AsyncLedger, Limits
from fencepost.ledger.errors import StoreError

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Orders:
    """What a crew is told.

    Attributes:
        groups: the agents of each process; `failpoints` and what differs from `plan` by the number of the group.
        limits: of the ledger that each process opens.
    """

    url: str
    directory: str
    name: str
    sink_port: int
    groups: list[list[str]]
    plan: dict[str, Any]
    seed: int = 0
    limits: dict[str, Any] = field(default_factory=dict)
    failpoints: dict[str, str] = field(default_factory=dict)
    differs: dict[str, dict[str, Any]] = field(default_factory=dict)


class Recorder:
    """Appends lines to files of its own; a line is whole or, of a killed process, the last one is cut."""

    def __init__(self, orders: Orders, number: int, failpoint: str) -> None:
        folder = Path(orders.directory)
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._files = {
            what: os.open(folder / f"{what}.{orders.name}-{number}.jsonl", flags, 0o600)
            for what in ("acked", "calls", "decisions")
        }
        self._failpoint, _, times = failpoint.partition(":")
        self._times = int(times or 1)
        self._passed: Counter[str] = Counter()

    def notes(self) -> Notes:
        """For the agents of this process."""
        return Notes(
            called=lambda called: os.write(self._files["calls"], line(called._asdict())),
            decided=lambda decided: os.write(self._files["decisions"], decided_line(decided)),
        )

    def acked(self, acked: Acked) -> None:
        """Note that a publish was acknowledged."""
        os.write(self._files["acked"], acked_line(acked))

    def at(self, point: str) -> None:
        """Die here, if this is the failpoint."""
        self._passed[point] += 1
        if point == self._failpoint and self._passed[point] == self._times:
            os.kill(os.getpid(), signal.SIGKILL)


def listen(recorder: Recorder) -> None:
    """Make every publish of this process known to the recorder."""

    def acknowledged(moment: Moment) -> None:
        fact = moment.record.fact or b""
        recorder.acked(Acked(moment.partition, moment.record.key, moment.offset, fact, time.monotonic_ns()))
        recorder.at(f"after {moment.kind}")

    moments.watch(before=lambda moment: recorder.at(f"before {moment.kind}"), after=acknowledged)


async def patiently_opened(orders: Orders) -> AsyncLedger:
    """The ledger, as soon as it can be opened."""
    while True:
        try:
            return await AsyncLedger.open(orders.url, limits=Limits(**orders.limits)).__aenter__()
        except StoreError as error:
            print(f"not open yet: {error}", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(0.5)


async def group(orders: Orders, number: int, life: int, recorder: Recorder) -> None:
    """The agents of one process, all at once."""
    sink, notes = Client(orders.sink_port), recorder.notes()
    ledger = await patiently_opened(orders)
    ledger.probe(TOOL)(probe_of(sink))
    try:
        agents = [
            Agent(
                name,
                Plan(**{**orders.plan, **orders.differs.get(str(number), {})}),
                ledger=ledger,
                sink=sink,
                notes=notes,
                seed=hash((orders.seed, number, life, i)),
            )
            for i, name in enumerate(orders.groups[number])
        ]
        await asyncio.gather(*(agent.run() for agent in agents))
    finally:
        await ledger.close()


def child(orders: Orders, number: int, life: int) -> NoReturn:
    """The process of one group; only its first life has the failpoint."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    code = 0
    try:
        recorder = Recorder(orders, number, orders.failpoints.get(str(number), "") if life == 0 else "")
        listen(recorder)
        break_what_is_named()
        asyncio.run(group(orders, number, life, recorder))
    except BaseException:  # noqa: BLE001 (a forked child must not return into its parent's code)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start(orders: Orders, number: int, life: int) -> int:
    """Fork the process of a group; its id."""
    return os.fork() or child(orders, number, life)


def main() -> None:
    """Keep every group running until it has ended well; tell on stdout who runs as what, and how each ended."""
    orders = Orders(**json.loads(sys.argv[1]))
    told = os.open(Path(orders.directory) / f"crew.{orders.name}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    running: dict[int, tuple[int, int]] = {}
    for number in range(len(orders.groups)):
        running[start(orders, number, 0)] = (number, 0)
    os.write(told, line({"pids": {str(n): pid for pid, (n, _) in running.items()}}))
    failed = False
    while running:
        pid, status = os.wait()
        number, life = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        os.write(told, line({"ended": number, "life": life, "code": code}))
        if code == -signal.SIGKILL:
            running[start(orders, number, life + 1)] = (number, life + 1)
            os.write(told, line({"pids": {str(n): p for p, (n, _) in running.items()}}))
        failed = failed or code > 0
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
