"""The numbers of a session's facts: which are given out again, and which never."""

from __future__ import annotations

from fencepost.ledger.sequence import Sequence


def test_a_number_that_was_not_written_is_given_out_again() -> None:
    """So that nothing is missing; one that others stand behind is noted instead."""
    numbers = Sequence()
    first, second = numbers.take(), numbers.take()
    numbers.void(first)
    numbers.void(second)
    assert (numbers.voided, numbers.take()) == ({first}, second)


def test_a_number_that_a_watermark_covers_is_not_given_out_again() -> None:
    """What gets it later would count as known where the watermark was told."""
    numbers = Sequence()
    covered = numbers.take()
    assert numbers.tell() == covered
    numbers.void(covered)
    assert (numbers.voided, numbers.take()) == ({covered}, covered + 1)
