"""What both faces of a ledger offer about records that were set aside; parts of `Ledger` and `AsyncLedger`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from .quarantine import QuarantinedDetails, QuarantinedRecord
from .service import Service

T = TypeVar("T")


class Quarantine:
    """The synchronous calls."""

    _service: Service

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def quarantine(self) -> list[QuarantinedRecord]:
        """Records that were set aside, whether their keys are unsafe, and who has dealt with them."""
        return self._call(self._service.quarantine())

    def quarantined(self, place: str) -> QuarantinedDetails:
        """The one at PARTITION:OFFSET ("effects/3:17"), with its bytes if the log has them. Raises NotFoundError."""
        return self._call(self._service.quarantined(place))

    def release_quarantined(
        self,
        place: str,
        *,
        version: str,
        by: str,
        evidence: str,
        outcome: str | None = None,
        result: Any = None,
        accept_risk: bool = False,
    ) -> QuarantinedRecord:
        """Deal with a record that was set aside, bound to the version seen; see `quarantine.release`.

        Args:
            outcome: what became of its operation, "committed" or "absent"; None if it has none.
        """
        return self._call(
            self._service.release(
                place, version=version, by=by, evidence=evidence, outcome=outcome, result=result,
                risk_accepted=accept_risk,
            )
        )  # fmt: skip


class AsyncQuarantine:
    """The same calls, awaited."""

    _service: Service

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    async def quarantine(self) -> list[QuarantinedRecord]:
        """See `Quarantine.quarantine`."""
        return await self._call(self._service.quarantine())

    async def quarantined(self, place: str) -> QuarantinedDetails:
        """See `Quarantine.quarantined`."""
        return await self._call(self._service.quarantined(place))

    async def release_quarantined(
        self,
        place: str,
        *,
        version: str,
        by: str,
        evidence: str,
        outcome: str | None = None,
        result: Any = None,
        accept_risk: bool = False,
    ) -> QuarantinedRecord:
        """See `Quarantine.release_quarantined`."""
        return await self._call(
            self._service.release(
                place, version=version, by=by, evidence=evidence, outcome=outcome, result=result,
                risk_accepted=accept_risk,
            )
        )  # fmt: skip
