"""Checkpoints and what was open when they were taken; claims that outlive the agent's state; waits that end."""

from __future__ import annotations

import asyncio
import time

import pytest
from conformance.moments import Moment, watch
from conformance.worlds import World, charge, never_suggests_a_retry, until

from fencepost.ledger import (
    EffectClass,
    FencedError,
    Ledger,
    OperationInDoubtError,
    OperationInFlightError,
    ReasonKind,
    VerdictKind,
)
from fencepost.ledger.engine import Engine
from fencepost.ledger.facts import EffectKind, decode_agent, decode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.operations import Status
from fencepost.ledger.positions import Partition, Topic

SEND = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@pytest.mark.parametrize("policy", ["strict", "gated"])
@pytest.mark.parametrize("outcome", ["commit", "fail", "doubt"])
def test_checkpoint_in_the_middle_of_a_call(world: World, ledger: Ledger, outcome: str, policy: str) -> None:
    """Taken while a call is open, a checkpoint carries it as open; going back there is refused until it is settled."""
    with ledger.session(world.agent) as session:
        attempt = session.attempt(key=world.key("open"), **SEND).begin()  # type: ignore[arg-type]
        assert attempt.owned
        session.checkpoint("c")
        [checkpoint] = ledger.checkpoints(world.agent)
        assert checkpoint.fact.owned == (attempt.op_id,)
        refused = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
        assert [r.kind for r in refused.reasons] == [ReasonKind.EFFECT_OWNED]
        assert not refused.fenced
        getattr(attempt, outcome)()
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
    expected = {
        ("commit", "strict"): VerdictKind.REFUSE,
        ("commit", "gated"): VerdictKind.PROCEED_GATED,
        ("fail", "strict"): VerdictKind.PROCEED,
        ("fail", "gated"): VerdictKind.PROCEED,
        ("doubt", "strict"): VerdictKind.REFUSE,
        ("doubt", "gated"): VerdictKind.REFUSE,
    }
    assert verdict.kind is expected[outcome, policy]


def test_checkpoint_drains_what_was_written_in_the_background(world: World, ledger: Ledger) -> None:
    """Effects that are published asynchronously before a checkpoint are known to it."""
    with ledger.session(world.agent) as session:
        for number in range(50):
            with session.attempt("cache.fill", key=world.key(f"f{number}"), kind=EffectClass.REPEATABLE) as attempt:
                attempt.commit(number)
        mark = session.checkpoint("c")
        assert mark.seq == 50
        until(lambda: ledger.watermark(world.agent).mark.seq >= 50)
        until(lambda: len(ledger.operations(world.agent)) == 50)
    assert ledger.replay_forward(world.agent, since="c") == []


