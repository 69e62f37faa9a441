"""One process of the demo: replays one trial of each task, with a ledger or without.

    python -m fencepost.ledger.demo_worker JOB

JOB is a `Job` as JSON. What an agent remembers is its `Memory`: a file that it writes at its
checkpoints and that it is restored from after a kill. It has then forgotten every call that it
made since. Exit code: 0 when every trial is finished or parked; killed agents end by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .demo_hands import Directly, Hands, ThroughLedger
from .demo_runs import TRIALS, Kill, Moment, Run, Step, load, plan_kills
from .demo_world import Hit, ToolRefused, World, append
from .errors import UndecidedError

if TYPE_CHECKING:
    from .facade import Ledger

CHECKPOINT_EVERY = 4
"""An agent registers a checkpoint after so many calls."""
TOOL_S = 0.01
"""How long a tool takes to act: long enough for siblings to meet."""
GATE_S = 0.1
"""How long the processes wait for each other before a task, so that its siblings race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process has to do.

    Attributes:
        directory: of this pass: world, memories, events.
        url: of the ledger; "" to call the tools directly.
        prefix: of the agents' ids.
        resume: go on with the parked agents only, and kill nobody.
        bypass: call one tool past the ledger, to see whether the audit notices.
    """

    directory: str
    url: str
    prefix: str
    trial: int
    tasks: int
    seed: int
    kills: int
    resume: bool = False
    bypass: bool = False

    @property
    def place(self) -> Path:
        """The directory."""
        return Path(self.directory)

    def agent_id(self, run: Run) -> str:
        """The agent of a task; also the scope of its operations."""
        return f"{self.prefix}-{run.task:02}"


@dataclass(slots=True)
class Memory:
    """What an agent is restored from: where it stands, and its checkpoint's token."""

    path: Path
    next: int = 0
    token: str = ""
    status: str = ""

    @classmethod
    def load(cls, directory: Path, run: Run) -> Memory:
        """The last saved one, or a fresh one."""
        path = directory / "agents" / f"{run.name}.json"
        return cls(path, **json.loads(path.read_text())) if path.exists() else cls(path)

    def save(self) -> None:
        """Replace the file at once: a reader sees the old one or the new one."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"next": self.next, "token": self.token, "status": self.status}))
        fresh.replace(self.path)


class Worker:
    """One process: works through its trials, and dies where the plan says so."""

    def __init__(self, job: Job, ledger: Ledger | None) -> None:
        runs = load(job.tasks)
        self._job = job
        self._ledger = ledger
        self._world = World(job.place / "world.jsonl")
        self._runs = [run for run in runs if run.trial == job.trial]
        self._plan = {} if job.resume else plan_kills(runs, seed=job.seed, count=job.kills)

    def work(self) -> None:
        """Finish or park every trial of this process."""
        for run in self._runs:
            memory = Memory.load(self._job.place, run)
            wanted = {"", "parked"} if self._job.resume else {""}
            if memory.status not in wanted:
                continue
            self._gate(run)
            try:
                with self._hands(run, memory) as hands:
                    self._replay(run, memory, hands)
                memory.status = "finished"
            except UndecidedError as error:
                memory.status = "parked"
                self._note(run, "parked", error.details["op_id"])
            memory.save()

    @contextmanager
    def _hands(self, run: Run, memory: Memory) -> Iterator[Hands]:
        agent_id = self._job.agent_id(run)
        if self._ledger is None:
            yield Directly(agent_id)
            return
        with self._ledger.session(
            agent_id, run.branch_id, resumed_from=memory.token or None, scope=agent_id
        ) as session:
            yield ThroughLedger(session)

    def _replay(self, run: Run, memory: Memory, hands: Hands) -> None:
        kill = None if self._killed(run).exists() else self._plan.get(run.name)
        for index in range(memory.next, len(run.steps)):
            if index > memory.next and index % CHECKPOINT_EVERY == 0:
                memory.token = hands.checkpoint(f"{run.branch_id}/after-{index}")
                memory.next = index
                memory.save()
            if run.steps[index].writes:  # a read needs no ledger: a repeat does no harm
                self._write(run, index, hands, kill if kill and kill.index == index else None)

    def _write(self, run: Run, index: int, hands: Hands, kill: Kill | None) -> None:
        step = run.steps[index]
        op_id = step.op_id(self._job.agent_id(run))
        outcome = hands.perform(step, lambda op, key: self._act(run, step, op, key, kill))
        self._note(run, outcome, op_id)
        if outcome == "ran" and self._job.bypass and self._first_to_bypass():
            self._act(run, step, op_id, "", None)
        if kill is not None:
            self._die(run)

    def _act(self, run: Run, step: Step, op_id: str, key: str, kill: Kill | None) -> str:
        """The tool. What it does is what the recorded one did."""
        time.sleep(TOOL_S)
        if kill is not None and kill.moment is Moment.BEFORE:
            self._die(run)
        if not step.refused:
            life = int(self._killed(run).exists())
            branch = f"{self._job.agent_id(run)}/{run.branch_id}"
            self._world.act(Hit(op_id, step.tool, branch, life, step.result, key))
        if kill is not None and kill.moment is Moment.BETWEEN:
            self._die(run)
        if step.refused:
            raise ToolRefused(step.result)
        return step.result

    # -- the stage machinery -----------------------------------------------------------

    def _killed(self, run: Run) -> Path:
        return self._job.place / "killed" / run.name

    def _first_to_bypass(self) -> bool:
        try:
            (self._job.place / "bypassed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _die(self, run: Run) -> None:
        self._killed(run).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, run: Run, what: str, op_id: str) -> None:
        append(self._job.place / "events.jsonl", {"what": what, "run": run.name, "op": op_id})

    def _gate(self, run: Run) -> None:
        """Wait for the siblings of a task, not for long: a killed one comes later."""
        if self._job.resume or self._killed(run).exists():
            return
        (self._job.place / "gate" / run.name).touch()
        others = [self._job.place / "gate" / f"{run.task:02}-{trial}" for trial in range(TRIALS)]
        deadline = time.monotonic() + GATE_S
        while time.monotonic() < deadline and not all(other.exists() for other in others):
            time.sleep(0.002)


def main(text: str) -> None:
    """Do the job."""
    job = Job(**json.loads(text))
    with _opened(job.url) as ledger:
        Worker(job, ledger).work()


def _opened(url: str) -> AbstractContextManager[Ledger | None]:
    if not url:
        return nullcontext()
    from .facade import Ledger  # noqa: PLC0415 (slow, and not wanted without a ledger)

    return Ledger.open(url)


def encoded(job: Job) -> str:
    """The job as the argument of a process."""
    return json.dumps(asdict(job))


if __name__ == "__main__":
    main(sys.argv[1])
