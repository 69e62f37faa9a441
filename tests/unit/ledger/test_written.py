"""What a rebuild remembers of what it wrote."""

from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.written import Written


def test_what_was_written_is_never_taken_for_absent() -> None:
    """Of what was written all is told, and of the rest nearly nothing."""
    written = Written()
    keys = [DocumentKey("ops", f"op{number}") for number in range(5000)]
    others = {DocumentKey("unsafe", f"op{number}") for number in range(5000)}
    assert written.perhaps(keys) == set()
    written.note(keys)
    assert written.perhaps(keys) == set(keys)
    assert len(written.perhaps(others)) < 50
