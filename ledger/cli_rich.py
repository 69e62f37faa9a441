"""Tables and progress bars on a terminal. Imported only when there is one: rich takes its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from .cli_output import Progress as Report

_TONES = {
    "in doubt": "yellow", "silent": "yellow", "warn": "yellow", "owned": "cyan", "in flight": "cyan",
    "unsafe": "red", "anomaly": "red", "refuse": "red", "ok": "green", "committed": "green",
}  # fmt: skip


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout, as wide as the terminal; long cells are folded, never cut."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_TONES.get(cell, "")) for cell in row))
    Console().print(table)


@contextmanager
def progress_bars(title: str) -> Iterator[Report]:
    """Progress on stderr: a bar for each thing that is being read, with rate and remaining time."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(f"{title} {what}", total=total or None, rate="")
            task = tasks[what]
            speed = next(t.speed for t in bars.tasks if t.id == task)
            rate = f"{speed:,.0f}/s" if speed else ""
            bars.update(task, completed=done, total=total or None, rate=rate)

        yield report
