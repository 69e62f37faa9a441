"""Undoing effects by plans: the way through, and what a kill in the middle leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.refunding import Refunds
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    LossNotAcceptedError,
    ManifestVerdict,
    OperationInDoubtError,
    UndoPath,
    UnsafeRollbackError,
    VerdictKind,
)
from fencepost.ledger.operations import Operation, Status

if TYPE_CHECKING:
    from fencepost.ledger import AgentSession


# -- the way through -----------------------------------------------------------------------


def test_a_rollback_compensates_first(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """The verdict carries the plan; once it is carried out, in reverse order, the rollback proceeds over nothing."""
    calls = refunds.register()
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        refunds.do(session, "a", "b", "d", cents=5)
        with pytest.raises(UnsafeRollbackError) as caught:
            session.rollback("c")
    verdict = caught.value.verdict
    assert (verdict.kind, verdict.fenced) == (VerdictKind.COMPENSATE_FIRST, True)
    plan = verdict.plan
    assert [step.op_id for step in plan.steps] == [refunds.op_id(name) for name in ("d", "b", "a")]
    decision = ledger.agent(world.agent).agent.rollbacks[verdict.rollback_id].decision
    assert decision is not None
    assert decision.plan_digest == plan.digest
    report = ledger.compensate(plan, approved_by="alice", evidence="ticket 17")
    assert [call["op_id"] for call in calls] == [step.op_id for step in plan.steps]
    assert all(step.now for step in report.steps)
    assert refunds.account.balance == 0
    for call, step in zip(calls, plan.steps, strict=True):
        assert call["key"] == step.manifest.action.idempotency_key
        assert call["expected"] == step.manifest.post_state_hash
        assert call["payload"] == step.manifest.action.payload
    operation = refunds.operation("a")
    assert (operation.status, operation.round, operation.losses) == (Status.FREE, 2, ())
    [ended] = operation.compensations
    assert (ended.by, ended.evidence, ended.plan_digest) == ("alice", "ticket 17", plan.digest)
    assert refunds.inverse("a").status is Status.COMMITTED
    assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED
    with ledger.session(world.agent) as session:  # a new call is a new round, with another key
        refunds.do(session, "a", cents=5)
    assert refunds.account.balance == 5
    assert refunds.account.moves("refund:") == 4
    assert refunds.operation("a").idempotency_key != operation.idempotency_key[:-1] + "1"


def test_a_plan_that_is_done_is_not_done_again(refunds: Refunds, ledger: Ledger, world: World) -> None:
    """Carried out once more it says so, and says it of every step; nothing else is written."""
    refunds.done("a")
    plan = refunds.plan("a")
    calls = refunds.register()
    ledger.compensate(plan, approved_by="alice")
    before = ledger.operation(refunds.op_id("a")).facts
    report = ledger.compensate(plan)
    assert [(step.op_id, step.now) for step in report.steps] == [(refunds.op_id("a"), False)]
    assert (len(calls), ledger.operation(refunds.op_id("a")).facts) == (1, before)
    [progress] = ledger.plans(world.agent)
    assert (progress.done, progress.approval.by) == (True, "alice")
    assert ledger.standing_effects(world.agent) == []


def test_dependents_are_undone_first(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """Of two branches nobody can tell whose effect came first: what changed a resource that the other names as its cascade goes first."""
    order: list[str] = []

    @ledger.compensator(refunds.action, state_hash=lambda _: "h")
    def undo(op: Operation, payload: Any, idempotency_key: str) -> None:
        del payload, idempotency_key
        order.append(op.op_id)

    def do(session: AgentSession, name: str, resource: str, cascades: tuple[str, ...] = ()) -> None:
        path = UndoPath(action=refunds.action, pre_state_hash="h", covers=cascades)
        with session.attempt(
            "crm.note",
            key=world.key(name),
            kind=EffectClass.COMPENSATABLE,
            resource=resource,
            cascades=cascades,
            undo=path,
        ) as attempt:
            assert attempt.owned
            attempt.commit(post_state_hash="h")

    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        with session.fork("b", checkpoint="c") as beside:
            do(session, "note", "crm")
            do(beside, "order", "order", ("crm",))
            do(beside, "other", "other")
        ledger.prune_branch(world.agent, "b")
    plan = ledger.authorize_rollback(world.agent, checkpoint="c").plan
    assert plan is not None
    ledger.compensate(plan, approved_by="alice")
    assert order == [world.op_id(name, "crm.note") for name in ("other", "note", "order")]


def test_a_successor_that_has_never_seen_the_effect(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """C7: the plan is exported, approved by one process, and carried out by another from what stands in it."""
    refunds.done("a", "b", irreversible=("mail:{order}",))
    plan = refunds.plan("a", "b")
    losses = [f"mail:{world.key(name)}" for name in ("b", "a")]
    assert (list(plan.losses), plan.verdict) == (losses, ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN)
    ledger.approve_plan(plan, by="alice", evidence="seen", accept_losses=losses)
    [answer] = refunds.undoer(plan, by="").finish()
    assert answer["error"] == ""
    assert (answer["value"]["approved_by"], answer["value"]["losses"]) == ("alice", losses)
    assert refunds.account.balance == 0
    assert refunds.operation("a").losses == (losses[1],)


def test_losses_are_accepted_by_name(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """C3: without that nothing is begun; with it the loss is recorded with the operation, in every later round."""
    refunds.register()
    refunds.done("a", irreversible=("mail:{order}",))
    plan = refunds.plan("a")
    for accepted in ([], ["mail"], [f"mail:{world.key('b')}"]):
        with pytest.raises(LossNotAcceptedError, match="mail:"):
            ledger.compensate(plan, approved_by="alice", accept_losses=accepted)
        with pytest.raises(LossNotAcceptedError):
            ledger.approve_plan(plan, by="alice", accept_losses=accepted)
    assert (refunds.account.balance, ledger.plans(world.agent)) == (1, [])
    text: Any = f"mail:{world.key('a')}"
    with pytest.raises(InvalidArgumentError, match="accept_losses"):
        ledger.compensate(plan, approved_by="alice", accept_losses=text)
    for accept in (ledger.compensate, ledger.approve_plan):
        who = {"approved_by" if accept == ledger.compensate else "by": "alice"}
        with pytest.raises(InvalidArgumentError, match="accept_losses: the plan loses no 'mail:other'"):
            accept(plan, accept_losses=[text, "mail:other"], **who)
    assert (refunds.account.balance, ledger.plans(world.agent)) == (1, [])
    report = ledger.compensate(plan, approved_by="alice", accept_losses=[text])
    assert report.losses == (text,)
    with ledger.session(world.agent) as session:
        refunds.do(session, "a")
    assert world.status(refunds.op_id("a"), Status.COMMITTED).losses == (text,)


# -- H: killed in the middle ---------------------------------------------------------------

CERTAIN = [
    "before PLAN_APPROVED", "after PLAN_APPROVED", "after SESSION_OPENED", "before COMPENSATING", "after COMPENSATING",
    "before INTENDED", "after COMMITTED", "before COMPENSATED", "after COMPENSATED",
]  # fmt: skip
IN_DOUBT = ["after INTENDED", "before inverse", "after inverse", "before COMMITTED"]


@pytest.mark.slow
@pytest.mark.parametrize("point", [*CERTAIN, *IN_DOUBT])
def test_h_killed_and_carried_out_again(refunds: Refunds, world: World, ledger: Ledger, point: str) -> None:
    """H: wherever it was killed, the inverse runs once; where nobody can tell, that is told, and a probe settles it."""
    refunds.done("a")
    plan = refunds.plan("a")
    refunds.undoer(plan, die=point).dies()
    [again] = refunds.undoer(plan).finish()
    if point in IN_DOUBT:
        assert again["error"] == "OperationInDoubtError", again
        assert not again["ran"]
        assert refunds.operation("a").status is Status.COMPENSATING
        refunds.register(probe=True)
        ledger.compensate(plan)
    else:
        assert again["error"] == "", again
    assert refunds.account.moves("undo:") == 1
    assert refunds.account.balance == 0
    assert (refunds.operation("a").status, refunds.operation("a").round) == (Status.FREE, 2)
    assert refunds.inverse("a").status is Status.COMMITTED
    assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED


def test_h_an_operator_settles_the_inverse(refunds: Refunds, ledger: Ledger) -> None:
    """H: without a probe an operator says what became of the inverse; then the plan goes on without running it again."""
    refunds.done("a")
    plan = refunds.plan("a")
    refunds.undoer(plan, die="after inverse").dies()
    calls = refunds.register()
    with pytest.raises(OperationInDoubtError) as caught:
        ledger.compensate(plan)
    assert caught.value.op_id == refunds.inverse("a").op_id
    ledger.resolve(
        caught.value.op_id, outcome="committed", version=refunds.inverse("a").version, by="ann", evidence="seen"
    )
    assert [step.now for step in ledger.compensate(plan).steps] == [True]
    assert (calls, refunds.account.balance) == ([], 0)


def test_an_inverse_that_fails_is_in_doubt(refunds: Refunds, ledger: Ledger) -> None:
    """Any exception but the two that say so leaves open whether it ran; the steps after it are not begun."""
    refunds.done("a", "b")
    plan = refunds.plan("a", "b")

    def fail(point: str) -> None:
        if point == "after inverse":
            raise TimeoutError("no answer")

    refunds.register(at=fail)
    with pytest.raises(OperationInDoubtError, match="no answer") as caught:
        ledger.compensate(plan, approved_by="alice")
    assert caught.value.op_id == refunds.inverse("b").op_id
    assert refunds.inverse("b").status is Status.IN_DOUBT
    assert refunds.operation("a").status is Status.COMMITTED
    assert {item.state for item in ledger.open_operations() if item.operation.op_id == refunds.op_id("b")} == {
        "being undone"
    }
    refunds.register(probe=True)
    ledger.compensate(plan)
    assert (refunds.account.balance, refunds.account.moves("undo:")) == (0, 2)
