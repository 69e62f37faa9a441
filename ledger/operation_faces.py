"""What a ledger offers about operations, and about attempts that are held, for both faces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from .divergence import HeldAttempt
from .listing import Wanted, batched
from .service import Service
from .view import OperationView, ReportedFact

T = TypeVar("T")


def _wanted(agent: str | None, tool: str, status: str, *, after: str, limit: int | None = None) -> Wanted:
    return Wanted(agent_id="" if agent is None else agent, tool=tool, status=status, after=after, limit=limit)


class OperationCalls:
    """Operations, synchronously. A face that has it says how its calls are carried out."""

    _service: Service

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def operation(self, op_id: str) -> OperationView:
        """One operation with every fact, attempt, and position. Raises NotFoundError."""
        return self._call(self._service.operation(op_id))

    def operations(
        self, agent: str | None = None, *, tool: str = "", status: str = "", after: str = "", limit: int | None = None
    ) -> list[OperationView]:
        """Operations of one agent, or all, ordered by op_id.

        Args:
            tool, status: only those of this tool, or that stand like this ("committed", "in doubt", …).
            after: only those whose op_id comes behind it; with `limit`, the next page.
        """
        return self._call(self._service.operations(_wanted(agent, tool, status, after=after, limit=limit)))

    def each_operation(
        self, agent: str | None = None, *, tool: str = "", status: str = "", after: str = ""
    ) -> Iterator[OperationView]:
        """The same, one after the other, of a ledger of any size: only names are kept in memory."""
        wanted = _wanted(agent, tool, status, after=after)
        for chunk in batched(self._call(self._service.operation_names(wanted))):
            yield from self._call(self._service.operations_named(chunk, wanted))

    def declare(self, agent: str, op_id: str, *, same_as: str | None = None, by: str, evidence: str) -> None:
        """Say what a held attempt of this agent is: new, or the same as a crossed effect. For good: the first counts.

        Args:
            same_as: the crossed effect that it is; a new one if not given.

        Raises InvalidArgumentError, AlreadyExistsError; see `divergence.declare`.
        """
        self._call(self._service.declare(agent, op_id, same_as=same_as, by=by, evidence=evidence))

    def acknowledge_call(self, agent: str, session: str, seq: int, *, by: str, evidence: str) -> None:
        """Take note of a reported call, which carries no op id and so can neither be adopted nor undone.

        From then on it is no obligation of a pruned branch and no reason against a rollback: whoever
        acknowledges it answers for what going back over it does. A resume still tells of it.

        Args:
            session, seq: of the call, as `reported_calls` and `fencepost agents show` tell them.

        Raises NotFoundError, StaleProjectionError; the first word counts, and saying it again is safe.
        """
        self._call(self._service.acknowledge_call(agent, session, seq, by=by, evidence=evidence))

    def reported_calls(self, agent: str) -> list[ReportedFact]:
        """The reported calls of an agent, each with the word that acknowledges it (None without one)."""
        return self._call(self._service.reported_calls(agent))

    def held(self, agent: str) -> list[HeldAttempt]:
        """Attempts of this agent that are held after a gated rollback until they are declared, oldest first."""
        return self._call(self._service.held(agent))


class AsyncOperationCalls:
    """The same, awaited."""

    _service: Service

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    async def operation(self, op_id: str) -> OperationView:
        """See `OperationCalls.operation`."""
        return await self._call(self._service.operation(op_id))

    async def operations(
        self, agent: str | None = None, *, tool: str = "", status: str = "", after: str = "", limit: int | None = None
    ) -> list[OperationView]:
        """See `OperationCalls.operations`."""
        return await self._call(self._service.operations(_wanted(agent, tool, status, after=after, limit=limit)))

    async def each_operation(
        self, agent: str | None = None, *, tool: str = "", status: str = "", after: str = ""
    ) -> AsyncIterator[OperationView]:
        """See `OperationCalls.each_operation`; for `async for`."""
        wanted = _wanted(agent, tool, status, after=after)
        for chunk in batched(await self._call(self._service.operation_names(wanted))):
            for view in await self._call(self._service.operations_named(chunk, wanted)):
                yield view

    async def declare(self, agent: str, op_id: str, *, same_as: str | None = None, by: str, evidence: str) -> None:
        """See `OperationCalls.declare`."""
        await self._call(self._service.declare(agent, op_id, same_as=same_as, by=by, evidence=evidence))

    async def acknowledge_call(self, agent: str, session: str, seq: int, *, by: str, evidence: str) -> None:
        """See `OperationCalls.acknowledge_call`."""
        await self._call(self._service.acknowledge_call(agent, session, seq, by=by, evidence=evidence))

    async def reported_calls(self, agent: str) -> list[ReportedFact]:
        """See `OperationCalls.reported_calls`."""
        return await self._call(self._service.reported_calls(agent))

    async def held(self, agent: str) -> list[HeldAttempt]:
        """See `OperationCalls.held`."""
        return await self._call(self._service.held(agent))
