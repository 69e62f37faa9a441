"""The rollback guard's decision: pure, from what stands before the fences.

The shell (`rollbacks.py`) writes the rollback and the fences and waits for them; what it then
reads comes here. The table of DESIGN section 5, first that holds:

    0. the watermark is of another ledger, ahead of this one, or not the one that the restored
       state carries; the agent's own log cannot be trusted; the branch is closed, or the
       checkpoint is not on its path: refuse
    1. every unknown effect is one of which a repeat does no harm, or there is none: PROCEED, unless 4
    2. an unknown effect is in doubt, still owned, or unsafe: refuse
    3. the watermark is unreadable, or none is registered: refuse
    4. an effect that the checkpoint has as done was undone since, and the restored state does not name the
       undoing: refuse, under both policies, for nobody would do it again
    5. policy GATED: PROCEED_GATED; but a call outside the ledger cannot be absorbed, and effects
       that one decision cannot name cannot be held: refuse
    6. policy STRICT, and every one has a sealed, admissible manifest: COMPENSATE_FIRST, with the plan
    7. policy STRICT: refuse, naming each and the ways on
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .errors import ManifestError
from .facts import AgentFact, EffectClass
from .lineage import ROOT, Agent, abandons, descendants, on_path
from .manifests import ManifestVerdict
from .operations import Operation, Status, skips_confirmation
from .plan_order import ordered
from .plans import Plan, Step, who
from .positions import Position
from .reliance import Branches, Witness, step_now
from .undone import Knowledge, undone_reasons
from .verdicts import Blocker, Policy, Reason, ReasonKind, Verdict, VerdictKind, ways_on
from .watermarks import Point, Watermark

MOST_CROSSED = 4_000
MOST_CROSSED_BYTES = 500_000
"""What a decision can name of the effects that it crosses: it is one record in the log."""


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
        restored: the text of that state; "" where it is not given.
        restored_problem: what is wrong with the token in that state ("" if nothing).
        registered: whether the checkpoint is registered at all.
        operations: all that attempts of the agent were at, and all that sessions of it absorbed.
        absorbed: (op_id, round) → the places (epoch, seq) where sessions of the agent absorbed it.
        open_at: epoch → operations that were open where the checkpoint's path leaves that session: what the
            session wrote of them is not known to the checkpoint.
        calls: reported calls that did not go through the ledger.
        written: epoch → highest sequence number known of that session.
        state_hashes: op_id → the hash of the state now, where somebody could read it.
        others: of other agents that adopted one of the operations, whose log is at hand.
    """

    ledger_id: str
    agent: Agent
    branch_id: str
    checkpoint_id: str
    mark: Watermark | None
    claimed: Watermark | None = None
    restored: str = ""
    restored_problem: str = ""
    registered: bool = True
    operations: Sequence[SeenOperation] = ()
    absorbed: Mapping[tuple[str, int], Sequence[Point]] = field(default_factory=dict)
    open_at: Mapping[Position, Collection[str]] = field(default_factory=dict)
    calls: Sequence[AgentFact] = ()
    written: Mapping[Position, int] = field(default_factory=dict)
    state_hashes: Mapping[str, str] = field(default_factory=dict)
    others: Sequence[Witness] = ()


def decide(evidence: Evidence, policy: Policy) -> Verdict:  # noqa: PLR0911 (one row of the table each)
    """The verdict on going back to the checkpoint, from what stands before the fences."""
    if forbidden := [*_watermark_reasons(evidence), *_agent_reasons(evidence)]:
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=forbidden)
    unknown = unknown_effects(evidence)
    crossed = [_blocker(evidence, s) for s in unknown if _blocks(evidence, s)]
    outside = [_call_reason(c) for c in unknown_calls(evidence) if not is_harmless(c)]
    undone = _undone_reasons(evidence)
    if not crossed and not outside and not undone:
        return _verdict(evidence, policy, VerdictKind.PROCEED)
    unreadable = [_unreadable(evidence)] if evidence.mark is None else []
    if reasons := [r for seen in unknown if (r := _open_reason(evidence, seen)) is not None]:
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=[*unreadable, *reasons, *undone])
    in_the_way = [seen for seen in unknown if _blocks(evidence, seen)]
    if against := unreadable or undone:
        effects = [_effect_reason(evidence, seen, unknown) for seen in in_the_way]
        return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=[*against, *effects, *outside])
    if policy is Policy.GATED:  # a call outside the ledger has no op id by which a repeat could be absorbed
        if against := outside or _beyond_record(crossed):
            return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=against)
        return _verdict(evidence, policy, VerdictKind.PROCEED_GATED, crossed=crossed)
    plan, reasons = _way_back(evidence, in_the_way, unknown, crossed)
    if plan is not None and not outside:
        return _verdict(evidence, policy, VerdictKind.COMPENSATE_FIRST, crossed=crossed, plan=plan)
    return _verdict(evidence, policy, VerdictKind.REFUSE, reasons=[*reasons, *outside])


