"""What was open when a checkpoint was taken is not known to it, nor to what goes on from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.ledger.context_kit import context_of, marked
from unit.ledger.guard_kit import evidence, here, kinds, seen
from unit.ledger.kit import OP, committed, intended, opened, token

from fencepost.ledger.contexts import Context
from fencepost.ledger.guard import decide
from fencepost.ledger.lineage import ROOT
from fencepost.ledger.positions import Position
from fencepost.ledger.replay import replay_forward
from fencepost.ledger.verdicts import Policy, ReasonKind
from fencepost.ledger.watermarks import Point

FIRST, SECOND = Position(0, 0), Position(0, 2)
DONE = seen(here(intended, "a", 2), here(committed, "a", 4))


def shown(*owned: str) -> Context:
    """A session goes on from the checkpoint of another, at its number 5."""
    return context_of(opened("s"), marked("c", "s", 0, 5, owned=owned), opened("t", token(0, 5)))


def test_only_where_the_path_leaves_a_session_at_a_checkpoint() -> None:
    """A session that goes on from there lacks it too; one that went on beyond it had it in its own hands."""
    context = shown("x")
    assert context.open_at(Point(FIRST, 5)) == {FIRST: {"x"}}
    assert context.open_at(Point(SECOND, 9)) == {FIRST: {"x"}}
    assert context.open_at(Point(FIRST, 6)) == {}
    assert context.open_at(ROOT) == {}


def test_two_checkpoints_at_one_watermark() -> None:
    """Asked for by itself each has what was open then; a session that starts there may come from either."""
    context = context_of(opened("s"), marked("c", "s", 0, 5, owned=("x",)), marked("d", "s", 0, 5))
    assert context.open_at(Point(FIRST, 5)) == {FIRST: {"x"}}
    assert context.open_at(Point(FIRST, 5), context.checkpoints["d"]) == {FIRST: frozenset()}


@pytest.mark.parametrize("policy", list(Policy))
def test_the_guard_does_not_know_what_was_open(policy: Policy) -> None:
    """Through that session's own facts; what another session of the path settled or absorbed, it knows."""
    open_at = {FIRST: {OP}}
    assert decide(evidence(DONE), Policy.STRICT).authorised
    verdict = decide(evidence(DONE, open_at=open_at), policy)
    if policy is Policy.GATED:
        assert [effect.op_id for effect in verdict.crossed] == [OP]
    else:
        assert kinds(verdict) == {ReasonKind.EFFECT_NOT_KNOWN}
    noted = decide(evidence(DONE, open_at=open_at, absorbed={(OP, 1): [Point(FIRST, 5)]}), Policy.STRICT)
    assert not noted.authorised
    assert decide(evidence(DONE, open_at={SECOND: {OP}}), Policy.STRICT).authorised


def test_replay_holds_what_was_open_until_a_later_session_has_it() -> None:
    """A session that started from the checkpoint is told of it, and knows it once it has noted that."""
    context, here_now = shown(OP), Point(SECOND, 3)
    for absorbed, wanted in (({}, [OP]), ({(OP, 1): [Point(SECOND, 2)]}, [])):
        told = replay_forward(
            context.agent, [replace(DONE)], absorbed, since=here_now, open_at=context.open_at(here_now)
        )
        assert [op.op_id for op in told] == wanted
