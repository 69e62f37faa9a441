"""`fencepost compensate list|plan|approve|verify|run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_given import bad_module, imported, text_of
from .cli_out_file import OutFile, write_decided, write_out
from .cli_output import Output, shortened, when
from .errors import InvalidArgumentError
from .identity import check_id

if TYPE_CHECKING:
    from .facade import Ledger
    from .plans import Plan

BLOCKED, NEEDS_HUMAN = 3, 4
_MOVED = "the ledger has moved on: make another plan"
_PLAN_FILE = click.argument("plan_file", metavar="PLAN.json", type=click.File(encoding="utf-8"))
_ACCEPT = click.option(
    "--accept-loss",
    "losses",
    metavar="NAME",
    multiple=True,
    help="A side effect that it cannot take back; each by name.",
)
_COMPENSATORS = click.option(
    "--compensators",
    "target",
    metavar="MODULE[:NAME]",
    help="Where the inverses are: a function that takes the ledger and registers them, or a mapping of actions to "
    "{function, state_hash, probe, longest_run_s}. The name is `compensators` when not given. Imported with the working "
    "directory on the path.",
)


@click.group(cls=Group)
def compensate() -> None:
    """Undo effects by plans: made from what was sealed with them, approved by name, carried out at most once."""


@compensate.command(
    "list",
    examples=("fencepost compensate list", "fencepost compensate list nightly --json"),
    exits={0: "done", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.pass_obj
def list_(app: App, agent_id: str | None) -> None:
    """List the effects that stand, how each can be undone or why it cannot, and how far approved plans are."""
    with app.ledger() as ledger:
        effects = [effect.to_dict() for effect in ledger.standing_effects(agent_id)]
        agents = [agent_id] if agent_id is not None else ledger.agents()
        plans = [plan.to_dict() for agent in agents for plan in ledger.plans(agent)]
    payload = {"schema": "fencepost.compensable.v1", "effects": effects, "plans": plans}
    app.out.data(payload, lambda: _show_list(app.out, effects, plans))


def _show_list(out: Output, effects: list[dict[str, Any]], plans: list[dict[str, Any]]) -> None:
    rows = [
        (e["op_id"], e["tool"], e["effect_class"], e["action"] or None, e["verdict"] or "NO", e["why"] or None)
        for e in effects
    ]
    out.table(("OPERATION", "TOOL", "CLASS", "ACTION", "UNDO", "WHY NOT"), rows, empty="No effect stands.")
    if plans:
        out.heading("Approved plans")
        progress = [
            (
                p["plan"]["digest"][:16], p["plan"]["agent_id"], p["approval"]["by"], when(p["approval"]["time_ms"]),
                ", ".join(f"{s['op_id']}: {s['state']}" for s in p["steps"]),
            )
            for p in plans
        ]  # fmt: skip
        out.table(("PLAN", "AGENT", "APPROVED BY", "AT", "STEPS"), progress, empty="")


@compensate.command(
    examples=(
        "fencepost compensate plan nightly --checkpoint ckpt-42 --out plan.json",
        "fencepost compensate plan --op billing.refund:A1 --op billing.refund:A2 > plan.json",
    ),
    exits={
        0: "every effect can be undone, but for the losses that the plan names",
        3: "one of them cannot; it is named",
        5: "no such agent, checkpoint, or operation",
    },
)
@click.argument("agent_id", metavar="[AGENT]", required=False)
@click.option("--checkpoint", "checkpoint_id", metavar="CHECKPOINT", help="Undo what this checkpoint does not know.")
@click.option("--branch", "branch_id", metavar="BRANCH", default="", help="By default the checkpoint's own.")
@click.option("--op", "op_ids", metavar="OP", multiple=True, help="Undo this operation; may be given several times.")
@click.option("--out", "out_file", type=OutFile(), metavar="FILE", help="Write the plan to a file.")
@click.pass_obj
def plan(
    app: App,
    *,
    agent_id: str | None,
    checkpoint_id: str | None,
    branch_id: str,
    op_ids: tuple[str, ...],
    out_file: Path | None,
) -> None:
    """Make a plan, as JSON: what is undone, in which order, and what cannot be taken back. It undoes nothing."""
    if bool(op_ids) == bool(checkpoint_id) or bool(checkpoint_id) != bool(agent_id):
        raise click.UsageError("Say AGENT and --checkpoint, or one or more --op.", click.get_current_context())
    with app.ledger() as ledger:
        made = ledger.plan_compensation(op_ids, agent=agent_id, checkpoint=checkpoint_id, branch=branch_id)
    values = made.to_dict()
    if out_file is not None:
        write_out(out_file, json.dumps(values, indent=2) + "\n")
        app.out.data(values, lambda: show_plan(app.out, values))
        app.out.note(f"Written to {out_file}.")
    else:
        app.out.data(values, lambda: app.out.text(json.dumps(values, indent=2)))


def write_plan(out: Output, made: Plan | None, target: Path | None) -> None:
    """Write the plan of a decision to a file, if one was named, and say so on stderr."""
    if target is None:
        return
    if made is None:
        out.note("There is nothing to compensate, so no plan was written.")
        return
    text = json.dumps(made.to_dict(), indent=2, ensure_ascii=False) + "\n"
    if write_decided(target, text, instead="What was decided stands: make the plan with `fencepost compensate plan`."):
        out.note(f"The plan ({len(made.steps)} steps, digest {made.digest}) is in {target}.")


def show_plan(out: Output, values: dict[str, Any]) -> None:
    """Print what `Plan.to_dict` gives."""
    out.fields(
        (
            ("plan", values["digest"]),
            ("of", f"{values['agent_id']}/{values['branch_id']}" if values["branch_id"] else values["agent_id"]),
            ("for", f"{values['cause']} {values['checkpoint_id']}".strip()),
            ("verdict", values["verdict"]),
            ("losses", ", ".join(values["losses"]) or None),
        )
    )
    out.heading("Steps, in this order")
    rows = [
        (
            s["op_id"], s["round"], s["manifest"]["action"]["name"], shortened(s["manifest"]["action"]["payload"]),
            ", ".join(s["manifest"]["cascades"]) or None, ", ".join((*s["manifest"]["irreversible"], *(f"{name} (stands)" for name in s.get("leaves", ())))) or None,
        )
        for s in values["steps"]
    ]  # fmt: skip
    out.table(("OPERATION", "ROUND", "ACTION", "PAYLOAD", "CASCADES", "CANNOT TAKE BACK"), rows, empty="")


@compensate.command(
    examples=("fencepost compensate approve plan.json --by alice --evidence 'ticket 17' --accept-loss mail:A1",),
    exits={
        0: "approved",
        2: "the plan was changed after it was made",
        3: "it does not undo what was sealed, or somebody relies on an effect",
        4: "a loss was not accepted by name",
        6: _MOVED,
    },
)
@_PLAN_FILE
@_ACCEPT
@click.option("--evidence", required=True, help="On what grounds.")
@click.option("--by", required=True, metavar="WHO", help="Who approves it.")
@click.pass_obj
def approve(app: App, *, plan_file: IO[str], losses: tuple[str, ...], evidence: str, by: str) -> None:
    """Approve exactly this plan, by name; recorded in the ledger and bound to the plan's digest."""
    given = _plan_in(plan_file)
    with app.ledger() as ledger:
        approval = ledger.approve_plan(given, by=by, evidence=evidence, accept_losses=losses)
    values = approval.to_dict()
    app.out.data(
        {"schema": "fencepost.approval.v1", **values},
        lambda: app.out.fields(
            (
                ("plan", values["plan_digest"]),
                ("approved by", approval.by),
                ("losses", ", ".join(approval.losses) or None),
            )
        ),
    )


