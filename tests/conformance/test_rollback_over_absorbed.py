"""What an agent absorbed of another counts like its own effect for it: the guard, what a gated rollback crosses, and `resume`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from conformance.branching import Siblings
from conformance.worlds import until

from fencepost.ledger import (
    AgentSession,
    DivergenceHeldError,
    Ledger,
    Policy,
    ReasonKind,
    Reconcile,
    Resume,
    UnsafeRollbackError,
    VerdictKind,
    WayOn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.worlds import World


@contextmanager
def absorbing(world: World, ledger: Ledger) -> Iterator[tuple[AgentSession, AgentSession]]:
    """Another agent's session that charges "a", and the agent's, which absorbs that after its checkpoint "c"."""
    with ledger.session(f"{world.agent}-other") as other, ledger.session(world.agent) as session:
        session.checkpoint("c")
        world.charge(other, "a")
        assert not seen(world, ledger)
        world.charge(session, "a")
        until(lambda: seen(world, ledger))
        yield other, session
    assert world.hits("a") == 1


def seen(world: World, ledger: Ledger) -> list[str]:
    return [one.op_id for one in ledger.replay_forward(world.agent, since="c")]


def test_strict_refuses(world: World, ledger: Ledger) -> None:
    """It is named, with who did it and where it was absorbed; nothing is planned that would undo it under the other's feet."""
    with absorbing(world, ledger) as (other, session):
        op_id, place = world.op_id("a"), f"{world.agent}-other/main"
        for verdict in (
            ledger.preview_rollback(world.agent, checkpoint="c"),
            ledger.authorize_rollback(world.agent, checkpoint="c"),
        ):
            assert (verdict.kind, verdict.plan, verdict.fenced) == (VerdictKind.REFUSE, None, False)
            [reason] = verdict.reasons
            assert reason.effect is not None
            assert (reason.kind, reason.effect.op_id) == (ReasonKind.EFFECT_ADOPTED, op_id)
            assert f"done by {place}, absorbed at sequence {reason.effect.seq}" in reason.text
            assert reason.effect.seq > 0
            assert verdict.ways_on == (WayOn.REPLAY_FORWARD, WayOn.OPERATOR)
        assert "it stands for" in ledger.preview_rollback(world.agent, checkpoint="c").outlook[op_id]
        with pytest.raises(UnsafeRollbackError):
            session.rollback("c")
        assert world.preview("c").kind is VerdictKind.REFUSE
        for policy in Policy:  # to the agent that did it nothing of the other's absorption matters
            other.checkpoint(f"o-{policy}")
            shown = ledger.preview_rollback(f"{world.agent}-other", checkpoint=f"o-{policy}", policy=policy)
            assert shown.kind is VerdictKind.PROCEED
        session.checkpoint("later")
        assert world.preview("later").kind is VerdictKind.PROCEED


def test_gated_crosses_it(world: World, ledger: Ledger) -> None:
    """Asked for again it is absorbed; a rewording on the same tool is held."""
    with absorbing(world, ledger) as (_, session):
        verdict = ledger.preview_rollback(world.agent, checkpoint="c", policy="gated")
        assert (verdict.kind, [e.op_id for e in verdict.crossed]) == (VerdictKind.PROCEED_GATED, [world.op_id("a")])
        with session.rollback("c", policy="gated") as again:
            with pytest.raises(DivergenceHeldError) as caught:
                world.charge(again, "A")
            assert caught.value.candidates == [world.op_id("a")]
            world.charge(again, "a")
    assert world.hits("A") == 0


def test_resume_reconciles(world: World, ledger: Ledger) -> None:
    """A restored agent that does not know of it is told, with the result; one that does goes on."""
    with absorbing(world, ledger) as (_, session):
        answer = ledger.resume(world.agent, checkpoint="c", summary_generation=0)
        assert isinstance(answer, Reconcile)
        assert [(r.kind, r.effect.op_id) for r in answer.reasons if r.effect] == [
            (ReasonKind.EFFECT_NOT_KNOWN, world.op_id("a"))
        ]
        assert [(e.op_id, e.result["cents"], e.own) for e in answer.effects] == [(world.op_id("a"), 50, False)]
        session.checkpoint("later")
        assert isinstance(ledger.resume(world.agent, checkpoint="later", summary_generation=0), Resume)


def test_what_a_branch_absorbed_of_another_agent(world: World, ledger: Ledger) -> None:
    """Also what only a branch of the agent knows, pruned or not: its main branch does not, and could ask in other words."""
    with Siblings(world) as crew, ledger.session(f"{world.agent}-other") as other:
        crew.sessions["other"] = other
        crew.do("other", "ticket")
        crew.do("a", "ticket")
        crew.absorbed("a", "ticket")
        for _ in range(2):
            verdict = ledger.preview_rollback(world.agent, checkpoint="c")
            assert [(r.kind, r.effect.op_id) for r in verdict.reasons if r.effect] == [
                (ReasonKind.EFFECT_ADOPTED, crew.op_id("ticket"))
            ]
            crew.prune("a")
