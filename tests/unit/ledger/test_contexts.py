"""Checkpoints and compactions of one context: which of them count, and to which generation a point belongs."""

from __future__ import annotations

import pytest
from unit.ledger.context_kit import compacted, context_of, marked
from unit.ledger.kit import agent_fact, decided, forked, opened, point, requested, token

from fencepost.ledger.contexts import ID_TAKEN, Context


def generations(context: Context) -> dict[str, int]:
    return {name: c.generation for name, c in context.checkpoints.items()}


def why(context: Context) -> list[str]:
    return [c.rejected for c in context.refused] + [c.rejected for c in context.every if c.rejected]


def test_each_compaction_begins_a_generation() -> None:
    """A checkpoint belongs to the one that its session is at; generations may be skipped, not repeated."""
    context = context_of(
        opened("s"), marked("a", "s", 0, 1), compacted("s", 1, 3), marked("b", "s", 0, 4, 1), compacted("s", 5, 6),
        marked("c", "s", 0, 6, 5), compacted("s", 5, 8),
    )  # fmt: skip
    assert generations(context) == {"a": 0, "b": 1, "c": 5}
    assert [context.generation_at(point(0, seq)) for seq in range(8)] == [0, 0, 0, 1, 1, 1, 5, 5]
    assert why(context) == ["generation 5 is not newer than 5, which its branch's context is at"]
    [refused] = context.refused
    assert (refused.conflicts, refused.current_generation) == (True, 5)


@pytest.mark.parametrize("given", [0, 2])
def test_a_checkpoint_of_another_generation_does_not_count(given: int) -> None:
    """Neither an older one nor one that has not begun; it says what its branch's context is at."""
    context = context_of(opened("s"), compacted("s", 1, 1), marked("c", "s", 0, 2, given))
    [checkpoint] = context.every
    assert (context.checkpoints, checkpoint.of_another_generation, checkpoint.current_generation) == ({}, True, 1)


def test_a_checkpoint_whose_watermark_stands_before_the_compaction_is_a_mix() -> None:
    """It names the new generation and was drawn up in the old one: it does not count."""
    context = context_of(opened("s"), compacted("s", 1, 6), marked("c", "s", 0, 5, 1))
    assert why(context) == ["its watermark stands before the compaction to generation 1"]
    assert context.every[0].of_another_generation
    assert context.every[0].current_generation == 0


def test_a_compaction_that_a_checkpoint_came_before_is_too_late() -> None:
    """The checkpoint's watermark covers it already, at the former generation: that must not change any more."""
    context = context_of(opened("s"), marked("c", "s", 0, 5), compacted("s", 1, 5), marked("d", "s", 0, 6))
    assert generations(context) == {"c": 0, "d": 0}
    assert why(context) == ["a checkpoint that stands behind it came before it"]
    assert context.generation_at(point(0, 5)) == 0


def test_a_compaction_that_a_session_resumed_behind_is_too_late() -> None:
    """Another branch's session stands on that point at the former generation."""
    context = context_of(
        opened("s"), marked("c", "s", 0, 2), forked("b", token(0, 2)),
        opened("f", token(0, 9), branch_id="b", segment="0.2"), compacted("s", 1, 9), compacted("s", 1, 10),
    )  # fmt: skip
    assert why(context) == ["a session that resumes from behind it came before it"]
    assert (context.generation_at(point(0, 9)), context.generation_at(point(0, 10))) == (0, 1)
    assert context.generation_at(point(3, 4)) == 0


def test_compactions_of_a_session_count_in_its_order() -> None:
    """One with a lower number that arrives after a later one does not."""
    context = context_of(opened("s"), compacted("s", 1, 7), compacted("s", 2, 6))
    assert why(context) == ["a later compaction of its session came before it"]
    assert [c.generation for c in context.compactions] == [1]


def test_who_resumes_from_an_older_point_is_at_its_generation_again() -> None:
    """Compactions behind that point are not on the path, and their numbers are free again."""
    context = context_of(
        opened("s"), marked("a", "s", 0, 1), compacted("s", 1, 3), marked("b", "s", 0, 4, 1), opened("t", token(0, 1)),
        marked("c", "t", 4, 1), compacted("t", 1, 2), marked("d", "t", 4, 2, 1), opened("u", token(4, 2)),
    )  # fmt: skip
    assert generations(context) == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert [c.point for c in context.compactions_at(point(4, 2))] == [point(4, 2)]
    assert [context.generation_at(point(4, 1)), context.generation_at(point(8, 0))] == [0, 1]


def test_what_an_ended_or_unknown_session_writes_does_not_count() -> None:
    """And says so otherwise than a conflict of generations."""
    context = context_of(opened("s"), opened("t", token(0, 2)), compacted("s", 1, 5), compacted("nobody", 1, 1))
    assert [c.conflicts for c in context.refused] == [False, False]
    assert why(context) == ["its session had ended: session t took over", "its session is not known"]
    assert why(context_of(compacted("s", 1, 1), opened("s"))) == ["its session is not known"]


def test_a_watermark_of_another_session_is_no_checkpoint_of_this_one() -> None:
    """A session can say only for itself what it knows."""
    context = context_of(opened("s"), opened("t", token(0, 2)), marked("c", "t", 0, 1))
    assert why(context) == ["its watermark is not its session's"]


def test_an_id_at_the_same_point_and_another_generation_is_taken() -> None:
    """The same fact twice is one checkpoint; one that says something else is refused."""
    same, other = marked("c", "s", 0, 2), marked("c", "s", 0, 2, 1)
    context = context_of(opened("s"), same, compacted("s", 1, 4), other, same)
    assert [c.rejected for c in context.every] == ["", ID_TAKEN]


def test_the_latest_checkpoint_is_the_newest_on_the_path() -> None:
    """Not one that a rollback left behind, and not one of a branch beside it."""
    life = [
        opened("s"), marked("a", "s", 0, 1), marked("b", "s", 0, 2), forked("x", token(0, 1)),
        opened("f", token(0, 1), branch_id="x", segment="0.3"), marked("fx", "f", 4, 1, branch_id="x"),
    ]  # fmt: skip
    before = context_of(*life)
    after = context_of(*life, requested("r", token(0, 1)), decided("r"))

    def latest(context: Context, branch: str) -> str | None:
        found = context.latest(branch)
        return found.checkpoint_id if found else None

    assert [latest(before, b) for b in ("main", "x", "none")] == ["b", "fx", None]
    assert [latest(after, b) for b in ("main", "x")] == ["a", "fx"]
    assert latest(context_of(opened("s")), "main") is None


def test_plain_data() -> None:
    """A checkpoint and a compaction as JSON has them, with what is unreadable in them as nothing."""
    context = context_of(opened("s"), compacted("s", 1, 1, token(0, 0), kept=("a",)), marked("c", "s", 0, 1, 1))
    told = context.compactions[0].to_dict()
    assert (told["generation"], told["kept"], told["dropped"], told["token"]) == (1, ["a"], [], token(0, 0))
    assert context.checkpoints["c"].to_dict()["generation"] == 1
    torn = context_of(
        opened("s"), compacted("s", 1, 1, "torn"), agent_fact("CHECKPOINTED", session_id="s", generation=1)
    )
    assert torn.compactions[0].to_dict()["token"] is None
    assert torn.every[0].to_dict()["token"] is None
