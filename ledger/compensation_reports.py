"""What carrying out a plan of compensations begins with, and what it ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .approvals import Approval
from .plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What became of one step.

    Attributes:
        now: whether this run did it; False when it was undone before.
        result: what the compensator returned, where it is recorded.
        losses: what could not be taken back and was accepted.
    """

    op_id: str
    round: int
    compensation_op_id: str
    now: bool
    result: Any = None
    losses: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "round": self.round, "compensation_op_id": self.compensation_op_id,
            "now": self.now, "result": self.result, "losses": list(self.losses),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensationReport:
    """A plan that was carried out to its end.

    Attributes:
        steps: in the order of the plan.
    """

    plan: Plan
    approval: Approval
    steps: tuple[Undone, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """What could not be taken back, by name."""
        return tuple(dict.fromkeys(loss for step in self.steps for loss in step.losses))

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": "fencepost.compensation.v1",
            "plan_digest": self.plan.digest,
            "agent_id": self.plan.agent_id,
            "approved_by": self.approval.by,
            "evidence": self.approval.evidence,
            "steps": [step.to_dict() for step in self.steps],
            "losses": list(self.losses),
        }


@dataclass(slots=True)
class Orders:
    """Who wants a plan carried out, and what they accept."""

    approved_by: str = ""
    evidence: str = ""
    accepted: tuple[str, ...] = ()
