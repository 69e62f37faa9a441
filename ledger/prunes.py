"""What the pruning of a branch leaves behind: pure, from what stands before the fences.

The shell (`pruning.py`) closes and fences the branch and waits; what it then reads comes here. Only
effects that the branch's own sessions made count, harmless ones never. An agent's log that cannot be
read is undecided by itself. Of each operation, first that holds:

    1. it cannot be read, or the branch did what it was not granted and nobody has looked: undecided
    2. a repeat of it does no harm: nothing
    3. the branch owns it, in doubt or not: undecided; being undone: undecided
    4. the branch committed it, and
         the path of another branch that stands knows a place where it was settled, adopted, or
         absorbed, or an operator adopted it (`reliance.py`): adopted
         it has a sealed, readable manifest: to be compensated
         otherwise: an orphan
    5. the branch committed it in a round that was undone: compensated
    6. an attempt of the branch failed, was withdrawn, overruled, or rejected: free
A reported call of the branch of which a repeat does harm is a violation: it carries no op id by
which a sibling could be told from it. Orphans and violations make a VIOLATION, anything else that is
open an OPEN verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from .errors import ManifestError
from .facts import AgentFact, EffectClass, EffectFact
from .guard import SeenOperation
from .lineage import Agent, Branch
from .operations import Attempt, AttemptState, Operation, Status, skips_confirmation
from .plan_order import LeftStanding, ordered
from .plans import Plan, Step, step_of
from .positions import Position
from .prune_verdicts import BranchEffect, PruneKind, PruneVerdict
from .reliance import Branches, Witness, relied_on_by
from .watermarks import Point

_NEVER_RAN = frozenset({AttemptState.FAILED, AttemptState.OVERRULED, AttemptState.REJECTED})


class Fate(StrEnum):
    """What became of one effect of the branch."""

    FREE = "free"
    ADOPTED = "adopted"
    COMPENSATED = "compensated"
    UNDOABLE = "undoable"
    ORPHAN = "orphan"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class PruneEvidence:
    """All that the verdict on a pruned branch rests on.

    Attributes:
        paths: of the agent's branches that stand; see `reliance.standing_paths`.
        operations: at least those that `by_branch` gives for the branch.
        absorbed: (op_id, round) → the places (epoch, seq) where sessions of the agent absorbed it.
        calls: reported calls that did not go through the ledger.
        others: of other agents that adopted one of the operations, whose log is at hand.
        leaving: branches that go away with what asks, besides this one: they rely on nothing any more.
    """

    ledger_id: str
    agent: Agent
    branch: Branch
    paths: Mapping[str, Mapping[Position, int]]
    operations: Sequence[SeenOperation] = ()
    absorbed: Mapping[tuple[str, int], Sequence[Point]] = field(default_factory=dict)
    calls: Sequence[AgentFact] = ()
    others: Sequence[Witness] = ()
    leaving: Branches = frozenset()


def examine(evidence: PruneEvidence) -> PruneVerdict:
    """What the branch left behind."""
    found: dict[Fate, list[BranchEffect]] = {fate: [] for fate in Fate}
    steps: dict[str, Step] = {}
    undone: list[Operation] = []
    for seen in sorted(evidence.operations, key=lambda s: s.operation.done_at):
        for fate, effect, step in _fates(evidence, seen):
            found[fate].append(effect)
            if step is not None:
                steps[effect.op_id] = step
                undone.append(seen.operation)
    plan = None
    try:
        plan = _plan(evidence, undone, steps)
    except ManifestError as error:  # no order undoes them, so nothing does
        why = error.message.rstrip(".")
        found[Fate.ORPHAN] += [replace(effect, why=why) for effect in found[Fate.UNDOABLE]]
        found[Fate.UNDOABLE] = []
    if evidence.agent.unsafe:  # who relies on what, and what the branch is, stands in that log
        found[Fate.UNDECIDED].append(_unreadable_agent(evidence.agent))
    violations = tuple(_call(c) for c in evidence.calls if _call_counts(evidence, c))
    return PruneVerdict(
        kind=_kind(found, violations),
        agent_id=evidence.agent.agent_id,
        branch_id=evidence.branch.branch_id,
        checkpoint_id=evidence.branch.fork_checkpoint,
        prune_id=_prune_id(evidence),
        free=tuple(found[Fate.FREE]),
        adopted=tuple(found[Fate.ADOPTED]),
        compensated=tuple(found[Fate.COMPENSATED]),
        undoable=tuple(found[Fate.UNDOABLE]),
        to_compensate=plan,
        orphans=tuple(found[Fate.ORPHAN]),
        undecided=tuple(found[Fate.UNDECIDED]),
        violations=violations,
    )


def by_branch(
    agent_id: str, operations: Iterable[SeenOperation], names: Iterable[str]
) -> dict[str, list[SeenOperation]]:
    """The operations that a verdict on each of these branches must look at, so that not every one looks at all."""
    found: dict[str, list[SeenOperation]] = {name: [] for name in names}
    for seen in operations:
        op = seen.operation
        acted = {a.intent.branch_id for a in op.attempts.values() if a.intent.agent_id == agent_id}
        everybodys = bool(seen.unsafe) or op.status is Status.UNSAFE or (op.owner is None and op.stands)
        for name in found if everybodys else acted & found.keys():
            found[name].append(seen)
    return found


def _kind(found: Mapping[Fate, Sequence[BranchEffect]], violations: Sequence[BranchEffect]) -> PruneKind:
    if found[Fate.ORPHAN] or violations:
        return PruneKind.VIOLATION
    return PruneKind.OPEN if found[Fate.UNDOABLE] or found[Fate.UNDECIDED] else PruneKind.CLEARED


def _prune_id(evidence: PruneEvidence) -> str:
    return evidence.branch.pruned.prune_id if evidence.branch.pruned else ""


def _plan(evidence: PruneEvidence, operations: Sequence[Operation], steps: Mapping[str, Step]) -> Plan | None:
    if not steps:
        return None
    place = (evidence.agent.agent_id, evidence.branch.branch_id)
    mine = [seen.operation for seen in evidence.operations if seen.operation.done_by_branch == place]
    left = LeftStanding(mine, agent=evidence.agent, undone=steps)
    steps = {o.op_id: replace(steps[o.op_id], leaves=left.upon(o)) for o in operations}
    return Plan(
        ledger_id=evidence.ledger_id,
        agent_id=evidence.agent.agent_id,
        branch_id=evidence.branch.branch_id,
        cause="prune",
        cause_id=_prune_id(evidence),
        checkpoint_id=evidence.branch.fork_checkpoint,
        steps=ordered(operations, steps, agent=evidence.agent),
    )


# -- one operation -------------------------------------------------------------------------


def _fates(evidence: PruneEvidence, seen: SeenOperation) -> Iterable[tuple[Fate, BranchEffect, Step | None]]:
    op = seen.operation
    mine = [a for a in op.attempts.values() if _is_mine(evidence, a.intent)]
    if why := _unreadable(evidence, seen, mine):
        yield Fate.UNDECIDED, _effect(seen, mine, why=why), None
        return
    if op.harmless:
        return
    present = _present(evidence, seen, mine)
    if present is not None:
        yield present
    undone = {fact.round for fact in op.compensations}
    before = [a for a in mine if a.owned and a.intent.round in undone]
    if before:
        yield Fate.COMPENSATED, _effect(seen, before, status="compensated"), None
    elif present is None and any(a.state in _NEVER_RAN for a in mine):
        yield Fate.FREE, _effect(seen, mine, status="free"), None


def _unreadable(evidence: PruneEvidence, seen: SeenOperation, mine: Sequence[Attempt]) -> str:
    """Why nobody can tell what the branch did; "" if it can be told.

    Of an operation that cannot be read nobody can say whose it is: it counts for every branch that acted.
    """
    op = seen.operation
    if evidence.branch.sessions and (seen.unsafe or op.status is Status.UNSAFE):
        return seen.unsafe or "a fact of an unknown kind"
    names = {a.attempt_id for a in mine}
    told = [a.what for a in op.anomalies if a.attempt_id in names and a.position > op.last_resolution]
    return told[0] if told else ""


def _present(
    evidence: PruneEvidence, seen: SeenOperation, mine: Sequence[Attempt]
) -> tuple[Fate, BranchEffect, Step | None] | None:
    """What became of the effect of the present round, if it is the branch's own."""
    op = seen.operation
    nobodys = op.owner is None and op.stands and bool(evidence.branch.sessions)
    if not nobodys and (op.owner is None or not _is_mine(evidence, op.owner.intent)):
        return None
    if op.status is Status.COMPENSATING:
        return Fate.UNDECIDED, _effect(seen, mine, why="it is being undone"), None
    if op.status is not Status.COMMITTED:
        return Fate.UNDECIDED, _effect(seen, mine, why=_undecided(seen)), None
    own = Witness(evidence.agent, evidence.paths, evidence.absorbed)
    leaving = evidence.leaving | {(evidence.agent.agent_id, evidence.branch.branch_id)}
    relying = relied_on_by(op, [own, *evidence.others], leaving=leaving)
    if relying:
        return Fate.ADOPTED, _effect(seen, mine, relied_on_by=relying), None
    try:
        step = step_of(op, relying=())
    except ManifestError as error:
        return Fate.ORPHAN, _effect(seen, mine, why=error.message.rstrip(".")), None
    return Fate.UNDOABLE, _effect(seen, mine), step


