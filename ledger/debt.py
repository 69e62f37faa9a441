"""What a key owes: a record with its whole history."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN_TIME_MS = 1
"""Stands for the unknown time of an old record: older than any limit."""


class Debt(NamedTuple):
    """Since which record a key owes a re-assertion, and that record's broker time."""

    offset: int
    time_ms: int

    @classmethod
    def read(cls, document: bytes) -> Debt:
        """The debt that a document notes."""
        offset, _, time_ms = document.decode().partition(" ")
        return cls(int(offset), int(time_ms))

    def written(self) -> bytes:
        """The document that notes it."""
        return f"{self.offset} {self.time_ms}".encode()
