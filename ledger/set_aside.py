"""What is known of a record that was set aside, and how an operator's word about it is kept.

A record of an operation is dealt with by resolving the operation (decision 0008). Any other, of
an agent's key, a fence, an unknown form, or no key at all, belongs to no operation that could be
resolved. The operator's word about it is a RESOLVED fact all the same: under an op_id of its own,
made from the record's place, so that it stands in the log, is compacted, moved, and folded like
every other, and can be taken for the word about no other record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from . import log_keys
from .history import History, PositionedFact
from .marks import mark_of
from .notes import read_note
from .operations import Operation
from .positions import NOWHERE, Partition, Position, Topic
from .projection import document_of

WORDS = "fencepost.set-aside:"
"""How the op_ids begin under which operators' words are kept."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """One record that was set aside. `key` is None when the log key is missing or not text."""

    partition: Partition
    position: Position
    key: str | None
    problem: str
    time_ms: int = 0
    stray: bool = False

    @property
    def place(self) -> str:
        """PARTITION:OFFSET, as the command line takes it."""
        return f"{self.partition}:{self.position.offset}"

    @property
    def op_id(self) -> str:
        """The operation whose history lacks it; "" for a record of no operation's own history."""
        owns = self.key is not None and not self.stray and self.partition.topic is Topic.EFFECTS
        return self.key or "" if owns and log_keys.is_operation(self.key or "") else ""

    @property
    def distrusted(self) -> bool:
        """Whether its key is unsafe because of it."""
        return self.key is not None and not self.stray and document_of(self.partition.topic, self.key) is not None

    @property
    def word(self) -> str:
        """The op_id of the operator's word about it, for a record of no operation."""
        if self.distrusted and self.key is not None:
            return word_about(self.partition.topic, self.key, self.position)
        return _word(f"{self.partition}", self.position)


def noted(partition: Partition, data: bytes, generation: int) -> SetAside:
    """What a projection notes; see `notes.read_note`. Raises DecodeError."""
    note = read_note(data, generation)
    return SetAside(partition, note.position, note.key, note.problem, note.time_ms, note.stray)


def word_about(topic: Topic, key: str, position: Position) -> str:
    """The op_id of the operator's word about the record of `key` that stood at `position`.

    By the key, not by the partition: a key's history moves with the ledger, and its marks with it.
    """
    return _word(f"{topic.value}\0{key}", position)


def _word(where: str, position: Position) -> str:
    return f"{WORDS}{hashlib.sha256(where.encode()).hexdigest()[:32]}:{position}"


def is_given(operation: Operation) -> bool:
    """Whether the operation that keeps an operator's word holds one."""
    return operation.first is None and operation.last_resolution != NOWHERE


def without_marks(key: str, topic: Topic, facts: History) -> tuple[History, tuple[Position, ...]]:
    """A key's facts without the marks of records that were set aside, and where those stand."""
    mark = mark_of(topic, key)
    kept: Iterable[PositionedFact] = (item for item in facts if item.fact != mark)
    return tuple(kept), tuple(item.position for item in facts if item.fact == mark)
