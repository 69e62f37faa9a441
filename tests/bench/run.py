"""Fencepost and what a user would pick instead, in one run on one machine: `make bench`.

    PYTHONPATH=tests python -m bench.run [--kafka HOST:PORT --redis redis://HOST:PORT/0] [--rounds 5] [--scale 1] [--only NAME]
                                         [--lines FILE] [--markdown FILE]

Every line of every part goes to --lines as it is measured; the table at the end has all of them, and the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fencepost.ledger.bench_rows import COLUMNS, cells

SCRIPTS = ("sqlite_alone", "redis_alone", "dbos_on_sqlite", "eventsourcing_on_sqlite", "kafka_floor", "raw_chain",
           "quixstreams_projection")  # fmt: skip


class Ratio(NamedTuple):
    """Two rows of one run, compared by a rate or a latency; `wanted` is what the project aims at."""

    row: str
    other: str
    field: str
    wanted: str


RATIOS = (
    Ratio("embedded.asyncio.64", "baseline.sqlite.group.asyncio.64", "per_s", "at least 0.6"),
    Ratio("embedded.asyncio.64", "baseline.dbos.64", "per_s", "at least 40"),
    Ratio("embedded.threads.64", "baseline.sqlite.group.threads.64", "per_s", "at least 0.8"),
    Ratio("embedded.threads.1", "baseline.sqlite.1", "p50_ms", "at most 1.5"),
    Ratio("kafka.threads.1", "baseline.kafka.threads.1", "p50_ms", "at most 1.6"),
    Ratio("kafka.asyncio.64", "baseline.kafka.asyncio.64", "per_s", "at least 0.6"),
    Ratio("kafka.threads.64", "baseline.kafka.threads.64", "per_s", "at least 0.8"),
    Ratio("kafka.projector.live", "baseline.chain", "per_s", "at least 1"),
    Ratio("kafka.projector.live", "baseline.quixstreams", "per_s", "at least 2"),
    Ratio("kafka.projector.rebuild.two", "kafka.projector.rebuild", "per_s", "at least 1.5"),
    Ratio("embedded.grown.1m", "embedded.grown.10k", "p50_ms", "about 1"),
    Ratio("kafka.grown.1m", "kafka.grown.10k", "p50_ms", "about 1"),
)


def commands(options: argparse.Namespace) -> Iterator[list[str]]:
    """The parts of the run."""
    common = ["--rounds", str(options.rounds), "--scale", str(options.scale), "--directory", str(options.directory)]
    services = ["--kafka", options.kafka, "--redis", options.redis] if options.kafka else []
    names = [name for name in options.only if name not in SCRIPTS]
    rows = [word for name in names for word in ("--row", name)]
    url = f"kafka://{options.kafka}/bench-{uuid.uuid4().hex[:6]}?projection={options.redis}&development=1"
    to = ["--url", url] if options.kafka else []
    if names or not options.only:
        yield [sys.executable, "-m", "fencepost.ledger.cli", "bench", "--json", *common, *to, *rows]
    for script in SCRIPTS:
        if not options.only or script in options.only:
            yield [sys.executable, "-m", f"bench.{script}", *common, *services]


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each line, as it comes."""
    for command in commands(options):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as part:
            for line in part.stdout or ():
                yield json.loads(line)
        if part.returncode:
            print(f"a part failed ({part.returncode}): {' '.join(command)}", file=sys.stderr)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of earlier runs; of a row that was measured again, the newest."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    yield from {line["row"]: line for line in lines}.values()


def ratios(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The comparisons whose two rows were both measured."""
    by_name = {result["row"]: result for result in results if "problem" not in result}
    found = []
    for one in RATIOS:
        mine, other = by_name.get(one.row), by_name.get(one.other)
        if mine is not None and other is not None and mine[one.field] and other[one.field]:
            value = mine[one.field]["median"] / other[one.field]["median"]
            found.append([one.row, one.other, one.field, f"{value:.2f}", one.wanted])
    return found


def markdown(calibration: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    """What was measured, as a page."""
    machine = (
        f"Measured at {calibration['time']} by `make bench`: {calibration['processors']} processors, Python "
        f"{calibration['python']}, {calibration['system']}; a step of a Python loop takes {calibration['loop_ns']:.0f} ns, "
        f"4 KiB are synced in {calibration['sync_ms']:.2f} ms (p99 {calibration['sync_ms_p99']:.2f}). "
    )
    lines = [
        "# Benchmarks",
        "",
        machine,
        "Medians; `low-high` is the spread over the rounds, `others` the share of all processors that other programs took.",
        "",
        *_table(COLUMNS, [[cell or "" for cell in cells(result)] for result in results]),
        "",
        "| row | compared with | by | ratio | aim |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in ratios(results)),
    ]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kafka", default="", help="host:port")
    parser.add_argument("--redis", default="", help="redis://host:port/0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=Path("/tmp"))
    parser.add_argument("--only", action="append", default=[], help="a row of the ledger, or a script's name")
    parser.add_argument("--lines", type=Path, help="JSON lines, appended")
    parser.add_argument("--markdown", type=Path, help="a page with what was measured")
    parser.add_argument("--read", action="store_true", help="measure nothing: show what --lines has")
    options = parser.parse_args()
    calibration: dict[str, Any] = {}
    results = []
    for line in read(options.lines) if options.read else measured(options):
        if options.lines and not options.read:
            with options.lines.open("a") as out:
                out.write(json.dumps(line) + "\n")
        if line["row"] == "calibration":
            calibration = line
        else:
            results.append(line)
            print("  ".join(cell or "-" for cell in cells(line)), flush=True)
    for row in ratios(results):
        print("  ".join(row))
    if options.markdown and calibration:
        options.markdown.write_text(markdown(calibration, results))


if __name__ == "__main__":
    main()
