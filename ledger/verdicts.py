"""The guard's answers: verdicts as values, with typed reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from .errors import UnsafeRollbackError
from .facts import EffectClass
from .plans import Plan
from .watermarks import Point

_TOLD = 5
"""How many reasons an error message spells out; the verdict has them all."""


class Word(NamedTuple):
    """Who decided something, and how they know; both empty where a program decided by itself."""

    by: str = ""
    evidence: str = ""


NOBODY = Word()
"""The word where no person has said anything."""


class Policy(StrEnum):
    """What the caller asserts. GATED: op ids are stable across replays."""

    STRICT = "STRICT"
    GATED = "GATED"


class VerdictKind(StrEnum):
    """What the guard says."""

    PROCEED = "PROCEED"
    PROCEED_GATED = "PROCEED_GATED"
    COMPENSATE_FIRST = "COMPENSATE_FIRST"
    REFUSE = "REFUSE"


class ReasonKind(StrEnum):
    """Why the guard refuses, or an agent must reconcile, as a value that a program can switch on."""

    EFFECT_NOT_KNOWN = "EFFECT_NOT_KNOWN"
    EFFECT_IN_DOUBT = "EFFECT_IN_DOUBT"
    EFFECT_OWNED = "EFFECT_OWNED"
    EFFECT_UNSAFE = "EFFECT_UNSAFE"
    EFFECT_BEING_UNDONE = "EFFECT_BEING_UNDONE"
    EFFECT_ORDER_DEPENDENT = "EFFECT_ORDER_DEPENDENT"
    EFFECT_ADOPTED = "EFFECT_ADOPTED"
    CONCURRENT_MUTATION = "CONCURRENT_MUTATION"
    CALL_OUTSIDE_LEDGER = "CALL_OUTSIDE_LEDGER"
    TOO_MANY_EFFECTS = "TOO_MANY_EFFECTS"
    WATERMARK_UNREADABLE = "WATERMARK_UNREADABLE"
    WATERMARK_OF_ANOTHER_LEDGER = "WATERMARK_OF_ANOTHER_LEDGER"
    WATERMARK_MISMATCH = "WATERMARK_MISMATCH"
    WATERMARK_AHEAD = "WATERMARK_AHEAD"
    CHECKPOINT_NOT_REGISTERED = "CHECKPOINT_NOT_REGISTERED"
    CHECKPOINT_NOT_ON_PATH = "CHECKPOINT_NOT_ON_PATH"
    CHECKPOINT_DOES_NOT_COUNT = "CHECKPOINT_DOES_NOT_COUNT"
    SUMMARY_OLDER = "SUMMARY_OLDER"
    SUMMARY_NEWER = "SUMMARY_NEWER"
    SUMMARY_OF_ANOTHER_GENERATION = "SUMMARY_OF_ANOTHER_GENERATION"
    SUMMARY_FOREIGN = "SUMMARY_FOREIGN"
    SUMMARY_WITHOUT_TOKEN = "SUMMARY_WITHOUT_TOKEN"  # noqa: S105 (a token of a watermark)
    EFFECT_NOT_NAMED = "EFFECT_NOT_NAMED"
    CALL_NOT_NAMED = "CALL_NOT_NAMED"
    EFFECT_UNDONE = "EFFECT_UNDONE"
    DEPENDENCY_NOT_PRESENT = "DEPENDENCY_NOT_PRESENT"
    ROLLBACK_PENDING = "ROLLBACK_PENDING"
    AGENT_UNSAFE = "AGENT_UNSAFE"
    WITHDRAWN = "WITHDRAWN"


class WayOn(StrEnum):
    """What a refused caller can do. Doing the same again is not among them."""

    COMPENSATE = "compensate the effects and record it"
    REPLAY_FORWARD = "replay forward: a session that is opened with the checkpoint's token takes over what was done since (`replay_forward()`)"
    OPERATOR = "let an operator reconcile"
    NAME_UNDONE = "let the restored state name what was undone, and hand its text over (`restored=`, `--restored`)"
    SETTLE = "settle what is in doubt or still owned"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One effect that stands in the way."""

    op_id: str
    tool: str
    seq: int
    effect_class: EffectClass
    status: str
    branch_id: str
    owner_ended: bool = False
    round: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "seq": self.seq,
            "effect_class": self.effect_class.value, "status": self.status,
            "branch_id": self.branch_id, "owner_ended": self.owner_ended, "round": self.round,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """One typed reason; `effect` where one effect is behind it."""

    kind: ReasonKind
    text: str
    effect: Blocker | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        effect = self.effect.to_dict() if self.effect else None
        return {"kind": self.kind.value, "text": self.text, "effect": effect}