def _way_back(
    evidence: Evidence,
    in_the_way: Sequence[SeenOperation],
    unknown: Sequence[SeenOperation],
    crossed: Sequence[Blocker],
) -> tuple[Plan | None, list[Reason]]:
    """The plan that undoes all that is in the way; without one, a reason for each effect that speaks against it."""
    steps, reasons = _undoable(evidence, in_the_way, unknown)
    if reasons:
        return None, reasons
    try:
        plan = _plan(evidence, in_the_way, steps)
    except ManifestError as error:
        return None, [Reason(ReasonKind.EFFECT_NOT_KNOWN, error.message.rstrip("."), b) for b in crossed[:1]]
    overwrites = _overwrites(evidence, plan, crossed)
    return (None, overwrites) if overwrites else (plan, [])


def _beyond_record(crossed: Sequence[Blocker]) -> list[Reason]:
    """Why a decision cannot name every effect that it crosses. A list that left one out would let it run again."""
    size = sum(len(blocker.op_id.encode()) + len(blocker.tool.encode()) for blocker in crossed)
    if len(crossed) <= MOST_CROSSED and size <= MOST_CROSSED_BYTES:
        return []
    text = (
        f"it would go back over {len(crossed)} effects ({size} bytes of names); one decision can name "
        f"{MOST_CROSSED} effects with {MOST_CROSSED_BYTES} bytes of names"
    )
    return [Reason(ReasonKind.TOO_MANY_EFFECTS, text)]


def _undoable(
    evidence: Evidence, in_the_way: Sequence[SeenOperation], unknown: Sequence[SeenOperation]
) -> tuple[dict[str, Step], list[Reason]]:
    """How each effect is undone; and a reason for each effect, if there is one that cannot be."""
    steps: dict[str, Step] = {}
    reasons: list[Reason] = []
    flawed = False
    witnesses = [Witness.of(evidence.agent, evidence.absorbed), *evidence.others]
    leaving = _leaving(evidence)
    for seen in in_the_way:
        plain = _effect_reason(evidence, seen, unknown)
        step, flaw = _undo_of(evidence, seen.operation, witnesses, plain, leaving=leaving)
        if step is not None:
            steps[step.op_id] = step
        flawed = flawed or flaw is not None
        reasons.append(flaw or plain)
    return steps, reasons if flawed else []


def _undo_of(
    evidence: Evidence, operation: Operation, witnesses: Sequence[Witness], plain: Reason, *, leaving: Branches
) -> tuple[Step | None, Reason | None]:
    """The step that undoes an effect, or why there is none."""
    if other := _made_by_another(evidence, operation):
        return None, Reason(
            ReasonKind.EFFECT_ADOPTED, f"{plain.text}; it stands for {other}, which did it", plain.effect
        )
    try:
        step = step_now(operation, witnesses, leaving=leaving)
    except ManifestError as error:
        adopted = error.details.get("field") == "adopted_by"
        kind = ReasonKind.EFFECT_ADOPTED if adopted else plain.kind
        why = f"; {error.message.rstrip('.')}" if adopted or operation.sealed_manifest else ""
        return None, Reason(kind, f"{plain.text}{why}", plain.effect)
    if operation.done_by is not None and operation.done_by_branch not in leaving:
        why = f"{plain.text}; branch {operation.done_by.branch_id} did it, and stays"
        return None, Reason(ReasonKind.EFFECT_ADOPTED, why, plain.effect)
    return step, None


def _overwrites(evidence: Evidence, plan: Plan, crossed: Sequence[Blocker]) -> list[Reason]:
    """A reason for each effect of which somebody has changed the state since, where that could be read."""
    found = plan.verify(evidence.state_hashes)
    return [
        Reason(
            ReasonKind.CONCURRENT_MUTATION,
            f"the state that {effect.op_id} left behind was changed since: undoing it would overwrite that",
            effect,
        )
        for effect in crossed
        if effect.op_id in evidence.state_hashes and found[effect.op_id] is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION
    ]


def _leaving(evidence: Evidence) -> Branches:
    """The branches that going back leaves behind: what they rely on need not stand."""
    agent = evidence.agent
    branch = agent.branches[evidence.branch_id]
    target = evidence.mark.point if evidence.mark else ROOT
    gone = descendants(agent, branch, abandons(agent, branch, target))
    closed = {name for name, other in agent.branches.items() if other.forbidden}
    return frozenset((agent.agent_id, name) for name in {*gone, *closed})


