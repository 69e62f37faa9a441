"""The rollback guard's decision: pure, from what stands before the fences.

The shell (`rollbacks.py`) writes the rollback and the fences and waits for them; what it then
reads comes here. The table of DESIGN section 5, first that holds:

    0. the watermark is of another ledger, ahead of this one, or not the one that the restored
       state carries; the agent's own log cannot be trusted; the branch is closed, or the
       checkpoint is not on its path: refuse
    1. every unknown effect is one of which a repeat does no harm, or there is none: PROCEED
    2. an unknown effect is in doubt, still owned, or unsafe: refuse
    3. the watermark is unreadable, or none is registered: refuse
    4. policy GATED: PROCEED_GATED; but a call outside the ledger cannot be absorbed: refuse
    5. policy STRICT: refuse, naming each and the ways on
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .errors import UnsafeRollbackError
from .facts import AgentFact, EffectClass
from .lineage import ROOT, Agent, on_path
from .operations import Operation, Status, skips_confirmation
from .positions import NOWHERE, Position
from .watermarks import Point, Watermark

_TOLD = 5
"""How many reasons an error message spells out; the verdict has them all."""


class Policy(StrEnum):
    """What the caller asserts. GATED: op ids are stable across replays."""

    STRICT = "STRICT"
    GATED = "GATED"


class VerdictKind(StrEnum):
    """What the guard says."""

    PROCEED = "PROCEED"
    PROCEED_GATED = "PROCEED_GATED"
    REFUSE = "REFUSE"


class ReasonKind(StrEnum):
    """Why the guard refuses, as a value that a program can switch on."""

    EFFECT_NOT_KNOWN = "EFFECT_NOT_KNOWN"
    EFFECT_IN_DOUBT = "EFFECT_IN_DOUBT"
    EFFECT_OWNED = "EFFECT_OWNED"
    EFFECT_UNSAFE = "EFFECT_UNSAFE"
    CALL_OUTSIDE_LEDGER = "CALL_OUTSIDE_LEDGER"
    WATERMARK_UNREADABLE = "WATERMARK_UNREADABLE"
    WATERMARK_OF_ANOTHER_LEDGER = "WATERMARK_OF_ANOTHER_LEDGER"
    WATERMARK_MISMATCH = "WATERMARK_MISMATCH"
    WATERMARK_AHEAD = "WATERMARK_AHEAD"
    CHECKPOINT_NOT_REGISTERED = "CHECKPOINT_NOT_REGISTERED"
    CHECKPOINT_NOT_ON_PATH = "CHECKPOINT_NOT_ON_PATH"
    ROLLBACK_PENDING = "ROLLBACK_PENDING"
    AGENT_UNSAFE = "AGENT_UNSAFE"
    WITHDRAWN = "WITHDRAWN"


class WayOn(StrEnum):
    """What a refused caller can do. Doing the same again is not among them."""

    COMPENSATE = "compensate the effects and record it"
    REPLAY_FORWARD = "replay forward from the checkpoint's watermark"
    OPERATOR = "let an operator reconcile"
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

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "seq": self.seq,
            "effect_class": self.effect_class.value, "status": self.status,
            "branch_id": self.branch_id, "owner_ended": self.owner_ended,
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The guard's answer.

    Attributes:
        reasons: why it refuses; empty otherwise.
        crossed: unknown effects that the rollback goes back over although it may proceed.
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
    target: Point | None = None
    fenced: bool = False
    dry_run: bool = False
    age_s: float = 0.0
    outlook: Mapping[str, str] = field(default_factory=dict)

    @property
    def authorised(self) -> bool:
        """Whether the agent may go back."""
        return self.kind is not VerdictKind.REFUSE

    def raise_for_refusal(self) -> Verdict:
        """This verdict if it authorises; raises UnsafeRollbackError otherwise."""
        if self.authorised:
            return self
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
            "fenced": self.fenced,
            "dry_run": self.dry_run,
            "age_s": round(self.age_s, 3),
            "outlook": dict(self.outlook),
        }


@dataclass(frozen=True, slots=True)
class SeenOperation:
    """An operation as a partition's projection shows it.

    Attributes:
        unsafe: why its key is unsafe ("" if it is not).
        owner_ended: whether a fence stands against its owner, so that nobody who could say is left.
    """

    operation: Operation
    unsafe: str = ""
    owner_ended: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a decision rests on.

    Attributes:
        mark: the registered watermark; None if it is unreadable or nothing is registered.
        claimed: the watermark that the caller found in the state to be restored, if any.
        restored_problem: what is wrong with the token in that state ("" if nothing).
        registered: whether the checkpoint is registered at all.
        absorbed: (op_id, round) → the places (epoch, seq) where sessions of the agent absorbed it.
        calls: reported calls that did not go through the ledger.
        written: epoch → highest sequence number known of that session.
    """

    ledger_id: str
    agent: Agent
    branch_id: str
    checkpoint_id: str
    mark: Watermark | None
    claimed: Watermark | None = None
    restored_problem: str = ""
    registered: bool = True
    operations: Sequence[SeenOperation] = ()
    absorbed: Mapping[tuple[str, int], Sequence[Point]] = field(default_factory=dict)
    calls: Sequence[AgentFact] = ()
    written: Mapping[Position, int] = field(default_factory=dict)
    unsafe_keys: Sequence[str] = ()


