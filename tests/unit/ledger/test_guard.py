"""The guard's table, row by row: what an unknown effect, a watermark and a policy make of a rollback."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.ledger.guard_kit import BOTH, HARMFUL, beyond, done, evidence, here, kinds, seen
from unit.ledger.kit import (
    OP,
    committed,
    effect,
    failed,
    fold,
    intended,
    point,
    resolved,
)

from fencepost.ledger.facts import EffectClass
from fencepost.ledger.guard import SeenOperation, decide, unknown_effects
from fencepost.ledger.lineage import ROOT
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind, VerdictKind

# -- row 1: nothing unknown, or only what a repeat does not harm ---------------------------


@BOTH
@pytest.mark.parametrize("mark", [True, False])
def test_nothing_unknown_proceeds(policy: Policy, mark: bool) -> None:
    """Also without a readable watermark: there is nothing that could happen twice."""
    values: dict[str, Any] = {} if mark else {"mark": None}
    verdict = decide(evidence(**values), policy)
    assert (verdict.kind, verdict.authorised, verdict.reasons, verdict.ways_on) == (VerdictKind.PROCEED, True, (), ())
    assert verdict.target == (point(0, 5) if mark else ROOT)


@BOTH
@pytest.mark.parametrize(("seq", "known"), [(4, True), (5, True), (6, False)])
def test_the_watermark_is_inclusive(policy: Policy, seq: int, known: bool) -> None:
    """The fact with the watermark's own number is known, the next is not."""
    verdict = decide(evidence(done(seq)), policy)
    assert (verdict.kind is VerdictKind.PROCEED) is known
    assert [s.operation.op_id for s in unknown_effects(evidence(done(seq)))] == ([] if known else [OP])


@BOTH
@pytest.mark.parametrize("status", ["owned", "in doubt", "committed"])
@pytest.mark.parametrize(
    "harmless",
    [
        {"effect_class": EffectClass.READ},
        {"effect_class": EffectClass.REPEATABLE},
        {"effect_class": EffectClass.IDEMPOTENT, "order_safe": True},
    ],
)
def test_effects_of_which_a_repeat_does_no_harm_proceed(policy: Policy, status: str, harmless: dict[str, Any]) -> None:
    """In every status, with or without a watermark."""
    facts = [here(intended, "a", 6, **harmless)]
    if status == "in doubt":
        facts.append(effect("IN_DOUBT", "a", **harmless))
    if status == "committed":
        facts.append(here(committed, "a", 7, **harmless))
    assert fold(*facts).status.value == status
    assert decide(evidence(seen(*facts)), policy).kind is VerdictKind.PROCEED
    assert decide(evidence(seen(*facts), mark=None), policy).kind is VerdictKind.PROCEED


@BOTH
def test_free_operations_are_no_effects(policy: Policy) -> None:
    """Withdrawn, failed, compensated, resolved as absent: nothing of them stands."""
    for facts in (
        (intended("a"), failed("a")),
        (intended("a"), committed("a"), effect("COMPENSATED", "u")),
        (intended("a"), resolved("ABSENT", 0)),
        (intended("a"), effect("REJECTED", "a")),
    ):
        assert decide(evidence(seen(*facts)), policy).kind is VerdictKind.PROCEED


@BOTH
def test_what_another_agent_did_is_not_crossed(policy: Policy) -> None:
    """An attempt that lost did nothing."""
    others = (intended("b", agent_id="other"), here(intended, "a", 6), committed("b", agent_id="other"))
    assert decide(evidence(seen(*others)), policy).kind is VerdictKind.PROCEED


def test_what_a_session_absorbed_of_another_agent_counts_like_its_own() -> None:
    """From the absorption on the checkpoint knows it; an older one would go back over it. Only the present round counts."""
    theirs = {"agent_id": "other", "branch_id": "plan", "epoch": Position(0, 9)}
    one = seen(intended("x", seq=1, **theirs), committed("x", seq=2, **theirs))
    for place, round_number, counts in ((5, 1, False), (6, 1, True), (6, 2, False)):
        given = evidence(one, absorbed={(OP, round_number): [point(0, place)]})
        strict, gated = decide(given, Policy.STRICT), decide(given, Policy.GATED)
        assert kinds(strict) == ({ReasonKind.EFFECT_ADOPTED} if counts else set())
        assert gated.kind is (VerdictKind.PROCEED_GATED if counts else VerdictKind.PROCEED)
        assert [(e.op_id, e.seq, e.branch_id) for e in gated.crossed] == ([(OP, 6, "plan")] if counts else [])
    open_again = seen(intended("x", seq=1, **theirs), committed("x", seq=2, **theirs), effect("UNKNOWN", "u"))
    assert kinds(decide(evidence(open_again, absorbed={(OP, 1): [point(0, 3)]}), Policy.GATED)) == {
        ReasonKind.EFFECT_UNSAFE
    }


@BOTH
def test_what_a_session_absorbed_is_known_by_its_place(policy: Policy) -> None:
    """Whoever did it: the checkpoint knows it from the absorption on, in the same round only."""
    other = seen(here(intended, "a", 6), here(committed, "a", 7))
    for place, round_number, known in ((3, 1, True), (5, 1, True), (6, 1, False), (3, 2, False)):
        absorbed = {(OP, round_number): [point(0, place)]}
        verdict = decide(evidence(other, absorbed=absorbed), policy)
        assert (verdict.kind is VerdictKind.PROCEED) is known, (place, round_number)


