"""A partition folded once more, from its log, beside the projection: what `verify` compares with.

It goes the way of a projection that was lost: unions up to the offset where it began, then the
verdicts that were put off, then record by record. Only documents that are being used are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import projection as docs
from .differences import Expected, companion, difference, same_history
from .ports import DocumentKey, Header, LogReader
from .positions import Partition
from .projection import PartitionFold

if TYPE_CHECKING:
    from .embedded_scratch import Scratch
    from .history import LogEntry

Progress = Callable[[str, int, int], None]
"""(what is being read, records done, records in all)."""

NOT_COMPARED = frozenset({docs.DEBTS, docs.UNJUDGED})
"""What the projector still has to do: a fold that was begun at another offset has done other parts of it."""
ALWAYS_COMPARED = frozenset({docs.OPS, docs.OPEN, docs.FENCES, docs.UNSAFE, docs.SET_ASIDE, docs.AGENTS})
"""Also where the log says that they are empty: what stands there then is made up."""

_STEP_RECORDS = 500
_KEPT_DOCUMENTS = 2_000
_JUDGED_AT_ONCE = 200
_GAPS = 999


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets, start <= offset < end, that the log does not have."""

    start: int
    end: int


class Refold:
    """A partition's fold up to some offset, its documents on disk. One thread at a time uses it.

    Args:
        header: the projection's, where the comparison begins.
        scratch: an empty one.

    Attributes:
        gaps: what the log left out; the last thousand.
        records: how many were read.
    """

    def __init__(self, partition: Partition, header: Header, scratch: Scratch) -> None:
        start = Header(generation=header.generation, judge_from=header.settled_offset, horizon=header.applied_offset)
        self._fold = PartitionFold(partition, start, {})
        self._scratch = scratch
        self.partition = partition
        self.gaps: list[Gap] = []
        self.records = 0

    @property
    def applied(self) -> int:
        """The next offset that it will read."""
        return self._fold.header.applied_offset

    def read_on(self, reader: LogReader, end: int, progress: Progress = lambda *_: None) -> None:
        """Fold the records up to `end`, exclusive; nothing when that is reached already."""
        if end <= self.applied and self._fold.header.opened:
            return
        for entry in reader.entries(self.partition, start=self.applied, end=end):
            self._take(entry)
            self.records += 1
            if self.records % _STEP_RECORDS == 0:
                self._store()
                progress(str(self.partition), entry.offset + 1, end)
        self._skip(end)
        self._store()
        self._open_if_due()

    def _take(self, entry: LogEntry) -> None:
        self._open_if_due()
        self._skip(entry.offset)
        while needed := self._fold.needs(entry):
            self._fold.provide(self._scratch.documents(needed))
        self._fold.apply(entry)

    def _skip(self, offset: int) -> None:
        if offset > self.applied:
            self.gaps = [*self.gaps[-_GAPS:], Gap(self.applied, offset)]
            self._scratch.note_gap(self.applied, offset)
            self._fold.skip_to(offset)

    def _open_if_due(self) -> None:
        if not self._fold.horizon_reached():
            return
        self._store()
        fences = {key: data for page in self._scratch.collection(docs.FENCES) for key, data in page.items()}
        for page in self._scratch.collection(docs.UNJUDGED, count=_JUDGED_AT_ONCE):
            op_ids = [key.key for key in page]
            self._fold.provide(
                self._scratch.documents(DocumentKey(c, o) for c in (docs.OPS, docs.UNSAFE) for o in op_ids)
            )
            self._fold.judge(op_ids, fences)
            self._store()
        self._fold.provide(fences)
        self._fold.open(fences)
        self._store()

    def _store(self) -> None:
        self._scratch.write(self._fold.take_step().writes)
        self._fold.forget(keep=_KEPT_DOCUMENTS)

    # -- comparing -----------------------------------------------------------------------

    def collections(self) -> list[str]:
        """The collections to compare."""
        return sorted({*self._scratch.collections(), *ALWAYS_COMPARED} - NOT_COMPARED)

    def size(self) -> int:
        """How many documents there are."""
        return self._scratch.size()

    def agree(self, found: Mapping[DocumentKey, bytes]) -> None:
        """Note which documents of the projection are as they are here; the others are to be looked at again.

        They need not be of the same offset: a document that changes here later is looked at again.
        """
        expected = self._scratch.documents(found)
        same = [key for key, value in found.items() if same_history(key, expected[key], value)]
        self._scratch.suspect(key for key, value in found.items() if expected[key] is None)
        self._scratch.compared(same)

    def open_questions(self, collection: str, *, count: int) -> Iterator[list[DocumentKey]]:
        """The keys of documents that were not found to agree, in runs."""
        return self._scratch.not_compared(collection, count=count)

    @staticmethod
    def to_read(keys: Iterable[DocumentKey]) -> list[DocumentKey]:
        """What must be read of the projection, at one offset, to tell how these documents differ."""
        return list(dict.fromkeys(one for key in keys for one in (key, companion(key)) if one is not None))

    def differences(self, keys: Iterable[DocumentKey], found: Mapping[DocumentKey, bytes]) -> dict[DocumentKey, str]:
        """Key → how the projection's document differs; both must be of one offset.

        Args:
            found: the documents that `to_read` names, as far as they exist.
        """
        told = {key: difference(key, found, self._expected(key)) for key in keys}
        return {key: text for key, text in told.items() if text}

    def _expected(self, key: DocumentKey) -> Expected:
        """What the log says about a document, and about the history that it was made from."""
        history = (
            docs.document_of(self.partition.topic, key.key) if key.collection in {docs.OPEN, docs.UNSAFE} else None
        )
        wanted = [one for one in (key, history) if one is not None]
        documents = self._scratch.documents(wanted)
        return Expected(
            document=documents[key],
            history=docs.read_history(documents[history]) if history else (),
            topic=self.partition.topic,
            generation=self._fold.header.generation,
            is_gone=self._scratch.in_gap,
        )

    def documents(self, collection: str) -> Iterator[dict[DocumentKey, bytes]]:
        """The documents of a collection, in runs."""
        return self._scratch.collection(collection)

    def keys(self, collection: str, *, count: int) -> Iterator[list[DocumentKey]]:
        """The keys that the log or a page of the projection has, or had, in runs."""
        return self._scratch.keys(collection, count=count)

    def existing(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Those of which there is a document, by the log."""
        return {key for key, document in self._scratch.documents(keys).items() if document is not None}
