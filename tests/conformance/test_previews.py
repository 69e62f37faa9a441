"""A dry run that was made before is the answer until something moved, and never longer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conformance.refunding import Refunds
from conformance.waiting import until
from conformance.worlds import World

from fencepost.ledger import EffectClass, Ledger, VerdictKind, rollbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger import AgentSession, Verdict
    from fencepost.ledger.engine import Engine
    from fencepost.ledger.previews import Asked


def do(session: AgentSession, key: str, kind: EffectClass = EffectClass.IRREVERSIBLE) -> None:
    with session.attempt("mail.send", key=key, kind=kind) as attempt:
        if attempt.owned:
            attempt.commit({"by": session.session_id})


def anew(world: World, **options: str) -> Verdict:
    """The dry run of a process that has made none before."""
    with Ledger.open(world.home.url) as other:
        return other.preview_rollback(world.agent, checkpoint="c", **options)


def test_whatever_happens_the_answer_is_that_of_whoever_asks_first(world: World, ledger: Ledger) -> None:
    """Effects of this agent and of others, forks, absorptions, reported calls, checkpoints: each is seen by the next one."""
    key = world.key("shared")
    with ledger.session(world.agent) as session, ledger.session(f"{world.agent}-other") as other:
        do(session, world.key("before"))
        session.checkpoint("c")
        steps: list[tuple[Callable[[], object], VerdictKind]] = [
            (lambda: do(other, key), VerdictKind.PROCEED),
            (lambda: do(session, world.key("harmless"), EffectClass.REPEATABLE), VerdictKind.PROCEED),
            (lambda: ledger.fork(world.agent, "aside", checkpoint="c"), VerdictKind.PROCEED),
            (lambda: session.checkpoint("d"), VerdictKind.PROCEED),
            (lambda: do(session, key), VerdictKind.REFUSE),
            (lambda: session.report_call("shell.rm", kind=EffectClass.IRREVERSIBLE), VerdictKind.REFUSE),
            (lambda: do(session, world.key("after")), VerdictKind.REFUSE),
        ]
        for step, kind in steps:
            ledger.preview_rollback(world.agent, checkpoint="c")
            step()
            session.submit(session.state.drain()).result(30)
            until(lambda kind=kind: _same(ledger.preview_rollback(world.agent, checkpoint="c"), anew(world), kind))


def _same(known: Verdict, fresh: Verdict, kind: VerdictKind) -> bool:
    return replace(known, age_s=0.0) == replace(fresh, age_s=0.0) and known.kind is kind


def test_it_is_read_again_only_if_something_moved(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question again reads headers; another question, and any record that was applied since, read everything."""
    made: list[Asked] = []
    real = rollbacks._preview

    async def noted(engine: Engine, asked: Asked) -> Verdict:
        made.append(asked)
        return await real(engine, asked)

    monkeypatch.setattr(rollbacks, "_preview", noted)
    with ledger.session(world.agent) as session:
        do(session, world.key("before"))
        mark = session.checkpoint("c")
        world.preview("c")
        until(lambda: _quiet(made, world))
        first = ledger.preview_rollback(world.agent, checkpoint="c")
        made.clear()
        again = ledger.preview_rollback(world.agent, checkpoint="c")
        assert replace(again, age_s=0.0) == replace(first, age_s=0.0)
        assert not made
        dict(again.outlook)["mine"] = "changed"
        assert again.outlook is not ledger.preview_rollback(world.agent, checkpoint="c").outlook
        ledger.preview_rollback(world.agent, checkpoint="c", restored=mark.token)
        ledger.preview_rollback(world.agent, checkpoint="c", policy="GATED")
        assert len(made) == 2
        do(session, world.key("after"))
        assert world.preview("c").kind is VerdictKind.REFUSE
        assert len(made) >= 3


def test_what_depends_on_a_state_elsewhere_is_looked_at_each_time(
    refunds: Refunds, world: World, ledger: Ledger
) -> None:
    """Whether an effect can be undone depends on a state that nobody tells the ledger of: changed, and changed back."""
    refunds.register()
    refunds.done("a")
    assert world.preview("c").kind is VerdictKind.COMPENSATE_FIRST
    refunds.account.move(100, "somebody")
    for _ in range(2):
        assert ledger.preview_rollback(world.agent, checkpoint="c").kind is VerdictKind.REFUSE
    refunds.account.move(-100, "somebody")
    assert ledger.preview_rollback(world.agent, checkpoint="c").kind is VerdictKind.COMPENSATE_FIRST


def _quiet(made: list[Asked], world: World) -> bool:
    """Whether nothing that was written before is still being applied."""
    made.clear()
    world.ledger.preview_rollback(world.agent, checkpoint="c")
    world.ledger.preview_rollback(world.agent, checkpoint="c")
    return len(made) == 0
