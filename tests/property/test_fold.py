"""The fold and the union: total, pure, and indifferent to order, repeats, and how a history was cut up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.ledger import history, losers
from fencepost.ledger.contexts import fold_context
from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    Outcome,
    decode_agent,
    decode_effect,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.history import History, PositionedFact, Record, facts_of, merge
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation, Status
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark

OP = "pay"
few = st.sampled_from
positions = st.builds(Position, st.integers(0, 1), st.integers(0, 12))
versions = st.one_of(positions.map(str), st.just(""), st.text(max_size=3))
effects = st.builds(
    EffectFact,
    kind=few([kind for kind in EffectKind if kind is not EffectKind.SUMMARISED]),  # derived; see below
    op_id=st.just(OP),
    attempt_id=few(["a", "b", "c", ""]),
    agent_id=few(["agent", "other", ""]),
    branch_id=few(["main", "b"]),
    session_id=few(["s1", "s2", ""]),
    epoch=positions,
    seq=st.integers(0, 9),
    round=st.integers(0, 3),
    tool=few(["t", "u"]),
    effect_class=few(EffectClass),
    order_safe=st.booleans(),
    identity_digest=few(["x", "y"]),
    content_digest=few(["", "p", "q"]),
    result=st.none() | st.binary(max_size=3),
    outcome=few(Outcome),
    version=versions,
    by=few(["", "ann"]),
    manifest=st.none() | st.just(b"{}"),
    manifest_digest=few(["", "d"]),
    plan_digest=few(["", "p", "q"]),
    losses=few([(), ("mail",)]),
)
tokens = st.one_of(
    st.builds(lambda at, seq: Watermark("l", "agent", "main", at, seq).token, positions, st.integers(0, 9)),
    st.sampled_from(["", "mangled", "[[fencepost:w1:"]),
)
agents = st.builds(
    AgentFact,
    kind=few(AgentKind),
    agent_id=st.just("agent"),
    branch_id=few(["main", "b", "c"]),
    session_id=few(["s1", "s2", "s3"]),
    epoch=positions,
    seq=st.integers(0, 9),
    segment=st.one_of(st.just(""), positions.map(str)),
    checkpoint_id=few(["c1", "c2"]),
    watermark=tokens,
    parent_branch_id=few(["main", "b", ""]),
    rollback_id=few(["r1", "r2"]),
    verdict=few(["PROCEED", "PROCEED_GATED", "REFUSE", ""]),
    sealed_seq=st.integers(-1, 9),
)


def histories(facts: st.SearchStrategy[Any], encode: Any) -> st.SearchStrategy[History]:
    placed = st.builds(lambda at, fact: PositionedFact(at, encode(fact)), positions, facts)
    return st.lists(placed, max_size=12).map(merge)


effect_histories = histories(effects, encode_effect)
agent_histories = histories(agents, encode_agent)


@given(effect_histories)
def test_the_fold_of_an_operation_is_total_and_keeps_its_promises(facts: History) -> None:
    """It never raises, and what it says is consistent in itself."""
    op = fold_operation(OP, facts)
    assert op == fold_operation(OP, facts)
    if op.status is Status.FREE:
        assert (op.owner, op.settled, op.flagged) == (None, None, False)
    if op.status in {Status.OWNED, Status.IN_DOUBT}:
        assert op.owner is not None
        assert op.settled is None
    if op.status is Status.COMMITTED:
        assert op.settled is not None
    if op.status is Status.COMPENSATING:
        assert op.undoing is not None
        assert op.settled is not None
    elif op.status is not Status.UNSAFE:
        assert op.undoing is None
    assert op.undoing is None or op.undoing in [u.fact for u in op.undoings if u.effective]
    assert op.sealed_manifest is None or op.stands
    assert {loss for fact in op.compensations for loss in fact.losses} == set(op.losses)
    assert op.round == 1 + len(op.compensations)
    assert all(a.attempt_id in op.attempts for a in op.anomalies)
    assert op.version == "" or Position.parse(op.version) in {p for p, _ in facts}


@given(agent_histories)
def test_the_fold_of_an_agent_is_total_and_keeps_its_promises(facts: History) -> None:
    """One session at most speaks for a branch, and nobody for a closed one."""
    agent = fold_agent("agent", facts)
    assert agent == fold_agent("agent", facts)
    for branch in agent.branches.values():
        live = [s for s in branch.sessions if s.live]
        assert len(live) <= 1
        assert not live or (live[0] is branch.head and not branch.forbidden)
        epochs = [s.epoch for s in branch.sessions]
        assert epochs == sorted(epochs)
    assert sum(r.pending for r in agent.rollbacks.values()) <= 1
    for session in agent.sessions.values():
        assert not agent.is_abandoned(session.parent) or session.rejected or session.ended
    assert {c.rejected for c in fold_context(agent, facts).checkpoints.values()} <= {""}


@given(effect_histories, st.randoms(use_true_random=False))
def test_the_order_in_which_facts_are_handed_over_makes_no_difference(facts: History, chance: Any) -> None:
    """Positions order them."""
    shuffled = list(facts)
    chance.shuffle(shuffled)
    assert fold_operation(OP, tuple(shuffled)) == fold_operation(OP, facts)


@given(agent_histories, st.randoms(use_true_random=False))
def test_the_same_holds_for_agents(facts: History, chance: Any) -> None:
    """Also with every fact twice."""
    shuffled = [*facts, *facts]
    chance.shuffle(shuffled)
    assert fold_agent("agent", shuffled) == fold_agent("agent", facts)


@given(effect_histories, effect_histories, effect_histories)
def test_union_is_commutative_associative_and_idempotent(a: History, b: History, c: History) -> None:
    """So that records may be seen in any order, more than once, and in any batches."""
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(a, b, c)
    assert merge(a, a) == merge(a) == a
    assert merge() == ()
    assert set(merge(a, b)) == set(a) | set(b)


@given(effect_histories, st.lists(st.integers(0, 12), max_size=4))
def test_cutting_a_history_into_records_loses_nothing(facts: History, cuts: list[int]) -> None:
    """However much of it each record carries, with repeats."""
    bounds = sorted({0, len(facts), *(min(cut, len(facts)) for cut in cuts)})
    parts = [facts[low:high] for low, high in pairwise(bounds)]
    overlapping = [merge(*parts[: n + 1]) for n in range(len(parts))]
    assert merge(*parts, *overlapping) == facts


@given(effect_histories, effects, positions)
def test_a_record_says_its_history_and_its_own_fact(facts: History, fact: EffectFact, at: Position) -> None:
    """And says the same after it was written and read."""
    record = Record(OP, facts, encode_effect(fact), "w")
    again = history.decode(history.encode(record))
    assert again == record
    assert set(facts_of(again, at)) == {*facts, PositionedFact(at, encode_effect(fact))}
    assert facts_of(Record(OP, facts), at) == facts


@given(effects, agents)
def test_facts_are_deterministic_bytes(fact: EffectFact, agent: AgentFact) -> None:
    """Equal facts are equal bytes, so that union does not double them."""
    assert decode_effect(encode_effect(fact)) == fact
    assert decode_agent(encode_agent(agent)) == agent
    assert encode_effect(decode_effect(encode_effect(fact))) == encode_effect(fact)


def said(*facts: tuple[str, str, str, str]) -> History:
    """A history of (kind, attempt, tool, version), one an offset."""
    return merge(
        PositionedFact(
            Position(0, offset),
            encode_effect(EffectFact(kind=EffectKind(kind), op_id=OP, attempt_id=name, tool=tool, version=version,
                                     outcome=Outcome.ABSENT)),
        )
        for offset, (kind, name, tool, version) in enumerate(facts)
    )  # fmt: skip


OF_ANOTHER_IDENTITY = said(
    ("INTENDED", "b", "t", ""), ("COMMITTED", "a", "u", ""), ("FAILED", "a", "u", "")
)  # fmt: skip
OVERRULED = said(
    ("INTENDED", "a", "t", ""), ("UNKNOWN", "", "", ""), ("COMMITTED", "a", "t", ""), ("RESOLVED", "", "", "0.2"),
    ("FAILED", "a", "t", ""),
)  # fmt: skip


@example(OF_ANOTHER_IDENTITY, 1)
@example(OVERRULED, 2)
@given(effect_histories, st.integers(0, 11))
def test_a_resent_fact_changes_neither_owner_nor_result(facts: History, index: int) -> None:
    """The same bytes once more at the end: intents, outcomes and verdicts are said already."""
    if not facts:
        return
    resent = facts[index % len(facts)]
    kind = decode_effect(resent.fact).kind
    before = fold_operation(OP, facts)
    after = fold_operation(OP, merge(facts, [PositionedFact(Position(2, 0), resent.fact)]))
    if kind is EffectKind.INTENDED:
        assert seen(after) == seen(before)
    if kind is EffectKind.COMMITTED and before.attempts:
        assert (after.status, after.result, after.round) == (before.status, before.result, before.round)
        assert len(after.anomalies) == len(before.anomalies)
    if kind is EffectKind.REJECTED:
        assert seen(after) == seen(before)


races = st.lists(
    st.tuples(few(["a", "b", "c", "d"]), st.sampled_from(["INTENDED", "COMMITTED", "FAILED", "IN_DOUBT"])),
    max_size=14,
)


_NUMBERS = {"INTENDED": 1, "COMMITTED": 2, "FAILED": 3, "IN_DOUBT": 4}  # what is sent again is the very same fact


@given(races, st.integers(0, 3), st.randoms(use_true_random=False))
def test_what_a_summary_stands_for_decides_nothing(race: list[tuple[str, str]], kept: int, chance: Any) -> None:
    """Status, round, owner, result, and version are those of the history in full; the union takes its facts back in."""
    facts = merge(
        PositionedFact(
            Position(0, offset),
            encode_effect(
                EffectFact(
                    kind=EffectKind(kind), op_id=OP, attempt_id=name, agent_id="agent", session_id=f"s{name}",
                    epoch=Position(0, ord(name)), seq=_NUMBERS[kind], tool="t", effect_class=EffectClass.IRREVERSIBLE,
                )
            ),
        )
        for offset, (name, kind) in enumerate(race)
    )  # fmt: skip
    whole = fold_operation(OP, facts)
    numbers = losers.to_summarise(whole, kept=kept, least=1)
    if not numbers:
        return
    short = history.summarised(OP, facts, numbers)
    folded = fold_operation(OP, short)
    owner = [op.owner.attempt_id if op.owner else "" for op in (whole, folded)]
    assert owner[0] == owner[1]
    assert (folded.status, folded.round, folded.version, folded.settled) == (
        whole.status, whole.round, whole.version, whole.settled,
    )  # fmt: skip
    assert folded.anomalies == whole.anomalies
    assert losers.count(folded) == len(numbers)
    some = chance.sample(facts, chance.randint(0, len(facts)))
    assert merge(short, some) == short
    later = PositionedFact(Position(1, 0), encode_effect(EffectFact(kind=EffectKind.UNKNOWN, op_id=OP)))
    assert merge(merge(facts, [later]), short) == merge(short, [later])


def seen(op: Operation) -> tuple[Any, ...]:
    owner = op.owner.attempt_id if op.owner else None
    states = {name: attempt.state for name, attempt in op.attempts.items()}
    return op.status, op.round, op.version, owner, op.settled_at, states, op.anomalies
