"""Two processes for the same agents, one of which goes back again and again; and what the checker says when a promise is out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.stack.checker import Violation
from faults.stack.evidence import lines
from faults.stack.stage import LONG, Stage, create
from projection_kit import FAST_COMPACTION

from fencepost.consumer.command import lag
from fencepost.deploy.processes import wait_until
from fencepost.ledger.positions import Topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
AGENTS = ["a", "b", "c"]


@pytest.fixture
def stage(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    rig = create(kafka_bootstrap, redis_url, lag_ms=1_000)
    for topic in Topic:
        rig.configure(topic, **{name.replace(".", "_"): value for name, value in FAST_COMPACTION.items()})
    with Stage(rig, tmp_path).playing() as stage:
        yield stage


def authorised(stage: Stage) -> int:
    """How many rollbacks were authorised so far."""
    said = [values for path in stage.directory.glob("decisions.*") for values in lines(path)]
    return sum(values["verdict"] != "REFUSE" for values in said)


def two_for_the_same(stage: Stage) -> None:
    """A crew that works, and one that speaks for the same agents and goes back again and again."""
    quiet = {"crash": 0, "reopen": 0, "probe": 0, "decline": 0, "doubt": 0, "count": 100_000, "seconds": 60}
    stage.project()
    stage.open()
    stage.crew("works", groups=[AGENTS], checkpoint=0, rollback=0, plan=quiet)
    stage.crew("returns", groups=[AGENTS], checkpoint=400, rollback=400, pause_s=0.05, plan=quiet)
    assert wait_until(lambda: authorised(stage) >= 6, 60)
    stage.wait_for_hits(10)
    for crew in stage.crews:
        crew.stop()


def found(stage: Stage) -> list[Violation]:
    """What the checker says once all is read, whatever is owed."""
    for crew in stage.crews:
        crew.finish(60)
    assert wait_until(lambda: all(row.lag_records == 0 for row in lag(stage.rig.url)), 60)
    return stage.findings().violations


def test_going_back_while_another_acts(stage: Stage) -> None:
    """No authorised rollback goes back over what the other process does, and nothing that it left behind acts on."""
    two_for_the_same(stage)
    stage.finish()


@LONG
def test_without_fences(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody fenced, the same run breaks the guard's promise."""
    monkeypatch.setenv("STACK_BREAK", "fences")
    two_for_the_same(stage)
    assert "guard" in {violation.promise for violation in found(stage)}


@LONG
def test_without_confirmation(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With intents that are not confirmed, effects happen twice."""
    monkeypatch.setenv("STACK_BREAK", "confirmation")
    stage.project()
    stage.open()
    stage.crew("rush", groups=[["a", "b"], ["c", "d"], ["e", "f"]], count=60, seconds=30, crash=0, rollback=0)
    assert {"at most once", "owner"} <= {violation.promise for violation in found(stage)}


@LONG
def test_without_debts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With debts that nobody pays, the cleaner takes acknowledged facts away."""
    monkeypatch.setenv("STACK_BREAK", "debts")
    stage.project()
    stage.open()
    stage.crew("rush", groups=[["a", "b"], ["c", "d"], ["e", "f"]], count=300, seconds=20, crash=0, rollback=0)
    assert {"fold", "acknowledged"} <= {violation.promise for violation in found(stage)}
