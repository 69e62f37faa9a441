"""The guard's table, row by row: what an unknown effect, a watermark and a policy make of a rollback."""

from __future__ import annotations

from typing import Any

import pytest
from unit.ledger.kit import (
    LEDGER_ID,
    OP,
    agent_fact,
    at,
    committed,
    decided,
    effect,
    failed,
    fold,
    forked,
    intended,
    opened,
    point,
    requested,
    resolved,
    token,
)

from fencepost.ledger.facts import AgentFact, EffectClass, EffectFact
from fencepost.ledger.guard import (
    Evidence,
    Policy,
    ReasonKind,
    SeenOperation,
    Verdict,
    VerdictKind,
    decide,
    unknown_effects,
)
from fencepost.ledger.lineage import ROOT, fold_agent
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark

AGENT = fold_agent("agent", at(opened("s0"), opened("s1", token(0, 9)), start=10))
"""Session s0 at 10, then s1 at 11, which resumed from nothing that this ledger holds: it is rejected."""
LIFE = (opened("s1"), forked("b", token(0, 2)), opened("f1", token(0, 2, branch="b"), branch_id="b", segment="0.1"))
HARMFUL = [EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE, EffectClass.UNKNOWN, EffectClass.IDEMPOTENT]
BOTH = pytest.mark.parametrize("policy", list(Policy))


def evidence(*operations: SeenOperation, seq: int = 5, life: tuple[AgentFact, ...] = LIFE, **values: Any) -> Evidence:
    """The agent goes back to a checkpoint at number `seq` of its first session."""
    usual: dict[str, Any] = {
        "mark": Watermark(LEDGER_ID, "agent", "main", Position(0, 0), seq),
        "written": {Position(0, 0): 50, Position(0, 2): 50},
        "operations": operations,
    }
    return Evidence(LEDGER_ID, fold_agent("agent", at(*life)), "main", "c", **{**usual, **values})


def seen(*facts: EffectFact, unsafe: str = "", owner_ended: bool = False) -> SeenOperation:
    return SeenOperation(fold(*facts), unsafe, owner_ended)


def here(fact_of: Any, attempt: str, seq: int, epoch: int = 0, **values: Any) -> EffectFact:
    """A fact that a session of the agent wrote with this number."""
    fact: EffectFact = fact_of(attempt, epoch=Position(0, epoch), seq=seq, **values)
    return fact


def done(seq: int, **values: Any) -> SeenOperation:
    return seen(here(intended, "a", seq - 1, **values), here(committed, "a", seq, **values))


def kinds(verdict: Verdict) -> set[ReasonKind]:
    return {reason.kind for reason in verdict.reasons}


# -- row 1: nothing unknown, or only what a repeat does not harm ---------------------------


@BOTH
@pytest.mark.parametrize("mark", [True, False])
def test_nothing_unknown_proceeds(policy: Policy, mark: bool) -> None:
    """Also without a readable watermark: there is nothing that could happen twice."""
    values = {} if mark else {"mark": None}
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
    for values in ({}, {"mark": None}):
        assert decide(evidence(seen(*facts), **values), policy).kind is VerdictKind.PROCEED


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


@BOTH
def test_what_a_session_absorbed_is_known_by_its_place(policy: Policy) -> None:
    """Whoever did it: the checkpoint knows it from the absorption on, in the same round only."""
    other = seen(here(intended, "a", 6), here(committed, "a", 7))
    for place, round_number, known in ((3, 1, True), (5, 1, True), (6, 1, False), (3, 2, False)):
        absorbed = {(OP, round_number): [point(0, place)]}
        verdict = decide(evidence(other, absorbed=absorbed), policy)
        assert (verdict.kind is VerdictKind.PROCEED) is known, (place, round_number)


# -- row 2: in doubt, owned, unsafe --------------------------------------------------------


@BOTH
@pytest.mark.parametrize("effect_class", HARMFUL)
@pytest.mark.parametrize("values", [{}, {"mark": None}])
@pytest.mark.parametrize(
    ("more", "flags", "kind"),
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
    policy: Policy, effect_class: EffectClass, values: Any, more: tuple[str, ...], flags: Any, kind: ReasonKind
) -> None:
    """Under either policy, before the watermark is looked at, even if its intent stands before the checkpoint."""
    facts = (
        intended("a", seq=1, effect_class=effect_class),
        *(effect(k, "a", seq=2, effect_class=effect_class) for k in more),
    )
    verdict = decide(evidence(seen(*facts, **flags), **values), policy)
    assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {kind})
    assert "settle what is in doubt or still owned" in [way.value for way in verdict.ways_on]


@BOTH
def test_open_effects_are_named_before_settled_ones(policy: Policy) -> None:
    """First what must be settled; the others may look different afterwards."""
    verdict = decide(evidence(done(7), seen(here(intended, "b", 8))), policy)
    assert kinds(verdict) == {ReasonKind.EFFECT_OWNED}


@BOTH
@pytest.mark.parametrize("attempt_by", ["agent", "other"])
def test_an_operation_that_cannot_be_read_counts_for_all_who_had_to_do_with_it(policy: Policy, attempt_by: str) -> None:
    """Also where no intent of this agent can be seen: the fact that cannot be read may be its own."""
    unreadable = effect("UNKNOWN", "x", agent_id="agent")
    for facts in ((unreadable,), (intended("b", agent_id=attempt_by), unreadable)):
        assert kinds(decide(evidence(seen(*facts)), policy)) == {ReasonKind.EFFECT_UNSAFE}
    harmless = seen(intended("a", effect_class=EffectClass.READ), unreadable)
    assert kinds(decide(evidence(harmless), policy)) == {ReasonKind.EFFECT_UNSAFE}