@BOTH
def test_what_was_absorbed_in_an_earlier_round_is_not_known_in_this_one(policy: Policy) -> None:
    """It was undone, and done again since."""
    again = seen(
        intended("a"), committed("a"), effect("COMPENSATED", "u"),
        here(intended, "b", 6, round=2), here(committed, "b", 7, round=2),
    )  # fmt: skip
    assert decide(evidence(again, absorbed={(OP, 2): [point(0, 3)]}), policy).kind is VerdictKind.PROCEED
    assert decide(evidence(again, absorbed={(OP, 1): [point(0, 3)]}), policy).kind is not VerdictKind.PROCEED


@BOTH
def test_the_number_of_another_agents_fact_says_nothing(policy: Policy) -> None:
    """Its epoch may be the same offset of another partition."""
    theirs = resolved("COMMITTED", 0, epoch=Position(0, 0), seq=3)
    settled = seen(here(intended, "a", 6), replace(theirs, agent_id="other"))
    assert decide(evidence(settled), policy).kind is not VerdictKind.PROCEED


# -- row 2: in doubt, owned, unsafe --------------------------------------------------------


@BOTH
@pytest.mark.parametrize("effect_class", HARMFUL)
@pytest.mark.parametrize("values", [{}, {"mark": None}])
@pytest.mark.parametrize(
    "case",
    [
        ((), {}, ReasonKind.EFFECT_OWNED),
        ((), {"owner_ended": True}, ReasonKind.EFFECT_IN_DOUBT),
        (("IN_DOUBT",), {}, ReasonKind.EFFECT_IN_DOUBT),
        (("UNKNOWN",), {}, ReasonKind.EFFECT_UNSAFE),
        ((), {"unsafe": "set aside"}, ReasonKind.EFFECT_UNSAFE),
        (("COMMITTED",), {"unsafe": "set aside"}, ReasonKind.EFFECT_UNSAFE),
    ],
)
def test_what_is_not_settled_refuses(
    policy: Policy, effect_class: EffectClass, values: Any, case: tuple[tuple[str, ...], dict[str, Any], ReasonKind]
) -> None:
    """Under either policy, even if its intent stands before the checkpoint; an unreadable watermark is told as well."""
    more, flags, kind = case
    facts = (
        intended("a", seq=1, effect_class=effect_class),
        *(effect(k, "a", seq=2, effect_class=effect_class) for k in more),
    )
    verdict = decide(evidence(seen(*facts, **flags), **values), policy)
    unreadable = {ReasonKind.WATERMARK_UNREADABLE} if values else set()
    assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {kind} | unreadable)
    assert "settle what is in doubt or still owned" in [way.value for way in verdict.ways_on]


@BOTH
def test_a_known_effect_that_can_no_longer_be_read_refuses(policy: Policy) -> None:
    """The record that was set aside may say more than the commit that the checkpoint knows."""
    known = (here(intended, "a", 3), here(committed, "a", 4))
    assert decide(evidence(seen(*known)), policy).authorised
    assert kinds(decide(evidence(seen(*known, unsafe="set aside")), policy)) == {ReasonKind.EFFECT_UNSAFE}


@BOTH
def test_open_effects_are_named_before_settled_ones(policy: Policy) -> None:
    """First what must be settled; the others may look different afterwards."""
    verdict = decide(evidence(done(7), seen(here(intended, "b", 8))), policy)
    assert kinds(verdict) == {ReasonKind.EFFECT_OWNED}


# -- rows 3 to 6: settled and unknown ------------------------------------------------------


@BOTH
@pytest.mark.parametrize("effect_class", HARMFUL)
@pytest.mark.parametrize(
    ("registered", "kind"),
    [(True, ReasonKind.WATERMARK_UNREADABLE), (False, ReasonKind.CHECKPOINT_NOT_REGISTERED)],
)
def test_without_a_watermark_a_settled_effect_refuses(
    policy: Policy, effect_class: EffectClass, registered: bool, kind: ReasonKind
) -> None:
    """Nothing is known to the checkpoint, so everything is crossed; also under GATED."""
    verdict = decide(evidence(done(1, effect_class=effect_class), mark=None, registered=registered), policy)
    assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {kind, beyond(effect_class)})


@pytest.mark.parametrize("effect_class", HARMFUL)
def test_a_settled_effect_beyond_the_watermark(effect_class: EffectClass) -> None:
    """GATED goes over it and says so; STRICT refuses, names it, and says how to go on, never to retry."""
    gated = decide(evidence(done(7, effect_class=effect_class)), Policy.GATED)
    assert (gated.kind, [b.op_id for b in gated.crossed]) == (VerdictKind.PROCEED_GATED, [OP])
    assert gated.authorised
    strict = decide(evidence(done(7, effect_class=effect_class)), Policy.STRICT)
    blocker = strict.reasons[0].effect
    assert (strict.kind, kinds(strict)) == (VerdictKind.REFUSE, {beyond(effect_class)})
    assert blocker is not None
    told = (blocker.op_id, blocker.tool, blocker.seq, blocker.effect_class, blocker.status, blocker.branch_id)
    assert told == (OP, "bank.pay", 7, effect_class, "committed", "main")
    ways = [way.value for way in strict.ways_on]
    assert [w.split()[0] for w in ways] == ["compensate", "replay", "let"]
    assert not any("again" in w or "retry" in w for w in ways)


def test_effects_are_named_in_the_order_in_which_they_were_done() -> None:
    """By session and number, not by the partition in which they happen to stand."""
    first = SeenOperation(fold(here(intended, "a", 6), here(committed, "a", 7)))
    later = SeenOperation(fold(None, None, None, here(intended, "b", 8), here(committed, "b", 9)))
    verdict = decide(evidence(later, first), Policy.STRICT)
    assert [r.effect.seq for r in verdict.reasons if r.effect] == [7, 9]
