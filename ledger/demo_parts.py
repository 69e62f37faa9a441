"""The parts of the demo: without a ledger, with one, what is in doubt, both counted, one agent's story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import demo_story as story_of
from .demo_audit import Tally, tally
from .demo_crew import make_place, memories, run_crew
from .demo_runs import TRIALS, Run
from .demo_settle import register_probes, settle
from .demo_stage import Stage
from .demo_text import Printer, counted
from .demo_worker import Job, Memory
from .demo_world import Duplicates, World, count_duplicates, lines
from .facade import Ledger
from .operations import Operation

ALL_TASKS = 50
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
        return max(2, KILLS * self.tasks // ALL_TASKS)

    def place(self, name: str) -> Path:
        """The directory of a pass."""
        return make_place(self.stage.directory / name)

    def jobs(self, name: str, url: str, *, resume: bool = False) -> list[Job]:
        """The jobs of a pass, one process for each trial."""
        return [
            Job(
                directory=str(self.place(name)), url=url, prefix=self.stage.prefix, trial=trial, tasks=self.tasks,
                seed=self.seed, kills=self.kills, resume=resume,
                bypass=self.bypass and bool(url) and not resume,
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


def without_ledger(demo: Demo) -> Duplicates:
    """The tools called directly, by agents that are killed and forget; returns the duplicates."""
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


def with_ledger(demo: Demo, ledger: Ledger) -> None:
    """The same agents and kills, through the ledger."""
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


def in_doubt(demo: Demo, ledger: Ledger) -> None:
    """What nobody can know without looking: listed, probed; and the agents that it stopped go on."""
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
        before = _parked(demo)
        jobs = demo.jobs("with", demo.stage.url, resume=True)
        run_crew([job for job in jobs if any(name.endswith(f"-{job.trial}") for name in before)])
        parked, waiting = len(before), len(_parked(demo))
        say.tell(
            f"{settled.committed} had happened, {settled.absent} had not and are free again, "
            f"{settled.left} must be settled by an operator. {counted(parked, 'parked agent')} went on from their "
            f"last checkpoints: {parked - waiting} to the end; {waiting} not, for want of an answer."
        )


def _parked(demo: Demo) -> list[str]:
    return [name for name, memory in memories(demo.place("with")).items() if memory["status"] == "parked"]


def compare(demo: Demo, ledger: Ledger, without: Duplicates) -> None:
    """Both passes side by side, from the two worlds and from the ledger."""
    say = demo.say
    with say.section("Both, counted"):
        found = tally(demo.operations(ledger))
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


def _tell_ledger(found: Tally, say: Printer) -> None:
    free = found.operations - found.committed - found.undecided
    say.tell(
        f"The ledger knows {counted(found.operations, 'operation')}: {found.committed} committed, {free} free (never "
        f"done), {found.undecided} in doubt. {counted(found.refused, 'attempt')} at {found.refused_operations} of them "
        f"came to nothing (`Error…`); {found.done_later} of those were done by another attempt. A probe freed "
        f"{found.overruled}; {found.overruled_done} of those were done since."
    )


def story(demo: Demo, ledger: Ledger) -> bool:
    """Watermarks, rollbacks, and replay of one agent; whether all went as it must."""
    say, world = demo.say, demo.world("with")
    runs: dict[str, Sequence[Run]] = {
        agent: [run for run in demo.runs if demo.agent(run) == agent] for agent in demo.agents
    }
    killed = Counter(
        f"{demo.stage.prefix}-{path.name.split('-')[0]}" for path in (demo.place("with") / "killed").iterdir()
    )
    hero = story_of.choose(demo.operations(ledger), runs, killed)
    if hero is None:
        say.tell("No agent has a committed effect and nothing in doubt, so there is no story to tell.")
        return True
    with say.section("Watermarks"):
        story_of.tell_watermarks(ledger, hero, sorted(demo.agents, key=lambda a: (-killed[a], a)), say)
    with say.section("A rollback that is refused"):
        story_of.tell_refused(ledger, hero, say)
    with say.section("Forward by replay"):
        checkpoint = story_of.tell_replay(ledger, hero, world, say)
    with say.section("A rollback that is authorised"):
        return story_of.tell_authorised(ledger, hero, checkpoint, say)
