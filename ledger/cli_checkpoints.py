"""`fencepost checkpoints list|show|latest`."""

from __future__ import annotations

from typing import Any

import click

from .cli_app import App
from .cli_commands import Group
from .cli_output import Output, when
from .errors import NotFoundError

_EXITS = {0: "done", 5: "no such agent or checkpoint", 7: "the projection is too stale to say"}


@click.group(cls=Group)
def checkpoints() -> None:
    """Show checkpoints: the points that an agent can be asked to go back to."""


@checkpoints.command("list", examples=("fencepost checkpoints list nightly",), exits=_EXITS)
@click.argument("agent_id", metavar="AGENT")
@click.option("--all", "everything", is_flag=True, help="Also those that do not count, with the reason.")
@click.pass_obj
def list_(app: App, agent_id: str, everything: bool) -> None:
    """List an agent's checkpoints, oldest first."""
    found = [c for c in _registered(app, agent_id) if everything or not c["rejected"]]
    columns: tuple[str, ...] = (
        "CHECKPOINT", "BRANCH", "EPOCH", "SEQ", "OPEN", "GENERATION", "LATEST OF", "POSITION", "TIME",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = [
        (
            c["checkpoint_id"], c["branch_id"], c["epoch"], c["seq"], len(c["owned"]), c["generation"],
            ", ".join(c["latest_of"]) or None, c["position"], when(c["time_ms"]),
        )
        for c in found
    ]  # fmt: skip
    if everything:
        columns = (*columns, "DOES NOT COUNT")
        rows = [(*row, c["rejected"] or None) for row, c in zip(rows, found, strict=True)]
    payload = {"schema": "fencepost.checkpoints.v1", "agent_id": agent_id, "checkpoints": found}
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="No checkpoints."))


@checkpoints.command(examples=("fencepost checkpoints show nightly ckpt-42",), exits=_EXITS)
@click.argument("agent_id", metavar="AGENT")
@click.argument("checkpoint_id", metavar="CHECKPOINT")
@click.pass_obj
def show(app: App, agent_id: str, checkpoint_id: str) -> None:
    """Show one checkpoint: its watermark's token, and what was open when it was taken."""
    same_id = [c for c in _registered(app, agent_id) if c["checkpoint_id"] == checkpoint_id]
    chosen = next((c for c in same_id if not c["rejected"]), same_id[0] if same_id else None)
    if chosen is None:
        raise NotFoundError(
            f"checkpoint {checkpoint_id} of {agent_id} is not registered.",
            next_step="List them with `fencepost checkpoints list`.",
            field="checkpoint",
        )
    values = {"agent_id": agent_id, **chosen}
    app.out.data({"schema": "fencepost.checkpoint.v1", **values}, lambda: _show(app.out, values))


@checkpoints.command(
    examples=("fencepost checkpoints latest nightly", "fencepost checkpoints latest nightly --json | jq -r .token"),
    exits={**_EXITS, 5: "no such agent or branch, or no checkpoint on it"},
)
@click.argument("agent_id", metavar="AGENT")
@click.option("--branch", "branch_id", metavar="BRANCH", default="main", show_default=True, help="On whose path.")
@click.pass_obj
def latest(app: App, agent_id: str, branch_id: str) -> None:
    """Show the newest checkpoint on a branch's path that no rollback has left behind."""
    with app.ledger() as ledger:
        chosen = ledger.latest_checkpoint(agent_id, branch_id)
    if chosen is None:
        raise NotFoundError(
            f"there is no checkpoint on the path of {agent_id}/{branch_id}.",
            next_step="List them with `fencepost checkpoints list`.",
            field="checkpoint",
        )
    values = {"agent_id": agent_id, **chosen.to_dict()}
    app.out.data({"schema": "fencepost.checkpoint.v1", **values}, lambda: _show(app.out, values))


def _registered(app: App, agent_id: str) -> list[dict[str, Any]]:
    """The checkpoints as plain data, each with the branches whose latest it is."""
    with app.ledger() as ledger:
        context = ledger.agent(agent_id).context
    newest = {branch_id: context.latest(branch_id) for branch_id in context.agent.branches}
    return [
        {**c.to_dict(), "latest_of": sorted(b for b, latest_one in newest.items() if latest_one is c)}
        for c in context.every
    ]


def _show(out: Output, values: dict[str, Any]) -> None:
    out.fields(
        (
            ("checkpoint", values["checkpoint_id"]),
            ("does not count", values["rejected"] or None),
            ("agent", values["agent_id"]),
            ("branch", values["branch_id"]),
            ("session", values["session_id"]),
            ("watermark", values["token"] or "unreadable"),
            ("generation", values["generation"]),
            ("state digest", values["state_digest"] or None),
            ("position", values["position"]),
            ("time", when(values["time_ms"])),
            ("open then", ", ".join(values["owned"]) or "nothing"),
        )
    )
