"""The facts: immutable events in the lives of operations and agents, and their bytes.

A fact is written once and travels as bytes for ever; these classes are what today's code
reads out of them. A kind that this version does not know decodes as ``UNKNOWN``, which
every reader treats as unsafe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

from ..schemas import codec
from .positions import NOWHERE, Position


class EffectClass(StrEnum):
    """How bad a repeat would be. One operation has one class."""

    UNKNOWN = "UNKNOWN"
    READ = "READ"
    IDEMPOTENT = "IDEMPOTENT"
    REPEATABLE = "REPEATABLE"
    COMPENSATABLE = "COMPENSATABLE"
    IRREVERSIBLE = "IRREVERSIBLE"


class EffectKind(StrEnum):
    """What an effect fact says."""

    UNKNOWN = "UNKNOWN"
    INTENDED = "INTENDED"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    IN_DOUBT = "IN_DOUBT"
    COMPENSATED = "COMPENSATED"
    REJECTED = "REJECTED"
    RESOLVED = "RESOLVED"
    FENCED = "FENCED"
    HORIZON = "HORIZON"
    ADOPTED = "ADOPTED"
    COMPENSATING = "COMPENSATING"
    COMPENSATION_WITHDRAWN = "COMPENSATION_WITHDRAWN"
    SUMMARISED = "SUMMARISED"


class AgentKind(StrEnum):
    """What an agent fact says."""

    UNKNOWN = "UNKNOWN"
    LEDGER_CREATED = "LEDGER_CREATED"
    SESSION_OPENED = "SESSION_OPENED"
    SESSION_CLOSED = "SESSION_CLOSED"
    FORKED = "FORKED"
    PRUNED = "PRUNED"
    CHECKPOINTED = "CHECKPOINTED"
    COMPACTED = "COMPACTED"
    ROLLBACK_REQUESTED = "ROLLBACK_REQUESTED"
    ROLLBACK_DECIDED = "ROLLBACK_DECIDED"
    ABSORBED = "ABSORBED"
    CALL_REPORTED = "CALL_REPORTED"
    DIVERGENCE_DECLARED = "DIVERGENCE_DECLARED"
    HORIZON = "HORIZON"
    PRUNE_DECIDED = "PRUNE_DECIDED"
    PLAN_APPROVED = "PLAN_APPROVED"
    DIVERGENCE_HELD = "DIVERGENCE_HELD"


class ResultForm(StrEnum):
    """How a commit's result was recorded."""

    UNKNOWN = "UNKNOWN"
    NONE = "NONE"
    JSON = "JSON"
    TOO_LARGE = "TOO_LARGE"
    NOT_ENCODABLE = "NOT_ENCODABLE"


class Outcome(StrEnum):
    """What a resolution says about an operation in doubt."""

    UNKNOWN = "UNKNOWN"
    COMMITTED = "COMMITTED"
    ABSENT = "ABSENT"
    COMPENSATED = "COMPENSATED"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFact:
    """One event in the life of an operation, or a fence. Fields: `schemas/effect_fact.avsc`."""

    kind: EffectKind
    op_id: str = ""
    attempt_id: str = ""
    agent_id: str = ""
    branch_id: str = ""
    session_id: str = ""
    epoch: Position = NOWHERE
    seq: int = 0
    round: int = 1
    tool: str = ""
    effect_class: EffectClass = EffectClass.UNKNOWN
    order_safe: bool = False
    identity_digest: str = ""
    content_digest: str = ""
    arguments: bytes | None = None
    resource: str = ""
    cascades: tuple[str, ...] = ()
    idempotency_key: str = ""
    supplied_key: str = ""
    deadline_s: float = 0.0
    longest_run_s: float = -1.0
    time_ms: int = 0
    result: bytes | None = None
    result_form: ResultForm = ResultForm.UNKNOWN
    result_digest: str = ""
    result_reference: str = ""
    error: str = ""
    outcome: Outcome = Outcome.UNKNOWN
    version: str = ""
    evidence: str = ""
    by: str = ""
    risk_accepted: bool = False
    reason: str = ""
    manifest: bytes | None = None
    manifest_digest: str = ""
    plan_digest: str = ""
    other_op_id: str = ""
    losses: tuple[str, ...] = ()
    intent_seq: int = 0
    losers: bytes | None = None


