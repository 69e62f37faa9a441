"""Sessions: opening one fences its predecessor; its facts are numbered; checkpoints; closing.

Opening (each later session is fenced off from what came before it, as a rollback is):
    1. read the agent; choose the point that the session resumes from
    2. publish SESSION_OPENED and wait until it is applied; its position is the epoch
    3. fence the predecessor in every partition of the effects log and wait for it
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from . import log_keys
from .engine import Engine, here
from .errors import (
    AlreadyExistsError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    RollbackPendingError,
    StaleProjectionError,
    StoreError,
    StoreUnavailableError,
)
from .facts import AgentFact, AgentKind, Crossed, EffectClass, EffectFact, EffectKind
from .guard import Reason, ReasonKind
from .identity import check_id
from .lineage import ROOT, Branch, Checkpoint, Session, all_checkpoints
from .positions import Position
from .view import AgentView
from .watermarks import Point, Watermark

STALE_ROLLBACK_S = 60.0
"""A rollback that nobody decided for so long may be withdrawn by whoever needs the branch."""
CLOSING_S = 5.0
"""How long the close of a session may wait until it is applied."""


class Sequence:
    """Gives out a session's sequence numbers and remembers which were certainly never written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last = 0
        self.voided: set[int] = set()

    def take(self) -> int:
        """The next number."""
        with self._lock:
            self.last += 1
            return self.last

    def void(self, number: int) -> None:
        """Say that the fact with this number was certainly not written."""
        with self._lock:
            if number == self.last:
                self.last -= 1
            else:
                self.voided.add(number)

    def discount(self, number: int) -> None:
        """Say that the fact with this number means nothing any more, whether it was written or not."""
        with self._lock:
            self.voided.add(number)


@dataclass(slots=True)
class OpenAttempt:
    """An attempt of this session that is not decided.

    Attributes:
        started: once its effect may have begun.
        written: once its intent was acknowledged.
    """

    op_id: str
    round: int
    started: bool = False
    written: bool = False


@dataclass(slots=True)
class SessionState:
    """A session that this process speaks for."""

    engine: Engine
    agent_id: str
    branch_id: str
    session_id: str
    epoch: Position
    parent: Point
    segment: str
    scope: str = ""
    sequence: Sequence = field(default_factory=Sequence)
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)
    open_attempts: dict[str, OpenAttempt] = field(default_factory=dict)
    absorbed: set[tuple[str, int]] = field(default_factory=set)
    crossed: dict[str, Crossed] = field(default_factory=dict)
    declared: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: str = ""

    def mark(self, seq: int) -> Watermark:
        """The watermark of this session at a sequence number."""
        return Watermark(self.engine.ledger_id, self.agent_id, self.branch_id, self.epoch, seq)

    def require_live(self) -> None:
        """Raises FencedError once this session is over."""
        if self.ended:
            raise FencedError(
                f"session {self.session_id} of {self.agent_id}/{self.branch_id} is over: {self.ended}.",
                next_step="Open a new session and replay forward.",
                session_id=self.session_id,
                reason=self.ended,
            )

    def fact(self, kind: AgentKind, **values: Any) -> AgentFact:
        """An agent fact of this session, without a number."""
        return AgentFact(
            kind=kind,
            agent_id=self.agent_id,
            branch_id=self.branch_id,
            session_id=self.session_id,
            epoch=self.epoch,
            segment=self.segment,
            time_ms=self.engine.clock.wall_ms(),
            **values,
        )

    async def publish(self, key: str, fact: AgentFact) -> int | None:
        """Publish a numbered fact; its number is voided if it was certainly not written."""
        try:
            return await self.engine.publish_agent(key, fact)
        except OutcomeUnknownError:
            raise
        except Exception:
            self.sequence.void(fact.seq)
            raise

    # -- background publishing ---------------------------------------------------------

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Publish without being waited for; `drain` waits, and raises what went wrong."""
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def drain(self) -> None:
        """Wait until all that was published in the background is acknowledged."""
        while self.background:
            await asyncio.gather(*list(self.background), return_exceptions=True)
            await asyncio.sleep(0)
        if self.failures:
            failure = self.failures[0]
            self.failures.clear()
            raise failure

    async def note_absorbed(self, op_id: str, round_number: int, tool: str) -> None:
        """Put an operation that somebody else settled into this session's sequence (once)."""
        if (op_id, round_number) in self.absorbed:
            return
        self.absorbed.add((op_id, round_number))
        fact = self.fact(AgentKind.ABSORBED, op_id=op_id, round=round_number, tool=tool, seq=self.sequence.take())
        key = log_keys.absorbed(self.agent_id, self.session_id, op_id)

        async def note() -> None:
            try:
                await self.publish(key, fact)
            except BaseException:
                self.absorbed.discard((op_id, round_number))  # the next time that it is absorbed, it is noted
                raise

        self.in_background(note())


