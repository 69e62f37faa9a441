"""Sessions: their facts are numbered; checkpoints, reported calls, closing. Opening is in `opening.py`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from . import log_keys
from .contexts import ID_TAKEN, Checkpoint
from .engine import Engine, Tried
from .errors import (
    AlreadyExistsError,
    FencedError,
    GenerationConflictError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StoreError,
)
from .facts import AgentFact, AgentKind, Crossed, EffectClass, EffectFact, EffectKind
from .history import History
from .identity import check_id
from .positions import Position
from .sequence import Sequence
from .verdicts import NOBODY, Word
from .watermarks import Point, Watermark

Publishing = Callable[[], Coroutine[Any, Any, "int | None"]]
_GIVEN_UP = frozenset({AgentKind.CHECKPOINTED, AgentKind.COMPACTED})
CLOSING_S = 5.0
"""How long the close of a session may wait until it is applied."""


@dataclass(slots=True)
class OpenAttempt:
    """An attempt of this session that is not decided.

    Attributes:
        started: once its effect may have begun.
        written: once its intent was acknowledged.
        intent_seq: the number of its intent.
        given_up: once it certainly never starts: it is being withdrawn.
    """

    op_id: str
    round: int
    started: bool = False
    written: bool = False
    intent_seq: int = 0
    given_up: bool = False


class Standing(NamedTuple):
    """What a state that is saved at one moment can know: what was written up to a number, but not what was open then."""

    seq: int
    open_operations: tuple[str, ...]


@dataclass(slots=True)
class SessionState:
    """A session that this process speaks for.

    Attributes:
        unreturned: op_id → the number of the fact that says that it is done, of those whose call has not returned:
            the agent cannot know of them yet.
        marked: the highest number at which a checkpoint or a compaction of this session stands.
        generation: of the context that it works with; moves on when a compaction counts.
        held: op ids of which this session has left word in the log that they are held.
        refused: op id → (digest of the identity arguments, arguments) of what was held in this session last, whether
            or not word of it was left.
        repeats: whether the last call found its effect done before, so that the next one may as well: a guess.
        turn: held by whoever registers a checkpoint or records a compaction: one at a time, so that
            no checkpoint falls between two generations.
    """

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
    unreturned: dict[str, int] = field(default_factory=dict)
    marked: int = 0
    crossed: dict[str, Crossed] = field(default_factory=dict)
    declared: dict[str, AgentFact] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    unknown: dict[int, tuple[Publishing, BaseException]] = field(default_factory=dict)
    generation: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: str = ""
    repeats: bool = True
    _deciding: threading.Lock = field(default_factory=threading.Lock)

    def mark(self, seq: int) -> Watermark:
        """The watermark of this session at a sequence number."""
        return Watermark(self.engine.ledger_id, self.agent_id, self.branch_id, self.epoch, seq)

    def open_operations(self) -> tuple[str, ...]:
        """The operations of which an attempt of this session is not decided, or the call has not returned."""
        # First the attempts: what is decided counts as not returned before it leaves them.
        attempts = list(self.open_attempts.values())
        return tuple(sorted({attempt.op_id for attempt in attempts if not attempt.given_up} | set(self.unreturned)))

    def standing(self) -> Standing:
        """What can be known now, from any thread: whatever is numbered was open, or returned before."""
        with self._deciding:
            return Standing(self.sequence.tell(), self.open_operations())

    def known_seq(self) -> int:
        """The number up to which the agent can know all that this session has written, its open attempts left aside."""
        with self._deciding:
            last = self.sequence.tell()
            before = [seq - 1 for seq in list(self.unreturned.values())]
            return max(self.marked, min([last, *before]))

    def returned(self, *op_ids: str) -> None:
        """Say that what became of these operations is in the caller's hands."""
        with self._deciding:
            for op_id in op_ids:
                self.unreturned.pop(op_id, None)

    def unreturning(self, op_id: str) -> None:
        """Say that a call's next number says that its operation is done: to be said before it is taken."""
        self.unreturned.setdefault(op_id, self.sequence.last + 1)

    def finds(self, settled: EffectFact) -> None:
        """Note that an outcome stands in the log: perhaps of an attempt of its own of which nobody knew that."""
        if settled.attempt_id in self.open_attempts:
            if settled.seq:
                self.unreturned.setdefault(settled.op_id, settled.seq)
            self.open_attempts.pop(settled.attempt_id, None)

    def starts(self, attempt_id: str) -> bool:
        """Note that the effect of an attempt may begin now. False: it was given up, so it must not."""
        with self._deciding:
            mine = self.open_attempts.get(attempt_id)
            if mine is None or mine.given_up:
                return False
            mine.started = True
            return True

    def told(self, attempt_id: str, *, ran: bool) -> None:
        """Note what is said of an attempt: its effect was begun, permitted or not; or it was refused the permit."""
        with self._deciding:
            if (mine := self.open_attempts.get(attempt_id)) is not None:
                mine.started, mine.given_up = ran, not ran

    def gives_up(self, attempt: OpenAttempt) -> bool:
        """Note that an attempt never starts. False: it has."""
        with self._deciding:
            attempt.given_up = not attempt.started
            return attempt.given_up

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
        """Publish a numbered fact. Its number is accounted for, whatever becomes of the record.

        Certainly not written: voided. Not known: the very same fact is published by the next `drain`
        (a repeat of it changes nothing); but a checkpoint or compaction that its caller has given up
        must not begin to count later because of that, so its number means nothing any more.
        """
        again = functools.partial(self.engine.publish_agent, key, fact)
        return await self._accounted(fact.seq, again, again=fact.kind not in _GIVEN_UP)

    async def publish_effect(self, fact: EffectFact, known: History, *, tried: Tried | None = None) -> int | None:
        """Publish a numbered fact of an operation. If it is not known whether it is written, its number means nothing.

        Without an outcome the operation stays open for everybody, so nothing is hidden by that.

        Args:
            tried: of the same fact, before.
        """
        before = {"tried": tried} if tried else {}
        publish = functools.partial(self.engine.publish_effect, fact, known, **before)
        return await self._accounted(fact.seq, publish, again=False)

    async def _accounted(self, seq: int, publish: Publishing, *, again: bool) -> int | None:
        try:
            offset = await publish()
        except (OutcomeUnknownError, asyncio.CancelledError) as error:  # interrupted, nobody knows either
            if again:
                self.unknown.setdefault(seq, (publish, error))
            else:
                self.sequence.discount(seq)
            raise
        except Exception:
            self.sequence.void(seq)
            raise
        self.unknown.pop(seq, None)
        return offset

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
        """Wait until all that was published is acknowledged; what nobody knows of is published again."""
        while self.background:
            await asyncio.gather(*list(self.background), return_exceptions=True)
            await asyncio.sleep(0)
        for seq, (publish, former) in sorted(self.unknown.items()):
            await self._accounted(seq, publish, again=True)
            self.failures = [failure for failure in self.failures if failure is not former]
        if self.failures:
            failure = self.failures[0]
            self.failures.clear()
            raise failure

    async def note_absorbed(self, op_id: str, round_number: int, tool: str) -> None:
        """Put an operation that somebody else settled into this session's sequence (once)."""
        if (op_id, round_number) not in self.absorbed:
            await self.noting(self.absorbing(op_id, round_number, tool))

    async def absorb(self, op_id: str, round_number: int, tool: str) -> tuple[str, AgentFact, int | None]:
        """The same, acknowledged by the log: the key, the fact, and the offset of what was written."""
        fact = self.absorbing(op_id, round_number, tool)
        return log_keys.absorbed(self.agent_id, self.session_id, op_id), fact, await self._publish_absorbed(fact)

    async def noting(self, fact: AgentFact) -> None:
        """Publish an `absorbing` fact; it is not waited for."""
        self.in_background(self._publish_absorbed(fact))

    def absorbing(self, op_id: str, round_number: int, tool: str) -> AgentFact:
        """The fact, numbered now: what is numbered later comes after it. From any thread.

        The call counts as not returned before there is a number that a checkpoint could know it by.
        """
        self.absorbed.add((op_id, round_number))
        self.unreturning(op_id)
        seq = self.sequence.take()
        return self.fact(AgentKind.ABSORBED, op_id=op_id, round=round_number, tool=tool, seq=seq)

    def unnoted(self, fact: AgentFact) -> None:
        """An `absorbing` fact that is not published: its number means nothing, and the next call notes it again."""
        self.sequence.discount(fact.seq)
        self.absorbed.discard((fact.op_id, fact.round))
        self.returned(fact.op_id)

    async def _publish_absorbed(self, fact: AgentFact) -> int | None:
        try:
            return await self.publish(log_keys.absorbed(self.agent_id, self.session_id, fact.op_id), fact)
        except BaseException:
            self.absorbed.discard((fact.op_id, fact.round))  # the next time that it is absorbed, it is noted
            raise


