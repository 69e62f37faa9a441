"""What a command line names to be read: text in files, and objects in modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import click

from .errors import InvalidArgumentError


def text_of(file: IO[str], name: str) -> str:
    """All of the file's text. Raises BadParameter, naming the file, unless it is UTF-8."""
    with decoded(file, name):
        return file.read()


@contextlib.contextmanager
def decoded(file: IO[str], name: str) -> Iterator[None]:
    """Raises BadParameter, naming the file, when it turns out not to be UTF-8 while it is read."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"{file.name} is not UTF-8 text.", click.get_current_context(), param_hint=name
        ) from error


def imported(target: str, option: str) -> Any:
    """What MODULE[:NAME] names, imported with the working directory on the path; without NAME what the option means.

    Raises InvalidArgumentError that names the option.
    """
    module, _, name = target.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise bad_module(f"{target!r} is not the name of a module, as `import` takes it", option)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
        for part in (name or {"module": "probes"}.get(option, option)).split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise bad_module(f"{target!r} cannot be loaded ({error})", option) from error
    return found


def bad_module(why: str, option: str) -> InvalidArgumentError:
    """The error for an option that names no such thing."""
    return InvalidArgumentError(
        f"{option}: {why}.", next_step=f"Name it like --{option} package.module:function.", field=option
    )
