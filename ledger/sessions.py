"""Sessions: their facts are numbered; checkpoints, forks, reported calls, closing. Opening is in `opening.py`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from . import log_keys
from .engine import Engine
from .errors import (
    AlreadyExistsError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    OutcomeUnknownError,
    RollbackPendingError,
    StoreError,
)
from .facts import AgentFact, AgentKind, Crossed, EffectClass, EffectFact, EffectKind
from .history import History
from .identity import check_id, check_op_id
from .lineage import Branch, Checkpoint, all_checkpoints
from .positions import Position
from .watermarks import Point, Watermark

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

    async def publish_effect(self, fact: EffectFact, known: History) -> int | None:
        """As `publish`, for a fact of an operation, on top of the history that is known."""
        try:
            return await self.engine.publish_effect(fact, known)
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
    if state_digest != "":
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
    registered = await engine.applied(
        partition, applied, deadline=deadline, beyond=offset, what=f"checkpoint {checkpoint_id}"
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
    branch = await engine.applied(partition, applied, deadline=deadline, beyond=offset, what=f"the fork {branch_id}")
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
    check_op_id(op_id)
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
        await state.publish_effect(fact, facts)
        state.open_attempts.pop(attempt_id, None)