# -- checkpoints, forks, calls, closing ------------------------------------------------


async def checkpoint(
    state: SessionState,
    checkpoint_id: str,
    *,
    state_digest: str = "",
    generation: int | None = None,
    standing: Standing | None = None,
) -> Watermark:
    """Register a checkpoint: all that this session has written so far is known to it.

    What is open when it is called is not known to it: an operation that is not decided, or whose call
    has not returned.

    1. wait for the session's turn: no compaction of its context is under way; 2. drain what it has
    published; 3. publish CHECKPOINTED with the watermark and the operations that were open at the call;
    4. wait until it is applied and counts.

    Args:
        generation: of the context that the checkpoint holds; the session's present one if not given.
        standing: of the session when it was called for, in the caller's thread; the present one if not given.

    Raises:
        FencedError: the session is over.
        AlreadyExistsError: the id is registered at another point.
        GenerationConflictError: the branch's context is at another generation.
        StaleProjectionError: not applied in time; registering it again is safe.
    """
    state.require_live()
    if state_digest != "":
        check_id("state_digest", state_digest)
    # All as of the call: what others do while it waits for its turn is not in the caller's state.
    standing = standing or state.standing()
    generation = state.generation if generation is None else generation
    require_generation(generation)
    fact = state.fact(
        AgentKind.CHECKPOINTED,
        checkpoint_id=checkpoint_id,
        watermark=(mark := state.mark(standing.seq)).token,
        owned=standing.open_operations,
        generation=generation,
        state_digest=state_digest,
    )
    async with state.turn:
        await state.drain()
        registered = await _register(state, fact, mark)
    if registered.rejected == ID_TAKEN:
        raise AlreadyExistsError(
            f"checkpoint: {checkpoint_id} is registered at another point of {state.agent_id}.",
            next_step="Choose an id that was never used.",
            field="checkpoint",
        )
    if registered.of_another_generation:
        raise GenerationConflictError(
            f"checkpoint {checkpoint_id} does not count: {registered.rejected}.",
            next_step="Take the checkpoint from the context as it is after its last compaction.",
            given=generation,
            current=registered.current_generation,
        )
    if registered.rejected:
        state.ended = registered.rejected
        state.require_live()
    state.marked = max(state.marked, mark.seq)
    return mark


