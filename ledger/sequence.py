"""The sequence numbers of a session: given out once each, and which of them were certainly never written."""

from __future__ import annotations

import threading


class Sequence:
    """Gives out a session's sequence numbers and remembers which were certainly never written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._told = 0
        self.last = 0
        self.voided: set[int] = set()

    def take(self) -> int:
        """The next number."""
        with self._lock:
            self.last += 1
            self._mine.taken = (self.last,)  # with no call in between, at which a thread can be interrupted
            return self.last

    def taken_here(self) -> tuple[int, ...]:
        """The number that this thread took last, in a tuple of its own for each; for whoever was interrupted with it."""
        taken: tuple[int, ...] = getattr(self._mine, "taken", ())
        return taken

    def tell(self) -> int:
        """The last number, for a watermark: what it covers is not given out again."""
        with self._lock:
            self._told = self.last
            return self.last

    def void(self, number: int) -> None:
        """Say that the fact with this number was certainly not written."""
        with self._lock:
            if number == self.last > self._told:
                self.last -= 1
            else:
                self.voided.add(number)

    def discount(self, number: int) -> None:
        """Say that the fact with this number means nothing any more, whether it was written or not."""
        with self._lock:
            self.voided.add(number)
