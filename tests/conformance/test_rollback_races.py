"""Rollbacks at the same time as other things: sessions, forks, other rollbacks, and guards that die."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import PATIENCE_S, World, charge

from fencepost.ledger import (
    FencedError,
    Ledger,
    ReasonKind,
    RollbackPendingError,
    VerdictKind,
    rollbacks,
)
from fencepost.ledger.engine import Engine
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from fencepost.ledger import Verdict


class Guard:
    """A rollback that stands still between its request and its fences, until it is released."""

    def __init__(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = ledger._engine
        self.requested = threading.Event()
        self.release = threading.Event()
        self._ledger = ledger
        self._threads = ThreadPoolExecutor(1)
        original = Engine.fence

        async def fence(engine: Engine, *args: Any, **options: Any) -> None:
            if engine is self.engine:
                self.requested.set()
                assert self.release.wait(PATIENCE_S)
            await original(engine, *args, **options)

        monkeypatch.setattr(Engine, "fence", fence)

    def begin(self, agent: str, checkpoint: str, policy: str = "strict") -> Future[Verdict]:
        decision = self._threads.submit(
            lambda: self._ledger.authorize_rollback(agent, checkpoint=checkpoint, policy=policy)
        )
        assert self.requested.wait(PATIENCE_S)
        return decision

    def end(self) -> None:
        self.release.set()
        self._threads.shutdown()


@pytest.fixture
def guard(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    guard = Guard(world.open(), monkeypatch)
    yield guard
    guard.end()


def test_nothing_opens_or_forks_while_a_rollback_is_decided(world: World, ledger: Ledger, guard: Guard) -> None:
    """While a rollback is decided no session opens on its branch and no fork is taken; both can be asked for later."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    decision = guard.begin(world.agent, "c")
    with pytest.raises(RollbackPendingError) as session_refused:
        ledger.session(world.agent).open()
    assert session_refused.value.rollback_id
    with pytest.raises(RollbackPendingError):
        ledger.fork(world.agent, "b", checkpoint="c")
    guard.end()
    assert decision.result(PATIENCE_S).authorised
    ledger.fork(world.agent, "b", checkpoint="c")
    ledger.session(world.agent).open().close()


def test_session_opened_during_a_rollback_waits_for_it(world: World, ledger: Ledger, guard: Guard) -> None:
    """A session that is asked for during a decision opens when it is made, on the stretch that then holds."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.checkpoint("left")
    decision = guard.begin(world.agent, "c")
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(ledger.session(world.agent).open)
        guard.end()
        assert decision.result(PATIENCE_S).authorised
        with opening.result(PATIENCE_S) as opened:
            branch = ledger.agent(world.agent).agent.branches["main"]
            assert branch.head is not None
            assert branch.head.session_id == opened.session_id
            assert branch.head.parent == decision.result().target


def test_other_branches_go_on_while_a_rollback_is_decided(world: World, ledger: Ledger, guard: Guard) -> None:
    """A rollback holds what descends from the abandoned stretch; a branch forked before it goes on meanwhile."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        ledger.fork(world.agent, "b", checkpoint="c")
        session.checkpoint("later")
    sibling = ledger.session(world.agent, "b").open()
    guard.begin(world.agent, "c")
    world.charge(sibling, "sibling")
    assert world.hits("sibling") == 1
    guard.end()
    sibling.close()


def test_effect_between_the_request_and_the_fence_is_seen(world: World, ledger: Ledger, guard: Guard) -> None:
    """An effect that slips in before the fence is seen by the decision, which then refuses, and the session is over."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        decision = guard.begin(world.agent, "c")
        world.charge(session, "slipped-in")
        guard.end()
        verdict = decision.result(PATIENCE_S)
        assert (verdict.kind, verdict.fenced) == (VerdictKind.REFUSE, True)
        assert [r.effect.op_id for r in verdict.reasons if r.effect] == [world.op_id("slipped-in")]
        with pytest.raises(FencedError):
            world.charge(session, "after-the-fence")
    assert (world.hits("slipped-in"), world.hits("after-the-fence")) == (1, 0)
    with ledger.session(world.agent) as successor:  # refused: the branch stands as it did
        assert world.charge(successor, "slipped-in") == {"order": world.key("slipped-in"), "cents": 50}
    assert world.hits("slipped-in") == 1


@pytest.mark.slow
def test_effect_that_starts_between_request_and_fence(world: World, ledger: Ledger, guard: Guard) -> None:
    """An effect that is running when the fence comes refuses the rollback as in doubt; its outcome is then taken."""
    running = world.worker(
        {"do": "checkpoint", "id": "c"},
        {"do": "hold", "name": "ready"},
        charge("runs", hold="after effect", name="runs"),
        close=False,
    )
    running.wait_held("ready")
    decision = guard.begin(world.agent, "c")
    running.release("ready")
    running.wait_held("runs")
    guard.end()
    verdict = decision.result(PATIENCE_S)
    assert (verdict.kind, verdict.fenced) == (VerdictKind.REFUSE, True)
    assert [r.kind for r in verdict.reasons] == [ReasonKind.EFFECT_IN_DOUBT]
    running.release("runs")
    assert running.finish()[-1]["error"] == ""
    world.status(world.op_id("runs"), Status.COMMITTED)
    assert world.hits("runs") == 1


def test_two_rollbacks_at_once(world: World, ledger: Ledger, guard: Guard) -> None:
    """While one rollback is decided another one of the agent is refused as pending; the first stands."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    first = guard.begin(world.agent, "c")
    with pytest.raises(RollbackPendingError):
        ledger.authorize_rollback(world.agent, checkpoint="c")
    guard.end()
    assert first.result(PATIENCE_S).authorised


