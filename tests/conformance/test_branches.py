"""Speculative branches: forked, pruned, what they left behind, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import Siblings
from conformance.worlds import Home, World, answer_when_back, charge, never_suggests_a_retry, until

from fencepost.ledger import (
    AlreadyExistsError,
    AsyncLedger,
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    ObligationKind,
    PruneKind,
    ReasonKind,
    SpeculativeRollbackViolation,
    VerdictKind,
    VersionMovedError,
    log_keys,
)
from fencepost.ledger.facts import AgentFact, AgentKind
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_fork_is_a_session_of_the_branch(world: World, ledger: Ledger) -> None:
    """`fork` gives it unopened; it derives the same op ids as its parent, so that siblings share their effects."""
    with ledger.session(world.agent, scope=world.key("run")) as main:
        main.checkpoint("c")
        branch = main.fork("plan-b", checkpoint="c")
        assert (branch.agent_id, branch.branch_id) == (world.agent, "plan-b")
        with pytest.raises(FencedError, match="not open"):
            _ = branch.session_id
        with branch, branch.attempt("t", kind=EffectClass.IRREVERSIBLE, identity={"x": 1}) as one:
            one.commit("first")
        with main.attempt("t", kind=EffectClass.IRREVERSIBLE, identity={"x": 1}) as same:
            assert (same.owned, same.result) == (False, "first")
        with pytest.raises(AlreadyExistsError):
            main.fork("plan-b", checkpoint="c")


def test_the_first_commit_wins(world: World) -> None:
    """Siblings get the winner's recorded result, and the world was changed once."""
    with Siblings(world, ("a", "b", "d")) as crew:
        assert [crew.do(branch, "t") for branch in ("b", "a", "d", "b")] == [{"by": "b"}] * 4
        assert world.hits("t") == 1
        adopters = {a.fact.branch_id for a in world.ledger.operation(crew.op_id("t")).operation.adoptions}
        assert adopters == {"a"}  # the first that relied on it; the others noted that they absorbed it


def test_pruning_before_a_commit_is_free(world: World, ledger: Ledger) -> None:
    """What failed is listed, reads and harmless effects are not, and the checkpoint counts as restored at once."""
    with Siblings(world) as crew:
        crew.do("a", "read", kind=EffectClass.READ)
        crew.do("a", "cache", kind=EffectClass.IDEMPOTENT, order_safe=True)
        with crew["a"].attempt("tool", key=world.key("failed"), kind=EffectClass.IRREVERSIBLE) as attempt:
            attempt.fail("no connection")
        crew["a"].report_call("ls", kind=EffectClass.READ)
        verdict = crew.prune(by="ann", evidence="validation failed")
        assert (verdict.kind, verdict.restored, verdict.obligations) == (PruneKind.CLEARED, True, ())
        assert crew.named(verdict.free) == ["failed"]
        assert (verdict.adopted, verdict.orphans, verdict.to_compensate) == ((), (), None)
        assert verdict.raise_for_violation() is verdict
        pruned = ledger.agent(world.agent).agent.branches["a"].pruned
        assert pruned is not None
        assert (pruned.fact.by, pruned.fact.evidence, pruned.prune_id) == ("ann", "validation failed", verdict.prune_id)
        assert [d.verdict for d in pruned.decisions] == ["CLEARED"]
        assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED


def test_an_irreversible_orphan_is_a_violation(world: World, ledger: Ledger) -> None:
    """It is named with its tool; it stays an obligation until an operator lets it stand, bound to what was seen."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        verdict = crew["b"].prune("a")
        assert (verdict.kind, crew.named(verdict.orphans), verdict.restored) == (PruneKind.VIOLATION, ["mail"], False)
        with pytest.raises(SpeculativeRollbackViolation) as caught:
            verdict.raise_for_violation()
        assert [e.op_id for e in caught.value.orphans] == [crew.op_id("mail")]
        assert never_suggests_a_retry(str(caught.value))
        [orphan] = ledger.obligations(world.agent)
        assert (orphan.kind, orphan.branch_id, orphan.op_id) == (ObligationKind.ORPHAN, "a", crew.op_id("mail"))
        who: dict[str, Any] = {"agent": world.agent, "branch": "b", "by": "ann", "evidence": "the mail is right"}
        with pytest.raises(VersionMovedError):
            ledger.adopt(orphan.op_id, **who, version="0.999999")
        operation = ledger.adopt(orphan.op_id, **who, version=orphan.version)
        assert [a.fact.by for a in operation.adoptions] == ["ann"]
        assert ledger.obligations(world.agent) == []
        again = crew.prune()
        assert (again.kind, again.restored, again.adopted[0].relied_on_by) == (PruneKind.CLEARED, True, ("ann",))
        with pytest.raises(VersionMovedError):
            ledger.adopt(orphan.op_id, **who, version=orphan.version)


def test_what_a_sibling_relies_on_stands(world: World, ledger: Ledger) -> None:
    """Adopted by the branch that asked for it; an obligation again once that is pruned as well."""
    with Siblings(world, ("a", "b", "d")) as crew:
        crew.do("a", "ticket")
        assert crew.do("b", "ticket") == {"by": "a"}
        verdict = crew.prune("a")
        assert (verdict.kind, verdict.adopted[0].relied_on_by) == (PruneKind.CLEARED, (f"{world.agent}/b",))
        other = crew.prune("b")
        assert (other.kind, other.restored) == (PruneKind.VIOLATION, False)  # it was the last that relied on it
        assert [(o.branch_id, o.op_id) for o in other.siblings] == [("a", crew.op_id("ticket"))]
        assert [o.kind for o in ledger.obligations(world.agent)] == [ObligationKind.ORPHAN]
        assert crew.do("d", "ticket") == {"by": "a"}  # adopted by the last one that is left
        assert ledger.obligations(world.agent) == []
        assert crew.prune("a").adopted[0].relied_on_by == (f"{world.agent}/d",)
    assert world.hits("ticket") == 1


def test_a_child_that_was_forked_after_the_effect_relies_on_it(world: World) -> None:
    """Its path knows the effect, and the child goes on when its parent is pruned; nobody else forks from there."""
    with Siblings(world) as crew:
        crew.do("a", "early")
        crew["a"].checkpoint("c-a")
        crew.do("a", "late")
        child = crew["a"].fork("child", checkpoint="c-a")
        crew.committed("late")
        verdict = crew.prune("a")
        assert crew.named(verdict.adopted) == ["early"]
        assert verdict.adopted[0].relied_on_by == (f"{world.agent}/child",)
        assert crew.named(verdict.orphans) == ["late"]
        with child:
            crew.sessions["child"] = child
            assert crew.do("child", "late") == {"by": "a"}
        with pytest.raises(FencedError, match="pruned"):
            crew["b"].fork("grandchild", checkpoint="c-a")
        assert crew.prune("a").kind is PruneKind.CLEARED


def test_what_can_be_undone_is_planned_and_then_compensated(world: World, ledger: Ledger) -> None:
    """In reverse order of commit; the checkpoint counts as restored when it is done, and not before."""
    with Siblings(world) as crew:
        for name in ("one", "two"):
            crew.do_sealed("a", name)
            crew.committed(name)
        verdict = crew.prune()
        assert (verdict.kind, verdict.restored) == (PruneKind.OPEN, False)
        plan = verdict.to_compensate
        assert plan is not None
        assert (plan.cause, plan.cause_id) == ("prune", verdict.prune_id)
        assert [step.op_id for step in plan.steps] == [crew.op_id("two"), crew.op_id("one")]
        assert {o.kind for o in ledger.obligations(world.agent)} == {ObligationKind.COMPENSATE}
        refused = ledger.authorize_rollback(world.agent, checkpoint="c")
        assert refused.kind is VerdictKind.COMPENSATE_FIRST
        ran: list[str] = []
        crew.undoable_by(ran)
        ledger.compensate(plan, approved_by="ann")
        assert ran == [step.op_id for step in plan.steps]
        after = crew.prune()
        assert (after.kind, after.restored) == (PruneKind.CLEARED, True)
        assert crew.named(after.compensated) == ["one", "two"]
        assert ledger.obligations(world.agent) == []
        assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED


def test_the_parent_does_not_go_back_over_what_is_neither_adopted_nor_undone(world: World, ledger: Ledger) -> None:
    """The fork's checkpoint does not know the pruned branch's effects: refused while an orphan is among them."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        crew.prune()
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
        assert verdict.kind is VerdictKind.REFUSE
        assert [(r.kind, r.effect.op_id, r.effect.branch_id) for r in verdict.reasons if r.effect] == [
            (ReasonKind.EFFECT_NOT_KNOWN, crew.op_id("mail"), "a")
        ]
        seen = crew.version("mail")
        ledger.resolve(crew.op_id("mail"), outcome="compensated", version=seen, by="ann", evidence="called back")
        assert ledger.authorize_rollback(world.agent, checkpoint="c").kind is VerdictKind.PROCEED
        assert crew.named(crew.prune().compensated) == ["mail"]