# -- opening ---------------------------------------------------------------------------


async def open_session(
    engine: Engine,
    agent_id: str,
    branch_id: str,
    *,
    resumed_from: Watermark | None = None,
    scope: str = "",
) -> SessionState:
    """Open a session that speaks for a branch from now on.

    Args:
        resumed_from: the watermark in the state that the agent was restored from. Without it:
            the end of the predecessor if that was closed, else its last checkpoint, since the
            memory of a process that died is gone.
        scope: the unit of work for derived op ids.

    Raises:
        RefusedError: the watermark is of another ledger or agent, or ahead of the ledger.
        RollbackPendingError: a rollback of the branch is being decided; try again.
        FencedError: the branch is closed.
        StaleProjectionError: the projection does not catch up in time; try again.
    """
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    opened: Session | str = ""
    pending = None
    for _ in range(10):
        view = await engine.patiently(functools.partial(engine.view.agent, agent_id), deadline=deadline)
        pending = view.agent.pending
        await _withdraw_if_stale(engine, view)
        opened = await _try_open(engine, view, branch_id, resumed_from=resumed_from, deadline=deadline)
        if isinstance(opened, Session):
            return await _take_over(engine, agent_id, opened, deadline=deadline, scope=scope)
        if not ("another segment" in opened or "being decided" in opened):
            raise FencedError(
                f"no session can be opened on {agent_id}/{branch_id}: {opened}.",
                next_step="Open one on another branch, or see `fencepost agents show`.",
                session_id="",
                reason=opened,
            )
        await asyncio.sleep(0.2)
    raise RollbackPendingError(
        f"no session can be opened on {agent_id}/{branch_id} now: {opened}.",
        next_step="Wait for the decision; see `fencepost agents show`.",
        rollback_id=pending.rollback_id if pending else "",
    )


