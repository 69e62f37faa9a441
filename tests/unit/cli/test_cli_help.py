"""Help, global options, and errors of the command line; no ledger is opened here."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner, Result

from fencepost.ledger import cli, cli_setup
from fencepost.ledger.cli_app import App
from fencepost.ledger.errors import FencepostError, GuaranteeError, StoreUnavailableError, UnsafeRollbackError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAVY = ("apsw", "redis", "confluent_kafka", "pydantic", "rich", "fastavro", "asyncio")


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.cli, list(args))


def walk(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


ALL = list(walk(cli.cli))
LEAVES = [(path, command) for path, command in ALL if not isinstance(command, click.Group)]


def test_every_command_is_there() -> None:
    """The command line has exactly the commands that its reference lists."""
    assert {" ".join(path) for path, _ in LEAVES} == {
        "demo", "init", "doctor", "status", "agents list", "agents show", "ops list", "ops show", "ops tail",
        "checkpoints list", "checkpoints show", "checkpoints latest",
        "compactions list", "compactions show", "resume check", "replay", "rollback preview", "rollback authorize", "rollback held", "rollback declare", "branch list",
        "compensate list", "compensate plan", "compensate approve", "compensate verify", "compensate run",
        "branch fork", "branch prune", "branch adopt", "branch release", "branch acknowledge", "branch obligations", "branch report",
        "in-doubt list", "in-doubt show", "in-doubt probe", "in-doubt resolve", "projector run",
        "projector lag", "projector rebuild", "projector verify", "projector quarantine list", "projector quarantine show",
        "projector quarantine release", "bench", "export", "import",
    }  # fmt: skip


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_help_of_every_command(path: tuple[str, ...], command: click.Command) -> None:
    """Every help opens with one sentence; that of a command has an example which begins with the command itself."""
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    sentence = (command.help or "").partition("\n\n")[0].strip()
    assert sentence.endswith(".")
    assert "Also here: --url, --json, --quiet, --debug" in result.stdout
    if not isinstance(command, click.Group):
        assert "Examples:" in result.stdout
        assert f"fencepost {' '.join(path)}" in result.stdout
    assert all(len(line) <= 120 for line in result.stdout.splitlines())


def test_overview_names_every_command_and_exit_code() -> None:
    """`fencepost --help` lists every command of the first level and every exit code."""
    text = run("--help").stdout
    for name in cli.COMMANDS:
        assert f"  {name} " in text
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 130):
        assert f"  {code} " in text
    for name in ("ops tail", "branch fork", "branch prune"):
        assert f"`{name}`" in text


def test_without_a_command_the_help_is_told() -> None:
    """No command is a wrong call: exit code 2, with the help on stderr."""
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Exit codes:" in result.stderr


def test_version() -> None:
    """`--version` is the installed version, before and after a command."""
    expected = f"fencepost {version('fencepost')}\n"
    assert run("--version").stdout == expected
    assert run("ops", "list", "--version").stdout == expected


@pytest.mark.parametrize("path", [path for path, _ in ALL], ids=[" ".join(path) for path, _ in ALL])
def test_nothing_heavy_is_imported_for_help(path: tuple[str, ...]) -> None:
    """No help needs a client library, a terminal library, or an event loop."""
    code = (
        "import sys\nfrom fencepost.ledger.cli import cli\n"
        f"try:\n    cli.main({[*path, '--help']!r})\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_start_is_fast(argument: str) -> None:
    """The overview and the version take less than a quarter of a second of work (of the best run: it is shared)."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "fencepost.ledger.cli", argument], capture_output=True, check=True, timeout=30
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.25


def test_mistyped_command() -> None:
    """A mistyped command is a wrong call, and the nearest name is told."""
    result = run("agnets")
    assert result.exit_code == 2
    assert "Did you mean 'agents'?" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--json", "ops", "show"),
        ("ops", "--json", "show"),
        ("ops", "show", "--json"),
        ("agnets", "--json"),
        ("ops", "list", "--status", "odd", "--json"),
    ],
)
def test_usage_errors_as_json(args: tuple[str, ...]) -> None:
    """With --json, wherever it stands, a wrong call is told as the one form of error."""
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    values = json.loads(result.stderr)
    assert values["schema"] == "fencepost.error.v1"
    assert set(values) == {"schema", "error", "message", "next_step", "retryable", "details"}


def test_json_behind_two_dashes_is_an_argument() -> None:
    """What stands behind `--` is no option: the error is told as text."""
    result = run("agnets", "--", "--json")
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage:")