def test_a_gated_rollback_of_the_parent_does_not_hide_what_is_open(world: World, ledger: Ledger) -> None:
    """It rests on the op ids: what main asks for again it takes over; until then the obligation can be seen."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        crew.prune()
        assert ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated").kind is VerdictKind.PROCEED_GATED
        assert [o.op_id for o in ledger.obligations(world.agent)] == [crew.op_id("mail")]
        with ledger.session(world.agent) as main:
            crew.sessions["main"] = main
            assert crew.do("main", "mail") == {"by": "a"}
            assert ledger.obligations(world.agent) == []
    assert world.hits("mail") == 1


def test_a_preview_closes_nobody(world: World, ledger: Ledger) -> None:
    """What pruning would leave behind, and how old that is; the branch goes on, and nothing is recorded."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        verdict = ledger.preview_prune(world.agent, "a")
        assert (verdict.kind, verdict.dry_run, verdict.restored, verdict.prune_id) == (
            PruneKind.VIOLATION,
            True,
            False,
            "",
        )
        assert 0 <= verdict.age_s < 60
        with pytest.raises(SpeculativeRollbackViolation, match="would leave"):
            verdict.raise_for_violation()
        crew.do("a", "another")
        assert ledger.obligations(world.agent) == []
        assert ledger.agent(world.agent).agent.branches["a"].pruned is None
        assert not ledger.preview_prune(world.agent, "b").restored  # nothing is, before it is pruned
        assert ledger.preview_prune(world.agent, "b").kind is PruneKind.CLEARED


def test_the_same_after_the_projection_was_lost(fresh_home: Callable[[], Home]) -> None:
    """Prunes, decisions, obligations, and the report come out of the log again; and the log verifies."""
    home = fresh_home()

    def asked(ledger: Ledger) -> Any:
        branches = ledger.agent("crew").agent.branches
        return (
            ledger.obligations(),
            ledger.speculation_report().to_dict(),
            branches,
            ledger.preview_prune("crew", "a").adopted,
        )

    with Ledger.open(home.url) as ledger:
        with ledger.session("crew") as main:
            main.checkpoint("c")
            branches = {name: main.fork(name, checkpoint="c").open() for name in ("a", "b")}
            for branch, key in (("a", "ticket"), ("b", "ticket"), ("a", "mail")):
                with branches[branch].attempt("tool", key=key, kind=EffectClass.IRREVERSIBLE) as attempt:
                    if attempt.owned:
                        attempt.commit(branch)
            until(lambda: ledger.operation("tool:mail").operation.status is Status.COMMITTED)
            main.prune("a")
            for session in branches.values():
                session.close()
        before = asked(ledger)
        home.stop_projector()
        home.lose_projection()
        home.rebuild()
        assert answer_when_back(lambda: asked(ledger)) == before
        assert ledger.verify().findings == []


