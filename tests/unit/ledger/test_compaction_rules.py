"""What a compaction must satisfy: its drop manifest, and the token that its summary has to hold."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from unit.ledger.context_kit import compacted, context_of, marked
from unit.ledger.kit import LEDGER_ID, forked, opened, point, token

from fencepost.ledger.compaction_rules import (
    MAX_DROPPED,
    MAX_DROPPED_BYTES,
    MAX_KEPT,
    drop_manifest,
    newest_mark,
    require_room,
    require_token,
)
from fencepost.ledger.contexts import Context
from fencepost.ledger.errors import CompactionRefusedError, InvalidArgumentError, RecordTooLargeError
from fencepost.ledger.facts import AgentFact, AgentKind, Dropped, encode_agent
from fencepost.ledger.history import MAX_RECORD_BYTES, PositionedFact, Record, encode
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_drop_manifest_names_each_reference_once() -> None:
    """With its text's digest, if any of its mentions tells it."""
    given: list[Any] = ["a", ("a", "text"), ("b", b"text"), Dropped("b", sha("text")), Dropped("c"), "c"]
    assert drop_manifest(given) == (Dropped("a", sha("text")), Dropped("b", sha("text")), Dropped("c"))
    assert drop_manifest([]) == drop_manifest(iter(())) == ()


@pytest.mark.parametrize(
    "wrong", ["doc", b"doc", Dropped("doc"), [b"doc"], [7], [("a",)], [("a", "b", "c")], [(7, "b")], [" a"]]
)
def test_wrong_manifests_are_refused(wrong: Any) -> None:
    """With the field's name, also where a single reference stands for the list."""
    with pytest.raises(InvalidArgumentError) as caught:
        drop_manifest(wrong)
    assert caught.value.field == "dropped"


def test_two_texts_under_one_reference_are_refused() -> None:
    """Which of them was dropped could not be told."""
    with pytest.raises(InvalidArgumentError, match="named twice"):
        drop_manifest([("a", "one"), ("a", "two")])


def test_the_largest_compaction_fits_three_times_into_a_record() -> None:
    """The same fact may stand at several positions of its key, and one record must take them all."""
    dropped = tuple(Dropped(f"{n:04}{'d' * 300}", sha(str(n))) for n in range(530))
    kept = tuple(f"{n:04}{'k' * 190}" for n in range(500))
    require_room(dropped, kept)
    with pytest.raises(RecordTooLargeError):
        require_room((*dropped, *(Dropped(f"more{n}" * 60) for n in range(8))), kept)
    fact = encode_agent(AgentFact(kind=AgentKind.COMPACTED, dropped=dropped, kept=kept, agent_id="a" * 200))
    assert len(fact) * 3 < MAX_RECORD_BYTES
    history = tuple(PositionedFact(Position(0, n), fact) for n in range(3))
    assert len(encode(Record("compaction/a/b/c/1", history))) < MAX_RECORD_BYTES


@pytest.mark.parametrize(
    ("dropped", "kept", "field"),
    [
        ([Dropped(f"d{n}") for n in range(MAX_DROPPED + 1)], [], "dropped"),
        ([Dropped("ü" * (MAX_DROPPED_BYTES // 2))], [], "dropped"),
        ([], [f"k{n}" for n in range(MAX_KEPT + 1)], "kept"),
        ([], ["k" * 512] * 300, "kept"),
    ],
)
def test_what_does_not_fit_is_named(dropped: list[Dropped], kept: list[str], field: str) -> None:
    """By its field, with how much it is and how much is allowed."""
    with pytest.raises(RecordTooLargeError) as caught:
        require_room(dropped, kept)
    assert caught.value.field == field
    assert caught.value.size_bytes > 0
    assert caught.value.limit_bytes > 0


LIFE = (opened("s"), marked("c", "s", 0, 3), compacted("s", 1, 5, token(0, 4)), forked("b", token(0, 3)))


def refused(context: Context, summary: str, seq: int = 9) -> CompactionRefusedError:
    with pytest.raises(CompactionRefusedError) as caught:
        require_token(context, point(0, seq), summary, LEDGER_ID)
    return caught.value


@pytest.mark.parametrize(
    ("summary", "problem"),
    [
        ("none", "absent"),
        (token(0, 4)[:-3], "mangled"),
        (f"{token(0, 4)[:-3]} {token(0, 9, agent='other')}", "mangled"),
        (token(0, 4, agent="other"), "foreign"),
        (token(0, 4, ledger_id="other"), "foreign"),
        (token(0, 10), "foreign"),
        (token(7, 1, branch="b"), "foreign"),
        (token(0, 3), "outdated"),
        (f"{token(0, 3)} {token(7, 1, branch='b')}", "outdated"),
    ],
)
def test_a_token_that_does_not_do(summary: str, problem: str) -> None:
    """Each problem is told by its name, with the token that would do."""
    error = refused(context_of(*LIFE), summary)
    assert (error.problem, error.token) == (problem, token(0, 4))
    assert error.details.keys() == {"problem", "token"}
    assert error.token in str(error)


@pytest.mark.parametrize("summary", [token(0, 4), token(0, 9), f"{token(0, 3)}{token(0, 6)}{token(7, 1)}"])
def test_a_token_that_does(summary: str) -> None:
    """The newest on the path counts, whatever stands beside it."""
    found = require_token(context_of(*LIFE), point(0, 9), summary, LEDGER_ID)
    assert found.seq in {4, 9, 6}


def test_before_anything_is_registered_the_token_of_now_is_named() -> None:
    """Any token of the path does then."""
    context = context_of(opened("s"))
    assert refused(context, "none", 2).token == Watermark(LEDGER_ID, "agent", "main", Position(0, 0), 2).token
    assert require_token(context, point(0, 2), token(0, 0), LEDGER_ID).seq == 0
    assert newest_mark(context, point(0, 2)) is None


def test_marks_beside_the_path_do_not_count() -> None:
    """Neither checkpoints nor compactions of a stretch that was left behind."""
    context = context_of(*LIFE, opened("t", token(0, 2)))
    assert newest_mark(context, point(4, 1)) is None
    newest = newest_mark(context, point(0, 9))
    assert newest is not None
    assert newest.token == token(0, 4)
