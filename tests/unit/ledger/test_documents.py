"""The documents at hand while records are folded: what a step writes, and what it does not."""

from __future__ import annotations

import pytest

from fencepost.ledger.documents import Documents
from fencepost.ledger.ports import DocumentKey

OPEN = DocumentKey("open", "op")
OTHER = DocumentKey("open", "other")


@pytest.fixture
def documents() -> Documents:
    return Documents("effects/0")


def test_what_is_taken_back_within_a_step_is_not_written(documents: Documents) -> None:
    """A document that is at the end as it was stored at the beginning costs nothing, absent or not."""
    documents.provide({OPEN: None, OTHER: b"in doubt"})
    documents.put(OPEN, b"owned")
    documents.put(OTHER, b"owned")
    documents.put(OPEN, None)
    documents.put(OTHER, b"in doubt")
    assert documents.take() == {}
    documents.put(OPEN, b"owned")
    assert documents.take() == {OPEN: b"owned"}
    documents.put(OPEN, None)
    assert documents.take() == {OPEN: None}


def test_what_was_not_asked_for_is_written_whatever_it_is(documents: Documents) -> None:
    """Where nobody knows what is stored, a deletion is written too."""
    documents.put(OPEN, b"owned")
    documents.put(OPEN, None)
    assert documents.take() == {OPEN: None}


def test_what_is_supposed_absent_never_hides_what_is_known(documents: Documents) -> None:
    """A document that was provided, or written in this step or before, stays what it is."""
    documents.provide({OTHER: b"in doubt"})
    documents.put(OPEN, b"owned")
    for _ in range(2):
        documents.suppose_absent(OPEN)
        documents.suppose_absent(OTHER)
        assert (documents.get(OPEN), documents.get(OTHER)) == (b"owned", b"in doubt")
        documents.take()
        documents.forget(keep=4, keep_bytes=100)