def test_a_call_without_an_op_id_is_a_violation(world: World) -> None:
    """A call between fork and prune that went past the ledger can be told from nothing that a sibling does."""
    with Siblings(world) as crew:
        crew["a"].report_call("shell", kind=EffectClass.IRREVERSIBLE)
        crew["b"].report_call("other", kind=EffectClass.IRREVERSIBLE)
        until(lambda: crew.prune().violations)
        verdict = crew.prune()
        assert [v.tool for v in verdict.violations] == ["shell"]
        with pytest.raises(SpeculativeRollbackViolation) as caught:
            verdict.raise_for_violation()
        assert [v.tool for v in caught.value.violations] == ["shell"]
        assert [o.kind for o in world.ledger.obligations(world.agent)] == [ObligationKind.CALL_OUTSIDE_LEDGER]


def test_an_acknowledged_call_is_no_obligation(world: World, home: Home) -> None:
    """An operator's word on exactly this call; it counts once, for good, and in a projection that is built anew."""
    with Siblings(world) as crew:
        for tool in ("shell", "other"):
            crew["a"].report_call(tool, kind=EffectClass.IRREVERSIBLE)
        until(lambda: len(crew.prune().violations) == 2)
        told = {one.call.tool: one.call for one in world.ledger.reported_calls(world.agent)}
        for by in ("ann", "bob"):
            world.ledger.acknowledge_call(
                world.agent, told["shell"].session_id, told["shell"].seq, by=by, evidence="called back"
            )
        assert [v.tool for v in crew.prune().violations] == ["other"]
        with pytest.raises(NotFoundError) as none:
            world.ledger.acknowledge_call(world.agent, told["shell"].session_id, 999, by="ann", evidence="e")
        assert none.value.field == "seq"
        home.rebuild()
        words = answer_when_back(
            lambda: [(one.call.tool, one.word and one.word.by) for one in world.ledger.reported_calls(world.agent)]
        )
        assert words == [("shell", "ann"), ("other", None)]
        assert [v.tool for v in crew.prune().violations] == ["other"]
        assert world.ledger.verify().findings == []


def test_nothing_that_a_pruned_branch_does_later_is_accepted(world: World, ledger: Ledger) -> None:
    """Intents, checkpoints, sessions, forks, rollbacks, prunes: each is refused, and nothing was run."""
    with Siblings(world) as crew:
        crew["a"].checkpoint("c-a")
        crew.prune()
        with pytest.raises(FencedError):
            crew.do("a", "late")
        assert world.hits("late") == 0
        with pytest.raises(FencedError):
            crew["a"].checkpoint("c-late")
        with pytest.raises(FencedError, match="pruned"):
            ledger.session(world.agent, "a").open()
        with pytest.raises(FencedError, match="pruned"):
            ledger.fork(world.agent, "from-a", checkpoint="c-a")
        with pytest.raises(FencedError):
            crew["a"].prune("b")
        assert not ledger.authorize_rollback(world.agent, checkpoint="c-a", branch="a").authorised
        ledger.fork(world.agent, "from-a", checkpoint="c")  # the name was not taken by the fork that was refused
        view = ledger.agent(world.agent)
        assert "c-late" not in view.checkpoints
        assert view.agent.branches["b"].forbidden == ""
        assert crew.do("b", "goes on") == {"by": "b"}


def test_nobody_resumes_from_what_a_pruned_branch_knew(world: World, ledger: Ledger) -> None:
    """A state of the pruned branch is not carried over into another branch after the pruning."""
    with Siblings(world) as crew:
        mark = crew["a"].checkpoint("c-a")
        crew.prune()
        with pytest.raises(FencedError, match="pruned"):
            ledger.session(world.agent, resumed_from=mark).open()


