"""The command line. Each command is in a module of its own (`cli_*.py`), imported when it is used.

Data goes to stdout, everything else to stderr. All errors are told here, in one place, and give
the exit code; nothing prints a traceback unless `--debug` asks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from .cli_app import App
from .cli_commands import Entry, LazyGroup
from .cli_output import clean, warn
from .errors import FencepostError, StoreError

_START, _LOOK, _DECIDE, _MOVE = "Start", "Look", "Decide", "Maintain"

COMMANDS = {
    "demo": Entry(_START, "cli_demo", "demo", "Play recorded agent runs without and with a ledger, in under a minute."),
    "init": Entry(_START, "cli_setup", "init", "Create the ledger and print its id."),
    "doctor": Entry(_START, "cli_setup", "doctor", "Check every guarantee that the ledger rests on."),
    "status": Entry(_LOOK, "cli_setup", "status", "Show what is where and how fresh it is."),
    "agents": Entry(_LOOK, "cli_agents", "agents", "Show agents: watermarks, sessions, branches, rollbacks."),
    "ops": Entry(
        _LOOK, "cli_operations", "ops", "Show operations with every fact and attempt; `ops tail` follows the log."
    ),
    "checkpoints": Entry(_LOOK, "cli_checkpoints", "checkpoints", "Show the checkpoints that agents have registered."),
    "compactions": Entry(_LOOK, "cli_context", "compactions", "Show compactions of contexts, and what each dropped."),
    "replay": Entry(_LOOK, "cli_transfer", "replay", "List what an agent has done since a checkpoint, with results."),
    "rollback": Entry(_DECIDE, "cli_rollback", "rollback", "Decide whether an agent may go back to a checkpoint."),
    "resume": Entry(_DECIDE, "cli_context", "resume", "Decide whether a restored context is whole: `resume check`."),
    "branch": Entry(
        _DECIDE,
        "cli_branches",
        "branch",
        "Show, fork, and prune branches, and what they left behind: `branch fork`, `branch prune`.",
    ),
    "compensate": Entry(_DECIDE, "cli_compensate", "compensate", "Undo effects by plans that are approved by name."),
    "in-doubt": Entry(_DECIDE, "cli_in_doubt", "in_doubt", "Settle operations of which nobody knows the outcome."),
    "projector": Entry(_MOVE, "cli_projector", "projector", "Run, watch, rebuild, and verify the projection."),
    "bench": Entry(_MOVE, "cli_bench", "bench", "Measure the ledger on this machine, with its costs and the noise."),
    "export": Entry(_MOVE, "cli_transfer", "export", "Write a settled ledger as lines of JSON."),
    "import": Entry(_MOVE, "cli_transfer", "import_", "Bring an export into an empty ledger."),
}

EXITS = {
    0: "done, or authorised",
    1: "error",
    2: "the call is wrong",
    3: "refused as unsafe",
    4: "needs a human: in doubt, or not as it should be",
    5: "not found",
    6: "conflict: the state moved or is taken",
    7: "the store is unavailable, or the projection too stale",
    130: "interrupted",
}
_HELP: tuple[type[click.UsageError], ...] = tuple(
    kind for kind in (getattr(click.exceptions, "NoArgsIsHelpError", None),) if kind is not None
)  # click before 8.2 prints the help of a group without arguments itself
INTERRUPTED = 130
PIPE_CLOSED = 141
_NO_TOPIC = re.compile(r"\bhas no (usable )?topic\b")
_TO_INIT = "Run `fencepost init`, or correct the prefix in the URL."


class Root(LazyGroup):
    """The command `fencepost`: runs a command line, tells its errors, and exits."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run and exit with the command's code; see `EXITS`."""
        arguments = list(sys.argv[1:] if args is None else args)
        app = extra.pop("obj", None) or App()
        try:
            code = super().main(arguments, prog_name or "fencepost", standalone_mode=False, obj=app, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            code = _pipe_closed()
        except Exception as error:  # noqa: BLE001 - the outermost place: every error is told, and is an exit code
            code = _tell(error, as_json=app.as_json or _wants_json(arguments), debug=app.debug)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the options; help and version are printed here. Exits when nobody reads them."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError as error:
            raise SystemExit(_pipe_closed()) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises Exit when nobody reads its output any more."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise click.exceptions.Exit(_pipe_closed()) from error


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether JSON was asked for, when the options could not be read."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _pipe_closed() -> int:
    """The reader of stdout is gone, as in `fencepost ops list | head`: stop without a word."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _tell(error: Exception, *, as_json: bool, debug: bool) -> int:
    """Tell an error on stderr; its exit code."""
    if debug:
        import traceback  # noqa: PLC0415 - only with --debug

        traceback.print_exception(error)
    if isinstance(error, click.Abort):
        warn("Interrupted.")
        return INTERRUPTED
    if isinstance(error, _HELP):
        error.show()
        return error.exit_code
    values, code = _described(error)
    if as_json:
        warn(json.dumps(values))
        return code
    if isinstance(error, click.UsageError) and error.ctx is not None:
        warn(error.ctx.get_usage())
    warn(f"{click.style('Error:', fg='red', bold=True)} {clean(values['message'])}")
    if values["next_step"]:
        warn(f"{click.style('Next:', bold=True)}  {clean(values['next_step'])}")
    return code


def _described(error: Exception) -> tuple[dict[str, Any], int]:
    """The error as plain data, in the one form of all errors, and its exit code."""
    if isinstance(error, FencepostError):
        told = error.to_dict()
        return (told | {"next_step": _TO_INIT} if _no_topics(error) else told), error.exit_code
    values = {
        "schema": "fencepost.error.v1",
        "error": type(error).__name__,
        "message": f"unexpected {type(error).__name__}: {error}",
        "next_step": "Run it again with --debug to see where it comes from.",
        "retryable": False,
        "details": {},
    }
    if not isinstance(error, click.ClickException):
        return values, 1
    values["message"] = error.format_message()
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
    values["next_step"] = f"See `{path} --help`." if path else ""
    return values, error.exit_code


def _no_topics(error: FencepostError) -> bool:
    """Whether it says that the topics of the ledger do not exist."""
    if not isinstance(error, StoreError):
        return False
    missing = [c for c in error.details.get("checks", ()) if c["name"].endswith(": exists") and not c["ok"]]
    return bool(missing) or _NO_TOPIC.search(error.message) is not None


cli = Root(
    name="fencepost",
    entries=COMMANDS,
    exits=EXITS,
    help="The ledger of what agents did to the outside world, and of which rollbacks are safe.",
    no_args_is_help=True,
    context_settings={"max_content_width": 100},
)


def main() -> None:
    """The entry point of `fencepost`."""
    cli.main()


if __name__ == "__main__":
    main()
