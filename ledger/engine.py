"""The engine: one background event loop a process, on which the protocol runs.

Both faces use it: a synchronous call waits for the future, an asyncio call awaits it. The
protocol's modules (`sessions.py`, `attempts.py`, `rollbacks.py`, `resolutions.py`) get all that
they need from here: the store, the view, a clock, ids, and publishing that is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import log_keys
from . import projection as docs
from .errors import (
    FencepostError,
    GuaranteeError,
    OutcomeUnknownError,
    StaleProjectionError,
    StoreClosedError,
    StoreUnavailableError,
)
from .facts import AgentFact, EffectFact, EffectKind, encode_agent, encode_effect
from .history import History, PositionedFact, Record, merge
from .limits import Limits
from .operations import Operation
from .ports import DocumentKey, Store, Terms
from .positions import Partition, Position, Topic
from .previews import Previews
from .recent import Recent
from .view import View

T = TypeVar("T")

LOOK_AGAIN_S = 0.1
"""Pause before a projection that may not be believed, or a store that is away, is asked again."""
LOOK_AT_LEAST_S = 1.0
"""How often something that is waited for is looked at although nothing was heard of it."""
_ENCODED, _ENCODED_BYTES = 128, 16_384
BEAT_S = 2.0
"""How often a living session says that it lives."""
SILENT_S = 15.0
"""A session that has not said so for this long is taken to be gone (advisory only)."""


class Clock:
    """The engine's clock; tests give another one."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970: told to people, never decided by."""
        return int(time.time() * 1000)


StateReader = Callable[[Iterable[Operation]], Awaitable[Mapping[str, str]]]
"""Operations → (op_id → the hash of the state now), in a bounded time; without those that it cannot tell."""


async def nothing_read(operations: Iterable[Operation]) -> Mapping[str, str]:
    """No hash at all: nobody has registered how to read one."""
    del operations
    return {}


@dataclass(slots=True)
class Tried:
    """What is known of an outcome that was published once, before the long way has to do it.

    Attributes:
        by: until when it may be tried, on the engine's monotonic clock.
        perhaps_written: whether that record may be written, now or later.
    """

    by: float
    perhaps_written: bool = True

    def missed(self, error: FencepostError) -> None:
        """Note why it is not known to be written."""
        self.perhaps_written = isinstance(error, OutcomeUnknownError)


