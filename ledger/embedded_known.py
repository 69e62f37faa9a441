"""What the writer of the embedded store knows of a partition, from one transaction to the next.

As long as no other connection has committed, what this one has read and written is what the file says, so
that the next transaction need not read it again. What a transaction changes is gathered here as well, and
written at its end: a document that several records change is written once.

The fold goes on from record to record, too: what it has decoded and folded of an operation's intent is at hand
when the outcome comes. One that was left by an error is not used again; what stands in `Known` is untouched by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .projection import PartitionFold

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .embedded_tables import Row
    from .history import History
    from .ports import DocumentKey, Header
    from .positions import Partition
    from .projection import Debt

MOST_DOCUMENTS = 10_000
MOST_BYTES = 8_000_000
"""Of what was used lately; as much again may be kept of what was used before that."""
MOST_FOLDED = 4_000
"""So many documents, and half as many again, are kept decoded and folded."""
MOST_GATHERED_BYTES = 8_000_000
"""Of what waits to be written at the end of a transaction."""


class Documents:
    """Documents as they are now, absent ones as None; those that nobody has used for long are forgotten."""

    def __init__(self) -> None:
        self._lately: dict[DocumentKey, bytes | None] = {}
        self._before: dict[DocumentKey, bytes | None] = {}
        self._bytes = 0

    def pick(self, keys: Iterable[DocumentKey]) -> tuple[dict[DocumentKey, bytes | None], list[DocumentKey]]:
        """Those of `keys` that are at hand, and the keys of the others."""
        found: dict[DocumentKey, bytes | None] = {}
        missing: list[DocumentKey] = []
        for key in keys:
            if key in self._lately:
                found[key] = self._lately[key]
            elif key in self._before:
                found[key] = self._before[key]
                self.put({key: found[key]})
            else:
                missing.append(key)
        return found, missing

    def has(self, key: DocumentKey) -> bool:
        """Whether a document is at hand, and there. From any thread."""
        return (self._lately.get(key) or self._before.get(key)) is not None

    def put(self, documents: Mapping[DocumentKey, bytes | None]) -> None:
        """Take documents as they are now."""
        for key, value in documents.items():
            self._bytes += len(value or b"") - len(self._lately.get(key) or b"")
            self._lately[key] = value

    def trim(self) -> None:
        """Keep to the bounds. Only what can be read from the file again may be in it."""
        if len(self._lately) > MOST_DOCUMENTS or self._bytes > MOST_BYTES:
            self._before, self._lately, self._bytes = self._lately, {}, 0


class Fold(PartitionFold):
    """The fold of a partition, which tells the histories that it has at hand."""

    def history(self, document: DocumentKey) -> History | None:
        """The history in a document; None when it is not at hand."""
        return self._documents.known(document, document.key).history if document in self._documents else None


class Known:
    """One partition, with all that was published in the open transaction.

    Args:
        header: as of the last record.
        debts: log key → debt; the complete list.

    Attributes:
        rows, writes: what is not in the file yet.
    """

    def __init__(self, partition: Partition, header: Header, debts: dict[str, Debt]) -> None:
        self._partition = partition
        self._fold: Fold | None = None
        self.header = header
        self.debts = debts
        self.documents = Documents()
        self.rows: list[Row] = []
        self.writes: dict[DocumentKey, bytes | None] = {}
        self._gathered = 0

    def begin_fold(self) -> Fold:
        """The fold of the partition as it is known, for whoever takes records with it: `take` is to give it back."""
        fold, self._fold = self._fold, None
        return Fold(self._partition, self.header, self.debts) if fold is None else fold

    def history(self, document: DocumentKey) -> History | None:
        """The history in a document; None when it is not at hand decoded."""
        return None if self._fold is None else self._fold.history(document)

    def take(self, fold: Fold, rows: list[Row], writes: Mapping[DocumentKey, bytes | None]) -> bool:
        """Take what a publish has changed; whether so much waits now that it should be written."""
        self.header = fold.header
        self.debts = fold.debts.copy()
        self.documents.put(writes)
        self.rows += rows
        self.writes.update(writes)
        for row in rows:
            self._gathered += len(row.value)
        for value in writes.values():
            self._gathered += len(value or b"")
        self._fold = fold
        return self._gathered > MOST_GATHERED_BYTES

    def written(self) -> None:
        """Everything is in the file."""
        self.rows, self.writes, self._gathered = [], {}, 0
        self.documents.trim()
        if self._fold is not None:
            self._fold.forget(keep=MOST_FOLDED, keep_bytes=MOST_BYTES)
