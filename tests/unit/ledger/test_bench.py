"""The numbers of a benchmark: medians, percentiles, costs by part, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.ledger import bench
from fencepost.ledger.bench_embedded import as_round, meter
from fencepost.ledger.bench_load import DUPLICATE, GUARDED, THREADS, Done, Load
from fencepost.ledger.bench_machine import Meter, Spent, calibrate, listeners
from fencepost.ledger.bench_rows import Round, Settings, cells, percentile_ms, spread, summary
from fencepost.ledger.errors import InvalidArgumentError, StoreError

BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('done', flush=True); input()"


def test_the_median_is_told_with_its_ends() -> None:
    """One slow round moves the end of the spread, not the median."""
    rounds = [
        Round(100, seconds, [1_000_000] * 99 + [9_000_000], Spent({"client": 0.1}, 0.5)) for seconds in (1, 2, 10)
    ]
    told = summary(rounds)
    assert told["per_s"] == {"median": 50.0, "low": 10.0, "high": 100.0}
    assert told["p50_ms"]["median"] == 1.0
    assert told["p99_ms"]["median"] == 9.0
    assert told["cpu_us"]["client"]["median"] == 1000.0
    assert told["others_share"]["median"] == 0.5


def test_what_was_not_measured_is_none() -> None:
    """A row without single operations, on a system that tells no costs, says so and still has a line in the table."""
    told = summary([Round(10, 2.0, (), Spent({}, None))])
    assert told["p50_ms"] is told["p99_ms"] is told["others_share"] is None
    assert told["cpu_us"] == {}
    assert cells({"row": "r", "size": {"events": 10}, **told})[:3] == ["r", "events=10", "5"]
    assert spread([], 1) is None


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 51.0), (0.99, 100.0), (1.0, 100.0)])
def test_percentiles(share: float, expected: float) -> None:
    """A percentile is a latency that was measured, in milliseconds."""
    assert percentile_ms([n * 1_000_000 for n in range(100, 0, -1)], share) == expected


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="costs are read from /proc")
def test_a_tree_inside_another_part_counts_for_itself() -> None:
    """What a child of this process costs is the projector's if it is one, and the client's otherwise."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=pipe, stdout=pipe, text=True)
    try:
        apart = Meter({"client": [os.getpid()], "projector": [child.pid]})
        together = Meter({"client": [os.getpid()]})
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        mine, all_of_it = apart.spent(), together.spent()
    finally:
        child.communicate("\n", timeout=30)
    assert mine.cpu_s["projector"] > 0.2
    assert mine.cpu_s["client"] < all_of_it.cpu_s["client"] - 0.2


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="listeners are read from /proc")
def test_a_server_is_found_by_its_port() -> None:
    """The process that listens on a port is named; one that does not is not."""
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listeners([server.getsockname()[1]]) == [os.getpid()]
    assert listeners([]) == []


@pytest.mark.parametrize(("work", "ran"), [(GUARDED, 9), (GUARDED, 11), (DUPLICATE, 1)])
def test_a_wrong_count_is_no_result(work: str, ran: int) -> None:
    """A benchmark whose effects did not run as they should tells no rate."""
    load = Load(url="", face=THREADS, work=work, agents=2, operations=5)
    with pytest.raises(StoreError, match=f"{ran} effects ran"):
        as_round(load, Done(1.0, [1] * 10, ran), meter())


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    """A mistyped row is an error with a next step, and so is one whose store has no URL."""
    with pytest.raises(InvalidArgumentError, match="there is no row"):
        bench.chosen(["embeded"], Settings(directory=tmp_path))
    with pytest.raises(InvalidArgumentError, match="needs a ledger URL"):
        bench.chosen(["kafka.threads"], Settings(directory=tmp_path))
    assert [row.name for row in bench.chosen(["embedded.threads"], Settings(directory=tmp_path))] == [
        "embedded.threads.1", "embedded.threads.8", "embedded.threads.64", "embedded.threads.64x4",
    ]  # fmt: skip


def test_names_are_unique() -> None:
    """A name chooses one row."""
    names = [row.name for row in bench.all_rows()]
    assert len(names) == len(set(names))


def test_calibration_leaves_nothing(tmp_path: Path) -> None:
    """The machine is measured by a loop and by synced writes, which are taken away again."""
    found = calibrate(tmp_path)
    assert found.loop_ns > 0
    assert found.sync_ms > 0
    assert list(tmp_path.iterdir()) == []
