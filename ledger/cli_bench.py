"""`fencepost bench`."""

from __future__ import annotations

import logging
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import click

from .cli_app import App
from .cli_commands import Command, leave

_ROUNDS = 5
_QUICK_SCALE = 0.002


@click.command(
    cls=Command,
    examples=(
        "fencepost bench --row embedded.asyncio",
        "fencepost bench --json --rounds 7 > bench.jsonl",
        "fencepost bench --url 'kafka://host:9092/bench?projection=redis://host:6379/0&development=1'",
    ),
    exits={0: "every row was measured", 1: "a row could not be"},
)
@click.option(
    "--row", "names", multiple=True, metavar="NAME", help="Only this row, or those that begin with it; again for more."
)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=_ROUNDS, show_default=True, help="Of each row; medians are shown."
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor on the size of every row.",
)
@click.option("--quick", is_flag=True, help="One small round of each row: shows that it runs, and measures nothing.")
@click.option("--list", "listing", is_flag=True, help="Name the rows and leave.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="Where ledgers are made and thrown away: its disk is measured. The temporary directory if not given.",
)
@click.pass_obj
def bench(
    app: App, *, names: tuple[str, ...], rounds: int, scale: float, quick: bool, listing: bool, directory: Path | None
) -> None:
    """Measure the ledger on this machine: rates, latencies, what it costs, and how busy others kept the machine.

    The embedded rows make ledgers of their own. Those on Kafka and Redis need --url; each makes topics beside the
    ones that it names and leaves them behind. The configured ledger is left alone.
    """
    from . import bench as benchmark  # noqa: PLC0415 - takes its time
    from .bench_rows import Settings  # noqa: PLC0415 - takes its time

    # Each row opens ledgers of its own on what the caller chose; that they are development ones needs no repeating.
    logging.getLogger("fencepost.store").setLevel(logging.ERROR)
    kafka_url = app.url if app.url and app.url.startswith("kafka:") else ""
    settings = Settings(
        directory=directory or Path(tempfile.gettempdir()),
        kafka_url=kafka_url,
        rounds=1 if quick else rounds,
        scale=_QUICK_SCALE if quick else scale,
    )
    if listing:
        _list(app)
        return
    rows = benchmark.chosen(names, settings)
    first = benchmark.calibration(settings)
    results = []
    app.out.line(first, lambda: _calibrated(first))
    for result in benchmark.run(rows, settings):
        results.append(result)
        if app.as_json:
            app.out.line(result, lambda: "")
        else:
            app.out.note(_told(result))
    if not app.as_json:
        from .bench_rows import COLUMNS, cells  # noqa: PLC0415 - takes its time

        app.out.table(COLUMNS, [cells(result) for result in results], empty="nothing was measured")
    leave(int(any("problem" in result for result in results)))


def _list(app: App) -> None:
    from .bench import all_rows  # noqa: PLC0415 - takes its time

    for row in all_rows():
        payload = {"schema": "fencepost.bench-row.v1", "row": row.name, "store": row.store, "what": row.what}
        app.out.line(payload, partial(_named, row.name, row.what))


def _named(name: str, what: str) -> str:
    return f"{name:<36}{what}"


def _calibrated(line: dict[str, Any]) -> str:
    return (
        f"{line['time']}  Python {line['python']}, {line['processors']} processors: a step of a loop {line['loop_ns']:.1f} ns, "
        f"4 KiB synced in {line['sync_ms']:.2f} ms (p99 {line['sync_ms_p99']:.2f})"
    )


def _told(result: dict[str, Any]) -> str:
    if "problem" in result:
        return f"{result['row']}: {result['problem']}"
    return f"{result['row']}: {result['per_s']['median']:,.0f}/s in {result['took_s']:.0f} s"
