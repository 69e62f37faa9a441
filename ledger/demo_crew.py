"""The parent of the demo's processes: starts them, and starts a killed one again.

A process that ends by SIGKILL is one whose agent the plan killed. It is reaped first and only
then started again, so that no call of the dead one is under way any more.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .demo_worker import Job, encoded

PROCESS_S = 120.0
"""A process that takes longer is stopped, and the demo has failed."""


class CrewError(Exception):
    """A process failed; the message has the end of what it said."""


def make_place(directory: Path) -> Path:
    """The directory of one pass, with what the processes need in it."""
    for name in ("agents", "killed", "gate"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return directory


def run_crew(jobs: Sequence[Job]) -> int:
    """Run the jobs at once, each in a process; returns how many kills there were.

    Raises CrewError when a process fails in a way that was not planned.
    """
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return sum(pool.map(_run_one, jobs))


def _run_one(job: Job) -> int:
    log = job.place / f"process-{job.trial}.log"
    for kills in range(job.kills + 1):
        code = _process(job, log)
        if code == 0:
            return kills
        if code != -signal.SIGKILL:
            said = log.read_text(errors="replace").strip().splitlines()
            raise CrewError(f"process {job.trial} ended with code {code}: " + "\n".join(said[-15:]))
    raise CrewError(f"process {job.trial} was killed more often than planned")


def _process(job: Job, log: Path) -> int:
    command = [sys.executable, "-m", f"{__package__}.demo_worker", encoded(job)]
    with log.open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603 (this package's own module)
        try:
            return process.wait(timeout=PROCESS_S)
        except subprocess.TimeoutExpired:
            raise CrewError(f"process {job.trial} took longer than {PROCESS_S:.0f} s, see {log}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def memories(place: Path) -> dict[str, dict[str, str]]:
    """Run name → what its agent remembers, of every agent."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((place / "agents").glob("*.json"))}