@compensate.command(
    examples=("fencepost compensate verify plan.json --compensators billing.undo",),
    exits={
        0: "it can be carried out, as far as that can be read",
        2: "the plan was changed after it was made",
        3: "somebody has changed a state since, or it does not undo what was sealed",
        4: "it cannot take everything back; a person must accept that by name",
        6: _MOVED,
    },
)
@_PLAN_FILE
@_COMPENSATORS
@click.pass_obj
def verify(app: App, *, plan_file: IO[str], target: str | None) -> None:
    """Compare a plan with the ledger: digest, versions, manifests; and the states, where they can be read."""
    given = _plan_in(plan_file)
    with app.ledger() as ledger:
        _register(ledger, target)
        found = ledger.verify_plan(given)
        approved = any(p.plan == given for p in ledger.plans(given.agent_id))
    payload = {
        "schema": "fencepost.plan_check.v1", "plan_digest": given.digest, "steps": found, "losses": list(given.losses),
        "approved": approved,
    }  # fmt: skip

    def told() -> None:
        app.out.fields((("plan", given.digest), ("approved", approved), ("losses", ", ".join(given.losses) or None)))
        app.out.table(("OPERATION", "NOW"), list(found.items()), empty="")

    app.out.data(payload, told)
    if "BLOCKED_CONCURRENT_MUTATION" in found.values():
        leave(BLOCKED)
    leave(NEEDS_HUMAN if given.losses and not approved else 0)


