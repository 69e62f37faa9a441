"""The guard's row of COMPENSATE_FIRST: when a plan is offered, and what keeps it from being offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.ledger.guard_kit import evidence, kinds
from unit.ledger.kit import agent_fact, at, effect
from unit.ledger.plan_kit import adopted, facts, sealed, standing

from fencepost.ledger import UnsafeRollbackError
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.guard import SeenOperation, decide
from fencepost.ledger.manifests import ManifestVerdict
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind, Verdict, VerdictKind, WayOn
from fencepost.ledger.watermarks import Point


def strict(*operations: SeenOperation, **values: Any) -> Verdict:
    return decide(evidence(*operations, **values), Policy.STRICT)


def test_all_of_them_can_be_undone() -> None:
    """The plan undoes them in reverse order; nothing is authorised until it is carried out."""
    verdict = strict(standing("t:a", 7, sealed("t:a")), standing("t:b", 9, sealed("t:b")))
    assert (verdict.kind, verdict.authorised, verdict.reasons) == (VerdictKind.COMPENSATE_FIRST, False, ())
    assert verdict.plan is not None
    assert [s.op_id for s in verdict.plan.steps] == ["t:b", "t:a"]
    assert [e.op_id for e in verdict.crossed] == ["t:a", "t:b"]
    assert (verdict.plan.cause, verdict.plan.checkpoint_id, verdict.plan.agent_id) == ("rollback", "c", "agent")
    assert WayOn.COMPENSATE in verdict.ways_on
    with pytest.raises(UnsafeRollbackError, match="t:b") as caught:
        verdict.raise_for_refusal()
    assert caught.value.verdict.plan is verdict.plan
    assert verdict.to_dict()["plan"]["digest"] == verdict.plan.digest


def test_one_of_them_cannot() -> None:
    """Nothing is offered: undoing some of them would leave the others; every effect is named, and why."""
    verdict = strict(standing("t:a", 7, sealed("t:a")), standing("t:b", 9, None))
    assert (verdict.kind, verdict.plan) == (VerdictKind.REFUSE, None)
    assert [r.effect.op_id for r in verdict.reasons if r.effect] == ["t:a", "t:b"]
    assert kinds(verdict) == {ReasonKind.EFFECT_NOT_KNOWN}
    irreversible = standing("t:b", 9, None, effect_class=EffectClass.IRREVERSIBLE)
    assert strict(standing("t:a", 7, sealed("t:a")), irreversible).kind is VerdictKind.REFUSE


def test_effects_that_do_no_harm_are_not_undone() -> None:
    """They stay out of the plan; what the checkpoint knows stays out as well."""
    harmless = standing("t:r", 9, None, effect_class=EffectClass.REPEATABLE)
    verdict = strict(standing("t:a", 7, sealed("t:a")), harmless, standing("t:k", 4, sealed("t:k")))
    assert verdict.plan is not None
    assert [s.op_id for s in verdict.plan.steps] == ["t:a"]


def test_an_idempotent_effect_that_is_not_order_safe_is_undone_too() -> None:
    """If it says how; otherwise it is refused as before."""
    done = standing("t:a", 7, sealed("t:a"), effect_class=EffectClass.IDEMPOTENT)
    assert strict(done).kind is VerdictKind.COMPENSATE_FIRST
    assert kinds(strict(standing("t:a", 7, None, effect_class=EffectClass.IDEMPOTENT))) == {
        ReasonKind.EFFECT_ORDER_DEPENDENT
    }


def test_somebody_who_stays_relies_on_it() -> None:
    """A sibling of the agent, another agent, an operator by name: the effect is theirs as well."""
    for one in (adopted("t:a", "b"), adopted("t:a", "main", "other"), adopted("t:a", "main", by="ann")):
        verdict = strict(standing("t:a", 7, sealed("t:a"), one))
        assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {ReasonKind.EFFECT_ADOPTED})


def test_a_sibling_that_only_absorbed_it_relies_on_it_as_well() -> None:
    """Nothing in the operation's own history says so: its place in the agent's log does, while the sibling knows it."""
    done = standing("t:a", 7, sealed("t:a"))
    for place, kind in ((3, VerdictKind.REFUSE), (0, VerdictKind.COMPENSATE_FIRST)):
        verdict = strict(done, absorbed={("t:a", 1): [Point(Position(0, 2), place)]})
        assert verdict.kind is kind
    away = strict(done, seq=1, absorbed={("t:a", 1): [Point(Position(0, 2), 3)]})  # the sibling was forked at 2
    assert away.kind is VerdictKind.COMPENSATE_FIRST


def test_who_goes_back_as_well_does_not_stand_in_the_way() -> None:
    """A branch that was forked from what is left behind goes away with it, and is named in the plan."""
    done = standing("t:a", 7, sealed("t:a"), adopted("t:a", "b", epoch=Position(0, 2), seq=1))
    verdict = strict(done, seq=1)  # the sibling was forked at 2
    assert verdict.plan is not None
    assert verdict.plan.steps[0].adopted_by == ("agent/b",)


def test_an_effect_of_a_branch_that_stays_is_not_taken_from_it() -> None:
    """A sibling that was forked before the checkpoint's end goes on; its effects are its own."""
    own = standing("t:a", 3, sealed("t:a"), branch_id="b", session_id="f1", epoch=Position(0, 2))
    verdict = strict(own)
    assert (verdict.kind, kinds(verdict)) == (VerdictKind.REFUSE, {ReasonKind.EFFECT_ADOPTED})
    assert "branch b did it" in verdict.reasons[0].text


