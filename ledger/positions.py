"""Places in the log: positions of facts, partitions, and the two topics."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Topic(StrEnum):
    """The two topics of a ledger (DESIGN section 2)."""

    EFFECTS = "effects"
    AGENTS = "agents"


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: Topic
    number: int

    def __str__(self) -> str:
        return f"{self.topic.value}/{self.number}"


class Position(NamedTuple):
    """Where a fact stands: (log generation, offset). Compares in log order.

    The offset is that of the record which brought the fact; the generation rises when a
    ledger moves to another topic, so positions of a former topic sort first.
    """

    generation: int
    offset: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position that `str()` printed. Raises ValueError for anything else."""
        generation, dot, offset = text.partition(".")
        if not dot:
            raise ValueError(f"not a position: {text!r} (expected GENERATION.OFFSET)")
        return cls(int(generation), int(offset))


NOWHERE = Position(0, -1)
"""Stands for "no position"; sorts before every real one of generation 0."""