def test_a_session_that_prunes_its_own_branch_is_over(world: World) -> None:
    """Like one that rolls itself back, without a successor."""
    with Siblings(world) as crew:
        assert crew["a"].prune("a", by="ann", evidence="dead end").kind is PruneKind.CLEARED
        with pytest.raises(FencedError, match="prune"):
            crew["a"].checkpoint("c-late")


def test_what_cannot_be_pruned(world: World, ledger: Ledger) -> None:
    """An agent or branch that there is not; a branch that nobody forked, with the way on."""
    with Siblings(world) as crew:
        with pytest.raises(InvalidArgumentError, match="authorize") as root:
            crew.prune("main")
        assert root.value.field == "branch"
        with pytest.raises(NotFoundError) as nowhere:
            crew.prune("nowhere")
        assert nowhere.value.field == "branch"
        with pytest.raises(NotFoundError) as nobody:
            ledger.prune_branch(world.key("nobody"), "a")
        assert nobody.value.field == "agent"
        with pytest.raises(NotFoundError):
            ledger.obligations(world.key("nobody"))
        who: dict[str, Any] = {"by": "ann", "evidence": "e", "version": "0.1"}
        with pytest.raises(NotFoundError):
            ledger.adopt(crew.op_id("none"), agent=world.agent, branch="b", **who)
        with pytest.raises(NotFoundError):
            ledger.adopt(crew.op_id("none"), agent=world.agent, branch="nowhere", **who)
        with pytest.raises(InvalidArgumentError) as blank:
            ledger.adopt(crew.op_id("none"), agent=world.agent, branch="b", **{**who, "by": " "})
        assert blank.value.field == "by"


def test_only_what_is_committed_can_be_adopted(world: World, ledger: Ledger) -> None:
    """What is in doubt must be settled first."""
    with Siblings(world) as crew:
        with crew["a"].attempt("tool", key=world.key("doubt"), kind=EffectClass.IRREVERSIBLE) as attempt:
            attempt.doubt("no answer")
        world.status(crew.op_id("doubt"), Status.IN_DOUBT)
        verdict = crew.prune()
        assert (verdict.kind, crew.named(verdict.undecided)) == (PruneKind.OPEN, ["doubt"])
        who: dict[str, Any] = {"agent": world.agent, "branch": "b", "by": "ann", "evidence": "e"}
        with pytest.raises(InvalidArgumentError, match="in doubt"):
            ledger.adopt(crew.op_id("doubt"), **who, version=crew.version("doubt"))
        seen = crew.version("doubt")
        ledger.resolve(crew.op_id("doubt"), outcome="absent", version=seen, by="ann", evidence="e", accept_risk=True)
        assert crew.named(crew.prune().free) == ["doubt"]


@pytest.mark.slow
def test_a_late_commit_turns_up_as_an_obligation(world: World, ledger: Ledger) -> None:
    """What was running when the branch was fenced is undecided; its outcome is taken as evidence, and looked at anew."""
    with Siblings(world, ("b",)) as crew:
        ledger.fork(world.agent, "a", checkpoint="c")
        running = world.worker(charge("runs", hold="after effect", name="runs"), branch="a", close=False)
        running.wait_held("runs")
        verdict = crew.prune("a")
        assert (verdict.kind, [e.op_id for e in verdict.undecided]) == (PruneKind.OPEN, [world.op_id("runs")])
        running.release("runs")
        running.finish()
        world.status(world.op_id("runs"), Status.COMMITTED)
        [late] = ledger.obligations(world.agent)
        assert (late.kind, late.op_id) == (ObligationKind.ORPHAN, world.op_id("runs"))
        assert crew.prune("a").kind is PruneKind.VIOLATION
        decisions = ledger.agent(world.agent).agent.branches["a"].pruned
        assert decisions is not None
        assert [d.verdict for d in decisions.decisions] == ["OPEN", "VIOLATION"]
        assert world.hits("runs") == 1