_UNSETTLED = {
    ReasonKind.EFFECT_IN_DOUBT, ReasonKind.EFFECT_OWNED, ReasonKind.EFFECT_UNSAFE, ReasonKind.EFFECT_BEING_UNDONE,
}  # fmt: skip
_DONE = {ReasonKind.EFFECT_NOT_KNOWN, ReasonKind.EFFECT_ORDER_DEPENDENT, ReasonKind.TOO_MANY_EFFECTS}


def ways_on(kind: VerdictKind, reasons: Sequence[Reason]) -> tuple[WayOn, ...]:
    """What whoever gets this verdict can do; nothing where it authorises."""
    if kind is VerdictKind.COMPENSATE_FIRST:
        return (WayOn.COMPENSATE, WayOn.REPLAY_FORWARD, WayOn.OPERATOR)
    if kind is not VerdictKind.REFUSE:
        return ()
    kinds = {reason.kind for reason in reasons}
    if kinds == {ReasonKind.EFFECT_UNDONE}:
        return (WayOn.NAME_UNDONE, WayOn.OPERATOR)
    ways = [WayOn.SETTLE] if kinds & _UNSETTLED else []
    if ReasonKind.EFFECT_UNDONE in kinds:
        ways.append(WayOn.NAME_UNDONE)
    if kinds & _DONE:
        ways.append(WayOn.COMPENSATE)
    return (*ways, WayOn.REPLAY_FORWARD, WayOn.OPERATOR)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The guard's answer.

    Attributes:
        reasons: why it refuses; empty otherwise.
        crossed: unknown effects that the rollback goes back over although it may proceed; with
            COMPENSATE_FIRST those that the plan undoes.
        plan: with COMPENSATE_FIRST: what must be undone, and approved, before the agent may go back.
        by, evidence: who asked for it, and why, where a person did.
        fenced: whether the branch was fenced for the decision (a session on it is over).
        dry_run: decided on the projection as it was, fencing nobody; `age_s` says how old.
    """

    kind: VerdictKind
    agent_id: str
    branch_id: str
    checkpoint_id: str
    policy: Policy
    reasons: tuple[Reason, ...] = ()
    crossed: tuple[Blocker, ...] = ()
    ways_on: tuple[WayOn, ...] = ()
    rollback_id: str = ""
    by: str = ""
    evidence: str = ""
    target: Point | None = None
    fenced: bool = False
    dry_run: bool = False
    age_s: float = 0.0
    outlook: Mapping[str, str] = field(default_factory=dict)
    plan: Plan | None = None

    @property
    def authorised(self) -> bool:
        """Whether the agent may go back, now."""
        return self.kind in {VerdictKind.PROCEED, VerdictKind.PROCEED_GATED}

    def raise_for_refusal(self) -> Verdict:
        """This verdict if it authorises; raises UnsafeRollbackError otherwise."""
        if self.authorised:
            return self
        if self.plan is not None:
            names = ", ".join(step.op_id for step in self.plan.steps[:_TOLD])
            raise UnsafeRollbackError(
                f"rollback of {self.agent_id}/{self.branch_id} to {self.checkpoint_id} needs {len(self.plan.steps)} "
                f"effect(s) undone first: {names}{', …' if len(self.plan.steps) > _TOLD else ''}.",
                next_step="Have the plan approved and carry it out (`ledger.compensate(verdict.plan, approved_by=…)`, "
                "`fencepost compensate run`), then ask anew.",
                verdict=self,
            )
        listed = "; ".join(reason.text for reason in self.reasons[:_TOLD])
        more = f"; and {len(self.reasons) - _TOLD} more" if len(self.reasons) > _TOLD else ""
        raise UnsafeRollbackError(
            f"rollback of {self.agent_id}/{self.branch_id} to {self.checkpoint_id} is refused: {listed}{more}.",
            next_step="Ways on: " + ", or ".join(way.value for way in self.ways_on) + ".",
            verdict=self,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with a stable schema."""
        return {
            "schema": "fencepost.verdict.v1",
            "verdict": self.kind.value,
            "authorised": self.authorised,
            "agent_id": self.agent_id,
            "branch_id": self.branch_id,
            "checkpoint_id": self.checkpoint_id,
            "policy": self.policy.value,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "crossed": [effect.to_dict() for effect in self.crossed],
            "ways_on": [way.value for way in self.ways_on],
            "rollback_id": self.rollback_id,
            "by": self.by,
            "evidence": self.evidence,
            "fenced": self.fenced,
            "dry_run": self.dry_run,
            "age_s": round(self.age_s, 3),
            "outlook": dict(self.outlook),
            "plan": self.plan.to_dict() if self.plan else None,
        }
