"""`fencepost compactions list|show` and `fencepost resume check`."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_output import ONLY_TOLD, Output, duration, shortened, when
from .errors import NotFoundError

if TYPE_CHECKING:
    from .contexts import Compaction
    from .facts import Dropped
    from .resume_answers import Reconcile, Resume

NEEDS_RECONCILING = 4
_EXITS = {0: "done", 5: "no such agent or compaction", 7: "the projection is too stale to say"}
_WITH_DIGEST = re.compile(r"(.+)=([0-9a-f]{64})", re.DOTALL)


@click.group(cls=Group)
def compactions() -> None:
    """Show compactions of agents' contexts: each begins a generation and says what it dropped."""


@compactions.command(
    "list",
    examples=("fencepost compactions list nightly", "fencepost compactions list nightly --all --json"),
    exits=_EXITS,
)
@click.argument("agent_id", metavar="AGENT")
@click.option("--all", "everything", is_flag=True, help="Also those that do not count, with the reason.")
@click.pass_obj
def list_(app: App, agent_id: str, everything: bool) -> None:
    """List the compactions of an agent's context, oldest first."""
    with app.ledger() as ledger:
        context = ledger.agent(agent_id).context
    listed = [*context.compactions, *(context.refused if everything else ())]
    found = [c.to_dict() for c in sorted(listed, key=lambda c: c.position)]
    columns: tuple[str, ...] = ("GENERATION", "BRANCH", "EPOCH", "SEQ", "DROPPED", "NAMED", "POSITION", "TIME")
    rows: list[tuple[Any, ...]] = [
        (
            c["generation"], c["branch_id"], c["epoch"], c["seq"], len(c["dropped"]), len(c["kept"]), c["position"],
            when(c["time_ms"]),
        )
        for c in found
    ]  # fmt: skip
    if everything:
        columns = (*columns, "DOES NOT COUNT")
        rows = [(*row, c["rejected"] or None) for row, c in zip(rows, found, strict=True)]
    payload = {"schema": "fencepost.compactions.v1", "agent_id": agent_id, "compactions": found}
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="No compactions."))


@compactions.command(
    examples=("fencepost compactions show nightly", "fencepost compactions show nightly 7 --branch plan-b"),
    exits=_EXITS,
)
@click.argument("agent_id", metavar="AGENT")
@click.argument("generation", metavar="[GENERATION]", type=click.IntRange(min=1), required=False)
@click.option("--branch", "branch_id", metavar="BRANCH", default="main", show_default=True, help="On whose path.")
@click.pass_obj
def show(app: App, agent_id: str, generation: int | None, branch_id: str) -> None:
    """Show one compaction with its drop manifest: the newest on a branch's path, or that of a generation."""
    with app.ledger() as ledger:
        view = ledger.agent(agent_id)
    branch = view.agent.branches.get(branch_id)
    path = view.context.compactions_at(view.agent.head_point(branch)) if branch else []
    wanted = [c for c in path if generation in (None, c.generation)]
    if not wanted:
        what = "no compaction" if generation is None else f"no compaction to generation {generation}"
        raise NotFoundError(
            f"there is {what} on the path of {agent_id}/{branch_id}.",
            next_step="List them with `fencepost compactions list`.",
            field="branch" if branch is None else "generation",
        )
    chosen = max(wanted, key=lambda c: c.point)
    payload = {"schema": "fencepost.compaction.v1", "agent_id": agent_id, **chosen.to_dict()}
    app.out.data(payload, lambda: _show_compaction(app.out, agent_id, chosen))


def _show_compaction(out: Output, agent_id: str, compaction: Compaction) -> None:
    out.fields(
        (
            ("generation", compaction.generation),
            ("agent", agent_id),
            ("branch", compaction.branch_id),
            ("session", compaction.fact.session_id),
            ("watermark", compaction.mark.token if compaction.mark else "unreadable"),
            ("summary digest", compaction.summary_digest),
            ("open then", ", ".join(compaction.fact.owned) or "nothing"),
            ("position", str(compaction.position)),
            ("time", when(compaction.fact.time_ms)),
        )
    )
    out.heading("Dropped")
    out.table(("REFERENCE", "SHA-256"), [(d.reference, d.digest or None) for d in compaction.dropped], empty="Nothing.")
    out.heading("Operations that the summary names")
    out.table(("OPERATION",), [(op_id,) for op_id in compaction.kept], empty="None.")


# -- resume ----------------------------------------------------------------------------


@click.group(cls=Group)
def resume() -> None:
    """Decide whether a restored agent may go on from its context, or must first learn what it lost."""


