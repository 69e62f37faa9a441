"""What an answer was read from: it stays the answer until one of these partitions has moved.

The documents of a partition are a function of the log up to its applied offset (DESIGN section 3), and whatever else
changes them changes the header. So an answer that was read from headers which still are what they were need not be
read again: only the headers, with every check of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from .ports import Header
from .positions import Partition


class State(NamedTuple):
    """A header but for its times."""

    incarnation: str
    generation: int
    applied_offset: int
    settled_offset: int
    settled_time_ms: int
    judge_from: int
    horizon: int
    opened: bool
    halted: str

    @classmethod
    def of(cls, header: Header) -> State:
        """The state that a header tells."""
        return cls(
            header.incarnation, header.generation, header.applied_offset, header.settled_offset,
            header.settled_time_ms, header.judge_from, header.horizon, header.opened, header.halted,
        )  # fmt: skip


class Basis:
    """The states that were read while it was watched.

    Attributes:
        fleeting: whether it holds for no longer than it was read: one partition was read in two states, or something
            outside the ledger was looked at as well.
    """

    def __init__(self) -> None:
        self.states: dict[Partition, State] = {}
        self.fleeting = False

    def note(self, partition: Partition, header: Header) -> None:
        """A header that something was read with."""
        state = State.of(header)
        self.fleeting = self.fleeting or self.states.setdefault(partition, state) != state

    def holds(self, partition: Partition, header: Header) -> bool:
        """Whether this partition is in the state that it was read in."""
        return self.states.get(partition) == State.of(header)


_watched: ContextVar[Basis | None] = ContextVar("fencepost_basis", default=None)


@contextmanager
def watched() -> Iterator[Basis]:
    """Note all that is read in the block, and in tasks that begin in it."""
    basis = Basis()
    token = _watched.set(basis)
    try:
        yield basis
    finally:
        _watched.reset(token)


def read(partition: Partition, header: Header) -> None:
    """Say that something was read with this header."""
    if (basis := _watched.get()) is not None:
        basis.note(partition, header)


def looked_outside() -> None:
    """Say that something was looked at which no header tells of."""
    if (basis := _watched.get()) is not None:
        basis.fleeting = True
