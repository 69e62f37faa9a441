"""The guard's decision: what proceeds, what is refused and why, and what a preview shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, charge, never_suggests_a_retry

from fencepost.ledger import (
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    Policy,
    ReasonKind,
    UndoPath,
    UnsafeRollbackError,
    VerdictKind,
    WayOn,
)
from fencepost.ledger.operations import Status
from fencepost.ledger.positions import Position, Topic
from fencepost.ledger.projection import fence_document, fence_epoch, read_history

if TYPE_CHECKING:
    from fencepost.ledger import AgentSession

HARMLESS: list[dict[str, Any]] = [
    {"kind": EffectClass.REPEATABLE},
    {"kind": EffectClass.READ},
    {"kind": EffectClass.IDEMPOTENT, "order_safe": True},
]


def do(session: AgentSession, tool: str, key: str, **options: Any) -> None:
    """One effect, committed."""
    options.setdefault("kind", EffectClass.IRREVERSIBLE)
    if options["kind"] is EffectClass.COMPENSATABLE:  # committed without a hash of the state after it: not sealed
        options["undo"] = UndoPath(action="undo", pre_state_hash="h")
    with session.attempt(tool, key=key, **options) as attempt:
        if attempt.owned:
            attempt.commit({"by": session.session_id})


def test_proceeds_when_no_effect_came_after(world: World, ledger: Ledger) -> None:
    """A rollback over nothing proceeds, is recorded, and fences the session that was there."""
    with ledger.session(world.agent) as session:
        do(session, "mail.send", world.key("before"))
        session.checkpoint("c")
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
        assert (verdict.kind, verdict.authorised, verdict.fenced) == (VerdictKind.PROCEED, True, True)
        assert verdict.reasons == ()
        assert verdict.raise_for_refusal() is verdict
        rollback = ledger.agent(world.agent).agent.rollbacks[verdict.rollback_id]
        assert rollback.authorised
        with pytest.raises(FencedError):
            do(session, "mail.send", world.key("after"))


def test_a_rollback_and_a_session_fence_in_every_partition(world: World, ledger: Ledger) -> None:
    """Whichever partition an operation belongs to, what is left behind claims nothing in it."""
    view = ledger._engine.view
    document = fence_document(world.agent, "main")

    def fences() -> set[Position | None]:
        snapshots = [ledger.submit(view.read(place, [document])).result(20) for place in view.partitions(Topic.EFFECTS)]
        return {fence_epoch(read_history(snapshot.documents.get(document))) for snapshot in snapshots}

    ledger.session(world.agent).open()
    with ledger.session(world.agent) as session:  # which takes over
        session.checkpoint("c")
        opened = fences()
    assert len(opened) == 1, "not everywhere the same"
    assert None not in opened
    assert ledger.authorize_rollback(world.agent, checkpoint="c").authorised
    fenced = fences()
    assert len(fenced) == 1, "not everywhere the same"
    assert fenced != opened


@pytest.mark.parametrize("options", HARMLESS)
def test_proceeds_over_harmless_effects(world: World, ledger: Ledger, options: dict[str, Any]) -> None:
    """Repeatable, read, and order-safe idempotent effects after a checkpoint do not stand in the way."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        do(session, "tool", world.key("harmless"), **options)
        session.checkpoint("later")
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.PROCEED


