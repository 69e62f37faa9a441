"""Plain text of the demo: sections with the time they took, paragraphs, tables."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

WIDTH = 118


class Printer:
    """Writes to a stream, indented below numbered headings."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._sections = 0

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """A numbered section; its wall time stands at its end."""
        self._sections += 1
        self.write(f"\n{self._sections}. {title}", indent=0)
        begun = time.monotonic()
        yield
        self.write(f"[{time.monotonic() - begun:.1f} s]")

    def write(self, text: str = "", *, indent: int = 3) -> None:
        """One line, as it is."""
        print((" " * indent + text).rstrip(), file=self._out, flush=True)

    def tell(self, text: str) -> None:
        """A paragraph, wrapped."""
        for line in textwrap.wrap(" ".join(text.split()), WIDTH - 3, break_on_hyphens=False, break_long_words=False):
            self.write(line)

    def item(self, text: str) -> None:
        """An item of a list, wrapped."""
        lines = textwrap.wrap(text, WIDTH - 7, break_on_hyphens=False, break_long_words=False)
        for number, line in enumerate(lines):
            self.write(("- " if number == 0 else "  ") + line, indent=5)

    def table(self, rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
        """Columns in line; the first `left` of them to the left, the others to the right."""
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
        for row in texts:
            cells = [
                cell.ljust(width) if column < left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.write("  ".join(cells), indent=5)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 line", "2 lines"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
