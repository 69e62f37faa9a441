"""Who prunes the last branch that relied on an effect of a pruned branch is told of it: siblings, parents, children, other agents."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import Siblings
from conformance.worlds import never_suggests_a_retry, until

from fencepost.ledger import Ledger, ObligationKind, PruneKind, PruneVerdict, SpeculativeRollbackViolation

if TYPE_CHECKING:
    from conformance.worlds import World


def completes(ledger: Ledger, agent: str, branch: str, op_id: str, *, of: tuple[str, str]) -> PruneVerdict:
    """Pruning this branch leaves that effect an orphan: the dry run says so, and each run of the prune does."""
    before = {(o.op_id, o.branch_id) for o in ledger.obligations()}
    verdict = ledger.preview_prune(agent, branch)
    for dry_run in (True, False, False):
        verdict = ledger.preview_prune(agent, branch) if dry_run else ledger.prune_branch(agent, branch)
        assert (verdict.kind, verdict.restored, verdict.dry_run) == (PruneKind.VIOLATION, False, dry_run)
        assert [(o.agent_id, o.branch_id, o.op_id, o.kind) for o in verdict.completed] == [
            (*of, op_id, ObligationKind.ORPHAN)
        ]
        assert verdict.orphans == ()
        with pytest.raises(SpeculativeRollbackViolation) as caught:
            verdict.raise_for_violation()
        assert [e.op_id for e in caught.value.orphans] == [op_id]
        assert "/".join(of) in str(caught.value)
        assert never_suggests_a_retry(str(caught.value))
        if dry_run:
            assert {(o.op_id, o.branch_id) for o in ledger.obligations()} == before
    told = [(o.agent_id, o.branch_id, o.op_id, o.kind) for o in ledger.obligations()]
    assert told.count((*of, op_id, ObligationKind.ORPHAN)) == 1
    pruned = ledger.agent(agent).agent.branches[branch].pruned
    assert pruned is not None
    assert [(d.verdict, [o.op_id for o in d.obligations]) for d in pruned.decisions] == [("VIOLATION", [op_id])]
    return verdict


def test_a_sibling(world: World, ledger: Ledger) -> None:
    """It asked for the effect, and got its result; an operator who lets it stand clears both."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.do("b", "mail")
        assert crew.prune("a").restored
        op_id = crew.op_id("mail")
        verdict = completes(ledger, world.agent, "b", op_id, of=(world.agent, "a"))
        assert [o.op_id for o in verdict.siblings] == [op_id]
        ledger.adopt(
            op_id, agent=world.agent, branch="main", by="ann", evidence="it is right", version=crew.version("mail")
        )
        assert crew.prune("b").restored


def test_a_child(world: World, ledger: Ledger) -> None:
    """It was forked from where the effect was done, and goes on while its parent is pruned; its own child likewise."""
    with Siblings(world, ("a",)) as crew:
        crew.do("a", "mail")
        crew["a"].checkpoint("c-a")
        crew.committed("mail")
        with crew["a"].fork("child", checkpoint="c-a") as child:
            child.checkpoint("c-child")
            child.fork("grandchild", checkpoint="c-child")
            assert crew.prune("a").restored
            assert crew.prune("child").restored
            completes(ledger, world.agent, "grandchild", crew.op_id("mail"), of=(world.agent, "a"))


def test_a_parent(world: World, ledger: Ledger) -> None:
    """It was given the result of what its child did."""
    with Siblings(world, ("a",)) as crew:
        crew["a"].checkpoint("c-a")
        with crew["a"].fork("child", checkpoint="c-a") as child:
            crew.sessions["child"] = child
            crew.do("child", "mail")
            crew.do("a", "mail")
            assert crew.prune("child").restored
            completes(ledger, world.agent, "a", crew.op_id("mail"), of=(world.agent, "child"))


def test_another_agent(world: World, ledger: Ledger) -> None:
    """The branch that relies on the effect of a pruned branch may be of another agent."""
    other = f"{world.agent}-other"
    with Siblings(world, ("a",)) as crew, ledger.session(other) as main:
        main.checkpoint("o")
        with main.fork("b", checkpoint="o") as branch:
            crew.sessions["b"] = branch
            crew.do("a", "mail")
            crew.do("b", "mail")
            assert crew.prune("a").restored
            completes(ledger, other, "b", crew.op_id("mail"), of=(world.agent, "a"))


