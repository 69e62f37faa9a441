"""Who relies on an effect: by what its path knows, in the same way for prunes, plans, and undos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import ACTION, Siblings
from conformance.test_prune_races import Absorbing, Gate, begin_undo, end_undo, gate, late_session, reads
from conformance.worlds import PATIENCE_S

from fencepost.ledger import EffectClass, Ledger, ManifestError, UndoPath, VersionMovedError
from fencepost.ledger.engine import Engine
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.operations import Status
from fencepost.ledger.sessions import SessionState

if TYPE_CHECKING:
    from conformance.worlds import World

__all__ = ["gate"]  # a fixture


def done_by_a(crew: Siblings) -> str:
    """The effect of branch a, sealed and settled; its op id."""
    crew.do_sealed("a", "effect")
    crew.committed("effect")
    return crew.op_id("effect")


def refused_plan(ledger: Ledger, op_id: str) -> str:
    """Why no plan undoes this operation by itself."""
    with pytest.raises(ManifestError) as caught:
        ledger.plan_compensation([op_id])
    assert caught.value.field == "adopted_by"
    return str(caught.value)


# -- branches that know it by their path ---------------------------------------------------


def test_a_child_of_the_adopter_relies_on_it_when_the_adopter_is_pruned(world: World, ledger: Ledger) -> None:
    """It was forked after the adopter had taken the effect over, and goes on."""
    with Siblings(world) as crew:
        op_id = done_by_a(crew)
        assert crew.do_sealed("b", "effect") == {"by": "a"}
        crew["b"].checkpoint("b1")
        with crew["b"].fork("child", checkpoint="b1"):
            crew.prune("b")
            verdict = crew.prune("a")
            assert verdict.to_compensate is None
            assert [e.relied_on_by for e in verdict.adopted] == [(f"{world.agent}/child",)]
            assert f"{world.agent}/child" in refused_plan(ledger, op_id)


def test_a_child_relies_on_what_its_parent_learnt_from_an_operator(world: World, ledger: Ledger) -> None:
    """What settled the effect has no place on any path; where the parent was told so has one."""
    undo = UndoPath(action=ACTION, pre_state_hash="before", payload={"name": "effect"})
    values: dict[str, Any] = {"key": world.key("effect"), "kind": EffectClass.COMPENSATABLE, "undo": undo}
    with Siblings(world, ("a",)) as crew:
        with crew["a"].attempt("tool", **values) as attempt:
            attempt.doubt("timeout")
        op_id = crew.op_id("effect")
        seen = world.status(op_id, Status.IN_DOUBT)
        who: dict[str, Any] = {"by": "ann", "evidence": "it is in the books", "post_state_hash": "after"}
        ledger.resolve(op_id, outcome="committed", version=seen.version, **who)
        assert crew.do_sealed("a", "effect") is None
        crew["a"].checkpoint("a1")
        with crew["a"].fork("child", checkpoint="a1"):
            verdict = crew.prune("a")
            assert verdict.to_compensate is None
            assert [e.relied_on_by for e in verdict.adopted] == [(f"{world.agent}/child",)]
            assert f"{world.agent}/child" in refused_plan(ledger, op_id)


def test_a_plan_of_one_operation_is_refused_for_whom_a_verdict_calls_it_adopted(world: World, ledger: Ledger) -> None:
    """A fork's path knows it; nothing in the operation's own history says so."""
    with Siblings(world, ("a",)) as crew:
        op_id = done_by_a(crew)
        crew["a"].checkpoint("a1")
        with crew["a"].fork("child", checkpoint="a1"):
            [effect] = crew.prune("a").adopted
            assert effect.relied_on_by == (f"{world.agent}/child",)
            assert f"{world.agent}/child" in refused_plan(ledger, op_id)
        crew.prune("child")
        assert ledger.plan_compensation([op_id]).steps[0].op_id == op_id


def test_a_fork_between_the_plan_and_the_undo_stops_the_undo(world: World, ledger: Ledger) -> None:
    """The plan was made when nobody else knew the effect; it is refused, and the inverse never runs."""
    with Siblings(world, ()) as crew:
        crew.do_sealed("main", "effect")
        crew.committed("effect")
        plan = ledger.plan_compensation([crew.op_id("effect")])
        crew["main"].checkpoint("after")
        ran: list[str] = []
        crew.undoable_by(ran)
        with crew["main"].fork("child", checkpoint="after"):
            with pytest.raises(ManifestError, match=f"{world.agent}/child"):
                ledger.compensate(plan, approved_by="ann")
            assert ran == []
            crew.prune("child")
        ledger.compensate(plan, approved_by="ann")
        assert ran == [crew.op_id("effect")]


def test_a_plan_back_to_a_checkpoint_without_a_rollback_leaves_nobody_behind(world: World, ledger: Ledger) -> None:
    """The child would go away with the rollback; a plan that goes by none is refused for it."""
    with Siblings(world, ()) as crew:
        crew.do_sealed("main", "effect")
        crew.committed("effect")
        crew["main"].checkpoint("after")
        with crew["main"].fork("child", checkpoint="after"):
            with pytest.raises(ManifestError, match="only a rollback") as caught:
                ledger.plan_compensation(agent=world.agent, checkpoint="c")
            assert f"{world.agent}/child" in str(caught.value)
            verdict = ledger.preview_rollback(world.agent, checkpoint="c", policy="STRICT")
            assert verdict.plan is not None
            crew.prune("child")
        assert [step.op_id for step in ledger.plan_compensation(agent=world.agent, checkpoint="c").steps] == [
            crew.op_id("effect")
        ]


# -- branches that went back over it -------------------------------------------------------


def test_a_restored_branch_that_does_not_know_its_adoption_does_not_rely_on_it(world: World) -> None:
    """Its process died; its successor goes on from before the adoption, without any rollback."""
    with Siblings(world) as crew:
        done_by_a(crew)
        mark = crew["b"].checkpoint("b0")
        assert crew.do_sealed("b", "effect") == {"by": "a"}
        with world.ledger.session(world.agent, "b", resumed_from=mark):
            verdict = crew.prune("a")
            assert (verdict.adopted, crew.named(verdict.undoable)) == ((), ["effect"])


def test_an_adopter_of_another_agent_that_went_back_does_not_rely_on_it(world: World, ledger: Ledger) -> None:
    """Its own log tells whether it still knows the effect."""
    other = f"{world.agent}-2"
    with Siblings(world, ("a",)) as crew:
        op_id = done_by_a(crew)
        with ledger.session(other) as session:
            session.checkpoint("before")
            assert reads(session, crew) == {"by": "a"}
            session.checkpoint("later")
            assert [e.relied_on_by for e in crew.prune("a").adopted] == [(f"{other}/main",)]
            assert f"{other}/main" in refused_plan(ledger, op_id)
            assert ledger.authorize_rollback(other, checkpoint="before", policy="gated").authorised
        verdict = crew.prune("a")
        assert (verdict.adopted, crew.named(verdict.undoable)) == ((), ["effect"])
        assert ledger.plan_compensation([op_id]).steps[0].op_id == op_id


def test_a_pruned_adopter_of_another_agent_does_not_bar_a_rollback(world: World, ledger: Ledger) -> None:
    """The branch that adopted the effect there is gone, so what it relied on need not stand for it."""
    other = f"{world.agent}-2"
    with Siblings(world, ()) as crew, ledger.session(other) as main:
        main.checkpoint("there")
        crew.do_sealed("main", "effect")
        crew.committed("effect")
        with main.fork("x", checkpoint="there") as branch:
            assert reads(branch, crew) == {"by": "main"}
        assert ledger.preview_rollback(world.agent, checkpoint="c", policy="STRICT").plan is None
        ledger.prune_branch(other, "x")
        plan = ledger.preview_rollback(world.agent, checkpoint="c", policy="STRICT").plan
        assert plan is not None
        assert [step.op_id for step in plan.steps] == [crew.op_id("effect")]


def test_a_branch_that_went_back_over_its_adoption_is_not_told_what_is_being_undone(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next session rests on an adoption that counts no more: it writes first, and looks at the effect again."""
    with Siblings(world) as crew:
        op_id = done_by_a(crew)
        crew["b"].checkpoint("b0")
        assert crew.do_sealed("b", "effect") == {"by": "a"}
        assert ledger.authorize_rollback(world.agent, checkpoint="b0", policy="GATED").authorised
        plan = crew.prune("a").to_compensate
        assert plan is not None
        ran: list[str] = []
        crew.undoable_by(ran)
        _, session = late_session(world)
        Absorbing(gate, session, monkeypatch)
        relying = gate.begin(lambda: reads(session, crew))
        ledger.compensate(plan, approved_by="ann")
        gate.end()
        with pytest.raises(VersionMovedError):
            relying.result(PATIENCE_S)
        assert ran == [op_id]
        session.close()


