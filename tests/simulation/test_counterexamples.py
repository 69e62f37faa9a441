"""Counterexamples to earlier drafts of the protocol, acted out on the real code: each is survived.

CE1 to CE8 were found by a search of small models; what came later was found by the simulation.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from simulation.scenario import AGENTS, EFFECTS, OP, Stage, play

from fencepost.ledger import resolutions, rollbacks, sessions
from fencepost.ledger.engine import Engine
from fencepost.ledger.errors import RefusedError, RollbackPendingError, StaleProjectionError
from fencepost.ledger.facts import AgentFact, AgentKind, Outcome, encode_agent
from fencepost.ledger.history import Record
from fencepost.ledger.log_keys import rollback as rollback_key
from fencepost.ledger.projection import OPS, reassertion
from fencepost.ledger.resolutions import ProbeAnswer
from fencepost.ledger.verdicts import ReasonKind


def test_ce1_a_lost_claim_is_not_given_twice() -> None:
    """The owner acts, the store is lost, the log is compacted, another asks: the effect runs once."""

    async def story(stage: Stage) -> None:
        first = await stage.attempt("A")
        first.may_run.set()
        await stage.until(lambda: first.ran)
        await stage.settle_and_clean()
        stage.lose_store()
        second = await stage.attempt("B")
        second.go_on()
        await stage.settle_and_clean()
        first.may_settle.set()
        await second.done
        assert not second.ran
        assert second.result == first.result
        assert stage.runs() == 1

    play(story)


def test_ce2_a_re_assertion_from_before_the_commit_loses_nothing() -> None:
    """A blind rival owes a debt; the payment lands behind the commit that it does not know; the cleaner keeps it only."""

    async def story(stage: Stage) -> None:
        first, rival = await stage.session("A"), await stage.session("B")
        stage.stall()
        one, two = stage.attempted(first), stage.attempted(rival)
        one.go_on()
        two.go_on()
        await stage.until(lambda: len(stage.written()) == 2)
        assert all(record.history == () for record in stage.written()), "neither knows of the other"
        await stage.catch_up()
        await stage.until(lambda: one.done.done() and two.done.done())
        intents = Record(OP, (*stage.written()[-1].history[:2],), None, "projector")
        stage.world.append(EFFECTS, intents, "a payment that was under way")
        assert await stage.settle_and_clean() > 0
        assert len(stage.written()[-1].history) > len(intents.history), "it was paid for"
        stage.lose_store()
        third = await stage.attempt("C")
        await third.done
        assert third.result
        assert stage.runs() == 1

    play(story)


def test_ce3_an_empty_projection_authorises_nothing() -> None:
    """The store is lost while an effect is about to run, the settled offset survives: the guard sees the effect."""

    async def story(stage: Stage) -> None:
        user, session = await stage.session("A")
        await stage.as_user(user, sessions.checkpoint(session, "c1"))
        running = stage.attempted((user, session))
        await stage.until(lambda: running.granted)
        await stage.settle_and_clean()
        stage.lose_store()
        guard, _ = await stage.session("G")
        verdict = await stage.as_user(guard, rollbacks.authorize(guard.engine, "A", "c1"))
        assert not verdict.authorised
        assert {reason.kind for reason in verdict.reasons} == {ReasonKind.EFFECT_OWNED}
        running.go_on()
        await running.done

    play(story)


def test_ce4_an_intent_that_is_sent_again_does_not_change_the_winner() -> None:
    """Two intents, the first once more, compaction, a rebuild: the first still owns the operation."""

    async def story(stage: Stage) -> None:
        first, rival = await stage.session("A"), await stage.session("B")
        stage.stall()
        one = stage.attempted(first)
        await stage.until(lambda: len(stage.written()) == 1)
        two = stage.attempted(rival)
        await stage.until(lambda: len(stage.written()) == 2)
        stage.world.append(EFFECTS, stage.written()[0], "A")
        two.go_on()
        await stage.until(lambda: len(stage.written()) == 3)
        assert await stage.settle_and_clean() > 0
        stage.lose_store()
        await stage.catch_up()
        one.go_on()
        await stage.until(lambda: one.done.done() and two.done.done())
        assert one.ran
        assert not two.ran
        assert stage.runs() == 1

    play(story)


def test_ce5_a_rebuild_does_not_confirm_what_had_lost() -> None:
    """The winner's intent is compacted into its commit, behind the loser's intent; the loser waits through a rebuild."""

    async def story(stage: Stage) -> None:
        first, rival = await stage.session("A"), await stage.session("B")
        stage.stall()
        one = stage.attempted(first)
        await stage.until(lambda: len(stage.written()) == 1)
        two = stage.attempted(rival)
        await stage.until(lambda: len(stage.written()) == 2)
        stage.loop.pause(rival[0].process, 8.0)
        one.go_on()
        two.go_on()
        assert await stage.settle_and_clean() > 0
        stage.lose_store()
        await two.done
        assert two.error is None, two.error
        assert not two.ran
        assert two.result == one.result
        assert stage.runs() == 1

    play(story)


def test_ce6_a_zombie_projector_changes_nothing() -> None:
    """A payment of a projector that was superseded lands after everything else, and again: it is paid for."""

    async def story(stage: Stage) -> None:
        first = await stage.attempt("A")
        await stage.until(lambda: first.granted)
        stored = stage.world.places[EFFECTS].stored.documents
        old = reassertion(OP, stored[OPS][OP])
        stage.loop.kill(stage.machine.process)
        stage.start_machine("projector2")
        first.go_on()
        await first.done
        second = await stage.attempt("B")
        await second.done
        for _ in range(2):
            stage.world.append(EFFECTS, old, "a zombie")
            assert await stage.settle_and_clean() > 0
        stage.lose_store()
        third = await stage.attempt("C")
        third.go_on()
        await third.done
        assert first.result == second.result == third.result
        assert stage.runs() == 1

    play(story)


def test_ce7_a_rebuild_reads_all_that_was_there_before_it_answers() -> None:
    """What was acknowledged before a rebuild began stands before its horizon, however the end of the log is told."""

    async def story(stage: Stage) -> None:
        user, session = await stage.session("A")
        stage.stall()
        running = stage.attempted((user, session))
        await stage.until(lambda: len(stage.written()) == 1)
        intent_at = stage.world.places[EFFECTS].end - 1
        stage.lose_store()
        place = stage.world.places[EFFECTS]
        await stage.until(lambda: place.stored.header is not None)
        assert place.stored.header is not None
        assert place.stored.header.horizon > intent_at
        assert not place.stored.header.opened
        assert not running.granted
        await stage.catch_up()
        running.go_on()
        await running.done
        assert stage.runs() == 1

    play(story)


def test_ce8_what_was_given_up_cannot_run_any_more() -> None:
    """An operator who sees nothing outside cannot just say so; a probe that voids the key can, and the sleeper is refused."""

    async def story(stage: Stage) -> None:
        sleeper = await stage.attempt("A")
        await stage.until(lambda: sleeper.granted)
        operator, _ = await stage.session("O")
        engine = operator.engine
        seen = await stage.as_user(operator, engine.view.operation(OP))
        absent = resolutions.resolve(
            engine, OP, Outcome.ABSENT, version=seen.operation.version, by="operator", evidence="nothing is there"
        )
        with pytest.raises(RefusedError, match="cannot be known"):
            await stage.as_user(operator, absent)

        def probe(operation: object) -> ProbeAnswer:
            del operation
            assert not stage.world.outside.look(seen.operation.idempotency_key)
            return ProbeAnswer(Outcome.ABSENT, evidence="the key is void", voided=True)

        [item] = await stage.as_user(operator, resolutions.open_operations(engine))
        await stage.as_user(operator, resolutions.probe(engine, item, probe, by="operator"))
        second = await stage.attempt("B")
        second.go_on()
        await second.done
        sleeper.go_on()
        await sleeper.done
        assert second.ran
        assert not sleeper.ran
        assert stage.runs() == 1

    play(story)


def test_a_former_projection_that_comes_back_does_not_decide() -> None:
    """Lost, rebuilt, fenced, then restored from before the loss: the guard has seen more than that, and does not guess."""

    async def story(stage: Stage) -> None:
        user, session = await stage.session("A")
        await stage.as_user(user, sessions.checkpoint(session, "c1"))
        guard, _ = await stage.session("G")
        await stage.catch_up()
        stage.world.remember(EFFECTS)
        stage.lose_store()
        await stage.catch_up()
        fence = Engine.fence

        async def fenced(self: Engine, *args: Any, **values: Any) -> None:
            effect = stage.attempted((user, session))
            effect.go_on()
            await effect.done
            await fence(self, *args, **values)
            stage.loop.kill(stage.machine.process)
            stage.world.go_back(EFFECTS)
            stage.world.later(0.5, lambda: stage.start_machine("projector2"))

        with patch.object(Engine, "fence", fenced), pytest.raises(StaleProjectionError, match="went back"):
            await stage.as_user(guard, rollbacks.authorize(guard.engine, "A", "c1"))
        assert stage.runs() == 1

    play(story)


def test_what_a_pending_rollback_would_reject_is_not_written() -> None:
    """Whoever opens a session or asks for another rollback leaves nothing in the log, and withdraws it once its guard is gone."""

    async def story(stage: Stage) -> None:
        user, session = await stage.session("A")
        mark = await stage.as_user(user, sessions.checkpoint(session, "c1"))
        asked = AgentFact(
            kind=AgentKind.ROLLBACK_REQUESTED, agent_id="A", branch_id="main", rollback_id="r", watermark=mark.token,
            segment=session.segment, time_ms=stage.world.now_ms(),
        )  # fmt: skip
        stage.world.append(AGENTS, Record(rollback_key("A", "r"), (), encode_agent(asked)), "a guard that died")
        await stage.catch_up()
        end = stage.world.places[AGENTS].end
        with pytest.raises(RollbackPendingError):
            await stage.session("A")
        assert stage.world.places[AGENTS].end == end
        guard, _ = await stage.session("G")
        end = stage.world.places[AGENTS].end
        with pytest.raises(RollbackPendingError):
            await stage.as_user(guard, rollbacks.authorize(guard.engine, "A", "c1"))
        assert stage.world.places[AGENTS].end == end
        await asyncio.sleep(90.0)
        verdict = await stage.as_user(guard, rollbacks.authorize(guard.engine, "A", "c1"))
        assert verdict.authorised, "a rollback without a guard is withdrawn by the next guard"
        await stage.session("A")

    play(story)
