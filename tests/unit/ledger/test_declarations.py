"""Held attempts and what they are declared to be, as an agent's facts tell it; what a decision can name."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from unit.ledger.guard_kit import done, evidence
from unit.ledger.kit import (
    agent_fact,
    at,
    committed,
    decided,
    fold,
    forked,
    intended,
    opened,
    requested,
    resolved,
    token,
)

import fencepost.schemas
from fencepost.ledger import guard
from fencepost.ledger.divergence import still_crossed
from fencepost.ledger.facts import ANY_ROUND, AgentFact, AgentKind, Crossed, EffectFact, decode_agent, encode_agent
from fencepost.ledger.lineage import Agent, fold_agent
from fencepost.ledger.rollbacks import recorded_reasons
from fencepost.ledger.verdicts import Policy, Reason, ReasonKind, Verdict, VerdictKind, WayOn

UNDONE = (intended("a"), committed("a"), resolved("COMPENSATED", 1))
NEW = agent_fact("DIVERGENCE_DECLARED", op_id="x", declared_as="new", by="ann")
SAME = agent_fact("DIVERGENCE_DECLARED", op_id="x", declared_as="same", other_op_id="y", by="bob")


def life(*facts: AgentFact) -> Agent:
    return fold_agent("agent", at(*facts))


def test_first_in_the_log_counts_however_it_is_read() -> None:
    """Of two declarations the earlier one, in whatever order the records are read, and if one is read twice."""
    for first, second in ((NEW, SAME), (SAME, NEW)):
        facts = at(opened("s1"), first, second)
        for order in itertools.permutations(facts):
            agent = fold_agent("agent", [*order, *order])
            assert agent.declarations == {"x": first}
            assert agent.declared == {"x": (first.declared_as, first.other_op_id)}


def said(session_id: str, declared_as: str) -> AgentFact:
    return agent_fact("DIVERGENCE_DECLARED", op_id="x", declared_as=declared_as, session_id=session_id)


def test_word_of_a_session_counts_while_it_speaks_for_its_branch() -> None:
    """Not once it was superseded, closed, or rolled back, nor if nobody knows it; then a later one counts."""
    superseded = (opened("s1"), opened("s2", token(0, 1)))
    assert life(*superseded, said("s1", "new"), said("s2", "same")).declared == {"x": ("same", "")}
    assert life(opened("s1"), said("nobody", "new")).declared == {}
    assert life(opened("s1"), requested("r", token(0, 1)), said("s1", "new")).declared == {}
    assert life(opened("s1"), said("s1", "new"), requested("r", token(0, 1))).declared == {"x": ("new", "")}


def test_what_is_held_is_kept_once() -> None:
    """The first fact of each operation; it decides nothing and makes nothing unsafe."""
    held = [agent_fact("DIVERGENCE_HELD", op_id="x", session_id=name, tool="pay") for name in ("s1", "s2")]
    agent = life(opened("s1"), *held)
    assert (agent.held, agent.declared, agent.unsafe) == ({"x": held[0]}, {}, "")


def test_rounds_of_crossed_effects_are_written_and_read() -> None:
    """Each crossed effect keeps its round; the first round is told as well."""
    crossed = (Crossed("a", "pay", 2), Crossed("b", "pay"))
    fact = AgentFact(kind=AgentKind.ROLLBACK_DECIDED, crossed=crossed)
    assert decode_agent(encode_agent(fact)) == fact
    assert decode_agent(encode_agent(fact)).crossed_rounds == (2, 1)


def test_a_decision_that_tells_no_rounds_crosses_whatever_stands() -> None:
    """The first version wrote none: its crossed effect may be of any round, and is over once nothing stands."""
    golden = Path(fencepost.schemas.__file__).parent / "golden" / "v1" / "agent_fact.rollback_decided.json"
    fact = decode_agent(bytes.fromhex(json.loads(golden.read_text())["hex"]))
    assert fact.crossed
    assert {effect.round for effect in fact.crossed} == {ANY_ROUND}
    assert decode_agent(encode_agent(fact)) == fact
    again = (*UNDONE, intended("b", round=2))
    rounds: dict[tuple[EffectFact, ...], tuple[bool, bool, bool]] = {
        (intended("a"), committed("a")): (True, True, True),
        UNDONE: (False, False, True),
        again: (True, False, True),
        (*again, committed("b", round=2)): (True, False, True),
    }
    for facts, wanted in rounds.items():
        operation = fold(*facts)
        assert tuple(still_crossed(operation, number) for number in (ANY_ROUND, 1, 2)) == wanted


def test_crossed_effects_of_all_branches() -> None:
    """An operator names effects of any branch: each that a gated rollback went back over, in its last round."""
    over = (Crossed("a", "pay", 1), Crossed("b", "pay", 1)), (Crossed("a", "pay", 2),)
    first = (requested("r1", token(0, 3)), decided("r1", "PROCEED_GATED", crossed=over[0]))
    second = (opened("s2", token(0, 3), segment="0.1"), requested("r2", token(0, 2), segment="0.1"))
    agent = life(
        opened("s1"), *first, *second, decided("r2", "PROCEED_GATED", crossed=over[1]), forked("b", token(0, 1))
    )
    assert {op_id: c.round for op_id, c in agent.all_crossed.items()} == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    ("limit", "bytes_", "kind"), [(2, 10**6, "REFUSE"), (3, 10**6, "PROCEED_GATED"), (3, 10, "REFUSE")]
)
def test_a_decision_names_all_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: int, bytes_: int, kind: str
) -> None:
    """By number and by the length of the names; the refusal can be compensated, replayed, or handed to an operator."""
    monkeypatch.setattr(guard, "MOST_CROSSED", limit)
    monkeypatch.setattr(guard, "MOST_CROSSED_BYTES", bytes_)
    found = evidence(*(done(number) for number in (10, 20, 30)))
    verdict = guard.decide(found, Policy.GATED)
    assert verdict.kind.value == kind
    if kind == "REFUSE":
        assert [reason.kind for reason in verdict.reasons] == [ReasonKind.TOO_MANY_EFFECTS]
        assert verdict.ways_on == (WayOn.COMPENSATE, WayOn.REPLAY_FORWARD, WayOn.OPERATOR)
        assert verdict.crossed == ()


def test_largest_decision_fits_into_a_record() -> None:
    """As many effects as one decision can name, with names as long as they may be together, are one fact of the log."""
    name = "n" * (guard.MOST_CROSSED_BYTES // guard.MOST_CROSSED - 4)
    crossed = tuple(Crossed(f"{name}{n:04}"[:512], "", 2**31 - 1) for n in range(guard.MOST_CROSSED))
    fact = AgentFact(kind=AgentKind.ROLLBACK_DECIDED, crossed=crossed, reasons=("r" * 1000,) * 51)
    data = encode_agent(fact)
    assert len(data) < 900_000
    assert decode_agent(data) == fact


def test_reasons_that_are_not_told_are_counted() -> None:
    """A decision records the first reasons, and how many more there are: a list is never cut in silence."""
    reasons = tuple(Reason(ReasonKind.EFFECT_NOT_KNOWN, f"r{n}") for n in range(60))
    verdict = Verdict(VerdictKind.REFUSE, "agent", "main", "c", Policy.STRICT, reasons)
    assert recorded_reasons(verdict)[-1] == "and 10 more"
    assert len(recorded_reasons(verdict)) == 51
    few = Verdict(VerdictKind.REFUSE, "agent", "main", "c", Policy.STRICT, reasons[:50])
    assert recorded_reasons(few) == tuple(f"r{n}" for n in range(50))
