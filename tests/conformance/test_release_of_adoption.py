"""An operator's adoption counts until an operator releases it; then the effect is nobody's, and can be undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import Siblings

from fencepost.ledger import (
    Ledger,
    ManifestError,
    NotFoundError,
    ObligationKind,
    OperationBeingUndoneError,
    PruneKind,
    VersionMovedError,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from conformance.worlds import World

BOB: dict[str, Any] = {"by": "bob", "evidence": "it went to the wrong person"}


def adopted_by_ann(crew: Siblings, name: str, branch: str = "b") -> None:
    crew.committed(name)
    crew.ledger.adopt(
        crew.op_id(name), agent=crew.world.agent, branch=branch, by="ann", evidence="right as it is", version=crew.version(name)
    )  # fmt: skip


def kinds(crew: Siblings) -> list[ObligationKind]:
    return [one.kind for one in crew.ledger.obligations(crew.world.agent)]


def test_what_was_adopted_for_a_branch_that_is_gone(world: World, ledger: Ledger) -> None:
    """It stands although nobody goes on with it; released it is an obligation again, and may be adopted again."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.prune("a")
        adopted_by_ann(crew, "mail")
        crew.prune("b")
        assert kinds(crew) == []
        seen = crew.version("mail")
        with pytest.raises(VersionMovedError):
            ledger.release_adoption(crew.op_id("mail"), version="0.999999", **BOB)
        operation = ledger.release_adoption(crew.op_id("mail"), version=seen, **BOB)
        assert (operation.status, operation.adoptions) == (Status.COMMITTED, [])
        assert operation.version != seen
        assert kinds(crew) == [ObligationKind.ORPHAN]
        with pytest.raises(VersionMovedError):
            ledger.release_adoption(crew.op_id("mail"), version=seen, **BOB)
        with pytest.raises(NotFoundError, match="adopted by no operator"):
            ledger.release_adoption(crew.op_id("mail"), version=crew.version("mail"), **BOB)
        adopted_by_ann(crew, "mail", branch="main")
        assert kinds(crew) == []
        assert crew.prune("a").adopted[0].relied_on_by == ("ann",)


def test_what_was_released_can_be_undone(world: World, ledger: Ledger) -> None:
    """No plan undoes what an operator adopted; when that is released the pruned branch's plan does."""
    with Siblings(world) as crew:
        crew.do_sealed("a", "ticket")
        crew.prune("a")
        adopted_by_ann(crew, "ticket")
        with pytest.raises(ManifestError, match="relied on by ann"):
            ledger.plan_compensation([crew.op_id("ticket")])
        ledger.release_adoption(crew.op_id("ticket"), version=crew.version("ticket"), **BOB)
        verdict = crew.prune("a")
        assert (verdict.kind, crew.named(verdict.undoable)) == (PruneKind.OPEN, ["ticket"])
        ran: list[str] = []
        crew.undoable_by(ran)
        assert verdict.to_compensate is not None
        ledger.compensate(verdict.to_compensate, approved_by="bob", evidence="ticket 17")
        assert ran == [crew.op_id("ticket")]
        assert crew.prune("a").restored


def test_a_plan_of_before_the_release_does_not_hold(world: World, ledger: Ledger) -> None:
    """It was made when nobody had adopted the effect: what was said meanwhile moved it, also if that was taken back."""
    with Siblings(world) as crew:
        crew.do_sealed("a", "ticket")
        crew.committed("ticket")
        plan = crew.prune("a").to_compensate
        assert plan is not None
        adopted_by_ann(crew, "ticket")
        ledger.release_adoption(crew.op_id("ticket"), version=crew.version("ticket"), **BOB)
        crew.undoable_by([])
        with pytest.raises(VersionMovedError):
            ledger.compensate(plan, approved_by="bob", evidence="ticket 17")


def test_branches_that_rely_on_it_are_not_concerned(world: World, ledger: Ledger) -> None:
    """Only an operator's word is taken back; what a branch was told still stands for it."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        assert crew.do("b", "mail") == {"by": "a"}
        crew.prune("a")
        adopted_by_ann(crew, "mail")
        ledger.release_adoption(crew.op_id("mail"), version=crew.version("mail"), **BOB)
        assert crew.prune("a").adopted[0].relied_on_by == (f"{world.agent}/b",)


def test_what_cannot_be_released(world: World, ledger: Ledger) -> None:
    """What is not there, what is not committed, and what is being undone; each says what to do."""
    with Siblings(world) as crew:
        with pytest.raises(NotFoundError, match="not in this ledger"):
            ledger.release_adoption(crew.op_id("none"), version="0.1", **BOB)
        crew.do_sealed("a", "ticket")
        plan = crew.prune("a").to_compensate
        assert plan is not None

        @ledger.compensator("undo.branch", state_hash=lambda _: "after")
        def undo(*_: object) -> None:
            with pytest.raises(OperationBeingUndoneError):
                ledger.release_adoption(crew.op_id("ticket"), version=crew.version("ticket"), **BOB)

        ledger.compensate(plan, approved_by="bob", evidence="ticket 17")
        assert ledger.operation(crew.op_id("ticket")).operation.round == 2