@pytest.mark.parametrize(
    "args",
    [
        ("in-doubt", "resolve", "op", "--version", "1", "--evidence", "e", "--by", "b"),
        ("in-doubt", "resolve", "op", "--version", "1", "--evidence", "e", "--by", "b", "--absent", "--committed"),
        ("in-doubt", "resolve", "op", "--version", "1", "--evidence", "e", "--by", "b", "--absent", "--result", "1"),
        ("in-doubt", "resolve", "op", "--version", "1", "--evidence", "e", "--by", "b", "--committed", "--accept-risk"),
        ("in-doubt", "resolve", "op", "--version", "1", "--evidence", "e", "--by", "b", "--committed", "--result", "{"),
        ("in-doubt", "resolve", "op", "--committed"),
        ("rollback", "authorize", "nightly"),
        ("rollback", "authorize", "nightly", "--checkpoint", "c", "--policy", "bold"),
        ("branch", "fork", "nightly", "plan-b"),
        ("replay", "nightly"),
    ],
)
def test_wrong_calls(args: tuple[str, ...], tmp_path: Path) -> None:
    """A call that is wrong in itself is exit code 2, before any ledger is looked for."""
    result = run("--url", f"sqlite://{tmp_path}/l.db", *args)
    assert result.exit_code == 2, result.stderr
    assert "--help" in result.stderr


# -- errors ----------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command("status")
    def status() -> None:
        raise error

    monkeypatch.setattr(cli_setup, "status", status)


def test_errors_of_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger's error is its message and the next step on stderr, and its own exit code."""
    failing(monkeypatch, UnsafeRollbackError("it is refused.", next_step="Settle it."))
    result = run("status")
    assert result.exit_code == 3
    assert (result.stdout, result.stderr) == ("", "Error: it is refused.\nNext:  Settle it.\n")
    result = run("--json", "status")
    assert result.exit_code == 3
    assert json.loads(result.stderr)["error"] == "UnsafeRollbackError"


@pytest.mark.parametrize(
    "error",
    [
        GuaranteeError("bad.", next_step="Look.", checks=[{"name": "p.effects: exists", "ok": False}]),
        StoreUnavailableError("Kafka at k:1 does not answer as it should: it has no topic p.effects.", next_step="?"),
    ],
)
def test_missing_topics_lead_to_init(monkeypatch: pytest.MonkeyPatch, error: FencepostError) -> None:
    """Where the topics do not exist the next step is to create them, or to look at the URL."""
    failing(monkeypatch, error)
    assert "Next:  Run `fencepost init`" in run("status").stderr
    assert json.loads(run("--json", "status").stderr)["next_step"].startswith("Run `fencepost init`")


def test_other_broken_guarantees_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that are there are not created."""
    failing(monkeypatch, GuaranteeError("bad.", next_step="Look.", checks=[{"name": "p: replicas", "ok": False}]))
    assert "Next:  Look." in run("status").stderr


def every(kind: type[FencepostError]) -> Iterator[type[FencepostError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every(below)


@pytest.mark.parametrize("kind", list(every(FencepostError)))
def test_every_error_has_a_listed_exit_code(kind: type[FencepostError]) -> None:
    """Whatever a ledger raises, its exit code is one that the help explains."""
    assert kind.exit_code in cli.EXITS
    assert kind.exit_code not in (0, 130)


def test_unexpected_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expected is one line, and a traceback only with --debug."""
    failing(monkeypatch, RuntimeError("first\nsecond"))
    result = run("status")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: unexpected RuntimeError: first\\nsecond",
        "Next:  Run it again with --debug to see where it comes from.",
    ]
    result = run("--debug", "status")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is exit code 130 and no traceback."""
    failing(monkeypatch, KeyboardInterrupt())
    result = run("status")
    assert result.exit_code == 130
    assert result.stderr.strip() == "Interrupted."


def test_messages_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters in what is told are shown, not sent."""
    failing(monkeypatch, GuaranteeError("bad \x1b[2J name", next_step="Look.", checks=[]))
    assert "\x1b" not in run("status").stderr


def test_url_is_shown_without_its_password() -> None:
    """A password in a URL, of the log's or the projection's, does not reach any output."""
    url = "kafka://u:secret@k:9092/p?projection=redis://:hidden@r:6379/0"
    shown = App(url=url).shown_url()
    assert "secret" not in shown
    assert "hidden" not in shown
    assert shown == "kafka://u:***@k:9092/p?projection=redis://:***@r:6379/0"
    quoted = App(url="kafka://k:9092/p?projection=redis%3A%2F%2Fu%3Ahidden%40r%3A6379").shown_url()
    assert "hidden" not in quoted
