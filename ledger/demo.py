"""The demo: recorded agent runs without a ledger, then with one; then one agent's rollbacks.

    fencepost demo [--store embedded|kafka] [--url URL] [--seed N] [--keep]
    python -m fencepost.ledger.demo, with the same options and --tasks, --bypass

Every figure is counted: in the world's file, in the ledger, in what the processes noted. Exit
code 0 when the promise held, 1 when a logical operation was executed more than once or world and
ledger disagree, otherwise that of the error.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import demo_story as story
from .demo_audit import Tally, problems, tally
from .demo_crew import CrewError, make_place, memories, run_crew
from .demo_runs import TRIALS, Run, calls, load
from .demo_settle import register_probes, settle
from .demo_stage import Stage, set_up
from .demo_text import Printer, counted
from .demo_worker import Job, Memory
from .demo_world import Duplicates, World, count_duplicates, lines
from .errors import FencepostError
from .facade import Ledger
from .operations import Operation

SEED = 0
TASKS = 50
KILLS = 12
"""Of all 50 tasks; fewer tasks have fewer."""


@dataclass(slots=True)
class Demo:
    """One run of the demo, with what its parts hand on to each other."""

    stage: Stage
    seed: int
    runs: list[Run]
    say: Printer
    bypass: bool = False

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return len({run.task for run in self.runs})

    @property
    def kills(self) -> int:
        """How many agents are to be killed."""
        return max(2, KILLS * self.tasks // TASKS)

    def place(self, name: str) -> Path:
        """The directory of a pass."""
        return make_place(self.stage.directory / name)

    def jobs(self, name: str, url: str, *, resume: bool = False) -> list[Job]:
        """The jobs of a pass, one process for each trial."""
        return [
            Job(
                directory=str(self.place(name)), url=url, prefix=self.stage.prefix, trial=trial, tasks=self.tasks,
                seed=self.seed, kills=self.kills, resume=resume,
                bypass=self.bypass and trial == 0 and bool(url) and not resume,
            )
            for trial in range(TRIALS)
        ]  # fmt: skip

    def world(self, name: str) -> World:
        """The world of a pass."""
        return World(self.place(name) / "world.jsonl")

    def agent(self, run: Run) -> str:
        """The agent of a run."""
        return f"{self.stage.prefix}-{run.task:02}"

    @property
    def agents(self) -> list[str]:
        """All agents of this run of the demo."""
        return sorted({self.agent(run) for run in self.runs})

    def operations(self, ledger: Ledger) -> list[Operation]:
        """What the ledger knows of their operations."""
        mine = {f":{agent}:" for agent in self.agents}
        found = [view.operation for view in ledger.operations()]
        return [op for op in found if any(scope in op.op_id for scope in mine)]


def run(  # noqa: PLR0913 (the options of a command)
    *,
    store: str = "embedded",
    url: str | None = None,
    seed: int = SEED,
    keep: bool = False,
    out: TextIO | None = None,
    tasks: int = TASKS,
    bypass: bool = False,
) -> int:
    """Run the demo and return its exit code.

    Args:
        store: "embedded" or "kafka".
        url: of the ledger; the embedded store makes a temporary one when it is not given.
        seed: which agents are killed, and where.
        keep: leave the directory with world and ledger behind.
        out: standard output when not given.
        tasks: how many of the recorded tasks to replay.
        bypass: let one agent call a tool past the ledger: the audit must find it.
    """
    say = Printer(out or sys.stdout)
    begun = time.monotonic()
    try:
        with set_up(store=store, url=url, keep=keep) as stage:
            demo = Demo(stage, seed, load(tasks), say, bypass)
            code = _play(demo, store)
            say.write(f"\nAll of it took {time.monotonic() - begun:.1f} s.", indent=0)
            if keep:
                _tell_kept(demo, say)
    except CrewError as error:
        say.write(f"the demo failed: {error}", indent=0)
        return 1
    except FencepostError as error:
        say.write(f"the demo failed: {error}", indent=0)
        return error.exit_code
    return code


def _play(demo: Demo, store: str) -> int:
    say, steps = demo.say, calls(demo.runs)
    say.write(f"Fencepost: {demo.tasks} tasks of a recorded airline agent, {TRIALS} trials each.", indent=0)
    say.tell(
        f"{len(demo.runs)} runs with {len(steps)} tool calls, of which {sum(s.writes for s in steps)} would change "
        f"the world. The trials of a task are sibling branches of one agent, forked from one checkpoint; {TRIALS} "
        f"processes replay them at once. {counted(demo.kills, 'agent')} will be killed in the middle of a call and "
        f"restored from an older checkpoint. Seed {demo.seed}, store {store}: {demo.stage.url}"
    )
    without = _without(demo)
    with Ledger.open(demo.stage.url) as ledger:
        _with(demo, ledger)
        _settled(demo, ledger)
        hits = _compare(demo, ledger, without)
        told = _story(demo, ledger) if hits else True
        found = problems(demo.world("with").hits(), demo.operations(ledger))
    for problem in found:
        say.write(f"PROMISE BROKEN: {problem}", indent=0)
    if found or not told:
        return 1
    say.write("\nHeld to the end: no operation was executed twice, and the ledger agrees with the world.", indent=0)
    return 0


# -- the four parts --------------------------------------------------------------------


def _without(demo: Demo) -> Duplicates:
    say = demo.say
    with say.section("Without a ledger"):
        kills = run_crew(demo.jobs("without", ""))
        found = count_duplicates(demo.world("without").hits())
        say.tell(
            f"{counted(kills, 'kill')}. The tools ran {found.hits} times for {counted(found.operations, 'logical operation')}: "
            f"{counted(found.total, 'duplicate')}. By tool:"
        )
        say.table([[tool, number] for tool, number in found.tools])
    return found


def _with(demo: Demo, ledger: Ledger) -> None:
    say = demo.say
    with say.section("The same with a ledger"):
        _prepare(demo, ledger)
        kills = run_crew(demo.jobs("with", demo.stage.url))
        noted = _noted(demo)
        found, times = tally(demo.operations(ledger)), count_duplicates(demo.world("with").hits())
        say.tell(f"The same {counted(kills, 'kill')} at the same calls. Of the calls that would change the world")
        say.item(f"{noted['ran']} ran their tool and were recorded")
        say.item(f"{noted['by a sibling']} were absorbed: a sibling had done it, and its recorded result came back")
        say.item(f"{noted['by itself']} were absorbed: the same branch had done it, and had forgotten or repeated it")
        say.item(
            f"{noted['refused']} were refused by the tool (`Error…`): recorded as not done, free for another attempt"
        )
        say.item(f"{noted['parked']} stopped their agent: somebody was killed in that operation, so it is in doubt")
        say.tell(
            f"{counted(found.raced, 'attempt')} met a sibling's in the very same moment, and lost. The tools ran "
            f"{times.hits} times for {counted(times.operations, 'logical operation')}: {counted(times.total, 'duplicate')}."
        )


def _prepare(demo: Demo, ledger: Ledger) -> None:
    """One root session an agent: a checkpoint, and the branches that are forked from it."""
    place = demo.place("with")

    def begin(task: int) -> None:
        siblings = [run for run in demo.runs if run.task == task]
        with ledger.session(demo.agent(siblings[0])) as root:
            token = root.checkpoint("start").token
            for run in siblings:
                root.fork(run.branch_id, checkpoint="start")
                Memory(place / "agents" / f"{run.name}.json", token=token).save()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(demo.tasks)))


def _noted(demo: Demo) -> Counter[str]:
    return Counter(event["what"] for event in lines(demo.place("with") / "events.jsonl"))


def _settled(demo: Demo, ledger: Ledger) -> None:
    say = demo.say
    with say.section("What is in doubt"):
        mine = [item for item in ledger.in_doubt() if item.agent_id in demo.agents]
        say.tell(
            f"{counted(len(mine), 'operation')}: claimed, and the agent died before it could say what happened. The "
            "ledger never runs them again on its own. Where the tool has a probe, that looks at the world:"
        )
        world = demo.world("with")
        register_probes(ledger, world)
        settled = settle(ledger, mine, say)
        parked = _parked(demo)
        run_crew(demo.jobs("with", demo.stage.url, resume=True))
        waiting = _parked(demo)
        say.tell(
            f"{settled.committed} had happened, {settled.absent} had not and are free again, "
            f"{settled.left} must be settled by an operator. {counted(parked, 'parked agent')} went on from their "
            f"last checkpoints: {parked - waiting} to the end; {waiting} not, for want of an answer."
        )


def _parked(demo: Demo) -> int:
    return sum(memory["status"] == "parked" for memory in memories(demo.place("with")).values())


def _compare(demo: Demo, ledger: Ledger, without: Duplicates) -> int:
    say = demo.say
    with say.section("Both, counted"):
        operations = demo.operations(ledger)
        found = tally(operations)
        times = count_duplicates(demo.world("with").hits())
        rows: list[list[object]] = [["", "without", "with the ledger"]]
        rows += [["executed writes in the world", without.hits, times.hits]]
        rows += [["logical operations among them", without.operations, times.operations]]
        rows += [["duplicates", without.total, times.total]]
        rows += [["  of a sibling branch", without.sibling, times.sibling]]
        rows += [["  of an agent that was restored and had forgotten", without.restored, times.restored]]
        rows += [["  of a recorded run that itself asked twice", without.repeated, times.repeated]]
        say.table(rows)
        _tell_ledger(found, say)
        for problem in problems(demo.world("with").hits(), operations):
            say.item(f"WRONG: {problem}")
    return times.hits


def _tell_ledger(found: Tally, say: Printer) -> None:
    free = found.operations - found.committed - found.undecided
    say.tell(
        f"The ledger knows {counted(found.operations, 'operation')}: {found.committed} committed, {free} free (never "
        f"done), {found.undecided} in doubt. {counted(found.refused, 'attempt')} at {found.refused_operations} of them "
        f"came to nothing (`Error…`); {found.done_later} of those were done by another attempt. A probe freed "
        f"{found.overruled}; {found.overruled_done} of those were done since."
    )


def _story(demo: Demo, ledger: Ledger) -> bool:
    say, world = demo.say, demo.world("with")
    runs: dict[str, Sequence[Run]] = {
        agent: [run for run in demo.runs if demo.agent(run) == agent] for agent in demo.agents
    }
    killed = Counter(
        f"{demo.stage.prefix}-{path.name.split('-')[0]}" for path in (demo.place("with") / "killed").iterdir()
    )
    hero = story.choose(demo.operations(ledger), runs, killed)
    with say.section("Watermarks"):
        story.tell_watermarks(ledger, hero, sorted(demo.agents, key=lambda a: (-killed[a], a)), say)
    with say.section("A rollback that is refused"):
        story.tell_refused(ledger, hero, say)
    with say.section("Forward by replay"):
        checkpoint = story.tell_replay(ledger, hero, world, say)
    with say.section("A rollback that is authorised"):
        return story.tell_authorised(ledger, hero, checkpoint, say)


def _tell_kept(demo: Demo, say: Printer) -> None:
    url = shlex.quote(demo.stage.url)
    say.write(f"Kept: {demo.stage.directory}. Look around:", indent=0)
    for command in ("ops list", "in-doubt list", f"agents show {demo.agents[0]}"):
        say.write(f"fencepost --url {url} {command}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The demo from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fencepost.ledger.demo", description="The demo.")
    parser.add_argument("--store", choices=("embedded", "kafka"), default="embedded")
    parser.add_argument("--url", help="of the ledger; a temporary one when not given")
    parser.add_argument("--seed", type=int, default=SEED, help="which agents are killed, and where (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave world and ledger behind")
    parser.add_argument("--tasks", type=int, choices=range(1, TASKS + 1), metavar="1-50", default=TASKS)
    parser.add_argument("--bypass", action="store_true", help="call one tool past the ledger: the audit must find it")
    options = parser.parse_args(arguments)
    return run(
        store=options.store, url=options.url, seed=options.seed, keep=options.keep, tasks=options.tasks,
        bypass=options.bypass,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
