"""What was decided about an agent, as plain data and as tables: rollbacks, and declarations of held attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cli_output import Output, when

if TYPE_CHECKING:
    from .facts import AgentFact
    from .lineage import Rollback
    from .view import ReportedFact

_TOLD = 5


def rollback_dict(rollback: Rollback) -> dict[str, Any]:
    """A rollback: who asked for it and why, the verdict, its reasons, and what it goes back over."""
    decision = rollback.decision
    return {
        "rollback_id": rollback.rollback_id,
        "branch_id": rollback.branch_id,
        "checkpoint_id": rollback.fact.checkpoint_id,
        "policy": rollback.fact.policy,
        "position": str(rollback.position),
        "rejected": rollback.rejected,
        "pending": rollback.pending,
        "verdict": decision.verdict if decision else "",
        "reasons": list(decision.reasons) if decision else [],
        "crossed": [{"op_id": c.op_id, "tool": c.tool, "round": c.round or None} for c in decision.crossed]
        if decision
        else [],
        "plan_digest": decision.plan_digest if decision else "",
        "by": rollback.fact.by,
        "evidence": rollback.fact.evidence,
        "host": rollback.fact.host,
        "pid": rollback.fact.pid,
        "time_ms": rollback.fact.time_ms,
    }


def declaration_dict(fact: AgentFact) -> dict[str, Any]:
    """What somebody said that a held attempt is: the declaration that counts."""
    return {
        "op_id": fact.op_id,
        "declared_as": fact.declared_as,
        "same_as": fact.other_op_id,
        "by": fact.by,
        "evidence": fact.evidence,
        "session_id": fact.session_id,
        "time_ms": fact.time_ms,
    }


def reported_dict(one: ReportedFact) -> dict[str, Any]:
    """A call that did not go through the ledger: who reported it, and who acknowledged it."""
    call, word = one
    return {
        "session_id": call.session_id,
        "branch_id": call.branch_id,
        "seq": call.seq,
        "tool": call.tool,
        "effect_class": call.effect_class.value,
        "order_safe": call.order_safe,
        "by": call.by,
        "evidence": call.evidence,
        "time_ms": call.time_ms,
        "acknowledged": {"by": word.by, "evidence": word.evidence, "time_ms": word.time_ms} if word else None,
    }


def show_reported(out: Output, calls: list[dict[str, Any]]) -> None:
    """A table of what `reported_dict` gives; nothing when no call was reported."""
    if not calls:
        return
    out.heading("Reported calls")
    rows = [
        (
            c["tool"], c["effect_class"], c["branch_id"], c["session_id"], c["seq"], c["by"] or None,
            c["evidence"] or None,
            f"by {a['by']}: {a['evidence']}" if (a := c["acknowledged"]) else None,
        )
        for c in calls
    ]  # fmt: skip
    columns = ("TOOL", "CLASS", "BRANCH", "SESSION", "SEQ", "BY", "EVIDENCE", "ACKNOWLEDGED")
    out.table(columns, rows, empty="")


def show_rollbacks(out: Output, rollbacks: list[dict[str, Any]]) -> None:
    """A table of what `rollback_dict` gives, and below it what each decision rests on."""
    rows = [
        (
            r["position"], r["branch_id"], r["checkpoint_id"], r["policy"], _rollback_state(r), r["by"] or None,
            when(r["time_ms"]), r["rollback_id"],
        )
        for r in rollbacks
    ]  # fmt: skip
    columns = ("POSITION", "BRANCH", "CHECKPOINT", "POLICY", "VERDICT", "BY", "TIME", "ROLLBACK")
    out.table(columns, rows, empty="None.")
    for rollback in rollbacks:
        crossed = [effect["op_id"] for effect in rollback["crossed"]]
        told = (
            ("evidence", rollback["evidence"] or None),
            ("being decided by", f"process {rollback['pid']} on {rollback['host']}" if rollback["pending"] else None),
            ("crosses", _listed(crossed) or None),
            ("plan", rollback["plan_digest"] or None),
            *(("reason", reason) for reason in rollback["reasons"][:_TOLD]),
        )
        if any(value is not None for _, value in told):
            out.heading(f"Rollback {rollback['rollback_id']}")
            out.fields(told)


def show_declarations(out: Output, declarations: list[dict[str, Any]]) -> None:
    """A table of what `declaration_dict` gives; nothing when there are none."""
    if not declarations:
        return
    out.heading("Declared after gated rollbacks")
    rows = [
        (
            d["op_id"], "new" if d["declared_as"] == "new" else f"the same as {d['same_as']}", d["by"] or d["session_id"],
            d["evidence"] or None, when(d["time_ms"]),
        )
        for d in declarations
    ]  # fmt: skip
    out.table(("OPERATION", "IS", "BY", "EVIDENCE", "TIME"), rows, empty="None.")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f", and {len(names) - _TOLD} more" if len(names) > _TOLD else "")


def _rollback_state(rollback: dict[str, Any]) -> str:
    if rollback["rejected"]:
        return f"not accepted: {rollback['rejected']}"
    return str(rollback["verdict"]) or "being decided"