def test_no_checkpoint_before_what_it_knows_is_in_the_log(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watermark says that all up to there is written: it stands behind it in the log, however slow that was."""
    publish, order = Engine.publish, []

    async def slowly(self: Engine, partition: Partition, record: Record) -> int | None:
        fact = (decode_effect if partition.topic is Topic.EFFECTS else decode_agent)(record.fact or b"")
        if fact.kind is EffectKind.COMMITTED:
            await asyncio.sleep(0.3)
        offset = await publish(self, partition, record)
        order.append(fact.kind.value)
        return offset

    with ledger.session(world.agent) as session:
        monkeypatch.setattr(Engine, "publish", slowly)
        with session.attempt("cache.fill", key=world.key("slow"), kind=EffectClass.REPEATABLE) as attempt:
            attempt.commit(1)
        session.checkpoint("c")
    assert order.index("COMMITTED") < order.index("CHECKPOINTED")


@pytest.mark.slow
def test_dropped_dangling_call(world: World, ledger: Ledger) -> None:
    """The agent's checkpoint has lost the call that was under way; the ledger's claim on it has survived."""
    dead = world.worker({"do": "checkpoint", "id": "before"}, charge("dangling", die="after effect"))
    [mark] = [answer["value"] for answer in dead.dies()]
    with ledger.session(world.agent, resumed_from=mark) as restored:
        with pytest.raises(OperationInDoubtError):
            world.charge(restored, "dangling")
        [replayed] = restored.replay_forward()
        assert (replayed.op_id, replayed.status) == (world.op_id("dangling"), "in doubt")
    assert world.hits("dangling") == 1


def test_abandoned_stretch_keeps_acting(world: World, ledger: Ledger) -> None:
    """The session that was rolled back is fenced, and what it had committed is listed as crossed."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        world.charge(session, "done")
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated")
        assert [effect.op_id for effect in verdict.crossed] == [world.op_id("done")]
        with pytest.raises(FencedError) as caught:
            world.charge(session, "more")
        assert never_suggests_a_retry(str(caught.value))
        with pytest.raises(FencedError):
            session.checkpoint("more")
    [replayed] = ledger.replay_forward(world.agent, since="c")
    assert replayed.op_id == world.op_id("done")
    assert (world.hits("done"), world.hits("more")) == (1, 0)


def test_waiting_for_oneself_ends(world: World, ledger: Ledger) -> None:
    """A wait that only the waiter could end has a deadline; then an operator can settle it, and the ledger lists it."""
    with ledger.session(world.agent) as session:
        outer = session.attempt(key=world.key("self"), **SEND).begin()  # type: ignore[arg-type]
        assert outer.owned
        started = time.monotonic()
        with pytest.raises(OperationInFlightError) as caught:
            session.attempt(key=world.key("self"), wait_s=0.3, **SEND).begin()  # type: ignore[arg-type]
        assert 0.25 < time.monotonic() - started < 20
        assert not caught.value.retryable
        [item] = ledger.open_operations(world.agent)
        assert (item.operation.op_id, item.state) == (outer.op_id, "in flight")
        assert ledger.in_doubt(world.agent) == []
        settled = ledger.resolve(
            outer.op_id, outcome="committed", version=item.operation.version, by="ann", evidence="seen outside"
        )
        assert settled.status is Status.COMMITTED
        again = session.attempt(key=world.key("self"), **SEND).begin()  # type: ignore[arg-type]
        assert not again.owned


@pytest.mark.parametrize("started", [False, True])
def test_closing_with_a_call_open(world: World, ledger: Ledger, *, started: bool) -> None:
    """A session that is closed over an open call says what it knows: in doubt, also where nobody asked for the permit."""
    session = ledger.session(world.agent).open()
    attempt = session.attempt(key=world.key("open"), **SEND).begin()  # type: ignore[arg-type]
    if started:
        assert attempt.owned
    session.close()
    world.status(attempt.op_id, Status.IN_DOUBT)
    until(lambda: ledger.watermark(world.agent).mark.seq == ledger.watermark(world.agent).highest_seq)
    assert ledger.watermark(world.agent).sealed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "hits", "restarted"),
    [
        ("before INTENDED", 0, "ran"),
        ("after INTENDED", 0, "OperationInDoubtError"),
        ("before effect", 0, "OperationInDoubtError"),
        ("after effect", 1, "OperationInDoubtError"),
        ("before COMMITTED", 1, "OperationInDoubtError"),
        ("after COMMITTED", 1, "recorded"),
    ],
)
def test_killed_between_the_steps(world: World, ledger: Ledger, point: str, hits: int, restarted: str) -> None:
    """Killed between every two steps of publish, ack, run, record: never two effects, never a lost in-doubt."""
    world.worker(charge("step", die=point), armed=True).dies()
    [answer] = world.run(charge("step"))
    told = answer["error"] or ("ran" if answer["ran"] else "recorded")
    assert told == restarted
    assert world.hits("step") == max(hits, told == "ran")
    waiting = [world.op_id("step")] if restarted == "OperationInDoubtError" else []
    until(lambda: [item.operation.op_id for item in ledger.in_doubt(world.agent)] == waiting)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "registered"), [("before CHECKPOINTED", False), ("after CHECKPOINTED", True)])
def test_killed_around_a_checkpoint(world: World, ledger: Ledger, point: str, *, registered: bool) -> None:
    """Killed around the registration of a checkpoint: it counts or it does not; the effect before it is known once."""
    world.worker(charge("step"), {"do": "checkpoint", "id": "c", "die": point}, armed=True).dies()
    with ledger.session(world.agent) as session:
        assert ("c" in ledger.agent(world.agent).checkpoints) is registered
        assert [op.op_id for op in session.replay_forward()] == ([] if registered else [world.op_id("step")])
        world.charge(session, "step")
    assert world.hits("step") == 1


@pytest.mark.parametrize("between", ["checkpoint", "close", "another session"])
def test_what_comes_while_a_session_opens(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """What was read before the opening may be older than the log: the session still resumes from the very last point."""
    other = world.open()
    former = other.session(world.agent).open()
    world.charge(former, "early")
    former.checkpoint("c-early")
    world.charge(former, "late")
    left = [between]

    def before(moment: Moment) -> None:
        if moment.kind != "SESSION_OPENED" or not left:
            return
        left.clear()
        if between == "checkpoint":
            former.checkpoint("c-late")
        elif between == "close":
            former.close()
        else:
            third = other.session(world.agent).open()
            assert [op.op_id for op in third.replay_forward()] == [world.op_id("late")]
            world.charge(third, "late")
            third.checkpoint("c-third")

    watch(before=before, put=monkeypatch.setattr)
    with ledger.session(world.agent) as session:
        assert left == []
        assert session.replay_forward() == []
        world.charge(session, "late")
    assert (world.hits("early"), world.hits("late")) == (1, 1)
