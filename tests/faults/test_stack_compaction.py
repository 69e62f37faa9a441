"""The log cleaner at work under living agents: what it leaves says the same as all that was ever written.

That a loser behind a commit cannot erase it, that a rebuild over gaps gives the same bytes, and that an unseen record which
was compacted stops its partition, stands in `tests/integration/test_projector_compaction.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.stack.stage import Stage, create, kafka_records
from projection_kit import FAST_COMPACTION, Rig, drop, effect, projector

from fencepost.deploy.processes import wait_until
from fencepost.ledger import history
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.history import PositionedFact, Record
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Status
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import OPS, read_history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LAG_MS = 3_000
PLACE = Partition(Topic.EFFECTS, 0)


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    """A ledger whose log is cleaned as soon as its lag allows."""
    rig = create(kafka_bootstrap, redis_url, partitions=1, lag_ms=LAG_MS)
    for topic in Topic:
        rig.configure(topic, **{name.replace(".", "_"): value for name, value in FAST_COMPACTION.items()})
    return rig


@pytest.fixture
def stage(rig: Rig, tmp_path: Path) -> Iterator[Stage]:
    with Stage(rig, tmp_path).playing() as stage:
        stage.project()
        yield stage.open()


def removed(stage: Stage) -> int:
    """How many of the offsets so far are gone from the log."""
    gone = 0
    for partition in stage.rig.everything():
        offsets = [raw.offset for raw in kafka_records(stage.rig, partition)]
        gone += offsets[-1] + 1 - len(offsets) if offsets else 0
    return gone


def test_agents_work_while_the_log_is_cleaned(stage: Stage) -> None:
    """fold(what is left) = fold(everything) = projection, before and after a rebuild; nothing acknowledged is gone."""
    crew = stage.crew("work", groups=[["a", "b"], ["c", "d"]], count=10_000, pause_s=0.02)
    stage.wait_for_hits(20)
    assert wait_until(lambda: removed(stage) > 50, 60), removed(stage)
    for partition in stage.rig.everything():
        drop(stage.rig, partition)
    stage.wait_for_hits(20)
    crew.stop()
    before = stage.finish()
    assert before.marks["removed by compaction"] > 50
    assert before.marks["absorbed"] > 0


def test_a_stale_re_assertion_behind_a_commit(rig: Rig) -> None:
    """A projector's re-assertion that knows less lands after a commit, and only it would survive: the commit stands."""
    with projector(rig.url):
        first = effect(EffectKind.INTENDED, "op", "a1", seq=1)
        at = rig.write(Topic.EFFECTS, "op", first)
        stale = (PositionedFact(Position(0, at), first),)
        committed_at = rig.write(Topic.EFFECTS, "op", effect(EffectKind.COMMITTED, "op", "a1", seq=2), stale)
        rig.check()
        late = rig.write_raw(PLACE, b"op", history.encode(Record("op", stale, None, "projector")))
        assert late > committed_at
        rig.check()
        assert wait_until(lambda: _left(rig, "op") == 1, 60), "the cleaner has not been there"
        for partition in rig.everything():
            drop(rig, partition)
        assert wait_until(lambda: all(header.opened for header in rig.headers().values()), 30)
        rig.check()
        operation = fold_operation("op", read_history(rig.projected()[PLACE][DocumentKey(OPS, "op")]))
    assert operation.status is Status.COMMITTED
    assert operation.attempts["a1"].state is AttemptState.COMMITTED


def _left(rig: Rig, key: str) -> int:
    """How many records of a key are left; writes filler, since only appending lets a segment end."""
    rig.write(Topic.EFFECTS, "filler", effect(EffectKind.INTENDED, "filler", "same"))
    return sum(raw.key == key.encode() for raw in kafka_records(rig, PLACE))
