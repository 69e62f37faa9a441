"""Paying debts: publishing the whole known history of keys whose newest record leaves something out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..ledger.projection import document_of, reassertion
from ..schemas import EncodeError
from . import failpoints
from .kafka_log import QueueFullError
from .payments import Payment, Payments

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ledger.projection import PartitionFold
    from .kafka_log import PartitionLog
    from .partition_store import PartitionStore

_log = logging.getLogger("fencepost.projector")
_AT_ONCE = 32


class DebtPayer:
    """Publishes re-assertions for one partition; the fold strikes a debt when it reads one back that suffices.

    Args:
        clock: monotonic seconds, the same as those of `pay`.
    """

    def __init__(self, log: PartitionLog, store: PartitionStore, clock: Callable[[], float]) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._payments = Payments()

    def reset(self) -> None:
        """Forget what is in flight: the projection is loaded again, and every debt in it is owed."""
        self._payments = Payments()

    def pay(self, fold: PartitionFold, now: float) -> None:
        """Publish what is due, from the documents that are committed. Raises MovedError, StoreUnavailableError."""
        if not fold.header.opened or not fold.debts:
            return
        keys = self._payments.due(fold.debts, fold.applied_offset, now)
        for start in range(0, len(keys), _AT_ONCE):
            if not self._publish(keys[start : start + _AT_ONCE], now):
                return

    def _publish(self, keys: list[str], now: float) -> bool:
        topic = self._log.partition.topic
        wanted = {key: document for key in keys if (document := document_of(topic, key)) is not None}
        documents = self._store.documents(wanted.values())
        for key, document in wanted.items():
            payment = self._payments.begin(key, now)
            failpoints.hit("before_reassert")
            try:
                self._log.publish(reassertion(key, documents[document]), self._reporter(payment))
            except QueueFullError:
                payment.failed(now)
                return False
            except EncodeError:
                _log.exception("%s: the history of %r cannot be written again; it stays owed", self._log.partition, key)
        return True

    def _reporter(self, payment: Payment) -> Callable[[int | None, str], None]:
        def report(offset: int | None, error: str) -> None:
            if error:
                payment.failed(self._clock())
                return
            failpoints.hit("after_reassert")
            payment.delivered(offset)

        return report
