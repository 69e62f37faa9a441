"""Processes that stand still and come back, projectors that come and go, and one that is slow, while agents work."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.waiting import let_time_pass
from faults.stack.evidence import lines
from faults.stack.stage import Stage, create

from fencepost.consumer.command import lag
from fencepost.deploy.processes import wait_until
from fencepost.ledger import Ledger, Limits, StaleProjectionError, VerdictKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS = 3


@pytest.fixture
def stage(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(create(kafka_bootstrap, redis_url, partitions=PARTITIONS), tmp_path).playing() as stage:
        yield stage


def told(stage: Stage, error: str) -> bool:
    """Whether a call of an agent has ended in this error."""
    calls = (values for path in stage.directory.glob("calls.*.jsonl") for values in lines(path))
    return any(values["error"].startswith(f"{error}:") for values in calls)


def test_agents_wake_up_after_they_were_superseded(stage: Stage) -> None:
    """A process that slept while others took over its agents is told so at its next step, and does nothing more."""
    stage.project()
    stage.open()
    agents = ["a", "b", "c"]
    zombies = stage.crew("zombies", groups=[agents], count=10_000, crash=0, reopen=0, rollback=0)
    stage.wait_for_hits(5)
    zombies.send(0, signal.SIGSTOP)
    stage.wait_until_quiet()
    heirs = stage.crew("heirs", groups=[agents], count=10_000, crash=0, reopen=0, rollback=0)
    stage.wait_for_hits(5)
    zombies.send(0, signal.SIGCONT)
    assert wait_until(lambda: told(stage, "FencedError"), 90), stage.said()
    stage.wait_for_hits(5)
    heirs.stop()
    zombies.stop()
    marks = stage.finish().marks
    assert marks["error FencedError"] >= 1, marks


def test_a_projector_sleeps_past_its_session(stage: Stage) -> None:
    """Another takes over what it held; when it wakes up, two hold the same partitions, and only one of them applies."""
    sleeper = stage.project()
    stage.open()
    crew = stage.crew("work", groups=[["a", "b"], ["c", "d"]], count=10_000, pause_s=0.02)
    stage.wait_for_hits(5)
    for _ in range(2):
        sleeper.signal(signal.SIGSTOP)
        other = stage.project()
        stage.wait_for_hits(10)
        sleeper.signal(signal.SIGCONT)
        stage.wait_for_hits(10)
        sleeper, other = other, sleeper
    crew.stop()
    stage.finish()
    assert all(process.alive() for process in stage.projectors)


def test_a_storm_of_rebalances(stage: Stage) -> None:
    """A projector joins or leaves every two seconds: work goes on, the lag goes back to nothing, nothing is applied twice."""
    stage.project()
    stage.open()
    crew = stage.crew("storm", groups=[["a", "b"], ["c", "d"]], count=10_000, pause_s=0.02)
    stage.wait_for_hits(5)
    before = stage.hits()
    visitors = []
    for turn in range(10):
        if turn % 3 < 2:
            visitors.append(stage.project())
        else:
            visitors.pop(0).signal(signal.SIGTERM)
        let_time_pass(2)
    assert stage.hits() > before
    crew.stop()
    assert wait_until(lambda: all(row.lag_records == 0 for row in lag(stage.rig.url)), 30)
    stage.finish()


def test_a_slow_projector(stage: Stage, tmp_path: Path) -> None:
    """Claims are withdrawn and the guard refuses, both in time and by name, and it goes on when the projector does."""
    pace = tmp_path / "pace"
    stage.project(slow=pace)
    stage.open()
    limits = Limits(deadline_s=1, apply_s=2, publish_s=5)
    with Ledger.open(stage.url, limits=limits) as ledger:
        with ledger.session("bystander") as session:
            session.checkpoint("here")
        plan = {"deadline_s": 1.0, "wait_s": 1.0, "probe": 0, "rollback": 0}
        crew = stage.crew("slow", groups=[["a", "b"], ["c", "d"]], count=10_000, pause_s=0.05, plan=plan)
        stage.wait_for_hits(5)
        pace.write_text("3")
        stage.wait_until_quiet(6)  # long enough for every agent to claim something and be told
        began = time.monotonic()
        with pytest.raises(StaleProjectionError) as caught:
            ledger.authorize_rollback("bystander", checkpoint="here")
        assert time.monotonic() - began < 8
        assert caught.value.next_step
        pace.write_text("0")
        stage.wait_for_hits(5)
        crew.stop()
        marks = stage.finish().marks
        assert marks["error StaleProjectionError"] >= 1, marks
        assert wait_until(lambda: _decided(ledger) is VerdictKind.PROCEED, 20)


def _decided(ledger: Ledger) -> VerdictKind | None:
    """The verdict; None while the projector is still behind."""
    try:
        return ledger.authorize_rollback("bystander", checkpoint="here").kind
    except StaleProjectionError:
        return None
