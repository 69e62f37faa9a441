"""An undo that a probe or an operator wants to settle: what became of its inverse decides which word is taken."""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from conformance.accounts import register
from conformance.refunding import Refunds
from conformance.worlds import World, until

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    ManifestError,
    OperationBeingUndoneError,
    Outcome,
    ProbeAnswer,
    StaleProjectionError,
    UndoPath,
    opening,
)
from fencepost.ledger.operations import AttemptState, Operation, Status, compensation_op_id

if TYPE_CHECKING:
    from pathlib import Path

    from fencepost.ledger.sessions import SessionState

WORDS: dict[str, Any] = {"by": "ann", "evidence": "looked at the account"}
RUBBISH = b"\xc3\x01rubbish"


def say(refunds: Refunds, outcome: str) -> Operation:
    """An operator's word on the effect "a", at the version that it has now."""
    version = refunds.operation("a").version
    return refunds.ledger.resolve(refunds.op_id("a"), outcome=outcome, version=version, **WORDS)


def refused(refunds: Refunds, outcome: str) -> None:
    """The inverse is undecided, and the error names it; nothing was recorded."""
    before = refunds.operation("a")
    with pytest.raises(OperationBeingUndoneError, match="undo:") as caught:
        say(refunds, outcome)
    assert (caught.value.op_id, caught.value.inverse) == (refunds.op_id("a"), refunds.inverse("a").op_id)
    assert refunds.operation("a").version == before.version


def ask_the_tool(refunds: Refunds) -> None:
    """The effect's own probe would say that it is there. It is not asked."""
    asked: list[Operation] = []

    def probe(operation: Operation) -> ProbeAnswer:
        asked.append(operation)
        return ProbeAnswer(Outcome.COMMITTED, evidence="the refund is in the books")

    refunds.ledger.probe("billing.refund")(probe)
    with pytest.raises(OperationBeingUndoneError, match=r"(?s)undo:.*compensate run") as caught:
        refunds.ledger.run_probe(refunds.op_id("a"))
    assert (asked, caught.value.inverse) == ([], refunds.inverse("a").op_id)
    assert refunds.operation("a").status is Status.COMPENSATING