def test_a_decision_is_recorded_when_it_changes(world: World, ledger: Ledger) -> None:
    """Pruning again is safe, and says nothing to the log that it has said before."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        first = crew.prune()
        assert crew.prune().prune_id == first.prune_id
        pruned = ledger.agent(world.agent).agent.branches["a"].pruned
        assert pruned is not None
        assert [(d.verdict, [o.kind for o in d.obligations]) for d in pruned.decisions] == [("VIOLATION", ["ORPHAN"])]
        crew.do("b", "mail")
        crew.prune()
        pruned = ledger.agent(world.agent).agent.branches["a"].pruned
        assert pruned is not None
        assert [d.verdict for d in pruned.decisions] == ["VIOLATION", "CLEARED"]


def test_a_fork_that_was_refused_can_be_asked_for_again(world: World, ledger: Ledger) -> None:
    """A fork that reached the log too early does not take the name for good."""
    with Siblings(world, ()) as crew:
        mark = crew["main"].checkpoint("later")
        engine = ledger._engine
        fact = AgentFact(kind=AgentKind.FORKED, agent_id=world.agent, branch_id="b", checkpoint_id="later",
                         parent_branch_id="main", watermark="mangled")  # fmt: skip
        crew.run(engine.publish_agent(log_keys.branch(world.agent, "b"), fact))
        until(lambda: "b" in ledger.agent(world.agent).agent.branches)
        assert not ledger.agent(world.agent).agent.branches["b"].begun
        with pytest.raises(NotFoundError):
            crew.prune("b")
        with crew["main"].fork("b", checkpoint="later") as branch:
            assert branch.state.parent == mark.point


def test_the_report_counts_by_fan_out(world: World, ledger: Ledger) -> None:
    """Forks, prunes, what the pruned ones had committed, and what became of that, by siblings of one checkpoint."""
    with Siblings(world, ("a", "b", "d")) as crew:
        crew.do("a", "ticket")
        crew.do("b", "ticket")
        crew.do("a", "mail")
        crew["b"].checkpoint("c-b")
        crew["b"].fork("single", checkpoint="c-b")
        crew.committed("mail")
        crew.prune("a")
        crew.prune("d")
        told = ledger.speculation_report(world.agent)
        assert [(r.fan_out, r.forks, r.pruned) for r in told.rows] == [(1, 1, 0), (3, 3, 2)]
        three, total = told.rows[1], told.total
        assert (three.committed, three.adopted, three.orphans, three.undecided) == (2, 1, 1, 0)
        assert (total.forks, total.pruned, total.orphans, total.prune_rate) == (4, 2, 1, 0.5)
        assert told.to_dict()["schema"] == "fencepost.speculation.v1"
        assert told.to_dict()["rows"][1]["prune_rate"] == pytest.approx(2 / 3, abs=1e-4)
        assert ledger.speculation_report().total.forks >= 4


def test_the_same_for_asyncio(world: World) -> None:
    """Fork, prune, obligations, adopt, and the report, awaited."""

    async def work() -> None:
        async with AsyncLedger.open(world.url) as ledger, ledger.session(world.agent) as main:
            await main.checkpoint("c")
            async with await main.fork("a", checkpoint="c") as branch:
                async with branch.attempt("tool", key=world.key("mail"), kind=EffectClass.IRREVERSIBLE) as attempt:
                    await attempt.commit("sent")
                verdict = await main.prune("a", by="ann", evidence="e")
            assert verdict.kind in {PruneKind.VIOLATION, PruneKind.OPEN}
            verdict = await ledger.prune_branch(world.agent, "a")
            [orphan] = await ledger.obligations(world.agent)
            await ledger.adopt(
                orphan.op_id, agent=world.agent, branch="main", by="ann", evidence="e", version=orphan.version
            )
            assert (await ledger.prune_branch(world.agent, "a")).restored
            assert (await ledger.speculation_report(world.agent)).total.adopted == 1

    asyncio.run(work())
