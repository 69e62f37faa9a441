"""A session that opens after an undo's last look, and before its inverse, is not fenced by it: it finds the undo instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.refunding import Refunds

from fencepost.ledger import (
    Ledger,
    OperationBeingUndoneError,
    ReasonKind,
    Reconcile,
    Resume,
    VerdictKind,
    VersionMovedError,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from conformance.worlds import World


def kinds(answer: Resume | Reconcile) -> list[ReasonKind]:
    return [reason.kind for reason in answer.reasons] if isinstance(answer, Reconcile) else []


def test_a_session_of_the_branch_that_goes_back(world: World, ledger: Ledger) -> None:
    """Asking again it waits, resuming it is told, and going back is refused, during the undo and after it; the next step is not begun."""
    refunds, hasty = Refunds(world), world.open(wait_s=0.3)
    seen: list[str] = []

    def late(place: str) -> None:
        if place != "before inverse" or seen:
            return
        assert refunds.operation("b").status is Status.COMPENSATING
        with hasty.session(world.agent) as session:  # on top of all that the branch did: its path has "b" as done
            assert ReasonKind.EFFECT_BEING_UNDONE in kinds(
                hasty.resume(world.agent, checkpoint="d", summary_generation=0)
            )
            assert {r.kind for r in hasty.preview_rollback(world.agent, checkpoint="d").reasons} == {
                ReasonKind.EFFECT_BEING_UNDONE
            }
            with pytest.raises(OperationBeingUndoneError):
                refunds.do(session, "b")
            told = [(op.op_id, op.status) for op in session.replay_forward()]
            assert (refunds.op_id("b"), "committed") not in told
            session.checkpoint("e")
        seen.append("looked")

    refunds.register(at=late)
    refunds.done("a", "b")
    for name in ("a", "b"):
        world.status(refunds.op_id(name), Status.COMMITTED)
    with ledger.session(world.agent) as session:
        session.checkpoint("d")
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST
    assert verdict.plan is not None
    with pytest.raises(VersionMovedError, match="a session has been opened since"):
        ledger.compensate(verdict.plan, approved_by="alice", evidence="ticket 17")
    assert seen == ["looked"]
    assert (refunds.operation("a").status, refunds.operation("b").round) == (Status.COMMITTED, 2)
    for checkpoint in ("d", "e"):
        assert kinds(ledger.resume(world.agent, checkpoint=checkpoint, summary_generation=0)) == [
            ReasonKind.EFFECT_UNDONE
        ]
        refused = ledger.authorize_rollback(world.agent, checkpoint=checkpoint)
        assert {reason.kind for reason in refused.reasons} == {ReasonKind.EFFECT_UNDONE}
    with ledger.session(world.agent) as session:
        refunds.do(session, "b")
    assert refunds.account.moves("refund:") == 3
    assert refunds.operation("b").round == 2


def test_a_session_that_goes_back_to_where_it_was_told(world: World, ledger: Ledger) -> None:
    """Its branch had left that place when the undo looked; what it resumes from relies on another agent's effect."""
    refunds, other = Refunds(world), f"{world.agent}-other"
    with ledger.session(other) as maker:
        refunds.do(maker, "a")
    world.status(refunds.op_id("a"), Status.COMMITTED)
    with ledger.session(world.agent) as session:
        start = session.checkpoint("start")
        refunds.do(session, "a")
        told = session.checkpoint("told")
    with ledger.session(world.agent, resumed_from=start):
        pass  # nobody relies on it any more
    seen: list[str] = []

    def late(place: str) -> None:
        if place != "before inverse" or seen:
            return
        with ledger.session(world.agent, resumed_from=told):
            seen.append("opened")
        seen.extend(kinds(ledger.resume(world.agent, checkpoint="told", summary_generation=0)))

    refunds.register(at=late)
    ledger.compensate(refunds.plan("a"), approved_by="alice", evidence="ticket 17")
    assert seen == ["opened", ReasonKind.EFFECT_BEING_UNDONE]
    assert ReasonKind.EFFECT_UNDONE in kinds(ledger.resume(world.agent, checkpoint="told", summary_generation=0))
