"""A session that rolls itself back, and what holds after an authorised rollback."""

from __future__ import annotations

import pytest
from conformance.worlds import World, charge, until

from fencepost.ledger import (
    DivergenceHeldError,
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    UnsafeRollbackError,
)
from fencepost.ledger.operations import AttemptState, Status


def test_successor_of_a_session_that_rolls_itself_back(world: World, ledger: Ledger) -> None:
    """`rollback` gives the successor, with a higher epoch; the old session is over and says so."""
    session = ledger.session(world.agent).open()
    world.charge(session, "before")
    session.checkpoint("c")
    successor = session.rollback("c")
    assert successor.epoch > session.epoch
    assert successor.session_id != session.session_id
    with pytest.raises(FencedError) as caught:
        world.charge(session, "zombie")
    assert "rollback" in caught.value.reason
    with pytest.raises(FencedError):
        session.checkpoint("zombie")
    world.charge(successor, "after")
    successor.checkpoint("c2")
    assert (world.hits("zombie"), world.hits("after")) == (0, 1)
    session.close()
    successor.close()


def test_rollback_right_after_an_effect(world: World, ledger: Ledger) -> None:
    """An effect that was committed a moment ago is not taken for one that still runs: the rollback proceeds."""
    session = ledger.session(world.agent).open()
    for number in range(8):
        world.charge(session, f"e{number}")
        session.checkpoint(f"c{number}")
        session = session.rollback(f"c{number}")
    session.close()
    assert sum(world.hits(f"e{number}") for number in range(8)) == 8


def test_refused_session_goes_on(world: World, ledger: Ledger) -> None:
    """A session whose own rollback is refused before anything was fenced still speaks for its branch."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        world.charge(session, "effect")
        with pytest.raises(UnsafeRollbackError) as caught:
            session.rollback("c")
        assert not caught.value.verdict.fenced
        world.charge(session, "goes on")
        session.checkpoint("c2")


def test_successor_knows_the_checkpoint_and_no_more(world: World, ledger: Ledger) -> None:
    """The successor stands on the checkpoint: its own checkpoints know what was before, not what was crossed."""
    session = ledger.session(world.agent).open()
    world.charge(session, "before")
    session.checkpoint("c")
    world.charge(session, "crossed")
    successor = session.rollback("c", policy="gated")
    successor.checkpoint("after")
    verdict = world.preview("after")
    assert [r.effect.op_id for r in verdict.reasons if r.effect] == [world.op_id("crossed")]
    assert [op.op_id for op in successor.replay_forward()] == [world.op_id("crossed")]
    successor.checkpoint("knows")
    assert world.preview("knows").authorised
    successor.close()


def test_checkpoint_on_the_abandoned_stretch_is_closed(world: World, ledger: Ledger) -> None:
    """After a rollback nobody can go back, fork, or resume to a point that was left behind."""
    session = ledger.session(world.agent).open()
    session.checkpoint("kept")
    mark = session.checkpoint("left")
    successor = session.rollback("kept")
    with pytest.raises(FencedError):
        ledger.fork(world.agent, "from-left", checkpoint="left")
    successor.close()
    with pytest.raises(FencedError) as caught:
        ledger.session(world.agent, resumed_from=mark.token).open()
    assert "abandoned" in caught.value.reason


def test_branches_forked_from_the_abandoned_stretch_are_closed(world: World, ledger: Ledger) -> None:
    """A rollback takes with it every branch that descends from what it abandons; others go on."""
    session = ledger.session(world.agent).open()
    session.checkpoint("kept")
    ledger.fork(world.agent, "from-kept", checkpoint="kept")
    session.checkpoint("left")
    ledger.fork(world.agent, "from-left", checkpoint="left")
    good, bad = (ledger.session(world.agent, name).open() for name in ("from-kept", "from-left"))
    successor = session.rollback("kept")
    with pytest.raises(FencedError):
        world.charge(bad, "bad")
    with pytest.raises(FencedError):
        ledger.session(world.agent, "from-left").open()
    world.charge(good, "good")
    assert (world.hits("bad"), world.hits("good")) == (0, 1)
    for one in (good, bad, successor):
        one.close()


def test_effects_of_a_forked_branch_count(world: World, ledger: Ledger) -> None:
    """An effect on a branch that was forked later is not known to the checkpoint, and stands in the way."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        ledger.fork(world.agent, "b", checkpoint="c")
        with ledger.session(world.agent, "b") as sibling:
            world.charge(sibling, "sibling")
        verdict = world.preview("c")
        assert [r.effect.branch_id for r in verdict.reasons if r.effect] == ["b"]
        world.charge(session, "sibling")  # absorbed: from here on main knows it
        session.checkpoint("c2")
        assert world.preview("c2").authorised
        assert world.hits("sibling") == 1