@pytest.mark.slow
def test_an_inverse_that_ran_leaves_no_word_but_undone(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """Neither the tool's probe nor an operator makes it stand again; the operator may record what the plan could not."""
    refunds.done("a")
    plan = refunds.plan("a")
    refunds.undoer(plan, die="after COMMITTED").dies()
    world.status(refunds.inverse("a").op_id, Status.COMMITTED)
    ask_the_tool(refunds)
    with pytest.raises(InvalidArgumentError, match="undo:") as caught:
        say(refunds, "committed")
    assert (caught.value.field, refunds.operation("a").status) == ("outcome", Status.COMPENSATING)
    assert (say(refunds, "compensated").round, refunds.account.balance) == (2, 0)
    calls = refunds.register()
    [step] = ledger.compensate(plan).steps
    assert (step.now, calls, refunds.account.moves("undo:")) == (False, [], 1)


@pytest.mark.slow
def test_nothing_is_said_of_an_effect_while_its_inverse_runs(refunds: Refunds) -> None:
    """A probe and both words are refused and name the inverse; the run that is at it is not disturbed, and ends."""
    refunds.done("a")
    undoer = refunds.undoer(refunds.plan("a"), hold="before inverse", name="undoing")
    undoer.wait_held("undoing")
    ask_the_tool(refunds)
    for outcome in ("committed", "compensated"):
        refused(refunds, outcome)
    undoer.release("undoing")
    [answer] = undoer.finish()
    assert answer["error"] == ""
    assert (refunds.operation("a").round, refunds.account.balance, refunds.account.moves("undo:")) == (2, 0, 1)


@pytest.mark.slow
def test_an_inverse_that_may_have_run_is_settled_first(refunds: Refunds, ledger: Ledger) -> None:
    """Its run died in it. Once its own probe has told, the word on the effect that agrees with it is taken."""
    refunds.done("a")
    refunds.undoer(refunds.plan("a"), die="after inverse").dies()
    for outcome in ("committed", "compensated"):
        refused(refunds, outcome)
    refunds.register(probe=True)
    inverse = refunds.inverse("a")
    ledger.resolve(inverse.op_id, outcome="committed", version=inverse.version, **WORDS)
    with pytest.raises(InvalidArgumentError):
        say(refunds, "committed")
    assert say(refunds, "compensated").round == 2


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after COMPENSATING", "before INTENDED"])
@pytest.mark.parametrize("outcome", ["committed", "compensated"])
def test_an_inverse_does_not_begin_after_an_operators_word(
    refunds: Refunds, world: World, ledger: Ledger, point: str, outcome: str
) -> None:
    """The run that had begun the undo is fenced: however late its claim comes, the log rejects it, and nothing runs."""
    refunds.done("a")
    undoer = refunds.undoer(refunds.plan("a"), hold=point, name="undoing")
    undoer.wait_held("undoing")
    world.status(refunds.op_id("a"), Status.COMPENSATING)
    if outcome == "compensated":
        refunds.account.move(-1, "by-hand")
    say(refunds, outcome)
    with ledger.session(world.agent) as session:
        refunds.do(session, "a")  # recorded where it stands, done anew where it was undone
    undoer.release("undoing")
    [answer] = undoer.finish()
    assert answer["error"] == "OperationBeingUndoneError"
    assert {attempt.state for attempt in refunds.inverse("a").attempts.values()} == {AttemptState.REJECTED}
    operation = refunds.operation("a")
    assert (operation.status, operation.round) == (Status.COMMITTED, 1 if outcome == "committed" else 2)
    assert (refunds.account.balance, refunds.account.moves("undo:")) == (1, 0)
    assert not operation.needs_attention


@pytest.mark.slow
def test_an_inverse_that_begins_while_its_run_is_fenced_counts(
    refunds: Refunds, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at once more behind the fence: what came before that is seen, and the word is not taken."""
    refunds.done("a")
    undoer = refunds.undoer(refunds.plan("a"), hold="before INTENDED", name="undoing")
    undoer.wait_held("undoing")
    original = opening.open_session

    async def open_session(*args: Any, **options: Any) -> SessionState:
        undoer.release("undoing")
        answers.extend(await asyncio.to_thread(undoer.finish))
        return await original(*args, **options)

    answers: list[Any] = []
    monkeypatch.setattr(opening, "open_session", open_session)
    with pytest.raises(InvalidArgumentError, match="undo:"):
        say(refunds, "committed")
    assert [answer["error"] for answer in answers] == [""]
    assert not ledger.operation(refunds.op_id("a")).operation.resolutions
    assert (refunds.operation("a").round, refunds.account.balance) == (2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("die", ["after COMPENSATING", "after COMMITTED"])
def test_an_unsafe_operation_is_settled_by_its_inverse_too(refunds: Refunds, world: World, die: str) -> None:
    """A record that nobody can read came into it: it stands if the inverse never ran, it is undone if that ran."""
    refunds.done("a")
    refunds.undoer(refunds.plan("a"), die=die).dies()
    op_id = refunds.op_id("a")
    world.status(op_id, Status.COMPENSATING)
    if die == "after COMMITTED":
        world.status(refunds.inverse("a").op_id, Status.COMMITTED)
    world.home.poison(refunds.ledger._engine.view.effects_partition(op_id), op_id.encode(), RUBBISH)
    assert refunds.ledger.operation(op_id).seen.unsafe
    if die == "after COMMITTED":
        for outcome in ("committed", "absent"):
            with pytest.raises(InvalidArgumentError, match="undo:"):
                refunds.ledger.resolve(
                    op_id, outcome=outcome, version=refunds.operation("a").version, accept_risk=True, **WORDS
                )
    after = say(refunds, "compensated" if die == "after COMMITTED" else "committed")
    assert (after.status, after.round) == ((Status.FREE, 2) if die == "after COMMITTED" else (Status.COMMITTED, 1))
    assert not refunds.ledger.operation(op_id).seen.unsafe


def test_a_plan_of_another_agent_is_not_carried_out(refunds: Refunds, ledger: Ledger) -> None:
    """Runs of a plan are found, and fenced, by the agent whose effects it undoes; a plan that names another is refused."""
    calls = refunds.register()
    refunds.done("a")
    plan = replace(refunds.plan("a"), agent_id="somebody-else")
    for act in (ledger.approve_plan, ledger.compensate):
        with pytest.raises(ManifestError, match="not done by that agent"):
            act(plan, **({"by": "ann"} if act == ledger.approve_plan else {"approved_by": "ann"}))
    assert (calls, refunds.operation("a").status) == ([], Status.COMMITTED)


def test_an_inverse_whose_time_was_over_before_it_began_ran_nothing(world: World) -> None:
    """Reading the state took longer than its claim holds: the step is withdrawn, nothing is in doubt, the plan goes on."""
    ledger = world.open(deadline_s=3.0)
    path = UndoPath(action=world.key("slow"), pre_state_hash="before", payload={})
    with (
        ledger.session(world.agent) as session,
        session.attempt("tool", key=world.key("e"), kind=EffectClass.COMPENSATABLE, undo=path) as attempt,
    ):
        attempt.commit({}, post_state_hash="after")
    op_id = world.op_id("e", "tool")
    world.status(op_id, Status.COMMITTED)
    ran: list[str] = []
    slow_s = [0.0]

    def state_hash(_: Operation) -> str:
        time.sleep(slow_s[0])
        return "after"

    ledger.compensator(path.action, state_hash=state_hash)(lambda op, *_: ran.append(op.op_id))
    plan = ledger.plan_compensation([op_id])
    slow_s[0] = 3.2
    with pytest.raises(StaleProjectionError, match="nothing was run"):
        ledger.compensate(plan, approved_by="ann")
    world.status(compensation_op_id(op_id, 1), Status.FREE)
    assert (ran, world.status(op_id, Status.COMMITTED).round) == ([], 1)
    slow_s[0] = 0.0
    other = world.open()
    register_as(other, path.action, ran)
    other.compensate(plan)
    assert ran == [op_id]


def register_as(ledger: Ledger, action: str, ran: list[str]) -> None:
    """The same inverse, in another process as it were."""
    ledger.compensator(action, state_hash=lambda _: "after")(lambda op, *_: ran.append(op.op_id))


# -- moving to another ledger --------------------------------------------------------------


def refusal(ledger: Ledger) -> str:
    """Why the ledger is not exported now; "" if it is."""
    try:
        ledger.export(io.StringIO())
    except StaleProjectionError as error:
        return error.message
    return ""


def exported(ledger: Ledger) -> str:
    """The ledger's export, once all that was written is applied."""
    until(lambda: refusal(ledger) == "")
    out = io.StringIO()
    ledger.export(out)
    return out.getvalue()


def test_approved_plans_move_with_the_ledger(fresh_home: Any, tmp_path: Path) -> None:
    """Exported and imported, a plan is still approved by the same person, and can be carried out on that word."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path) as world:
        refunds = Refunds(world)
        refunds.done("a")
        plan = refunds.plan("a")
        ledger.approve_plan(plan, by="ann", evidence="looked")
        text = exported(ledger)
        url = f"sqlite://{tmp_path}/moved.db"
        Ledger.import_(url, io.StringIO(text))
        with Ledger.open(url) as moved:
            [progress] = moved.plans(world.agent)
            assert (progress.plan, progress.approval.by, progress.done) == (plan, "ann", False)
            register(moved, tmp_path, refunds.action)
            moved.compensate(plan)
            assert moved.plans(world.agent)[0].done
        assert refunds.account.balance == 0


@pytest.mark.slow
def test_no_ledger_is_moved_in_the_middle_of_an_undo(fresh_home: Any, tmp_path: Path) -> None:
    """The export is refused and names the operation; once the plan has ended it is given."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path) as world:
        refunds = Refunds(world)
        refunds.done("a")
        plan = refunds.plan("a")
        refunds.undoer(plan, die="after COMPENSATING").dies()
        world.status(refunds.op_id("a"), Status.COMPENSATING)
        until(lambda: "not settled: effects" not in refusal(ledger) and "not settled: agents" not in refusal(ledger))
        out = io.StringIO()
        with pytest.raises(StaleProjectionError, match=f"being undone: {refunds.op_id('a')}"):
            ledger.export(out)
        assert out.getvalue() == ""
        refunds.register()
        ledger.compensate(plan)
        assert exported(ledger)
