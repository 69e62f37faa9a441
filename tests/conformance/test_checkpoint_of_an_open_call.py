"""A checkpoint that one thread takes while the call of another has not returned: the saved state lacks that effect."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import PATIENCE_S, World

from fencepost.ledger import AgentSession, EffectClass, Ledger, ReasonKind, Reconcile, Resume, at_once
from fencepost.ledger.facts import EffectFact, EffectKind
from fencepost.ledger.operations import Status
from fencepost.ledger.sessions import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger.attempts import Claim


class Halt:
    """Where a call stands still, on the engine's loop, which goes on with others meanwhile, or in its own thread."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = asyncio.Event()
        self.released_here = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = ThreadPoolExecutor(1)

    async def stand(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached.set()
        await asyncio.wait_for(self.released.wait(), PATIENCE_S)

    def stand_here(self) -> None:
        self.reached.set()
        assert self.released_here.wait(PATIENCE_S)

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        """Start it in a thread, and wait until it stands still."""
        future = self.thread.submit(work)
        assert self.reached.wait(PATIENCE_S)
        return future

    def end(self) -> None:
        self.released_here.set()
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.released.set)
        self.thread.shutdown()


@pytest.fixture
def halt() -> Iterator[Halt]:
    halt = Halt()
    yield halt
    halt.end()


@pytest.fixture
def session(world: World) -> Iterator[AgentSession]:
    with world.open().session(world.agent) as session:
        yield session


def halt_commits(halt: Halt, session: AgentSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of this session has its number, and is not published."""
    original = SessionState.publish_effect

    async def publish_effect(state: SessionState, fact: Any, known: Any, **tried: Any) -> Any:
        if state is session.state and fact.kind is EffectKind.COMMITTED:
            await halt.stand()
        return await original(state, fact, known, **tried)

    settled_here = at_once.settled_here

    def settled(claim: Claim, fact: EffectFact) -> bool:
        if claim.session is session.state and not claim.call.unconfirmed:
            halt.stand_here()
        return settled_here(claim, fact)

    monkeypatch.setattr(SessionState, "publish_effect", publish_effect)
    monkeypatch.setattr(at_once, "settled_here", settled)


def halt_absorption(halt: Halt, session: AgentSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this session absorbs has its number, and its result is not handed over."""
    original = SessionState.note_absorbed

    async def note_absorbed(state: SessionState, *args: Any) -> None:
        await original(state, *args)
        if state is session.state:
            await halt.stand()

    known = at_once._known

    def known_at_once(host: Any, *args: Any) -> Claim | None:
        claim = known(host, *args)
        if claim is not None and host.state is session.state:
            halt.stand_here()
        return claim

    monkeypatch.setattr(SessionState, "note_absorbed", note_absorbed)
    monkeypatch.setattr(at_once, "_known", known_at_once)


def save_during_the_commit(
    world: World, session: AgentSession, halt: Halt, monkeypatch: pytest.MonkeyPatch, checkpoint: str = "c"
) -> None:
    """The tool has run and its call has not returned when the checkpoint is taken; then it is committed."""
    halt_commits(halt, session, monkeypatch)
    running = halt.begin(lambda: world.charge(session, "order"))
    session.checkpoint(checkpoint)
    halt.end()
    running.result(PATIENCE_S)
    world.status(world.op_id("order"), Status.COMMITTED)


def test_a_commit_under_way_is_not_known_to_the_checkpoint(
    world: World, ledger: Ledger, session: AgentSession, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going back to it is refused over the effect, though the effect's number is not beyond the watermark."""
    save_during_the_commit(world, session, halt, monkeypatch)
    assert ledger.replay_forward(world.agent, since="c")[0].op_id == world.op_id("order")
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert [(r.kind, r.effect and r.effect.op_id) for r in verdict.reasons] == [
        (ReasonKind.EFFECT_NOT_KNOWN, world.op_id("order"))
    ]


def test_a_state_saved_during_a_commit_is_not_resumed_as_it_is(
    world: World, ledger: Ledger, session: AgentSession, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent must first learn the effect, and is given its recorded result."""
    save_during_the_commit(world, session, halt, monkeypatch)
    answer = ledger.resume(world.agent, checkpoint="c", summary_generation=0, state="nothing charged yet")
    assert isinstance(answer, Reconcile)
    assert [effect.op_id for effect in answer.effects] == [world.op_id("order")]
    assert answer.open_operations == {world.op_id("order"): "committed"}


def test_what_was_open_stays_unknown_after_going_on_from_there(
    world: World, ledger: Ledger, session: AgentSession, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that starts from such a checkpoint knows the effect only once it has taken it over."""
    save_during_the_commit(world, session, halt, monkeypatch)
    mark = ledger.checkpoints(world.agent)[0].mark
    with ledger.session(world.agent, resumed_from=mark) as later:
        later.checkpoint("before")
        assert isinstance(ledger.resume(world.agent, checkpoint="before", summary_generation=0), Reconcile)
        assert [op.op_id for op in later.replay_forward()] == [world.op_id("order")]
        later.checkpoint("after")
        assert isinstance(ledger.resume(world.agent, checkpoint="after", summary_generation=0), Resume)


def test_a_result_that_is_not_handed_over_is_not_known_to_the_checkpoint(
    world: World, ledger: Ledger, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the session absorbs counts for a checkpoint once its call has returned, not before."""
    with ledger.session(world.agent) as first:
        mark = first.checkpoint("start")
        world.charge(first, "order")
    with world.open().session(world.agent, resumed_from=mark) as session:
        halt_absorption(halt, session, monkeypatch)
        running = halt.begin(lambda: world.charge(session, "order"))
        session.checkpoint("during")
        halt.end()
        running.result(PATIENCE_S)
        session.checkpoint("after")
        assert isinstance(ledger.resume(world.agent, checkpoint="after", summary_generation=0), Resume)
        assert isinstance(ledger.resume(world.agent, checkpoint="during", summary_generation=0), Reconcile)
        assert not ledger.authorize_rollback(world.agent, checkpoint="during").authorised


def test_a_watermark_stands_before_a_call_that_has_not_returned(
    world: World, session: AgentSession, halt: Halt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is replayed from it holds the effect; the next one, taken after the call, stands behind it."""
    halt_commits(halt, session, monkeypatch)
    running = halt.begin(lambda: world.charge(session, "order"))
    during = session.watermark()
    halt.end()
    running.result(PATIENCE_S)
    settled = world.status(world.op_id("order"), Status.COMMITTED).settled
    assert settled is not None
    assert during.seq < settled.seq <= session.watermark().seq
    replayed = world.ledger.replay_forward(world.agent, since=during)
    assert [op.op_id for op in replayed] == [world.op_id("order")]


@pytest.mark.parametrize("way", ["call", "attempt", "recorded result"])
def test_a_call_that_has_returned_is_known(world: World, ledger: Ledger, session: AgentSession, way: str) -> None:
    """Nothing stays open behind a call, whichever way it was made."""
    if way == "attempt":
        with session.attempt("billing.charge", key=world.key("order"), kind=EffectClass.IRREVERSIBLE) as attempt:
            assert attempt.owned
            attempt.commit()
    else:
        world.charge(session, "order")
    if way == "recorded result":
        world.charge(session, "order")
    session.checkpoint("c")
    assert ledger.checkpoints(world.agent)[0].fact.owned == ()
    assert isinstance(ledger.resume(world.agent, checkpoint="c", summary_generation=0), Resume)
