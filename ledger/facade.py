"""The synchronous and the asyncio face of a ledger.

    with Ledger.open() as ledger, ledger.session(agent="nightly") as agent:
        …
    async with AsyncLedger.open() as ledger, ledger.session(agent="nightly") as agent:
        …

Both offer the same calls; those of the second are awaited. The work is done by one engine on
a background thread, whichever face is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, TypeVar

from . import transfer, verification
from .asked import as_policy, as_word
from .branch_faces import AsyncBranchCalls, BranchCalls
from .compensation_faces import AsyncCompensationCalls, CompensationCalls
from .context_faces import AsyncContextCalls, ContextCalls
from .contexts import Checkpoint
from .embedded_place import size_of
from .engine import Engine, Loop
from .errors import InvalidArgumentError
from .identity import check_id
from .legible import Legible
from .limits import Limits
from .operation_faces import AsyncOperationCalls, OperationCalls
from .operations import Operation
from .ports import Store
from .previews import Asked
from .quarantine_faces import AsyncQuarantine, Quarantine
from .replay import ReplayedOperation
from .resolutions import OpenOperation, ProbeAnswer
from .running import wait
from .service import AgentWatermark, Probe, Service
from .session_faces import AgentSession, AsyncAgentSession, Opening
from .setup import initialise
from .stores import open_store
from .urls import parse
from .verdicts import Policy, Verdict
from .view import AgentView
from .watermarks import Watermark

_log = logging.getLogger("fencepost.ledger")
T = TypeVar("T")
P = TypeVar("P", bound=Probe)


class _Base:
    """What both faces share: one engine, one loop, one service."""

    def __init__(self, store: Store, *, limits: Limits | None = None) -> None:
        self._loop = Loop()
        self._engine = Engine(store, limits or Limits())
        self._service = Service(self._engine)
        self._closed = False

    @property
    def url(self) -> str:
        """The store's URL."""
        return self._engine.store.url

    @property
    def ledger_id(self) -> str:
        """Which ledger this is; stands in every watermark."""
        return self._engine.ledger_id

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._loop.submit(Legible(work))

    async def _start(self) -> None:
        if self.url.startswith("sqlite:"):  # a file needs no ceremony; topics are made by `fencepost init`
            new = not _has_file(self.url)
            ledger_id = await initialise(self._engine.store)
            if new:  # a lost or mistyped file must not pass unnoticed
                _log.warning("a new, empty ledger was created: %s (%s)", self.url, ledger_id)
        await self._engine.start()

    def probe(self, tool: str) -> Callable[[P], P]:
        """Register how to find out what became of a tool's operations (decorator).

        The function gets the `Operation` (its `idempotency_key` names the call at the provider)
        and returns a `ProbeAnswer`: COMMITTED, ABSENT, or UNKNOWN.

        Raises InvalidArgumentError for what is no tool's name or no function.
        """
        check_id("tool", tool, limit=200)

        def register(function: P) -> P:
            if not callable(function):
                raise InvalidArgumentError(
                    f"function: must be a function, not {type(function).__name__}.",
                    next_step="Decorate one that takes an Operation and returns a ProbeAnswer.",
                    field="function",
                )
            self._service.probes[tool] = function
            return function

        return register


def _checked(limits: object) -> Limits | None:
    if limits is None or isinstance(limits, Limits):
        return limits
    raise InvalidArgumentError(
        f"limits: must be Limits, not {type(limits).__name__}.", next_step="Pass Limits(wait_s=…).", field="limits"
    )


def _has_file(url: str) -> bool:
    return size_of(Path(parse(url).path)) is not None