@compensate.command(
    examples=(
        "fencepost compensate run plan.json --by alice --compensators billing.undo",
        "fencepost compensate run plan.json --by alice --evidence 'ticket 17' --accept-loss mail:A1 \\",
        "    --compensators billing.undo:register",
    ),
    exits={
        0: "everything is undone",
        2: "the plan was changed after it was made, or nobody approved it and --evidence is missing",
        3: "a step is blocked, and changed nothing; the ones before it are undone",
        4: "an inverse is in doubt, another run is at it, or a loss was not accepted by name",
        5: "a compensator is not registered; nothing was undone",
        6: _MOVED,
    },
)
@_PLAN_FILE
@_ACCEPT
@_COMPENSATORS
@click.option("--evidence", default="", help="On what grounds; required if it was not approved before.")
@click.option("--by", required=True, metavar="WHO", help="Who runs it; approves it as well, if nobody has yet.")
@click.pass_obj
def run(app: App, *, plan_file: IO[str], losses: tuple[str, ...], target: str | None, evidence: str, by: str) -> None:
    """Carry a plan out, or go on with it: what was undone before is not undone again."""
    by = check_id("by", by, limit=200)
    given = _plan_in(plan_file)
    with app.ledger() as ledger:
        _register(ledger, target)
        if not evidence.strip() and not _is_approved(ledger, given):
            raise InvalidArgumentError(
                f"evidence: nobody has approved plan {given.digest[:16]}, so running it approves it.",
                next_step="Say on what grounds with --evidence, or have it approved with `fencepost compensate approve`.",
                field="evidence",
            )
        report = ledger.compensate(given, approved_by=by, evidence=evidence, accept_losses=losses)
    values = report.to_dict()

    def told() -> None:
        app.out.fields((("plan", given.digest), ("approved by", report.approval.by)))
        rows = [
            (s.op_id, "undone" if s.now else "undone before", s.compensation_op_id, ", ".join(s.losses) or None)
            for s in report.steps
        ]
        app.out.table(("OPERATION", "NOW", "COMPENSATION", "LOST"), rows, empty="")

    app.out.data(values, told)


def _is_approved(ledger: Ledger, given: Plan) -> bool:
    known = given.agent_id in ledger.agents()
    return known and any(one.plan.digest == given.digest for one in ledger.plans(given.agent_id))


def _plan_in(file: IO[str]) -> Plan:
    """The plan in a file; one that `rollback authorize --json` printed stands inside the verdict."""
    from .plans import load, parsed  # noqa: PLC0415 - takes its time

    values = parsed(text_of(file, "PLAN.json"))
    inside = values.get("plan")
    return load(inside if isinstance(inside, dict) else values)


def _register(ledger: Ledger, target: str | None) -> None:
    """Register the inverses that MODULE[:NAME] gives. Raises InvalidArgumentError."""
    if target is None:
        return
    found = imported(target, "compensators")
    if isinstance(found, Mapping):
        for action, parts in found.items():
            _register_one(ledger, target, action, parts)
    elif callable(found):
        found(ledger)
    else:
        raise bad_module(f"{target!r} is neither a function nor a mapping of actions", "compensators")


def _register_one(ledger: Ledger, target: str, action: str, parts: Any) -> None:
    try:
        options = dict(parts)
        function = options.pop("function")
        ledger.compensator(action, **options)(function)
    except (KeyError, TypeError) as error:
        raise bad_module(f"{target!r} does not say how {action!r} is run ({error})", "compensators") from error
