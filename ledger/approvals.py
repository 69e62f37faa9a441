"""Approved plans: a fact in the agent's log that holds the plan and is bound to its digest.

A plan is carried out only as it was approved. Whoever approves accepts by name each loss that the plan
cannot take back; the fact says who did, and on what grounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import log_keys
from . import projection as docs
from .engine import Engine
from .errors import InvalidArgumentError, ManifestError, RecordTooLargeError, RefusedError
from .facts import AgentFact, AgentKind, decode_agent
from .history import History
from .identity import check_id
from .limits import ROOM_BYTES
from .plans import Plan, recorded, require_accepted
from .ports import DocumentKey
from .positions import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A plan and who approved it.

    Attributes:
        losses: what cannot be taken back and was accepted, by name.
        time_ms: the approver's clock, milliseconds since 1970.
    """

    plan: Plan
    by: str
    evidence: str
    losses: tuple[str, ...]
    time_ms: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "plan_digest": self.plan.digest, "by": self.by, "evidence": self.evidence,
            "losses": list(self.losses), "time_ms": self.time_ms,
        }  # fmt: skip


def require_ours(engine: Engine, plan: object) -> Plan:
    """The plan, if it is one and of this ledger. Raises InvalidArgumentError, RefusedError."""
    if not isinstance(plan, Plan) or not plan.steps:
        raise InvalidArgumentError(
            "plan: it undoes nothing." if isinstance(plan, Plan) else f"plan: {plan!r} is no plan.",
            next_step="Make one with `ledger.plan_compensation(…)`, or take the verdict's.",
            field="plan",
        )
    if plan.ledger_id != engine.ledger_id:
        raise RefusedError(
            f"plan: it is of ledger {plan.ledger_id}, this is {engine.ledger_id}.",
            next_step="Open the ledger that the plan was made on.",
            field="plan",
        )
    return plan


async def approve(engine: Engine, plan: Plan, *, by: str, evidence: str, accepted: tuple[str, ...]) -> Approval:
    """Approve a plan; one that is approved already stays as it was approved first.

    1. read what is approved; 2. publish PLAN_APPROVED with the plan; 3. wait until it is applied.

    Raises:
        LossNotAcceptedError: it cannot take back something that was not accepted by name.
        InvalidArgumentError: something was accepted that is no loss of it.
        RecordTooLargeError: a record has no room for it.
        StaleProjectionError: not confirmed in time; doing it again is safe.
    """
    require_accepted(plan, accepted)
    _require_losses(plan, accepted)
    if (known := await approval_of(engine, plan)) is not None:
        return known
    data = plan.data
    if len(data) > ROOM_BYTES:
        raise RecordTooLargeError(
            f"plan: it takes {len(data)} bytes.",
            next_step="Undo the newest effects first, in plans of their own (`plan_compensation(op_ids=…)`).",
            size_bytes=len(data),
            limit_bytes=ROOM_BYTES,
        )
    fact = AgentFact(
        kind=AgentKind.PLAN_APPROVED,
        agent_id=plan.agent_id,
        branch_id=plan.branch_id,
        checkpoint_id=plan.checkpoint_id,
        rollback_id=plan.cause_id,
        plan_digest=plan.digest,
        plan=data,
        by=check_id("by", by, limit=200),
        evidence=check_id("evidence", evidence, limit=2000) if evidence else "",
        losses=plan.losses,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(log_keys.plan(plan.agent_id, plan.digest), fact)

    async def applied() -> Approval | None:
        return await approval_of(engine, plan)

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(plan.agent_id)
    return await engine.applied(
        partition, applied, deadline=deadline, beyond=offset, what=f"the approval of plan {plan.digest[:16]}"
    )


def _require_losses(plan: Plan, accepted: tuple[str, ...]) -> None:
    """Raises InvalidArgumentError for what is accepted and is no loss of this plan: its author looked at another one."""
    others = [name for name in accepted if name not in plan.losses]
    if others:
        raise InvalidArgumentError(
            f"accept_losses: the plan loses no {', '.join(map(repr, others))}.",
            next_step=f"Accept what it cannot take back: {', '.join(plan.losses) or 'nothing'}.",
            field="accept_losses",
        )


async def approval_of(engine: Engine, plan: Plan) -> Approval | None:
    """The first approval of exactly this plan, if there is one."""
    key = DocumentKey(docs.agent_documents("plan", plan.agent_id), log_keys.plan(plan.agent_id, plan.digest))
    snapshot = await engine.view.read(engine.view.agents_partition(plan.agent_id), [key])
    found = _first(docs.read_history(snapshot.documents.get(key)))
    return found[1] if found and found[1].plan == plan else None


async def approvals(engine: Engine, agent_id: str) -> list[Approval]:
    """The approved plans of an agent, oldest first. A record that holds no such plan is left out."""
    collection = docs.agent_documents("plan", agent_id)
    snapshot = await engine.view.scan(engine.view.agents_partition(agent_id), collection)
    found = [one for data in snapshot.documents.values() if (one := _first(docs.read_history(data))) is not None]
    return [approval for _, approval in sorted(found, key=lambda one: one[0])]


def _first(facts: History) -> tuple[Position, Approval] | None:
    for position, data in sorted(facts):
        fact = decode_agent(data)
        if fact.kind is not AgentKind.PLAN_APPROVED or fact.plan is None:
            continue
        try:
            plan = recorded(fact.plan)
        except (InvalidArgumentError, ManifestError):
            continue
        if plan.digest == fact.plan_digest:
            return position, Approval(
                plan=plan, by=fact.by, evidence=fact.evidence, losses=fact.losses, time_ms=fact.time_ms
            )
    return None