def test_divergence_is_held_then_new(world: World, ledger: Ledger) -> None:
    """After a gated rollback the same tool with something else is held, and runs once it is declared new."""
    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    world.charge(session, "first")
    successor = session.rollback("c", policy="gated")
    with pytest.raises(DivergenceHeldError) as caught:
        world.charge(successor, "second")
    assert caught.value.op_id == world.op_id("second")
    assert caught.value.candidates == [world.op_id("first")]
    assert world.hits("second") == 0
    successor.declare_new(world.op_id("second"))
    world.charge(successor, "second")
    assert world.hits("second") == 1
    successor.close()
    with ledger.session(world.agent) as later:  # the declaration is in the log, not in the session
        world.charge(later, "second")
        assert world.hits("second") == 1


def test_divergence_in_another_tool_is_free(world: World, ledger: Ledger) -> None:
    """Only the tools of crossed effects are held; others run."""
    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    world.charge(session, "first")
    successor = session.rollback("c", policy="gated")
    with successor.attempt("mail.send", key=world.key("mail"), kind=EffectClass.IRREVERSIBLE) as attempt:
        assert attempt.owned
        attempt.commit()
    successor.close()


@pytest.mark.parametrize("cents", [50, 51])
def test_divergence_is_held_then_the_same(world: World, ledger: Ledger, cents: int) -> None:
    """Declared the same as a crossed effect, the attempt gets that one's recorded result and runs nothing."""
    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    result = world.charge(session, "first")
    successor = session.rollback("c", policy="gated")
    with pytest.raises(DivergenceHeldError):
        world.charge(successor, "renamed", cents=cents)
    with pytest.raises(InvalidArgumentError):
        successor.declare_same(world.op_id("renamed"), as_=world.op_id("something else"))
    successor.declare_same(world.op_id("renamed"), as_=world.op_id("first"))
    assert world.charge(successor, "renamed", cents=cents) == result
    assert (world.hits("first"), world.hits("renamed")) == (1, 0)
    successor.close()


@pytest.mark.slow
def test_zombie_paused_across_a_rollback(world: World, ledger: Ledger) -> None:
    """A process that is frozen across an authorised rollback cannot act afterwards: its next intent is rejected."""
    zombie = world.worker(
        charge("before"),
        {"do": "checkpoint", "id": "c"},
        {"do": "hold", "name": "zombie"},
        charge("zombie"),
        close=False,
    )
    zombie.wait_held("zombie")
    zombie.pause()
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.authorised
    zombie.release("zombie")
    zombie.resume()
    answers = zombie.finish()
    assert answers[-1]["error"] == "FencedError"
    assert not answers[-1]["ran"]
    assert world.hits("zombie") == 0
    operation = ledger.operation(world.op_id("zombie")).operation
    assert [a.state for a in operation.attempts.values()] == [AttemptState.REJECTED]
    assert operation.status is Status.FREE


@pytest.mark.slow
def test_outcome_of_a_fenced_session_is_evidence(world: World, ledger: Ledger) -> None:
    """A fenced process may still say what became of an intent that stood before the fence: it is taken."""
    zombie = world.worker(charge("late", hold="after effect", name="late"), charge("next"), close=False)
    zombie.wait_held("late")
    zombie.pause()
    ledger.session(world.agent).open().close()  # a successor fences it
    until(lambda: ledger.in_doubt(world.agent))
    [doubt] = ledger.in_doubt(world.agent)
    assert (doubt.operation.op_id, doubt.state) == (world.op_id("late"), "in doubt")
    zombie.release("late")
    zombie.resume()
    late, after = zombie.finish()
    assert (late["error"], late["ran"]) == ("", True)
    assert (after["error"], after["ran"]) == ("FencedError", False)
    assert world.status(world.op_id("late"), Status.COMMITTED).anomalies == []
    assert ledger.in_doubt(world.agent) == []
    assert (world.hits("late"), world.hits("next")) == (1, 0)


@pytest.mark.slow
def test_rollback_over_a_running_effect_is_refused(world: World, ledger: Ledger) -> None:
    """An effect that is still running refuses the rollback; afterwards it is in the way as a committed one."""
    running = world.worker({"do": "checkpoint", "id": "c"}, charge("run", hold="before effect", name="run"))
    running.wait_held("run")
    for policy in ("strict", "gated"):
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy=policy)
        assert [r.kind.value for r in verdict.reasons] == ["EFFECT_OWNED"]
        assert not verdict.fenced
    running.release("run")
    assert running.finish()[-1]["error"] == ""
    assert [r.kind.value for r in ledger.authorize_rollback(world.agent, checkpoint="c").reasons] == [
        "EFFECT_NOT_KNOWN"
    ]
    assert ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated").authorised
    assert world.hits("run") == 1
