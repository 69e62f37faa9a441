"""`fencepost checkpoints list|show` and `fencepost branch list|fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group
from .cli_output import Output, when
from .errors import NotFoundError

if TYPE_CHECKING:
    from .contexts import Checkpoint

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
    found = [_checkpoint_dict(c) for c in _registered(app, agent_id) if everything or not c.rejected]
    columns: tuple[str, ...] = ("CHECKPOINT", "BRANCH", "EPOCH", "SEQ", "OPEN", "GENERATION", "POSITION", "TIME")
    rows: list[tuple[Any, ...]] = [
        (
            c["checkpoint_id"], c["branch_id"], c["epoch"], c["seq"], len(c["owned"]), c["generation"],
            c["position"], when(c["time_ms"]),
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
    same_id = [c for c in _registered(app, agent_id) if c.checkpoint_id == checkpoint_id]
    chosen = next((c for c in same_id if not c.rejected), same_id[0] if same_id else None)
    if chosen is None:
        raise NotFoundError(
            f"checkpoint {checkpoint_id} of {agent_id} is not registered.",
            next_step="List them with `fencepost checkpoints list`.",
            field="checkpoint",
        )
    values = {"agent_id": agent_id, **_checkpoint_dict(chosen)}
    app.out.data({"schema": "fencepost.checkpoint.v1", **values}, lambda: _show(app.out, values))


def _registered(app: App, agent_id: str) -> list[Checkpoint]:
    with app.ledger() as ledger:
        return ledger.agent(agent_id).context.every


def _checkpoint_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    mark, fact = checkpoint.mark, checkpoint.fact
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "branch_id": checkpoint.branch_id,
        "session_id": fact.session_id,
        "token": mark.token if mark else None,
        "epoch": str(mark.epoch) if mark else None,
        "seq": mark.seq if mark else None,
        "owned": list(fact.owned),
        "generation": fact.generation,
        "state_digest": fact.state_digest,
        "position": str(checkpoint.position),
        "time_ms": fact.time_ms,
        "rejected": checkpoint.rejected,
    }


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


@click.group(cls=Group)
def branch() -> None:
    """Show and fork branches; siblings share operation ids, and the first commit wins."""


@branch.command(
    "list",
    examples=("fencepost branch list nightly",),
    exits={0: "done", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.argument("agent_id", metavar="AGENT")
@click.pass_obj
def list_branches(app: App, agent_id: str) -> None:
    """List an agent's branches: where each was forked, and whether it is closed."""
    from .cli_agents import branch_dict, show_branches  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        view = ledger.agent(agent_id)
    found = [branch_dict(view, b) for b in view.agent.branches.values()]
    payload = {"schema": "fencepost.branches.v1", "agent_id": agent_id, "branches": found}
    app.out.data(payload, lambda: show_branches(app.out, found))


@branch.command(
    examples=("fencepost branch fork nightly plan-b --checkpoint ckpt-42",),
    exits={0: "done", 3: "the checkpoint was left behind", 5: "no such agent or checkpoint", 6: "the branch exists"},
)
@click.argument("agent_id", metavar="AGENT")
@click.argument("branch_id", metavar="BRANCH")
@click.option("--checkpoint", "checkpoint_id", metavar="CHECKPOINT", required=True, help="Where the branch begins.")
@click.pass_obj
def fork(app: App, agent_id: str, branch_id: str, checkpoint_id: str) -> None:
    """Begin a branch at a checkpoint; then open a session on it in code."""
    from .cli_agents import branch_dict, show_branches  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        ledger.fork(agent_id, branch_id, checkpoint=checkpoint_id)
        view = ledger.agent(agent_id)
    values = branch_dict(view, view.agent.branches[branch_id])
    payload = {"schema": "fencepost.branch.v1", "agent_id": agent_id, **values}
    app.out.data(payload, lambda: show_branches(app.out, [values]))
