"""What a ledger offers about speculative branches, for both faces."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from .asked import as_word
from .operations import Operation
from .prune_verdicts import OpenObligation, PruneVerdict
from .service import Service
from .speculation import SpeculationReport

T = TypeVar("T")


class BranchCalls:
    """Pruning branches, synchronously. A face that has it says how its calls are carried out."""

    _service: Service

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def prune_branch(self, agent: str, branch: str, *, by: str = "", evidence: str = "") -> PruneVerdict:
        """Close a forked branch for good, and say what it left behind. Calling it again looks anew.

        Nothing that its sessions do later is accepted. Before a commit that is free; what had been
        committed is adopted by a branch that relies on it, to be compensated, or an orphan.

        Args:
            by, evidence: who prunes it, and why, where a person does; recorded.

        Returns:
            A verdict; `raise_for_violation()` turns orphans and calls outside the ledger into
            SpeculativeRollbackViolation, `to_compensate` is the plan for `compensate`.

        Raises NotFoundError, InvalidArgumentError, RollbackPendingError; see `pruning.prune`.
        """
        return self._call(self._service.prune_branch(agent, branch, word=as_word(by, evidence)))

    def preview_prune(self, agent: str, branch: str) -> PruneVerdict:
        """What pruning the branch would leave behind, as of now (`age_s`); closes and fences nobody."""
        return self._call(self._service.preview_prune(agent, branch))

    def adopt(self, op_id: str, *, agent: str, branch: str, by: str, evidence: str, version: str) -> Operation:
        """Let a committed effect stand, by name and bound to the version seen: the way out for an orphan.

        Args:
            agent, branch: for whom it stands.

        Raises VersionMovedError if it changed, OperationBeingUndoneError while it is being undone.
        """
        adopting = self._service.adopt(
            op_id, agent_id=agent, branch_id=branch, by=by, evidence=evidence, version=version
        )
        return self._call(adopting)

    def release_adoption(self, op_id: str, *, by: str, evidence: str, version: str) -> Operation:
        """Take back what operators adopted by name: then the effect can be undone, unless a branch relies on it.

        Raises NotFoundError if no operator adopted it, VersionMovedError if it changed; see `adopting.release`.
        """
        return self._call(self._service.release_adoption(op_id, by=by, evidence=evidence, version=version))

    def obligations(self, agent: str | None = None) -> list[OpenObligation]:
        """What pruned branches of one agent, or of all, still ask for, oldest first; looked at now."""
        return self._call(self._service.obligations(agent))

    def speculation_report(self, agent: str | None = None) -> SpeculationReport:
        """What speculation left behind, by fan-out and prune rate; of one agent, or of all."""
        return self._call(self._service.speculation_report(agent))


class AsyncBranchCalls:
    """The same, awaited."""

    _service: Service

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    async def prune_branch(self, agent: str, branch: str, *, by: str = "", evidence: str = "") -> PruneVerdict:
        """See `Ledger.prune_branch`."""
        return await self._call(self._service.prune_branch(agent, branch, word=as_word(by, evidence)))

    async def preview_prune(self, agent: str, branch: str) -> PruneVerdict:
        """See `Ledger.preview_prune`."""
        return await self._call(self._service.preview_prune(agent, branch))

    async def adopt(self, op_id: str, *, agent: str, branch: str, by: str, evidence: str, version: str) -> Operation:
        """See `Ledger.adopt`."""
        adopting = self._service.adopt(
            op_id, agent_id=agent, branch_id=branch, by=by, evidence=evidence, version=version
        )
        return await self._call(adopting)

    async def release_adoption(self, op_id: str, *, by: str, evidence: str, version: str) -> Operation:
        """See `Ledger.release_adoption`."""
        return await self._call(self._service.release_adoption(op_id, by=by, evidence=evidence, version=version))

    async def obligations(self, agent: str | None = None) -> list[OpenObligation]:
        """See `Ledger.obligations`."""
        return await self._call(self._service.obligations(agent))

    async def speculation_report(self, agent: str | None = None) -> SpeculationReport:
        """See `Ledger.speculation_report`."""
        return await self._call(self._service.speculation_report(agent))
