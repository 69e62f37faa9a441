"""`fencepost replay`, `export`, and `import`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TextIO

import click

from .cli_app import App
from .cli_commands import Command
from .cli_given import decoded
from .cli_output import ONLY_TOLD, shortened
from .errors import FencepostError


@click.command(
    cls=Command,
    examples=(
        "fencepost replay nightly --since ckpt-42",
        "fencepost replay nightly --since \"$(cat token.txt)\" --json | jq '.operations[].result'",
    ),
    exits={0: "done", 3: "the token is damaged or another ledger's", 5: "no such agent, branch, or checkpoint"},
)
@click.argument("agent_id", metavar="AGENT")
@click.option("--since", metavar="CHECKPOINT|TOKEN", required=True, help="What is known already.")
@click.option("--branch", "branch_id", metavar="BRANCH", help="Only what was done on this branch.")
@click.pass_obj
def replay(app: App, agent_id: str, since: str, branch_id: str | None) -> None:
    """List the operations that a checkpoint does not know, in order, with recorded results. Runs nothing."""
    with app.ledger() as ledger:
        found = [op.to_dict() for op in ledger.replay_forward(agent_id, since=since, branch=branch_id)]
    columns = ("EPOCH", "SEQ", "OPERATION", "TOOL", "CLASS", "STATUS", "BRANCH", "OWN", "RESULT")
    rows = [
        (
            op["epoch"], op["seq"], op["op_id"], op["tool"], op["effect_class"], op["status"], op["branch_id"] or None,
            op["own"], shortened(op["result"]) if op["result_form"] == "JSON" else op["result_form"].lower(),
        )
        for op in found
    ]  # fmt: skip
    payload = {"schema": "fencepost.replay.v1", "agent_id": agent_id, "since": since, "operations": found}
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="Nothing: the checkpoint knows it all."))
    if found:
        app.out.note(ONLY_TOLD)


@click.command(
    cls=Command,
    examples=("fencepost export ledger.ndjson", "fencepost export | zstd > ledger.ndjson.zst"),
    exits={0: "done", 1: "the file cannot be written", 7: "the ledger is not settled"},
)
@click.argument("file", metavar="[FILE|-]", default="-", type=click.Path(dir_okay=False, allow_dash=True))
@click.pass_obj
def export(app: App, file: str) -> None:
    """Write a settled ledger as lines of JSON, facts byte for byte; the last line seals it."""
    with app.ledger() as ledger, _written(file) as out, app.out.progress("export") as bar:
        keys = ledger.export(out, progress=bar)
    if file == "-":
        app.out.note(f"{keys} keys exported.")
        return
    payload = {"schema": "fencepost.export_summary.v1", "file": file, "keys": keys}
    app.out.data(payload, lambda: app.out.fields((("file", file), ("keys", keys))))


@contextlib.contextmanager
def _written(file: str) -> Iterator[TextIO]:
    """Where the export goes. A file appears under its name when it is complete, not before.

    Raises FencepostError when it cannot be written.
    """
    if file == "-":
        yield sys.stdout
        return
    target = Path(file)
    partial = target.with_name(f"{target.name}.part")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as out:
            yield out
        partial.replace(target)
    except OSError as error:
        raise FencepostError(
            f"{file} cannot be written: {error.strerror or error}.",
            next_step="Name a file in a folder that exists, may be written to, and has room.",
            file=file,
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@click.command(
    "import",
    cls=Command,
    examples=("fencepost import ledger.ndjson --url sqlite:///srv/ledger/new.db", "zstdcat x.zst | fencepost import"),
    exits={0: "done", 2: "the file is damaged; nothing was written", 6: "the ledger is not empty", 7: "no answer"},
)
@click.argument("file", metavar="[FILE|-]", default="-", type=click.File(encoding="utf-8"))
@click.option("--partitions", type=click.IntRange(1, 10_000), default=12, show_default=True, help="See `init` (Kafka).")
@click.option("--development", is_flag=True, help="See `init` (Kafka).")
@click.pass_obj
def import_(app: App, file: IO[str], partitions: int, development: bool) -> None:
    """Bring an export into a ledger that is created for it, under the next log generation."""
    from .facade import Ledger  # noqa: PLC0415 - takes its time

    with app.out.progress("import") as bar, decoded(file, "FILE"):
        keys = Ledger.import_(app.url, file, partitions=partitions, development=development, progress=bar)
    url = app.shown_url()
    payload = {"schema": "fencepost.import.v1", "url": url, "keys": keys}
    app.out.data(payload, lambda: app.out.fields((("ledger", url), ("keys", keys))))
