"""`fencepost branch list|fork|prune|adopt|acknowledge|obligations|report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_out_file import OutFile
from .cli_output import Output, duration

if TYPE_CHECKING:
    from .prune_verdicts import BranchEffect, PruneVerdict

REFUSED, OPEN = 3, 4
_LOOK = {0: "done", 5: "no such agent", 7: "the projection is too stale to say"}


@click.group(cls=Group)
def branch() -> None:
    """Fork and prune branches; siblings share operation ids, and the first commit wins."""


@branch.command("list", examples=("fencepost branch list nightly",), exits=_LOOK)
@click.argument("agent_id", metavar="AGENT")
@click.pass_obj
def list_(app: App, agent_id: str) -> None:
    """List an agent's branches: where each was forked, whether it is closed, and what it left behind."""
    from .cli_agents import branch_dict, show_obligations  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        view = ledger.agent(agent_id)
        open_ = [item.to_dict() for item in ledger.obligations(agent_id)]
    found = [
        {**branch_dict(view, b), "obligations": sum(o["branch_id"] == b.branch_id for o in open_)}
        for b in view.agent.branches.values()
    ]
    payload = {"schema": "fencepost.branches.v1", "agent_id": agent_id, "branches": found, "obligations": open_}

    def show() -> None:
        _show_branches(app.out, found)
        if open_:
            app.out.heading("Obligations of pruned branches")
            show_obligations(app.out, open_)

    app.out.data(payload, show)


def _show_branches(out: Output, branches: list[dict[str, Any]]) -> None:
    rows = [
        (
            b["branch_id"], b["parent_branch_id"] or None, b["fork_checkpoint"] or None, b["sessions"], b["live"],
            b["checkpoints"], b["closed"] or None, (b["pruned"]["verdict"] or "unfinished") if b["pruned"] else None,
            b["obligations"] or None,
        )
        for b in branches
    ]  # fmt: skip
    columns = ("BRANCH", "FORKED FROM", "AT", "SESSIONS", "NOT ENDED", "CHECKPOINTS", "CLOSED", "PRUNED", "OBLIGATIONS")
    out.table(columns, rows, empty="No branches.")
    from .cli_agents import show_prunes  # noqa: PLC0415 - only here

    show_prunes(out, branches)