async def _try_open(
    engine: Engine, view: AgentView, branch_id: str, *, resumed_from: Watermark | None, deadline: float
) -> Session | str:
    agent_id = view.agent.agent_id
    branch = view.agent.branches.get(branch_id)
    if resumed_from is not None:
        await check_watermark(engine, view, resumed_from)
        point = resumed_from.point
    else:
        point = resume_point(branch, view.checkpoints)
    session_id = engine.new_id()
    host, pid = here()
    fact = AgentFact(
        kind=AgentKind.SESSION_OPENED,
        agent_id=agent_id,
        branch_id=branch_id,
        session_id=session_id,
        segment=branch.segment if branch else "",
        watermark="" if point == ROOT else Watermark(engine.ledger_id, agent_id, branch_id, *point).token,
        host=host,
        pid=pid,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(log_keys.session(agent_id, session_id), fact)
    partition = engine.view.agents_partition(agent_id)

    async def applied() -> Session | None:
        return (await engine.view.agent(agent_id)).agent.sessions.get(session_id)

    session = await engine.wait_until(partition, applied, deadline=deadline, beyond=offset)
    if session is None:
        raise StaleProjectionError(
            f"the opening of a session on {agent_id}/{branch_id} was not applied in time.",
            next_step="See `fencepost projector lag`; start one with `fencepost projector run`.",
            partition=str(partition),
        )
    return session.rejected or session


async def _take_over(engine: Engine, agent_id: str, session: Session, *, deadline: float, scope: str) -> SessionState:
    view = await engine.patiently(functools.partial(engine.view.agent, agent_id), deadline=deadline)
    branch = view.agent.branches[session.branch_id]
    if branch.sessions[0].session_id != session.session_id:
        await engine.fence(
            agent_id, [session.branch_id], session.epoch, deadline=deadline, reason="a new session opened"
        )
    state = SessionState(
        engine, agent_id, session.branch_id, session.session_id, session.epoch, session.parent,
        session.segment, scope,
    )  # fmt: skip
    state.crossed = view.agent.crossed(session.branch_id)
    state.declared = view.agent.declared
    with contextlib.suppress(StoreUnavailableError):  # advisory, but it is heard of from the beginning
        await engine.store.projection.beat([session.session_id])
    engine.begin_beating(session.session_id)
    return state


def resume_point(branch: Branch | None, checkpoints: dict[str, Checkpoint]) -> Point:
    """What a session knows that does not say what it was restored from."""
    if branch is None:
        return ROOT
    head = branch.head
    if head is None or head.segment != branch.segment:
        return branch.origin
    if head.sealed_seq is not None:
        return Point(head.epoch, head.sealed_seq)
    marks = [c.mark.point for c in checkpoints.values() if c.mark and c.mark.epoch == head.epoch]
    return max(marks, default=head.parent)


async def check_watermark(engine: Engine, view: AgentView, mark: Watermark) -> None:
    """Raises RefusedError unless the watermark is of this ledger and agent and not ahead of it."""
    session = view.agent.by_epoch(mark.epoch)
    reason = None
    if mark.ledger_id != engine.ledger_id or mark.agent_id != view.agent.agent_id:
        reason = Reason(
            ReasonKind.WATERMARK_OF_ANOTHER_LEDGER,
            f"the watermark belongs to ledger {mark.ledger_id}, agent {mark.agent_id}; "
            f"this is ledger {engine.ledger_id}, agent {view.agent.agent_id}",
        )
    elif session is None or mark.seq > await engine.view.written(session, view.checkpoint_facts):
        reason = Reason(
            ReasonKind.WATERMARK_AHEAD,
            f"the watermark stands at {mark.epoch}/{mark.seq}, which this ledger does not know",
        )
    if reason is not None:
        raise RefusedError(
            f"watermark: {reason.text}.",
            next_step="Use the ledger that the watermark names, or let an operator reconcile.",
            field="watermark",
            reason=reason,
        )


async def _withdraw_if_stale(engine: Engine, view: AgentView) -> None:
    """Decide, as withdrawn, a rollback whose guard is gone; the first decision counts."""
    pending = view.agent.pending
    if pending is None or view.header.now_ms - pending.fact.time_ms < STALE_ROLLBACK_S * 1000:
        return
    fact = AgentFact(
        kind=AgentKind.ROLLBACK_DECIDED,
        agent_id=view.agent.agent_id,
        branch_id=pending.branch_id,
        rollback_id=pending.rollback_id,
        verdict="WITHDRAWN",
        reasons=("its guard did not decide",),
        time_ms=engine.clock.wall_ms(),
    )
    await engine.publish_agent(log_keys.rollback(view.agent.agent_id, pending.rollback_id), fact)


# -- checkpoints, forks, calls, closing ------------------------------------------------


async def checkpoint(
    state: SessionState, checkpoint_id: str, *, state_digest: str = "", generation: int = 0
) -> Watermark:
    """Register a checkpoint: all that this session has written so far is known to it.

    1. drain what the session has published; 2. publish CHECKPOINTED with the watermark and the
    operations that are still open; 3. wait until it is applied and counts.

    Raises:
        FencedError: the session is over.
        AlreadyExistsError: the id is registered at another point.
        StaleProjectionError: not applied in time; registering it again is safe.
    """
    state.require_live()
    if state_digest:
        check_id("state_digest", state_digest)
    _require_generation(generation)
    seq = state.sequence.last
    await state.drain()
    mark = state.mark(seq)
    fact = state.fact(
        AgentKind.CHECKPOINTED,
        checkpoint_id=checkpoint_id,
        watermark=mark.token,
        owned=tuple(sorted({a.op_id for a in state.open_attempts.values()})),
        generation=generation,
        state_digest=state_digest,
        voided=tuple(sorted(state.sequence.voided)),
        seq=state.sequence.take(),
    )
    engine = state.engine
    offset = await state.publish(log_keys.checkpoint(state.agent_id, checkpoint_id), fact)

    async def applied() -> Checkpoint | None:
        view = await engine.view.agent(state.agent_id)
        found = all_checkpoints(view.agent, view.checkpoint_facts)
        mine = [c for c in found if c.fact.session_id == state.session_id and c.fact.seq == fact.seq]
        same = [c for c in found if c.checkpoint_id == checkpoint_id and c.mark == mark]
        return next(iter(mine or same), None)

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(state.agent_id)
    registered = await engine.wait_until(partition, applied, deadline=deadline, beyond=offset)
    if registered is None:
        raise StaleProjectionError(
            f"checkpoint {checkpoint_id} was not applied in time.",
            next_step="Register it again; see `fencepost projector lag`.",
            partition=str(partition),
        )
    if registered.rejected == "its id was taken":
        raise AlreadyExistsError(
            f"checkpoint: {checkpoint_id} is registered at another point of {state.agent_id}.",
            next_step="Choose an id that was never used.",
            field="checkpoint",
        )
    if registered.rejected:
        state.ended = registered.rejected
        state.require_live()
    return mark


def _require_generation(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidArgumentError(
            f"generation: {value!r} is not a whole number from 0.", next_step="Count from 0.", field="generation"
        )


async def fork(engine: Engine, agent_id: str, branch_id: str, *, checkpoint_id: str) -> None:
    """Begin a branch at a checkpoint. Siblings share op ids: the first commit wins.

    Raises NotFoundError, AlreadyExistsError, FencedError (an abandoned stretch).
    """
    view = await engine.view.known_agent(agent_id)
    registered = view.checkpoints.get(checkpoint_id)
    if registered is None or registered.mark is None:
        raise NotFoundError(
            f"checkpoint {checkpoint_id} of {agent_id} is not registered.",
            next_step="List them with `fencepost checkpoints list`.",
            field="checkpoint",
        )
    if view.agent.pending:
        raise RollbackPendingError(
            f"a rollback of {agent_id} is being decided.",
            next_step="Fork when it is decided; see `fencepost agents show`.",
            rollback_id=view.agent.pending.rollback_id,
        )
    if branch_id in view.agent.branches:
        raise AlreadyExistsError(
            f"branch: {branch_id} of {agent_id} exists.",
            next_step="Open a session on it, or choose another name.",
            field="branch",
        )
    fact = AgentFact(
        kind=AgentKind.FORKED,
        agent_id=agent_id,
        branch_id=branch_id,
        parent_branch_id=registered.branch_id,
        checkpoint_id=checkpoint_id,
        watermark=registered.mark.token,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(log_keys.branch(agent_id, branch_id), fact)

    async def applied() -> Branch | None:
        return (await engine.view.agent(agent_id)).agent.branches.get(branch_id)

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(agent_id)
    branch = await engine.wait_until(partition, applied, deadline=deadline, beyond=offset)
    if branch is None:
        raise StaleProjectionError(
            f"the fork {branch_id} was not applied in time.",
            next_step="See `fencepost projector lag`.",
            partition=str(partition),
        )
    if branch.forbidden:
        raise FencedError(
            f"branch {branch_id} cannot be used: {branch.forbidden}.",
            next_step="Fork from a checkpoint that still stands.",
            session_id="",
            reason=branch.forbidden,
        )


async def report_call(state: SessionState, tool: str, effect_class: EffectClass, *, order_safe: bool = False) -> None:
    """Record a call that did not go through the ledger, so that the guard counts it."""
    state.require_live()
    seq = state.sequence.take()
    fact = state.fact(AgentKind.CALL_REPORTED, tool=tool, effect_class=effect_class, order_safe=order_safe, seq=seq)
    await state.publish(log_keys.call(state.agent_id, state.session_id, seq), fact)


async def declare(state: SessionState, op_id: str, *, same_as: str | None) -> None:
    """Declare an attempt that is held after a gated rollback: new, or the same as a crossed effect."""
    state.require_live()
    if same_as is not None and same_as not in state.crossed:
        raise InvalidArgumentError(
            f"same_as: {same_as} is none of the effects that the rollback went back over.",
            next_step="Choose one of: " + ", ".join(sorted(state.crossed)),
            field="same_as",
        )
    declared = ("new", "") if same_as is None else ("same", same_as)
    fact = state.fact(
        AgentKind.DIVERGENCE_DECLARED,
        op_id=op_id,
        declared_as=declared[0],
        other_op_id=declared[1],
        seq=state.sequence.take(),
    )
    key = log_keys.rollback(state.agent_id, f"declared-{state.engine.new_id()}")
    await state.publish(key, fact)
    state.declared[op_id] = declared


async def close_session(state: SessionState) -> None:
    """Seal the session's last number. Attempts that are still open are recorded as in doubt.

    Raises what background publishing raised; the session is closed all the same.
    """
    engine = state.engine
    engine.stop_beating(state.session_id)
    if state.ended:
        await state.drain()
        return
    try:
        await _decide_open_attempts(state)
        await state.drain()
    finally:
        seq = state.sequence.take()
        fact = state.fact(
            AgentKind.SESSION_CLOSED,
            sealed_seq=seq,
            seq=seq,
            voided=tuple(sorted(state.sequence.voided)),
        )
        state.ended = "closed"
        offset = await engine.publish_agent(log_keys.session(state.agent_id, state.session_id), fact)
        await _wait_for_the_end(state, offset)


async def _wait_for_the_end(state: SessionState, offset: int | None) -> None:
    """Give the projection a moment, so that a session opened right after finds where this one ended."""
    engine = state.engine
    partition = engine.view.agents_partition(state.agent_id)

    async def applied() -> bool | None:
        header = (await engine.view.read(partition, [])).header
        return True if offset is None or header.applied_offset > offset else None

    deadline = engine.clock.monotonic() + min(engine.limits.apply_s, CLOSING_S)
    with contextlib.suppress(StoreError):
        await engine.wait_until(partition, applied, deadline=deadline, beyond=offset)


async def _decide_open_attempts(state: SessionState) -> None:
    """Attempts that were never started are withdrawn, the others are in doubt."""
    for attempt_id, attempt in list(state.open_attempts.items()):
        _, facts = await state.engine.view.folded(attempt.op_id)
        fact = EffectFact(
            kind=EffectKind.IN_DOUBT if attempt.started else EffectKind.FAILED,
            op_id=attempt.op_id,
            attempt_id=attempt_id,
            agent_id=state.agent_id,
            branch_id=state.branch_id,
            session_id=state.session_id,
            epoch=state.epoch,
            seq=state.sequence.take(),
            round=attempt.round,
            reason="its session was closed before it was decided",
            time_ms=state.engine.clock.wall_ms(),
        )
        await state.engine.publish_effect(fact, facts)
        state.open_attempts.pop(attempt_id, None)
