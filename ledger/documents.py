"""The documents of a partition's projection that are at hand while records are folded.

A history is kept decoded, and written when the step is taken: what a later record of the same step adds is written with
it. So are sequence numbers. What a step has written stays at hand, as far as the bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import history
from .history import History, Record
from .operations import Operation
from .ports import DocumentKey
from .seq_bits import set_bits

_CERTAIN_BYTES = 1 << 19
_CERTAIN_FACTS = 5_000
_OVERHEAD_BYTES = 40  # of a fact in a history, more than its position and length take


def read_history(data: bytes | None) -> History:
    """The history in a document; none in an absent one. Raises DecodeError."""
    return () if data is None else history.decode(data).history


def write_history(key: str, facts: History) -> bytes:
    """A document that holds a key's history."""
    return history.encode(Record(key, facts))


class Known:
    """A key's history as it stands in a document, and what was made of it.

    Attributes:
        key: the log key.
        history: what is known of it.
        there: whether there is such a document.
        operation: the fold of that history, if it was made and can be gone on from.
    """

    __slots__ = ("history", "key", "operation", "there")

    def __init__(self, key: str, facts: History, *, there: bool = True) -> None:
        self.key = key
        self.history = facts
        self.there = there
        self.operation: Operation | None = None

    def written(self) -> bytes:
        """The document. Raises EncodeError when it is too large."""
        return write_history(self.key, self.history)

    @property
    def certain(self) -> bool:
        """Whether it is far from too large to be written."""
        size = sum([len(item.fact) for item in self.history]) + _OVERHEAD_BYTES * len(self.history)
        return size + 4 * len(self.key) < _CERTAIN_BYTES and len(self.history) < _CERTAIN_FACTS

    def taken_operation(self) -> Operation | None:
        """The operation, for whoever changes it by what comes next."""
        operation, self.operation = self.operation, None
        return operation


Document = bytes | Known | None
_UNKNOWN = b"what is stored was not told"


class Documents:
    """Documents by name: those that were provided, and over them those that are written in this step.

    Args:
        what: whose documents, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._loaded: dict[DocumentKey, Document] = {}
        self._older: dict[DocumentKey, Document] = {}
        self._writes: dict[DocumentKey, Document] = {}
        self._seen: dict[DocumentKey, list[int]] = {}
        self._bytes = 0

    def __contains__(self, key: DocumentKey) -> bool:
        return key in self._writes or key in self._loaded or key in self._older

    def __len__(self) -> int:
        return len(self._loaded) + len(self._older)

    def provide(self, documents: Mapping[DocumentKey, bytes | None]) -> None:
        """Take documents as they are stored; absent ones as None."""
        self._loaded.update(documents)
        self._bytes += sum(map(_size, documents.values()))

    def suppose_absent(self, key: DocumentKey) -> None:
        """Take a document for absent that was not asked for, as others tell of it."""
        if key not in self:
            self._loaded[key] = None

    def get(self, key: DocumentKey) -> bytes | None:
        """A document. One that is not at hand is never taken for absent: its history would be overwritten."""
        found = self._found(key)
        if isinstance(found, Known):
            return found.written() if found.there else None
        return found

    def at_hand(self, key: DocumentKey) -> bytes | None:
        """A document, None when it is absent or not at hand."""
        return self.get(key) if key in self else None

    def known(self, key: DocumentKey, log_key: str) -> Known:
        """The history in a document; an empty one in an absent one. Raises DecodeError, LookupError."""
        found = self._found(key)
        if isinstance(found, Known):
            return found
        known = Known(log_key, history.decode(found).history if found is not None else (), there=found is not None)
        if key not in self._writes:
            self._loaded[key] = known
        return known

    def put(self, key: DocumentKey, value: bytes | None) -> None:
        """Write a document, or delete it with None; nothing where it is so already."""
        stored = self._loaded.get(key, self._older.get(key, _UNKNOWN))
        if stored is not _UNKNOWN and stored == value:
            self._writes.pop(key, None)  # what this step has written before is taken back
        else:
            self._writes[key] = value

    def put_history(self, key: DocumentKey, known: Known) -> None:
        """Write a history. Raises EncodeError when it is too large; nothing is changed then."""
        before = self._found(key)
        if isinstance(before, Known) and before.there and before.history == known.history:
            return
        if known.certain:
            self._writes[key] = known
        else:
            self.put(key, known.written())

    def note(self, key: DocumentKey, seq: int) -> None:
        """Note a sequence number in its document."""
        if key not in self._seen:
            self._found(key)
            self._seen[key] = []
        self._seen[key].append(seq)

    def take(self) -> dict[DocumentKey, bytes | None]:
        """What changed since the last step, as it is to be stored."""
        for key, numbers in self._seen.items():
            self.put(key, set_bits(self.get(key), numbers))
        self._seen = {}
        written = {k: v.written() if isinstance(v, Known) else v for k, v in self._writes.items()}
        self._bytes += sum([len(document) for document in written.values() if document])
        self._loaded.update(self._writes)
        self._writes = {}
        return written

    def forget(self, *, keep: int, keep_bytes: int) -> None:
        """Keep those that were used last: half as many again, and so many bytes, at most. Only between steps."""
        if len(self._loaded) * 2 > keep or self._bytes * 2 > keep_bytes:
            fits = len(self._loaded) <= keep and self._bytes <= keep_bytes
            self._older, self._loaded, self._bytes = self._loaded if fits else {}, {}, 0

    def missing(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Those that are not at hand."""
        writes, loaded, older = self._writes, self._loaded, self._older
        return {key for key in keys if key not in loaded and key not in writes and key not in older}

    def _found(self, key: DocumentKey) -> Document:
        if key in self._writes:
            return self._writes[key]
        if key in self._loaded:
            return self._loaded[key]
        if key in self._older:
            found = self._loaded[key] = self._older.pop(key)
            self._bytes += _size(found)
            return found
        raise LookupError(f"{self._what}: document {key} was not provided")


def _size(document: Document) -> int:
    if isinstance(document, Known):
        return sum(len(item.fact) for item in document.history)
    return len(document or b"")
