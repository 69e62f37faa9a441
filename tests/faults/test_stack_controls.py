"""Two processes for the same agents, one of which goes back again and again; and what the checker says when a promise is out.

A broken run goes on only until what it is there to show can be seen from outside; then the checker has to find it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.stack.evidence import lines
from faults.stack.stage import Stage, create, kafka_records
from projection_kit import FAST_COMPACTION

from fencepost.consumer.command import lag
from fencepost.deploy.processes import wait_until
from fencepost.ledger.positions import Topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AGENTS = ["a", "b", "c"]
RUSH: dict[str, Any] = {"groups": [["a", "b"], ["c", "d"], ["e", "f"]], "count": 10_000, "crash": 0, "rollback": 0}


@pytest.fixture
def taken_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the processes of the run do not do (`stack/broken.py`); nothing unless the test names it."""
    name: str = getattr(request, "param", "")
    monkeypatch.setenv("STACK_BREAK", name)
    return name


@pytest.fixture
def stage(taken_out: str, kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    rig = create(kafka_bootstrap, redis_url, lag_ms=1_000)
    for topic in Topic:
        rig.configure(topic, **{name.replace(".", "_"): value for name, value in FAST_COMPACTION.items()})
    with Stage(rig, tmp_path).playing() as stage:
        stage.project()
        yield stage.open()


def two_for_the_same(stage: Stage) -> None:
    """A crew that works, and one that speaks for the same agents and goes back again and again."""
    quiet = {"crash": 0, "reopen": 0, "probe": 0, "decline": 0, "doubt": 0, "count": 100_000}
    stage.crew("works", groups=[AGENTS], checkpoint=0, rollback=0, plan=quiet)
    stage.crew("returns", groups=[AGENTS], checkpoint=400, rollback=400, pause_s=0.05, plan=quiet)


def authorised(stage: Stage) -> list[dict[str, Any]]:
    """The rollbacks that were authorised so far."""
    said = [values for path in stage.directory.glob("decisions.*") for values in lines(path)]
    return [values for values in said if values["verdict"] != "REFUSE"]


def hits(stage: Stage) -> list[dict[str, Any]]:
    return [values for values in lines(stage.directory / "sink.jsonl") if values["do"] == "hit"]


def went_on(stage: Stage) -> int:
    """How many sessions acted before a rollback of their agent was authorised, and afterwards too."""
    decided, seen = authorised(stage), hits(stage)
    acted: dict[tuple[str, str], list[int]] = defaultdict(list)
    for hit in seen:
        acted[hit["agent_id"], hit["session_id"]].append(hit["at"])
    return sum(
        any(min(times) < one["at"] < max(times) for one in decided if one["agent_id"] == agent_id)
        for (agent_id, _), times in acted.items()
    )


def run_twice(stage: Stage) -> int:
    """How many operations changed the outside world more than once."""
    return sum(count > 1 for count in Counter(hit["op_id"] for hit in hits(stage)).values())


def removed(stage: Stage) -> int:
    """How many of the effects' records are gone from the log."""
    places = [place for place in stage.rig.everything() if place.topic is Topic.EFFECTS]
    left = [[raw.offset for raw in kafka_records(stage.rig, place)] for place in places]
    return sum(offsets[-1] + 1 - len(offsets) for offsets in left if offsets)


def found(stage: Stage) -> set[str]:
    """The promises that the checker finds broken once all is read, whatever is owed."""
    for crew in stage.crews:
        crew.stop()
    for crew in stage.crews:
        crew.finish(60)
    assert wait_until(lambda: all(row.lag_records == 0 for row in lag(stage.rig.url)), 60)
    return {violation.promise for violation in stage.findings().violations}


def test_going_back_while_another_acts(stage: Stage) -> None:
    """No authorised rollback goes back over what the other process does, and nothing that it left behind acts on."""
    two_for_the_same(stage)
    assert wait_until(lambda: len(authorised(stage)) >= 6, 90)
    stage.wait_for_hits(10)
    assert not went_on(stage)
    for crew in stage.crews:
        crew.stop()
    stage.finish()


@pytest.mark.parametrize("taken_out", ["fences"], indirect=True)
def test_without_fences(stage: Stage) -> None:
    """With nobody fenced, the same run breaks the guard's promise."""
    two_for_the_same(stage)
    assert wait_until(lambda: went_on(stage) >= 1, 90)
    assert "guard" in found(stage)


@pytest.mark.parametrize("taken_out", ["confirmation"], indirect=True)
def test_without_confirmation(stage: Stage) -> None:
    """With intents that are not confirmed, effects happen twice."""
    stage.crew("rush", **RUSH)
    assert wait_until(lambda: run_twice(stage) >= 3, 90)
    assert {"at most once", "owner"} <= found(stage)


@pytest.mark.parametrize("taken_out", ["debts"], indirect=True)
def test_without_debts(stage: Stage) -> None:
    """With debts that nobody pays, the cleaner takes acknowledged facts away."""
    stage.crew("rush", **RUSH)
    stage.wait_for_hits(30)
    assert wait_until(lambda: removed(stage) >= 60, 90)
    assert {"fold", "acknowledged"} <= found(stage)
