"""Lives of agents at random, on every store, beside a plain reference: nothing is doubled, lost, or gone back over."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import examples
import pytest
from conformance.homes import Home, new_home
from conformance.lives_model import Branch, Life, Mark, Operation, Reference
from conformance.waiting import PATIENCE_S, answer_when_back, until
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fencepost.deploy.processes import wait_until
from fencepost.ledger import (
    AgentSession,
    EffectClass,
    FencedError,
    Ledger,
    NotFoundError,
    UndecidedError,
    UnsafeRollbackError,
    log_keys,
)
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fencepost.ledger import Attempt

AGENTS, KEYS = ("ann", "bob"), ("a", "b", "c")
TOOL = "bank.pay"
MOST_BRANCHES = 4
some = st.integers(0, 11)
_numbers = itertools.count(1)


@dataclass(eq=False)
class Call:
    """An attempt that owns its operation and has not been decided."""

    attempt: Attempt
    key: str
    round: int
    life: Life
    result: int = 0


class Lives(RuleBasedStateMachine):
    """Each step is done on the ledger and in the reference, and what the ledger says is compared."""

    def __init__(self, home: Home) -> None:
        super().__init__()
        self.home = home
        self.name = f"l{next(_numbers)}"
        self.numbers = itertools.count(1)
        self.ledger = Ledger.open(home.url)
        self.reference = Reference({key: Operation(key) for key in KEYS}, [Branch(agent, "main") for agent in AGENTS])
        self.sessions: dict[Life, AgentSession] = {}
        self.calls: list[Call] = []

    # -- what is there -----------------------------------------------------------------

    def agent(self, name: str) -> str:
        return f"{name}-{self.name}"

    def op_id(self, key: str) -> str:
        return f"{TOOL}:{key}-{self.name}"

    @property
    def speakers(self) -> list[Life]:
        return [b.speaker for b in self.reference.branches if b.speaker is not None]

    @property
    def former(self) -> list[Life]:
        """Sessions that were taken over from, and do not know it."""
        return [life for life in self.sessions if life not in self.speakers]

    @property
    def marks(self) -> list[tuple[Branch, Mark]]:
        return [(b, mark) for b in self.reference.branches if not b.closed for mark in b.marks]

    def attempt(self, life: Life, key: str) -> Attempt:
        session = self.sessions[life]
        return session.attempt(TOOL, key=f"{key}-{self.name}", kind=EffectClass.IRREVERSIBLE, wait_s=0.01)

    # -- sessions ----------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """Each agent has something to go back to."""
        for branch in self.reference.branches:
            self._mark(self.open(branch))

    def open(self, branch: Branch) -> Life:
        session = self.ledger.session(self.agent(branch.agent), branch.name).open()
        life = branch.opened()
        self.sessions[life] = session
        return life

    @rule(which=some)
    def take_over(self, which: int) -> None:
        """A session opens; its predecessor, if there is one, goes on and does not know."""
        branch = self.reference.branches[which % len(self.reference.branches)]
        if branch.closed:
            with pytest.raises(FencedError):
                self.ledger.session(self.agent(branch.agent), branch.name).open()
            return
        self.open(branch)

    @rule(which=some)
    @precondition(lambda self: self.speakers)
    def crash(self, which: int) -> None:
        """A process dies; what it had begun stays as it is."""
        self.die(self.speakers[which % len(self.speakers)])

    def die(self, life: Life) -> None:
        self.calls = [call for call in self.calls if call.life is not life]
        self.sessions.pop(life, None)
        if life.branch.speaker is life:
            life.branch.speaker = None

    @rule(which=some)
    @precondition(lambda self: self.idle())
    def close(self, which: int) -> None:
        life = self.idle()[which % len(self.idle())]
        self.sessions.pop(life).close()
        life.closed = True
        life.branch.speaker = None

    def idle(self) -> list[Life]:
        return [life for life in self.speakers if all(call.life is not life for call in self.calls)]

    @rule()
    def all_crash(self) -> None:
        """The process that has all sessions dies, and another one begins."""
        for life in list(self.sessions):
            self.die(life)
        self.ledger.close()
        self.ledger = Ledger.open(self.home.url)

    # -- effects -----------------------------------------------------------------------

    @rule(which=some, key=st.sampled_from(KEYS))
    @precondition(lambda self: self.speakers)
    def claim(self, which: int, key: str) -> None:
        """Free: it is mine. Committed: its recorded result. Else: neither."""
        life, op = self.speakers[which % len(self.speakers)], self.reference.operations[key]
        attempt = self.attempt(life, key)
        if op.status in {"owned", "in doubt"}:
            with pytest.raises(UndecidedError):
                attempt.begin()
            return
        attempt.begin()
        assert (attempt.owned, attempt.round) == (op.status == "free", op.round)
        if attempt.owned:
            self.reference.claimed(key, life)
            self.calls.append(Call(attempt, key, attempt.round, life))
        else:
            assert attempt.result == op.result
            self.absorbed(key, life)

    @rule(which=some, key=st.sampled_from(KEYS))
    @precondition(lambda self: self.speakers)
    def do(self, which: int, key: str) -> None:
        """A whole call, so that much is committed."""
        before = len(self.calls)
        self.claim(which, key)
        if len(self.calls) > before:
            self.run(before)
            self.commit(before)

    @rule(which=some, key=st.sampled_from(KEYS))
    @precondition(lambda self: self.former)
    def claim_too_late(self, which: int, key: str) -> None:
        """A session that was taken over from gets no permit, whatever it asks for."""
        life, op = self.former[which % len(self.former)], self.reference.operations[key]
        attempt = self.attempt(life, key)
        try:
            attempt.begin()
        except (FencedError, UndecidedError) as error:
            event(f"too late: {type(error).__name__}")
            return
        assert not attempt.owned
        assert (op.status, attempt.result) == ("committed", op.result)
        self.absorbed(key, life)

    def absorbed(self, key: str, life: Life) -> None:
        """From when that is written all points of the agent are compared with it; the call itself does not wait for it."""
        until(lambda: not self.sessions[life].state.background)
        self.reference.absorbed(key, life)

    @rule(which=some)
    @precondition(lambda self: any(not call.result for call in self.calls))
    def run(self, which: int) -> None:
        """The effect happens, in the session that has the permit, also if it was taken over from."""
        waiting = [call for call in self.calls if not call.result]
        call = waiting[which % len(waiting)]
        call.result = next(self.numbers)
        self.reference.ran(call.key, call.round)
        assert self.reference.operations[call.key].ran[call.round] == 1, f"{call.key} ran twice"

    @rule(which=some)
    @precondition(lambda self: any(call.result for call in self.calls))
    def commit(self, which: int) -> None:
        done = [call for call in self.calls if call.result]
        call = done[which % len(done)]
        self.calls.remove(call)
        call.attempt.commit(call.result)
        self.reference.committed(call.key, call.life, call.result)

    @rule(which=some)
    @precondition(lambda self: any(not call.result for call in self.calls))
    def fail(self, which: int) -> None:
        waiting = [call for call in self.calls if not call.result]
        call = waiting[which % len(waiting)]
        self.calls.remove(call)
        call.attempt.fail("it did not happen")
        self.reference.freed(call.key)

    @rule(which=some)
    @precondition(lambda self: self.calls)
    def doubt(self, which: int) -> None:
        call = self.calls.pop(which % len(self.calls))
        call.attempt.doubt("no answer")
        self.reference.doubted(call.key)

    # -- operators ---------------------------------------------------------------------

    def unsettled(self) -> list[Operation]:
        """What nobody is left to decide."""
        held = {call.key for call in self.calls}
        return [
            op for op in self.reference.operations.values() if op.status in {"owned", "in doubt"} and op.key not in held
        ]

    @rule(which=some)
    @precondition(lambda self: self.unsettled())
    def resolve(self, which: int) -> None:
        """An operator looks at the world, and says what he has seen."""
        op = self.unsettled()[which % len(self.unsettled())]
        happened = bool(op.ran.get(op.round))
        result = next(self.numbers)
        self._say(
            op, "committed" if happened else "absent", **({"result": result} if happened else {"accept_risk": True})
        )
        if happened:
            self.reference.committed(op.key, None, result)
        else:
            self.reference.freed(op.key)

    @rule(which=some)
    @precondition(lambda self: self.committed())
    def undo(self, which: int) -> None:
        """An operator has undone an effect outside, and says so: its next round may run."""
        op = self.committed()[which % len(self.committed())]
        self._say(op, "compensated")
        self.reference.undone(op.key)

    def committed(self) -> list[Operation]:
        return [op for op in self.reference.operations.values() if op.status == "committed"]

    def _say(self, op: Operation, outcome: str, **more: Any) -> None:
        version = self.ledger.operation(self.op_id(op.key)).operation.version
        self.ledger.resolve(self.op_id(op.key), outcome=outcome, version=version, by="eve", evidence="seen", **more)

    # -- checkpoints, branches, the guard ------------------------------------------------

    @rule(which=some)
    @precondition(lambda self: self.speakers)
    def checkpoint(self, which: int) -> None:
        self._mark(self.speakers[which % len(self.speakers)])

    @rule(which=some, key=st.sampled_from(KEYS))
    @precondition(lambda self: self.speakers)
    def do_and_checkpoint(self, which: int, key: str) -> None:
        """Or the other way round."""
        life = self.speakers[which % len(self.speakers)]
        if which % 2:
            self._mark(life)
        self.do(which, key)
        if not which % 2:
            self._mark(life)

    def _mark(self, life: Life) -> None:
        name = f"c{next(self.numbers)}"
        self.sessions[life].checkpoint(name)
        self.reference.checkpointed(life, name)

    @rule(which=some)
    @precondition(lambda self: self.marks and len(self.reference.branches) < MOST_BRANCHES)
    def fork(self, which: int) -> None:
        branch, mark = self.marks[which % len(self.marks)]
        name = f"b{next(self.numbers)}"
        self.ledger.fork(self.agent(branch.agent), name, checkpoint=mark.name)
        self.reference.forked(branch, mark, name)
        self.open(self.reference.branches[-1])

    @invariant()
    def the_ledger_says_the_same(self) -> None:
        """Of operations; and of going back to two of the checkpoints, each time others."""
        self.agrees()
        marks = self.marks
        for _ in marks[:2]:
            self._preview(*marks[next(self.numbers) % len(marks)])

    def _preview(self, branch: Branch, mark: Mark) -> None:
        """Nothing undecided is gone back over, nothing undone is lost; and under STRICT nothing is that the checkpoint does not know."""
        undecided, missing = self.reference.undecided(branch.agent), self.reference.missing(branch.agent, mark)
        lost = self.reference.lost(mark)
        crossed = None if undecided or lost else {self.op_id(key) for key in missing}
        self.comes_to(
            lambda: self.verdicts(branch, mark),
            (not undecided and not missing and not lost, not undecided and not lost, crossed),
        )
        event(f"preview: {len(undecided)} undecided, {len(missing)} missing, {len(lost)} lost")

    def verdicts(self, branch: Branch, mark: Mark) -> tuple[bool, bool, set[str] | None]:
        """Whether STRICT and GATED authorise it, and what GATED would cross."""
        strict, gated = (
            self.ledger.preview_rollback(self.agent(branch.agent), checkpoint=mark.name, policy=policy)
            for policy in ("strict", "gated")
        )
        crossed = {effect.op_id for effect in gated.crossed} if gated.authorised else None
        return strict.authorised, gated.authorised, crossed

    @rule(which=some)
    @precondition(lambda self: self.can_go_back())
    def go_back(self, which: int) -> None:
        branch, mark = self.can_go_back()[which % len(self.can_go_back())]
        life = branch.speaker
        assert life is not None
        if self.reference.missing(branch.agent, mark) or self.reference.lost(mark):
            with pytest.raises(UnsafeRollbackError) as refused:
                self.sessions[life].rollback(mark.name)
            event("went back: refused")
            if refused.value.verdict.fenced:
                branch.speaker = None
            return
        successor = self.sessions[life].rollback(mark.name)
        event("went back")
        self.sessions[self.reference.gone_back(branch, mark)] = successor

    def can_go_back(self) -> list[tuple[Branch, Mark]]:
        return [(b, mark) for b, mark in self.marks if b.speaker is not None and not self.reference.undecided(b.agent)]

    # -- what breaks -------------------------------------------------------------------

    @rule()
    def lose_projection(self) -> None:
        """While it is gone nothing is written, so what is written in the background is awaited first."""
        until(lambda: not any(session.state.background for session in self.sessions.values()))
        self.home.lose_projection()
        self.home.rebuild()
        answer_when_back(lambda: (self.ledger.agents(), self.ledger.open_operations()))

    @rule(which=st.integers(0, 10_000))
    def write_again(self, which: int) -> None:
        """Some record is written once more, as by a client that never heard that it was written."""
        store = self.ledger._engine.store
        reader = store.reader()
        try:
            found = [
                (entry.partition, entry.record)
                for topic in Topic
                for partition in self.ledger._engine.view.partitions(topic)
                for entry in reader.entries(partition)
                if entry.record is not None and not log_keys.is_horizon(entry.record.key)
            ]
        finally:
            reader.close()
        mine = [(partition, record) for partition, record in found if self.name in record.key]
        if mine:
            partition, record = mine[which % len(mine)]
            self.ledger._call(store.log.publish(partition, record))

    # -- what must hold ----------------------------------------------------------------

    def agrees(self) -> None:
        """The ledger says of each operation what the reference says, once it has applied what was written."""
        wanted = {op.key: (op.status, op.round) for op in self.reference.operations.values()}
        self.comes_to(lambda: {key: answer_when_back(lambda key=key: self.told(key)) for key in KEYS}, wanted)  # type: ignore[misc]

    def comes_to(self, look: Callable[[], object], wanted: object) -> None:
        """The ledger says what is wanted: at once, or where a projector must first have read what was written, soon."""
        found = look()
        if found != wanted and not self.home.embedded:
            wait_until(lambda: look() == wanted, PATIENCE_S)
            found = look()
        assert found == wanted

    def told(self, key: str) -> tuple[str, int]:
        """What the ledger says of an operation: its status and round."""
        try:
            operation = self.ledger.operation(self.op_id(key)).operation
        except NotFoundError:
            return "free", 1
        return operation.status.value, operation.round

    def teardown(self) -> None:
        """At rest, and again after one more loss: the same operations, the same results, and books without a finding."""
        try:
            for again in (False, True):
                if again:
                    self.home.lose_projection()
                    self.home.rebuild()
                self.agrees()
                report = answer_when_back(self.ledger.verify)
                assert [f for f in report.findings if f.grave and self.name in f"{f.where} {f.text}"] == []
                life = answer_when_back(lambda: self.open(Branch(f"reader{next(self.numbers)}", "main")))
                for op in self.committed():
                    attempt = self.attempt(life, op.key).begin()
                    assert (attempt.owned, attempt.result) == (False, op.result)
            assert all(count == 1 for op in self.reference.operations.values() for count in op.ran.values())
        finally:
            self.ledger.close()


def live(make: Callable[[], Lives], *, lives: int, steps: int) -> None:
    run_state_machine_as_test(make, settings=examples.settings(max_examples=lives, stateful_step_count=steps))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(examples.timeout_s(600))
def test_every_life_is_as_the_reference_says(home: Home, tmp_path: Path) -> None:
    """Sessions, crashes, outcomes, checkpoints, branches, going back, losses, repeats: each as DESIGN says."""
    if not home.embedded:  # one ledger for all: to make one takes longer than to live
        live(lambda: Lives(home), lives=4, steps=15)
        return

    def own() -> Lives:
        directory = tmp_path / str(next(_numbers))
        directory.mkdir()
        return Lives(new_home("embedded", directory))

    live(own, lives=25, steps=25)