def test_a_manifest_that_was_changed_is_no_way_back() -> None:
    """The digest in the commit binds every field."""
    changed = sealed("t:a", after="other")
    made = [replace(f, manifest=changed.data) if f.manifest else f for f in facts("t:a", 7, sealed("t:a"))]
    verdict = strict(SeenOperation(fold_operation("t:a", at(*made))))
    assert verdict.kind is VerdictKind.REFUSE
    assert "digest" in verdict.reasons[0].text


@pytest.mark.parametrize(("now", "offered"), [("after", True), ("before", False), ("newer", False), (None, True)])
def test_the_state_was_changed_since(now: str | None, offered: bool) -> None:
    """Where it can be read, it must be what the effect left behind; what cannot be read is looked at when it is undone."""
    hashes = {} if now is None else {"t:a": now}
    verdict = strict(standing("t:a", 7, sealed("t:a")), standing("t:b", 9, sealed("t:b")), state_hashes=hashes)
    assert (verdict.kind is VerdictKind.COMPENSATE_FIRST) is offered
    if not offered:
        assert kinds(verdict) == {ReasonKind.CONCURRENT_MUTATION}
        assert [r.effect.op_id for r in verdict.reasons if r.effect] == ["t:a"]


def test_effects_one_upon_the_other_do_not_block_each_other() -> None:
    """The state is the last one's; that it is not the first one's any more is the last one's doing."""
    first = standing("t:a", 7, sealed("t:a", before="0", after="1", resource="account"))
    second = standing("t:b", 9, sealed("t:b", before="1", after="2", resource="account"))
    verdict = strict(first, second, state_hashes={"t:a": "2", "t:b": "2"})
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST
    assert strict(first, second, state_hashes={"t:a": "3", "t:b": "3"}).kind is VerdictKind.REFUSE


def test_what_cannot_be_taken_back_is_named_before_anybody_approves() -> None:
    """The plan is offered as partial."""
    verdict = strict(standing("t:a", 7, sealed("t:a", irreversible=("mail:a",))))
    assert verdict.plan is not None
    assert (verdict.plan.verdict, verdict.plan.losses) == (ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN, ("mail:a",))


def test_no_plan_while_something_else_stands_in_the_way() -> None:
    """A call outside the ledger, an unreadable watermark, an undo that is under way, effects that no order undoes."""
    done = standing("t:a", 7, sealed("t:a"))
    call = agent_fact("CALL_REPORTED", tool="shell", effect_class=EffectClass.IRREVERSIBLE, epoch=Position(0, 0), seq=8)
    assert kinds(strict(done, calls=[call])) == {ReasonKind.CALL_OUTSIDE_LEDGER}
    assert strict(done, mark=None, registered=False).plan is None
    undoing = effect("COMPENSATING", "u", op_id="t:a", version="0.1", plan_digest="p")
    assert kinds(strict(standing("t:a", 7, sealed("t:a"), undoing))) == {ReasonKind.EFFECT_BEING_UNDONE}
    for epochs, kind in (((0, 0), VerdictKind.COMPENSATE_FIRST), ((0, 2), VerdictKind.REFUSE)):  # of two branches
        ring = [
            standing(
                f"t:{n}", 7 + n, sealed(f"t:{n}", resource=f"r{n}", cascades=(f"r{1 - n}",)),
                epoch=Position(0, epochs[n]), branch_id="b" if epochs[n] else "main",
            )
            for n in range(2)
        ]  # fmt: skip
        assert strict(*ring).kind is kind


def test_gated_goes_on_without_undoing() -> None:
    """Whoever asserts that the op ids are stable lets the ledger absorb them."""
    verdict = decide(evidence(standing("t:a", 7, sealed("t:a"))), Policy.GATED)
    assert (verdict.kind, verdict.plan) == (VerdictKind.PROCEED_GATED, None)


def test_what_was_undone_is_not_in_the_way() -> None:
    """Once its round has ended the rollback proceeds."""
    undone = effect("COMPENSATED", "u", op_id="t:a", plan_digest="p")
    assert strict(standing("t:a", 7, sealed("t:a"), undone)).kind is VerdictKind.PROCEED
