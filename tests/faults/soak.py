"""Everything at once for as long as wanted: agents at work, and a schedule of faults that is drawn from a seed.

    python tests/faults/soak.py --minutes 10 --seed 1 --json result.json

Three brokers, Redis, two projectors, twenty agents; compaction runs. Phase after phase the faults of the schedule happen,
then all is healed and every promise is checked over everything that was left behind (`stack/checker.py`, and the ledger's
own verify). The same seed gives the same schedule. Exit code 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from faults.stack.checker import Violation  # noqa: E402 (the folder of the tests is no package)
from faults.stack.nemesis import Fault, schedule  # noqa: E402
from faults.stack.operator import Operator  # noqa: E402
from faults.stack.stage import Stage, create  # noqa: E402

from fencepost.deploy.kafka_cluster import KafkaCluster  # noqa: E402
from fencepost.deploy.redis_server import RedisServer  # noqa: E402
from fencepost.ledger import Ledger, StoreError  # noqa: E402
from fencepost.ledger.positions import Topic  # noqa: E402

PHASE_S = 150.0
PHASES_AN_ACT = 4
"""Phases on one ledger; the next ones get a new one, so that a check stays affordable."""
HEALED_S = 180.0
END = "end of: "
LAG_MS = 90_000
CLEANED = {"segment_ms": "4000", "min_cleanable_dirty_ratio": "0.001", "delete_retention_ms": "500"}
GROUPS = [[f"agent-{process}-{number}" for number in range(5)] for process in range(4)]
PLAN: dict[str, Any] = {"count": 10**9, "stride": 8, "pause_s": 0.15, "deadline_s": 10.0, "wait_s": 3.0}


@dataclass
class Result:
    """What is told at the end."""

    seed: int
    minutes: float
    commit: str
    faults: Counter[str] = field(default_factory=Counter)
    happened: list[dict[str, Any]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    checks: int = 0
    took_s: float = 0.0

    def take(self, found: list[Violation], where: str) -> None:
        """Note what was found, at most so much of it as a person reads."""
        for violation in found[:50]:
            self.violations.append({"where": where, "promise": violation.promise, "what": violation.what})
            say(f"VIOLATION {where}: {violation.promise}: {violation.what}")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)  # noqa: T201 (it is a command)


def commit() -> str:
    """Which code ran; with a plus where the tree differs from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=TESTS, capture_output=True, text=True, check=False
    )
    return told.stdout.strip()


class Soak:
    """The services and the result; one act after the other on them."""

    def __init__(self, options: argparse.Namespace, place: Path, held: ExitStack) -> None:
        self.result = Result(options.seed, options.minutes, commit())
        self.phases = max(1, round(options.minutes * 60 / PHASE_S))
        self.faults = schedule(options.seed, phases=self.phases, phase_s=PHASE_S)
        self.place = place
        self.earlier: Counter[str] = Counter()
        self.keep = options.keep is not None
        self.cluster = KafkaCluster(3, directory=place / "kafka").start()
        held.callback(self.cluster.kill_all)
        self.redis = RedisServer(place / "redis").start()
        held.callback(self.redis.kill)

    def run(self) -> None:
        """All acts."""
        began = time.monotonic()
        for fault in self.faults:
            say(str(fault))
        try:
            for first in range(0, self.phases, PHASES_AN_ACT):
                self._act(range(first, min(first + PHASES_AN_ACT, self.phases)))
        except Exception as error:  # noqa: BLE001 (the outermost one: what was found so far is told)
            traceback.print_exc()
            self.result.take([Violation("soak", f"it stopped: {type(error).__name__}: {error}"[:2000])], "soak")
        self.result.took_s = round(time.monotonic() - began, 1)

    def _act(self, phases: range) -> None:
        directory = self.place / f"act-{phases.start}"
        directory.mkdir()
        rig = create(self.cluster.bootstrap, self.redis.url, partitions=4, copies=3, lag_ms=LAG_MS)
        for topic in Topic:
            rig.configure(topic, **CLEANED)
        with Stage(rig, directory).playing() as stage:
            operator = Operator(stage, self.cluster, self.redis)
            operator.start()
            stage.open()
            self.earlier = +self.result.marks
            for phase in phases:
                self._phase(stage, operator, phase)
                self._check(stage, operator, phase)
            if not (self.keep or self.result.violations):
                for file in directory.glob("*.jsonl"):
                    file.unlink()

    def _phase(self, stage: Stage, operator: Operator, phase: int) -> None:
        limits = {"apply_s": 20.0, "publish_s": 40.0}
        crew = stage.crew(
            f"p{phase}", groups=GROUPS, limits=limits, seconds=3600, seed=self.result.seed * 1000 + phase, **PLAN
        )
        operator.crew = crew
        began = time.monotonic()
        due = sorted(_events(operator, [f for f in self.faults if f.phase == phase]), key=lambda event: event[0])
        while (now := time.monotonic() - began) < PHASE_S:
            while due and due[0][0] <= now:
                _, what, act = due.pop(0)
                say(what)
                act()
                if not what.startswith(END):
                    self.result.faults[what] += 1
                self.result.happened.append({"phase": phase, "at_s": round(now, 1), "what": what})
            operator.tend()
            if operator.resources_due():
                self.result.resources.append({"phase": phase, "at_s": round(now, 1), **operator.resources()})
            time.sleep(0.1)
        operator.heal()
        crew.stop()

    def _check(self, stage: Stage, operator: Operator, phase: int) -> None:
        say(f"phase {phase}: checking")
        where = f"phase {phase}"
        try:
            for crew in stage.crews:
                crew.finish(HEALED_S)
            stage.settle(HEALED_S)
        except AssertionError as stuck:
            self.result.take([Violation("liveness", str(stuck)[:2000])], where)
            return
        findings = stage.findings()
        self.result.take(findings.violations, where)
        self.result.take(verified(stage), where)
        self.result.checks += 1
        self.result.marks = self.earlier + findings.marks
        outcomes = {name: self.result.marks[f"call {name}"] for name in ("ok", "fail", "unknown", "foreign")}
        self.result.outcomes = Counter(outcomes)
        say(f"phase {phase}: {len(findings.violations)} violations, {outcomes}, {findings.marks['records']} records")
        operator.tend()


