"""The guard on watermarks that do not fit, on calls outside the ledger, and what a verdict says."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from unit.ledger.kit import LEDGER_ID, OP, agent_fact, at, committed, fold, forked, intended, opened, point, token

from fencepost.ledger.errors import UnsafeRollbackError
from fencepost.ledger.facts import AgentFact, EffectClass
from fencepost.ledger.guard import Evidence, SeenOperation, decide
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind, VerdictKind, WayOn
from fencepost.ledger.watermarks import Watermark

MARK = Watermark(LEDGER_ID, "agent", "main", Position(0, 0), 5)
AGENT = fold_agent("agent", at(opened("s1"), forked("b", token(0, 2))))
BOTH = pytest.mark.parametrize("policy", list(Policy))


def evidence(**values: Any) -> Evidence:
    usual: dict[str, Any] = {"mark": MARK, "written": {Position(0, 0): 5}}
    return Evidence(LEDGER_ID, AGENT, "main", "c", **{**usual, **values})


def crossed(number: int) -> SeenOperation:
    values: dict[str, Any] = {"op_id": f"op{number}", "seq": 6 + number, "epoch": Position(0, 0)}
    return SeenOperation(replace(fold(intended("a", **values), committed("a", **values)), op_id=f"op{number}"))


def call(seq: int, effect_class: EffectClass = EffectClass.IRREVERSIBLE, **values: Any) -> AgentFact:
    return agent_fact(
        "CALL_REPORTED",
        tool="shell",
        effect_class=effect_class,
        seq=seq,
        epoch=Position(0, 0),
        session_id="s1",
        **values,
    )


@BOTH
@pytest.mark.parametrize("operations", [[], [crossed(0)]])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"mark": replace(MARK, ledger_id="other")}, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER),
        ({"mark": replace(MARK, agent_id="other")}, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER),
        ({"claimed": replace(MARK, ledger_id="other")}, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER),
        ({"claimed": replace(MARK, ledger_id="other"), "mark": None}, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER),
        ({"claimed": replace(MARK, seq=4)}, ReasonKind.WATERMARK_MISMATCH),
        ({"claimed": replace(MARK, epoch=Position(0, 1))}, ReasonKind.WATERMARK_MISMATCH),
        ({"written": {Position(0, 0): 4}}, ReasonKind.WATERMARK_AHEAD),
        ({"written": {}}, ReasonKind.WATERMARK_AHEAD),
        ({"mark": replace(MARK, epoch=Position(0, 77))}, ReasonKind.WATERMARK_AHEAD),
    ],
)
def test_a_watermark_that_does_not_fit_refuses(policy: Policy, operations: Any, values: Any, kind: ReasonKind) -> None:
    """Whatever was or was not done: the ledger or the state is not the one that the checkpoint speaks of."""
    verdict = decide(evidence(operations=operations, **values), policy)
    assert verdict.kind is VerdictKind.REFUSE
    assert [reason.kind for reason in verdict.reasons] == [kind]


@BOTH
def test_a_claimed_watermark_that_is_the_registered_one_is_fine(policy: Policy) -> None:
    """The state and the checkpoint moved together."""
    assert decide(evidence(claimed=MARK), policy).authorised
    assert decide(evidence(claimed=MARK, mark=None), policy).authorised


# -- calls outside the ledger --------------------------------------------------------------


@pytest.mark.parametrize("effect_class", list(EffectClass))
@pytest.mark.parametrize("order_safe", [False, True])
@BOTH
def test_a_call_outside_the_ledger_cannot_be_absorbed(
    policy: Policy, effect_class: EffectClass, order_safe: bool
) -> None:
    """So it refuses under GATED too, unless a repeat does no harm or the checkpoint knows it."""
    harmless = effect_class in {EffectClass.READ, EffectClass.REPEATABLE} or (
        effect_class is EffectClass.IDEMPOTENT and order_safe
    )
    verdict = decide(evidence(calls=[call(6, effect_class, order_safe=order_safe)]), policy)
    assert verdict.authorised is harmless
    assert {r.kind for r in verdict.reasons} == (set() if harmless else {ReasonKind.CALL_OUTSIDE_LEDGER})
    assert decide(evidence(calls=[call(5, effect_class)]), policy).authorised


@BOTH
def test_without_a_watermark_every_call_counts(policy: Policy) -> None:
    """And the watermark is named as the reason for it."""
    verdict = decide(evidence(mark=None, calls=[call(1)]), policy)
    assert [r.kind for r in verdict.reasons] == [ReasonKind.WATERMARK_UNREADABLE, ReasonKind.CALL_OUTSIDE_LEDGER]


def test_calls_and_effects_together() -> None:
    """STRICT names both; GATED only what it cannot gate."""
    given = evidence(operations=[crossed(0)], calls=[call(9)])
    strict = {r.kind for r in decide(given, Policy.STRICT).reasons}
    assert strict == {ReasonKind.EFFECT_NOT_KNOWN, ReasonKind.CALL_OUTSIDE_LEDGER}
    gated = decide(given, Policy.GATED)
    assert [r.kind for r in gated.reasons] == [ReasonKind.CALL_OUTSIDE_LEDGER]
    assert (gated.ways_on, gated.crossed) == ((WayOn.REPLAY_FORWARD, WayOn.OPERATOR), ())
    effect = gated.reasons[0].effect
    assert effect is not None
    assert (effect.tool, effect.seq, effect.status) == ("shell", 9, "reported")


# -- what a verdict says -------------------------------------------------------------------


def test_a_refusal_is_a_value_and_can_be_raised() -> None:
    """With the verdict attached, the reasons in the message, and what can be done now at its end."""
    verdict = decide(evidence(operations=[crossed(n) for n in range(7)]), Policy.STRICT)
    with pytest.raises(UnsafeRollbackError) as caught:
        verdict.raise_for_refusal()
    error = caught.value
    assert error.verdict is verdict
    assert error.retryable is False
    assert "op0" in str(error)
    assert "; and 2 more" in str(error)
    assert "op6" not in str(error)
    assert str(error).endswith("or let an operator reconcile.")
    assert pickle.loads(pickle.dumps(error)).verdict == verdict  # noqa: S301 (our own bytes)
    five = decide(evidence(operations=[crossed(n) for n in range(5)]), Policy.STRICT)
    with pytest.raises(UnsafeRollbackError, match=r"known to the checkpoint\. Ways on"):
        five.raise_for_refusal()


def test_a_verdict_that_authorises_raises_nothing() -> None:
    """It gives itself, so that calls can be chained."""
    verdict = decide(evidence(), Policy.STRICT)
    assert verdict.raise_for_refusal() is verdict


def test_a_verdict_as_plain_data() -> None:
    """A stable schema that JSON can carry; every reason with its effect."""
    verdict = decide(evidence(operations=[crossed(0)], calls=[call(9)]), Policy.STRICT)
    plain = json.loads(json.dumps(verdict.to_dict()))
    assert plain["schema"] == "fencepost.verdict.v1"
    assert (plain["verdict"], plain["authorised"], plain["policy"]) == ("REFUSE", False, "STRICT")
    assert (plain["agent_id"], plain["branch_id"], plain["checkpoint_id"]) == ("agent", "main", "c")
    assert plain["reasons"][0]["effect"]["op_id"] == "op0"
    assert (plain["fenced"], plain["dry_run"]) == (False, False)
    assert len(plain["ways_on"]) == 3
    gated = decide(evidence(operations=[crossed(0)]), Policy.GATED).to_dict()
    assert gated["crossed"][0]["seq"] == 6


def test_evidence_names_where_an_effect_was_done() -> None:
    """The branch and number of the settling fact; 0 when no session of this agent wrote it."""
    theirs = fold(intended("a", seq=6, epoch=Position(0, 0)), committed("a", agent_id="x", branch_id="y", seq=9))
    verdict = decide(evidence(operations=[SeenOperation(theirs)]), Policy.STRICT)
    effect = verdict.reasons[0].effect
    assert effect is not None
    assert (effect.op_id, effect.seq, effect.branch_id) == (OP, 0, "y")
    assert verdict.target == point(0, 5)
