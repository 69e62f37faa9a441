"""What a step announces of its documents."""

from __future__ import annotations

from fencepost.consumer import announcing
from fencepost.consumer.announcing import Announcement, fingerprint
from fencepost.ledger.ports import DocumentKey, Header, Step
from fencepost.ledger.projection import FENCES, OPEN, OPS

OP = DocumentKey(OPS, "op")


def test_what_is_told_is_read() -> None:
    """Histories of operations and fences are told, whatever bytes their fingerprints have; indexes and deletions are not."""
    writes = {DocumentKey(OPS, f"op{n}"): b"%d" % n for n in range(100)}
    writes[DocumentKey(FENCES, "agent\x1fmain")] = b"fence"
    left_out = {DocumentKey(OPEN, "op"): b"open", DocumentKey(OPS, "gone"): None}
    told = announcing.told(Step(Header(opened=True), {**writes, **left_out}))
    found = Announcement.read(b"inc 7\n" + told)
    assert (found.incarnation, found.applied_offset) == ("inc", 7)
    assert found.fingerprints == tuple(fingerprint(key, data) for key, data in writes.items())


def test_a_projection_that_answers_nobody_tells_nothing() -> None:
    """Below the horizon nobody waits for a document."""
    assert announcing.told(Step(Header(opened=False), {OP: b"x"})) == b""


def test_a_state_without_documents() -> None:
    """The beginning of a projection, and that it was dropped, are announced without documents."""
    assert Announcement.read(b"inc 0") == Announcement("inc", 0)
    assert Announcement.read(b" 0") == Announcement("", 0)


def test_fingerprints_differ() -> None:
    """Another document, key, or collection has another fingerprint; where the key ends and the document begins counts."""
    documents = [
        (OP, b"x"),
        (OP, b"y"),
        (DocumentKey(OPS, "o"), b"px"),
        (DocumentKey(FENCES, "op"), b"x"),
        (DocumentKey(OPS, "opx"), b""),
        (DocumentKey("op", "sop"), b"x"),
    ]
    assert len({fingerprint(key, data) for key, data in documents}) == len(documents)
