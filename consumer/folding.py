"""From entries to steps in Redis: loads what the fold needs, applies in order, commits, and opens at the horizon."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..ledger.ports import DocumentKey
from ..ledger.projection import FENCES, OPS, UNJUDGED, UNSAFE
from ..ledger.written import Written
from . import failpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..ledger.history import LogEntry
    from ..ledger.ports import Header
    from ..ledger.projection import PartitionFold
    from .partition_store import PartitionStore

_CACHED_DOCUMENTS = 8_000  # a partition: what an operation's next record needs is there, if it comes soon
_JUDGED_AT_ONCE = 200


class ReadEntry(NamedTuple):
    """An entry and the leader epoch of the broker that wrote it (-1: not known)."""

    entry: LogEntry
    leader_epoch: int


class GapError(Exception):
    """Records are missing between the applied offset and the next record. Never leaves the projector.

    Everything before the gap is applied. Attributes: `expected`, `found`.
    """

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"expected offset {expected}, found {found}")
        self.expected = expected
        self.found = found


class Folding:
    """A partition's fold and its projection in Redis, moved on together.

    Args:
        fold: at the projection's state.
        store: holds the partition.
        leader_epoch: of the record before the applied offset.
        gaps_below: offsets below it may be missing while the projection is not open: what was there is settled.
        begun: whether the projection has just been begun: until it opens, what is not known to be written is not there.
    """

    def __init__(
        self, fold: PartitionFold, store: PartitionStore, *, leader_epoch: int, gaps_below: int, begun: bool = False
    ) -> None:
        self.fold = fold
        self.gaps_below = gaps_below
        self.leader_epoch = leader_epoch
        self._store = store
        self._committed = fold.header
        self._written = Written() if begun else None

    @property
    def header(self) -> Header:
        """The header that is in Redis."""
        return self._committed

    def take(self, entries: Sequence[ReadEntry]) -> None:
        """Apply the next entries and commit them.

        Raises:
            GapError: after committing what stands before the gap.
            MovedError, StoreUnavailableError: nothing of this step is committed, or all; begin again from Redis.
        """
        self._load(entries)
        for entry, leader_epoch in entries:
            if self.fold.horizon_reached():
                self.open_if_due()
                self._load(entries)  # opening takes steps of its own, after which the cache may be dropped
            expected = self.fold.applied_offset
            if entry.offset < expected:
                continue  # read before the position went forward; it is applied
            if entry.offset > expected:
                self._cross(expected, entry.offset)
            self.fold.apply(entry)
            self.leader_epoch = leader_epoch
        self.commit()
        self.open_if_due()

    def skip_to(self, offset: int) -> None:
        """Move over offsets that are known to be gone and settled, and commit."""
        self.fold.skip_to(offset)
        self.commit()
        self.open_if_due()

    def commit(self) -> None:
        """Write what changed, conditional on the position where the last step ended."""
        step = self.fold.take_step()
        if not step.writes and step.header == self._committed:
            return
        failpoints.hit("before_apply")
        self._store.apply(step, self.leader_epoch)
        failpoints.hit("after_apply")
        self._committed = step.header
        if self._written is not None:
            self._written.note(step.writes)
        self.fold.forget(keep=_CACHED_DOCUMENTS)

    def open_if_due(self) -> None:
        """At the horizon: judge what was put off, some operations a step, then open."""
        if not self.fold.horizon_reached():
            return
        self.commit()
        self._written = None
        fences: dict[DocumentKey, bytes] = {}
        for page in self._store.collection(FENCES):
            fences |= page
        while op_ids := self._some_unjudged():
            self.fold.provide(self._store.documents(DocumentKey(c, o) for c in (OPS, UNSAFE) for o in op_ids))
            self.fold.judge(op_ids, fences)
            self.commit()
        self.fold.provide(fences)
        self.fold.open(fences)
        self.commit()

    def _some_unjudged(self) -> list[str]:
        """A page of the operations that are not judged yet; empty when there are none."""
        for page in self._store.collection(UNJUDGED):
            if page:
                return [document.key for document in page][:_JUDGED_AT_ONCE]
        return []

    def _load(self, entries: Sequence[ReadEntry]) -> None:
        while wanted := self.fold.wanted(read.entry for read in entries):
            self.fold.provide(self._documents(wanted))
            if not self.fold.asks_again:
                return

    def _documents(self, wanted: set[DocumentKey]) -> Mapping[DocumentKey, bytes | None]:
        """The documents; those of a projection that is being built are looked for only where they may be."""
        if self._written is None:
            return self._store.documents(wanted)
        found: dict[DocumentKey, bytes | None] = dict.fromkeys(wanted)
        if perhaps := self._written.perhaps(wanted):
            found |= self._store.documents(perhaps)
        return found

    def _cross(self, expected: int, found: int) -> None:
        if self.fold.header.opened or found > self.gaps_below:
            self.commit()
            raise GapError(expected, found)
        self.fold.skip_to(found)
