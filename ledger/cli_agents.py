"""`fencepost agents list|show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group
from .cli_decided import (
    declaration_dict,
    reported_dict,
    rollback_dict,
    show_declarations,
    show_reported,
    show_rollbacks,
)
from .cli_output import Output, ago, duration, when

if TYPE_CHECKING:
    from .facade import Ledger
    from .lineage import Branch, Prune, Session
    from .service import AgentWatermark
    from .view import AgentView


@click.group(cls=Group)
def agents() -> None:
    """Show agents: how far the ledger knows each, and what they have open."""


@agents.command("list", examples=("fencepost agents list", "fencepost agents list --json | jq -r '.agents[].agent_id'"))
@click.pass_obj
def list_(app: App) -> None:
    """List the agents with their branches, sessions, and open operations."""
    with app.ledger() as ledger:
        found = _summaries(ledger)
    columns = ("AGENT", "BRANCHES", "SESSIONS", "NOT ENDED", "CHECKPOINTS", "OPEN", "ROLLBACK", "PROBLEM")
    rows = [
        (
            a["agent_id"], a["branches"], a["sessions"], a["live_sessions"], a["checkpoints"], a["open_operations"],
            "being decided" if a["pending_rollback"] else None, a["unsafe"] or None,
        )
        for a in found
    ]  # fmt: skip
    payload = {"schema": "fencepost.agents.v1", "agents": found}
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="No agents."))


def _summaries(ledger: Ledger) -> list[dict[str, Any]]:
    from .view import age_s  # noqa: PLC0415 - takes its time

    still_open: dict[str, int] = {}
    for item in ledger.open_operations():
        for name in {attempt.intent.agent_id for attempt in item.operation.attempts.values()}:
            still_open[name] = still_open.get(name, 0) + 1
    found = []
    for name in ledger.agents():
        view = ledger.agent(name)
        agent = view.agent
        found.append(
            {
                "agent_id": name,
                "branches": len(agent.branches),
                "sessions": sum(not s.rejected for s in agent.sessions.values()),
                "live_sessions": sum(s.live for s in agent.sessions.values()),
                "checkpoints": len(view.checkpoints),
                "open_operations": still_open.get(name, 0),
                "pending_rollback": agent.pending.rollback_id if agent.pending else "",
                "unsafe": agent.unsafe,
                "age_s": round(age_s(view.header), 3),
            }
        )
    return found


@agents.command(
    examples=("fencepost agents show nightly",),
    exits={0: "done", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.argument("agent_id", metavar="AGENT")
@click.pass_obj
def show(app: App, agent_id: str) -> None:
    """Show one agent: watermarks, sessions, branches, rollbacks, and what it has open."""
    with app.ledger() as ledger:
        values = _agent_dict(ledger, agent_id)
    app.out.data({"schema": "fencepost.agent.v1", **values}, lambda: _show(app.out, values))


def _agent_dict(ledger: Ledger, agent_id: str) -> dict[str, Any]:
    from .view import age_s  # noqa: PLC0415 - takes its time

    view = ledger.agent(agent_id)
    marks = {mark.session_id: mark for mark in ledger.watermarks(agent_id)}
    agent = view.agent
    return {
        "agent_id": agent_id,
        "unsafe": agent.unsafe,
        "pending_rollback": agent.pending.rollback_id if agent.pending else "",
        "sessions": [_session_dict(s, marks.get(s.session_id)) for s in agent.sessions.values()],
        "branches": [branch_dict(view, b) for b in agent.branches.values()],
        "rollbacks": [rollback_dict(r) for r in agent.rollbacks.values()],
        "reported_calls": [reported_dict(one) for one in ledger.reported_calls(agent_id)],
        "approvals": [one.approval.to_dict() for one in ledger.plans(agent_id)],
        "declarations": [declaration_dict(fact) for fact in agent.declarations.values()],
        "open_operations": [item.to_dict() for item in ledger.open_operations(agent_id)],
        "obligations": [item.to_dict() for item in ledger.obligations(agent_id)],
        "age_s": round(age_s(view.header), 3),
    }


def _session_dict(session: Session, mark: AgentWatermark | None) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "branch_id": session.branch_id,
        "epoch": str(session.epoch),
        "watermark": mark.mark.to_dict() if mark else None,
        "highest_seq": mark.highest_seq if mark else 0,
        "heard_of": mark.live if mark else False,
        "live": session.live,
        "ended": session.ended,
        "ended_at": str(session.ended_at) if session.ended_at is not None else None,
        "sealed_seq": session.sealed_seq,
        "rejected": session.rejected,
        "resumed_from": [str(session.parent.epoch), session.parent.seq] if session.parent.seq else None,
        "host": session.opened.host,
        "pid": session.opened.pid,
        "opened_ms": session.opened.time_ms,
    }


def branch_dict(view: AgentView, branch: Branch) -> dict[str, Any]:
    """A branch, with its session and its checkpoints."""
    head = branch.head
    return {
        "branch_id": branch.branch_id,
        "parent_branch_id": branch.parent_branch_id,
        "fork_checkpoint": branch.fork_checkpoint,
        "segment": branch.segment,
        "sessions": len(branch.sessions),
        "session_id": head.session_id if head else "",
        "live": head.live if head else False,
        "checkpoints": sum(c.branch_id == branch.branch_id for c in view.checkpoints.values()),
        "closed": branch.forbidden,
        "pruned": _prune_dict(branch.pruned) if branch.pruned else None,
    }


def _prune_dict(prune: Prune) -> dict[str, Any]:
    decision = prune.decisions[-1] if prune.decisions else None
    return {
        "prune_id": prune.prune_id,
        "position": str(prune.position),
        "verdict": decision.verdict if decision else "",
        "by": prune.fact.by,
        "evidence": prune.fact.evidence,
        "time_ms": prune.fact.time_ms,
    }


def _show(out: Output, values: dict[str, Any]) -> None:
    out.fields(
        (
            ("agent", values["agent_id"]),
            ("problem", values["unsafe"] or None),
            ("as of", f"{duration(values['age_s'])} ago"),
        )
    )
    out.heading("Branches")
    show_branches(out, values["branches"])
    out.heading("Sessions")
    out.table(
        ("SESSION", "BRANCH", "EPOCH", "KNOWN TO", "HIGHEST", "STATE", "OPENED"),
        [
            (
                s["session_id"], s["branch_id"], s["epoch"], s["watermark"]["seq"] if s["watermark"] else None,
                s["highest_seq"], _session_state(s), when(s["opened_ms"]),
            )
            for s in values["sessions"]
        ],
        empty="None.",
    )  # fmt: skip
    show_reported(out, values["reported_calls"])
    if values["approvals"]:
        out.heading("Approved plans")
        plans = [
            (
                a["plan_digest"][:16], a["by"], a["evidence"] or None, ", ".join(a["losses"]) or None,
                when(a["time_ms"]),
            )
            for a in values["approvals"]
        ]  # fmt: skip
        out.table(("PLAN", "APPROVED BY", "EVIDENCE", "LOSSES", "TIME"), plans, empty="")
    out.heading("Rollbacks")
    show_rollbacks(out, values["rollbacks"])
    show_declarations(out, values["declarations"])
    out.heading("Open operations")
    show_open(out, values["open_operations"])
    if values["obligations"]:
        out.heading("Obligations of pruned branches")
        show_obligations(out, values["obligations"])
    live = [s["watermark"]["token"] for s in values["sessions"] if s["live"] and s["watermark"]]
    if live:
        out.heading("Watermarks of live sessions")
        for token in live:
            out.text(token)


def _session_state(session: dict[str, Any]) -> str:
    if session["rejected"]:
        return f"rejected: {session['rejected']}"
    if session["live"]:
        return "live" if session["heard_of"] else "silent"
    return str(session["ended"])


def show_obligations(out: Output, items: list[dict[str, Any]]) -> None:
    """A table of obligations, as their `to_dict` gives them."""
    columns = ("AGENT", "BRANCH", "KIND", "OPERATION", "TOOL", "SESSION", "SEQ", "SINCE", "VERSION", "WHY")
    rows = [
        (
            i["agent_id"], i["branch_id"], i["kind"], i["op_id"] or None, i["tool"] or None,
            i["session_id"] or None, i["seq"] or None, ago(i["since_ms"]), i["version"] or None, i["why"] or None,
        )
        for i in items
    ]  # fmt: skip
    out.table(columns, rows, empty="No obligations.")


def show_branches(out: Output, branches: list[dict[str, Any]]) -> None:
    """A table of what `branch_dict` gives."""
    rows = [
        (
            b["branch_id"], b["parent_branch_id"] or None, b["fork_checkpoint"] or None, b["sessions"], b["live"],
            b["checkpoints"], b["closed"] or None,
        )
        for b in branches
    ]  # fmt: skip
    columns = ("BRANCH", "FORKED FROM", "AT", "SESSIONS", "NOT ENDED", "CHECKPOINTS", "CLOSED")
    out.table(columns, rows, empty="No branches.")
    show_prunes(out, branches)


def show_prunes(out: Output, branches: list[dict[str, Any]]) -> None:
    """A table of which branches were pruned, by whom and why; nothing when none was."""
    rows = [
        (b["branch_id"], p["by"] or None, p["evidence"] or None, p["verdict"] or "unfinished", when(p["time_ms"]))
        for b in branches
        if (p := b["pruned"])
    ]
    if rows:
        out.heading("Pruned branches")
        out.table(("BRANCH", "BY", "EVIDENCE", "VERDICT", "TIME"), rows, empty="")


def show_open(out: Output, items: list[dict[str, Any]], *, empty: str = "None.") -> None:
    """A table of open operations, as their `to_dict` gives them."""
    columns = ("OPERATION", "TOOL", "CLASS", "STATE", "AGENT", "BRANCH", "SINCE", "VERSION")
    rows = [
        (
            i["op_id"], i["tool"] or None, i["effect_class"], i["state"], i["agent_id"] or None,
            i["branch_id"] or None, ago(i["since_ms"]), i["version"] or None,
        )
        for i in items
    ]  # fmt: skip
    out.table(columns, rows, empty=empty)
