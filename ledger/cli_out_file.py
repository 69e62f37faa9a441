"""Files that a command line names to be written: looked at before anything is decided."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from .cli_output import warn
from .errors import FencepostError


class OutFile(click.Path):
    """A file that can be written, as far as that can be told without writing it: what is decided cannot be taken back."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises BadParameter that says what is wrong with it."""
        path: Any = super().convert(value, param, ctx)
        folder = Path(path).parent
        if not folder.is_dir():
            self.fail(f"{str(path)!r} cannot be written: there is no folder {str(folder)!r}.", param, ctx)
        if not Path(path).exists() and not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"{str(path)!r} cannot be written: folder {str(folder)!r} may not be written to.", param, ctx)
        return path


def write_out(target: Path, text: str) -> None:
    """Write the file. Raises FencepostError when it cannot be written."""
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FencepostError(
            f"{target} cannot be written: {error.strerror or error}.",
            next_step="Name a file in a folder that exists, may be written to, and has room.",
            file=str(target),
        ) from error


def write_decided(target: Path, text: str, *, instead: str) -> bool:
    """Write what came of a decision that stands whether it is written or not; else a warning says what to do instead."""
    try:
        write_out(target, text)
    except FencepostError as error:
        warn(f"{error.message} {instead}")
        return False
    return True