def decide(evidence: Evidence, policy: Policy) -> Verdict:
    """The verdict on going back to the checkpoint, from what stands before the fences."""
    if forbidden := [*_watermark_reasons(evidence), *_agent_reasons(evidence)]:
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=forbidden)
    unknown = unknown_effects(evidence)
    crossed = [_blocker(evidence.agent, s) for s in unknown if _blocks(evidence, s)]
    outside = [_call_reason(c) for c in evidence.calls if _call_counts(evidence, c)]
    if not crossed and not outside:
        return _verdict(evidence, policy, VerdictKind.PROCEED)
    unreadable = [_unreadable(evidence)] if evidence.mark is None else []
    if reasons := [r for seen in unknown if (r := _open_reason(evidence, seen)) is not None]:
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=[*unreadable, *reasons])
    named = [_effect_reason(b) for b in crossed]
    if unreadable:
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=[*unreadable, *named, *outside])
    if policy is Policy.GATED and not outside:
        return _verdict(evidence, policy, VerdictKind.PROCEED_GATED, crossed=crossed)
    # A call outside the ledger has no op id by which a repeat could be absorbed.
    reasons = outside if policy is Policy.GATED else [*named, *outside]
    return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=reasons)


def unknown_effects(evidence: Evidence) -> list[SeenOperation]:
    """The agent's effects that the checkpoint does not know, in the order in which they were done.

    An effect is an operation that an attempt of this agent owns or settled, or whose facts
    cannot be trusted, or that an attempt of this agent carried out although it could not be
    granted. It is known iff the fact that settled or absorbed it stands on the checkpoint's path.
    """
    path = _path(evidence)
    found = [
        s
        for s in evidence.operations
        if _stray(evidence, s) or (_is_effect(evidence, s) and not _known(evidence, s, path))
    ]
    return sorted(found, key=_done_at)


def _done_at(seen: SeenOperation) -> tuple[Position, int, str]:
    """(epoch, seq): positions of different partitions say nothing about the order."""
    operation = seen.operation
    fact = operation.settled or (operation.owner.intent if operation.owner else operation.first)
    return (fact.epoch, fact.seq, operation.op_id) if fact else (NOWHERE, 0, operation.op_id)


def _path(evidence: Evidence) -> Mapping[Position, int]:
    """What the checkpoint knows; nothing when its watermark is unreadable."""
    return evidence.agent.path(evidence.mark.point) if evidence.mark else {}


def _is_effect(evidence: Evidence, seen: SeenOperation) -> bool:
    """Of an operation that cannot be read nobody can say whose it is: it counts for all who had to do with it."""
    op = seen.operation
    if seen.unsafe or op.status is Status.UNSAFE:
        return True
    if op.status is Status.FREE:
        return False
    return op.owner is None or op.owner.intent.agent_id == evidence.agent.agent_id


