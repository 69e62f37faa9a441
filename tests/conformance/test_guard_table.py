"""The guard's table, row by row, under both policies: the verdict, the typed reasons, and what a preview says of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, until

from fencepost.ledger import (
    AgentSession,
    AsyncAgentSession,
    AsyncLedger,
    EffectClass,
    Ledger,
    Policy,
    ReasonKind,
    UnsafeRollbackError,
    Verdict,
    VerdictKind,
    WayOn,
)
from fencepost.ledger.operations import Status
from fencepost.ledger.undo import UndoPath

if TYPE_CHECKING:
    from collections.abc import Iterator

Work = Callable[[World, AgentSession], None]
IRREVERSIBLE, IDEMPOTENT = EffectClass.IRREVERSIBLE, EffectClass.IDEMPOTENT
PATH = UndoPath(action="unbook", pre_state_hash="sha256:before")
PROCEED, GATED, REFUSE = VerdictKind.PROCEED, VerdictKind.PROCEED_GATED, VerdictKind.REFUSE
FIRST = VerdictKind.COMPENSATE_FIRST
R = ReasonKind


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


def done(world: World, session: AgentSession, name: str, tool: str = "tool", **options: Any) -> str:
    """One effect, committed; its op_id."""
    attempt = session.attempt(tool, key=world.key(name), **{"kind": IRREVERSIBLE, **options}).begin()
    assert attempt.owned
    attempt.commit({"by": name})
    return attempt.op_id


def nothing(world: World, session: AgentSession) -> None:
    del world, session


def harmless(world: World, session: AgentSession) -> None:
    done(world, session, "read", kind=EffectClass.READ)
    done(world, session, "repeat", kind=EffectClass.REPEATABLE)
    done(world, session, "set", kind=IDEMPOTENT, order_safe=True)
    session.report_call("ls", kind=EffectClass.READ)


def irreversible(world: World, session: AgentSession) -> None:
    done(world, session, "a")


def order_dependent(world: World, session: AgentSession) -> None:
    done(world, session, "a", kind=IDEMPOTENT)


def unsealed(world: World, session: AgentSession) -> None:
    done(world, session, "a", kind=EffectClass.COMPENSATABLE, undo=PATH)


def sealed(world: World, session: AgentSession) -> None:
    attempt = session.attempt("tool", key=world.key("a"), kind=EffectClass.COMPENSATABLE, undo=PATH).begin()
    assert attempt.owned
    attempt.commit("booked", post_state_hash="sha256:after")


def sealed_and_not(world: World, session: AgentSession) -> None:
    sealed(world, session)
    done(world, session, "b")


def in_doubt(world: World, session: AgentSession) -> None:
    attempt = session.attempt("tool", key=world.key("a"), kind=IRREVERSIBLE).begin()
    assert attempt.owned
    attempt.doubt("no answer")
    world.status(attempt.op_id, Status.IN_DOUBT)


def owned(world: World, session: AgentSession) -> None:
    assert session.attempt("tool", key=world.key("a"), kind=IRREVERSIBLE).begin().owned


def owned_and_done(world: World, session: AgentSession) -> None:
    owned(world, session)
    world.status(done(world, session, "b"), Status.COMMITTED)


def failed(world: World, session: AgentSession) -> None:
    attempt = session.attempt("tool", key=world.key("a"), kind=IRREVERSIBLE).begin()
    attempt.fail("refused")
    world.status(attempt.op_id, Status.FREE)


def call_outside(world: World, session: AgentSession) -> None:
    session.report_call("shell", kind=IRREVERSIBLE)
    until(lambda: bool(world.ledger.preview_rollback(world.agent, checkpoint="c").reasons))


ROWS: list[tuple[Work, VerdictKind, set[ReasonKind], VerdictKind, set[ReasonKind]]] = [
    (nothing, PROCEED, set(), PROCEED, set()),
    (harmless, PROCEED, set(), PROCEED, set()),
    (failed, PROCEED, set(), PROCEED, set()),
    (irreversible, REFUSE, {R.EFFECT_NOT_KNOWN}, GATED, set()),
    (order_dependent, REFUSE, {R.EFFECT_ORDER_DEPENDENT}, GATED, set()),
    (unsealed, REFUSE, {R.EFFECT_NOT_KNOWN}, GATED, set()),
    (sealed, FIRST, set(), GATED, set()),
    (sealed_and_not, REFUSE, {R.EFFECT_NOT_KNOWN}, GATED, set()),
    (in_doubt, REFUSE, {R.EFFECT_IN_DOUBT}, REFUSE, {R.EFFECT_IN_DOUBT}),
    (owned, REFUSE, {R.EFFECT_OWNED}, REFUSE, {R.EFFECT_OWNED}),
    (owned_and_done, REFUSE, {R.EFFECT_OWNED}, REFUSE, {R.EFFECT_OWNED}),
    (call_outside, REFUSE, {R.CALL_OUTSIDE_LEDGER}, REFUSE, {R.CALL_OUTSIDE_LEDGER}),
]


def decided(world: World, ledger: Ledger, policy: Policy, **options: Any) -> Verdict:
    """The decision, which a preview must have told before; it fences only where it authorises or needs to look."""
    checkpoint, settled = options.pop("checkpoint", "c"), options.pop("settled", True)
    foresee = world.preview if settled else functools.partial(ledger.preview_rollback, world.agent)
    foreseen = foresee(checkpoint=checkpoint, policy=policy, **options)
    verdict = ledger.authorize_rollback(world.agent, checkpoint=checkpoint, policy=policy, **options)
    assert foreseen.kind is verdict.kind
    assert [r.kind for r in foreseen.reasons] == [r.kind for r in verdict.reasons]
    assert (foreseen.dry_run, foreseen.fenced) == (True, False)
    assert verdict.fenced is (verdict.kind is not REFUSE)
    return verdict


@pytest.mark.parametrize("row", ROWS, ids=[row[0].__name__ for row in ROWS])
@pytest.mark.parametrize("policy", list(Policy))
def test_row(world: World, ledger: Ledger, session: AgentSession, row: Any, policy: Policy) -> None:
    """Each row of the table: the verdict, why, and a refusal that names the ways on."""
    work, strict, why, gated, gated_why = row
    session.checkpoint("c")
    work(world, session)
    verdict = decided(world, ledger, policy, settled=R.EFFECT_OWNED not in why)
    wanted, reasons = (strict, why) if policy is Policy.STRICT else (gated, gated_why)
    assert verdict.kind is wanted
    assert {reason.kind for reason in verdict.reasons} == reasons
    if verdict.kind is REFUSE:
        assert {WayOn.REPLAY_FORWARD, WayOn.OPERATOR} <= set(verdict.ways_on)
        assert (WayOn.SETTLE in verdict.ways_on) is bool(reasons & {R.EFFECT_IN_DOUBT, R.EFFECT_OWNED})
        assert (WayOn.COMPENSATE in verdict.ways_on) is bool(reasons & {R.EFFECT_NOT_KNOWN, R.EFFECT_ORDER_DEPENDENT})
        with pytest.raises(UnsafeRollbackError):
            verdict.raise_for_refusal()


def test_each_effect_in_the_way_is_named(world: World, ledger: Ledger, session: AgentSession) -> None:
    """By op id, tool, sequence number, class, and status; in the order in which they were done."""
    session.checkpoint("c")
    names = [done(world, session, name, tool) for name, tool in (("x", "mail.send"), ("y", "shop.order"))]
    verdict = decided(world, ledger, Policy.STRICT)
    effects = [reason.effect for reason in verdict.reasons]
    assert [effect and effect.op_id for effect in effects] == names
    for effect, reason in zip(effects, verdict.reasons, strict=True):
        assert effect is not None
        assert (effect.effect_class, effect.status, effect.branch_id) == (IRREVERSIBLE, "committed", "main")
        told = (effect.op_id, effect.tool, f"sequence {effect.seq}", "IRREVERSIBLE", "committed")
        assert all(part in reason.text for part in told)
    assert 0 < effects[0].seq < effects[1].seq  # type: ignore[union-attr]


def test_latest_is_what_the_ledger_says(world: World, ledger: Ledger, session: AgentSession) -> None:
    """The latest checkpoint is refused like any other if an effect came after it, and nobody can claim that it is the latest."""
    session.checkpoint("early")
    done(world, session, "between")
    session.checkpoint("latest")
    assert world.preview("latest").kind is PROCEED
    assert world.preview("early").kind is REFUSE
    done(world, session, "after")
    assert decided(world, ledger, Policy.STRICT, checkpoint="latest").kind is REFUSE
    faces: list[Any] = [
        ledger.authorize_rollback,
        AsyncLedger.authorize_rollback,
        AgentSession.rollback,
        AsyncAgentSession.rollback,
    ]
    for face in faces:
        assert not {name for name in inspect.signature(face).parameters if "latest" in name or "force" in name}


def test_order_on_one_resource(world: World, ledger: Ledger, session: AgentSession) -> None:
    """set(A), then set(B), on one resource: a repeat of the first would come over the second, which is named."""
    session.checkpoint("c")
    first = done(world, session, "A", kind=IDEMPOTENT, resource="flag:7")
    second = done(world, session, "B", kind=IDEMPOTENT, resource="flag:7")
    elsewhere = done(world, session, "C", kind=IDEMPOTENT, resource="flag:8")
    texts = {r.effect.op_id: r.text for r in decided(world, ledger, Policy.STRICT).reasons if r.effect}
    assert "on flag:7" in texts[first]
    assert f"over {second}" in texts[first]
    assert elsewhere not in texts[first]
    assert first not in texts[second].removeprefix(second)
    assert "late" in texts[elsewhere]


def test_declared_order_safe_on_one_resource(world: World, ledger: Ledger, session: AgentSession) -> None:
    """The same two, declared safe in any order, are gone back over."""
    session.checkpoint("c")
    for name in ("A", "B"):
        done(world, session, name, kind=IDEMPOTENT, order_safe=True, resource="flag:7")
    session.checkpoint("later")
    assert decided(world, ledger, Policy.STRICT).kind is PROCEED


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a summary that has lost the token", R.WATERMARK_UNREADABLE),
        ("a token that was mangled: [[fencepost:w1:dam", R.WATERMARK_UNREADABLE),
        ("another point: {other}", R.WATERMARK_MISMATCH),
        ("another ledger: {foreign}", R.WATERMARK_OF_ANOTHER_LEDGER),
        ("another agent: {stranger}", R.WATERMARK_OF_ANOTHER_LEDGER),
    ],
)
def test_watermark_rows(
    world: World, ledger: Ledger, session: AgentSession, *, policy: Policy, text: str, kind: ReasonKind
) -> None:
    """A restored state without its checkpoint's own intact token is refused under every policy, once an effect came after."""
    import dataclasses  # noqa: PLC0415 (only here)

    mark = session.checkpoint("c")
    done(world, session, "a")
    other = session.checkpoint("other")
    restored = text.format(
        other=other.token,
        foreign=dataclasses.replace(mark, ledger_id="another").token,
        stranger=dataclasses.replace(mark, agent_id="stranger").token,
    )
    verdict = decided(world, ledger, policy, restored=restored)
    assert verdict.kind is REFUSE
    assert kind in {reason.kind for reason in verdict.reasons}
    own = decided(world, ledger, policy, restored=f"its own: {mark.token}")
    assert own.kind is (REFUSE if policy is Policy.STRICT else GATED)