def _events(operator: Operator, faults: list[Fault]) -> list[tuple[float, str, Callable[[], None]]]:
    """(when, what, act): each fault's beginning and, unless it is over at once, its end."""
    events: list[tuple[float, str, Callable[[], None]]] = []
    for fault in faults:
        begin, end = operator.acts(fault)
        events.append((fault.at_s, fault.kind, begin))
        if end is not None:
            events.append((fault.at_s + fault.for_s, f"{END}{fault.kind}", end))
    return events


def told(result: Result) -> str:
    """What the run did, for a person: that it was not idle can be seen from it."""
    marks, faults = result.marks, result.faults
    calls = sum(result.outcomes.values())
    verdicts = {name.partition(" ")[2]: count for name, count in marks.items() if name.startswith("verdict ")}
    refused = verdicts.pop("REFUSE", 0)
    operations = {name.partition(" ")[2]: count for name, count in marks.items() if name.startswith("operation ")}
    rows = {
        "seed": f"{result.seed}, {result.took_s:.0f} s, commit {result.commit}, {result.checks} checks",
        "operations": f"{sum(operations.values())}: {listed(operations)}",
        "calls": f"{calls}: {listed(result.outcomes)}; the outside world was changed {marks['hits']} times",
        "absorbed": f"{marks['absorbed']} calls got the recorded result instead of a second execution",
        "rollbacks": f"{sum(verdicts.values())} authorised ({listed(verdicts) or 'none'}), {refused} refused",
        "records": f"{marks['records']}, of which compaction removed {marks['removed by compaction']}",
        "kills": f"{faults['kill agents']} of agents, {faults['kill projector']} of projectors, "
        f"{faults['kill Redis']} of Redis, {faults['kill leader']} of leaders",
        "Redis lost": f"{faults['flush Redis']} flushes, {faults['set Redis back']} set back, "
        f"{faults['drop partition']} partitions dropped",
        "all faults": f"{sum(faults.values())}: {listed(faults)}",
        "violations": str(len(result.violations)),
    }
    return "\n".join(f"{name:<12}{text}" for name, text in rows.items())


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count)


def idle(result: Result) -> list[Violation]:
    """What a run of this length must have come to, and has not: then it has shown nothing."""
    marks = result.marks
    wanted = {
        "effects": marks["hits"],
        "calls that were absorbed": marks["absorbed"],
        "authorised rollbacks": marks["verdict PROCEED"] + marks["verdict PROCEED_GATED"],
        "refused rollbacks": marks["verdict REFUSE"],
        "faults": sum(result.faults.values()),
        "checks": result.checks,
    }
    return [Violation("soak", f"it was idle: no {what}") for what, count in wanted.items() if not count]


def missed(result: Result, faults: list[Fault]) -> list[Violation]:
    """What the schedule says and did not happen, or happened in another order."""
    wanted = [(fault.phase, fault.kind) for fault in faults]
    begun = [(one["phase"], one["what"]) for one in result.happened if not one["what"].startswith(END)]
    differs = next((i for i, (want, have) in enumerate(zip_longest(wanted, begun)) if want != have), None)
    if differs is None:
        return []
    here, there = [*wanted, None][differs : differs + 1], [*begun, None][differs : differs + 1]
    return [Violation("soak", f"fault {differs + 1} of the schedule is {here}, and what happened is {there}")]


def verified(stage: Stage) -> list[Violation]:
    """What the ledger finds in itself."""
    try:
        with Ledger.open(stage.url) as ledger:
            return [Violation(f"verify: {f.kind}", f"{f.where}: {f.text}") for f in ledger.verify().findings if f.grave]
    except StoreError as error:
        return [Violation("verify", str(error))]


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, help="where the result goes as well")
    parser.add_argument("--keep", type=Path, help="where the evidence stays; deleted if not given and nothing is found")
    options = parser.parse_args()
    place = options.keep or Path(tempfile.mkdtemp(prefix="fencepost-soak-"))
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        soak = Soak(options, place, held)
        soak.run()
    soak.result.take([*idle(soak.result), *missed(soak.result, soak.faults)], "soak")
    schedule_told = [fault._asdict() for fault in soak.faults]
    result = {"schema": "fencepost.soak.v1", **soak.result.__dict__, "schedule": schedule_told}
    text = json.dumps(result)
    print(text)  # noqa: T201 (it is a command)
    print(told(soak.result), file=sys.stderr)  # noqa: T201
    if options.json is not None:
        options.json.write_text(text + "\n")
    if not soak.result.violations and options.keep is None:
        with suppress(OSError):
            shutil.rmtree(place)
    else:
        say(f"the evidence is in {place}")
    return int(bool(soak.result.violations))


if __name__ == "__main__":
    sys.exit(main())
