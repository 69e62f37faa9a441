"""What every command of the command line has: global options, examples, exit codes, and loading when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from .cli_app import App

_EVERYWHERE = "Also here: --url, --json, --quiet, --debug; see `fencepost --help`."


def _remember(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Keep a global option; one further down the line counts more."""
    name = option.name or ""
    app = ctx.find_object(App)
    if app is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        setattr(app, name, value)


def _tell_version(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    del option
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version  # noqa: PLC0415 - takes its time

        click.echo(f"fencepost {version('fencepost')}")
        ctx.exit()


def _global_options(*, hidden: bool) -> list[click.Option]:
    def flag(name: str, target: str, text: str) -> click.Option:
        return click.Option(
            [name, target], is_flag=True, expose_value=False, callback=_remember, hidden=hidden, help=text
        )

    url = click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_remember,
        hidden=hidden,
        help="The ledger; without it FENCEPOST_URL, fencepost.toml, or the user's state directory.",
    )
    version = click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_tell_version,
        hidden=hidden,
        help="Print the version and leave.",
    )
    return [
        url,
        flag("--json", "as_json", "Data as one JSON object (streams: a line each), errors as JSON on stderr."),
        flag("--quiet", "quiet", "No notes and no progress on stderr; only data and errors."),
        flag("--debug", "debug", "Show the traceback of an error."),
        version,
    ]


def _add_globals(command: click.Command, *, hidden: bool = True) -> None:
    """Give the command the global options that it does not have itself."""
    taken = {name for param in command.params for name in param.opts}
    command.params += [o for o in _global_options(hidden=hidden) if not taken.intersection(o.opts)]


class Command(click.Command):
    """A command that takes the global options, and shows examples and exit codes in its help.

    Args:
        examples: command lines.
        exits: exit code → what it means here, where that matters.
    """

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), exits: Mapping[int, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._examples = examples
        self._exits = exits or {}
        _add_globals(self)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the exit codes, and where the global options are told."""
        del ctx
        _write_sections(formatter, self._examples, self._exits)
        formatter.write_paragraph()
        formatter.write_text(_EVERYWHERE)


def _write_sections(formatter: click.HelpFormatter, examples: Sequence[str], exits: Mapping[int, str]) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
    if exits:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in exits.items()])


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    hides_globals = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _add_globals(self, hidden=self.hides_globals)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of their definition."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, uncut."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in found if command is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the global options are told."""
        del ctx
        formatter.write_paragraph()
        formatter.write_text(_EVERYWHERE)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named subcommand. Raises UsageError that says which one may have been meant."""
        if args and not args[0].startswith("-") and args[0] not in (names := self.list_commands(ctx)):
            from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped name

            near = get_close_matches(args[0], names, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


class Entry(NamedTuple):
    """A command that is imported when it is used: where it is, and what the overview says of it."""

    section: str
    module: str
    attribute: str
    summary: str


class LazyGroup(Group):
    """A group whose commands are imported when they are used.

    Args:
        entries: name → where the command is.
        exits: exit codes of all commands.
    """

    hides_globals = False

    def __init__(self, *args: Any, entries: Mapping[str, Entry], exits: Mapping[int, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entries = entries
        self._exits = exits

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the overview."""
        del ctx
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        del ctx
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f".{entry.module}", __package__), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview by sections, importing nothing."""
        del ctx
        width = max(len(name) for name in self._entries)
        for section in dict.fromkeys(entry.section for entry in self._entries.values()):
            rows = [(f"{n:<{width}}", e.summary) for n, e in self._entries.items() if e.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes."""
        del ctx
        _write_sections(formatter, (), self._exits)


def leave(code: int) -> None:
    """End the command with an exit code that is not an error's."""
    if code:
        sys.stdout.flush()
        raise click.exceptions.Exit(code)
