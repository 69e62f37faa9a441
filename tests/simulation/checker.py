"""What must hold of every run. Pure: it reads a recorded run and says what is wrong with it.

1. At most once: a confirmed operation runs at most once a round.
2. Mediated: what runs had its intent in the log before, and the log says that it owned the operation.
3. Remembered: what ran is committed, owned, or in doubt by the log's own account, until its round is over.
4. A recorded result is that of an execution of that round.
5. The guard never authorised over an effect that stood in the log before its fences, or that ran afterwards.
6. What the cleaner left says what the whole log says; the projection says it too.
7. What was acknowledged is still there.
8. A session that was closed has accounted for every number that it gave out, but for outcomes that stayed unknown.
9. Every call comes to an end, and the projectors come to rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulation.run import Left, Recorded

from fencepost.ledger import history, log_keys
from fencepost.ledger import projection as docs
from fencepost.ledger.facts import AgentFact, AgentKind, EffectFact, EffectKind, Outcome, decode_agent, decode_effect
from fencepost.ledger.history import History, LogEntry
from fencepost.ledger.lineage import Agent, Rollback, fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Operation, Status
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import PartitionFold
from fencepost.ledger.watermarks import Point

GRANTED = frozenset({AttemptState.OWNER, AttemptState.IN_DOUBT, AttemptState.COMMITTED, AttemptState.OVERRULED})
_BOOKKEEPING = frozenset({docs.DEBTS, docs.UNJUDGED, docs.SET_ASIDE, docs.UNSAFE, docs.OPEN})


class Execution(NamedTuple):
    """An effect that happened; `place` is its place among the events."""

    place: int
    op_id: str
    round: int
    attempt_id: str
    session_id: str
    agent_id: str
    branch_id: str
    unconfirmed: bool
    result: str


@dataclass(slots=True)
class Story:
    """What a run tells, read once for all rules."""

    run: Recorded
    executions: list[Execution] = field(default_factory=list)
    written_at: dict[tuple[Partition, int], int] = field(default_factory=dict)
    facts: dict[Partition, dict[str, History]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Recorded) -> Story:
        story = cls(run)
        for index, event in enumerate(run.events):
            if event.kind == "ran":
                story.executions.append(Execution(index, *event.what))
            elif event.kind == "wrote":
                story.written_at[event.what] = index
        story.facts = {partition: told(left.written) for partition, left in run.left.items()}
        return story

    def operation(self, op_id: str) -> tuple[Partition, History]:
        for partition, by_key in self.facts.items():
            if partition.topic is Topic.EFFECTS and op_id in by_key:
                return partition, by_key[op_id]
        return Partition(Topic.EFFECTS, 0), ()

    def agents(self) -> Iterator[tuple[Agent, Partition, History]]:
        """Each agent, where its facts stand, and all of them."""
        for partition, by_key in self.facts.items():
            if partition.topic is not Topic.AGENTS:
                continue
            of_agent: dict[str, list[History]] = {}
            for key, facts in by_key.items():
                if owner := log_keys.agent_of(key):
                    of_agent.setdefault(owner[1], []).append(facts)
            for agent_id, parts in of_agent.items():
                facts = history.merge(*parts)
                structure = [f for f in facts if decode_agent(f.fact).kind in _STRUCTURE]
                yield fold_agent(agent_id, structure), partition, facts


_STRUCTURE = frozenset({
    AgentKind.SESSION_OPENED, AgentKind.SESSION_CLOSED, AgentKind.FORKED, AgentKind.ROLLBACK_REQUESTED,
    AgentKind.ROLLBACK_DECIDED, AgentKind.DIVERGENCE_DECLARED, AgentKind.UNKNOWN,
})  # fmt: skip


def told(entries: list[LogEntry]) -> dict[str, History]:
    """The facts of every key that these records hold."""
    parts: dict[str, set[history.PositionedFact]] = {}
    for entry in entries:
        if entry.record is not None and entry.key is not None:
            said = history.facts_of(entry.record, Position(0, entry.offset))
            parts.setdefault(entry.key, set()).update(said)
    return {key: tuple(sorted(found)) for key, found in parts.items()}


def violations(run: Recorded) -> list[str]:
    """Everything that is wrong with a run; empty when nothing is."""
    story = Story.of(run)
    found = [f"liveness: {problem}" for problem in run.problems]
    for rule in (_once, _mediated, _remembered, _results, _guarded, _kept, _acknowledged, _accounted, _ended):
        found += rule(story)
    return found


# -- effects -----------------------------------------------------------------------------


def _once(story: Story) -> Iterator[str]:
    counts = Counter((e.op_id, e.round) for e in story.executions if not e.unconfirmed)
    for (op_id, number), count in counts.items():
        if count > 1:
            who = [e.attempt_id for e in story.executions if (e.op_id, e.round) == (op_id, number)]
            yield f"at most once: {op_id} ran {count} times in round {number}, by {', '.join(who)}"


def _mediated(story: Story) -> Iterator[str]:
    for execution in story.executions:
        if execution.unconfirmed:
            continue
        partition, facts = story.operation(execution.op_id)
        intents = [
            position.offset
            for position, data in facts
            if (fact := decode_effect(data)).kind is EffectKind.INTENDED and fact.attempt_id == execution.attempt_id
        ]
        if not intents or story.written_at[partition, min(intents)] > execution.place:
            yield f"mediated: {execution.attempt_id} ran {execution.op_id} before its intent was in the log"
            continue
        others = tuple(item for item in facts if not _commit_of(item.fact, execution.attempt_id))
        attempt = fold_operation(execution.op_id, others).attempts[execution.attempt_id]
        if attempt.state not in GRANTED:
            yield f"mediated: {execution.attempt_id} ran {execution.op_id} although it was {attempt.state.value}"


def _commit_of(data: bytes, attempt_id: str) -> bool:
    fact = decode_effect(data)
    return fact.kind is EffectKind.COMMITTED and fact.attempt_id == attempt_id


def _remembered(story: Story) -> Iterator[str]:
    for execution in story.executions:
        if execution.unconfirmed:
            continue
        operation = fold_operation(execution.op_id, story.operation(execution.op_id)[1])
        if operation.round == execution.round and not _holds(operation, execution.attempt_id):
            yield f"remembered: {execution.op_id} ran by {execution.attempt_id}, and the log says {operation.status.value}"


def _holds(operation: Operation, attempt_id: str) -> bool:
    held = operation.owner is not None and operation.owner.attempt_id == attempt_id
    return operation.status is Status.UNSAFE or (held and operation.status is not Status.FREE)


def _results(story: Story) -> Iterator[str]:
    results: dict[tuple[str, int], set[str]] = {}
    for execution in story.executions:
        results.setdefault((execution.op_id, execution.round), set()).add(execution.result)
    for event in story.run.events:
        if event.kind == "recorded":
            op_id, number, result = event.what
            if result not in results.get((op_id, number), set()):
                yield f"results: {event.who} was told {result!r} of {op_id}, which never came out of round {number}"


# -- the guard ---------------------------------------------------------------------------


def _guarded(story: Story) -> Iterator[str]:
    for agent, partition, facts in story.agents():
        for rollback in agent.rollbacks.values():
            if rollback.authorised and rollback.decided_at is not None:
                decided = story.written_at[partition, rollback.decided_at.offset]
                absorbed = _absorbed(facts)
                for execution in story.executions:
                    if why := _crossed(story, agent, rollback, execution, (decided, absorbed)):
                        yield f"guard: rollback {rollback.rollback_id} was authorised over {why}"


def _absorbed(facts: History) -> dict[tuple[str, int], list[Point]]:
    found: dict[tuple[str, int], list[Point]] = {}
    for _, data in facts:
        fact = decode_agent(data)
        if fact.kind is AgentKind.ABSORBED:
            found.setdefault((fact.op_id, fact.round), []).append(Point(fact.epoch, fact.seq))
    return found


def _crossed(story: Story, agent: Agent, rollback: Rollback, execution: Execution, known: Any) -> str:
    """What of an execution the rollback should have been refused for, or ""."""
    decided, absorbed = known
    session = agent.sessions.get(execution.session_id)
    if execution.unconfirmed or session is None or session.epoch > rollback.position:
        return ""
    partition, facts = story.operation(execution.op_id)
    decoded = [(position, decode_effect(data)) for position, data in facts]
    if execution.branch_id not in rollback.branches and not _before_fences(
        story, rollback, partition, execution, decoded
    ):
        return ""
    path = agent.path(rollback.target)
    settled = [f for _, f in decoded if f.kind is EffectKind.COMMITTED and f.attempt_id == execution.attempt_id]
    places = [Point(f.epoch, f.seq) for f in settled] + absorbed.get((execution.op_id, execution.round), [])
    if any(agent.knows(path, place.epoch, place.seq) for place in places):
        return ""
    early = [f for p, f in decoded if f.round == execution.round and story.written_at[partition, p.offset] < decided]
    if any(_undoes(f) for f in early):
        return ""
    gated = rollback.decision is not None and rollback.decision.verdict == "PROCEED_GATED"
    if gated and any(_settles(f) for f in early):
        return ""
    when = "afterwards" if execution.place > decided else "before"
    return f"{execution.op_id}, which {execution.attempt_id} ran {when}"


def _before_fences(
    story: Story, rollback: Rollback, partition: Partition, execution: Execution, decoded: list[tuple[Position, EffectFact]]
) -> bool:  # fmt: skip
    """Whether the intent stands before a fence of this rollback: the guard must have seen it."""
    fences = [
        position.offset
        for key, facts in story.facts[partition].items()
        if log_keys.fence_of(key)
        for position, data in facts
        if decode_effect(data).epoch == rollback.position
    ]
    intents = [p.offset for p, f in decoded if f.kind is EffectKind.INTENDED and f.attempt_id == execution.attempt_id]
    return bool(fences) and bool(intents) and min(intents) < min(fences)


def _undoes(fact: EffectFact) -> bool:
    return fact.kind is EffectKind.COMPENSATED or (
        fact.kind is EffectKind.RESOLVED and fact.outcome is Outcome.COMPENSATED
    )


def _settles(fact: EffectFact) -> bool:
    return fact.kind is EffectKind.COMMITTED or (fact.kind is EffectKind.RESOLVED and fact.outcome is Outcome.COMMITTED)


# -- the log and the projection ------------------------------------------------------------


def _kept(story: Story) -> Iterator[str]:
    for partition, left in story.run.left.items():
        kept = [entry for entry in left.written if entry.offset not in left.removed]
        remaining, whole = told(kept), story.facts[partition]
        for key, facts in whole.items():
            told_on = log_keys.fence_of(key) is None and not log_keys.is_horizon(key)
            if told_on and remaining.get(key) != facts:
                yield f"kept: the cleaner left {len(remaining.get(key, ()))} of {len(facts)} facts of {key} in {partition}"
        expected = fold(partition, left.written, judge_from=0)
        yield from _differences(
            f"kept: fold(what is left of {partition})", fold(partition, kept, judge_from=left.settled), expected
        )
        yield from _differences(f"kept: the projection of {partition}", left.documents, expected)


def _differences(what: str, found: dict[DocumentKey, bytes], expected: dict[DocumentKey, bytes]) -> Iterator[str]:
    for key in found.keys() | expected.keys():
        if key.collection not in _BOOKKEEPING and found.get(key) != expected.get(key):
            yield f"{what} differs from fold(the whole log) in {key.collection} {key.key!r}"


def fold(partition: Partition, entries: list[LogEntry], *, judge_from: int) -> dict[DocumentKey, bytes]:
    """What the real fold makes of these records, as a projection that is begun anew would be."""
    documents: dict[DocumentKey, bytes] = {}
    end = entries[-1].offset + 1 if entries else 0
    folding = PartitionFold(partition, Header(judge_from=judge_from, horizon=end), {})
    for entry in entries:
        folding.provide({key: documents.get(key) for key in folding.needs(entry)})
        folding.apply(entry)
        _keep(folding, documents)
    unjudged = [key.key for key in documents if key.collection == docs.UNJUDGED]
    fences = {key: data for key, data in documents.items() if key.collection == docs.FENCES}
    keys = [DocumentKey(collection, key) for collection in (docs.OPS, docs.UNSAFE) for key in unjudged]
    folding.provide({key: documents.get(key) for key in keys})
    folding.judge(unjudged, fences)
    folding.provide(fences)
    folding.open(fences)
    _keep(folding, documents)
    return documents


def _keep(folding: PartitionFold, documents: dict[DocumentKey, bytes]) -> None:
    for key, data in folding.take_step().writes.items():
        if data is None:
            documents.pop(key, None)
        else:
            documents[key] = data


def _acknowledged(story: Story) -> Iterator[str]:
    for event in story.run.events:
        if event.kind != "acknowledged":
            continue
        partition, offset = event.what
        left: Left = story.run.left[partition]
        entry = left.written[offset]
        record = entry.record
        document = docs.document_of(partition.topic, entry.key or "")
        if record is None or record.fact is None or document is None:
            continue
        known = docs.read_history(left.documents.get(document))
        if log_keys.fence_of(record.key):
            raised = docs.fence_epoch(known)
            gone = raised is None or raised < decode_effect(record.fact).epoch
        else:
            gone = (Position(0, offset), record.fact) not in known
        if gone:
            yield f"acknowledged: what {event.who} wrote under {record.key} at {partition} {offset} is gone"


def _accounted(story: Story) -> Iterator[str]:
    seen: dict[str, set[int]] = {}
    for partition, by_key in story.facts.items():
        decode = decode_effect if partition.topic is Topic.EFFECTS else decode_agent
        for facts in by_key.values():
            for _, data in facts:
                fact = decode(data)
                seen.setdefault(fact.session_id, set()).add(fact.seq)
                if isinstance(fact, AgentFact):
                    seen[fact.session_id].update(fact.voided)
    # A number whose fact may or may not be written yet can be neither filled nor given up; its caller was told.
    unheard = {event.who for event in story.run.events if "OutcomeUnknownError" in event.what}
    for agent, _, _ in story.agents():
        for session in agent.sessions.values():
            if session.session_id.rpartition("-")[0] in unheard:
                continue
            missing = set(range(1, (session.sealed_seq or 0) + 1)) - seen.get(session.session_id, set())
            if missing and not session.rejected:
                yield f"accounted: {session.session_id} was sealed at {session.sealed_seq} without {sorted(missing)}"


def _ended(story: Story) -> Iterator[str]:
    ended = {(e.who, e.what[0]) for e in story.run.events if e.kind == "ended"}
    died = {e.who for e in story.run.events if e.kind == "died"}
    for event in story.run.events:
        if event.kind == "begin" and event.who not in died and (event.who, event.what[0]) not in ended:
            yield f"liveness: the call of {event.who} for {event.what[1]} never came to an end"
        if event.kind == "halted":
            yield f"liveness: {event.who} halted {event.what[0]}: {event.what[1]}"