def test_what_can_be_undone_is_open(world: World, ledger: Ledger) -> None:
    """It is to be compensated, by the plan of the branch that did it; nothing is restored before that."""
    with Siblings(world, ("a", "b")) as crew:
        crew.do_sealed("a", "stock")
        crew["a"].checkpoint("c-a")
        crew.committed("stock")
        with crew["a"].fork("child", checkpoint="c-a"):
            assert crew.prune("a").restored
            assert crew.prune("b").kind is PruneKind.CLEARED  # it had nothing to do with it
            told = ledger.preview_prune(world.agent, "child"), crew.prune("child")
        for verdict in told:
            assert (verdict.kind, verdict.restored, verdict.siblings) == (PruneKind.OPEN, False, ())
            assert [(o.branch_id, o.kind) for o in verdict.completed] == [("a", ObligationKind.COMPENSATE)]
            assert verdict.raise_for_violation() is verdict
        ran: list[str] = []
        crew.undoable_by(ran)
        plan = crew.prune("a").to_compensate
        assert plan is not None
        ledger.compensate(plan, approved_by="ann")
        assert crew.prune("child").restored
        assert ran == [crew.op_id("stock")]


def test_while_somebody_still_relies_on_it(world: World, ledger: Ledger) -> None:
    """Nothing is completed by a branch that is not the last; nor by one that went on without knowing the effect."""
    with Siblings(world, ("a", "b", "d", "e")) as crew:
        crew.do("a", "mail")
        crew.do("b", "mail")
        crew.do("d", "mail")
        crew.absorbed("d", "mail")
        crew.prune("a")
        for name in ("b", "e"):
            for verdict in (ledger.preview_prune(world.agent, name), crew.prune(name)):
                assert (verdict.kind, verdict.completed, verdict.siblings) == (PruneKind.CLEARED, (), ())
        completes(ledger, world.agent, "d", crew.op_id("mail"), of=(world.agent, "a"))
        late: Any = crew.prune("b")  # looked at anew: it relied on it, and nobody does any more
        assert (late.kind, [o.branch_id for o in late.completed]) == (PruneKind.VIOLATION, ["a"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_what_a_prune_opens_it_tells(world: World, ledger: Ledger, seed: int) -> None:
    """Whatever was forked, done, and absorbed before: the obligations that are new after a prune are the ones that it tells."""
    chance = random.Random(seed)
    completed = 0
    with Siblings(world, ("a", "b")) as crew:
        branches = ["a", "b"]
        for step in range(24):
            name = chance.choice(branches)
            what = chance.choice(["do", "do", "do", "fork", "prune"])
            if what == "do":
                effect = chance.choice(["x", "y", "sealed"])
                (crew.do_sealed if effect == "sealed" else crew.do)(name, f"{effect}-{step // 12}")
                until(lambda name=name: not crew[name].state.background)
            elif what == "fork" and len(branches) < 5:
                crew[name].checkpoint(f"c{step}")
                crew.sessions[f"f{step}"] = crew[name].fork(f"f{step}", checkpoint=f"c{step}").open()
                branches.append(f"f{step}")
            elif what == "prune" and len(branches) > 1:
                branches.remove(name)
                completed += pruned_and_told(crew, name)
        for name in chance.sample(branches, len(branches)):
            completed += pruned_and_told(crew, name)
    assert completed, "some prune was the last that relied on something"


def pruned_and_told(crew: Siblings, name: str) -> int:
    """Prune a branch, and compare what it tells with what is open since; how much of that it completed."""
    ledger, agent = crew.ledger, crew.world.agent
    crew.sessions.pop(name).close()
    before, dry = open_now(ledger, agent), ledger.preview_prune(agent, name)
    verdict = crew.prune(name)
    opened = open_now(ledger, agent) - before
    assert told(verdict) == told(dry) == opened
    assert verdict.restored is (not opened and not verdict.siblings)
    return len(verdict.completed)


def open_now(ledger: Ledger, agent: str) -> set[tuple[str, str, ObligationKind]]:
    return {(o.branch_id, o.op_id, o.kind) for o in ledger.obligations(agent)}


def told(verdict: PruneVerdict) -> set[tuple[str, str, ObligationKind]]:
    own = {(verdict.branch_id, effect.op_id, kind) for kind, effect in verdict.open_effects}
    return own | {(o.branch_id, o.op_id, o.kind) for o in verdict.completed}
