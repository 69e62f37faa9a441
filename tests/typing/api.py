"""Typed uses of the public face. Nothing here runs: mypy reads it, strictly, as a user's program.

An unneeded `type: ignore` is an error there, so each one below says that a wrong use is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from fencepost.ledger import (
    AgentSession,
    AgentWatermark,
    AsyncAgentSession,
    AsyncAttempt,
    AsyncLedger,
    Attempt,
    EffectClass,
    EffectNotExecuted,
    FencepostError,
    Ledger,
    Limits,
    OpenOperation,
    OperationInDoubtError,
    Outcome,
    Policy,
    ProbeAnswer,
    ReasonKind,
    ReplayedOperation,
    UnsafeRollbackError,
    Verdict,
    VerdictKind,
    Watermark,
    WayOn,
)


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
    plain.doubt("no answer")
    agent.attempt("mail.send", key="k")  # type: ignore[call-arg]
    agent.attempt("mail.send", key=5, kind=EffectClass.READ)  # type: ignore[arg-type]


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