def test_an_operation_that_was_resolved_as_done_without_an_owner_counts() -> None:
    """Nobody knows whose it was, so it is everybody's who had to do with it."""
    facts = (here(intended, "a", 6), here(failed, "a", 7), effect("UNKNOWN", "x"), resolved("COMMITTED", 2))
    assert kinds(decide(evidence(seen(*facts)), Policy.STRICT)) == {ReasonKind.EFFECT_NOT_KNOWN}


STRAY = (
    here(intended, "a", 6),
    resolved("ABSENT", 0),
    intended("b", agent_id="other"),
    committed("b", agent_id="other"),
    here(committed, "a", 7),
)
"""Declared absent, done by another agent, and then the first one's late commit arrives."""


@BOTH
@pytest.mark.parametrize("count", [3, 4])
def test_a_late_commit_on_what_another_owns_refuses_until_it_is_looked_at(policy: Policy, count: int) -> None:
    """This agent's effect happened too, although the operation is not its own."""
    facts = (*STRAY[:count], STRAY[4])
    verdict = decide(evidence(seen(*facts)), policy)
    assert kinds(verdict) == {ReasonKind.EFFECT_UNSAFE}
    assert "possible double execution" in verdict.reasons[0].text


@BOTH
def test_a_late_commit_that_is_known_or_acknowledged_does_not(policy: Policy) -> None:
    """The checkpoint stands behind it, or an operator has seen it; and it was not another agent's."""
    assert decide(evidence(seen(*STRAY), seq=7), policy).authorised
    acknowledged = (*STRAY, resolved("COMMITTED", 4))
    assert decide(evidence(seen(*acknowledged)), policy).authorised
    theirs = (intended("a", agent_id="x"), intended("b", agent_id="y"), committed("b", agent_id="y"))
    assert decide(evidence(seen(*theirs)), policy).authorised


@BOTH
def test_a_late_commit_counts_although_the_operation_is_harmless_or_absorbed(policy: Policy) -> None:
    """It was of another identity; what was absorbed is the other's."""
    harmless = {"effect_class": EffectClass.READ}
    stray = (
        committed("b", agent_id="other", **harmless),
        here(committed, "a", 7, effect_class=EffectClass.IRREVERSIBLE),
    )
    assert kinds(decide(evidence(seen(*stray)), policy)) == {ReasonKind.EFFECT_UNSAFE}
    absorbed = {(OP, 1): [point(0, 3)]}
    assert kinds(decide(evidence(seen(*STRAY), absorbed=absorbed), policy)) == {ReasonKind.EFFECT_UNSAFE}


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
    assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {kind, ReasonKind.EFFECT_NOT_KNOWN})


@pytest.mark.parametrize("effect_class", HARMFUL)
def test_a_settled_effect_beyond_the_watermark(effect_class: EffectClass) -> None:
    """GATED goes over it and says so; STRICT refuses, names it, and says how to go on, never to retry."""
    gated = decide(evidence(done(7, effect_class=effect_class)), Policy.GATED)
    assert (gated.kind, [b.op_id for b in gated.crossed]) == (VerdictKind.PROCEED_GATED, [OP])
    assert gated.authorised
    strict = decide(evidence(done(7, effect_class=effect_class)), Policy.STRICT)
    blocker = strict.reasons[0].effect
    assert (strict.kind, kinds(strict)) == (VerdictKind.REFUSE, {ReasonKind.EFFECT_NOT_KNOWN})
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


# -- the agent, its branches and its watermarks --------------------------------------------


@BOTH
def test_a_branch_that_does_not_exist_or_is_closed(policy: Policy) -> None:
    """There is nothing that could go back."""
    closed = (*LIFE, requested("r", token(0, 1)), decided("r"))
    assert kinds(decide(evidence(life=closed, seq=1), policy)) == set()
    for life, branch in ((LIFE, "nowhere"), (closed, "b")):
        verdict = decide(Evidence(LEDGER_ID, fold_agent("agent", at(*life)), branch, "c", None), policy)
        assert kinds(verdict) == {ReasonKind.CHECKPOINT_NOT_ON_PATH}


@BOTH
def test_a_checkpoint_beside_the_path_refuses(policy: Policy) -> None:
    """Of a sibling, of the lost end of a crashed session, of an abandoned stretch: also when nothing is crossed."""
    sibling = Watermark(LEDGER_ID, "agent", "b", Position(0, 2), 3)
    crashed = (opened("s1"), opened("s2", token(0, 4)))
    back = (opened("s1"), requested("r", token(0, 2)), decided("r"))
    for given in (evidence(mark=sibling), evidence(life=crashed), evidence(life=back)):
        assert kinds(decide(given, policy)) == {ReasonKind.CHECKPOINT_NOT_ON_PATH}
    assert decide(evidence(life=crashed, seq=4), policy).authorised
    assert decide(evidence(life=back, seq=2), policy).authorised


@BOTH
def test_an_agent_whose_log_cannot_be_trusted_refuses(policy: Policy) -> None:
    """A fact of an unknown kind, or a record that was set aside."""
    assert kinds(decide(evidence(life=(*LIFE, agent_fact("UNKNOWN"))), policy)) == {ReasonKind.AGENT_UNSAFE}
    assert kinds(decide(evidence(unsafe_keys=["session/agent/s1"]), policy)) == {ReasonKind.AGENT_UNSAFE}
