"""Typed uses of the public face. Nothing here runs: mypy reads it, strictly, as a user's program.

An unneeded `type: ignore` is an error there, so each one below says that a wrong use is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from fencepost.ledger import (
    AgentSession,
    AgentWatermark,
    Approval,
    AsyncAgentSession,
    AsyncAttempt,
    AsyncLedger,
    Attempt,
    BranchEffect,
    Checkpoint,
    Compaction,
    CompensationReport,
    Dropped,
    EffectClass,
    EffectNotExecuted,
    FencepostError,
    HeldAttempt,
    Ledger,
    Limits,
    ObligationKind,
    OpenObligation,
    OpenOperation,
    Operation,
    OperationInDoubtError,
    Outcome,
    Plan,
    PlanProgress,
    Policy,
    ProbeAnswer,
    PruneKind,
    PruneVerdict,
    ReasonKind,
    Reconcile,
    ReplayedOperation,
    ReportedCall,
    Resume,
    SpeculationReport,
    SpeculationRow,
    SpeculativeRollbackViolation,
    StandingEffect,
    StateMoved,
    SummaryReconciliationError,
    Undo,
    UndoneEffect,
    UndoPath,
    UnsafeRollbackError,
    Verdict,
    VerdictKind,
    Watermark,
    WayOn,
)
from fencepost.ledger.view import OperationView


@dataclass
class Receipt:
    number: int


def decorated(agent: AgentSession) -> None:
    """A decorated function keeps its parameters and its result."""

    @agent.effect(
        "billing.refund", kind=EffectClass.IRREVERSIBLE, identity=("order", "cents"), content=("note",),
        resource="order:{order}", cascades=("crm:{order}",), not_executed=(ConnectionRefusedError,),
    )  # fmt: skip
    def refund(order: str, cents: int, note: str = "") -> Receipt:
        assert_type(agent.current.idempotency_key, str)
        assert_type(agent.current.round, int)
        raise EffectNotExecuted(order, cents, note)

    assert_type(refund("A1", 500), Receipt)
    assert_type(refund("A1", cents=500, note="late"), Receipt)
    assert_type(refund.occurrence(2)("A1", 500), Receipt)
    assert_type(refund.op_id("A1", 500), str)
    refund("A1")  # type: ignore[call-arg]
    refund("A1", "500")  # type: ignore[arg-type]
    refund("A1", 500, reason="late")  # type: ignore[call-arg]
    refund.op_id(1, 2)  # type: ignore[arg-type]
    refund.occurrence(2)("A1", note=3)  # type: ignore[call-arg,arg-type]


async def decorated_coroutine(agent: AsyncAgentSession) -> None:
    """So does a coroutine function: it is awaited as before."""

    @agent.effect("mail.send", kind=EffectClass.IRREVERSIBLE, key=lambda to, **_: str(to))
    async def send(to: str, *, text: str) -> Receipt:
        return Receipt(len(to + text))

    assert_type(await send("ann", text="hello"), Receipt)
    await send("ann")  # type: ignore[call-arg]
    await send(5, text="hello")  # type: ignore[arg-type]
    _ = send("ann", text="hello").number  # type: ignore[attr-defined]


def attempts(agent: AgentSession) -> None:
    """The context manager and the plain calls."""
    with agent.attempt("mail.send", key="welcome:17", kind=EffectClass.IRREVERSIBLE, deadline_s=5.0) as attempt:
        assert_type(attempt, Attempt)
        if attempt.owned:
            attempt.commit({"id": 1}, reference="s3://bucket/mail")
    assert_type(attempt.op_id, str)
    assert_type(attempt.round, int)
    plain = agent.attempt("mail.send", kind=EffectClass.IRREVERSIBLE, identity={"to": "ann"}, occurrence=2).begin()
    assert_type(plain, Attempt)
    plain.fail("no stamp")
    plain.fail("refused", key_voided=True)
    plain.doubt("no answer")
    agent.attempt("mail.send", key="k")  # type: ignore[call-arg]
    agent.attempt("mail.send", key=5, kind=EffectClass.READ)  # type: ignore[arg-type]


def decisions_of_people(ledger: Ledger, agent: AgentSession) -> None:
    """Who decides, and how they know; what is held until somebody has declared it; secrets."""
    verdict = ledger.authorize_rollback("nightly", checkpoint="c", policy="gated", by="ann", evidence="check failed")
    assert_type(verdict.by, str)
    held = ledger.held("nightly")
    assert_type(held, list[HeldAttempt])
    assert_type(held[0].candidates, tuple[str, ...])
    ledger.declare("nightly", held[0].op_id, by="ann", evidence="another order")
    ledger.declare("nightly", held[0].op_id, same_as="op", by="ann", evidence="the same order")
    agent.declare_new("op", by="ann", evidence="seen")
    agent.declare_same("op", as_="other")
    agent.report_call("shell", kind=EffectClass.READ, by="bob", evidence="its history")
    assert_type(ledger.operations("nightly", tool="mail.send", status="committed", limit=10), list[OperationView])
    assert_type(next(iter(ledger.each_operation(tool="mail.send"))), OperationView)

    @agent.effect("bank.pay", kind=EffectClass.IRREVERSIBLE, secret=("card",), stable_ids=("run_id",))
    def pay(run_id: str, card: str) -> int:
        return len(run_id + card)

    assert_type(pay("7", "4111"), int)
    ledger.declare("nightly", "op")  # type: ignore[call-arg]
    ledger.declare("nightly", "op", by="ann")  # type: ignore[call-arg]


def undoing(ledger: Ledger, agent: AgentSession) -> None:
    """How an effect is undone: declared, planned, approved, carried out."""

    @agent.effect(
        "billing.refund",
        kind=EffectClass.COMPENSATABLE,
        undo=Undo(action="billing.recharge", state_hash=str, irreversible=("mail:{order}",)),
    )
    def refund(order: str) -> int:
        return len(order)

    assert_type(refund("A1"), int)
    path = UndoPath(action="billing.recharge", pre_state_hash="h", payload={"order": "A1"})
    with agent.attempt("billing.refund", key="A1", kind=EffectClass.COMPENSATABLE, undo=path) as attempt:
        attempt.commit({"id": 1}, post_state_hash="h", payload={"id": 1})

    @ledger.compensator("billing.recharge", state_hash=str, longest_run_s=5.0)
    def recharge(op: Operation, payload: dict[str, str], idempotency_key: str, expected_state_hash: str) -> str:
        raise StateMoved(op, payload, idempotency_key, expected_state_hash)

    plan = ledger.plan_compensation([refund.op_id("A1")])
    assert_type(plan, Plan)
    assert_type(Plan.load(plan.to_dict()), Plan)
    assert_type(plan.losses, tuple[str, ...])
    assert_type(ledger.approve_plan(plan, by="ann", accept_losses=plan.losses), Approval)
    assert_type(ledger.compensate(plan, approved_by="ann"), CompensationReport)
    assert_type(ledger.plans("nightly"), list[PlanProgress])
    assert_type(ledger.standing_effects(), list[StandingEffect])
    ledger.resolve("op", outcome="committed", version="0.1", by="ann", evidence="seen", post_state_hash="h")
    Undo(action="billing.recharge")  # type: ignore[call-arg]
    ledger.compensator("billing.recharge")(recharge)  # type: ignore[call-arg]
    agent.effect("t", kind=EffectClass.COMPENSATABLE, undo=path)  # type: ignore[arg-type]
    ledger.approve_plan(plan)  # type: ignore[call-arg]


async def undoing_awaited(ledger: AsyncLedger) -> None:
    """The same, awaited."""

    @ledger.compensator("billing.recharge", state_hash=str)
    async def recharge(op: Operation, payload: object, idempotency_key: str) -> None:
        del op, payload, idempotency_key

    plan = await ledger.plan_compensation(agent="nightly", checkpoint="c")
    assert_type(await ledger.verify_plan(plan), dict[str, str])
    assert_type(await ledger.compensate(plan, approved_by="ann"), CompensationReport)


def checkpoints(ledger: Ledger, agent: AgentSession) -> None:
    """Checkpoints, rollbacks, and what they say."""
    mark = agent.checkpoint("c", state_digest="sha256:1", generation=1)
    assert_type(mark, Watermark)
    assert_type(mark.token, str)
    assert_type(Watermark.find("text"), Watermark | None)
    verdict = ledger.authorize_rollback("nightly", checkpoint="c", policy=Policy.GATED, restored=mark.token)
    assert_type(verdict, Verdict)
    assert_type(verdict.kind, VerdictKind)
    assert_type(verdict.ways_on, tuple[WayOn, ...])
    assert_type([reason.kind for reason in verdict.reasons], list[ReasonKind])
    assert_type(verdict.raise_for_refusal(), Verdict)
    assert_type(ledger.preview_rollback("nightly", checkpoint="c", policy="gated").age_s, float)
    try:
        successor = agent.rollback("c")
    except UnsafeRollbackError as refused:
        print_nothing(refused.message, refused.verdict)
    else:
        assert_type(successor, AgentSession)
        successor.declare_new("op")
        successor.declare_same("op", as_="other")
        successor.report_call("shell", kind=EffectClass.IRREVERSIBLE)
    ledger.authorize_rollback("nightly", "c")  # type: ignore[call-arg]


def contexts(ledger: Ledger, agent: AgentSession) -> None:
    """Compactions, and whether a restored context is whole."""
    compaction = agent.record_compaction(
        generation=7,
        dropped=["call_1", ("doc:1", "its text"), Dropped("doc:2", "0" * 64)],
        summary=agent.watermark().token,
    )
    assert_type(compaction, Compaction)
    assert_type(compaction.dropped, tuple[Dropped, ...])
    assert_type(ledger.compactions("nightly"), list[Compaction])
    assert_type(ledger.latest_checkpoint("nightly"), Checkpoint | None)
    answer = ledger.resume(
        "nightly", checkpoint="c", summary_generation=7, depends_on=["op", ("doc:1", "0" * 64)], summary="text",
        held={"doc:1": b"its text"}, resolve=lambda reference: None if reference else "text",
    )  # fmt: skip
    assert_type(answer, Resume | Reconcile)
    if isinstance(answer, Reconcile):
        assert_type([effect.op_id for effect in answer.effects], list[str])
        assert_type(list(answer.missing), list[str])
        assert_type(answer.raise_for_missing(), Reconcile)
        assert_type(answer.undone, tuple[UndoneEffect, ...])
        assert_type(answer.calls, tuple[ReportedCall, ...])
    try:
        ledger.reconcile("nightly", checkpoint="c", summary_generation=7)
    except SummaryReconciliationError as error:
        print_nothing(error.missing, error.recovered)
    agent.record_compaction(dropped=[5], summary="text")  # type: ignore[list-item]
    agent.record_compaction()  # type: ignore[call-arg]
    ledger.resume("nightly", checkpoint="c")  # type: ignore[call-arg]
    ledger.resume("nightly", checkpoint="c", summary_generation=1, resolve=len)  # type: ignore[arg-type]


def print_nothing(*_: object) -> None:
    """Takes anything."""


def questions(ledger: Ledger) -> None:
    """What can be asked."""
    assert_type(ledger.agents(), list[str])
    assert_type(ledger.watermark("nightly"), AgentWatermark)
    assert_type(ledger.watermark("nightly").mark, Watermark)
    assert_type(ledger.replay_forward("nightly", since="c"), list[ReplayedOperation])
    assert_type(ledger.in_doubt(), list[OpenOperation])

    @ledger.probe("billing.refund")
    def probe(operation: object) -> ProbeAnswer:
        return ProbeAnswer(Outcome.COMMITTED, result=str(operation), evidence="found")

    assert_type(probe("op"), ProbeAnswer)
    ledger.resolve("op", outcome="absent", version="0.1", by="ann", evidence="asked", accept_risk=True)
    ledger.resolve("op", outcome="absent", by="ann", evidence="asked")  # type: ignore[call-arg]

    @ledger.probe("billing.refund")  # type: ignore[type-var]
    def wrong(number: int) -> int:
        return number


def branches(ledger: Ledger, agent: AgentSession) -> None:
    """Forks, prunes, and what they leave behind."""
    branch = agent.fork("plan-b", checkpoint="c")
    assert_type(branch, AgentSession)
    with branch:
        assert_type(branch.session_id, str)
    verdict = agent.prune("plan-b", by="ann", evidence="validation failed")
    assert_type(verdict, PruneVerdict)
    assert_type(verdict.kind, PruneKind)
    assert_type(verdict.restored, bool)
    assert_type(verdict.orphans, tuple[BranchEffect, ...])
    assert_type(ledger.prune_branch("nightly", "plan-b").raise_for_violation(), PruneVerdict)
    assert_type(ledger.obligations(), list[OpenObligation])
    assert_type([o.kind for o in ledger.obligations("nightly")], list[ObligationKind])
    ledger.adopt("op", agent="nightly", branch="main", by="ann", evidence="seen", version="0.1")
    ledger.adopt("op", agent="nightly", branch="main", by="ann", evidence="seen")  # type: ignore[call-arg]
    ledger.release_adoption("op", by="ann", evidence="seen", version="0.1")
    ledger.acknowledge_call("nightly", "session", 4, by="ann", evidence="seen")
    ledger.acknowledge_call("nightly", "session", 4, by="ann")  # type: ignore[call-arg]
    report = ledger.speculation_report()
    assert_type(report, SpeculationReport)
    assert_type(report.total, SpeculationRow)
    try:
        verdict.raise_for_violation()
    except SpeculativeRollbackViolation as violation:
        print_nothing(violation.orphans, violation.violations)


async def branches_awaited(ledger: AsyncLedger, agent: AsyncAgentSession) -> None:
    """The same, awaited."""
    async with await agent.fork("plan-b", checkpoint="c") as branch:
        assert_type(branch, AsyncAgentSession)
    assert_type(await agent.prune("plan-b"), PruneVerdict)
    assert_type(await ledger.prune_branch("nightly", "plan-b"), PruneVerdict)
    assert_type(await ledger.obligations("nightly"), list[OpenObligation])
    assert_type(await ledger.speculation_report("nightly"), SpeculationReport)


def opening() -> None:
    """A ledger and a session, opened by `with`."""
    with Ledger.open("sqlite:///tmp/ledger.db", limits=Limits(wait_s=1.0)) as ledger:
        assert_type(ledger, Ledger)
        with ledger.session("nightly", "main", resumed_from=None, scope="run-7") as agent:
            assert_type(agent, AgentSession)
        ledger.fork("nightly", "b", checkpoint="c")
    Ledger.open(limits=Limits(wait=1.0))  # type: ignore[call-arg]


async def asynchronous() -> None:
    """The same, awaited."""
    async with AsyncLedger.open() as ledger, ledger.session("nightly") as agent:
        assert_type(ledger, AsyncLedger)
        assert_type(agent, AsyncAgentSession)
        async with agent.attempt("mail.send", key="k", kind=EffectClass.IRREVERSIBLE) as attempt:
            assert_type(attempt, AsyncAttempt)
            if attempt.owned:
                await attempt.commit()
        assert_type(await agent.checkpoint("c"), Watermark)
        assert_type(await agent.record_compaction(summary=(await agent.watermark()).token), Compaction)
        assert_type(await ledger.resume("nightly", checkpoint="c", summary_generation=1), Resume | Reconcile)
        assert_type(await ledger.latest_checkpoint("nightly"), Checkpoint | None)
        assert_type(await agent.rollback("c"), AsyncAgentSession)
        assert_type(await ledger.authorize_rollback("nightly", checkpoint="c"), Verdict)
        assert_type(await ledger.in_doubt("nightly"), list[OpenOperation])
        ledger.agents().sort()  # type: ignore[attr-defined]


def errors() -> str:
    """Errors have fields, and families to catch."""
    try:
        opening()
    except OperationInDoubtError as doubt:
        return f"{doubt.op_id}: {doubt.next_step}"
    except FencepostError as error:
        assert_type(error.retryable, bool)
        return str(error.to_dict()["message"])
    return ""
