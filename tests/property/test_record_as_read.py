"""What the embedded store folds of a record that was encoded here is what a reader makes of its bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.ledger import history
from fencepost.ledger.embedded_apply import as_read
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import PositionedFact, Record
from fencepost.ledger.losers import Number, summary
from fencepost.ledger.positions import Position

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KINDS = st.sampled_from([kind for kind in EffectKind if kind is not EffectKind.SUMMARISED])
NUMBERS = st.frozensets(
    st.builds(Number, TEXTS, st.builds(Position, st.integers(0, 3), st.integers(0, 9)), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)
FACTS = st.one_of(
    st.binary(max_size=30),
    st.builds(EffectFact, kind=KINDS, op_id=st.just("op"), attempt_id=TEXTS, seq=st.integers(0, 9)).map(encode_effect),
    NUMBERS.map(lambda numbers: summary("op", numbers)),
)
PLACED = st.builds(PositionedFact, st.builds(Position, st.integers(0, 2), st.integers(-1, 40)), FACTS)
RECORDS = st.builds(
    Record, key=TEXTS, history=st.lists(PLACED, max_size=5).map(tuple), fact=st.none() | FACTS, writer=TEXTS
)


@settings(deadline=None, max_examples=300)
@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """Whatever its history is like: unordered, repeated, with summaries; down to the types of what is in it."""
    read, told = history.decode(history.encode(record)), as_read(record)
    assert told == read
    assert told is not None
    assert [type(item.fact) for item in told.history] == [bytes] * len(told.history)


def test_what_is_no_bytes_is_decoded() -> None:
    """Something that is encoded like bytes, and may be changed afterwards, is not what is read."""
    assert as_read(Record("op", (), bytearray(b"fact"))) is None  # type: ignore[arg-type]
    assert as_read(Record("op", (PositionedFact(Position(0, 1), bytearray(b"fact")),))) is None  # type: ignore[arg-type]
