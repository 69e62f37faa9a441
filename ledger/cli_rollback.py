"""`fencepost rollback preview|authorize|held|declare`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_out_file import OutFile
from .cli_output import Output, duration, shortened, when

if TYPE_CHECKING:
    from .verdicts import Blocker, Verdict

F = TypeVar("F", bound=Callable[..., Any])
REFUSED, NEEDS_HUMAN = 3, 4
_TOLD = 5
_EXITS = {
    0: "the agent may go back",
    3: "refused as unsafe; the reasons and the ways on are named",
    4: "effects must be undone first; the plan for that is shown, and a person must approve it",
    5: "no such agent",
    6: "another rollback of the agent is being decided",
    7: "it cannot be decided now; nothing was authorised",
}


def _question(function: F) -> F:
    """The arguments that both commands take."""
    for option in (
        click.option(
            "--restored",
            type=click.File(encoding="utf-8", errors="replace"),
            metavar="FILE|-",
            help="The state to be restored, as text that holds its token; the token must be the checkpoint's own.",
        ),
        click.option(
            "--plan-out",
            type=OutFile(),
            metavar="FILE",
            help="Where to write the plan that undoes what is in the way, for `fencepost compensate`.",
        ),
        click.option("--branch", "branch_id", metavar="BRANCH", default="", help="By default the checkpoint's own."),
        click.option(
            "--policy",
            type=click.Choice(("strict", "gated"), case_sensitive=False),
            default="strict",
            show_default=True,
            help="gated: you assert that the agent's operation ids are stable across replays.",
        ),
        click.option("--checkpoint", "checkpoint_id", metavar="CHECKPOINT", required=True, help="Where to go back to."),
        click.argument("agent_id", metavar="AGENT"),
    ):
        function = option(function)
    return function


@click.group(cls=Group)
def rollback() -> None:
    """Decide whether an agent may go back to a checkpoint without repeating or losing an effect."""


@rollback.command(
    examples=(
        "fencepost rollback preview nightly --checkpoint ckpt-42",
        "fencepost rollback preview nightly --checkpoint ckpt-42 --restored state.json",
    ),
    exits=_EXITS,
)
@_question
@click.pass_obj
def preview(
    app: App,
    *,
    agent_id: str,
    checkpoint_id: str,
    policy: str,
    branch_id: str,
    restored: IO[str] | None,
    plan_out: Path | None,
) -> None:
    """Say what a rollback would cross, and what a replay would do; changes nothing and fences nobody."""
    text = _text_of(restored)
    with app.ledger() as ledger:
        verdict = ledger.preview_rollback(
            agent_id, checkpoint=checkpoint_id, policy=policy, branch=branch_id, restored=text
        )
    _answer(app, verdict, plan_out)


@rollback.command(
    examples=(
        "fencepost rollback authorize nightly --checkpoint ckpt-42 && ./restore ckpt-42",
        "fencepost rollback authorize nightly --checkpoint ckpt-42 --policy gated --by ann --evidence 'check failed'",
    ),
    exits=_EXITS,
)
@_question
@click.option("--by", default="", metavar="WHO", help="Who asks for it; recorded with the decision.")
@click.option("--evidence", default="", help="Why; recorded with the decision.")
@click.pass_obj
def authorize(
    app: App,
    *,
    agent_id: str,
    checkpoint_id: str,
    policy: str,
    branch_id: str,
    restored: IO[str] | None,
    plan_out: Path | None,
    by: str,
    evidence: str,
) -> None:
    """Decide on a rollback, for good: the branch is fenced for it, so its session is over."""
    text = _text_of(restored)
    with app.ledger() as ledger:
        verdict = ledger.authorize_rollback(
            agent_id, checkpoint=checkpoint_id, policy=policy, branch=branch_id, restored=text, by=by, evidence=evidence
        )
    _answer(app, verdict, plan_out)


@rollback.command(
    examples=("fencepost rollback held nightly",),
    exits={0: "done, also when some are", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.argument("agent_id", metavar="AGENT")
@click.pass_obj
def held(app: App, agent_id: str) -> None:
    """List what is held after a gated rollback: calls that match none of the effects that were gone back over."""
    with app.ledger() as ledger:
        found = [attempt.to_dict() for attempt in ledger.held(agent_id)]
    columns = ("OPERATION", "TOOL", "BRANCH", "SINCE", "ASKED FOR", "MAY BE THE SAME AS")
    rows = [
        (a["op_id"], a["tool"], a["branch_id"], when(a["time_ms"]), shortened(a["arguments"]), _listed(a["candidates"]))
        for a in found
    ]
    payload = {"schema": "fencepost.held.v1", "agent_id": agent_id, "held": found}
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="Nothing is held."))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f", and {len(names) - _TOLD} more" if len(names) > _TOLD else "")


@rollback.command(
    examples=(
        "fencepost rollback declare nightly billing.charge:A9 --new --by ann --evidence 'another order'",
        "fencepost rollback declare nightly billing.charge:A-9 --same-as billing.charge:A9 --by ann --evidence 'same order'",
    ),
    exits={0: "declared, for good", 2: "it is not held", 5: "no such agent", 6: "it was declared as something else"},
)
@click.argument("agent_id", metavar="AGENT")
@click.argument("op_id", metavar="OP")
@click.option("--new", is_flag=True, help="It is a new effect, and may run.")
@click.option("--same-as", metavar="OP", help="It is this effect, in other words: its recorded result comes back.")
@click.option("--evidence", required=True, help="How you know.")
@click.option("--by", required=True, metavar="WHO", help="Who decides.")
@click.pass_obj
def declare(app: App, *, agent_id: str, op_id: str, new: bool, same_as: str | None, evidence: str, by: str) -> None:
    """Say what a held call is. It counts for every session of the agent, and cannot be taken back."""
    if new == (same_as is not None):
        raise click.UsageError("Say exactly one of --new and --same-as.", click.get_current_context())
    with app.ledger() as ledger:
        ledger.declare(agent_id, op_id, same_as=same_as, by=by, evidence=evidence)
    values = {"agent_id": agent_id, "op_id": op_id, "declared_as": "new" if new else "same", "same_as": same_as or ""}
    payload = {"schema": "fencepost.declaration.v1", **values, "by": by, "evidence": evidence}
    told = "new" if new else f"the same as {same_as}"
    app.out.data(payload, lambda: app.out.fields((("operation", op_id), ("declared", told), ("by", by))))


def _text_of(restored: IO[str] | None) -> str:
    """The restored state; one that is empty has lost its token, which is not the same as not being given."""
    return "" if restored is None else restored.read() or " "


def _answer(app: App, verdict: Verdict, plan_out: Path | None) -> None:
    from .cli_compensate import write_plan  # noqa: PLC0415 - only here

    app.out.data(verdict.to_dict(), lambda: _show(app.out, verdict))
    if verdict.fenced:
        app.out.note("The branch is fenced: its session is over. Open the next one in code.")
    write_plan(app.out, verdict.plan, plan_out)
    if verdict.plan is not None:
        app.out.note("Carry the plan out (`fencepost compensate`), then ask anew.")
        leave(NEEDS_HUMAN)
    leave(0 if verdict.authorised else REFUSED)


def _show(out: Output, verdict: Verdict) -> None:
    out.fields(
        (
            ("verdict", verdict.kind.value),
            ("rollback of", f"{verdict.agent_id}/{verdict.branch_id}"),
            ("to", verdict.checkpoint_id),
            ("policy", verdict.policy.value),
            ("by", verdict.by or None),
            ("evidence", verdict.evidence or None),
            ("fenced", verdict.fenced),
            ("dry run", f"as of {duration(verdict.age_s)} ago" if verdict.dry_run else None),
        )
    )
    if verdict.reasons:
        out.heading("Reasons")
        out.table(("REASON", "WHAT"), [(r.kind.value, r.text) for r in verdict.reasons], empty="")
    blockers = [r.effect for r in verdict.reasons if r.effect is not None]
    for title, effects in (("Effects in the way", blockers), ("Effects crossed", list(verdict.crossed))):
        if effects:
            out.heading(title)
            _show_effects(out, effects)
    if verdict.plan is not None:
        from .cli_compensate import show_plan  # noqa: PLC0415 - only here

        out.heading("Plan")
        show_plan(out, verdict.plan.to_dict())
    if verdict.outlook:
        out.heading("What a replay would do")
        out.table(("OPERATION", "OUTLOOK"), list(verdict.outlook.items()), empty="")
    if verdict.ways_on:
        out.heading("Ways on")
        for way in verdict.ways_on:
            out.text(f"- {way.value}")


def _show_effects(out: Output, effects: list[Blocker]) -> None:
    columns = ("OPERATION", "TOOL", "CLASS", "STATUS", "SEQ", "BRANCH")
    rows = [
        (e.op_id or None, e.tool, e.effect_class.value, e.status, e.seq or None, e.branch_id or None) for e in effects
    ]
    out.table(columns, rows, empty="")