def test_an_adoption_that_came_too_late_is_not_taken_for_one(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo had begun, and was withdrawn before its author looked: another branch's adoption is not its own."""
    original, note, written, noting = Engine.publish_effect, SessionState.note_absorbed, Gate(), Gate()
    with Siblings(world, ("a", "b", "d")) as crew:
        done_by_a(crew)
        other, session = late_session(world)

        async def publish_effect(engine: Engine, fact: Any, known: Any) -> Any:
            if engine is not other._engine or fact.kind is not EffectKind.ADOPTED:
                return await original(engine, fact, known)
            await gate.pass_through()
            offset = await original(engine, fact, known)
            await written.pass_through()
            return offset

        async def note_absorbed(state: SessionState, *args: Any) -> None:
            if state.session_id == session.session_id:
                await noting.pass_through()
            await note(state, *args)

        monkeypatch.setattr(Engine, "publish_effect", publish_effect)
        monkeypatch.setattr(SessionState, "note_absorbed", note_absorbed)
        Absorbing(noting, session, monkeypatch)
        relying = gate.begin(lambda: reads(session, crew))
        assert crew.do_sealed("d", "effect") == {"by": "a"}
        undo = begin_undo(crew, "effect")
        gate.end(wait=False)
        assert written.reached.wait(PATIENCE_S)
        end_undo(crew, undo, EffectKind.COMPENSATION_WITHDRAWN)
        crew.committed("effect")
        written.end()
        assert noting.reached.wait(PATIENCE_S)
        ran: list[str] = []
        crew.undoable_by(ran)
        crew.prune("d")
        plan = crew.prune("a").to_compensate
        assert plan is not None
        ledger.compensate(plan, approved_by="ann")
        noting.end()
        with pytest.raises(VersionMovedError):
            relying.result(PATIENCE_S)
        assert ran == [crew.op_id("effect")]
        session.close()