def _stray(evidence: Evidence, seen: SeenOperation) -> str:
    """What an attempt of this agent did beyond what the ledger granted, if nobody has acknowledged it.

    A late commit on what another owns says that this agent's effect happened as well: neither
    the operation's status nor its owner tells that. "" if there is none, or the checkpoint knows it.
    """
    op, agent = seen.operation, evidence.agent
    for anomaly in op.anomalies:
        attempt = op.attempts.get(anomaly.attempt_id)
        if attempt is None or anomaly.position < op.last_resolution:
            continue
        fact = attempt.outcome or attempt.intent
        if fact.agent_id == agent.agent_id and not agent.knows(_path(evidence), fact.epoch, fact.seq):
            return anomaly.what
    return ""


def _blocks(evidence: Evidence, seen: SeenOperation) -> bool:
    """Whether going back over it may do harm."""
    unreadable = bool(seen.unsafe) or seen.operation.status is Status.UNSAFE
    return unreadable or not seen.operation.harmless or bool(_stray(evidence, seen))


def _known(evidence: Evidence, seen: SeenOperation, path: Mapping[Position, int]) -> bool:
    op = seen.operation
    if seen.unsafe or op.status is not Status.COMMITTED:
        return False
    agent = evidence.agent
    settled = op.settled
    own = settled is not None and settled.agent_id == agent.agent_id
    if own and settled is not None and agent.knows(path, settled.epoch, settled.seq):
        return True
    places = evidence.absorbed.get((op.op_id, op.round), ())
    return any(agent.knows(path, place.epoch, place.seq) for place in places)


def _unreadable(evidence: Evidence) -> Reason:
    if evidence.restored_problem:
        text = f"the state that is to be restored holds {evidence.restored_problem}, so what it knows cannot be told"
        return Reason(ReasonKind.WATERMARK_UNREADABLE, text)
    if evidence.registered:
        text = f"the watermark of checkpoint {evidence.checkpoint_id} is unreadable"
        return Reason(ReasonKind.WATERMARK_UNREADABLE, text)
    text = f"checkpoint {evidence.checkpoint_id} is not registered, so nothing is known to it"
    return Reason(ReasonKind.CHECKPOINT_NOT_REGISTERED, text)


def _watermark_reasons(evidence: Evidence) -> Iterable[Reason]:
    mark, claimed = evidence.mark, evidence.claimed
    for given in (claimed, mark):
        if given and (given.ledger_id, given.agent_id) != (evidence.ledger_id, evidence.agent.agent_id):
            text = f"the watermark belongs to ledger {given.ledger_id}, agent {given.agent_id}"
            yield Reason(ReasonKind.WATERMARK_OF_ANOTHER_LEDGER, text)
            return
    if mark is None:
        return
    if claimed and claimed.point != mark.point:
        text = (
            f"the state that was restored carries the watermark {claimed.epoch}/{claimed.seq}, the "
            f"checkpoint was registered at {mark.epoch}/{mark.seq}: they did not move together"
        )
        yield Reason(ReasonKind.WATERMARK_MISMATCH, text)
    known = evidence.written.get(mark.epoch, 0)
    if mark.seq > known:
        text = (
            f"the watermark stands at {mark.epoch}/{mark.seq}, the ledger knows that session only "
            f"up to {known}: the ledger has lost data, or is another one"
        )
        yield Reason(ReasonKind.WATERMARK_AHEAD, text)


def _agent_reasons(evidence: Evidence) -> Iterable[Reason]:
    agent = evidence.agent
    if agent.unsafe:
        yield Reason(ReasonKind.AGENT_UNSAFE, f"the agent's log holds {agent.unsafe}")
    for key in evidence.unsafe_keys:
        yield Reason(ReasonKind.AGENT_UNSAFE, f"a record under {key} was set aside")
    branch = agent.branches.get(evidence.branch_id)
    if branch is None:
        text = f"branch {evidence.branch_id} does not exist"
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, text)
    elif branch.forbidden:
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, f"the branch is closed: {branch.forbidden}")
    elif (mark := evidence.mark) and agent.by_epoch(mark.epoch) and not on_path(agent, branch, mark.point):
        text = f"checkpoint {evidence.checkpoint_id} is not on the path of branch {evidence.branch_id}"
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, text)


