"""Going back to where an effect was done that was undone since: nobody would do it again, so that is refused until it is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.refunding import Refunds

from fencepost.ledger import (
    EffectClass,
    Ledger,
    Policy,
    ReasonKind,
    Reconcile,
    UnsafeRollbackError,
    Verdict,
    VerdictKind,
    WayOn,
)
from fencepost.ledger.operations import Status, compensation_op_id

if TYPE_CHECKING:
    from conformance.worlds import World

WAYS = (WayOn.NAME_UNDONE, WayOn.OPERATOR)


def undone_by_hand(world: World, ledger: Ledger, name: str) -> str:
    """An operator says that it was undone; what names the undoing."""
    op_id = world.op_id(name)
    version = world.status(op_id, Status.COMMITTED).version
    ledger.resolve(op_id, outcome="compensated", version=version, by="ann", evidence="refunded at the counter")
    return compensation_op_id(op_id, 1)


def reasons(verdict: Verdict) -> list[tuple[ReasonKind, str]]:
    return [(reason.kind, reason.effect.op_id if reason.effect else "") for reason in verdict.reasons]


@pytest.mark.parametrize("policy", list(Policy))
def test_what_was_undone_since_stands_in_the_way(world: World, ledger: Ledger, policy: Policy) -> None:
    """Under both policies, without fencing anybody; a restored state that names the undoing may be gone back to."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        mark = session.checkpoint("c")
        undo = undone_by_hand(world, ledger, "a")
        for verdict in (
            ledger.preview_rollback(world.agent, checkpoint="c", policy=policy),
            ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy),
            ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy, restored=f"state {mark.token}"),
        ):
            assert (verdict.kind, verdict.ways_on, verdict.fenced) == (VerdictKind.REFUSE, WAYS, False)
            assert reasons(verdict) == [(ReasonKind.EFFECT_UNDONE, world.op_id("a"))]
            assert "ann" in verdict.reasons[0].text
            assert undo in verdict.reasons[0].text
        with pytest.raises(UnsafeRollbackError, match=undo):
            session.rollback("c", policy=policy)
        told = ledger.resume(world.agent, checkpoint="c", summary_generation=0)
        assert isinstance(told, Reconcile)
        assert [one.undo_op_id for one in told.undone] == [undo]
        state = f"state {mark.token}; what was charged was given back ({undo})"
        with session.rollback("c", policy=policy, restored=state) as again:
            world.charge(again, "a")  # in a round of its own: who wants it again says so
    assert world.hits("a") == 2


def test_a_checkpoint_that_does_not_have_it_as_done(world: World, ledger: Ledger) -> None:
    """Neither one from before it, nor one at which its call had not returned: that is what compensating first is for."""
    with ledger.session(world.agent) as session:
        session.checkpoint("before")
        attempt = session.attempt("billing.charge", key=world.key("a"), kind=EffectClass.IRREVERSIBLE).begin()
        session.checkpoint("open")
        attempt.commit({"ok": True})
        undone_by_hand(world, ledger, "a")
        for name in ("open", "before"):
            assert world.preview(name).kind is VerdictKind.PROCEED
        session.rollback("before").close()


def test_an_undo_by_a_plan(world: World, ledger: Ledger) -> None:
    """While it is under way the guard waits for it, and when it is done it says so; a later round is not mixed up with it."""
    refunds = Refunds(world)
    refunds.register()
    with ledger.session(world.agent) as session:
        refunds.do(session, "a")
        session.checkpoint("c")
        ledger.compensate(refunds.plan("a"), approved_by="alice", evidence="ticket 17")
        op_id = refunds.op_id("a")
        assert reasons(ledger.preview_rollback(world.agent, checkpoint="c")) == [(ReasonKind.EFFECT_UNDONE, op_id)]
        refunds.do(session, "a")
        session.checkpoint("d")
        assert world.preview("d").kind is VerdictKind.PROCEED
        again = world.preview("c")
        assert reasons(again) == [(ReasonKind.EFFECT_UNDONE, op_id), (ReasonKind.EFFECT_NOT_KNOWN, op_id)]
        assert again.ways_on[0] is WayOn.NAME_UNDONE


def test_what_another_agent_did_and_this_one_relies_on(world: World, ledger: Ledger) -> None:
    """It was absorbed before the checkpoint: the state has it as done, whoever did it."""
    with ledger.session(f"{world.agent}-other") as other, ledger.session(world.agent) as session:
        world.charge(other, "a")
        world.charge(session, "a")
        session.checkpoint("c")
        assert world.preview("c").kind is VerdictKind.PROCEED
        undone_by_hand(world, ledger, "a")
        verdict = ledger.preview_rollback(world.agent, checkpoint="c")
        assert reasons(verdict) == [(ReasonKind.EFFECT_UNDONE, world.op_id("a"))]
    assert world.hits("a") == 1
