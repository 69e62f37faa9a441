"""The two answers on a restored context: it may go on as it is (`Resume`), or must first learn something (`Reconcile`)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from .errors import SummaryReconciliationError
from .facts import EffectClass
from .positions import Position
from .replay import ReplayedOperation
from .undone import UndoneEffect
from .verdicts import Reason

_TOLD = 5
"""How many names an error message spells out; the answer has them all."""


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """A call outside the ledger that the restored context may have lost: no op_id names it, and nothing undoes it.

    Attributes:
        seq: of the report, in its session.
        time_ms: when it was reported, since 1970.
        by, evidence: who reported it, and how they know, where a person did.
    """

    tool: str
    effect_class: EffectClass
    branch_id: str
    epoch: Position
    seq: int
    time_ms: int
    by: str = ""
    evidence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "tool": self.tool, "effect_class": self.effect_class.value, "branch_id": self.branch_id,
            "epoch": str(self.epoch), "seq": self.seq, "time_ms": self.time_ms, "by": self.by, "evidence": self.evidence,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What both answers say.

    Attributes:
        generation: the checkpoint's; `summary_generation` is what the caller named.
        token: the checkpoint's watermark, for opening the session that goes on; "" if it is unreadable.
        open_operations: op_id → how it stands now, of the operations that were open at the checkpoint.
        losses: op_id → effects that could not be taken back when it was undone, accepted by name.
        age_s: age of the answer, seconds.
    """

    agent_id: str
    branch_id: str
    checkpoint_id: str
    generation: int
    summary_generation: int
    token: str = ""
    open_operations: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    age_s: float = 0.0

    def _plain(self, answer: str) -> dict[str, Any]:
        return {
            "schema": "fencepost.resume.v1",
            "answer": answer,
            "agent_id": self.agent_id,
            "branch_id": self.branch_id,
            "checkpoint_id": self.checkpoint_id,
            "generation": self.generation,
            "summary_generation": self.summary_generation,
            "token": self.token,
            "open_operations": dict(self.open_operations),
            "losses": {op_id: list(what) for op_id, what in self.losses.items()},
            "age_s": round(self.age_s, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(_Answer):
    """The restored context is whole: the agent may go on from it."""

    def raise_for_missing(self) -> Self:
        """This answer: nothing is missing."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with a stable schema."""
        return self._plain("RESUME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile(_Answer):
    """The restored context has lost something; here is what the ledger knows of it.

    Attributes:
        reasons: why the agent must not simply go on.
        effects: in order, with recorded results: what the context no longer names, and what happened
            after the checkpoint. The agent must learn all of them before it goes on, and its session take them
            over (`AgentSession.replay_forward`): its next checkpoint knows no more than this one otherwise.
        recovered: reference → the text, or of an operation the recorded result, that was not there.
        missing: reference → why nothing brings it back.
        undone: what the checkpoint takes for done, and is not any more.
        calls: harmful calls outside the ledger, in order, that a compaction may have lost, or that were reported
            after the checkpoint. The agent must learn all of them as well.
    """

    reasons: tuple[Reason, ...]
    effects: tuple[ReplayedOperation, ...] = ()
    recovered: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    undone: tuple[UndoneEffect, ...] = ()
    calls: tuple[ReportedCall, ...] = ()

    def raise_for_missing(self) -> Self:
        """This answer, if all can be recovered. Raises SummaryReconciliationError naming what cannot."""
        if not self.missing:
            return self
        told = "; ".join(f"{reference} ({why})" for reference, why in list(self.missing.items())[:_TOLD])
        more = f"; and {len(self.missing) - _TOLD} more" if len(self.missing) > _TOLD else ""
        raise SummaryReconciliationError(
            f"{self.agent_id}/{self.branch_id} cannot go on from checkpoint {self.checkpoint_id}: "
            f"what it depends on is missing: {told}{more}.",
            next_step="Hand the missing texts over from their own source (`held=`, `resolve=`), or let an operator "
            "decide what the agent may go on without.",
            agent_id=self.agent_id,
            checkpoint_id=self.checkpoint_id,
            missing=dict(self.missing),
            recovered=dict(self.recovered),
            reasons=[reason.text for reason in self.reasons],
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with a stable schema; bytes that are no text stand in base64."""
        return {
            **self._plain("RECONCILE"),
            "reasons": [reason.to_dict() for reason in self.reasons],
            "effects": [effect.to_dict() for effect in self.effects],
            "recovered": {name: _told(value) for name, value in self.recovered.items()},
            "missing": dict(self.missing),
            "undone": [undone.to_dict() for undone in self.undone],
            "calls": [call.to_dict() for call in self.calls],
        }


def _told(value: Any) -> Any:
    return {"$bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
