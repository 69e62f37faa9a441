"""The demo: recorded agent runs without a ledger, then with one; then one agent's rollbacks.

    fencepost demo [--store embedded|kafka] [--url URL] [--seed N] [--keep]
    python -m fencepost.ledger.demo, with the same options

Every figure is counted: in the world's file, in the ledger, in what the processes noted. Exit
code 0 when the promise held, 1 when a logical operation was executed more than once or world and
ledger disagree, otherwise that of the error.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from . import demo_parts as parts
from .demo_audit import problems
from .demo_crew import CrewError
from .demo_parts import ALL_TASKS, Demo
from .demo_runs import TRIALS, calls, load
from .demo_stage import set_up
from .demo_text import Printer, counted
from .errors import FencepostError
from .facade import Ledger

SEED = 0


def run(
    *,
    store: str = "embedded",
    url: str | None = None,
    seed: int = SEED,
    keep: bool = False,
    out: TextIO | None = None,
    tasks: int = ALL_TASKS,
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
    without = parts.without_ledger(demo)
    with Ledger.open(demo.stage.url) as ledger:
        parts.with_ledger(demo, ledger)
        parts.in_doubt(demo, ledger)
        parts.compare(demo, ledger, without)
        told = parts.story(demo, ledger)
        found = problems(demo.world("with").hits(), demo.operations(ledger))
    for problem in found:
        say.write(f"PROMISE BROKEN: {problem}", indent=0)
    if found or not told:
        return 1
    say.write("\nHeld to the end: no operation was executed twice, and the ledger agrees with the world.", indent=0)
    return 0


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
    parser.add_argument("--tasks", type=int, choices=range(1, ALL_TASKS + 1), metavar="1-50", default=ALL_TASKS)
    parser.add_argument("--bypass", action="store_true", help="call one tool past the ledger: the audit must find it")
    options = parser.parse_args(arguments)
    return run(
        store=options.store, url=options.url, seed=options.seed, keep=options.keep, tasks=options.tasks,
        bypass=options.bypass,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
