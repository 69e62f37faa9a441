"""Coverage marks: what a set of runs must have seen, so that a run which tests nothing is noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulation.run import Recorded
from simulation.world import Event

from fencepost.ledger.facts import AgentFact, AgentKind, EffectFact, EffectKind, decode_agent, decode_effect
from fencepost.ledger.history import LogEntry
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import OPS, read_history

_ENDINGS = {
    "OperationInDoubtError": "an operation was in doubt",
    "OperationInFlightError": "an owner was waited for in vain",
    "FencedError": "a superseded session was stopped",
    "TimeoutError": "a call was cancelled",
    "OutcomeUnknownError": "an outcome could not be published",
    "StaleProjectionError": "a call was refused because the projection was stale",
}
_REASONS = {
    "EFFECT_OWNED": "the guard refused because of an owned effect",
    "EFFECT_IN_DOUBT": "the guard refused because of one in doubt",
    "EFFECT_NOT_KNOWN": "the guard refused because of an unknown effect",
}
_EVENTS = {
    "was superseded": "a stale projector was refused",
    "found another offset": "an older projection was noticed by its projector",
    "found another lost": "a lost projection was noticed by its projector",
    "judged at the horizon": "a verdict was given at the horizon",
    "wrote unheard": "a record was written unheard",
    "rolled back": "a session rolled itself back",
    "tool refused a void key": "a void key was refused",
    "took over": "a session took over what was done",
    "went back": "the store went back",
    "read an older projection": "an older projection was noticed by a reader",
    "heard nothing": "a projector did not hear that its step was done",
    "removed": "compaction removed a record",
}
_EFFECTS = {
    EffectKind.REJECTED: "an intent was rejected",
    EffectKind.IN_DOUBT: "an owner could not tell",
    EffectKind.RESOLVED: "an operation was resolved",
}

MARKS = frozenset({
    *_ENDINGS.values(), *_REASONS.values(), *_EVENTS.values(), *_EFFECTS.values(),
    "the guard proceeded", "the guard proceeded gated", "a guard fenced and then refused",
    "a rollback without a guard was withdrawn", "a projector died after a step", "a probe found the effect",
    "a probe voided the key", "a second round ran", "a branch ran an effect", "the projection was rebuilt",
    "a debt was paid", "a commit was late", "an attempt lost",
    "an attempt was withdrawn", "a result was absorbed", "an agent died between effect and commit",
    "compaction removed a commit", "an agent was paused",
})  # fmt: skip


def marks(run: Recorded) -> set[str]:
    """The marks that a run has reached."""
    return {*_of_events(run.events), *_of_log(run)}


def _of_events(events: list[Event]) -> Iterator[str]:
    lost = False
    for event in events:
        lost = lost or event.kind == "lost"
        if event.kind == "began" and lost:
            yield "the projection was rebuilt"
        yield from _of_event(event)


def _of_event(event: Event) -> Iterator[str]:
    match event.kind, event.what:
        case "ended", (_, how) if how in _ENDINGS:
            yield _ENDINGS[how]
        case "verdict", what:
            yield from _of_verdict(*what)
        case "died", (where,) if where.startswith("after"):
            yield "a projector died after a step"
        case "probed", (_, outcome):
            yield "a probe found the effect" if outcome == "COMMITTED" else "a probe voided the key"
        case "ran", (_, number, _, _, _, branch_id, *_):
            if number > 1:
                yield "a second round ran"
            if branch_id != "main":
                yield "a branch ran an effect"
        case "paused", _:
            yield "an agent was paused"
        case kind, _ if kind in _EVENTS:
            yield _EVENTS[kind]


def _of_verdict(kind: str, rollback_id: str, reasons: str, fenced: bool) -> Iterator[str]:
    del rollback_id
    if kind == "PROCEED":
        yield "the guard proceeded"
    elif kind == "PROCEED_GATED":
        yield "the guard proceeded gated"
    elif fenced:
        yield "a guard fenced and then refused"
    for reason in reasons.split(","):
        if reason in _REASONS:
            yield _REASONS[reason]


def _of_log(run: Recorded) -> Iterator[str]:
    committed: set[str] = set()
    for partition, left in run.left.items():
        for entry in left.written:
            record = entry.record
            if record is None or record.fact is None:
                if record is not None and record.history:
                    yield "a debt was paid"
            elif partition.topic is Topic.EFFECTS:
                fact = decode_effect(record.fact)
                if fact.kind is EffectKind.COMMITTED:
                    committed.add(fact.attempt_id)
                    if entry.offset in left.removed:
                        yield "compaction removed a commit"
                    if any(_fences(other, fact) for other in left.written[: entry.offset]):
                        yield "a commit was late"
                yield from _of_effect(fact)
            else:
                yield from _of_agent(decode_agent(record.fact))
            yield from (_EFFECTS[kind] for kind in _verdict_kinds(partition, entry))
        yield from _lost(partition, left.documents)
    died = {event.who for event in run.events if event.kind == "died"}
    if any(e.kind == "ran" and e.who in died and e.what[2] not in committed for e in run.events):
        yield "an agent died between effect and commit"


def _lost(partition: Partition, documents: Mapping[DocumentKey, bytes]) -> Iterator[str]:
    for key, data in documents.items():
        if partition.topic is Topic.EFFECTS and key.collection == OPS:
            attempts = fold_operation(key.key, read_history(data)).attempts.values()
            if any(attempt.state is AttemptState.LOST for attempt in attempts):
                yield "an attempt lost"


def _fences(entry: LogEntry, fact: EffectFact) -> bool:
    if entry.record is None or entry.record.fact is None:
        return False
    fence = decode_effect(entry.record.fact)
    same = (fence.agent_id, fence.branch_id) == (fact.agent_id, fact.branch_id)
    return fence.kind is EffectKind.FENCED and same and fence.epoch > fact.epoch


def _verdict_kinds(partition: Partition, entry: LogEntry) -> Iterator[EffectKind]:
    if partition.topic is Topic.EFFECTS and entry.record is not None:
        for _, data in entry.record.history:
            kind = decode_effect(data).kind
            if kind is EffectKind.REJECTED:
                yield kind


def _of_effect(fact: EffectFact) -> Iterator[str]:
    if fact.kind in _EFFECTS:
        yield _EFFECTS[fact.kind]
    if fact.kind is EffectKind.FAILED and fact.reason.startswith("withdrawn"):
        yield "an attempt was withdrawn"


def _of_agent(fact: AgentFact) -> Iterator[str]:
    if fact.kind is AgentKind.ABSORBED:
        yield "a result was absorbed"
    if fact.kind is AgentKind.ROLLBACK_DECIDED and fact.verdict == "WITHDRAWN":
        yield "a rollback without a guard was withdrawn"
