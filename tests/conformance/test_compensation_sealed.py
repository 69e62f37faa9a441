"""What is sealed with an effect, before it and after it, and what an approval is bound to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conformance.refunding import Refunds
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    ManifestError,
    NotFoundError,
    Outcome,
    ProbeAnswer,
    RefusedError,
    Undo,
    UndoPath,
    VerdictKind,
)
from fencepost.ledger.operations import Status

# -- J: landed, and never confirmed --------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["operator", "probe"])
def test_j_undone_once_it_is_resolved(refunds: Refunds, world: World, ledger: Ledger, how: str) -> None:
    """J: the effect landed and its process died; once it is resolved, with the state after it, it is undone like any other."""
    worker = world.worker(
        {"do": "checkpoint", "id": "c"},
        {
            "do": "refund",
            "order": "a",
            "account": world.key("account"),
            "action": refunds.action,
            "die": "after effect",
        },
    )
    worker.dies()
    assert refunds.account.balance == 1
    refunds.register()
    with pytest.raises(ManifestError, match="not known yet"):
        ledger.plan_compensation([refunds.op_id("a")])
    version = refunds.operation("a").version
    if how == "operator":
        ledger.resolve(
            refunds.op_id("a"), outcome="committed", version=version, by="ann", evidence="seen",
            post_state_hash=refunds.account.hash,
        )  # fmt: skip
    else:
        ledger.session(world.agent).open().close()  # the dead session is over: its operation is in doubt
        ledger.probe("billing.refund")(lambda _: ProbeAnswer(Outcome.COMMITTED, post_state_hash=refunds.account.hash))
        ledger.run_probe(refunds.op_id("a"))
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST
    assert verdict.plan is not None
    ledger.compensate(verdict.plan, approved_by="alice")
    assert (refunds.account.balance, refunds.operation("a").round) == (0, 2)


def test_a_resolution_seals_only_what_its_intent_tells(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """C6: a hash for an effect that never said how it is undone, or for one that did not happen, is a mistake."""
    with (
        ledger.session(world.agent) as session,
        session.attempt("mail.send", key=world.key("m"), kind=EffectClass.IRREVERSIBLE) as plain,
    ):
        assert plain.owned
        plain.doubt()
    op_id = world.op_id("m", "mail.send")
    said: dict[str, Any] = {"version": world.status(op_id, Status.IN_DOUBT).version, "by": "ann", "evidence": "e"}
    for values in (
        {"outcome": "committed", "post_state_hash": "h"},
        {"outcome": "absent", "post_state_hash": "h", "accept_risk": True},
        {"outcome": "committed", "payload": {"id": 1}},
    ):
        with pytest.raises(InvalidArgumentError, match=r"post_state_hash|payload"):
            ledger.resolve(op_id, **said, **values)
    assert ledger.operation(op_id).operation.status is Status.IN_DOUBT


@pytest.mark.parametrize("how", ["by a word without it", "by its own commit"])
def test_what_was_committed_unsealed_is_sealed_later(refunds: Refunds, world: World, ledger: Ledger, how: str) -> None:
    """C6: its intent tells how it is undone, and a person what it left behind; the result stays, and nothing is sealed twice."""
    path = UndoPath(action=refunds.action, pre_state_hash="before", payload={"id": 1})
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        options: dict[str, Any] = {"kind": EffectClass.COMPENSATABLE, "undo": path}
        with session.attempt("billing.refund", key=world.key("a"), **options) as attempt:
            assert attempt.owned
            if how == "by its own commit":
                attempt.commit({"id": 7})
            else:
                attempt.doubt()
    op_id = refunds.op_id("a")
    who: dict[str, Any] = {"by": "ann", "evidence": "seen in the books"}
    if how == "by a word without it":
        version = world.status(op_id, Status.IN_DOUBT).version
        ledger.resolve(op_id, outcome="committed", version=version, result={"id": 7}, **who)
    before = world.status(op_id, Status.COMMITTED)
    assert before.sealable
    with pytest.raises(ManifestError, match="no sealed manifest") as caught:
        ledger.plan_compensation([op_id])
    assert "--post-state-hash" in caught.value.next_step
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "outcome"),
        ({"post_state_hash": "after", "result": {"id": 8}}, "result"),
    ]
    for bad, field in refused:
        with pytest.raises(InvalidArgumentError) as wrong:
            ledger.resolve(op_id, outcome="committed", version=before.version, **who, **bad)
        assert wrong.value.field == field
    told = ledger.resolve(op_id, outcome="committed", version=before.version, post_state_hash="after", **who)
    assert (told.status, told.result, told.sealable) == (Status.COMMITTED, before.result, False)
    assert told.version != before.version
    with pytest.raises(InvalidArgumentError, match="does not apply"):
        ledger.resolve(op_id, outcome="committed", version=told.version, post_state_hash="other", **who)

    @ledger.compensator(refunds.action, state_hash=lambda _: "after")
    def undo(op: Any, payload: Any, idempotency_key: str) -> None:
        del op, payload, idempotency_key

    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST
    assert verdict.plan is not None
    ledger.compensate(verdict.plan, approved_by="alice")
    assert refunds.operation("a").round == 2


# -- sealing -------------------------------------------------------------------------------


def test_what_cannot_be_read_before_is_not_run(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """C2: without the state before, a payload, or with a cascade that is not covered, nothing is claimed and nothing runs."""
    ran: list[str] = []
    with ledger.session(world.agent) as session:

        def do(name: str, undo: Undo) -> None:
            @session.effect(
                "t", kind=EffectClass.COMPENSATABLE, key=lambda order: order, cascades=("crm:{order}",), undo=undo
            )
            def run(order: str) -> None:
                ran.append(order)

            run(world.key(name))

        def broken(**_: Any) -> str:
            raise OSError("away")

        good: dict[str, Any] = {"action": "x", "state_hash": lambda **_: "h", "covers": ("crm:{order}",)}
        wrong: list[dict[str, Any]] = [
            {"state_hash": broken}, {"payload": broken}, {"covers": ()}, {"state_hash": lambda **_: ""}, {"snapshot_of": "db"},
        ]  # fmt: skip
        for number, values in enumerate(wrong):
            with pytest.raises(ManifestError):
                do(f"w{number}", Undo(**{**good, **values}))
            with pytest.raises(NotFoundError):
                ledger.operation(world.op_id(f"w{number}", "t"))
        assert ran == []
        do("w0", Undo(**good))
        assert len(ran) == 1


def test_a_commit_that_cannot_be_sealed_is_recorded_all_the_same(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """The result is there; nobody undoes it by a plan, and the guard says why."""
    states = iter(["before"])
    with ledger.session(world.agent) as session:
        session.checkpoint("c")

        @session.effect(
            "t", kind=EffectClass.COMPENSATABLE, key=lambda order: order,
            undo=Undo(action=refunds.action, state_hash=lambda **_: next(states)),
        )  # fmt: skip
        def run(order: str) -> str:
            return order

        assert run(world.key("a")) == world.key("a")
        assert run(world.key("a")) == world.key("a")
        with session.attempt(
            "u", key=world.key("b"), kind=EffectClass.COMPENSATABLE, undo=UndoPath(action="x", pre_state_hash="h")
        ) as attempt:
            assert attempt.owned
            attempt.commit({"id": 1})
    for op_id in (world.op_id("a", "t"), world.op_id("b", "u")):
        operation = world.status(op_id, Status.COMMITTED)
        assert operation.settled is not None
        assert operation.settled.reason.startswith("not sealed")
        assert operation.sealed_manifest is None
        with pytest.raises(ManifestError, match="not sealed"):
            ledger.plan_compensation([op_id])
    verdict = ledger.preview_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.REFUSE
    assert [effect.why != "" for effect in ledger.standing_effects(world.agent)] == [True, True]


def test_the_state_is_read_only_when_the_effect_is_to_run(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """The recorded result comes back although the state cannot be read any more."""
    readable = [True]

    def state_hash(**_: Any) -> str:
        assert readable[0]
        return "h"

    with ledger.session(world.agent) as session:

        @session.effect(
            "t", kind=EffectClass.COMPENSATABLE, key=lambda order: order,
            undo=Undo(action="x", state_hash=state_hash, payload_after=lambda result, **_: {"id": result}),
        )  # fmt: skip
        def run(order: str) -> str:
            return f"done {order}"

        first = run(world.key("a"))
        readable[0] = False
        assert run(world.key("a")) == first
    [step] = ledger.plan_compensation([world.op_id("a", "t")]).steps
    assert step.manifest.action.payload == {"id": first}


def test_a_manifest_beyond_its_limit_is_refused_before_anything_runs(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """The room for it is reserved; a payload that large goes by reference."""
    path = UndoPath(action="x", pre_state_hash="h", payload="x" * 40_000)
    with ledger.session(world.agent) as session, pytest.raises(ValueError, match="max_manifest_bytes"):
        session.attempt("t", key=world.key("a"), kind=EffectClass.COMPENSATABLE, undo=path).begin()
    with pytest.raises(NotFoundError):
        ledger.operation(world.op_id("a", "t"))


# -- approval ------------------------------------------------------------------------------


def test_an_approval_is_bound_to_exactly_this_plan(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """Nobody carries out what nobody approved, nor another plan on the strength of an approval of this one."""
    calls = refunds.register()
    refunds.done("a", "b")
    plan = refunds.plan("a", "b")
    with pytest.raises(InvalidArgumentError, match="approved_by"):
        ledger.compensate(plan)
    approval = ledger.approve_plan(plan, by="alice", evidence="ticket")
    assert ledger.approve_plan(plan, by="bob").by == "alice"
    assert (approval.plan, [p.approval for p in ledger.plans(world.agent)]) == (plan, [approval])
    for other in (replace(plan, checkpoint_id="c"), replace(plan, steps=plan.steps[:1])):
        with pytest.raises(InvalidArgumentError, match="approved_by"):
            ledger.compensate(other)
    with pytest.raises(ManifestError, match="order"):
        ledger.compensate(replace(plan, steps=plan.steps[::-1]), approved_by="mallory")
    assert calls == []
    assert refunds.operation("a").status is Status.COMMITTED


def test_another_payload_is_not_what_was_sealed(refunds: Refunds, ledger: Ledger) -> None:
    """A step whose manifest is not the one in the effect's own commit is refused, even if somebody approves it."""
    calls = refunds.register()
    refunds.done("a")
    plan = refunds.plan("a")
    [step] = plan.steps
    action = replace(step.manifest.action, payload={**step.manifest.action.payload, "cents": 1000})
    forged = replace(plan, steps=(replace(step, manifest=replace(step.manifest, action=action)),))
    for attempt in (
        lambda: ledger.compensate(forged, approved_by="mallory"),
        lambda: ledger.approve_plan(forged, by="mallory"),
        lambda: ledger.verify_plan(forged),
    ):
        with pytest.raises(ManifestError, match="sealed"):
            attempt()
    assert (calls, refunds.account.balance) == ([], 1)