@pytest.mark.parametrize("kind", [EffectClass.IRREVERSIBLE, EffectClass.COMPENSATABLE, EffectClass.IDEMPOTENT])
def test_refuses_over_a_non_idempotent_effect(world: World, ledger: Ledger, kind: EffectClass) -> None:
    """STRICT refuses and names each effect in the way: op id, tool, sequence, class, status; nobody is fenced.

    An idempotent effect that is not order-safe counts as non-idempotent.
    """
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        do(session, "tool", world.key("one"), kind=kind)
        do(session, "tool", world.key("two"), kind=kind)
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
        assert (verdict.kind, verdict.fenced) == (VerdictKind.REFUSE, False)
        idempotent = kind is EffectClass.IDEMPOTENT  # a late repeat would come over what was done since
        beyond = ReasonKind.EFFECT_ORDER_DEPENDENT if idempotent else ReasonKind.EFFECT_NOT_KNOWN
        assert [r.kind for r in verdict.reasons] == [beyond] * 2
        first, second = (r.effect for r in verdict.reasons)
        assert first is not None
        assert second is not None
        assert first.op_id == world.op_id("one", "tool")
        assert (first.tool, first.effect_class, first.status) == ("tool", kind, "committed")
        assert 0 < first.seq < second.seq
        with pytest.raises(UnsafeRollbackError) as caught:
            verdict.raise_for_refusal()
        assert caught.value.verdict is verdict
        assert first.op_id in str(caught.value)
        do(session, "tool", world.key("three"), kind=kind)  # it was not fenced, and goes on


def test_latest_checkpoint_is_no_excuse(world: World, ledger: Ledger) -> None:
    """The latest checkpoint is refused like any other when an effect came after it, and allowed when none did."""
    with ledger.session(world.agent) as session:
        session.checkpoint("earlier")
        do(session, "mail.send", world.key("between"))
        session.checkpoint("latest")
        assert world.preview("latest").authorised
        assert not world.preview("earlier").authorised
        do(session, "mail.send", world.key("after"))
        assert not ledger.authorize_rollback(world.agent, checkpoint="latest").authorised


@pytest.mark.parametrize("policy", list(Policy))
def test_ways_on_never_suggest_a_retry(world: World, ledger: Ledger, policy: Policy) -> None:
    """A refusal names what can be done: settle, compensate, replay forward, an operator; never to do it again."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        do(session, "mail.send", world.key("sent"))
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
    assert not verdict.authorised
    assert {WayOn.REPLAY_FORWARD, WayOn.OPERATOR} <= set(verdict.ways_on)
    assert (WayOn.COMPENSATE in verdict.ways_on) is (policy is Policy.STRICT)
    with pytest.raises(UnsafeRollbackError) as caught:
        verdict.raise_for_refusal()
    assert "replay forward" in str(caught.value)
    assert not caught.value.retryable
    assert all(never_suggests_a_retry(text) for text in [str(caught.value), *(way.value for way in WayOn)])


def test_in_doubt_is_refused_until_settled(world: World, ledger: Ledger) -> None:
    """An effect in doubt refuses under both policies, and asks to be settled; settled as absent it is out of the way."""
    world.run({"do": "checkpoint", "id": "c"}, charge("doubt", raise_at="after effect", error="TimeoutError"))
    world.status(world.op_id("doubt"), Status.IN_DOUBT)
    for policy in Policy:
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
        assert [r.kind for r in verdict.reasons] == [ReasonKind.EFFECT_IN_DOUBT]
        assert WayOn.SETTLE in verdict.ways_on
        assert not verdict.fenced
    [item] = ledger.in_doubt(world.agent)
    ledger.resolve(
        item.operation.op_id, outcome="absent", version=item.operation.version, by="ann", evidence="asked the bank",
        accept_risk=True,
    )  # fmt: skip
    assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED


def test_reported_call_counts(world: World, ledger: Ledger) -> None:
    """A call that bypassed the ledger is counted like an effect, and no policy absorbs it; a harmless one is not."""
    with ledger.session(world.agent) as session:
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
        session.checkpoint("knows")
        session.checkpoint("c")
        session.report_call("ls", kind=EffectClass.READ)
        assert world.preview("c").authorised
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
        for policy in Policy:
            verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
            assert [r.kind for r in verdict.reasons] == [ReasonKind.CALL_OUTSIDE_LEDGER]
            effect = verdict.reasons[0].effect
            assert effect is not None
            assert (effect.tool, effect.status) == ("shell", "reported")


def test_gated_proceeds_and_absorbs(world: World, ledger: Ledger) -> None:
    """GATED proceeds over committed effects, names them as crossed, and absorbs their re-emission: the tool runs once."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        result = world.charge(session, "G", note="at first")
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated")
    assert verdict.kind is VerdictKind.PROCEED_GATED
    assert [e.op_id for e in verdict.crossed] == [world.op_id("G")]
    with ledger.session(world.agent) as again:
        assert world.charge(again, "G", note="told anew") == result
        again.checkpoint("c2")
        assert world.hits("G") == 1
        assert world.preview("c2").authorised  # what was absorbed is known


