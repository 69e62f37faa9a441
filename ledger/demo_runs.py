"""The recorded agent runs of the demo, and the seeded plan of which agents are killed where.

The data: 50 tasks of an airline agent, four trials each; see `data/LICENSE-tau-bench`. The four
trials of a task start from one state and try to do the same job, so here they are sibling
branches of one agent.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .identity import derived_op_id

DATA = Path(__file__).with_name("data") / "tau_airline_gpt4o.jsonl"
TRIALS = 4
HAND_OVER = "transfer_to_human_agents"
WRITES = frozenset(
    {
        "book_reservation",
        "cancel_reservation",
        "update_reservation_flights",
        "update_reservation_baggages",
        "update_reservation_passengers",
        "send_certificate",
        HAND_OVER,
    }
)
"""Tools that change the world; all others read."""


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded tool call."""

    tool: str
    arguments: Mapping[str, Any]
    result: str

    @property
    def writes(self) -> bool:
        """Whether the tool changes the world."""
        return self.tool in WRITES

    @property
    def refused(self) -> bool:
        """Whether the tool refused the call and changed nothing."""
        return self.result.startswith("Error")

    @property
    def identity(self) -> Mapping[str, Any]:
        """The arguments that make the call what it is: all, but not the words of a hand-over."""
        return {} if self.tool == HAND_OVER else self.arguments

    @property
    def content(self) -> Mapping[str, Any]:
        """Free text, which may be worded anew without meaning another operation."""
        return self.arguments if self.tool == HAND_OVER else {}

    def op_id(self, scope: str) -> str:
        """The logical operation that this call asks for; the same in every sibling branch."""
        return derived_op_id(scope=scope, tool=self.tool, identity=self.identity)


@dataclass(frozen=True, slots=True)
class Run:
    """One trial of one task."""

    task: int
    trial: int
    steps: tuple[Step, ...]

    @property
    def branch_id(self) -> str:
        """The branch that replays this run."""
        return f"trial-{self.trial}"

    @property
    def name(self) -> str:
        """For file names."""
        return f"{self.task:02}-{self.trial}"


class Moment(StrEnum):
    """Where in a call an agent is killed."""

    BEFORE = "before the effect"
    BETWEEN = "after the effect, before it is recorded"
    AFTER = "after it is recorded"


@dataclass(frozen=True, slots=True)
class Kill:
    """An agent dies in the call with this index."""

    index: int
    moment: Moment


def load(tasks: int) -> list[Run]:
    """The runs of the first `tasks` tasks, ordered by task and trial."""
    runs = []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["task"] < tasks:
            steps = tuple(Step(call["tool"], call["arguments"], call["result"]) for call in run["calls"])
            runs.append(Run(run["task"], run["trial"], steps))
    return sorted(runs, key=lambda run: (run.task, run.trial))


def plan_kills(runs: Sequence[Run], *, seed: int, count: int) -> dict[str, Kill]:
    """Which runs are killed, and where: run name → kill. The same for the same seed.

    At most one kill a run, always in a call that would change the world, and each moment in turn.
    """
    chance = random.Random(seed)  # noqa: S311 (a schedule, no secret)
    places = [(run.name, index) for run in runs for index, step in enumerate(run.steps) if step.writes]
    chance.shuffle(places)
    moments = [moment for _ in range(count) for moment in Moment]
    plan: dict[str, Kill] = {}
    for name, index in places:
        if len(plan) < count and name not in plan:
            plan[name] = Kill(index, moments[len(plan)])
    return plan


def calls(runs: Iterable[Run]) -> list[Step]:
    """All calls of these runs."""
    return [step for run in runs for step in run.steps]
