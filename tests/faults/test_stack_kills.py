"""kill -9 at every step, of agents and of the projector, while others work: checked over everything that is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.stack.stage import Stage, create
from projection_kit import drop

from fencepost.deploy.processes import wait_until
from fencepost.ledger.positions import Partition, Topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KINDS: dict[str, dict[str, int]] = {  # each with what an agent has to do often to come there
    "SESSION_OPENED": {"reopen": 200},
    "FENCED": {"crash": 200},
    "INTENDED": {},
    "COMMITTED": {},
    "FAILED": {"decline": 700},
    "IN_DOUBT": {"doubt": 700},
    "RESOLVED": {"doubt": 500, "probe": 400},
    "ABSORBED": {"private": 0},
    "CHECKPOINTED": {"checkpoint": 300},
    "SESSION_CLOSED": {"reopen": 300},
    "ROLLBACK_REQUESTED": {"checkpoint": 450, "rollback": 450},
    "ROLLBACK_DECIDED": {"checkpoint": 450, "rollback": 450},
}
AGENT_FAILPOINTS = [f"{when} {kind}" for kind in KINDS for when in ("before", "after")]
BUSY = {"private": 300, "decline": 50, "doubt": 100, "probe": 100, "stride": 4}
AT_THE_BEGINNING = ["before_horizon:kill", "after_begin_incarnation:kill"]
WHILE_IT_WORKS = ["before_apply:kill:60", "after_apply:kill:5", "before_reassert:kill", "after_reassert:kill:2"]
# Each of them without agents, on a log that is there: tests/integration/test_projector.py.


@pytest.fixture
def stage(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(create(kafka_bootstrap, redis_url), tmp_path).playing() as stage:
        yield stage


def test_agents_are_killed_at_every_step(stage: Stage) -> None:
    """Agents die around every kind of fact that they publish and are started again: no promise is broken."""
    stage.project()
    stage.open()
    failpoints = {str(number): point for number, point in enumerate(AGENT_FAILPOINTS)}
    groups = [[f"agent-{number}"] for number in range(len(failpoints))]
    differs = {number: KINDS[point.partition(" ")[2]] for number, point in failpoints.items()}
    crew = stage.crew(
        "steps",
        groups=groups,
        failpoints=failpoints,
        differs=differs,
        plan={"count": 10_000, "wait_s": 1.0, **BUSY},
    )

    def missing() -> set[str]:
        died = {number for number, life, code in crew.ended() if (life, code) == (0, -signal.SIGKILL)}
        return set(AGENT_FAILPOINTS) - {AGENT_FAILPOINTS[number] for number in died}

    assert wait_until(lambda: not missing(), 80), missing()
    stage.wait_for_hits(20)
    crew.stop()
    marks = stage.finish().marks
    assert marks["absorbed"]
    assert marks["attempt in doubt"] + marks["attempt overruled"]


def test_the_projector_is_killed_at_every_step(stage: Stage) -> None:
    """It dies at each of its steps while agents work; the last one finds nothing that it does not put right."""
    stage.project()
    stage.open()
    crew = stage.crew("work", groups=[["a", "b"], ["c", "d"]], count=10_000, pause_s=0.05)
    stage.wait_for_hits(10)
    [running] = stage.projectors
    running.kill()
    for failpoint in [*AT_THE_BEGINNING, *WHILE_IT_WORKS]:
        if failpoint in AT_THE_BEGINNING:
            drop(stage.rig, Partition(Topic.EFFECTS, 0))
        _dies_of(stage, failpoint)
    stage.project()
    stage.wait_for_hits(10)
    crew.stop()
    stage.finish()


def _dies_of(stage: Stage, failpoint: str) -> None:
    process = stage.project(failpoint=failpoint)
    assert wait_until(lambda: not process.alive(), 40), (failpoint, stage.said())
    assert process._child is not None
    assert process._child.returncode == -signal.SIGKILL