def _undecided(seen: SeenOperation) -> str:
    if seen.operation.status is Status.IN_DOUBT:
        return "it may or may not have happened"
    return "its session is over and left no outcome" if seen.owner_ended else "it is still owned"


# -- the values ------------------------------------------------------------------------------


def _is_mine(evidence: PruneEvidence, fact: EffectFact) -> bool:
    return (fact.agent_id, fact.branch_id) == (evidence.agent.agent_id, evidence.branch.branch_id)


def _effect(
    seen: SeenOperation, mine: Sequence[Attempt], *, status: str = "", why: str = "", relied_on_by: tuple[str, ...] = ()
) -> BranchEffect:
    op = seen.operation
    told = op.settled or ((mine[-1].outcome or mine[-1].intent) if mine else op.first)
    ended = op.status is Status.OWNED and seen.owner_ended
    return BranchEffect(
        op_id=op.op_id,
        tool=op.tool or (told.tool if told else ""),
        effect_class=op.effect_class if op.first or not told else told.effect_class,
        status=status or ("unsafe" if seen.unsafe else "in doubt" if ended else op.status.value),
        session_id=told.session_id if told else "",
        seq=told.seq if told else 0,
        round=op.round,
        version=op.version,
        relied_on_by=relied_on_by,
        why=why,
        time_ms=told.time_ms if told else 0,
    )


def _unreadable_agent(agent: Agent) -> BranchEffect:
    why = f"the agent's log holds {agent.unsafe}"
    return BranchEffect(op_id="", tool="", effect_class=EffectClass.UNKNOWN, status="unsafe", why=why)


def _call_counts(evidence: PruneEvidence, call: AgentFact) -> bool:
    mine = (call.agent_id, call.branch_id) == (evidence.agent.agent_id, evidence.branch.branch_id)
    return mine and not skips_confirmation(call.effect_class, order_safe=call.order_safe)


def _call(call: AgentFact) -> BranchEffect:
    return BranchEffect(
        op_id="",
        tool=call.tool,
        effect_class=call.effect_class,
        status="reported",
        session_id=call.session_id,
        seq=call.seq,
        why="it was called outside the ledger and carries no op id",
        time_ms=call.time_ms,
    )
