"""One logical operation: its status, attempts, and what names it. Its fold is in `operation_fold.py`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum

from .facts import EffectClass, EffectFact, EffectKind, ResultForm
from .positions import NOWHERE, Position

VOIDED = "the idempotency key is void"
"""Reason of an ABSENT by a probe that voided the key at the provider, and of a FAILED because the provider refuses it."""

RELEASED = "released"
"""Reason of an ADOPTED by which an operator takes back what operators have adopted by name."""


class Status(StrEnum):
    """Where an operation stands by its facts alone."""

    FREE = "free"
    OWNED = "owned"
    COMMITTED = "committed"
    IN_DOUBT = "in doubt"
    COMPENSATING = "compensating"
    UNSAFE = "unsafe"


class AttemptState(StrEnum):
    """What became of one attempt."""

    OWNER = "owner"
    LOST = "lost"
    REJECTED = "rejected"
    WRONG_ROUND = "wrong round"
    CONFLICT = "conflict"
    COMMITTED = "committed"
    FAILED = "failed"
    IN_DOUBT = "in doubt"
    REPEATED = "repeated"
    OVERRULED = "overruled"


@dataclass(slots=True)
class Attempt:
    """One try at the operation by one session.

    Attributes:
        intent: the fact that began it; its first fact, where no intent has been seen.
        owned: whether it ever owned the operation.
    """

    attempt_id: str
    position: Position
    intent: EffectFact
    state: AttemptState
    outcome: EffectFact | None = None
    outcome_position: Position = NOWHERE
    owned: bool = False


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that the ledger could not prevent and a person must look at."""

    position: Position
    attempt_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """A resolution by a probe or an operator; `effective` if it named the right version."""

    position: Position
    fact: EffectFact
    effective: bool


_AT_REST = frozenset({Status.FREE, Status.COMMITTED})
_STANDING = frozenset({Status.COMMITTED, Status.COMPENSATING})


@dataclass(frozen=True, slots=True)
class Adoption:
    """A branch beside the one that committed the effect, or an operator, relies on it."""

    position: Position
    fact: EffectFact


@dataclass(frozen=True, slots=True)
class Undoing:
    """An undo that was begun; `effective` if the op stood at the version that it named."""

    position: Position
    fact: EffectFact
    effective: bool