@pytest.mark.parametrize("policy", list(Policy))
def test_checkpoint_that_nobody_registered(
    world: World, ledger: Ledger, session: AgentSession, *, policy: Policy
) -> None:
    """Nothing is known to it: refused with every effect named, and free while there is none."""
    assert world.preview("never", policy=policy).kind is PROCEED
    name = done(world, session, "a")
    verdict = decided(world, ledger, policy, checkpoint="never")
    assert verdict.kind is REFUSE
    assert verdict.reasons[0].kind is R.CHECKPOINT_NOT_REGISTERED
    assert [r.effect.op_id for r in verdict.reasons if r.effect] == [name]


def test_preview_tells_what_a_replay_would_do(world: World, session: AgentSession) -> None:
    """What fires again, what is absorbed, what can be compensated (a sealed manifest decides), what cannot be undone."""
    session.report_call("before", kind=IRREVERSIBLE)
    done(world, session, "known")
    session.checkpoint("c")
    sealed(world, session)
    names = {
        "sealed": world.op_id("a", "tool"),
        "unsealed": done(world, session, "u", kind=EffectClass.COMPENSATABLE, undo=PATH),
        "mail": done(world, session, "m"),
        "again": done(world, session, "r", kind=EffectClass.REPEATABLE),
    }
    session.report_call("shell", kind=IRREVERSIBLE)
    session.report_call("ls", kind=EffectClass.READ)
    session.checkpoint("drained")
    until(lambda: set(world.preview("c").outlook) >= set(names.values()))
    outlook = dict(world.preview("c").outlook)
    told = {name: outlook.pop(op_id) for name, op_id in names.items()}
    assert "absorbed" in told["sealed"]
    assert "can be compensated" in told["sealed"]
    assert "cannot be undone" in told["unsealed"]
    assert "cannot be undone" in told["mail"]
    assert "undone" not in told["again"]
    calls = {name.rpartition("(")[2].rstrip(")"): text for name, text in outlook.items()}
    assert set(calls) == {"shell", "ls"}  # neither what the checkpoint knows nor anything else
    assert "no op id" in calls["shell"]
    assert "no harm" in calls["ls"]


