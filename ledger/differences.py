"""How a document of the projection differs from what a fold of its log says, and what may differ.

The fold reads the log as it is now: what the log cleaner has removed since the projection read it is
in later records of the same key, but for records that could not be taken. Therefore, at one offset:

    ops         the same facts, some of them perhaps in a summary
    set-aside   a note for the same records, but for those that are gone from the log
    unsafe      a note for the same keys, but for keys whose record is gone; which of a key's records it
                names depends on which were seen
    open        what follows from the history, and from whether the projection has an unsafe note
    all others  the same bytes

Whether a history had room for one more fact depends on what else was in it when it was read: a note
that says so may stand on one side only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..schemas.errors import DecodeError
from . import projection as docs
from .derived_facts import agree
from .history import History
from .marks import NO_ROOM, TOO_LARGE, mark_of
from .notes import Note, read_note
from .operation_fold import fold_operation
from .operations import Status
from .ports import DocumentKey
from .positions import Topic

MISSING = "is in the log and not in the projection"
MADE_UP = "is in the projection and not in the log"
OTHER = "differs from what the log says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the log says about one document.

    Attributes:
        document: None where there should be none.
        history: of the log key that an `open` or `unsafe` document is about; else empty.
        generation: of the log.
        is_gone: whether the log does not have the record at an offset any more.
    """

    document: bytes | None
    history: History
    topic: Topic
    generation: int
    is_gone: Callable[[int], bool]


def companion(key: DocumentKey) -> DocumentKey | None:
    """The document of the projection that must be read together with this one; None for most."""
    return DocumentKey(docs.UNSAFE, key.key) if key.collection == docs.OPEN else None


def difference(key: DocumentKey, found: Mapping[DocumentKey, bytes], expected: Expected) -> str:
    """How the projection's document differs from what the log says; "" if it does not.

    Args:
        found: the projection's documents, of the same offset; that of `key` and of its companion, if they exist.
    """
    have = found.get(key)
    if same_history(key, expected.document, have):
        return ""
    if key.collection in _RULES and _RULES[key.collection](key, found, expected):
        return ""
    if have is None:
        return MISSING
    return MADE_UP if expected.document is None else OTHER


def same_history(key: DocumentKey, expected: bytes | None, have: bytes | None) -> bool:
    """Whether two documents say the same. A summary may be there already, or not yet: it stands for facts of the other."""
    if expected == have:
        return True
    if key.collection != docs.OPS or expected is None or have is None:
        return False
    try:
        return agree(docs.read_history(expected), docs.read_history(have))
    except DecodeError:
        return False


def _depends_on_room(note: Note) -> bool:
    return note.problem.startswith((TOO_LARGE, NO_ROOM))


def _is_gone(note: Note, expected: Expected) -> bool:
    """Whether the record that a note is about is not in the log any more."""
    return note.position.generation == expected.generation and expected.is_gone(note.position.offset)


_Notes = Callable[[DocumentKey, Note, Note | None, Expected], bool]
_Rule = Callable[[DocumentKey, Mapping[DocumentKey, bytes], Expected], bool]


def _by_notes(same: _Notes) -> _Rule:
    """The rule for documents that are notes: that of the projection, and the log's, if it says that there should be one."""

    def rule(key: DocumentKey, found: Mapping[DocumentKey, bytes], expected: Expected) -> bool:
        try:
            have, said = (
                read_note(data, expected.generation) if data is not None else None
                for data in (found.get(key), expected.document)
            )
        except DecodeError:
            return False
        if any(note is not None and _depends_on_room(note) for note in (have, said)):
            return True
        return have is not None and same(key, have, said, expected)

    return rule


def _same_set_aside(key: DocumentKey, have: Note, said: Note | None, expected: Expected) -> bool:
    """The text of the problem is for people, and worded by the version that wrote it: it is not compared."""
    if said is None:
        return str(have.position.offset) == key.key and _is_gone(have, expected)
    return replace(have, problem="") == replace(said, problem="")


def _same_unsafe(key: DocumentKey, have: Note, said: Note | None, expected: Expected) -> bool:
    if have.key != key.key:
        return False
    if _is_gone(have, expected):
        return True
    mark = mark_of(expected.topic, key.key)
    marked = {position for position, fact in expected.history if fact == mark}
    return said is not None and have.position in {said.position, *marked}


def _same_open(key: DocumentKey, found: Mapping[DocumentKey, bytes], expected: Expected) -> bool:
    operation = fold_operation(key.key, expected.history)
    unsafe = DocumentKey(docs.UNSAFE, key.key) in found
    have = found.get(key)
    if have is None:
        return operation.at_rest and not unsafe
    if unsafe and have == Status.UNSAFE.value.encode():
        return True
    return (unsafe or not operation.at_rest) and have == operation.status.value.encode()


_RULES: Mapping[str, _Rule] = {
    docs.SET_ASIDE: _by_notes(_same_set_aside),
    docs.UNSAFE: _by_notes(_same_unsafe),
    docs.OPEN: _same_open,
}
