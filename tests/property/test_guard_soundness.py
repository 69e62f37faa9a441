"""The guard authorises under STRICT exactly when nothing harmful is unknown and nothing known was undone: computed again, plainly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import event, given, settings
from hypothesis import strategies as st

from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    Outcome,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.guard import Evidence, SeenOperation, decide
from fencepost.ledger.history import PositionedFact, merge
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Operation, Status
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy
from fencepost.ledger.watermarks import Point, Watermark

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASSES = st.sampled_from(
    [
        (EffectClass.READ, False), (EffectClass.REPEATABLE, False), (EffectClass.IDEMPOTENT, True),
        (EffectClass.IDEMPOTENT, False), (EffectClass.COMPENSATABLE, False), (EffectClass.IRREVERSIBLE, False),
    ]
)  # fmt: skip
HARMLESS = {(EffectClass.READ, False), (EffectClass.REPEATABLE, False), (EffectClass.IDEMPOTENT, True)}
MAX_SEQ = 6
KINDS = [k for k in EffectKind if k.value not in {"FENCED", "HORIZON"}]
KINDS += [EffectKind.INTENDED, EffectKind.COMMITTED] * 6 + [EffectKind.COMPENSATING] * 2
UNDONE_STORY = (EffectKind.INTENDED, EffectKind.COMMITTED, EffectKind.COMPENSATED)
"""How chance alone hardly ever begins: one attempt did it, and it was undone."""


@dataclass(frozen=True)
class Case:
    """Evidence, and the same knowledge in plain numbers: the path as session → number."""

    evidence: Evidence
    path: dict[int, int]


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int] | None]:
    """Of each session: the earlier session and number that it resumed from, or None."""
    resumes: list[tuple[int, int] | None] = [None]
    for number in range(1, draw(st.integers(1, 4))):
        before = st.tuples(st.integers(0, number - 1), st.integers(1, MAX_SEQ))
        resumes.append(draw(st.none() | before))
    return resumes


def chain(resumes: list[tuple[int, int] | None], session: int, seq: int) -> dict[int, int]:
    path = {session: seq}
    while (point := resumes[session]) is not None:
        session, seq = point
        path[session] = seq
    return path


@st.composite
def operations(draw: st.DrawFn, op_id: str, sessions: int) -> Operation:
    """Any history of a few attempts of this agent and of another."""
    effect_class, order_safe = draw(CLASSES)
    facts: list[PositionedFact] = []
    owner: dict[str, tuple[str, int]] = {}
    story = draw(st.sampled_from([(), (), UNDONE_STORY]))
    for offset in range(draw(st.integers(max(1, len(story)), 6))):
        attempt = "a" if offset < len(story) else draw(st.sampled_from("abc"))
        agent, session = owner.setdefault(
            attempt, (draw(st.sampled_from(["me", "other"])), draw(st.integers(0, sessions - 1)))
        )
        kind = story[offset] if offset < len(story) else draw(st.sampled_from(KINDS))
        told = fold_operation(op_id, merge(facts))
        fact = EffectFact(
            kind=kind, op_id=op_id, attempt_id=attempt, agent_id=agent, branch_id="main",
            epoch=Position(0, session), seq=draw(st.integers(1, MAX_SEQ)), round=draw(st.sampled_from([told.round, told.round, 1])),
            tool="t", effect_class=effect_class, order_safe=order_safe,
            identity_digest=draw(st.sampled_from(["same", "same", "same", "other"])),
            outcome=draw(st.sampled_from(Outcome)), version=told.version,
        )  # fmt: skip
        facts.append(PositionedFact(Position(0, offset), encode_effect(fact)))
    return fold_operation(op_id, merge(facts))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    resumes = draw(lives())
    opened = []
    for number, point in enumerate(resumes):
        token = Watermark("l", "me", "main", Position(0, point[0]), point[1]).token if point else ""
        fact = AgentFact(
            kind=AgentKind.SESSION_OPENED, agent_id="me", branch_id="main", session_id=f"s{number}", watermark=token
        )
        opened.append(PositionedFact(Position(0, number), encode_agent(fact)))
    head = chain(resumes, len(resumes) - 1, MAX_SEQ)
    session = draw(st.sampled_from(sorted(head)))
    seq = draw(st.integers(0, head[session]))
    names = [f"op{n}" for n in range(draw(st.integers(0, 3)))]
    found = [
        SeenOperation(draw(operations(name, len(resumes))), draw(st.sampled_from(["", "", "", "set aside"])))
        for name in names
    ]
    places = st.builds(
        Point, st.builds(Position, st.just(0), st.integers(0, len(resumes) - 1)), st.integers(1, MAX_SEQ)
    )
    keys = st.tuples(st.sampled_from(names), st.integers(1, 2)) if names else st.nothing()
    absorbed = draw(st.dictionaries(keys, st.lists(places, max_size=2), max_size=2)) if names else {}
    evidence = Evidence(
        "l", fold_agent("me", opened), "main", "c", Watermark("l", "me", "main", Position(0, session), seq),
        operations=found, absorbed=absorbed, written={Position(0, n): MAX_SEQ for n in range(len(resumes))},
    )  # fmt: skip
    return Case(evidence, chain(resumes, session, seq))


def known(case: Case, epoch: Position, seq: int) -> bool:
    return 0 < seq <= case.path.get(epoch.offset, 0)


def absorbed(case: Case, op: Operation) -> bool:
    places = case.evidence.absorbed.get((op.op_id, op.round), ())
    return any(known(case, place.epoch, place.seq) for place in places)


def harmful(case: Case, seen: SeenOperation) -> Iterator[str]:
    """Everything in this operation that the checkpoint does not know and that could do harm, by brute force."""
    op = seen.operation
    if seen.unsafe or op.status is Status.UNSAFE:
        yield "cannot be read"
    strays = {a.attempt_id for a in op.anomalies if a.position > op.last_resolution}
    for attempt in op.attempts.values():
        told = attempt.outcome or attempt.intent
        if attempt.attempt_id in strays and told.agent_id == "me" and not known(case, told.epoch, told.seq):
            yield "done beyond what was granted"
    if op.first is None or (op.first.effect_class, op.first.order_safe) not in HARMLESS:
        yield from _open_or_unknown(case, op)
        yield from _undone(case, op)


def _open_or_unknown(case: Case, op: Operation) -> Iterator[str]:
    own = op.owner is None or op.owner.intent.agent_id == "me"
    mine = own or (op.op_id, op.round) in case.evidence.absorbed
    if op.status in {Status.OWNED, Status.IN_DOUBT} and mine:
        yield "may be happening"
    if op.status is Status.COMPENSATING and mine:
        yield "is being undone"
    if op.status is Status.COMMITTED and mine and not absorbed(case, op):
        settled = op.settled
        assert settled is not None
        if settled.agent_id != "me" or not known(case, settled.epoch, settled.seq):
            yield "happened"


def _undone(case: Case, op: Operation) -> Iterator[str]:
    """The newest round of which the checkpoint knows anything is over, and the checkpoint knows that it was done."""
    rounds: dict[int, bool] = {}
    for attempt in op.attempts.values():
        for fact in (attempt.intent, attempt.outcome):
            if attempt.owned and fact is not None and fact.agent_id == "me" and known(case, fact.epoch, fact.seq):
                done = fact is attempt.outcome and fact.kind is EffectKind.COMMITTED
                rounds[attempt.intent.round] = rounds.get(attempt.intent.round, False) or done
    for (op_id, number), places in case.evidence.absorbed.items():
        if op_id == op.op_id and number <= op.round and any(known(case, place.epoch, place.seq) for place in places):
            rounds[number] = True
    if rounds and max(rounds) < op.round and rounds[max(rounds)]:
        yield UNDONE


UNDONE = "known as done, and undone since"


@settings(max_examples=500)
@given(cases())
def test_strict_authorises_exactly_when_nothing_harmful_is_unknown(case: Case) -> None:
    """Sound: never over an effect. Complete: a refusal has an effect behind it."""
    found = [why for seen in case.evidence.operations for why in harmful(case, seen)]
    verdict = decide(case.evidence, Policy.STRICT)
    event(f"{verdict.kind}: {sorted(set(found))}")
    assert verdict.authorised is (not found), (verdict, found)
    assert verdict.authorised or all(reason.effect for reason in verdict.reasons)


@settings(max_examples=200)
@given(cases())
def test_gated_goes_only_over_what_is_settled_and_says_so(case: Case) -> None:
    """Everything that STRICT allows; beyond it only committed effects, each named."""
    strict, gated = decide(case.evidence, Policy.STRICT), decide(case.evidence, Policy.GATED)
    assert gated.authorised or not strict.authorised
    found = {seen.operation.op_id: set(harmful(case, seen)) for seen in case.evidence.operations}
    if gated.authorised:
        assert set().union(*found.values()) <= {"happened"}
        assert {blocker.op_id for blocker in gated.crossed} == {op_id for op_id, why in found.items() if why}


@settings(max_examples=150)
@given(cases(), st.integers(0, MAX_SEQ))
def test_an_older_point_of_the_same_session_never_knows_more(case: Case, seq: int) -> None:
    """What is refused at a watermark is refused at every earlier one of its session, but for what was known and undone."""
    mark = case.evidence.mark
    assert mark is not None
    older = Watermark(mark.ledger_id, mark.agent_id, mark.branch_id, mark.epoch, min(seq, mark.seq))
    values = {name: getattr(case.evidence, name) for name in Evidence.__dataclass_fields__}
    earlier = Evidence(**{**values, "mark": older})
    found = {why for seen in case.evidence.operations for why in harmful(case, seen)}
    # Who does not know that it was done has nothing to lose by its undoing.
    assert found <= {UNDONE} or not decide(earlier, Policy.STRICT).authorised


@settings(max_examples=150)
@given(cases())
def test_every_effect_is_done_by_an_attempt_that_the_guard_can_see(case: Case) -> None:
    """Whoever committed, without the operation being his and without an anomaly, has done harmless or undone things."""
    for seen in case.evidence.operations:
        op = seen.operation
        told = {a.attempt_id for a in op.anomalies}
        for attempt in op.attempts.values():
            if attempt.state is not AttemptState.COMMITTED or attempt.attempt_id in told or op.owner is attempt:
                continue
            assert attempt.outcome is not None
            assert attempt.outcome.round < op.round