ANY_ROUND = 0
"""The round of a crossed effect in a decision that told none."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """An effect that an authorised rollback goes back over, in the round in which it stood; `ANY_ROUND` if not told."""

    op_id: str
    tool: str
    round: int = 1


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a compaction of the context dropped; `digest` is the SHA-256 of the dropped text."""

    reference: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Obligation:
    """What a pruned branch left behind: an effect, or a reported call (then `op_id` is empty)."""

    op_id: str
    tool: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFact:
    """One event in the life of an agent. Fields: `schemas/agent_fact.avsc`."""

    kind: AgentKind
    agent_id: str = ""
    branch_id: str = ""
    session_id: str = ""
    epoch: Position = NOWHERE
    seq: int = 0
    segment: str = ""
    checkpoint_id: str = ""
    watermark: str = ""
    owned: tuple[str, ...] = ()
    generation: int = 0
    state_digest: str = ""
    parent_branch_id: str = ""
    rollback_id: str = ""
    policy: str = ""
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    crossed: tuple[Crossed, ...] = ()
    op_id: str = ""
    other_op_id: str = ""
    round: int = 1
    tool: str = ""
    effect_class: EffectClass = EffectClass.UNKNOWN
    order_safe: bool = False
    declared_as: str = ""
    sealed_seq: int = -1
    voided: tuple[int, ...] = ()
    by: str = ""
    evidence: str = ""
    time_ms: int = 0
    host: str = ""
    pid: int = 0
    ledger_id: str = ""
    dropped: tuple[Dropped, ...] = ()
    kept: tuple[str, ...] = ()
    summary_digest: str = ""
    plan_digest: str = ""
    plan: bytes | None = None
    losses: tuple[str, ...] = ()
    obligations: tuple[Obligation, ...] = ()

    @property
    def crossed_rounds(self) -> tuple[int, ...]:
        """The round of each crossed effect; stands beside them in the schema, which has had those from the first."""
        return tuple(effect.round for effect in self.crossed)


_EFFECT_FIELDS = tuple(f.name for f in fields(EffectFact))
_AGENT_FIELDS = tuple(f.name for f in fields(AgentFact))
_ROUNDS = "crossed_rounds"


def _position(value: Mapping[str, Any]) -> Position:
    return Position(value["generation"], value["offset"])


def _plain(value: Any) -> Any:
    if isinstance(value, Position):
        return {"generation": value.generation, "offset": value.offset}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_item(v) for v in value]
    return value


def _item(value: Any) -> Any:
    if isinstance(value, Crossed):
        return {"op_id": value.op_id, "tool": value.tool}
    return asdict(value) if isinstance(value, (Dropped, Obligation)) else value


def encode_effect(fact: EffectFact) -> bytes:
    """The fact's bytes: deterministic, so that equal facts are equal bytes."""
    return codec.encode_effect_fact({name: _plain(getattr(fact, name)) for name in _EFFECT_FIELDS})


def encode_agent(fact: AgentFact) -> bytes:
    """The fact's bytes: deterministic, so that equal facts are equal bytes."""
    return codec.encode_agent_fact({name: _plain(getattr(fact, name)) for name in (*_AGENT_FIELDS, _ROUNDS)})


_CACHED_BYTES = 4096
"""Larger facts are decoded anew each time: a cache of them would have no bound worth the name."""


def decode_effect(data: bytes) -> EffectFact:
    """The effect fact in `data`. Raises schemas.DecodeError for anything that is not one."""
    return _cached_effect(data) if len(data) <= _CACHED_BYTES else _decode_effect(data)


def decode_agent(data: bytes) -> AgentFact:
    """The agent fact in `data`. Raises schemas.DecodeError for anything that is not one."""
    return _cached_agent(data) if len(data) <= _CACHED_BYTES else _decode_agent(data)


def _decode_effect(data: bytes) -> EffectFact:
    values = codec.decode_effect_fact(data)
    known = {name: values[name] for name in _EFFECT_FIELDS}
    known["kind"] = EffectKind(values["kind"])
    known["effect_class"] = EffectClass(values["effect_class"])
    known["result_form"] = ResultForm(values["result_form"])
    known["outcome"] = Outcome(values["outcome"])
    known["epoch"] = _position(values["epoch"])
    known["cascades"] = tuple(values["cascades"])
    known["losses"] = tuple(values["losses"])
    return EffectFact(**known)


def _decode_agent(data: bytes) -> AgentFact:
    values = codec.decode_agent_fact(data)
    known = {name: values[name] for name in _AGENT_FIELDS}
    known["kind"] = AgentKind(values["kind"])
    known["effect_class"] = EffectClass(values["effect_class"])
    known["epoch"] = _position(values["epoch"])
    for name in ("owned", "reasons", "voided", "kept", "losses"):
        known[name] = tuple(values[name])
    # The first version wrote no rounds, and crossed effects of any: which it was cannot be told.
    rounds = [*values[_ROUNDS], *[ANY_ROUND] * len(values["crossed"])]
    known["crossed"] = tuple(Crossed(**c, round=r) for c, r in zip(values["crossed"], rounds, strict=False))
    known["dropped"] = tuple(Dropped(**d) for d in values["dropped"])
    known["obligations"] = tuple(Obligation(**o) for o in values["obligations"])
    return AgentFact(**known)


_cached_effect = lru_cache(maxsize=16384)(_decode_effect)
_cached_agent = lru_cache(maxsize=16384)(_decode_agent)
