"""Undoing effects by plans: what somebody else has changed, relies on, or is doing at the same time."""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from typing import Any

import pytest
from conformance.accounts import register
from conformance.refunding import Refunds
from conformance.worlds import World, answer_when_back

from fencepost.ledger import (
    CompensationBlockedError,
    EffectClass,
    EffectNotExecuted,
    KeyVoided,
    Ledger,
    ManifestError,
    OperationBeingUndoneError,
    ReasonKind,
    StateMoved,
    UndoPath,
    VerdictKind,
    VersionMovedError,
)
from fencepost.ledger.operations import Operation, Status

# -- I: somebody else changed the state ----------------------------------------------------


def test_i_changed_before_the_verdict(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """I: where the state can be read the guard says that it was changed, and nobody is fenced for it."""
    refunds.register()
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        refunds.do(session, "a")
        refunds.account.move(100, "somebody")
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
        assert (verdict.kind, verdict.fenced) == (VerdictKind.REFUSE, False)
        assert {reason.kind for reason in verdict.reasons} == {ReasonKind.CONCURRENT_MUTATION}
        assert not ledger.preview_rollback(world.agent, checkpoint="c").authorised


def test_i_changed_after_the_approval(refunds: Refunds, ledger: Ledger) -> None:
    """I: nothing is begun, and the newer value stands; once it is as it was, the same approval still holds."""
    calls = refunds.register()
    refunds.done("a")
    plan = refunds.plan("a")
    ledger.approve_plan(plan, by="alice")
    refunds.account.move(100, "somebody")
    with pytest.raises(CompensationBlockedError) as caught:
        ledger.compensate(plan)
    assert (caught.value.verdict, caught.value.op_id) == ("BLOCKED_CONCURRENT_MUTATION", refunds.op_id("a"))
    assert (calls, refunds.account.balance, refunds.operation("a").status) == ([], 101, Status.COMMITTED)
    assert set(ledger.verify_plan(plan).values()) == {"BLOCKED_CONCURRENT_MUTATION"}
    refunds.account.move(-100, "somebody")
    ledger.compensate(plan)
    assert refunds.account.balance == 0


def test_a_state_that_is_not_read_in_time(
    refunds: Refunds, world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict does not wait for it: it is given without that state, which is looked at again when it is undone."""
    monkeypatch.setattr("fencepost.ledger.compensators.VERDICT_S", 0.2)
    released = threading.Event()
    ledger.compensator(refunds.action, state_hash=lambda _: str(released.wait(60)))(lambda *_: None)
    refunds.done("a")
    verdict = world.preview("c")
    assert not released.is_set()
    released.set()
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST
    assert world.preview("c").kind is VerdictKind.REFUSE


@pytest.mark.parametrize("when", ["in the middle", "in the inverse"])
def test_i_changed_while_it_is_carried_out(refunds: Refunds, world: World, ledger: Ledger, when: str) -> None:
    """I: noticed right before the inverse, or by it; the step is withdrawn, what was undone before it stays undone."""
    register(ledger, world.directory, refunds.action)
    refunds.done("a", "b")
    plan = refunds.plan("a", "b")
    moved: list[bool] = []

    def state_hash(op: Operation) -> str:
        if when == "in the middle" and op.op_id == refunds.op_id("a") and refunds.account.moves("undo:") and not moved:
            refunds.account.move(100, "somebody")
            moved.append(True)
        return refunds.account.hash

    @ledger.compensator(refunds.action, state_hash=state_hash)
    def recharge(op: Operation, payload: Any, key: str, expected_state_hash: str) -> None:
        if when == "in the inverse" and op.op_id == refunds.op_id("a") and not moved:
            refunds.account.move(100, "somebody")
            moved.append(True)
        if refunds.account.hash != expected_state_hash:
            raise StateMoved
        refunds.account.move(-payload["cents"], f"undo:{key}")

    with pytest.raises(CompensationBlockedError) as caught:
        ledger.compensate(plan, approved_by="alice")
    assert caught.value.verdict == "BLOCKED_CONCURRENT_MUTATION"
    assert (caught.value.op_id, caught.value.done) == (refunds.op_id("a"), [refunds.op_id("b")])
    assert refunds.account.balance == 101
    assert (refunds.operation("a").status, refunds.operation("b").round) == (Status.COMMITTED, 2)
    assert refunds.inverse("a").status is Status.FREE
    [progress] = ledger.plans(world.agent)
    assert [step.state for step in progress.steps] == ["undone", "to do"]
    refunds.account.move(-100, "somebody")
    assert [step.now for step in ledger.compensate(plan).steps] == [False, True]
    assert (refunds.account.balance, refunds.account.moves("undo:")) == (0, 2)


def test_an_inverse_that_says_that_it_did_nothing(refunds: Refunds, ledger: Ledger) -> None:
    """The step is withdrawn, and the plan goes on from there once the cause is gone; the same holds for an unreadable state."""
    refunds.done("a")
    plan = refunds.plan("a")
    broken = ["state", "inverse"]

    def state_hash(op: Operation) -> str:
        del op
        if "state" in broken:
            raise OSError("unreadable")
        return refunds.account.hash

    @ledger.compensator(refunds.action, state_hash=state_hash)
    def recharge(op: Operation, payload: Any, idempotency_key: str) -> None:
        del op
        if "inverse" in broken:
            raise EffectNotExecuted("refused by the provider")
        refunds.account.move(-payload["cents"], f"undo:{idempotency_key}")

    for cause, verdict in (("state", "STATE_UNREADABLE"), ("inverse", "NOT_EXECUTED")):
        with pytest.raises(CompensationBlockedError) as caught:
            ledger.compensate(plan, approved_by="alice")
        assert caught.value.verdict == verdict
        assert refunds.operation("a").status is Status.COMMITTED
        broken.remove(cause)
    ledger.compensate(plan)
    assert (refunds.account.balance, refunds.operation("a").round) == (0, 2)


def test_an_inverse_whose_key_is_void_gets_another_one(refunds: Refunds, ledger: Ledger) -> None:
    """The step is withdrawn; going on with the plan, the compensator is handed a key that nobody has voided."""
    refunds.done("a")
    plan = refunds.plan("a")
    keys: list[str] = []

    def state_hash(op: Operation) -> str:
        del op
        return refunds.account.hash

    @ledger.compensator(refunds.action, state_hash=state_hash)
    def recharge(op: Operation, payload: Any, idempotency_key: str) -> None:
        del op
        keys.append(idempotency_key)
        if idempotency_key == keys[0]:
            raise KeyVoided(idempotency_key)
        refunds.account.move(-payload["cents"], f"undo:{idempotency_key}")

    with pytest.raises(CompensationBlockedError) as caught:
        ledger.compensate(plan, approved_by="alice")
    assert caught.value.verdict == "NOT_EXECUTED"
    ledger.compensate(plan)
    assert keys == [keys[0], f"{keys[0]}.1"]
    assert (refunds.account.balance, refunds.operation("a").round) == (0, 2)


# -- somebody else is there ----------------------------------------------------------------


def test_a_plan_that_somebody_came_to_rely_on(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """An adoption after the plan was made moves the operation: the plan is outdated, and another one names who relies."""
    calls = refunds.register()
    refunds.done("a")
    plan = refunds.plan("a")
    with ledger.session(f"sibling-{world.agent}") as sibling:
        refunds.do(sibling, "a")
    assert refunds.account.moves("refund:") == 1
    with pytest.raises(VersionMovedError) as caught:
        ledger.compensate(plan, approved_by="alice")
    assert (caught.value.op_id, caught.value.seen) == (refunds.op_id("a"), plan.steps[0].version)
    with pytest.raises(ManifestError, match=f"sibling-{world.agent}"):
        refunds.plan("a")
    assert (calls, refunds.account.balance) == ([], 1)


@pytest.mark.parametrize("who", ["the agent", "another agent"])
def test_a_branch_that_only_absorbed_the_effect_is_noticed(
    refunds: Refunds, world: World, ledger: Ledger, who: str
) -> None:
    """Only the first branch of an agent adopts it in the operation's history; another one is found in its agent's log."""
    calls = refunds.register()
    siblings = world.agent if who == "the agent" else f"other-{world.agent}"
    with ledger.session(siblings) as session:
        session.checkpoint("before")
        for branch in ("b1", "b2"):
            session.fork(branch, checkpoint="before")
    with ledger.session(world.agent) as session:
        refunds.do(session, "a")
    with ledger.session(siblings, "b1") as sibling:
        refunds.do(sibling, "a")
    ledger.prune_branch(siblings, "b1")
    plan = refunds.plan("a")
    assert plan.steps[0].adopted_by == (f"{siblings}/b1",)
    with ledger.session(siblings, "b2") as sibling:
        refunds.do(sibling, "a")
    for refused in (lambda: ledger.compensate(plan, approved_by="alice"), lambda: refunds.plan("a")):
        with pytest.raises(ManifestError) as caught:
            refused()
        assert caught.value.field == "adopted_by"
        assert f"{siblings}/b2" in caught.value.message
    assert (calls, refunds.account.balance, refunds.operation("a").status) == ([], 1, Status.COMMITTED)


def test_a_rollbacks_plan_when_the_branch_has_moved_on(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """A session that was opened since knows the effects; the plan is refused until the rollback is authorised anew."""
    calls = refunds.register()
    refunds.done("a")
    plan = ledger.authorize_rollback(world.agent, checkpoint="c").plan
    assert plan is not None
    ledger.session(world.agent).open().close()
    with pytest.raises(VersionMovedError, match="opened since"):
        ledger.compensate(plan, approved_by="alice")
    with pytest.raises(VersionMovedError):
        ledger.approve_plan(plan, by="alice")
    assert calls == []
    anew = ledger.authorize_rollback(world.agent, checkpoint="c").plan
    assert anew is not None
    with pytest.raises(VersionMovedError, match="not decided"):
        ledger.compensate(replace(anew, cause_id="another"), approved_by="alice")
    with pytest.raises(VersionMovedError, match="another plan"):
        ledger.compensate(replace(anew, checkpoint_id="another"), approved_by="alice")
    ledger.compensate(anew, approved_by="alice")
    assert refunds.account.balance == 0


@pytest.mark.slow
def test_an_undo_that_was_begun_ends_although_the_branch_moved_on(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """What ran is recorded, and what did not is withdrawn; the rest of the plan is not begun."""
    refunds.done("a", "b")
    plan = ledger.authorize_rollback(world.agent, checkpoint="c").plan
    assert plan is not None
    refunds.undoer(plan, die="after COMMITTED").dies()
    ledger.session(world.agent).open().close()
    refunds.register()
    with pytest.raises(VersionMovedError):
        ledger.compensate(plan)
    assert (refunds.operation("b").round, refunds.operation("a").status) == (2, Status.COMMITTED)
    assert (refunds.account.balance, refunds.account.moves("undo:")) == (1, 1)


@pytest.mark.slow
def test_an_undo_that_never_ran_is_withdrawn_when_the_branch_moved_on(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """The effect stands again, as the session that was opened meanwhile knows it."""
    refunds.done("a")
    plan = ledger.authorize_rollback(world.agent, checkpoint="c").plan
    assert plan is not None
    refunds.undoer(plan, die="after COMPENSATING").dies()
    ledger.session(world.agent).open().close()
    calls = refunds.register()
    with pytest.raises(VersionMovedError):
        ledger.compensate(plan)
    assert (calls, refunds.operation("a").status, refunds.account.balance) == ([], Status.COMMITTED, 1)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after COMPENSATING", "before inverse", "after inverse"])
def test_two_runs_of_one_plan_at_the_same_time(refunds: Refunds, world: World, ledger: Ledger, point: str) -> None:
    """The later one takes over and never runs an inverse that may have run; together they run each inverse once."""
    refunds.done("a", "b")
    plan = refunds.plan("a", "b")
    first = refunds.undoer(plan, hold=point, name="first")
    first.wait_held("first")
    [second] = refunds.undoer(plan, probe=False).finish()
    first.release("first")
    [late] = first.finish()
    told = {"OperationInDoubtError", "OperationBeingUndoneError", "OperationInFlightError", "VersionMovedError", ""}
    assert {second["error"], late["error"]} <= told, (second, late)
    refunds.register(probe=True)
    report = ledger.compensate(plan)
    assert {step.op_id for step in report.steps} == {refunds.op_id("a"), refunds.op_id("b")}
    assert (refunds.account.moves("undo:"), refunds.account.balance) == (2, 0)


@pytest.mark.slow
def test_a_call_for_what_is_being_undone(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """It waits, and is told so; once the undo has ended the waiting call runs nothing, and a new one is the next round."""
    refunds.done("a")
    plan = refunds.plan("a")
    undoer = refunds.undoer(plan, hold="before inverse", name="undoing")
    undoer.wait_held("undoing")
    assert refunds.operation("a").status is Status.COMPENSATING
    options: dict[str, Any] = {"key": world.key("a"), "kind": EffectClass.COMPENSATABLE}
    path = UndoPath(action=refunds.action, pre_state_hash="h")
    with ledger.session(world.agent) as session:
        identity = {"order": world.key("a"), "account": world.key("account"), "cents": 1}
        options |= {"identity": identity, "undo": path}
        with pytest.raises(OperationBeingUndoneError):
            session.attempt("billing.refund", wait_s=0.3, **options).begin()
        preview = ledger.preview_rollback(world.agent, checkpoint="c")
        assert {reason.kind for reason in preview.reasons} == {ReasonKind.EFFECT_BEING_UNDONE}
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                session.attempt("billing.refund", wait_s=60, **options).begin()
            except VersionMovedError as moved:
                errors.append(moved)

        waiting = threading.Thread(target=wait)
        waiting.start()
        undoer.release("undoing")
        [answer] = undoer.finish()
        assert answer["error"] == ""
        waiting.join(60)
        assert len(errors) == 1
        again = session.attempt("billing.refund", **options).begin()
        assert (again.owned, again.round) == (True, 2)
        assert again.idempotency_key.endswith("-2")
        again.fail()


def test_another_plan_does_not_take_over(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """An effect that one plan is undoing is not undone by another one; what the first has left open is told."""
    refunds.done("a", "b")
    both, one = refunds.plan("a", "b"), refunds.plan("b")
    refunds.undoer(both, die="after COMPENSATING").dies()
    refunds.register()
    with pytest.raises(OperationBeingUndoneError, match="another plan"):
        ledger.compensate(one, approved_by="alice")
    ledger.compensate(both)
    assert (refunds.account.balance, refunds.account.moves("undo:")) == (0, 2)


def test_an_operator_ends_an_undo_that_was_left(refunds: Refunds, ledger: Ledger, world: World) -> None:
    """By name, at the version that was looked at: it changed nothing, or it is undone, with what was lost."""
    refunds.done("a", irreversible=("mail:{order}",))
    plan = refunds.plan("a")
    losses = [f"mail:{world.key('a')}"]
    refunds.undoer(plan, die="after COMPENSATING", accept=losses).dies()
    stuck = refunds.operation("a")
    assert stuck.status is Status.COMPENSATING
    said: dict[str, Any] = {"by": "ann", "evidence": "looked"}
    ledger.resolve(stuck.op_id, outcome="committed", version=stuck.version, **said)
    assert refunds.operation("a").status is Status.COMMITTED
    refunds.register()
    with pytest.raises(VersionMovedError):
        ledger.compensate(plan)
    ledger.resolve(stuck.op_id, outcome="compensated", version=refunds.operation("a").version, **said)
    assert (refunds.operation("a").round, refunds.operation("a").losses) == (2, tuple(losses))


def test_the_ledger_is_in_order_afterwards(fresh_home: Any, tmp_path: Any) -> None:
    """Projection = fold(log), every session's sequence is accounted for, and losing the projection loses nothing."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path) as world:
        refunds = Refunds(world)
        refunds.register()
        refunds.done("a", "b", irreversible=("mail:{order}",))
        plan = refunds.plan("a", "b")
        refunds.undoer(plan, die="after inverse", accept=list(plan.losses)).dies()
        refunds.register(probe=True)
        ledger.compensate(plan)
        assert ledger.verify().ok
        before = {name: ledger.operation(refunds.op_id(name)).facts for name in ("a", "b")}
        home.lose_projection()
        home.rebuild()
    with Ledger.open(home.url) as ledger:
        for name, facts in before.items():
            assert answer_when_back(functools.partial(ledger.operation, refunds.op_id(name))).facts == facts
        assert answer_when_back(lambda: ledger.plans(world.agent))[0].done