def _plan(evidence: Evidence, in_the_way: Sequence[SeenOperation], steps: Mapping[str, Step]) -> Plan:
    return Plan(
        ledger_id=evidence.ledger_id,
        agent_id=evidence.agent.agent_id,
        branch_id=evidence.branch_id,
        cause="rollback",
        checkpoint_id=evidence.checkpoint_id,
        steps=ordered([seen.operation for seen in in_the_way], steps, agent=evidence.agent),
    )


def checkpoint_reasons(evidence: Evidence) -> list[Reason]:
    """What speaks against the checkpoint itself, whatever happened after it."""
    unreadable = [_unreadable(evidence)] if evidence.mark is None else []
    return [*unreadable, *_watermark_reasons(evidence), *_agent_reasons(evidence)]


def effect_reasons(evidence: Evidence) -> list[Reason]:
    """A reason for each effect, and each call outside the ledger, that the checkpoint does not know and must."""
    unknown = unknown_effects(evidence)
    found = [_open_reason(evidence, s) or _effect_reason(evidence, s, unknown) for s in unknown if _blocks(evidence, s)]
    outside = (_call_reason(c) for c in unknown_calls(evidence) if not is_harmless(c))
    return [*found, *outside]


def unknown_effects(evidence: Evidence) -> list[SeenOperation]:
    """The agent's effects that the checkpoint does not know, in the order in which they were done.

    An effect is an operation that an attempt of this agent owns or settled, or of which a session of it
    absorbed the present round, whoever did it; or whose facts cannot be trusted, or that an attempt of this
    agent carried out although it could not be granted. It is known iff the fact that settled or absorbed it stands on the checkpoint's path, and
    it was not open there at the checkpoint: then its call had not returned, and the state lacks it.
    """
    path = _path(evidence)
    found = [
        s
        for s in evidence.operations
        if _stray(evidence, s) or (_is_effect(evidence, s) and not _known(evidence, s, path))
    ]
    return sorted(found, key=lambda seen: seen.operation.done_at)


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
    if op.owner is None or op.owner.intent.agent_id == evidence.agent.agent_id:
        return True
    return (op.op_id, op.round) in evidence.absorbed


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
    places = [*evidence.absorbed.get((op.op_id, op.round), ())]
    if settled is not None and settled.agent_id == agent.agent_id:
        places.append(Point(settled.epoch, settled.seq))
    return any(agent.knows(path, *place) and op.op_id not in evidence.open_at.get(place.epoch, ()) for place in places)


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
        why = (
            "a fact of that session is missing: it is still under way, or the ledger has lost it"
            if known
            else "the ledger has lost data, or is another one"
        )
        text = (
            f"the watermark stands at {mark.epoch}/{mark.seq}, the ledger knows that session only up to {known}: {why}"
        )
        yield Reason(ReasonKind.WATERMARK_AHEAD, text)


def _agent_reasons(evidence: Evidence) -> Iterable[Reason]:
    agent = evidence.agent
    if agent.unsafe:
        yield Reason(ReasonKind.AGENT_UNSAFE, f"the agent's log holds {agent.unsafe}")
    branch = agent.branches.get(evidence.branch_id)
    if branch is None:
        text = f"branch {evidence.branch_id} does not exist"
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, text)
    elif branch.forbidden:
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, f"the branch is closed: {branch.forbidden}")
    elif (mark := evidence.mark) and agent.by_epoch(mark.epoch) and not on_path(agent, branch, mark.point):
        text = f"checkpoint {evidence.checkpoint_id} is not on the path of branch {evidence.branch_id}"
        yield Reason(ReasonKind.CHECKPOINT_NOT_ON_PATH, text)


def _open_reason(evidence: Evidence, seen: SeenOperation) -> Reason | None:  # noqa: PLR0911 (first that holds)
    op = seen.operation
    blocker = _blocker(evidence, seen)
    other = _made_by_another(evidence, op)
    whose = f", which {other} did and the agent relies on," if other else ""
    name = f"{op.op_id} ({op.tool or 'tool unknown'}, {op.effect_class.value}){whose}"
    if seen.unsafe or op.status is Status.UNSAFE:
        why = seen.unsafe or "a fact of an unknown kind"
        return Reason(ReasonKind.EFFECT_UNSAFE, f"{name} cannot be decided: {why}", blocker)
    if what := _stray(evidence, seen):
        return Reason(ReasonKind.EFFECT_UNSAFE, f"{name} needs to be looked at: it was {what}", blocker)
    if op.harmless:
        return None
    if op.status is Status.COMPENSATING:
        return Reason(ReasonKind.EFFECT_BEING_UNDONE, f"{name} is being undone", blocker)
    if op.status is Status.IN_DOUBT or (op.status is Status.OWNED and seen.owner_ended):
        return Reason(ReasonKind.EFFECT_IN_DOUBT, f"{name} is in doubt", blocker)
    if op.status is Status.OWNED:
        return Reason(ReasonKind.EFFECT_OWNED, f"{name} is still owned", blocker)
    return None


