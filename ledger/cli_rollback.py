"""`fencepost rollback preview|authorize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_output import Output, duration

if TYPE_CHECKING:
    from .verdicts import Blocker, Verdict

F = TypeVar("F", bound=Callable[..., Any])
REFUSED = 3
_EXITS = {
    0: "the agent may go back",
    3: "refused as unsafe; the reasons and the ways on are named",
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
    app: App, *, agent_id: str, checkpoint_id: str, policy: str, branch_id: str, restored: IO[str] | None
) -> None:
    """Say what a rollback would cross, and what a replay would do; changes nothing and fences nobody."""
    text = _text_of(restored)
    with app.ledger() as ledger:
        verdict = ledger.preview_rollback(
            agent_id, checkpoint=checkpoint_id, policy=policy, branch=branch_id, restored=text
        )
    _answer(app, verdict)


@rollback.command(
    examples=(
        "fencepost rollback authorize nightly --checkpoint ckpt-42 && ./restore ckpt-42",
        "fencepost rollback authorize nightly --checkpoint ckpt-42 --policy gated --json",
    ),
    exits=_EXITS,
)
@_question
@click.pass_obj
def authorize(
    app: App, *, agent_id: str, checkpoint_id: str, policy: str, branch_id: str, restored: IO[str] | None
) -> None:
    """Decide on a rollback, for good: the branch is fenced for it, so its session is over."""
    text = _text_of(restored)
    with app.ledger() as ledger:
        verdict = ledger.authorize_rollback(
            agent_id, checkpoint=checkpoint_id, policy=policy, branch=branch_id, restored=text
        )
    _answer(app, verdict)


def _text_of(restored: IO[str] | None) -> str:
    """The restored state; one that is empty has lost its token, which is not the same as not being given."""
    return "" if restored is None else restored.read() or " "


def _answer(app: App, verdict: Verdict) -> None:
    app.out.data(verdict.to_dict(), lambda: _show(app.out, verdict))
    if verdict.fenced:
        app.out.note("The branch is fenced: its session is over. Open the next one in code.")
    leave(0 if verdict.authorised else REFUSED)


def _show(out: Output, verdict: Verdict) -> None:
    out.fields(
        (
            ("verdict", verdict.kind.value),
            ("rollback of", f"{verdict.agent_id}/{verdict.branch_id}"),
            ("to", verdict.checkpoint_id),
            ("policy", verdict.policy.value),
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
