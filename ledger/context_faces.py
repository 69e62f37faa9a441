"""What a ledger and its sessions offer about contexts: compactions, resuming, the latest checkpoint; for both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar, cast

from . import compactions
from .at_once import Submit
from .compaction_rules import DroppedItem
from .contexts import Checkpoint, Compaction
from .dependencies import DependencyItem
from .resume_answers import Reconcile, Resume
from .resuming import Resolver, question, resume
from .running import wait
from .service import Service
from .sessions import SessionState
from .watermarks import Watermark

T = TypeVar("T")


class CompactionCalls:
    """Compacting a session's context, synchronously."""

    submit: Submit

    @property
    def state(self) -> SessionState:
        """The opened session."""
        raise NotImplementedError

    def watermark(self) -> Watermark:
        """The watermark of now; its `token` goes into a summary that is written before any checkpoint."""
        mark: Watermark = wait(self.submit(compactions.watermark(self.state, self.state.known_seq())))
        return mark

    def record_compaction(
        self, *, summary: str, generation: int | None = None, dropped: Iterable[DroppedItem] = ()
    ) -> Compaction:
        """Record that this session's context was compacted: its generation stamp and its drop manifest.

        Args:
            summary: the new summary. It must hold, unchanged, a token of this agent's path that is not older than
                its newest checkpoint's; only its digest is recorded, and the operations that it names by their ids.
            generation: of the new context; the present one and 1 if not given.
            dropped: what the summary leaves out: references (op_ids, ids of tool calls or documents), each alone or as
                (reference, dropped text); of a text the SHA-256 is recorded, so that it can be proven later.

        Raises CompactionRefusedError (with the `token` to embed), GenerationConflictError, InvalidArgumentError,
        RecordTooLargeError, FencedError; see `compactions.record`.
        """
        recording = compactions.record(self.state, generation=generation, dropped=dropped, summary=summary)
        compaction: Compaction = wait(self.submit(recording))
        return compaction


class AsyncCompactionCalls:
    """The same, awaited."""

    submit: Submit

    @property
    def state(self) -> SessionState:
        """The opened session."""
        raise NotImplementedError

    async def watermark(self) -> Watermark:
        """See `AgentSession.watermark`."""
        standing = compactions.watermark(self.state, self.state.known_seq())
        return cast(Watermark, await asyncio.wrap_future(self.submit(standing)))

    async def record_compaction(
        self, *, summary: str, generation: int | None = None, dropped: Iterable[DroppedItem] = ()
    ) -> Compaction:
        """See `AgentSession.record_compaction`."""
        recording = compactions.record(self.state, generation=generation, dropped=dropped, summary=summary)
        return cast(Compaction, await asyncio.wrap_future(self.submit(recording)))