def test_a_plan_of_another_ledger_or_of_nothing(refunds: Refunds, ledger: Ledger) -> None:
    """Neither is carried out."""
    refunds.register()
    refunds.done("a")
    plan = refunds.plan("a")
    with pytest.raises(RefusedError, match="ledger"):
        ledger.compensate(replace(plan, ledger_id="another"), approved_by="alice")
    nothing: Any
    for nothing in (replace(plan, steps=()), plan.to_dict(), None):
        with pytest.raises(InvalidArgumentError, match="plan"):
            ledger.compensate(nothing, approved_by="alice")


def test_an_unregistered_compensator_is_named_before_anything_begins(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """Nothing is approved, nothing is claimed."""
    refunds.done("a")
    plan = refunds.plan("a")
    with pytest.raises(NotFoundError, match=refunds.action):
        ledger.compensate(plan, approved_by="alice")
    assert ledger.plans(world.agent) == []
    assert refunds.operation("a").undoings == []


def test_what_can_be_planned(refunds: Refunds, world: World, ledger: Ledger) -> None:
    """Operations of one agent, or what a checkpoint does not know; and never both."""
    refunds.done("a")
    other = f"other-{world.agent}"
    with ledger.session(other) as session:
        refunds.do(session, "b")
    refunds.plan("b")
    with pytest.raises(InvalidArgumentError, match="each agent"):
        refunds.plan("a", "b")
    with pytest.raises(NotFoundError):
        ledger.plan_compensation(["billing.refund:nothing"])
    wrong: Any
    for wrong in (
        {},
        {"op_ids": "text"},
        {"op_ids": ["x:1"], "checkpoint": "c"},
        {"agent": world.agent},
        {"checkpoint": "c"},
    ):
        with pytest.raises(InvalidArgumentError, match="op_ids"):
            ledger.plan_compensation(**wrong)
    by_checkpoint = ledger.plan_compensation(agent=world.agent, checkpoint="c")
    assert [s.op_id for s in by_checkpoint.steps] == [refunds.op_id("a")]
    assert (by_checkpoint.cause, by_checkpoint.checkpoint_id) == ("operation", "c")
    with pytest.raises(NotFoundError):
        ledger.plans("nobody-at-all")