def test_an_acknowledged_call_is_no_reason(world: World, ledger: Ledger, session: AgentSession) -> None:
    """Reported after the checkpoint it forbids going back, until an operator acknowledges exactly that call."""
    session.checkpoint("c")
    for _ in range(2):
        session.report_call("shell", kind=IRREVERSIBLE)
    until(lambda: len(world.preview("c").reasons) == 2)
    first, second = (one.call for one in ledger.reported_calls(world.agent))
    ledger.acknowledge_call(world.agent, first.session_id, first.seq, by="ann", evidence="called back")
    [reason] = world.preview("c").reasons
    assert (reason.kind, reason.effect and reason.effect.seq) == (R.CALL_OUTSIDE_LEDGER, second.seq)
    ledger.acknowledge_call(world.agent, second.session_id, second.seq, by="ann", evidence="called back")
    assert world.preview("c").kind is PROCEED


def test_who_asked_and_why(world: World, ledger: Ledger, session: AgentSession) -> None:
    """The word of a person stands in the request and in the decision, refused or not, and in what is reported."""
    session.report_call("shell", kind=EffectClass.READ, by="bob", evidence="saw it in the shell's history")
    session.checkpoint("c")
    successor = session.rollback("c", by="ann", evidence="the consistency check failed")
    done(world, successor, "a")
    refused = ledger.authorize_rollback(world.agent, checkpoint="c", by="cid", evidence="again")
    assert (refused.kind, refused.by, refused.evidence) == (REFUSE, "cid", "again")
    verdict = ledger.authorize_rollback(
        world.agent, checkpoint="c", policy="gated", by="dee", evidence="op ids are stable"
    )
    assert (verdict.by, verdict.to_dict()["evidence"]) == ("dee", "op ids are stable")
    rollbacks = list(ledger.agent(world.agent).agent.rollbacks.values())
    assert [(r.fact.by, r.fact.evidence) for r in rollbacks] == [
        ("ann", "the consistency check failed"),
        ("dee", "op ids are stable"),
    ]
    assert [r.decision and r.decision.by for r in rollbacks] == ["ann", "dee"]
    [call] = ledger.submit(ledger._engine.view.calls(world.agent)).result()
    assert (call.by, call.evidence) == ("bob", "saw it in the shell's history")