class Ledger(_Base, BranchCalls, CompensationCalls, ContextCalls, OperationCalls, Quarantine):
    """A ledger, synchronously. Safe to use from several threads."""

    @classmethod
    def open(cls, url: str | None = None, *, limits: Limits | None = None) -> Ledger:
        """Open a ledger.

        Args:
            url: argument > FENCEPOST_URL > fencepost.toml > a file in the user's state directory.

        Raises:
            InvalidArgumentError: not a store URL.
            StoreError: the store is not reachable, not initialised, or nobody projects it.
        """
        ledger = cls(limits=_checked(limits), store=open_store(url))
        try:
            ledger._call(ledger._start())
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return wait(self.submit(work))

    def close(self) -> None:
        """Release everything. Open sessions are closed by their own `with` blocks."""
        if not self._closed:
            self._closed = True
            try:
                self._call(self._engine.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- sessions and branches ---------------------------------------------------------

    def session(
        self,
        agent: str,
        branch: str = "main",
        *,
        resumed_from: str | Watermark | None = None,
        scope: str = "",
    ) -> AgentSession:
        """A session that speaks for a branch; opened by `with` or by `.open()`.

        Args:
            resumed_from: the token (or watermark) in the state that the agent was restored
                from. Without it: the end of the predecessor if it was closed, else its last
                checkpoint.
            scope: the unit of work (a run, a task, a ticket) for op ids that are derived from
                arguments; the agent's id if not given.
        """
        return AgentSession(self._service, self.submit, Opening(agent, branch, resumed_from, scope))

    def fork(self, agent: str, branch: str, *, checkpoint: str) -> None:
        """Begin a branch at a checkpoint; siblings share op ids, and the first commit wins."""
        self._call(self._service.fork(agent, branch, checkpoint_id=checkpoint))

    # -- questions ---------------------------------------------------------------------

    def agents(self) -> list[str]:
        """The ids of all agents."""
        return self._call(self._service.agents())

    def agent(self, agent: str) -> AgentView:
        """An agent's branches, sessions, rollbacks, and checkpoints. Raises NotFoundError."""
        return self._call(self._service.agent(agent))

    def checkpoints(self, agent: str) -> list[Checkpoint]:
        """The agent's checkpoints that count, oldest first."""
        return self._call(self._service.checkpoints(agent))

    def watermark(self, agent: str, branch: str = "main") -> AgentWatermark:
        """Up to where a branch's facts are complete, and as of when."""
        return self._call(self._service.watermark(agent, branch))

    def watermarks(self, agent: str) -> list[AgentWatermark]:
        """The same for every session of an agent."""
        return self._call(self._service.watermarks(agent))

    def replay_forward(
        self, agent: str, *, since: str | Watermark, branch: str | None = None
    ) -> list[ReplayedOperation]:
        """What a checkpoint (its id, its token) does not know, in order, with recorded results. Raises NotFoundError.

        It only tells: to take it over, so that its checkpoints know it, is for a session (`AgentSession.replay_forward`).
        """
        return self._call(self._service.replay_forward(agent, since=since, branch_id=branch))

    # -- the guard ---------------------------------------------------------------------

    def authorize_rollback(
        self,
        agent: str,
        *,
        checkpoint: str,
        policy: Policy | str = Policy.STRICT,
        branch: str = "",
        restored: str = "",
        by: str = "",
        evidence: str = "",
    ) -> Verdict:
        """Decide whether a branch may go back to a checkpoint; fences it for the decision.

        Args:
            policy: STRICT, or GATED if the agent's op ids are stable across replays.
            branch: the checkpoint's own when empty.
            restored: text of the state to be restored, holding its token; it must be the
                checkpoint's own, or state and watermark did not move together.
            by, evidence: who asks for it, and why, where a person does; recorded with the decision.

        Returns:
            A verdict; `raise_for_refusal()` turns a refusal into UnsafeRollbackError.
        """
        return self._call(
            self._service.authorize_rollback(
                agent, checkpoint=checkpoint, policy=as_policy(policy), branch_id=branch, restored=restored,
                word=as_word(by, evidence),
            )
        )  # fmt: skip

    def preview_rollback(
        self,
        agent: str,
        *,
        checkpoint: str,
        policy: Policy | str = Policy.STRICT,
        branch: str = "",
        restored: str = "",
    ) -> Verdict:
        """The same on the projection as it is; fences nobody and says what a replay would do."""
        asked = Asked(agent, checkpoint, as_policy(policy), branch, restored)
        if (soon := self._service.preview_rollback_here(asked)) is not None:
            return soon
        return self._call(self._service.preview_rollback(asked))

    # -- the whole ledger --------------------------------------------------------------

    def verify(self, progress: verification.Progress | None = None) -> verification.VerifyReport:
        """Compare the projection with the log; see `verification.verify`."""
        return self._call(verification.verify(self._engine, progress=progress))

    def export(self, out: TextIO, progress: transfer.Progress | None = None) -> int:
        """Write a settled ledger as lines of JSON; see `transfer.export`. Returns the keys written."""
        return self._call(transfer.export(self._engine, out, progress=progress))

    @classmethod
    def import_(
        cls,
        url: str | None,
        lines: Iterable[str],
        *,
        partitions: int | None = None,
        development: bool = False,
        progress: transfer.Progress | None = None,
    ) -> int:
        """Bring an export into a new ledger at `url`; see `transfer.import_`. Returns the keys written."""
        importer = cls(open_store(url))
        try:
            work = transfer.import_(
                importer._engine.store, lines, partitions=partitions, development=development, progress=progress
            )
            return importer._call(work)
        finally:
            importer.close()

    # -- in doubt ----------------------------------------------------------------------

    def in_doubt(self, agent: str | None = None) -> list[OpenOperation]:
        """Operations that need a probe or a human, oldest first. Raises NotFoundError for an agent that is none."""
        return self._call(self._service.in_doubt(agent))

    def open_operations(self, agent: str | None = None) -> list[OpenOperation]:
        """Everything undecided, what is in flight included."""
        return self._call(self._service.open_operations(agent))

    def resolve(
        self,
        op_id: str,
        *,
        outcome: str,
        version: str,
        by: str,
        evidence: str,
        result: Any = None,
        accept_risk: bool = False,
        post_state_hash: str = "",
        payload: Any = None,
    ) -> Operation:
        """Settle an operation ("committed", "absent", "compensated"), bound to the version seen.

        Args:
            post_state_hash: of what a committed effect left behind; seals how it is undone.
            payload: for the compensator, in place of the one from before the effect.

        Raises VersionMovedError if it changed, RefusedError if "absent" cannot be known yet.
        """
        return self._call(
            self._service.resolve(
                op_id, outcome=outcome, version=version, by=by, evidence=evidence, result=result,
                risk_accepted=accept_risk, post_state_hash=post_state_hash, payload=payload,
            )
        )  # fmt: skip

    def run_probe(self, op_id: str, *, by: str = "probe") -> tuple[ProbeAnswer, Operation]:
        """Ask the tool's registered probe about an open operation and record its answer."""
        return self._call(self._service.probe(op_id, by=by))


class AsyncLedger(
    _Base, AsyncBranchCalls, AsyncCompensationCalls, AsyncContextCalls, AsyncOperationCalls, AsyncQuarantine
):
    """A ledger, for asyncio: the calls of `Ledger`, awaited."""

    @classmethod
    def open(cls, url: str | None = None, *, limits: Limits | None = None) -> AsyncLedger:
        """A ledger to be entered with `async with`; see `Ledger.open`."""
        return cls(limits=_checked(limits), store=open_store(url))

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self.submit(work))

    async def __aenter__(self) -> Self:
        self._service.compensation.compensators.loop = asyncio.get_running_loop()
        try:
            await self._call(self._start())
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release everything."""
        if not self._closed:
            self._closed = True
            try:
                await self._call(self._engine.close())
            finally:
                await asyncio.to_thread(self._loop.stop)

    def session(
        self,
        agent: str,
        branch: str = "main",
        *,
        resumed_from: str | Watermark | None = None,
        scope: str = "",
    ) -> AsyncAgentSession:
        """A session, opened by `async with` or by `await ….open()`; see `Ledger.session`."""
        return AsyncAgentSession(self._service, self.submit, Opening(agent, branch, resumed_from, scope))

    async def fork(self, agent: str, branch: str, *, checkpoint: str) -> None:
        """See `Ledger.fork`."""
        await self._call(self._service.fork(agent, branch, checkpoint_id=checkpoint))

    async def agents(self) -> list[str]:
        """See `Ledger.agents`."""
        return await self._call(self._service.agents())

    async def agent(self, agent: str) -> AgentView:
        """See `Ledger.agent`."""
        return await self._call(self._service.agent(agent))

    async def checkpoints(self, agent: str) -> list[Checkpoint]:
        """See `Ledger.checkpoints`."""
        return await self._call(self._service.checkpoints(agent))

    async def watermark(self, agent: str, branch: str = "main") -> AgentWatermark:
        """See `Ledger.watermark`."""
        return await self._call(self._service.watermark(agent, branch))

    async def watermarks(self, agent: str) -> list[AgentWatermark]:
        """See `Ledger.watermarks`."""
        return await self._call(self._service.watermarks(agent))

    async def replay_forward(
        self, agent: str, *, since: str | Watermark, branch: str | None = None
    ) -> list[ReplayedOperation]:
        """See `Ledger.replay_forward`."""
        return await self._call(self._service.replay_forward(agent, since=since, branch_id=branch))

    async def authorize_rollback(
        self,
        agent: str,
        *,
        checkpoint: str,
        policy: Policy | str = Policy.STRICT,
        branch: str = "",
        restored: str = "",
        by: str = "",
        evidence: str = "",
    ) -> Verdict:
        """See `Ledger.authorize_rollback`."""
        return await self._call(
            self._service.authorize_rollback(
                agent, checkpoint=checkpoint, policy=as_policy(policy), branch_id=branch, restored=restored,
                word=as_word(by, evidence),
            )
        )  # fmt: skip

    async def preview_rollback(
        self,
        agent: str,
        *,
        checkpoint: str,
        policy: Policy | str = Policy.STRICT,
        branch: str = "",
        restored: str = "",
    ) -> Verdict:
        """See `Ledger.preview_rollback`."""
        asked = Asked(agent, checkpoint, as_policy(policy), branch, restored)
        if (soon := self._service.preview_rollback_here(asked)) is not None:
            return soon
        return await self._call(self._service.preview_rollback(asked))

    async def in_doubt(self, agent: str | None = None) -> list[OpenOperation]:
        """See `Ledger.in_doubt`."""
        return await self._call(self._service.in_doubt(agent))

    async def open_operations(self, agent: str | None = None) -> list[OpenOperation]:
        """See `Ledger.open_operations`."""
        return await self._call(self._service.open_operations(agent))

    async def resolve(
        self,
        op_id: str,
        *,
        outcome: str,
        version: str,
        by: str,
        evidence: str,
        result: Any = None,
        accept_risk: bool = False,
        post_state_hash: str = "",
        payload: Any = None,
    ) -> Operation:
        """See `Ledger.resolve`."""
        return await self._call(
            self._service.resolve(
                op_id, outcome=outcome, version=version, by=by, evidence=evidence, result=result,
                risk_accepted=accept_risk, post_state_hash=post_state_hash, payload=payload,
            )
        )  # fmt: skip

    async def run_probe(self, op_id: str, *, by: str = "probe") -> tuple[ProbeAnswer, Operation]:
        """See `Ledger.run_probe`."""
        return await self._call(self._service.probe(op_id, by=by))