@branch.command(
    examples=("fencepost branch fork nightly plan-b --checkpoint ckpt-42",),
    exits={
        0: "done",
        3: "the checkpoint was left behind, or its branch pruned",
        5: "no such agent or checkpoint",
        6: "the branch exists, or a rollback is being decided",
    },
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


@branch.command(
    examples=(
        "fencepost branch prune nightly plan-a --by alice --evidence 'validation failed'",
        "fencepost branch prune nightly plan-a --dry-run",
        "fencepost branch prune nightly plan-a --plan-out plan.json --json",
    ),
    exits={
        0: "cleared: no obligation is open, the fork's checkpoint counts as restored",
        2: "nobody forked it: roll it back instead",
        3: "orphans, or calls outside the ledger: nothing takes them back; also one of a branch that was pruned before, "
        "if this one was the last that relied on it",
        4: "open: effects of it, or of a sibling pruned before, are to be compensated or undecided",
        5: "no such agent or branch",
        6: "a rollback of the branch is being decided",
        7: "not applied in time; the same command goes on",
    },
)
@click.argument("agent_id", metavar="AGENT")
@click.argument("branch_id", metavar="BRANCH")
@click.option("--by", default="", metavar="WHO", help="Who prunes it.")
@click.option("--evidence", default="", help="Why.")
@click.option(
    "--plan-out",
    type=OutFile(),
    metavar="FILE",
    help="Where to write the plan that undoes what can be undone, for `fencepost compensate`.",
)
@click.option("--dry-run", is_flag=True, help="Only say what it would leave behind; closes and fences nobody.")
@click.pass_obj
def prune(
    app: App, *, agent_id: str, branch_id: str, by: str, evidence: str, plan_out: Path | None, dry_run: bool
) -> None:
    """Close a branch for good, fence it, and say what it left behind; run again, it looks anew."""
    from .cli_compensate import write_plan  # noqa: PLC0415 - only here
    from .prune_verdicts import PruneKind  # noqa: PLC0415 - takes its time

    if dry_run and (plan_out or by or evidence):
        raise click.UsageError(
            "--dry-run records and writes nothing, so nothing else goes with it.", click.get_current_context()
        )
    with app.ledger() as ledger:
        if dry_run:
            verdict = ledger.preview_prune(agent_id, branch_id)
        else:
            verdict = ledger.prune_branch(agent_id, branch_id, by=by, evidence=evidence)
    app.out.data(verdict.to_dict(), lambda: _show(app.out, verdict))
    write_plan(app.out, verdict.to_compensate, plan_out)
    cleared = OPEN if verdict.siblings else 0
    leave({PruneKind.CLEARED: cleared, PruneKind.VIOLATION: REFUSED, PruneKind.OPEN: OPEN}[verdict.kind])


def _show(out: Output, verdict: PruneVerdict) -> None:
    plan = verdict.to_compensate
    out.fields(
        (
            ("verdict", verdict.kind.value),
            ("branch", f"{verdict.agent_id}/{verdict.branch_id}"),
            ("forked at", verdict.checkpoint_id),
            ("restored", verdict.restored),
            ("prune", verdict.prune_id or None),
            ("dry run", f"as of {duration(verdict.age_s)} ago" if verdict.dry_run else None),
            ("plan", plan.digest if plan else None),
            ("cannot be taken back", ", ".join(plan.losses) or None if plan else None),
        )
    )
    for title, effects in (
        ("Orphans: committed, relied on by nobody, and nothing undoes them", verdict.orphans),
        ("Calls outside the ledger", verdict.violations),
        ("Undecided: settle them first", verdict.undecided),
        ("To be compensated", verdict.undoable),
        ("Adopted", verdict.adopted),
        ("Compensated", verdict.compensated),
        ("Free: never committed", verdict.free),
    ):
        if effects:
            out.heading(title)
            _show_effects(out, effects)
    from .cli_agents import show_obligations  # noqa: PLC0415 - only here

    for title, obligations in (
        ("Of branches pruned before: this one was the last that relied on it", verdict.completed),
        (
            "Obligations of branches pruned from the same checkpoint",
            [obligation for obligation in verdict.siblings if obligation not in verdict.completed],
        ),
    ):
        if obligations:
            out.heading(title)
            show_obligations(out, [obligation.to_dict() for obligation in obligations])


def _show_effects(out: Output, effects: tuple[BranchEffect, ...]) -> None:
    rows = [
        (
            e.op_id or None, e.tool or None, e.effect_class.value, e.status, e.session_id or None, e.seq or None,
            e.version or None, ", ".join(e.relied_on_by) or None, e.why or None,
        )
        for e in effects
    ]  # fmt: skip
    out.table(
        ("OPERATION", "TOOL", "CLASS", "STATUS", "SESSION", "SEQ", "VERSION", "RELIED ON BY", "WHY"), rows, empty=""
    )


@branch.command(
    examples=(
        "fencepost branch adopt mail.send:17 --agent nightly --branch plan-b --version 0.42 \\",
        "    --by alice --evidence 'the mail is right as it is'",
    ),
    exits={0: "it stands", 2: "it is not committed, or the branch is pruned or closed", 4: "it is being undone", 5: "no such operation, agent or branch",
           6: "it changed since that version"},
)  # fmt: skip
@click.argument("op_id", metavar="OP")
@click.option("--agent", "agent_id", metavar="AGENT", required=True, help="For whom it stands.")
@click.option(
    "--branch", "branch_id", metavar="BRANCH", required=True, help="For which branch of it; one that goes on."
)
@click.option("--by", required=True, metavar="WHO", help="Who decides.")
@click.option("--evidence", required=True, help="Why it may stand.")
@click.option("--version", default="", help="The version that you looked at; as it is now when not given.")
@click.pass_obj
def adopt(app: App, *, op_id: str, agent_id: str, branch_id: str, by: str, evidence: str, version: str) -> None:
    """Let a committed effect of a pruned branch stand, by an operator's word.

    The word is recorded against the operation: it counts also after the branch it was given for is pruned, until it
    is taken back with `fencepost branch release`.
    """
    with app.ledger() as ledger:
        seen = version or ledger.operation(op_id).operation.version
        operation = ledger.adopt(op_id, agent=agent_id, branch=branch_id, by=by, evidence=evidence, version=seen)
    values = {
        "op_id": op_id, "agent_id": agent_id, "branch_id": branch_id, "status": operation.status.value,
        "seen_version": seen, "version": operation.version, "by": by,
    }  # fmt: skip
    payload = {"schema": "fencepost.adoption.v1", **values}
    app.out.data(payload, lambda: app.out.fields((name.replace("_", " "), v) for name, v in values.items()))


@branch.command(
    examples=(
        "fencepost branch release mail.send:17 --version 0.57 --by bob --evidence 'the mail went to the wrong person'",
    ),
    exits={0: "no operator's word keeps it any more", 2: "it is not committed", 4: "it is being undone",
           5: "no such operation, or no operator adopted it", 6: "it changed since that version"},
)  # fmt: skip
@click.argument("op_id", metavar="OP")
@click.option("--by", required=True, metavar="WHO", help="Who decides.")
@click.option("--evidence", required=True, help="Why it need not stand any more.")
@click.option("--version", default="", help="The version that you looked at; as it is now when not given.")
@click.pass_obj
def release(app: App, *, op_id: str, by: str, evidence: str, version: str) -> None:
    """Take back an operator's adoption: what nobody relies on can be undone, and is an obligation again.

    Branches that rely on the effect are not concerned; see `fencepost ops show` for who does.
    """
    with app.ledger() as ledger:
        before = ledger.operation(op_id).operation
        seen = version or before.version
        operation = ledger.release_adoption(op_id, by=by, evidence=evidence, version=seen)
    released = sorted({a.fact.by for a in before.adoptions if a.fact.by})
    values = {
        "op_id": op_id, "status": operation.status.value, "seen_version": seen, "version": operation.version, "by": by,
    }  # fmt: skip
    payload = {"schema": "fencepost.adoption-release.v1", **values, "released": released}
    shown = {**values, "released": ", ".join(released)}
    app.out.data(payload, lambda: app.out.fields((name.replace("_", " "), v) for name, v in shown.items()))


@branch.command(
    examples=("fencepost branch acknowledge nightly s-17 4 --by alice --evidence 'the mail was called back by phone'",),
    exits={0: "it counts as acknowledged", 5: "no such agent or call"},
)
@click.argument("agent_id", metavar="AGENT")
@click.argument("session_id", metavar="SESSION")
@click.argument("seq", metavar="SEQ", type=click.IntRange(min=1))
@click.option("--by", required=True, metavar="WHO", help="Who takes note of it.")
@click.option("--evidence", required=True, help="What became of it.")
@click.pass_obj
def acknowledge(app: App, *, agent_id: str, session_id: str, seq: int, by: str, evidence: str) -> None:
    """Take note of a reported call, for good: no obligation and no reason against a rollback any more.

    It carries no op id, so it can neither be adopted nor undone; see `fencepost branch obligations` or `fencepost agents show` for SESSION and SEQ.
    """
    from .cli_decided import reported_dict, show_reported  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        ledger.acknowledge_call(agent_id, session_id, seq, by=by, evidence=evidence)
        calls = [reported_dict(one) for one in ledger.reported_calls(agent_id)]
    values = next(one for one in calls if (one["session_id"], one["seq"]) == (session_id, seq))
    payload = {"schema": "fencepost.acknowledgement.v1", "agent_id": agent_id, **values}
    app.out.data(payload, lambda: show_reported(app.out, [values]))


@branch.command(
    examples=("fencepost branch obligations", "fencepost branch obligations nightly --json"),
    exits={**_LOOK, 0: "told; there may be none"},
)
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.pass_obj
def obligations(app: App, agent_id: str | None) -> None:
    """List what pruned branches still ask for, oldest first; of one agent, or of all."""
    from .cli_agents import show_obligations  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        found = [item.to_dict() for item in ledger.obligations(agent_id)]
    payload = {"schema": "fencepost.obligations.v1", "agent_id": agent_id or "", "obligations": found}
    app.out.data(payload, lambda: show_obligations(app.out, found))


@branch.command(examples=("fencepost branch report", "fencepost branch report nightly --json"), exits=_LOOK)
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.pass_obj
def report(app: App, agent_id: str | None) -> None:
    """Say what speculation left behind, by fan-out (branches forked from one checkpoint) and prune rate."""
    with app.ledger() as ledger:
        told = ledger.speculation_report(agent_id)

    def show() -> None:
        columns = ("FAN-OUT", "FORKS", "PRUNED", "RATE", "COMMITTED", "ADOPTED", "COMPENSATED", "TO COMPENSATE",
                   "ORPHANS", "VIOLATIONS", "UNDECIDED")  # fmt: skip
        rows = [
            (
                r.fan_out or "all", r.forks, r.pruned, f"{r.prune_rate:.0%}", r.committed, r.adopted, r.compensated,
                r.to_compensate, r.orphans, r.violations, r.undecided,
            )
            for r in (*told.rows, told.total)
        ]  # fmt: skip
        app.out.table(columns, rows if told.rows else [], empty="Nothing was forked.")

    app.out.data(told.to_dict(), show)