def test_preview_fences_nobody(world: World, ledger: Ledger) -> None:
    """A preview says what a replay would do with each effect, and how old that is; the session goes on as before."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        do(session, "mail.send", world.key("mail"))
        way_back = UndoPath(action="unbook", pre_state_hash="before")
        booked = session.attempt(
            "stock.book", key=world.key("stock"), kind=EffectClass.COMPENSATABLE, undo=way_back
        ).begin()
        assert booked.owned
        booked.commit("booked", post_state_hash="after")
        do(session, "cache.fill", world.key("cache"), kind=EffectClass.REPEATABLE)
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
        session.checkpoint("behind")
        before = ledger.agent(world.agent).agent.rollbacks
        for policy in Policy:
            verdict = world.preview("c", policy=policy)
            assert (verdict.dry_run, verdict.fenced, verdict.rollback_id) == (True, False, "")
            assert 0 <= verdict.age_s < 60
            outlook = verdict.outlook
            assert "absorbed" in outlook[world.op_id("mail", "mail.send")]
            assert "cannot be undone" in outlook[world.op_id("mail", "mail.send")]
            assert "can be compensated" in outlook[world.op_id("stock", "stock.book")]
            assert "fires again" in next(text for name, text in outlook.items() if "shell" in name)
        assert ledger.agent(world.agent).agent.rollbacks == before
        do(session, "mail.send", world.key("goes on"))
        session.checkpoint("c3")


def test_verdict_as_plain_data(world: World, ledger: Ledger) -> None:
    """A verdict can be handed to a program: a schema, the reasons with their effects, the ways on."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        do(session, "mail.send", world.key("mail"))
        told = ledger.authorize_rollback(world.agent, checkpoint="c").to_dict()
    assert told["schema"] == "fencepost.verdict.v1"
    assert (told["verdict"], told["authorised"], told["policy"]) == ("REFUSE", False, "STRICT")
    assert told["reasons"][0]["effect"]["op_id"] == world.op_id("mail", "mail.send")
    assert told["ways_on"]


def test_unknown_names_are_refused(world: World, ledger: Ledger) -> None:
    """An agent that the ledger never saw, a policy that there is not: errors that name the field."""
    with pytest.raises(NotFoundError) as caught:
        ledger.authorize_rollback(world.key("nobody"), checkpoint="c")
    assert caught.value.field == "agent"
    with pytest.raises(InvalidArgumentError) as wrong:
        ledger.authorize_rollback(world.agent, checkpoint="c", policy="whatever")
    assert wrong.value.field == "policy"
    with pytest.raises(InvalidArgumentError) as blank:
        ledger.authorize_rollback(world.agent, checkpoint=" ")
    assert blank.value.field == "checkpoint"


def test_branch_that_does_not_exist(world: World, ledger: Ledger) -> None:
    """A branch that the agent does not have cannot go back anywhere."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c", branch="nowhere")
    assert [r.kind for r in verdict.reasons] == [ReasonKind.CHECKPOINT_NOT_ON_PATH]
    assert not verdict.fenced


def test_checkpoint_of_a_branch_off_the_path(world: World, ledger: Ledger) -> None:
    """A branch cannot go back to a checkpoint that does not lie on its own path; nothing is authorised."""
    with ledger.session(world.agent) as session:
        session.checkpoint("fork")
        ledger.fork(world.agent, "b", checkpoint="fork")
        session.checkpoint("only-main")
        with ledger.session(world.agent, "b") as sibling:
            try:
                verdict = ledger.authorize_rollback(world.agent, checkpoint="only-main", branch="b")
            except NotFoundError as refused:
                assert "path" in str(refused)  # noqa: PT017 (either way of refusing will do)
            else:
                assert not verdict.authorised
            do(sibling, "mail.send", world.key("goes on"))