@resume.command(
    examples=(
        "fencepost resume check nightly --checkpoint ckpt-42 --summary-generation 7 --summary summary.txt",
        "fencepost resume check nightly --checkpoint ckpt-42 --summary-generation 7 --depends-on billing.refund:A1 --json",
    ),
    exits={
        0: "the agent may go on from the context as it is",
        3: "a fact that it depends on is missing, and nothing brings it back",
        4: "it must reconcile first; everything is there for that",
        5: "no such agent",
        7: "the projection is too stale to say",
    },
)
@click.argument("agent_id", metavar="AGENT")
@click.option("--checkpoint", "checkpoint_id", metavar="CHECKPOINT", required=True, help="What it was restored from.")
@click.option(
    "--summary-generation", type=click.IntRange(min=0), required=True, help="Of the restored summary; 0 without one."
)
@click.option(
    "--depends-on", "depends_on", metavar="REF[=SHA256]", multiple=True, help="A fact that the next turn depends on."
)
@click.option(
    "--held", metavar="REF FILE", nargs=2, type=(str, click.File("rb")), multiple=True, help="The text of a reference."
)
@click.option(
    "--summary", type=click.File(encoding="utf-8", errors="replace"), metavar="FILE|-", help="The restored summary."
)
@click.option(
    "--state",
    type=click.File(encoding="utf-8", errors="replace"),
    metavar="FILE|-",
    help="The restored state; a token that it holds must be the checkpoint's.",
)
@click.pass_obj
def check(
    app: App,
    *,
    agent_id: str,
    checkpoint_id: str,
    summary_generation: int,
    depends_on: tuple[str, ...],
    held: tuple[tuple[str, IO[bytes]], ...],
    summary: IO[str] | None,
    state: IO[str] | None,
) -> None:
    """Say whether a restored context is whole, and if not, what the agent must learn; changes nothing."""
    wanted = [_dependency(item) for item in depends_on]
    texts = {reference: file.read() for reference, file in held}
    summary_text, state_text = _text_of(summary), _text_of(state)
    with app.ledger() as ledger:
        answer = ledger.resume(
            agent_id,
            checkpoint=checkpoint_id,
            summary_generation=summary_generation,
            depends_on=wanted,
            summary=summary_text,
            state=state_text,
            held=texts,
        )
    values = answer.to_dict()
    app.out.data(values, lambda: _show_answer(app.out, answer))
    answer.raise_for_missing()
    if values["answer"] != "RESUME":
        app.out.note(ONLY_TOLD)
    leave(0 if values["answer"] == "RESUME" else NEEDS_RECONCILING)


def _dependency(item: str) -> Dropped:
    from .facts import Dropped  # noqa: PLC0415 - takes its time

    match = _WITH_DIGEST.fullmatch(item)
    return Dropped(match[1], match[2]) if match else Dropped(item)


def _text_of(file: IO[str] | None) -> str:
    """The text; one that is empty has lost everything, which is not the same as not being given."""
    return "" if file is None else file.read() or " "


def _show_answer(out: Output, answer: Resume | Reconcile) -> None:
    values = answer.to_dict()
    out.fields(
        (
            ("answer", values["answer"]),
            ("agent", f"{answer.agent_id}/{answer.branch_id}"),
            ("checkpoint", answer.checkpoint_id),
            ("generation", f"{answer.generation}, the summary's {answer.summary_generation}"),
            ("watermark", answer.token or "unreadable"),
            ("as of", f"{duration(answer.age_s)} ago"),
        )
    )
    sections = (
        ("Reasons", ("REASON", "WHAT"), [(r["kind"], r["text"]) for r in values.get("reasons", ())]),
        ("Effects to learn", ("OPERATION", "TOOL", "CLASS", "STATUS", "BRANCH", "RESULT"), _effect_rows(values)),
        (
            "Undone since",
            ("OPERATION", "TOOL", "ROUND", "BY", "NAMED BY"),
            [(u["op_id"], u["tool"], u["round"], u["by"] or None, u["undo_op_id"]) for u in values.get("undone", ())],
        ),
        (
            "Calls outside the ledger to learn",
            ("TOOL", "CLASS", "BRANCH", "SEQ", "REPORTED", "BY"),
            [
                (c["tool"], c["effect_class"], c["branch_id"], c["seq"], when(c["time_ms"]), c["by"] or None)
                for c in values.get("calls", ())
            ],
        ),
        ("Recovered", ("REFERENCE", "WHAT"), [(n, shortened(v) or "null") for n, v in values.get("recovered", {}).items()]),
        ("Missing", ("REFERENCE", "WHY"), list(values.get("missing", {}).items())),
        ("Open at the checkpoint", ("OPERATION", "NOW"), list(answer.open_operations.items())),
        ("Losses", ("OPERATION", "NOT TAKEN BACK"), [(n, what) for n, all_ in answer.losses.items() for what in all_]),
    )  # fmt: skip
    for title, columns, rows in sections:
        if rows:
            out.heading(title)
            out.table(columns, rows, empty="")


def _effect_rows(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            e["op_id"], e["tool"], e["effect_class"], e["status"], e["branch_id"] or None,
            shortened(e["result"]) if e["result_form"] == "JSON" else e["result_form"].lower(),
        )
        for e in values.get("effects", ())
    ]  # fmt: skip
