"""A guard that cannot decide holds nobody up: its rollback is withdrawn, and the next one is decided at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, until

from fencepost.ledger import Ledger, StaleProjectionError, VerdictKind
from fencepost.ledger.engine import Engine
from fencepost.ledger.verdicts import NOBODY, Policy

if TYPE_CHECKING:
    from concurrent.futures import Future


class Stuck:
    """An engine whose fences are not applied in time, as often as wanted."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 1
        self.hang = False
        original = Engine.fence

        async def fence(engine: Engine, *args: Any, **options: Any) -> None:
            if engine is not ledger._engine or not self.times:
                await original(engine, *args, **options)
                return
            self.times -= 1
            if self.hang:
                await asyncio.sleep(3600)
            raise StaleProjectionError("not applied in time.", next_step="Wait.")

        monkeypatch.setattr(Engine, "fence", fence)


@pytest.fixture
def stuck(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    return Stuck(ledger, monkeypatch)


def test_asked_again(world: World, ledger: Ledger, stuck: Stuck) -> None:
    """The error says that trying again is safe and may succeed; so it does, without waiting for anything."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    with pytest.raises(StaleProjectionError) as caught:
        ledger.authorize_rollback(world.agent, checkpoint="c")
    assert caught.value.retryable
    assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED
    rollbacks = ledger.agent(world.agent).agent.rollbacks.values()
    assert sorted(rollback.authorised for rollback in rollbacks) == [False, True]


def test_the_branch_can_be_opened(world: World, ledger: Ledger, stuck: Stuck) -> None:
    """A session is opened at once, and goes on where the branch stood."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    with pytest.raises(StaleProjectionError):
        ledger.authorize_rollback(world.agent, checkpoint="c")
    with ledger.session(world.agent) as session:
        world.charge(session, "after")
    assert not any(r.authorised for r in ledger.agent(world.agent).agent.rollbacks.values())
    assert world.hits("after") == 1


def test_interrupted(world: World, ledger: Ledger, stuck: Stuck) -> None:
    """So does a guard whose caller was interrupted while it waited."""
    stuck.hang = True
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    work = ledger._service.authorize_rollback(
        world.agent, checkpoint="c", policy=Policy.STRICT, branch_id="", restored="", word=NOBODY
    )
    deciding: Future[Any] = ledger.submit(work)
    until(lambda: ledger.agent(world.agent).agent.pending is not None)
    deciding.cancel()
    with ledger.session(world.agent) as session:
        world.charge(session, "after")
    assert world.hits("after") == 1
