"""Watermark tokens survive summaries, and one that did not survive is told from one that was never there."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.ledger.errors import WatermarkMangledError
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Point, Watermark, low_water

MARK = Watermark("5b1c9e5e-ledger", "agent 7/é", "main", Position(0, 41), 17)
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
marks = st.builds(
    Watermark,
    st.from_regex(r"[0-9a-f-]{1,36}", fullmatch=True),
    text,
    text,
    st.builds(Position, st.integers(0, 9), st.integers(0, 2**62)),
    st.integers(0, 2**62),
)


def answer(found_in: str) -> str:
    """What looking into this text gives: the mark, nothing, or that something is damaged."""
    try:
        found = Watermark.find(found_in)
    except WatermarkMangledError:
        return "mangled"
    return "absent" if found is None else found.token


@given(mark=marks, before=text, after=text)
def test_a_token_embedded_in_any_text_comes_back(mark: Watermark, before: str, after: str) -> None:
    """Whatever stands around it, as long as the token itself is verbatim."""
    assert Watermark.parse(mark.token) == mark
    assert Watermark.find(f"{before}{mark.token}{after}") == mark
    assert mark.token.isprintable()
    assert not set(mark.token) & set(" \n\t")


@given(text)
def test_text_without_a_trace_is_absent(noise: str) -> None:
    """Looking never raises anything else, and finds nothing that is not there."""
    assert answer(noise) == "absent"


@pytest.mark.parametrize("index", range(len(MARK.token)))
def test_any_single_change_of_a_token_is_seen(index: int) -> None:
    """A character replaced, dropped or added: mangled, or still the very same mark; never absent, never another."""
    token = MARK.token
    characters = string.ascii_letters + string.digits + string.punctuation + " \n٣"
    changed = [token[:index] + c + token[index + 1 :] for c in characters if c != token[index]]
    changed += [token[:index] + token[index + 1 :], *(token[:index] + c + token[index:] for c in characters)]
    for variant in changed:
        found = answer(f"The summary says {variant} and goes on.")
        assert found in {"mangled", token}, variant


@pytest.mark.parametrize("index", range(1, len(MARK.token)))
def test_a_token_cut_short_is_mangled_or_leaves_no_trace(index: int) -> None:
    """From either side: only when too little is left to know it by is it absent."""
    token = MARK.token
    for part in (token[:index], token[index:]):
        assert answer(f"… {part} …") in {"mangled", "absent"}, part
    assert answer(f"… {token[: max(index, len('[[fence'))]} …") == "mangled"
    assert answer(f"… {token[min(index, token.index('41:17') - 2) :]} …") in {"mangled", token}


@given(mark=marks, other=marks)
def test_pieces_of_two_tokens_never_make_a_third(mark: Watermark, other: Watermark) -> None:
    """Each field replaced by the other's: the checksum covers them all."""
    mine, theirs = mark.token.split(":"), other.token.split(":")
    for index in range(len(mine)):
        mixed = ":".join([*mine[:index], theirs[index], *mine[index + 1 :]])
        assert answer(mixed) in {"mangled", mark.token, other.token}


@pytest.mark.parametrize(
    "damaged",
    [
        "[[fencepost:w1:…]]",
        "[[ fencepost ]]",
        "Fencepost: w1 token was here",
        "fence post:w1:abc",
        MARK.token.upper(),
        MARK.token.replace("17", "18"),
        MARK.token[2:-2],
    ],
)
def test_what_a_summary_does_to_tokens_is_mangled(damaged: str) -> None:
    """Shortened, respelled, unwrapped: the summary has damaged what it had to keep."""
    assert answer(damaged) == "mangled"
    with pytest.raises(WatermarkMangledError) as caught:
        Watermark.parse(damaged)
    assert caught.value.field == "watermark"


@pytest.mark.parametrize("harmless", ["", "a fence post", "fencepost", "the fencepost error", "12:30:45", "w1"])
def test_ordinary_words_are_no_traces(harmless: str) -> None:
    """A text about fence posts has lost no token; parsing it says that there is none."""
    assert answer(harmless) == "absent"
    with pytest.raises(WatermarkMangledError, match="holds no token"):
        Watermark.parse(harmless)


def test_of_several_tokens_the_newest_wins() -> None:
    """However the summaries were nested: the later session, and in one session the higher number."""
    older = Watermark("l", "a", "main", Position(0, 41), 99)
    newer = Watermark("l", "a", "main", Position(0, 50), 1)
    newest = Watermark("l", "a", "main", Position(0, 50), 2)
    nested = f"Summary of ({newest.token} summary of ({older.token})) and {newer.token}"
    assert Watermark.find(nested) == newest
    assert Watermark.find(nested + MARK.token[:20]) == newest
    moved = Watermark("l", "a", "main", Position(1, 0), 1)
    assert Watermark.find(nested + moved.token) == moved


def test_a_watermark_as_plain_data() -> None:
    """Machine-readable, with the token to embed."""
    plain = MARK.to_dict()
    assert Watermark.parse(plain.pop("token")) == MARK
    assert plain == {
        "ledger_id": "5b1c9e5e-ledger",
        "agent_id": "agent 7/é",
        "branch_id": "main",
        "epoch": "0.41",
        "seq": 17,
    }
    assert MARK.point == Point(Position(0, 41), 17)


@given(seen=st.sets(st.integers(1, 30)), voided=st.sets(st.integers(1, 30)))
def test_the_low_water_mark_is_where_the_first_number_is_missing(seen: set[int], voided: set[int]) -> None:
    """Voided numbers were certainly never written and leave no gap."""
    mark = low_water(seen, frozenset(voided))
    assert all(n in seen | voided for n in range(1, mark + 1))
    assert mark + 1 not in seen | voided
