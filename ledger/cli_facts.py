"""Operations and facts as plain data for JSON, and as rows for tables."""

from __future__ import annotations

import json
from dataclasses import fields
from enum import StrEnum
from typing import Any

from . import losers
from .cli_output import Cell, Output, shortened, when
from .errors import ManifestError
from .facts import EffectFact, decode_effect
from .listing import standing
from .operations import Attempt, Operation
from .plans import step_of
from .positions import NOWHERE, Position
from .view import OperationView, age_s


def plain(value: Any) -> Any:
    """A field of a fact as JSON has it: positions as text, recorded JSON decoded, other bytes escaped."""
    if isinstance(value, Position):
        return None if value == NOWHERE else str(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode("utf-8", "backslashreplace")


def fact_dict(position: Position, fact: EffectFact) -> dict[str, Any]:
    """A fact with its position."""
    return {"position": str(position), **{f.name: plain(getattr(fact, f.name)) for f in fields(fact)}}


def summary_dict(view: OperationView) -> dict[str, Any]:
    """What a list says of an operation."""
    operation = view.operation
    owner = operation.owner.intent if operation.owner else operation.first
    return {
        "op_id": operation.op_id,
        "tool": operation.tool,
        "effect_class": operation.effect_class.value,
        "status": standing(view).value,
        "round": operation.round,
        "version": operation.version,
        "agent_id": owner.agent_id if owner else "",
        "branch_id": owner.branch_id if owner else "",
        "attempts": len(operation.attempts),
        "settled_at": plain(operation.settled_at),
        "needs_attention": operation.needs_attention or bool(view.seen.unsafe),
    }


def operation_dict(view: OperationView) -> dict[str, Any]:
    """Everything about an operation."""
    operation, first, settled = view.operation, view.operation.first, view.operation.settled
    return {
        **summary_dict(view),
        "idempotency_key": operation.idempotency_key,
        "resource": first.resource if first else "",
        "cascades": list(first.cascades) if first else [],
        "order_safe": first.order_safe if first else False,
        "flagged": operation.flagged,
        "problem": view.seen.unsafe,
        "owner_ended": view.seen.owner_ended,
        "result": plain(operation.result),
        "result_form": operation.result_form.value,
        "result_digest": settled.result_digest if settled else "",
        "result_reference": settled.result_reference if settled else "",
        "attempts": [_attempt_dict(a, operation) for a in operation.attempts.values()],
        "anomalies": [
            {"position": str(a.position), "attempt_id": a.attempt_id, "what": a.what} for a in operation.anomalies
        ],
        "resolutions": [
            {
                "position": str(r.position), "outcome": r.fact.outcome.value, "by": r.fact.by,
                "evidence": r.fact.evidence, "version": r.fact.version, "effective": r.effective,
                "risk_accepted": r.fact.risk_accepted,
            }
            for r in operation.resolutions
        ],
        **_undo_dict(operation),
        "facts": [fact_dict(position, decode_effect(data)) for position, data in view.facts],
        "partition": str(view.partition),
        "applied_offset": view.header.applied_offset,
        "age_s": round(age_s(view.header), 3),
    }  # fmt: skip


def _undo_dict(operation: Operation) -> dict[str, Any]:
    """How it can be undone, who relies on it, and what became of undoing it."""
    settled = operation.settled
    step, why = None, ""
    if operation.stands and not operation.harmless:
        try:
            step = step_of(operation)
        except ManifestError as error:
            why = error.message
    return {
        "manifest": plain(operation.sealed_manifest),
        "manifest_digest": settled.manifest_digest if settled and operation.sealed_manifest else "",
        "verdict": step.manifest.verdict.value if step else "",
        "not_undoable": why,
        "adopted_by": [a.fact.by or f"{a.fact.agent_id}/{a.fact.branch_id}" for a in operation.adoptions],
        "undoings": [
            {
                "position": str(u.position), "plan_digest": u.fact.plan_digest, "by": u.fact.by,
                "effective": u.effective, "under_way": operation.undoing is u.fact, "reason": u.fact.reason,
            }
            for u in operation.undoings
        ],
        "compensations": [
            {
                "round": c.round, "by": c.by, "evidence": c.evidence, "plan_digest": c.plan_digest,
                "compensation_op_id": c.other_op_id, "losses": list(c.losses), "reason": c.reason,
            }
            for c in operation.compensations
        ],
        "losses": list(operation.losses),
        "summarised": losers.count(operation),
    }  # fmt: skip


def _attempt_dict(attempt: Attempt, operation: Operation) -> dict[str, Any]:
    intent, outcome = attempt.intent, attempt.outcome
    return {
        "attempt_id": attempt.attempt_id,
        "position": str(attempt.position),
        "state": attempt.state.value,
        "owner": attempt is operation.owner,
        "agent_id": intent.agent_id,
        "branch_id": intent.branch_id,
        "session_id": intent.session_id,
        "epoch": plain(intent.epoch),
        "seq": intent.seq,
        "round": intent.round,
        "time_ms": intent.time_ms,
        "outcome": outcome.kind.value if outcome else "",
        "outcome_position": plain(attempt.outcome_position),
        "error": outcome.error if outcome else "",
    }


def show_operation(out: Output, values: dict[str, Any]) -> None:
    """Print what `operation_dict` gives."""
    out.fields(
        (
            ("operation", values["op_id"]),
            ("tool", values["tool"] or None),
            ("class", values["effect_class"]),
            ("status", values["status"] + (" (flagged: a late commit)" if values["flagged"] else "")),
            ("problem", values["problem"] or None),
            ("round", values["round"]),
            ("version", values["version"] or None),
            ("idempotency key", values["idempotency_key"]),
            ("resource", values["resource"] or None),
            ("cascades", ", ".join(values["cascades"]) or None),
            ("result", shortened(values["result"], 2000)),
            ("result form", values["result_form"] if values["status"] == "committed" else None),
            ("reference", values["result_reference"] or None),
            ("undo", values["verdict"] or values["not_undoable"] or None),
            (
                "undone by",
                values["manifest"] and f"{values['manifest']['action']['name']} ({values['manifest_digest']})",
            ),
            ("relied on by", ", ".join(values["adopted_by"]) or None),
            ("losses", ", ".join(values["losses"]) or None),
            ("attempts kept as numbers", values["summarised"] or None),
            ("partition", f"{values['partition']}, applied to {values['applied_offset']}"),
        )
    )
    out.heading("Attempts")
    out.table(
        ("POSITION", "ATTEMPT", "STATE", "AGENT", "BRANCH", "EPOCH", "SEQ", "ROUND", "OUTCOME"),
        [
            (
                a["position"], a["attempt_id"], a["state"], a["agent_id"], a["branch_id"], a["epoch"], a["seq"],
                a["round"], a["outcome"] or None,
            )
            for a in values["attempts"]
        ],
        empty="None.",
    )  # fmt: skip
    _show_troubles(out, values)
    _show_undoings(out, values)
    out.heading("Facts")
    rows = [(f["position"], f["kind"], when(f["time_ms"]), f["attempt_id"] or None, detail(f)) for f in values["facts"]]
    out.table(("POSITION", "FACT", "TIME", "ATTEMPT", "DETAIL"), rows, empty="None.")


def _show_troubles(out: Output, values: dict[str, Any]) -> None:
    if values["anomalies"]:
        out.heading("Anomalies")
        rows: list[tuple[Cell, ...]] = [(a["position"], a["attempt_id"], a["what"]) for a in values["anomalies"]]
        out.table(("POSITION", "ATTEMPT", "WHAT"), rows, empty="")
    if values["resolutions"]:
        out.heading("Resolutions")
        rows = [(r["position"], r["outcome"], r["effective"], r["by"], r["evidence"]) for r in values["resolutions"]]
        out.table(("POSITION", "OUTCOME", "COUNTS", "BY", "EVIDENCE"), rows, empty="")


def _show_undoings(out: Output, values: dict[str, Any]) -> None:
    if values["undoings"]:
        out.heading("Undoings")
        rows: list[tuple[Cell, ...]] = [
            (u["position"], u["plan_digest"][:16], u["by"], u["reason"] or None, u["effective"], u["under_way"])
            for u in values["undoings"]
        ]
        out.table(("POSITION", "PLAN", "APPROVED BY", "REASON", "COUNTS", "UNDER WAY"), rows, empty="")
    if values["compensations"]:
        out.heading("Compensations")
        rows = [
            (
                c["round"],
                c["compensation_op_id"] or None,
                c["by"] or None,
                c["reason"] or None,
                c["evidence"] or None,
                ", ".join(c["losses"]) or None,
            )
            for c in values["compensations"]
        ]
        out.table(("ROUND", "COMPENSATION", "BY", "REASON", "EVIDENCE", "LOST"), rows, empty="")


def detail(fact: dict[str, Any]) -> str:
    """What is worth saying of a fact in one line."""
    said = (
        ("arguments", shortened(fact["arguments"])),
        ("result", shortened(fact["result"])),
        ("error", shortened(fact["error"] or None)),
        ("reason", shortened(fact["reason"] or None)),
        ("outcome", fact["outcome"] if fact["kind"] == "RESOLVED" else None),
        ("for", f"{fact['agent_id']}/{fact['branch_id']}" if fact["kind"] == "ADOPTED" and fact["agent_id"] else None),
        ("saw version", fact["version"] or None),
        ("compensation", fact["other_op_id"] or None),
        ("plan", fact["plan_digest"][:16] or None),
        ("losses", ", ".join(fact["losses"]) or None),
        ("by", fact["by"] or None),
        ("supplied key", shortened(fact["supplied_key"] or None)),
        ("evidence", shortened(fact["evidence"] or None)),
    )
    return ", ".join(f"{name} {text}" for name, text in said if text is not None)
