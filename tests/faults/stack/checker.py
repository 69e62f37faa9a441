"""Checks what a run left behind against the promises. Pure: it reads values and knows no clock, no Kafka, and no Redis.

at most once     a key of the outside world is used once at most, an operation once a round
mediated         nothing is run before its own intent is acknowledged, and by nobody but the owner
outcome          what happened is committed or said to be in doubt; a call that says it did not run did not
guard            no authorised rollback goes back over an effect, and nothing of what was left runs afterwards
fold             projection = fold(every record), also of what compaction left
acknowledged     every acknowledged fact stands at its offset and in the history that the log has at the end
sequence         a sealed session's numbers are complete; watermarks of a session never go back
answers          what an absorbed call got is what the winner recorded
owner            every commit has an owner: no anomaly
typed            no error of a client gets out of a call
tap              the archive itself has no gap; without it nothing above is proved
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from faults.stack.evidence import Acked, Decided, Evidence, Raw
from faults.stack.folded import Folded, Life, differences, effect_facts, fold, lives, numbers
from faults.stack.marks import reached

from fencepost.ledger import log_keys
from fencepost.ledger.facts import EffectKind, decode_effect
from fencepost.ledger.history import PositionedFact
from fencepost.ledger.operations import Attempt, AttemptState, Operation, Status
from fencepost.ledger.positions import NOWHERE, Position, Topic
from fencepost.ledger.watermarks import Point, Watermark

RAN = frozenset({AttemptState.COMMITTED, AttemptState.IN_DOUBT, AttemptState.OWNER})
"""States of an attempt that changed the outside world."""


class Violation(NamedTuple):
    """A promise that is broken, and by what."""

    promise: str
    what: str


@dataclass
class Findings:
    """What the checker says.

    Attributes:
        marks: how often what a fault run is there for was reached.
    """

    violations: list[Violation] = field(default_factory=list)
    marks: Counter[str] = field(default_factory=Counter)


@dataclass
class _Case:
    """The evidence, with the folds that several checks need."""

    evidence: Evidence
    tapped: Folded
    left: Folded
    operations: dict[str, Operation]
    lives: dict[str, Life]


def check(evidence: Evidence) -> Findings:
    """Every violation of every promise, and the coverage marks."""
    tapped = fold(evidence.tap, evidence.partitions)
    operations = {operation.op_id: operation for operation in tapped.operations()}
    case = _Case(evidence, tapped, fold(evidence.log, evidence.partitions), operations, lives(tapped))
    found = [Violation(promise, what) for promise, look in _CHECKS.items() for what in look(case)]
    return Findings(found, reached(evidence, operations))


# -- the outside world -----------------------------------------------------------------


def _at_most_once(case: _Case) -> Iterator[str]:
    hits = [hit for hit in case.evidence.sink if hit.do == "hit"]
    for key, count in Counter(hit.key for hit in hits).items():
        if count > 1:
            yield f"key {key} was used {count} times"
    for op_id, count in Counter(hit.op_id for hit in hits).items():
        rounds = case.operations[op_id].round if op_id in case.operations else 1
        if count > rounds:
            yield f"{op_id} ran {count} times in {rounds} rounds"


def _mediated(case: _Case) -> Iterator[str]:
    acked = _intents_acked(case)
    for hit in case.evidence.sink:
        if hit.do != "hit":
            continue
        at = acked.get(hit.attempt_id)
        if at is None or at > hit.at:
            yield f"{hit.op_id} was run by attempt {hit.attempt_id} before its intent was acknowledged"
        attempt = _attempt(case, hit.op_id, hit.attempt_id)
        if attempt is not None and attempt.state not in RAN:
            yield f"{hit.op_id} was run by attempt {hit.attempt_id}, which is {attempt.state.value}"
        if attempt is not None and (attempt.intent.agent_id, attempt.intent.session_id) != (
            hit.agent_id,
            hit.session_id,
        ):
            yield f"{hit.op_id} was run by {hit.agent_id}, its intent is of {attempt.intent.agent_id}"


def _outcome(case: _Case) -> Iterator[str]:
    hits = {hit.attempt_id: hit for hit in case.evidence.sink if hit.do == "hit"}
    for hit in hits.values():
        operation = case.operations.get(hit.op_id)
        if operation is None or operation.status is Status.FREE:
            yield f"{hit.op_id} happened, and the log says that it is free"
    for call in case.evidence.calls:
        if call.outcome == "fail" and call.attempt_id in hits:
            yield f"{call.op_id}: the call said that nothing was run ({call.error}), and it was"
        if call.outcome == "ok" and call.ran and call.attempt_id not in hits:
            yield f"{call.op_id}: the call said that it ran, and the outside world has not seen it"


def _intents_acked(case: _Case) -> dict[str, int]:
    found: dict[str, int] = {}
    by_fact = {}
    for _, _, fact in effect_facts(case.tapped):
        if fact.kind is EffectKind.INTENDED:
            by_fact[fact.op_id, fact.attempt_id] = fact
    for acked in case.evidence.acked:
        if acked.partition.topic is Topic.EFFECTS and log_keys.is_operation(acked.key):
            fact = decode_effect(acked.fact)
            if fact.kind is EffectKind.INTENDED and (fact.op_id, fact.attempt_id) in by_fact:
                found.setdefault(fact.attempt_id, acked.at)
    return found


def _attempt(case: _Case, op_id: str, attempt_id: str) -> Attempt | None:
    operation = case.operations.get(op_id)
    return operation.attempts.get(attempt_id) if operation else None


# -- the guard -------------------------------------------------------------------------


def _guard(case: _Case) -> Iterator[str]:
    for decided in case.evidence.decisions:
        if decided.verdict == "REFUSE":
            continue
        life = case.lives.get(decided.agent_id, Life())
        if decided.rollback_id not in life.requested:
            yield f"{decided.agent_id} was authorised by {decided.rollback_id}, which is not in the log"
            continue
        requested, _ = life.requested[decided.rollback_id]
        yield from _crossed(case, decided, life, requested)


def _crossed(case: _Case, decided: Decided, life: Life, requested: Position) -> Iterator[str]:
    """Effects of sessions that were there before the rollback, and that the checkpoint does not know."""
    path = _path(life, decided.target)
    for hit in case.evidence.sink:
        if hit.do != "hit" or hit.agent_id != decided.agent_id:
            continue
        attempt = _attempt(case, hit.op_id, hit.attempt_id)
        if attempt is None or attempt.intent.epoch > requested:
            continue
        later = hit.at > decided.at
        if later or (decided.verdict == "PROCEED" and not _known(case, hit.op_id, decided.agent_id, life, path)):
            when = "ran after" if later else "is gone back over by"
            yield f"{hit.op_id} {when} the rollback {decided.rollback_id} of {decided.agent_id}"


def _path(life: Life, point: Point) -> dict[Position, int]:
    """What a point knows: its session up to its number, its parent's up to the parent's, and so on."""
    path: dict[Position, int] = {}
    while point.epoch != NOWHERE and point.epoch not in path:
        path[point.epoch] = point.seq
        opened = life.opened.get(point.epoch)
        mark = Watermark.find(opened.watermark) if opened and opened.watermark else None
        point = mark.point if mark else Point(NOWHERE, 0)
    return path


def _known(case: _Case, op_id: str, agent_id: str, life: Life, path: Mapping[Position, int]) -> bool:
    operation = case.operations[op_id]
    own = [a.outcome for a in operation.attempts.values() if a.outcome and a.intent.agent_id == agent_id]
    places = [(fact.epoch, fact.seq) for fact in own if fact.kind is EffectKind.COMMITTED]
    places += life.absorbed.get(op_id, [])
    return any(seq <= path.get(epoch, 0) for epoch, seq in places)


# -- the log and the projection --------------------------------------------------------


def _fold(case: _Case) -> Iterator[str]:
    evidence = case.evidence
    yield from differences("the projection", case.tapped.documents, evidence.projection)
    if evidence.log:
        yield from differences("the fold of what is left of the log", case.tapped.settled(), case.left.settled())
    for key in case.left.debts:
        yield f"at rest the newest record of {key} leaves something out"


def _acknowledged(case: _Case) -> Iterator[str]:
    tap = {partition: {raw.offset: raw for raw in records} for partition, records in case.evidence.tap.items()}
    for acked in case.evidence.acked:
        where = f"an acknowledged fact of {acked.key} ({acked.partition}, offset {acked.offset})"
        if acked.offset is not None and acked.offset not in tap.get(acked.partition, {}):
            yield f"{where} is not in the log"
        elif acked.offset is not None and _key(tap[acked.partition][acked.offset]) != acked.key:
            yield f"{where}: another record stands there"
        elif log_keys.fence_of(acked.key) is None and not _held(case.tapped, acked):
            yield f"{where} is not in its key's history"
        elif log_keys.fence_of(acked.key) is None and case.evidence.log and not _held(case.left, acked):
            yield f"{where} is not in what is left of the log"


def _held(folded: Folded, acked: Acked) -> bool:
    held = folded.facts(acked.partition, acked.key)
    if acked.offset is None:
        return any(data == acked.fact for _, data in held)
    return PositionedFact(Position(0, acked.offset), acked.fact) in held


def _key(raw: Raw) -> str:
    return (raw.key or b"").decode(errors="replace")


def _sequence(case: _Case) -> Iterator[str]:
    seen = numbers(case.tapped)
    for agent_id, life in case.lives.items():
        for closed in life.closed:
            if missing := set(range(1, closed.sealed_seq + 1)) - seen.get(closed.session_id, set()):
                yield f"{agent_id} sealed {closed.session_id} at {closed.sealed_seq}, and {sorted(missing)} are not there"
        yield from _marks_go_back(agent_id, life)


def _marks_go_back(agent_id: str, life: Life) -> Iterator[str]:
    highest: dict[Position, int] = {}
    for _, fact in life.checkpoints:
        mark = Watermark.find(fact.watermark)
        if mark is None or mark.epoch != fact.epoch:
            continue
        if mark.seq < highest.get(mark.epoch, 0):
            yield f"the watermark of {agent_id} went back from {highest[mark.epoch]} to {mark.seq}"
        highest[mark.epoch] = max(mark.seq, highest.get(mark.epoch, 0))


# -- answers ---------------------------------------------------------------------------


def _answers(case: _Case) -> Iterator[str]:
    for call in case.evidence.calls:
        if call.outcome != "ok" or not call.op_id:
            continue
        operation = case.operations.get(call.op_id)
        if operation is None or operation.result is None:
            yield f"{call.op_id} was answered with {call.value!r}, and the log has no result"
        elif json.loads(operation.result) != call.value:
            yield f"{call.op_id} was answered with {call.value!r}, and the log says {operation.result!r}"


def _owner(case: _Case) -> Iterator[str]:
    for operation in case.operations.values():
        for anomaly in operation.anomalies:
            yield f"{operation.op_id}, attempt {anomaly.attempt_id}: {anomaly.what}"
        if operation.flagged:
            yield f"{operation.op_id} was settled by a commit of an attempt that did not own it"


def _typed(case: _Case) -> Iterator[str]:
    return (f"{call.agent_id}: {call.error}" for call in case.evidence.calls if call.outcome == "foreign")


def _tap(case: _Case) -> Iterator[str]:
    for partition, records in case.evidence.tap.items():
        offsets = [raw.offset for raw in records]
        if offsets != list(range(len(offsets))):
            yield f"the archive of {partition} has a gap"
    for partition, records in case.evidence.log.items():
        if records and records[-1].offset >= len(case.evidence.tap.get(partition, [])):
            yield f"the archive of {partition} ends before the log"


_CHECKS: dict[str, Callable[[_Case], Iterator[str]]] = {
    "at most once": _at_most_once,
    "mediated": _mediated,
    "outcome": _outcome,
    "guard": _guard,
    "fold": _fold,
    "acknowledged": _acknowledged,
    "sequence": _sequence,
    "answers": _answers,
    "owner": _owner,
    "typed": _typed,
    "tap": _tap,
}