def _open_reason(evidence: Evidence, seen: SeenOperation) -> Reason | None:
    op = seen.operation
    blocker = _blocker(evidence.agent, seen)
    name = f"{op.op_id} ({op.tool or 'tool unknown'}, {op.effect_class.value})"
    if seen.unsafe or op.status is Status.UNSAFE:
        why = seen.unsafe or "a fact of an unknown kind"
        return Reason(ReasonKind.EFFECT_UNSAFE, f"{name} cannot be decided: {why}", blocker)
    if what := _stray(evidence, seen):
        return Reason(ReasonKind.EFFECT_UNSAFE, f"{name} needs to be looked at: it was {what}", blocker)
    if op.harmless:
        return None
    if op.status is Status.IN_DOUBT or (op.status is Status.OWNED and seen.owner_ended):
        return Reason(ReasonKind.EFFECT_IN_DOUBT, f"{name} is in doubt", blocker)
    if op.status is Status.OWNED:
        return Reason(ReasonKind.EFFECT_OWNED, f"{name} is still owned", blocker)
    return None


def _blocker(agent: Agent, seen: SeenOperation) -> Blocker:
    op = seen.operation
    fact = op.settled or (op.owner.intent if op.owner else op.first)
    mine = fact is not None and fact.agent_id == agent.agent_id
    return Blocker(
        op.op_id,
        op.tool,
        fact.seq if fact and mine else 0,
        op.effect_class,
        "unsafe" if seen.unsafe else op.status.value,
        fact.branch_id if fact else "",
        seen.owner_ended,
    )


def _effect_reason(blocker: Blocker) -> Reason:
    text = (
        f"{blocker.op_id} ({blocker.tool}, {blocker.effect_class.value}, sequence {blocker.seq}, "
        f"{blocker.status}) is not known to the checkpoint"
    )
    return Reason(ReasonKind.EFFECT_NOT_KNOWN, text, blocker)


def _call_counts(evidence: Evidence, call: AgentFact) -> bool:
    if skips_confirmation(call.effect_class, order_safe=call.order_safe):
        return False
    return not evidence.agent.knows(_path(evidence), call.epoch, call.seq)


def _call_reason(call: AgentFact) -> Reason:
    blocker = Blocker("", call.tool, call.seq, call.effect_class, "reported", call.branch_id)
    text = f"{call.tool} was called outside the ledger ({call.effect_class.value}, sequence {call.seq})"
    return Reason(ReasonKind.CALL_OUTSIDE_LEDGER, text, blocker)


def _ways_on(kind: VerdictKind, reasons: Sequence[Reason]) -> tuple[WayOn, ...]:
    if kind is not VerdictKind.REFUSE:
        return ()
    kinds = {reason.kind for reason in reasons}
    unsettled = {ReasonKind.EFFECT_IN_DOUBT, ReasonKind.EFFECT_OWNED, ReasonKind.EFFECT_UNSAFE}
    ways = [WayOn.SETTLE] if kinds & unsettled else []
    if ReasonKind.EFFECT_NOT_KNOWN in kinds:
        ways.append(WayOn.COMPENSATE)
    return (*ways, WayOn.REPLAY_FORWARD, WayOn.OPERATOR)


def _verdict(
    evidence: Evidence,
    policy: Policy,
    kind: VerdictKind,
    *,
    reasons: Sequence[Reason] = (),
    crossed: Sequence[Blocker] = (),
) -> Verdict:
    return Verdict(
        kind,
        evidence.agent.agent_id,
        evidence.branch_id,
        evidence.checkpoint_id,
        policy,
        tuple(reasons),
        tuple(crossed),
        _ways_on(kind, reasons),
        target=evidence.mark.point if evidence.mark else ROOT,
    )