async def _register(state: SessionState, unnumbered: AgentFact, mark: Watermark) -> Checkpoint:
    """Steps 3 and 4: the checkpoint as the log judged it."""
    voided = tuple(sorted(state.sequence.voided))
    fact = replace(unnumbered, voided=voided, seq=state.sequence.take())
    engine, checkpoint_id = state.engine, fact.checkpoint_id
    offset = await state.publish(log_keys.checkpoint(state.agent_id, checkpoint_id), fact)

    async def applied() -> Checkpoint | None:
        view = await engine.view.agent(state.agent_id)
        found = view.context.every
        mine = [c for c in found if c.fact.session_id == state.session_id and c.fact.seq == fact.seq]
        same = [c for c in found if c.checkpoint_id == checkpoint_id and c.mark == mark]
        return next(iter(mine or same), None)

    return await engine.applied(
        engine.view.agents_partition(state.agent_id),
        applied,
        deadline=engine.clock.monotonic() + engine.limits.apply_s,
        beyond=offset,
        what=f"checkpoint {checkpoint_id}",
    )


def require_generation(value: object, field: str = "generation") -> None:
    """Raises InvalidArgumentError unless `value` can number a generation."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidArgumentError(
            f"{field}: {value!r:.80} is not a whole number from 0.", next_step="Count from 0.", field=field
        )


async def report_call(
    state: SessionState, tool: str, effect_class: EffectClass, *, order_safe: bool = False, word: Word = NOBODY
) -> None:
    """Record a call that did not go through the ledger, so that the guard counts it."""
    state.require_live()
    seq = state.sequence.take()
    fact = state.fact(
        AgentKind.CALL_REPORTED,
        tool=tool,
        effect_class=effect_class,
        order_safe=order_safe,
        by=word.by,
        evidence=word.evidence,
        seq=seq,
    )
    await state.publish(log_keys.call(state.agent_id, state.session_id, seq), fact)


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
    """Attempts of which nobody has heard, or that were refused, are withdrawn; the others are in doubt."""
    for attempt_id, attempt in list(state.open_attempts.items()):
        _, facts = await state.engine.view.folded(attempt.op_id)
        withdrawn = state.gives_up(attempt)  # another thread may be about to start it
        fact = EffectFact(
            kind=EffectKind.FAILED if withdrawn else EffectKind.IN_DOUBT,
            op_id=attempt.op_id,
            attempt_id=attempt_id,
            agent_id=state.agent_id,
            branch_id=state.branch_id,
            session_id=state.session_id,
            epoch=state.epoch,
            seq=state.sequence.take(),
            round=attempt.round,
            reason="its session was closed before it was decided",
            intent_seq=attempt.intent_seq if withdrawn else 0,
            time_ms=state.engine.clock.wall_ms(),
        )
        await state.publish_effect(fact, facts)
        state.open_attempts.pop(attempt_id, None)