@dataclass(slots=True)
class Operation:
    """An operation as its facts tell it.

    Attributes:
        first: the fact whose tool, class and identity define the operation (None: no facts).
        owner: the attempt that owns or settled it; None while free.
        settled: the fact that settled the present round, and `settled_at` its position.
        voids: how many idempotency keys of this round are void at the provider, as a probe or a tool has told.
        changed_at: where the last fact stands that changed what a decision about the operation rests on: its
            status, an anomaly, an adoption, an affirmation, what settled it, or what an unsafe one was told
            since. None: nothing has.
        flagged: it was settled by a late commit of an attempt that was not the owner.
        adoptions: who relies on the effect of the present round beside the branch that committed it.
        undoing: the undo that is under way, while the status is COMPENSATING.
        undoings: every undo that was begun, in log order.
        compensations: the facts that ended a round, in log order.
        tried_anew: where somebody who had looked into it said last that it may be tried on: `tries` counts from there.
        summaries: attempts that never owned it and are only kept as numbers; see `losers.py`.
    """

    op_id: str
    status: Status = Status.FREE
    round: int = 1
    first: EffectFact | None = None
    owner: Attempt | None = None
    settled: EffectFact | None = None
    settled_at: Position = NOWHERE
    changed_at: Position | None = None
    flagged: bool = False
    attempts: dict[str, Attempt] = field(default_factory=dict)
    anomalies: list[Anomaly] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)
    compensations: list[EffectFact] = field(default_factory=list)
    adoptions: list[Adoption] = field(default_factory=list)
    undoing: EffectFact | None = None
    undoings: list[Undoing] = field(default_factory=list)
    summaries: list[EffectFact] = field(default_factory=list)
    last_resolution: Position = NOWHERE
    tried_anew: Position = NOWHERE
    voids: int = 0

    @property
    def version(self) -> str:
        """Names what changed it last, "" when nothing has. A resolution, an undo, and an operator's adoption must quote it."""
        return "" if self.changed_at is None else str(self.changed_at)

    @property
    def tool(self) -> str:
        """The stable name of the tool, or "" when no fact has told it."""
        return self.first.tool if self.first else ""

    @property
    def effect_class(self) -> EffectClass:
        """The operation's class; UNKNOWN counts as irreversible."""
        return self.first.effect_class if self.first else EffectClass.UNKNOWN

    @property
    def harmless(self) -> bool:
        """Whether running it again does no harm whatever came in between."""
        if self.first is None:
            return False
        return skips_confirmation(self.first.effect_class, order_safe=self.first.order_safe)

    @property
    def idempotency_key(self) -> str:
        """The key to hand to the tool in this round."""
        return idempotency_key(self.op_id, self.round, self.voids)

    @property
    def tries(self) -> int:
        """How many attempts owned it, since somebody last said that it may be tried on."""
        return sum(attempt.owned and attempt.position > self.tried_anew for attempt in self.attempts.values())

    @property
    def needs_attention(self) -> bool:
        """Whether an anomaly stands that no resolution has acknowledged since."""
        return any(a.position > self.last_resolution for a in self.anomalies)

    @property
    def at_rest(self) -> bool:
        """Whether nobody has anything to do about it: free or committed, and no anomaly stands."""
        return self.status in _AT_REST and not (self.anomalies and self.needs_attention)

    @property
    def variants(self) -> tuple[str, ...]:
        """Content digests of all attempts, in log order, without repeats."""
        digests = [a.intent.content_digest for a in self.attempts.values() if a.intent.content_digest]
        return tuple(dict.fromkeys(digests))

    @property
    def done_by(self) -> EffectFact | None:
        """The fact that tells which branch made the effect of this round; None while nobody has."""
        return self.owner.intent if self.owner else self.settled

    @property
    def done_by_branch(self) -> tuple[str, str]:
        """(agent_id, branch_id) of the branch that made the effect of this round; empty while nobody has."""
        fact = self.done_by
        return (fact.agent_id, fact.branch_id) if fact else ("", "")

    @property
    def done_at(self) -> tuple[Position, int, str]:
        """(epoch, seq, op_id) of what settled it, or of what began it: positions of different partitions tell no order.

        A resolution has no place, so what it settled stands where it was begun.
        """
        fact = self.settled if self.settled is not None and self.settled.seq else None
        fact = fact or (self.owner.intent if self.owner else self.settled or self.first)
        return (fact.epoch, fact.seq, self.op_id) if fact else (NOWHERE, 0, self.op_id)

    @property
    def stands(self) -> bool:
        """Whether the effect of this round happened and was not undone."""
        return self.status in _STANDING

    @property
    def result(self) -> bytes | None:
        """Canonical JSON of the recorded result, if the effect stands and has one."""
        return self.settled.result if self.settled and self.stands else None

    @property
    def result_form(self) -> ResultForm:
        """How the result was recorded."""
        if self.settled is None or not self.stands:
            return ResultForm.UNKNOWN
        return self.settled.result_form

    @property
    def told(self) -> tuple[EffectFact, ...]:
        """The facts that each tell another result of this round, what settled it first; empty if it does not stand.

        More than one where a read was read again, two sessions did at once what may be repeated, or a
        late commit says more than what settled it: each caller went on with its own.
        """
        if self.settled is None or not self.stands:
            return ()
        outcomes = (a.outcome for a in self.attempts.values() if a.state is not AttemptState.CONFLICT)
        commits = (f for f in outcomes if f and f.kind is EffectKind.COMMITTED and f.round == self.round)
        found: dict[tuple[ResultForm, bytes | None, str], EffectFact] = {}
        for fact in (self.settled, *commits):
            found.setdefault((fact.result_form, fact.result, fact.result_digest if fact.result is None else ""), fact)
        return tuple(found.values())

    @property
    def sealed_manifest(self) -> bytes | None:
        """How the effect can be undone, as it was sealed with its outcome; None if it was not."""
        if self.settled is None or not self.stands or not self.settled.manifest_digest:
            return None
        return self.settled.manifest

    @property
    def sealable(self) -> bool:
        """Whether an operator's word can still say how it is undone: its intent told the way, and nothing was sealed."""
        told = self.owner is not None and self.owner.intent.manifest is not None
        return told and self.sealed_manifest is None and self.status is not Status.COMPENSATING

    @property
    def losses(self) -> tuple[str, ...]:
        """Effects of former rounds that could not be taken back, accepted by name."""
        return tuple(dict.fromkeys(loss for fact in self.compensations for loss in fact.losses))


def skips_confirmation(effect_class: EffectClass, *, order_safe: bool) -> bool:
    """Whether an effect of this class may run without being confirmed as the only one."""
    if effect_class is EffectClass.IDEMPOTENT:
        return order_safe
    return effect_class in {EffectClass.READ, EffectClass.REPEATABLE}


def idempotency_key(op_id: str, round_number: int, voids: int = 0) -> str:
    """The idempotency key of an operation's round: the same in every attempt and branch.

    A key that is void at the provider would be refused there for ever, so what comes after it gets another
    one. Nothing can happen any more under a void key; under one that is not known to be void, a late
    call and the next attempt must have the same, so that the provider takes them for one.
    """
    digest = hashlib.sha256(op_id.encode()).hexdigest()
    return f"fencepost-{digest[:40]}-{round_number}" + (f".{voids}" if voids else "")


def compensation_op_id(op_id: str, round_number: int) -> str:
    """The operation that undoes an operation's round: the same for whoever undoes it, and whenever."""
    name = f"{UNDO}{op_id}:{round_number}"
    return name if len(name) <= _LONGEST_NAME else f"{UNDO}{hashlib.sha256(op_id.encode()).hexdigest()}:{round_number}"


_LONGEST_NAME = 512
UNDO = "undo:"
"""How the id of an operation that undoes another one begins."""
