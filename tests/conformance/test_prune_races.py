"""Prunes at the same time as other things: effects, adoptions, undos, rollbacks, forks, and processes that die."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import Siblings
from conformance.worlds import PATIENCE_S, World, until

from fencepost.ledger import (
    AgentSession,
    CompensationBlockedError,
    EffectClass,
    FencedError,
    FencepostError,
    Ledger,
    ManifestError,
    ObligationKind,
    OperationBeingUndoneError,
    PruneKind,
    PruneVerdict,
    RollbackPendingError,
    StaleProjectionError,
    UndoPath,
    VersionMovedError,
    rollbacks,
)
from fencepost.ledger.engine import Engine
from fencepost.ledger.facts import AgentKind, EffectFact, EffectKind
from fencepost.ledger.operations import Status
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import fence_document, fence_epoch, read_history
from fencepost.ledger.sessions import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Gate:
    """Where one engine's calls stand still until they are let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    async def pass_through(self) -> None:
        self.reached.set()
        assert self.released.wait(PATIENCE_S)

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        """Start it in a thread, and wait until it has come to the gate."""
        future = self._threads.submit(work)
        assert self.reached.wait(PATIENCE_S)
        return future

    def end(self, *, wait: bool = True) -> None:
        self.released.set()
        self._threads.shutdown(wait=wait)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.end()


