"""Output: data on stdout, everything else on stderr.

Tables are drawn by rich on a terminal and are plain aligned text elsewhere; JSON is one object
a command, or one a line for streams, each with a `schema` field.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import IO, Any

import click

Progress = Callable[[str, int, int], None]
"""(what is being read, records done, records in all; 0 when that is not known)."""

ONLY_TOLD = (
    "This only tells: the agent's session takes it over with `replay_forward()`, so that its checkpoints know it."
)
"""What is said on stderr of effects that an agent must learn."""

_GAP = "  "
_NARROWEST = 8

Cell = str | int | float | bool | None


class Output:
    """Where a command's answer goes.

    Args:
        as_json: JSON instead of tables.
        quiet: no notes and no progress.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self._quiet = quiet
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        self._ascii = encoding != "utf8"

    # -- data --------------------------------------------------------------------------

    def data(self, payload: dict[str, Any], show: Callable[[], None]) -> None:
        """The answer: the object with `--json`, otherwise what `show` prints."""
        if self.as_json:
            self.text(self._json(payload, indent=2 if sys.stdout.isatty() else None))
        else:
            show()

    def line(self, payload: dict[str, Any], text: Callable[[], str]) -> None:
        """One line of a stream, written at once."""
        self.text(self._json(payload) if self.as_json else text())
        sys.stdout.flush()

    def _json(self, payload: dict[str, Any], *, indent: int | None = None) -> str:
        """The object as JSON; a value in it that JSON does not have is told as text."""
        values = {name: json_or_repr(value) for name, value in payload.items()}
        return json.dumps(values, ensure_ascii=self._ascii, indent=indent)

    def text(self, text: str) -> None:
        """A line of data; what stdout cannot write, half a surrogate pair too, is escaped."""
        encoding = "ascii" if self._ascii else "utf-8"
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), color=_color(sys.stdout))

    def heading(self, text: str) -> None:
        """The title of a part of the answer."""
        self.text("")
        self.text(click.style(text, bold=True))

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, empty: str, width: int | None = None
    ) -> None:
        """A table, or what to say when it has no rows.

        Args:
            width: long cells are folded so that it is no wider, where stdout is no terminal (which has its own width).
        """
        cells = [[clean(cell) for cell in row] for row in rows]
        if not cells:
            self.text(empty)
        elif sys.stdout.isatty():
            from .cli_rich import print_table  # noqa: PLC0415 - rich takes its time

            print_table(columns, cells)
        else:
            for line in _aligned([list(columns), *cells], width):
                self.text(line)

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one a line; what is None is left out."""
        shown = [(name, clean(value)) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.text(f"{click.style(f'{name:<{width}}', dim=True)}  {value}".rstrip())

    # -- everything else ---------------------------------------------------------------

    def note(self, text: str) -> None:
        """Something for the person at the terminal."""
        if not self._quiet:
            click.echo(text, err=True, color=_color(sys.stderr))

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A progress bar with rate and remaining time: on stderr, if that is a terminal."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda *_: None
            return
        from .cli_rich import progress_bars  # noqa: PLC0415 - rich takes its time

        with progress_bars(title) as bar:
            yield bar


def _color(stream: IO[str]) -> bool | None:
    """False where nothing may be coloured; None leaves it to the stream's being a terminal."""
    del stream
    return False if os.environ.get("NO_COLOR") else None


def warn(text: str) -> None:
    """Something that must be said even when notes are not wanted."""
    click.echo(text, err=True, color=_color(sys.stderr))


def clean(value: Cell) -> str:
    """A cell's text; what could move the cursor or colour the screen is shown escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _aligned(rows: Sequence[Sequence[str]], limit: int | None = None) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    while limit is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > limit and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for row in rows:
        parts = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in zip_longest(*parts, fillvalue=""):
            yield _GAP.join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)).rstrip()


def _folded(cell: str, width: int) -> list[str]:
    """The cell in lines of at most this width, none of it lost but blanks."""
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)


def when(time_ms: int) -> str | None:
    """A time for people: UTC, to the second; None when none was recorded."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(time_ms: int) -> str | None:
    """How long ago that was by this machine's clock: "3 m", "2 h", "5 d"."""
    if not time_ms:
        return None
    return duration(max(0.0, time.time() - time_ms / 1000))


def duration(seconds: float) -> str:
    """A duration for people, in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"


def json_or_repr(value: Any) -> Any:
    """The value, if JSON has such values; else what Python calls it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        try:
            return repr(value)
        except Exception:  # noqa: BLE001 - a stranger's object may raise anything
            return f"<{type(value).__name__}>"
    return value


def shortened(value: Any, limit: int = 60) -> str | None:
    """A value as JSON in one line, cut with an ellipsis."""
    value = json_or_repr(value)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
