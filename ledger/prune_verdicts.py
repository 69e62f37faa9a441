"""What pruning a branch left behind: verdicts and obligations as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from .errors import SpeculativeRollbackViolation
from .facts import AgentFact, EffectClass, Obligation
from .plans import Plan

_WAY_ON = (
    "Let each effect stand by name (`ledger.adopt`, `fencepost branch adopt`), or undo it outside and record "
    "that with `fencepost in-doubt resolve … --compensated`."
)
_NO_WAY_ON = (
    "What carries no op id can be neither adopted nor undone here: let an operator see to it outside, and take note of "
    "each call (`ledger.acknowledge_call`, `fencepost branch acknowledge AGENT SESSION SEQ`)."
)
_TOLD = 5
"""How many effects an error message spells out; the verdict has them all."""


class PruneKind(StrEnum):
    """What the pruning of a branch comes to."""

    CLEARED = "CLEARED"
    OPEN = "OPEN"
    VIOLATION = "VIOLATION"


class ObligationKind(StrEnum):
    """What a pruned branch still asks for, as a value that a program can switch on.

    COMPENSATE: undo it, the plan says how. BEING_UNDONE: carry that undo to its end. UNDECIDED: settle
    it first. ORPHAN: nobody relies on it and nothing undoes it. CALL_OUTSIDE_LEDGER: a call without an
    op id. PRUNE_UNFINISHED: the pruning itself was left in the middle; call it again.
    """

    COMPENSATE = "COMPENSATE"
    BEING_UNDONE = "BEING_UNDONE"
    UNDECIDED = "UNDECIDED"
    ORPHAN = "ORPHAN"
    CALL_OUTSIDE_LEDGER = "CALL_OUTSIDE_LEDGER"
    PRUNE_UNFINISHED = "PRUNE_UNFINISHED"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchEffect:
    """One effect of a pruned branch, or a call that it reported (then `op_id` is empty).

    Attributes:
        status: of the operation; "reported" for a call.
        session_id, seq: of the fact that tells of it; what `acknowledge` asks for is those of a call.
        relied_on_by: branches ("agent/branch") and operators for whom it stands.
        why: what keeps it from being free, adopted, or undone; "" if nothing does.
        time_ms: when it was done, by the clock of its session.
    """

    op_id: str
    tool: str
    effect_class: EffectClass
    status: str
    session_id: str = ""
    seq: int = 0
    round: int = 1
    version: str = ""
    relied_on_by: tuple[str, ...] = ()
    why: str = ""
    time_ms: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "effect_class": self.effect_class.value,
            "status": self.status, "session_id": self.session_id, "seq": self.seq, "round": self.round,
            "version": self.version, "relied_on_by": list(self.relied_on_by), "why": self.why, "time_ms": self.time_ms,
        }  # fmt: skip


_NONE = BranchEffect(op_id="", tool="", effect_class=EffectClass.UNKNOWN, status="")
_COMES_TO = {ObligationKind.ORPHAN: PruneKind.VIOLATION, ObligationKind.CALL_OUTSIDE_LEDGER: PruneKind.VIOLATION}
"""What an open obligation makes of a prune; any other one makes it OPEN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneVerdict:
    """What a pruned branch left behind, as of the facts that were applied.

    Attributes:
        checkpoint_id: where the branch was forked.
        free: nothing of them was committed: failed, withdrawn, resolved as absent, rejected.
        adopted: committed, and `relied_on_by` a branch that stands, or by an operator.
        compensated: committed and undone since.
        undoable: committed, relied on by nobody, and sealed: what `to_compensate` undoes.
        to_compensate: the plan for `ledger.compensate`; None when there is nothing to undo.
        orphans: committed, relied on by nobody, and nothing undoes them.
        undecided: in doubt, still owned when they were fenced, being undone, or unreadable.
        violations: calls that were reported on the branch, are no reads, and carry no op id.
        completed: open obligations of branches that were pruned before, of this agent or of another: effects on
            which this branch relied, and nobody does any more. They count as its own for `kind`.
        siblings: open obligations of all other branches that were pruned from the same checkpoint.
        dry_run: the branch was neither closed nor fenced; `age_s` says how old what was looked at is.
    """

    kind: PruneKind
    agent_id: str
    branch_id: str
    checkpoint_id: str
    prune_id: str
    free: tuple[BranchEffect, ...] = ()
    adopted: tuple[BranchEffect, ...] = ()
    compensated: tuple[BranchEffect, ...] = ()
    undoable: tuple[BranchEffect, ...] = ()
    to_compensate: Plan | None = None
    orphans: tuple[BranchEffect, ...] = ()
    undecided: tuple[BranchEffect, ...] = ()
    violations: tuple[BranchEffect, ...] = ()
    completed: tuple[OpenObligation, ...] = ()
    siblings: tuple[OpenObligation, ...] = ()
    dry_run: bool = False
    age_s: float = 0.0

    @property
    def restored(self) -> bool:
        """Whether no obligation is open, so that the fork's checkpoint counts as restored."""
        return self.kind is PruneKind.CLEARED and not self.siblings and not self.dry_run

    @property
    def committed(self) -> int:
        """How many effects the branch had committed, undone ones included."""
        groups = (self.adopted, self.compensated, self.undoable, self.orphans)
        return sum(map(len, groups)) + sum(e.status == "compensating" for e in self.undecided)

    @property
    def open_effects(self) -> tuple[tuple[ObligationKind, BranchEffect], ...]:
        """What is left to be done, each with its kind: the gravest first."""
        undone = [(ObligationKind.COMPENSATE, e) for e in self.undoable]
        waiting = [(_waits_for(e), e) for e in self.undecided]
        orphans = [(ObligationKind.ORPHAN, e) for e in self.orphans]
        return (*orphans, *((ObligationKind.CALL_OUTSIDE_LEDGER, e) for e in self.violations), *waiting, *undone)

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """What is left to be done, with what it completed, as the log records it."""
        own = (Obligation(e.op_id, e.tool, kind.value) for kind, e in self.open_effects)
        return (*own, *(Obligation(o.op_id, o.tool, o.kind.value) for o in self.completed))

    def with_others(self, *, completed: Iterable[OpenObligation], siblings: Iterable[OpenObligation]) -> PruneVerdict:
        """This verdict, with what is open of other branches; see the attributes."""
        found = tuple(completed)
        kinds = {self.kind, *(_COMES_TO.get(o.kind, PruneKind.OPEN) for o in found)}
        worst = next(kind for kind in (PruneKind.VIOLATION, PruneKind.OPEN, PruneKind.CLEARED) if kind in kinds)
        return replace(self, kind=worst, completed=found, siblings=tuple(siblings))

    def raise_for_violation(self) -> PruneVerdict:
        """This verdict; raises SpeculativeRollbackViolation when it is one, naming orphans, completed ones, and calls."""
        if self.kind is not PruneKind.VIOLATION:
            return self
        completed = [_left_alone(o) for o in self.completed if o.kind is ObligationKind.ORPHAN]
        orphans = (*self.orphans, *completed)
        found = [*orphans, *self.violations]
        told = "; ".join(_named(effect) for effect in found[:_TOLD])
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        was = "would leave" if self.dry_run else "was pruned and left"
        raise SpeculativeRollbackViolation(
            f"branch {self.branch_id} of {self.agent_id} {was} behind what nothing takes back: "
            f"{told}{more}. Checkpoint {self.checkpoint_id} does not count as restored.",
            next_step=" ".join(way for way, some in ((_WAY_ON, orphans), (_NO_WAY_ON, self.violations)) if some),
            orphans=orphans,
            violations=self.violations,
            verdict=self,
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with a stable schema."""
        effects = ("free", "adopted", "compensated", "undoable", "orphans", "undecided", "violations")
        return {
            "schema": "fencepost.prune.v1",
            "verdict": self.kind.value,
            "restored": self.restored,
            "agent_id": self.agent_id,
            "branch_id": self.branch_id,
            "checkpoint_id": self.checkpoint_id,
            "prune_id": self.prune_id,
            **{name: [effect.to_dict() for effect in getattr(self, name)] for name in effects},
            "to_compensate": self.to_compensate.to_dict() if self.to_compensate else None,
            "completed": [obligation.to_dict() for obligation in self.completed],
            "siblings": [obligation.to_dict() for obligation in self.siblings],
            "dry_run": self.dry_run,
            "age_s": round(self.age_s, 3),
        }


def _waits_for(effect: BranchEffect) -> ObligationKind:
    return ObligationKind.BEING_UNDONE if effect.status == "compensating" else ObligationKind.UNDECIDED


def _left_alone(obligation: OpenObligation) -> BranchEffect:
    """A completed orphan, with whose it is."""
    branch = f"{obligation.agent_id}/{obligation.branch_id}"
    why = f"branch {branch}, which was pruned before, did it, and nobody relies on it any more; {obligation.why}"
    return replace(obligation.effect, why=why)


def _named(effect: BranchEffect) -> str:
    call = f"a call of session {effect.session_id}, sequence {effect.seq}"
    what = f"{effect.op_id or call} ({effect.tool or 'tool unknown'}, {effect.effect_class.value})"
    return f"{what}: {effect.why}" if effect.why else what


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenObligation:
    """One open obligation of a pruned branch, evaluated from what is applied now.

    Attributes:
        effect: what it is about; without any name for a pruning that was left in the middle.
        since_ms: when it arose: the pruning, or the effect if that came later.
    """

    agent_id: str
    branch_id: str
    prune_id: str
    op_id: str
    tool: str
    kind: ObligationKind
    version: str = ""
    why: str = ""
    since_ms: int = 0
    effect: BranchEffect = _NONE

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "agent_id": self.agent_id, "branch_id": self.branch_id, "prune_id": self.prune_id,
            "op_id": self.op_id, "tool": self.tool, "kind": self.kind.value, "version": self.version,
            "session_id": self.effect.session_id, "seq": self.effect.seq,
            "why": self.why, "since_ms": self.since_ms,
        }  # fmt: skip


def open_obligations(verdict: PruneVerdict, pruned: AgentFact, *, decided: bool) -> list[OpenObligation]:
    """The open obligations of one pruned branch.

    Args:
        pruned: the fact that pruned it.
        decided: whether a decision on it stands in the log.
    """
    place: dict[str, Any] = {"agent_id": verdict.agent_id, "branch_id": verdict.branch_id, "prune_id": verdict.prune_id}
    found = [
        OpenObligation(
            **place,
            op_id=effect.op_id,
            tool=effect.tool,
            kind=kind,
            version=effect.version,
            why=effect.why,
            since_ms=max(pruned.time_ms, effect.time_ms),
            effect=effect,
        )
        for kind, effect in verdict.open_effects
    ]
    if not decided:
        why = "the pruning was left in the middle; prune the branch again"
        kind = ObligationKind.PRUNE_UNFINISHED
        found.append(OpenObligation(**place, op_id="", tool="", kind=kind, why=why, since_ms=pruned.time_ms))
    return found
