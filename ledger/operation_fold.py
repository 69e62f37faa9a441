"""The life of one logical operation, folded from its facts in log order.

State is a pure function of the facts (DESIGN section 3.2): the history is a set, and this is
one ordered pass over it. The rules, as `take` applies them:

    INTENDED   on a free op owns it; while it is owned or committed it is absorbed ("lost").
               An attempt claims once: a repeat of its intent is nothing. An intent that was
               rejected, names another round, or is of another identity never owns.
    COMMITTED  by the owner settles the op. By anyone else it is never dropped: on a free op it
               settles it, flagged; otherwise it is an anomaly (a possible double execution).
    FAILED     by the owner frees the op: the effect certainly did not happen. If the provider refused its
               idempotency key as void, the next attempt gets another one.
    IN_DOUBT   by the owner: the effect may or may not have happened.
    RESOLVED   counts if it names the version of the op that it stands on.
    ADOPTED    somebody beside the branch that committed it relies on the effect; one that names a
               version (an operator's) counts on that only, and may release what operators adopted before.
    COMPENSATING  an undo begins, if the op is committed and at the version that it names: whoever
               relied on the effect before that stands in its way, and nobody can afterwards. Another
               run of the same plan takes over in the same way: what the former run withdraws is nothing.
    COMPENSATION_WITHDRAWN  that undo certainly changed nothing: the op is committed as before.
    COMPENSATED ends the round; the next takes only intents that name it.
    SUMMARISED stands for attempts that never owned the op (`losers.py`).
    REJECTED   says that the intent which it names never owns the op, and nothing else.
    any other kind makes the op unsafe. Only a resolution ends that, and an outcome or the end of an undo
    that is told meanwhile moves the version, so that nobody resolves it without having seen that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .facts import EffectFact, EffectKind, Outcome, decode_effect
from .history import History
from .operations import (
    RELEASED,
    VOIDED,
    Adoption,
    Anomaly,
    Attempt,
    AttemptState,
    Operation,
    Resolution,
    Status,
    Undoing,
    skips_confirmation,
)
from .positions import NOWHERE, Position


def fold_operation(op_id: str, facts: History) -> Operation:
    """The operation that these facts describe. Never raises for decodable facts."""
    decoded = [(position, decode_effect(data)) for position, data in sorted(facts)]
    rejected = {f.attempt_id for _, f in decoded if f.kind is EffectKind.REJECTED}
    operation = Operation(op_id)
    for position, fact in decoded:
        take(operation, position, fact, rejected=fact.attempt_id in rejected)
    return operation


def take(operation: Operation, position: Position, fact: EffectFact, *, rejected: bool = False) -> None:
    """Go on by one fact, which stands behind all that were taken.

    Args:
        operation: is changed.
        position: where the fact stands.
        fact: a REJECTED one changes nothing here: the fold takes it into account where its intent stands.
        rejected: whether the operation's facts have a REJECTED one of this attempt.
    """
    if fact.kind is EffectKind.INTENDED:
        _intended(operation, position, fact, rejected=rejected)
        return
    rule = _RULES.get(fact.kind)
    if rule is None:
        operation.status = Status.UNSAFE
        operation.changed_at = position
    else:
        rule(operation, position, fact)


def _same(operation: Operation, fact: EffectFact) -> bool:
    first = operation.first
    if first is None:
        return True
    return (first.tool, first.effect_class, first.order_safe, first.identity_digest) == (
        fact.tool, fact.effect_class, fact.order_safe, fact.identity_digest
    )  # fmt: skip


def _change(operation: Operation, status: Status, position: Position) -> None:
    operation.status = status
    operation.changed_at = position


def _settle(operation: Operation, position: Position, fact: EffectFact) -> None:
    operation.settled, operation.settled_at = fact, position
    operation.undoing = None
    _change(operation, Status.COMMITTED, position)


def _anomaly(op: Operation, position: Position, fact: EffectFact, what: str) -> None:
    """Note it once. The version moves: a resolution acknowledges only what its author saw."""
    if any((a.attempt_id, a.what) == (fact.attempt_id, what) for a in op.anomalies):
        return
    op.anomalies.append(Anomaly(position, fact.attempt_id, what))
    op.changed_at = position


def _intended(op: Operation, position: Position, fact: EffectFact, *, rejected: bool) -> None:
    if fact.attempt_id in op.attempts:
        return
    attempt = Attempt(fact.attempt_id, position, fact, AttemptState.LOST)
    op.attempts[fact.attempt_id] = attempt
    if rejected:
        attempt.state = AttemptState.REJECTED
        return
    if not _same(op, fact):
        attempt.state = AttemptState.CONFLICT
        return
    if op.first is None:
        op.first = fact
    if fact.round != op.round:
        attempt.state = AttemptState.WRONG_ROUND
    elif op.status is Status.FREE:
        attempt.state = AttemptState.OWNER
        attempt.owned = True
        op.owner = attempt
        _change(op, Status.OWNED, position)


def _committed(op: Operation, position: Position, fact: EffectFact) -> None:
    attempt = op.attempts.get(fact.attempt_id)
    if attempt is None:
        attempt = Attempt(fact.attempt_id, position, fact, AttemptState.LOST)
        op.attempts[fact.attempt_id] = attempt
        _unconfirmed(op, position, fact, attempt)
        return
    if attempt.outcome is not None and attempt.outcome.kind is EffectKind.COMMITTED:
        return
    attempt.outcome, attempt.outcome_position = fact, position
    owns = op.owner is attempt
    if owns and op.status in {Status.OWNED, Status.IN_DOUBT}:
        attempt.state = AttemptState.COMMITTED
        _settle(op, position, fact)
    elif owns and op.status is Status.UNSAFE:  # who resolves it must have seen the commit
        attempt.state = AttemptState.COMMITTED
        op.changed_at = position
    elif owns and op.stands:  # confirms what a resolution had said
        attempt.state = AttemptState.COMMITTED
        if op.settled is not None and op.settled.result is None and _seals_no_less(fact, op.settled):
            op.settled, op.settled_at = fact, position
            op.changed_at = position
    else:
        _late_commit(op, position, fact, attempt)


def _unconfirmed(op: Operation, position: Position, fact: EffectFact, attempt: Attempt) -> None:
    """A commit without an intent: allowed to effects of which a repeat does no harm."""
    attempt.outcome, attempt.outcome_position = fact, position
    if not _same(op, fact):
        attempt.state = AttemptState.CONFLICT
        _anomaly(op, position, fact, "committed under another operation's id")
        return
    if op.first is None:
        op.first = fact
    if not skips_confirmation(fact.effect_class, order_safe=fact.order_safe):
        _late_commit(op, position, fact, attempt)
    elif op.status is Status.FREE and fact.round == op.round:
        attempt.state = AttemptState.COMMITTED
        attempt.owned = True
        op.owner = attempt
        _settle(op, position, fact)
    else:
        attempt.state = AttemptState.REPEATED


def _late_commit(op: Operation, position: Position, fact: EffectFact, attempt: Attempt) -> None:
    """A commit of an attempt that is not the owner: it says that an effect happened."""
    if op.status is Status.FREE and fact.round == op.round and _same(op, fact):
        if op.first is None:  # its own intent was rejected, and no other has counted yet
            op.first = fact
        op.flagged = True
        op.owner = attempt
        attempt.owned = True
        attempt.state = AttemptState.COMMITTED
        _settle(op, position, fact)
        return
    attempt.state = AttemptState.COMMITTED
    _anomaly(op, position, fact, f"committed although the operation was {op.status.value}: possible double execution")


def _failed(op: Operation, position: Position, fact: EffectFact) -> None:
    attempt = op.attempts.get(fact.attempt_id)
    if attempt is None:  # withdrawn before its intent arrived: the intent, if it comes, claims nothing
        op.attempts[fact.attempt_id] = Attempt(fact.attempt_id, position, fact, AttemptState.FAILED, fact, position)
        return
    if attempt.state in {AttemptState.FAILED, AttemptState.REJECTED}:
        return
    if attempt.outcome is not None and attempt.outcome.kind is EffectKind.COMMITTED:  # whatever became of it
        _anomaly(op, position, fact, "failed after it had committed")
        return
    attempt.outcome, attempt.outcome_position = fact, position
    op.voids += fact.reason == VOIDED and op.owner is attempt and not op.stands
    if op.owner is attempt and op.stands:
        _anomaly(op, position, fact, "failed although a resolution says that it is committed")
    elif op.owner is attempt and op.status is Status.UNSAFE:
        op.changed_at = position
    elif op.owner is attempt and op.status in {Status.OWNED, Status.IN_DOUBT}:
        op.owner = None
        _change(op, Status.FREE, position)
    attempt.state = AttemptState.FAILED


def _in_doubt(op: Operation, position: Position, fact: EffectFact) -> None:
    attempt = op.attempts.get(fact.attempt_id)
    if attempt is not None and attempt.state is AttemptState.OVERRULED:
        _anomaly(op, position, fact, "in doubt after it had been resolved as absent")
        return
    if attempt is None or op.owner is not attempt or op.status is not Status.OWNED:
        return
    attempt.outcome, attempt.outcome_position = fact, position
    attempt.state = AttemptState.IN_DOUBT
    _change(op, Status.IN_DOUBT, position)


def _resolved(op: Operation, position: Position, fact: EffectFact) -> None:
    change = _RESOLUTIONS.get((op.status, fact.outcome))
    effective = change is not None and fact.version == op.version
    op.resolutions.append(Resolution(position, fact, effective))
    if change is None or not effective:
        return
    op.last_resolution = position
    change(op, position, fact)


def _resolve_committed(op: Operation, position: Position, fact: EffectFact) -> None:
    _settle(op, position, fact)
    owner = op.owner
    if (
        owner is not None
        and owner.state is AttemptState.COMMITTED
        and owner.outcome is not None
        and fact.result is None
        and _seals_no_less(owner.outcome, fact)
    ):
        op.settled, op.settled_at = owner.outcome, owner.outcome_position  # it had told its result already


def _seals_no_less(fact: EffectFact, other: EffectFact) -> bool:
    """Whether what `other` says of how the effect is undone is not lost by taking `fact` for it."""
    return bool(fact.manifest_digest) or not other.manifest_digest


def _resolve_absent(op: Operation, position: Position, fact: EffectFact) -> None:
    if op.owner is not None:
        op.owner.state = AttemptState.OVERRULED
    op.voids += fact.reason == VOIDED
    _vacate(op, position)


def _not_undone(op: Operation, position: Position, fact: EffectFact) -> None:
    """Somebody found out that an undo which was left in the middle changed nothing."""
    del fact
    op.undoing = None
    _change(op, Status.COMMITTED, position)


def _affirm(op: Operation, position: Position, fact: EffectFact) -> None:
    """What was settled without saying how it is undone may be told that; what was sealed stays as it is."""
    op.changed_at = position
    if op.settled is not None and fact.manifest_digest and not op.settled.manifest_digest:
        op.settled = replace(op.settled, manifest=fact.manifest, manifest_digest=fact.manifest_digest)


def _try_anew(op: Operation, position: Position, fact: EffectFact) -> None:
    """Somebody has looked at a free operation: what failed before that is not counted against it any more."""
    _affirm(op, position, fact)
    op.tried_anew = position


def _end_round(op: Operation, position: Position, fact: EffectFact) -> None:
    op.compensations.append(fact)
    op.round += 1
    op.voids = 0
    _vacate(op, position)


def _vacate(op: Operation, position: Position) -> None:
    """Free, and nothing left of who owned or settled it."""
    op.owner = op.settled = op.undoing = None
    op.settled_at = NOWHERE
    op.flagged = False
    op.adoptions = []
    _change(op, Status.FREE, position)


def _adopted(op: Operation, position: Position, fact: EffectFact) -> None:
    """The version moves: an undo that was planned without knowing of it must not begin.

    An operator's names the version that he looked at, and counts on no other. So does the word that takes it back.
    """
    known = {(a.fact.agent_id, a.fact.branch_id, a.fact.by) for a in op.adoptions}
    if op.status is not Status.COMMITTED or fact.round != op.round or fact.version not in {"", op.version}:
        return
    if fact.reason == RELEASED and fact.by:
        op.adoptions, op.changed_at = [a for a in op.adoptions if not a.fact.by], position
    elif (fact.agent_id, fact.branch_id, fact.by) not in known:
        op.adoptions.append(Adoption(position, fact))
        op.changed_at = position


def _compensating(op: Operation, position: Position, fact: EffectFact) -> None:
    if any(u.fact.attempt_id == fact.attempt_id for u in op.undoings):
        return
    under_way = op.undoing.plan_digest if op.undoing is not None else ""
    taken_over = op.status is Status.COMPENSATING and under_way and fact.plan_digest == under_way
    free = op.status is Status.COMMITTED or taken_over
    effective = bool(free) and fact.round == op.round and fact.version == op.version
    op.undoings.append(Undoing(position, fact, effective))
    if effective:
        op.undoing = fact
        _change(op, Status.COMPENSATING, position)


def _undo_withdrawn(op: Operation, position: Position, fact: EffectFact) -> None:
    if op.undoing is None or op.undoing.attempt_id != fact.attempt_id:
        return
    if op.status is Status.COMPENSATING:
        _not_undone(op, position, fact)
    else:  # unsafe it stays, until somebody has looked
        op.undoing, op.changed_at = None, position


def _compensated(op: Operation, position: Position, fact: EffectFact) -> None:
    if op.stands and fact.round == op.round:
        _end_round(op, position, fact)
    elif op.status is Status.UNSAFE and fact.round == op.round:  # who resolves it must have seen it
        op.changed_at = position


def _summarised(op: Operation, position: Position, fact: EffectFact) -> None:
    del position
    op.summaries.append(fact)


def _nothing(op: Operation, position: Position, fact: EffectFact) -> None:
    del op, position, fact


Rule = Callable[[Operation, Position, EffectFact], None]


_RESOLUTIONS: dict[tuple[Status, Outcome], Rule] = {
    (Status.OWNED, Outcome.COMMITTED): _resolve_committed,
    (Status.OWNED, Outcome.ABSENT): _resolve_absent,
    (Status.IN_DOUBT, Outcome.COMMITTED): _resolve_committed,
    (Status.IN_DOUBT, Outcome.ABSENT): _resolve_absent,
    (Status.UNSAFE, Outcome.COMMITTED): _resolve_committed,
    (Status.UNSAFE, Outcome.ABSENT): _resolve_absent,
    (Status.UNSAFE, Outcome.COMPENSATED): _end_round,
    (Status.COMMITTED, Outcome.COMMITTED): _affirm,
    (Status.COMMITTED, Outcome.COMPENSATED): _end_round,
    (Status.COMPENSATING, Outcome.COMMITTED): _not_undone,
    (Status.COMPENSATING, Outcome.COMPENSATED): _end_round,
    (Status.FREE, Outcome.ABSENT): _try_anew,
}

_RULES: dict[EffectKind, Rule] = {
    EffectKind.INTENDED: _nothing,  # handled with the verdicts in view
    EffectKind.COMMITTED: _committed,
    EffectKind.FAILED: _failed,
    EffectKind.IN_DOUBT: _in_doubt,
    EffectKind.RESOLVED: _resolved,
    EffectKind.ADOPTED: _adopted,
    EffectKind.COMPENSATING: _compensating,
    EffectKind.COMPENSATION_WITHDRAWN: _undo_withdrawn,
    EffectKind.COMPENSATED: _compensated,
    EffectKind.REJECTED: _nothing,
    EffectKind.SUMMARISED: _summarised,
}