class ContextCalls:
    """Contexts of agents, synchronously. A face that has it says how its calls are carried out."""

    _service: Service

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def latest_checkpoint(self, agent: str, branch: str = "main") -> Checkpoint | None:
        """The newest checkpoint on a branch's path that no rollback has left behind. Raises NotFoundError."""
        return self._call(compactions.latest_checkpoint(self._service.engine, agent, branch))

    def compactions(self, agent: str) -> list[Compaction]:
        """The compactions of an agent's context that count, oldest first, with their drop manifests."""
        return self._call(compactions.compactions(self._service.engine, agent))

    def resume(
        self,
        agent: str,
        *,
        checkpoint: str,
        summary_generation: int,
        depends_on: Iterable[DependencyItem] = (),
        summary: str = "",
        state: str = "",
        held: Mapping[str, str | bytes] | None = None,
        resolve: Resolver | None = None,
    ) -> Resume | Reconcile:
        """Whether a restored agent may go on from its context as it is. Changes nothing and fences nobody.

        Open the session that goes on first, with the checkpoint's token, and ask then: what its predecessor
        was still doing is fenced by that.

        Args:
            summary_generation: of the summary in the restored state; 0 if it was never compacted.
            depends_on: what the next turn depends on: references, or (reference, SHA-256 of its text). Of an
                operation the recorded result must be there, of anything else the text with the digest that a
                drop manifest, or this call, names.
            summary, state: the restored texts. What is not in them word for word is not present; effects on the
                checkpoint's path must be named in them by their op_ids once the context was compacted. The newest
                token of this agent in `state` must be the checkpoint's own, as in `restored` of a rollback; a damaged
                one, and others' alone, are told as well. A `state` that holds no token, or is not given, is taken for
                the checkpoint's on your word.
            held: reference → text, where the caller has it at hand; it is believed by its digest.
            resolve: finds the text of a reference in the caller's own immutable source, or None; believed by its
                digest. May be a coroutine function, which then runs on the ledger's own event loop.

        Returns:
            `Resume`, or `Reconcile` with typed reasons, the effects that the agent must learn, and what was
            recovered and what is missing. Once it has learned them, its session takes them over
            (`AgentSession.replay_forward`): until then they stay unknown to its checkpoints.

        Raises NotFoundError, InvalidArgumentError, StaleProjectionError.
        """
        asked = question(
            checkpoint, summary_generation, depends_on=depends_on, summary=summary, state=state, held=held
        )  # fmt: skip
        return self._call(resume(self._service.engine, agent, asked, resolve=resolve))

    def reconcile(
        self,
        agent: str,
        *,
        checkpoint: str,
        summary_generation: int,
        depends_on: Iterable[DependencyItem] = (),
        summary: str = "",
        state: str = "",
        held: Mapping[str, str | bytes] | None = None,
        resolve: Resolver | None = None,
    ) -> Resume | Reconcile:
        """The same, if everything that the next turn depends on is there or can be recovered.

        Raises SummaryReconciliationError otherwise: `missing` names what nothing brings back, `recovered` has the rest.
        """
        answer = self.resume(
            agent, checkpoint=checkpoint, summary_generation=summary_generation, depends_on=depends_on,
            summary=summary, state=state, held=held, resolve=resolve,
        )  # fmt: skip
        return answer.raise_for_missing()


class AsyncContextCalls:
    """The same, awaited."""

    _service: Service

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    async def latest_checkpoint(self, agent: str, branch: str = "main") -> Checkpoint | None:
        """See `Ledger.latest_checkpoint`."""
        return await self._call(compactions.latest_checkpoint(self._service.engine, agent, branch))

    async def compactions(self, agent: str) -> list[Compaction]:
        """See `Ledger.compactions`."""
        return await self._call(compactions.compactions(self._service.engine, agent))

    async def resume(
        self,
        agent: str,
        *,
        checkpoint: str,
        summary_generation: int,
        depends_on: Iterable[DependencyItem] = (),
        summary: str = "",
        state: str = "",
        held: Mapping[str, str | bytes] | None = None,
        resolve: Resolver | None = None,
    ) -> Resume | Reconcile:
        """See `Ledger.resume`."""
        asked = question(
            checkpoint, summary_generation, depends_on=depends_on, summary=summary, state=state, held=held
        )  # fmt: skip
        return await self._call(resume(self._service.engine, agent, asked, resolve=resolve))

    async def reconcile(
        self,
        agent: str,
        *,
        checkpoint: str,
        summary_generation: int,
        depends_on: Iterable[DependencyItem] = (),
        summary: str = "",
        state: str = "",
        held: Mapping[str, str | bytes] | None = None,
        resolve: Resolver | None = None,
    ) -> Resume | Reconcile:
        """See `Ledger.reconcile`."""
        answer = await self.resume(
            agent, checkpoint=checkpoint, summary_generation=summary_generation, depends_on=depends_on,
            summary=summary, state=state, held=held, resolve=resolve,
        )  # fmt: skip
        return answer.raise_for_missing()