def test_rollback_that_nobody_decides_is_withdrawn(
    world: World, ledger: Ledger, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard that is gone does not hold the branch for ever: its rollback is withdrawn, and then authorises nothing."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    decision = guard.begin(world.agent, "c")
    monkeypatch.setattr(rollbacks, "STALE_ROLLBACK_S", 0.0)
    with ledger.session(world.agent) as opened:
        world.charge(opened, "meanwhile")
        guard.end()
        verdict = decision.result(PATIENCE_S)
        assert (verdict.kind, verdict.crossed) == (VerdictKind.REFUSE, ())
        assert [r.kind for r in verdict.reasons] == [ReasonKind.WITHDRAWN]
    assert not ledger.agent(world.agent).agent.rollbacks[verdict.rollback_id].authorised
    assert world.hits("meanwhile") == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after ROLLBACK_REQUESTED", "after FENCED", "before ROLLBACK_DECIDED"])
@pytest.mark.parametrize("here", [True, False], ids=["on this machine", "on another machine"])
def test_guard_killed_before_its_decision(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, point: str, here: bool
) -> None:
    """A process killed in the middle of its own rollback has authorised nothing; the branch can be opened again.

    At once where it can be told that the process is gone; elsewhere after a while, and until then it is named.
    """
    killed = {"do": "rollback", "id": "c", "die": point, "policy": "gated"}
    world.worker(charge("before"), {"do": "checkpoint", "id": "c"}, charge("after"), killed, armed=True).dies()
    if not here:
        monkeypatch.setattr(rollbacks, "has_ended", lambda *_: False)
        pending = ledger.agent(world.agent).agent.pending
        assert pending is not None
        host, pid = pending.fact.host, pending.fact.pid
        for work in (
            lambda: ledger.session(world.agent).open(),
            lambda: ledger.fork(world.agent, "b", checkpoint="c"),
            lambda: ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated"),
        ):
            with pytest.raises(RollbackPendingError, match=f"process {pid} on {re.escape(host)}") as caught:
                work()
            assert (caught.value.host, caught.value.pid, caught.value.since_ms) == (host, pid, pending.fact.time_ms)
            assert 0 < caught.value.left_s <= rollbacks.STALE_ROLLBACK_S
            assert f"in {caught.value.left_s:.0f} s" in caught.value.next_step
        monkeypatch.setattr(rollbacks, "STALE_ROLLBACK_S", 0.0)
    ledger.fork(world.agent, "b", checkpoint="c")
    with ledger.session(world.agent) as session:
        assert not any(r.authorised for r in ledger.agent(world.agent).agent.rollbacks.values())
        world.charge(session, "after")
    assert world.hits("after") == 1


@pytest.mark.slow
def test_guard_killed_after_its_decision(world: World, ledger: Ledger) -> None:
    """A decision that is in the log holds, although its guard died before it could say so."""
    killed = {"do": "rollback", "id": "c", "die": "after ROLLBACK_DECIDED"}
    world.worker({"do": "checkpoint", "id": "c"}, killed, armed=True).dies()
    with ledger.session(world.agent) as session:
        [rollback] = ledger.agent(world.agent).agent.rollbacks.values()
        assert rollback.authorised
        world.charge(session, "after")
    assert world.hits("after") == 1


def test_many_sessions_open_at_once(world: World, ledger: Ledger) -> None:
    """Of sessions that open a branch at the same time the one with the highest epoch speaks for it; others are over."""
    ledger.session(world.agent).open().close()
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: ledger.session(world.agent).open(), range(4)))
    opened.sort(key=lambda session: session.epoch)
    assert len({session.epoch for session in opened}) == 4
    for loser in opened[:-1]:
        with pytest.raises(FencedError):
            world.charge(loser, f"loser-{loser.epoch}")
    world.charge(opened[-1], "winner")
    assert len(world.hits_file.read_text().splitlines()) == 1
    for session in opened:
        session.close()