def _made_by_another(evidence: Evidence, operation: Operation) -> str:
    """The branch ("agent/branch") of another agent that did it; "" if this agent did, or nobody."""
    agent_id, branch_id = operation.done_by_branch
    return who(agent_id, branch_id) if agent_id not in {"", evidence.agent.agent_id} else ""


def _blocker(evidence: Evidence, seen: SeenOperation) -> Blocker:
    """The effect, with the sequence number at which this agent settled, began, or else absorbed it."""
    op = seen.operation
    fact = op.settled or (op.owner.intent if op.owner else op.first)
    mine = fact is not None and fact.agent_id == evidence.agent.agent_id
    absorbed = max(evidence.absorbed.get((op.op_id, op.round), ()), default=ROOT)
    return Blocker(
        op.op_id,
        op.tool,
        fact.seq if fact and mine else absorbed.seq,
        op.effect_class,
        "unsafe" if seen.unsafe else op.status.value,
        fact.branch_id if fact else "",
        seen.owner_ended,
        op.round,
    )


def _effect_reason(evidence: Evidence, seen: SeenOperation, unknown: Sequence[SeenOperation]) -> Reason:
    blocker = _blocker(evidence, seen)
    other = _made_by_another(evidence, seen.operation)
    place = f"done by {other}, absorbed at sequence {blocker.seq}" if other else _place(seen, blocker)
    text = (
        f"{blocker.op_id} ({blocker.tool}, {blocker.effect_class.value}, {place}, "
        f"{blocker.status}) is not known to the checkpoint"
    )
    if blocker.effect_class is not EffectClass.IDEMPOTENT:
        return Reason(ReasonKind.EFFECT_NOT_KNOWN, text, blocker)
    resource = _resource(seen)
    later = [
        s.operation.op_id for s in unknown if resource == _resource(s) and s.operation.done_at > seen.operation.done_at
    ]
    over = f" over {', '.join(later[:5])}" if resource and later else ""
    where = f" on {resource}" if resource else ""
    return Reason(
        ReasonKind.EFFECT_ORDER_DEPENDENT,
        f"{text}, and idempotent is not order-safe: a repeat{where} would come{over or ' late'}",
        blocker,
    )


def _place(seen: SeenOperation, blocker: Blocker) -> str:
    """Where it was settled or begun; a word from outside, by which it was settled, is in no sequence."""
    settled = seen.operation.settled
    by = settled.by if settled is not None else ""
    return f"settled by {by}" if by and not blocker.seq else f"sequence {blocker.seq}"


def _resource(seen: SeenOperation) -> str:
    owner = seen.operation.owner
    return owner.intent.resource if owner else ""


def unknown_calls(evidence: Evidence) -> list[AgentFact]:
    """The reported calls outside the ledger that the checkpoint does not know."""
    path = _path(evidence)
    return [call for call in evidence.calls if not evidence.agent.knows(path, call.epoch, call.seq)]


def is_harmless(call: AgentFact) -> bool:
    """Whether making a reported call again does no harm."""
    return skips_confirmation(call.effect_class, order_safe=call.order_safe)


def _call_reason(call: AgentFact) -> Reason:
    blocker = Blocker("", call.tool, call.seq, call.effect_class, "reported", call.branch_id)
    text = f"{call.tool} was called outside the ledger ({call.effect_class.value}, sequence {call.seq})"
    return Reason(ReasonKind.CALL_OUTSIDE_LEDGER, text, blocker)


def _undone_reasons(evidence: Evidence) -> list[Reason]:
    known = Knowledge(evidence.agent, _path(evidence), evidence.absorbed, evidence.open_at)
    return undone_reasons((s.operation for s in evidence.operations), known, evidence.restored)


def _verdict(
    evidence: Evidence,
    policy: Policy,
    kind: VerdictKind,
    *,
    reasons: Sequence[Reason] = (),
    crossed: Sequence[Blocker] = (),
    plan: Plan | None = None,
) -> Verdict:
    return Verdict(
        kind,
        evidence.agent.agent_id,
        evidence.branch_id,
        evidence.checkpoint_id,
        policy,
        tuple(reasons),
        tuple(crossed),
        ways_on(kind, reasons),
        target=evidence.mark.point if evidence.mark else ROOT,
        plan=plan,
    )
