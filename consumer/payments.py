"""Which debts to pay next: oldest first, one payment in flight a key, a bounded number in all.

A debt is not struck here: the fold does that when it reads a record back that leaves nothing out.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..ledger.projection import Debt

IN_FLIGHT = 256
_READ_BACK_S = 30.0
_PAUSE_S = 0.5
_QUEUED = 1024


@dataclass(slots=True)
class Payment:
    """One published re-assertion: eligible again at `again_at`, or once it was read back and did not suffice."""

    again_at: float
    offset: int | None = None

    def delivered(self, offset: int | None) -> None:
        """It is in the log, at an offset that the delivery report may have left out."""
        self.offset = offset

    def failed(self, now: float) -> None:
        """It may or may not get into the log; paying again does no harm."""
        self.again_at = now + _PAUSE_S

    def over(self, applied_offset: int, now: float) -> bool:
        """Whether the key may be paid again if it still owes."""
        read_back = self.offset is not None and applied_offset > self.offset
        return read_back or now >= self.again_at


class Payments:
    """The payments of one partition."""

    def __init__(self) -> None:
        self._in_flight: dict[str, Payment] = {}
        self._queue: deque[str] = deque()

    def due(self, debts: Mapping[str, Debt], applied_offset: int, now: float) -> list[str]:
        """Keys to pay now, oldest debt first.

        Args:
            debts: all debts of the partition.
            applied_offset: up to where payments were read back.
            now: monotonic seconds.
        """
        over = [k for k, p in self._in_flight.items() if k not in debts or p.over(applied_offset, now)]
        for key in over:
            del self._in_flight[key]
        keys: dict[str, None] = {}
        while len(self._in_flight) + len(keys) < min(IN_FLIGHT, len(debts)):
            if not self._queue:
                # New debts are younger than all that are queued, so the queue is refilled only when it is empty.
                owed = (k for k in debts if k not in self._in_flight and k not in keys)
                self._queue.extend(heapq.nsmallest(_QUEUED, owed, key=lambda k: debts[k]))
            if not self._queue:
                break
            key = self._queue.popleft()
            if key in debts and key not in self._in_flight:
                keys[key] = None
        return list(keys)

    def begin(self, key: str, now: float) -> Payment:
        """Note that a re-assertion of the key is about to be published."""
        payment = self._in_flight[key] = Payment(now + _READ_BACK_S)
        return payment