@dataclass(slots=True)
class Engine:
    """Runs the protocol against one store.

    Args:
        new_id: makes ids for sessions, attempts, and rollbacks.
        states: reads the hashes of what operations have changed, as far as somebody has registered how.
    """

    store: Store
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=Clock)
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    ledger_id: str = ""
    terms: Terms = field(default_factory=Terms)
    states: StateReader = nothing_read
    view: View = field(init=False)
    previews: Previews = field(default_factory=Previews)
    _encoded: Recent[str, tuple[EffectFact, bytes]] = field(default_factory=lambda: Recent(_ENCODED))
    _beating: set[str] = field(default_factory=set)
    _beater: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.view = View(self.store)

    async def start(self) -> None:
        """Read which ledger this is, and check what the store gives.

        Raises:
            GuaranteeError: a setting breaks a promise, or these are not the ledger's topics.
            StaleProjectionError: nobody has told in time which ledger this is.
        """
        self.terms = await self.store.terms()
        deadline = self.clock.monotonic() + self.limits.apply_s
        while not self.ledger_id:
            problem: StaleProjectionError | None = None
            found = None
            try:
                found = await self.view.ledger()
            except StaleProjectionError as error:
                problem = error
            if found is not None:
                self.ledger_id = self._recognised(*found)
            elif self.clock.monotonic() >= deadline:
                raise problem or StaleProjectionError(
                    f"the ledger at {self.store.url} is not initialised.",
                    next_step="Run `fencepost init`, and keep `fencepost projector run` running.",
                )
            else:
                await asyncio.sleep(0.05)

    def _recognised(self, ledger_id: str, identity: str) -> str:
        if identity != self.terms.identity:
            raise GuaranteeError(
                f"these are not the topics that ledger {ledger_id} was created on: they are "
                f"{self.terms.identity}, recorded is {identity}.",
                next_step="Bring back the topics, or move the ledger with `fencepost export` and `import`.",
                checks=[],
            )
        return ledger_id

    async def close(self) -> None:
        """Stop the heartbeat and close the store."""
        if self._beater is not None:
            self._beater.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beater
        await self.store.close()

    # -- publishing --------------------------------------------------------------------

    def publish_by(self) -> float:
        """Until when something that is published from now on may be tried, on the monotonic clock."""
        return self.clock.monotonic() + self.limits.publish_s

    async def publish(self, partition: Partition, record: Record, *, tried: Tried | None = None) -> int | None:
        """Append a record, trying again while the outcome is unknown; its offset if told.

        Args:
            tried: of the same record, before.

        Raises:
            OutcomeUnknownError: not acknowledged within `publish_s`; it may still be written.
            RecordTooLargeError, PublishRefusedError: certainly not written.
        """
        deadline = tried.by if tried else self.publish_by()
        pause, unknown = 0.05, tried is not None and tried.perhaps_written
        while True:
            try:
                async with asyncio.timeout(max(deadline - self.clock.monotonic(), 0.001)):
                    return await self.store.log.publish(partition, record)
            except (FencepostError, TimeoutError) as error:
                # Once one try was unknown, no later answer makes the record certainly unwritten.
                unknown = unknown or isinstance(error, (OutcomeUnknownError, TimeoutError))
                again = isinstance(error, (OutcomeUnknownError, TimeoutError)) or error.retryable
                if not again or self.clock.monotonic() + pause >= deadline:
                    if not unknown:
                        raise
                    raise OutcomeUnknownError(
                        f"a record for {partition} was not acknowledged in {self.limits.publish_s:g} s; "
                        "it may or may not be written.",
                        next_step="Look at the operation with `fencepost ops show`; do not run it again.",
                        key=record.key,
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def publish_effect(self, fact: EffectFact, known: History, *, tried: Tried | None = None) -> int | None:
        """Publish an operation's fact on top of the history that is known.

        Args:
            tried: of the same fact, before.
        """
        record = Record(fact.op_id, known, self.encoded(fact), fact.session_id)
        partition = self.view.effects_partition(fact.op_id)
        return await (self.publish(partition, record, tried=tried) if tried else self.publish(partition, record))

    def encoded(self, fact: EffectFact) -> bytes:
        """A fact's bytes: they are wanted when it is published, and again when it is confirmed."""
        known = self._encoded.get(fact.attempt_id)
        if known is None or known[0] is not fact:
            known = (fact, encode_effect(fact))
            if len(known[1]) <= _ENCODED_BYTES:
                self._encoded.put(fact.attempt_id, known)
        return known[1]

    async def publish_agent(self, key: str, fact: AgentFact, known: History = ()) -> int | None:
        """Publish an agent's fact under one of its keys."""
        record = Record(key, known, encode_agent(fact), fact.session_id)
        return await self.publish(self.view.agents_partition(fact.agent_id), record)

    # -- waiting -----------------------------------------------------------------------

    async def wait_until(
        self,
        partition: Partition,
        look: Callable[[], Coroutine[Any, Any, T | None]],
        *,
        deadline: float,
        beyond: int | None = None,
    ) -> T | None:
        """What `look` finds, looked at again whenever the projection moved; None in time.

        Args:
            deadline: on the monotonic clock.
            beyond: the offset that must be applied, when it is known.
        """
        while beyond is not None and self.clock.monotonic() < deadline:
            if await self._advanced(partition, beyond, deadline) > beyond:
                break
        while True:
            applied = self.view.applied(partition)
            try:
                if (found := await look()) is not None:
                    return found
            except (StaleProjectionError, StoreUnavailableError) as error:  # not now: look again shortly
                if not error.retryable:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)
            if self.clock.monotonic() >= deadline:
                return None
            await self._advanced(partition, applied, deadline)

    async def applied(
        self,
        partition: Partition,
        look: Callable[[], Coroutine[Any, Any, T | None]],
        *,
        deadline: float,
        beyond: int | None,
        what: str,
    ) -> T:
        """What `look` finds in time, as `wait_until`. Raises StaleProjectionError naming `what` otherwise."""
        found = await self.wait_until(partition, look, deadline=deadline, beyond=beyond)
        if found is None:
            raise StaleProjectionError(
                f"{what} was not applied in time.",
                next_step="Look what became of it, then see `fencepost projector lag`; start one with "
                "`fencepost projector run`.",
                partition=str(partition),
            )
        return found

    async def _advanced(self, partition: Partition, beyond: int, deadline: float) -> int:
        """Wait until `beyond` is applied, but at most a second; the applied offset."""
        left = max(0.0, deadline - self.clock.monotonic())
        try:
            header = await self.store.projection.advanced(partition, beyond, timeout_s=min(left, LOOK_AT_LEAST_S))
        except StoreUnavailableError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(LOOK_AGAIN_S)
            return -1
        return header.applied_offset

    async def undisturbed(
        self,
        fact: EffectFact,
        known: History,
        at: Position | None,
        *,
        deadline: float,
    ) -> History | None:
        """The operation's history with `fact`, if it is heard that the projection has this very one: nothing is to be read.

        Then nothing came in between, and an intent got no verdict: each of those would have made it another history.

        Args:
            known: on top of which the fact was published.
            at: where it stands, if the log told it.
        """
        if at is None:
            return None
        facts = merge(known, (PositionedFact(at, self.encoded(fact)),))
        partition, key = self.view.effects_partition(fact.op_id), DocumentKey(docs.OPS, fact.op_id)
        document = docs.write_history(fact.op_id, facts)
        return facts if await self._shows(partition, at.offset, key, document, deadline) else None

    async def _shows(
        self, partition: Partition, offset: int, key: DocumentKey, document: bytes, deadline: float
    ) -> bool:
        """Whether it is heard that the record at `offset` has left this very document. False says nothing: read then."""
        left, since = max(0.0, deadline - self.clock.monotonic()), self.view.seen(partition)
        patience_s = min(left, LOOK_AT_LEAST_S)
        try:
            header = await self.store.projection.shows(partition, offset, key, document, timeout_s=patience_s)
            return header is not None and self.view.trusted(partition, header, since) is header
        except (StaleProjectionError, StoreUnavailableError):
            return False

    async def patiently(self, look: Callable[[], Coroutine[Any, Any, T]], *, deadline: float) -> T:
        """What `look` reads; while nothing may be believed or the store is away, it is read again.

        Raises StaleProjectionError, StoreUnavailableError once the deadline has passed.
        """
        while True:
            try:
                return await look()
            except (StaleProjectionError, StoreUnavailableError) as error:
                if not error.retryable or self.clock.monotonic() + LOOK_AGAIN_S >= deadline:
                    raise
            await asyncio.sleep(LOOK_AGAIN_S)

    # -- fences ------------------------------------------------------------------------

    async def fence(
        self, agent_id: str, branch_ids: Iterable[str], epoch: Position, *, deadline: float, reason: str
    ) -> None:
        """Fence branches in every partition of the effects log, and wait until all is applied.

        Raises StaleProjectionError when the projection does not get there in time.
        """
        await asyncio.gather(
            *(
                self._fence_one(partition, agent_id, branch_id, epoch, deadline=deadline, reason=reason)
                for branch_id in branch_ids
                for partition in self.view.partitions(Topic.EFFECTS)
            )
        )

    async def _fence_one(
        self, partition: Partition, agent_id: str, branch_id: str, epoch: Position, *, deadline: float, reason: str
    ) -> None:  # fmt: skip
        document = docs.fence_document(agent_id, branch_id)

        async def raised() -> bool | None:
            snapshot = await self.view.read(partition, [document])
            at = docs.fence_epoch(docs.read_history(snapshot.documents.get(document)))
            return True if at is not None and at >= epoch else None

        snapshot = await self.store.projection.read(partition, [document])
        known = docs.read_history(snapshot.documents.get(document))
        fact = EffectFact(
            kind=EffectKind.FENCED,
            agent_id=agent_id,
            branch_id=branch_id,
            epoch=epoch,
            reason=reason,
            time_ms=self.clock.wall_ms(),
        )
        key = log_keys.fence(
            agent_id, branch_id, partition.number, lambda k: self.store.log.partition_of(Topic.EFFECTS, k)
        )
        data = encode_effect(fact)
        offset = await self.publish(partition, Record(key, known, data, "fence"))
        if offset is not None:  # of fences only the highest is kept: as a rule this one
            alone = (PositionedFact(Position(snapshot.header.generation, offset), data),)
            if await self._shows(partition, offset, document, docs.write_history(key, alone), deadline):
                return
        if await self.wait_until(partition, raised, deadline=deadline, beyond=offset) is None:
            raise StaleProjectionError(
                f"a fence for {agent_id}/{branch_id} was not applied in {partition} in time.",
                next_step="See `fencepost projector lag`; start one with `fencepost projector run`.",
                partition=str(partition),
            )

    # -- heartbeats --------------------------------------------------------------------

    def begin_beating(self, session_id: str) -> None:
        """Say regularly that this session lives (advisory)."""
        self._beating.add(session_id)
        if self._beater is None or self._beater.done():
            self._beater = asyncio.get_running_loop().create_task(self._beat())

    def stop_beating(self, session_id: str) -> None:
        """Stop saying so."""
        self._beating.discard(session_id)

    async def _beat(self) -> None:
        while self._beating:
            with contextlib.suppress(StoreUnavailableError):
                await self.store.projection.beat(sorted(self._beating))
            await asyncio.sleep(BEAT_S)

    async def lives(self, session_id: str) -> bool:
        """Whether this session has said lately that it lives. Never decides about running."""
        beats = await self.store.projection.beats([session_id])
        return beats.get(session_id, SILENT_S) < SILENT_S


class Loop:
    """A background thread with the event loop that an engine runs on."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fencepost", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop; the future of its result."""
        if os.getpid() != self._pid:
            work.close()
            raise StoreClosedError(
                "this ledger was opened before a fork; its threads did not come along.",
                next_step="Open the ledger in the child process, or start processes with `spawn`.",
            )
        if self._loop.is_closed():
            work.close()
            raise StoreClosedError("this ledger is closed.", next_step="Open it again.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the thread; what still runs is cancelled."""
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def here() -> tuple[str, int]:
    """(host name, process id), told to people in the log."""
    return socket.gethostname(), os.getpid()
