"""The demo on a few tasks: its promise, its figures, and that its audit can fail."""

from __future__ import annotations

import io
import re
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencepost.ledger import Ledger
from fencepost.ledger import demo as demo_module
from fencepost.ledger.demo_audit import problems
from fencepost.ledger.demo_crew import CrewError, make_place, run_crew
from fencepost.ledger.demo_runs import TRIALS
from fencepost.ledger.demo_worker import Job
from fencepost.ledger.demo_world import Duplicates, Hit, World, count_duplicates
from fencepost.ledger.operations import Status

TASKS = 6
SEED = 3


@dataclass(frozen=True)
class Played:
    code: int
    said: str
    directory: Path


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """One run that left its directory behind."""
    place = tmp_path_factory.mktemp("played")
    code, said = play(place, keep=True)
    return Played(code, said, next(place.glob("fencepost-demo-*")))


def play(place: Path, *, keep: bool = False, bypass: bool = False, tasks: int = TASKS) -> tuple[int, str]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        code = demo_module.run(seed=SEED, keep=keep, out=out, tasks=tasks, bypass=bypass)
    return code, out.getvalue()


def without_ledger(directory: Path) -> Duplicates:
    place = make_place(directory)
    shared = {"directory": str(place), "url": "", "prefix": "airline", "tasks": TASKS, "seed": SEED, "kills": 4}
    jobs = [Job(trial=trial, **shared) for trial in range(TRIALS)]  # type: ignore[arg-type]
    assert run_crew(jobs) == 4
    return count_duplicates(World(place / "world.jsonl").hits())


def test_promise_holds_and_figures_agree(played: Played) -> None:
    """The world has one line for each committed operation and each that landed in doubt, and no operation twice."""
    said, directory = played.said, played.directory
    assert played.code == 0, said
    hits = World(directory / "with" / "world.jsonl").hits()
    with Ledger.open(f"sqlite://{directory}/ledger.db") as ledger:
        operations = [view.operation for view in ledger.operations()]
    committed = {op.op_id for op in operations if op.status is Status.COMMITTED}
    undecided = {op.op_id for op in operations if op.status in {Status.OWNED, Status.IN_DOUBT}}
    times = Counter(hit.op_id for hit in hits)
    assert set(times.values()) == {1}
    assert committed
    assert committed <= set(times) <= committed | undecided
    assert problems(hits, operations) == []
    alone = count_duplicates(World(directory / "without" / "world.jsonl").hits())
    assert alone.total > 0
    assert re.search(rf"executed writes in the world\s+{alone.hits}\s+{len(hits)}\n", said)
    assert re.search(rf"duplicates\s+{alone.total}\s+0\n", said)
    assert f"{len(committed)} committed" in said


def test_story_is_told(played: Played) -> None:
    """A refusal with its reasons, an authorised rollback, and a replay are shown."""
    said = played.said
    for part in ("REFUSE (nobody was fenced)", "EFFECT_NOT_KNOWN", "PROCEED (the branch was fenced", "Ways on:"):
        assert part in said
    assert re.search(r"1\. \w+ \(trial-\d \d+\.\d+/\d+\) committed:", said)


def test_without_a_ledger_the_same_seed_counts_the_same(tmp_path: Path) -> None:
    """The schedule follows from the seed: its duplicates are the same whenever and however fast it runs."""
    assert without_ledger(tmp_path / "one") == without_ledger(tmp_path / "two")


def test_an_effect_past_the_ledger_is_found(tmp_path: Path) -> None:
    """A call that bypasses the ledger is a second execution: the demo says which, exits with 1, and tidies up."""
    code, said = play(tmp_path, bypass=True, tasks=2)
    assert code == 1
    assert len(re.findall(r"PROMISE BROKEN: \S+ was executed 2 times", said)) == 1
    assert "Held to the end" not in said
    assert list(tmp_path.iterdir()) == []


def test_world_appends(tmp_path: Path) -> None:
    """What happened stays, in order, and is found by the idempotency key."""
    world = World(tmp_path / "world.jsonl")
    assert world.hits() == []
    first = Hit("x", "tool", "a/trial-0", 0, "done")
    second = Hit("y", "tool", "a/trial-1", 1, "naïve\nresult", "key-2")
    world.act(first)
    world.act(second)
    assert world.hits() == [first, second]
    assert world.find("key-2") == second
    assert world.find("key-3") is None


def test_failing_process_is_told(tmp_path: Path) -> None:
    """A process that fails in a way that was not planned stops the demo, with what it said."""
    job = Job(
        directory=str(make_place(tmp_path)), url="nonsense:", prefix="a", trial=0, tasks=1, seed=SEED, kills=0
    )  # fmt: skip
    with pytest.raises(CrewError, match="is not a store URL"):
        run_crew([job])


@pytest.mark.parametrize(
    ("store", "url", "said"),
    [("kafka", None, "begins with kafka:"), ("embedded", "kafka://h/p", "begins with sqlite:"), ("x", None, "'x'")],
)
def test_url_must_fit_the_store(store: str, url: str | None, said: str) -> None:
    """A wrong call is told in a sentence, with the exit code of a wrong call."""
    out = io.StringIO()
    assert demo_module.run(store=store, url=url, out=out) == 2
    assert said in out.getvalue()


@pytest.mark.slow
def test_same_on_kafka_and_redis(kafka_bootstrap: str, redis_url: str) -> None:
    """On Kafka and Redis, with two projectors, the promise holds as on the embedded store."""
    url = f"kafka://{kafka_bootstrap}/demo-{secrets.token_hex(4)}?projection={redis_url}"
    command = [sys.executable, "-m", "fencepost.ledger.demo", "--store", "kafka", "--url", url]
    done = subprocess.run(
        [*command, "--tasks", "4", "--seed", str(SEED)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"duplicates\s+[1-9]\d*\s+0\n", done.stdout)
    assert "Held to the end" in done.stdout
