"""What is told late of an operation moves what it contradicts: it is never silent, and nobody decides without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from unit.ledger.kit import OP as NAME
from unit.ledger.kit import MemoryPartition, at, committed, effect, failed, fold, intended, resolved
from unit.ledger.plan_kit import sealed
from unit.ledger.prune_kit import by, examined, fates, seen

from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from fencepost.ledger.facts import EffectFact

DONE = (intended("a"), committed("a"))
UNREADABLE = effect("UNKNOWN", "x")


def undoing(attempt: str, version: int, **values: Any) -> EffectFact:
    """That an undo of the plan p begins, on this version."""
    return effect("COMPENSATING", attempt, version=f"0.{version}", plan_digest="p", by="ann", **values)


def withdrawn(attempt: str) -> EffectFact:
    return effect("COMPENSATION_WITHDRAWN", attempt, plan_digest="p", by="ann")


def compensated(attempt: str) -> EffectFact:
    return effect("COMPENSATED", attempt, plan_digest="p", by="ann")


# -- against a resolution ------------------------------------------------------------------


def test_a_failure_of_what_a_resolution_called_committed_needs_attention() -> None:
    """Its own session says that it certainly did not happen, an operator that it did: somebody must look."""
    told = (intended("a"), resolved("COMMITTED", 0), failed("a"))
    op = fold(*told)
    assert (op.status, op.needs_attention, op.version) == (Status.COMMITTED, True, "0.2")
    assert [a.what for a in op.anomalies] == ["failed although a resolution says that it is committed"]
    assert not fold(*told, resolved("COMMITTED", 2)).needs_attention


def test_a_doubt_about_what_a_resolution_called_absent_needs_attention() -> None:
    """It may have happened after all, and the operation is free for the next one."""
    op = fold(intended("a"), resolved("ABSENT", 0), effect("IN_DOUBT", "a"))
    assert (op.status, op.needs_attention, op.version) == (Status.FREE, True, "0.2")
    acknowledged = fold(intended("a"), resolved("ABSENT", 0), effect("IN_DOUBT", "a"), resolved("ABSENT", 2))
    assert not acknowledged.needs_attention


def test_a_pruned_branch_with_such_a_doubt_is_not_cleared() -> None:
    """What the branch may have done is undecided until somebody has looked."""
    facts = [by("a", intended, "a1", 4), resolved("ABSENT", 0)]
    assert fates(examined(seen(*facts))) == ["free"]
    facts.append(by("a", lambda name, **values: effect("IN_DOUBT", name, **values), "a1", 5))
    assert fates(examined(seen(*facts))) == ["undecided"]
    assert fates(examined(seen(*facts, resolved("ABSENT", 2)))) == ["free"]


def test_a_commit_that_brings_another_manifest_moves_the_version() -> None:
    """A plan that was made with the operator's manifest does not begin on the session's own."""
    guess, own = sealed("t:a", after="guess"), sealed("t:a", after="after")
    word = resolved("COMMITTED", 0, manifest=guess.data, manifest_digest=guess.digest)
    before = fold(intended("a"), word)
    late = (intended("a"), word, committed("a", result=b"1", manifest=own.data, manifest_digest=own.digest))
    after = fold(*late)
    assert (before.sealed_manifest, after.sealed_manifest) == (guess.data, own.data)
    assert (before.version, after.version) == ("0.1", "0.2")
    assert fold(*late, undoing("u", 1)).status is Status.COMMITTED
    assert fold(*late, undoing("u", 2)).status is Status.COMPENSATING


# -- of an operation that cannot be read ---------------------------------------------------


def test_a_failure_on_an_unsafe_operation_moves_its_version() -> None:
    """Who calls it committed must have seen that its owner says it was not."""
    told = (intended("a"), UNREADABLE, failed("a"))
    stale = fold(*told, resolved("COMMITTED", 1))
    assert (stale.status, [r.effective for r in stale.resolutions]) == (Status.UNSAFE, [False])
    assert fold(*told, resolved("ABSENT", 2)).status is Status.FREE


def test_the_end_of_an_undo_on_an_unsafe_operation_moves_its_version() -> None:
    """It is recorded as undone: nobody makes it stand again without having seen that."""
    told = (*DONE, undoing("u", 1), UNREADABLE, compensated("u"))
    op = fold(*told)
    assert (op.status, op.version) == (Status.UNSAFE, "0.4")
    assert fold(*told, resolved("COMMITTED", 3)).status is Status.UNSAFE
    assert fold(*told, resolved("ABSENT", 4)).status is Status.FREE


@pytest.mark.parametrize("more", [withdrawn("u"), undoing("v", 3)])
def test_an_undo_does_not_make_an_unsafe_operation_safe(more: EffectFact) -> None:
    """Neither its withdrawal nor another run of the plan: nobody has looked at what could not be read."""
    op = fold(*DONE, undoing("u", 1), UNREADABLE, more)
    assert op.status is Status.UNSAFE
    settled = fold(*DONE, undoing("u", 1), UNREADABLE, more, resolved("COMMITTED", op.version))
    assert (settled.status, settled.undoing) == (Status.COMMITTED, None)


def test_a_withdrawal_on_an_unsafe_operation_is_not_forgotten_by_a_rebuild() -> None:
    """The operation stays unsafe, and listed, on the projection that went on and on one that was made anew."""
    log = MemoryPartition()
    log.append(NAME, DONE[0])
    log.append(NAME, DONE[1], at(DONE[0]))
    log.project()
    log.append(NAME, undoing("u", 1), log.history())
    log.project()
    log.append_raw(NAME, "undecodable")
    log.project()
    log.append(NAME, withdrawn("u"), log.history())
    log.pay()
    assert log.operation().status is Status.UNSAFE
    log.clean()
    log.lose()
    log.project()
    log.pay()
    assert log.operation().status is Status.UNSAFE


# -- an adoption that came too late --------------------------------------------------------


def test_an_adoption_that_came_after_the_beginning_of_an_undo_is_none() -> None:
    """Also once that undo is withdrawn: its author has to adopt the effect anew."""
    adopted = [effect("ADOPTED", f"{name}1", branch_id=name, seq=1) for name in ("d", "b")]
    op = fold(*DONE, adopted[0], undoing("u", 2), adopted[1], withdrawn("u"))
    assert op.status is Status.COMMITTED
    assert [a.fact.attempt_id for a in op.adoptions] == ["d1"]