def hold_fences(gate: Gate, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """This engine stands still before it publishes a fence."""
    original = Engine.fence

    async def fence(self: Engine, *args: Any, **options: Any) -> None:
        if self is engine:
            await gate.pass_through()
        await original(self, *args, **options)

    monkeypatch.setattr(Engine, "fence", fence)


# -- effects, sessions, and forks against the pruning ----------------------------------------


def test_an_effect_between_the_pruning_and_the_fence_is_seen(
    world: World, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What slips in before the fence is an obligation of the verdict; what comes after it does not run."""
    other = world.open()
    hold_fences(gate, other._engine, monkeypatch)
    with Siblings(world) as crew:
        pruning = gate.begin(lambda: other.prune_branch(world.agent, "a"))
        crew.do("a", "slipped-in")
        gate.end()
        verdict: PruneVerdict = pruning.result(PATIENCE_S)
        assert (verdict.kind, crew.named(verdict.orphans)) == (PruneKind.VIOLATION, ["slipped-in"])
        with pytest.raises(FencedError):
            crew.do("a", "after-the-fence")
        assert (world.hits("slipped-in"), world.hits("after-the-fence")) == (1, 0)


def test_a_pruning_in_the_middle_is_an_obligation(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the request and the decision it can be seen that the branch is not done with, and nobody opens it."""
    other = world.open()
    hold_fences(gate, other._engine, monkeypatch)
    with Siblings(world):
        pruning = gate.begin(lambda: other.prune_branch(world.agent, "a"))
        assert [o.kind for o in ledger.obligations(world.agent)] == [ObligationKind.PRUNE_UNFINISHED]
        with pytest.raises(FencedError, match="pruned"):
            ledger.session(world.agent, "a").open()
        gate.end()
        assert pruning.result(PATIENCE_S).restored
        assert ledger.obligations(world.agent) == []


def test_two_prune_at_once(world: World, ledger: Ledger) -> None:
    """Both get the same verdict on the same pruning: the first in the log counts for both."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda _: crew.prune(), range(3)))
        assert len({verdict.prune_id for verdict in found}) == 1
        assert {verdict.kind for verdict in found} == {PruneKind.VIOLATION}
        assert len(ledger.obligations(world.agent)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["before PRUNED", "after PRUNED", "before FENCED", "after FENCED", "before PRUNE_DECIDED", "after PRUNE_DECIDED"],
)
def test_killed_in_the_middle_and_called_again(world: World, ledger: Ledger, point: str) -> None:
    """Whatever of it was in the log: the next call ends it, with the same verdict, and a branch fenced everywhere."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        world.worker({"do": "prune", "branch": "a", "die": point}, branch="elsewhere", armed=True).dies()
        verdict = crew.prune()
        assert (verdict.kind, crew.named(verdict.orphans)) == (PruneKind.VIOLATION, ["mail"])
        pruned = ledger.agent(world.agent).agent.branches["a"].pruned
        assert pruned is not None
        assert [d.verdict for d in pruned.decisions] == ["VIOLATION"]
        for name in ("w", "x", "y", "z"):  # in several partitions
            with pytest.raises(FencedError):
                crew.do("a", name)
            assert world.hits(name) == 0
        assert [o.kind for o in ledger.obligations(world.agent)] == [ObligationKind.ORPHAN]


def test_fenced_in_some_partitions_and_called_again(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence that stands in one partition says nothing about the others: the next call fences those as well."""
    original = Engine._fence_one

    async def only_the_first(self: Engine, partition: Partition, *args: Any, **options: Any) -> None:
        if partition.number:
            raise StaleProjectionError("not now.", partition=str(partition))
        await original(self, partition, *args, **options)

    with Siblings(world) as crew:
        with monkeypatch.context() as patch, contextlib.suppress(StaleProjectionError):  # one file has one partition
            patch.setattr(Engine, "_fence_one", only_the_first)
            crew.prune()
        until(lambda: fences(crew, "a")[0] is not None)
        assert crew.prune().restored
        pruned = ledger.agent(world.agent).agent.branches["a"].pruned
        assert pruned is not None
        assert set(fences(crew, "a")) == {pruned.position}


def fences(crew: Siblings, branch: str) -> list[Position | None]:
    """The epoch to which each partition's fence has raised a branch."""
    view, document = crew.ledger._engine.view, fence_document(crew.world.agent, branch)
    snapshots = [crew.run(view.read(partition, [document])) for partition in view.partitions(Topic.EFFECTS)]
    return [fence_epoch(read_history(snapshot.documents.get(document))) for snapshot in snapshots]


def test_not_while_a_rollback_of_it_is_decided(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be pruned when that is decided; a rollback whose guard is gone is withdrawn for it."""
    other = world.open()
    hold_fences(gate, other._engine, monkeypatch)
    with Siblings(world) as crew:
        crew["a"].checkpoint("c-a")
        crew["a"].checkpoint("beyond")
        decision = gate.begin(lambda: other.authorize_rollback(world.agent, checkpoint="c-a"))
        with pytest.raises(RollbackPendingError) as caught:
            crew.prune("a")
        assert caught.value.rollback_id
        assert crew.prune("b").restored  # a sibling is not held up by it
        monkeypatch.setattr(rollbacks, "STALE_ROLLBACK_S", 0.0)
        assert crew.prune("a").restored
        gate.end()
        assert not decision.result(PATIENCE_S).authorised
        assert ledger.agent(world.agent).agent.branches["a"].forbidden == "it was pruned"


def test_a_fork_that_lands_in_a_pending_rollback_leaves_the_name_free(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked before the rollback was asked for and was written after: refused, and asked for again when decided."""
    forking, guarding = world.open(), world.open()
    publish, late = Engine.publish_agent, Gate()

    async def held(self: Engine, key: str, fact: Any, known: Any = ()) -> int | None:
        if self is forking._engine and fact.kind is AgentKind.FORKED:
            await late.pass_through()
        return await publish(self, key, fact, known)

    monkeypatch.setattr(Engine, "publish_agent", held)
    hold_fences(gate, guarding._engine, monkeypatch)
    with Siblings(world, ()) as crew:
        crew["main"].checkpoint("beyond")
        fork = late.begin(lambda: forking.fork(world.agent, "b", checkpoint="beyond"))
        decision = gate.begin(lambda: guarding.authorize_rollback(world.agent, checkpoint="c"))
        late.end()
        with pytest.raises(RollbackPendingError):
            fork.result(PATIENCE_S)
        crew.do("main", "refuses-the-rollback")
        gate.end()
        assert not decision.result(PATIENCE_S).authorised
        ledger.fork(world.agent, "b", checkpoint="beyond")
        with ledger.session(world.agent, "b") as branch:
            world.charge(branch, "on-b")
    assert world.hits("on-b") == 1


# -- adoption against the undo ---------------------------------------------------------------


def planned(crew: Siblings, name: str = "effect") -> Any:
    """The plan that undoes a sealed effect of branch a, which was pruned."""
    crew.do_sealed("a", name)
    crew.committed(name)
    plan = crew.prune("a").to_compensate
    assert plan is not None
    return plan


def test_an_adoption_that_comes_first_stops_the_undo(world: World, ledger: Ledger) -> None:
    """The plan does not hold any more; the effect stands for the sibling, and the inverse never runs."""
    with Siblings(world) as crew:
        plan, ran = planned(crew), list[str]()
        crew.undoable_by(ran)
        assert crew.do_sealed("b", "effect") == {"by": "a"}
        with pytest.raises(FencepostError) as caught:
            ledger.compensate(plan, approved_by="ann")
        assert crew.op_id("effect") in str(caught.value)
        assert ran == []
        assert crew.prune("a").restored
        assert ledger.operation(crew.op_id("effect")).operation.status is Status.COMMITTED


def begin_undo(crew: Siblings, name: str) -> EffectFact:
    """Write that an undo begins, on the version as it is now, and wait until that is applied."""
    op_id, engine = crew.op_id(name), crew.ledger._engine
    view = crew.run(engine.view.operation(op_id))
    fact = EffectFact(
        kind=EffectKind.COMPENSATING, op_id=op_id, attempt_id=engine.new_id(), round=view.operation.round,
        tool="tool", version=view.operation.version, by="ann",
    )  # fmt: skip
    crew.run(engine.publish_effect(fact, view.facts))
    crew.world.status(op_id, Status.COMPENSATING)
    return fact


def end_undo(crew: Siblings, fact: EffectFact, kind: EffectKind) -> None:
    engine = crew.ledger._engine
    view = crew.run(engine.view.operation(fact.op_id))
    ended = EffectFact(kind=kind, op_id=fact.op_id, attempt_id=fact.attempt_id, round=fact.round, tool="tool", by="ann")
    crew.run(engine.publish_effect(ended, view.facts))


def test_an_undo_that_began_first_makes_the_sibling_wait(world: World) -> None:
    """Undone: the call that waited does not do it anew by itself, the next one does. Withdrawn: it is adopted."""
    with Siblings(world, ("a", "b")) as crew, ThreadPoolExecutor(1) as threads:
        for name, ending in (("undone", EffectKind.COMPENSATED), ("kept", EffectKind.COMPENSATION_WITHDRAWN)):
            crew.do("a", name)
            crew.committed(name)
            undo = begin_undo(crew, name)
            waiting = threads.submit(crew.do, "b", name)
            with pytest.raises(OperationBeingUndoneError):
                crew.do("b", name, wait_s=0.2)
            assert not waiting.done()
            end_undo(crew, undo, ending)
            if ending is EffectKind.COMPENSATED:
                with pytest.raises(VersionMovedError):
                    waiting.result(PATIENCE_S)
                assert crew.do("b", name) == {"by": "b"}
                assert world.hits(name) == 2
            else:
                assert waiting.result(PATIENCE_S) == {"by": "a"}
                assert world.hits(name) == 1
        crew.prune("a")
        verdict = crew.prune("a")
        assert (crew.named(verdict.compensated), crew.named(verdict.adopted)) == (["undone"], ["kept"])


def test_an_operator_cannot_adopt_what_is_being_undone(world: World, ledger: Ledger) -> None:
    """Whoever comes first has it: an adoption of the very version that the undo began on is none."""
    with Siblings(world) as crew:
        crew.do("a", "mail")
        crew.committed("mail")
        seen = crew.version("mail")
        undo = begin_undo(crew, "mail")
        who: dict[str, Any] = {"agent": world.agent, "branch": "b", "by": "ann", "evidence": "e"}
        with pytest.raises(VersionMovedError):
            ledger.adopt(crew.op_id("mail"), **who, version=seen)
        with pytest.raises(OperationBeingUndoneError):
            ledger.adopt(crew.op_id("mail"), **who, version=crew.version("mail"))
        assert [o.kind for o in crew.prune("a").obligations] == ["BEING_UNDONE"]
        end_undo(crew, undo, EffectKind.COMPENSATION_WITHDRAWN)
        until(lambda: crew.prune("a").orphans)


@pytest.mark.slow
def test_adopting_and_undoing_race(world: World, ledger: Ledger) -> None:
    """Again and again, at the same time: the sibling has the result and it stands, or it was undone and the sibling knows."""
    other = world.open(wait_s=PATIENCE_S)
    with Siblings(world) as crew, ThreadPoolExecutor(2) as threads:
        names = [f"effect-{n}" for n in range(12)]
        for name in names:
            crew.do_sealed("a", name)
            crew.committed(name)
        verdict = crew.prune("a")
        ran: list[str] = []
        outcomes = set()

        @other.compensator("undo.branch", state_hash=lambda op: "before" if op.op_id in ran else "after")
        def undo(op: Any, payload: Any, idempotency_key: str) -> None:
            del payload, idempotency_key
            ran.append(op.op_id)

        for name in names:
            plan = other.plan_compensation([crew.op_id(name)])
            undoing = threads.submit(other.compensate, plan, approved_by="ann")
            adopting = threads.submit(crew.do_sealed, "b", name)
            adopted, undone = adopting.exception(PATIENCE_S), undoing.exception(PATIENCE_S)
            operation = ledger.operation(crew.op_id(name)).operation
            if undone is None:
                assert ran.count(crew.op_id(name)) == 1
                assert isinstance(adopted, VersionMovedError) or adopting.result() == {"by": "b"}
                assert operation.round == 2
            else:
                assert isinstance(undone, FencepostError)
                assert (adopted, adopting.result(), ran.count(crew.op_id(name))) == (None, {"by": "a"}, 0)
                assert (operation.status, operation.round) == (Status.COMMITTED, 1)
            outcomes.add(undone is None)
        assert len(verdict.undoable) == len(names)
        settled = crew.prune("a")
        assert (settled.undoable, settled.orphans, settled.undecided) == ((), (), ())
        assert len(settled.adopted) + len(settled.compensated) == len(names)


class Absorbing:
    """One session that stands still between having read an operation and noting that it absorbed it."""

    def __init__(
        self, gate: Gate, session: AgentSession, monkeypatch: pytest.MonkeyPatch, *, after: bool = False
    ) -> None:
        original = SessionState.absorb

        async def absorb(state: SessionState, *args: Any) -> Any:
            if state.session_id != session.session_id:
                return await original(state, *args)
            if after:
                noted = await original(state, *args)
                await gate.pass_through()
                return noted
            await gate.pass_through()
            return await original(state, *args)

        monkeypatch.setattr(SessionState, "absorb", absorb)


def pruned_adopter(crew: Siblings, engine_of: Ledger) -> Any:
    """Branch d relied on a's effect, and both were pruned; the plan that undoes it."""
    crew.do_sealed("a", "effect")
    crew.committed("effect")
    crew.do_sealed("d", "effect")
    crew.prune("d")
    plan = engine_of.prune_branch(crew.world.agent, "a").to_compensate
    assert plan is not None
    return plan


def late_session(world: World) -> tuple[Ledger, AgentSession]:
    """A session of branch b in a handle of its own, whose loop may stand still."""
    ledger = world.open()
    return ledger, ledger.session(world.agent, "b").open()


def reads(session: AgentSession, crew: Siblings) -> Any:
    undo = UndoPath(action="undo.branch", pre_state_hash="before", payload={"name": "effect"})
    key = crew.world.key("effect")
    with session.attempt("tool", key=key, kind=EffectClass.COMPENSATABLE, undo=undo) as attempt:
        return attempt.owned or attempt.result


def test_relying_on_an_adoption_whose_branch_is_pruned_meanwhile(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sibling read that the effect stands and was adopted; it was undone before it was seen to rely on it."""
    with Siblings(world, ("a", "d", "b")) as crew:
        _, session = late_session(world)
        plan, ran = pruned_adopter(crew, ledger), list[str]()
        crew.undoable_by(ran)
        Absorbing(gate, session, monkeypatch)
        relying = gate.begin(lambda: reads(session, crew))
        ledger.compensate(plan, approved_by="ann")
        gate.end()
        with pytest.raises(VersionMovedError):
            relying.result(PATIENCE_S)
        assert ran == [crew.op_id("effect")]
        session.close()


def test_relying_first_on_an_adoption_whose_branch_was_pruned(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round: it can be seen that the sibling absorbed it, so the plan is refused, and it stands."""
    with Siblings(world, ("a", "d", "b")) as crew:
        _, session = late_session(world)
        plan, ran = pruned_adopter(crew, ledger), list[str]()
        crew.undoable_by(ran)
        Absorbing(gate, session, monkeypatch, after=True)
        relying = gate.begin(lambda: reads(session, crew))
        until(lambda: crew.prune("a").adopted)
        with pytest.raises(ManifestError, match=f"{world.agent}/b"):
            ledger.compensate(plan, approved_by="ann")
        gate.end()
        assert relying.result(PATIENCE_S) == {"by": "a"}
        assert ran == []
        session.close()


def test_relying_on_it_while_its_undo_is_about_to_begin(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody relied on it when the plan was looked at last; it looks again once it has begun, and withdraws."""
    undoing, original = world.open(), Engine.publish_effect

    async def publish_effect(engine: Engine, fact: EffectFact, known: Any) -> Any:
        if engine is undoing._engine and fact.kind is EffectKind.COMPENSATING:
            await gate.pass_through()
        return await original(engine, fact, known)

    with Siblings(world, ("a", "d", "b")) as crew:
        plan, ran = pruned_adopter(crew, ledger), list[str]()

        @undoing.compensator("undo.branch", state_hash=lambda _: "after")
        def undo(op: Any, payload: Any, idempotency_key: str) -> None:
            del payload, idempotency_key
            ran.append(op.op_id)

        monkeypatch.setattr(Engine, "publish_effect", publish_effect)
        compensating = gate.begin(lambda: undoing.compensate(plan, approved_by="ann"))
        assert crew.do_sealed("b", "effect") == {"by": "a"}
        gate.end(wait=False)
        with pytest.raises(CompensationBlockedError, match=f"{world.agent}/b") as caught:
            compensating.result(PATIENCE_S)
        assert caught.value.verdict == "RELIED_ON"
        assert ran == []
        assert ledger.operation(crew.op_id("effect")).operation.status is Status.COMMITTED


def test_what_is_undone_while_a_session_takes_over_is_not_taken_for_done(
    world: World, ledger: Ledger, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that replays forward relies on nothing that was undone before it could be seen to rely on it."""
    with Siblings(world) as crew:
        plan, ran = planned(crew), list[str]()
        crew.undoable_by(ran)
        _, session = late_session(world)
        original = SessionState.note_absorbed

        async def note_absorbed(state: SessionState, *args: Any) -> None:
            if state.session_id == session.session_id:
                await gate.pass_through()
            await original(state, *args)

        monkeypatch.setattr(SessionState, "note_absorbed", note_absorbed)
        taking_over = gate.begin(session.replay_forward)
        ledger.compensate(plan, approved_by="ann")
        gate.end()
        assert [o.op_id for o in taking_over.result(PATIENCE_S)] == []
        assert ran == [crew.op_id("effect")]
        session.close()
