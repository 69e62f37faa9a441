"""`fencepost demo`."""

from __future__ import annotations

import sys

import click

from .cli_app import App
from .cli_commands import Command, leave

_TASKS = 50


@click.command(
    cls=Command,
    examples=(
        "fencepost demo",
        "fencepost demo --store kafka --url 'kafka://host:9092/demo?projection=redis://host:6379/0'",
    ),
    exits={0: "the promise held", 1: "an operation ran more than once, or world and ledger disagree"},
)
@click.option(
    "--store",
    type=click.Choice(("embedded", "kafka")),
    default="embedded",
    show_default=True,
    help="kafka needs --url.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which agents are killed, and where.")
@click.option(
    "--tasks",
    type=click.IntRange(1, _TASKS),
    default=_TASKS,
    show_default=True,
    help="How many recorded tasks to play.",
)
@click.option("--keep", is_flag=True, help="Leave world and ledger behind, to look at.")
@click.option("--bypass", is_flag=True, help="Let one agent call a tool past the ledger: the audit must find it.")
@click.pass_obj
def demo(app: App, *, store: str, seed: int, tasks: int, keep: bool, bypass: bool) -> None:
    """Play recorded agent runs without a ledger, then with one, kill agents, and count what happened twice.

    The ledger is a temporary one unless --url names it; the configured one is left alone.
    """
    from .demo import run  # noqa: PLC0415 - takes its time

    out = sys.stderr if app.as_json else sys.stdout
    code = run(store=store, url=app.url, seed=seed, keep=keep, out=out, tasks=tasks, bypass=bypass)
    app.out.data({"schema": "fencepost.demo.v1", "ok": code == 0, "exit_code": code}, lambda: None)
    leave(code)
