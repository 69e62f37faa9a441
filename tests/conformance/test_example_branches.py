"""Branch and prune over a ticket desk: three siblings, one tool surface, and a branch that is pruned after its 201 Created."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import PATIENCE_S, World, until

from fencepost.ledger import (
    AgentSession,
    EffectClass,
    FencedError,
    Ledger,
    ObligationKind,
    OperationInFlightError,
    PruneKind,
    SpeculativeRollbackViolation,
    Undo,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Desk:
    """The outside world: tickets, messages, and a book; it keeps everything that it is told, and takes back on demand."""

    tickets: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    book: dict[str, int] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def create_ticket(self, customer: str, title: str) -> dict[str, Any]:
        self.tickets.append({"status": 201, "id": len(self.tickets) + 1, "customer": customer, "title": title})
        return self.tickets[-1]

    def send_message(self, to: str, text: str) -> str:
        self.messages.append(f"{to}: {text}")
        return f"sent to {to}"

    def append_entry(self, account: str, cents: int) -> int:
        self.book[account] = self.book.get(account, 0) + cents
        return self.book[account]

    def balance(self, account: str, **_: Any) -> str:
        return f"balance {self.book.get(account, 0)}"


@dataclass
class Tools:
    """The same three tools, through the ledger, as a branch has them."""

    session: AgentSession
    desk: Desk
    during: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        session, desk = self.session, self.desk

        @session.effect(
            "create_ticket", kind=EffectClass.IRREVERSIBLE, identity=("customer", "title"), content=("text",)
        )
        def create_ticket(customer: str, title: str, text: str = "") -> dict[str, Any]:
            del text
            desk.keys.append(session.current.idempotency_key)
            self.during()
            return desk.create_ticket(customer, title)

        @session.effect("send_message", kind=EffectClass.IRREVERSIBLE, identity=("to",), content=("text",), wait_s=0.3)
        def send_message(to: str, text: str) -> str:
            self.during()
            return desk.send_message(to, text)

        undo = Undo(action="append_ledger_entry.reverse", state_hash=desk.balance)

        @session.effect("append_ledger_entry", kind=EffectClass.COMPENSATABLE, identity=("account", "cents"), undo=undo)
        def append_ledger_entry(account: str, cents: int) -> int:
            return desk.append_entry(account, cents)

        self.create_ticket, self.send_message, self.append_ledger_entry = (
            create_ticket,
            send_message,
            append_ledger_entry,
        )


@dataclass
class Run:
    """A run of the orchestrator: main with its checkpoint, and three branches."""

    world: World
    desk: Desk
    branches: dict[str, Tools]
    main: AgentSession

    def verdict_when(self, branch: str, kind: PruneKind) -> Any:
        """The verdict on a pruned branch, once late outcomes are applied."""
        until(lambda: self.main.prune(branch).kind is kind)
        return self.main.prune(branch)


@pytest.fixture
def run(world: World, ledger: Ledger) -> Any:
    desk = Desk()
    main = ledger.session(world.agent, scope=world.key("task-7")).open()
    main.checkpoint("fork-point")
    branches = {name: Tools(main.fork(name, checkpoint="fork-point").open(), desk) for name in ("A", "B", "C")}
    yield Run(world, desk, branches, main)
    for session in [*(tools.session for tools in branches.values()), main]:
        session.close()


def test_without_the_ledger_there_are_two_tickets() -> None:
    """What was observed: the checkpoint restores the agent and not the desk, so the winner opens another ticket."""
    desk = Desk()
    lost = desk.create_ticket("ann", "refund")  # branch A: 201 Created; then its validation fails, and it is pruned
    won = desk.create_ticket("ann", "refund")  # branch B asks for what is logically the same
    assert (lost["status"], won["status"]) == (201, 201)
    assert len(desk.tickets) == 2
    assert lost["id"] != won["id"]


def test_with_the_ledger_there_is_one_and_the_winner_has_it(run: Run) -> None:
    """The first commit wins: B gets A's ticket, and the effect is recorded against the operation, not the branch."""
    a, b = run.branches["A"], run.branches["B"]
    created = a.create_ticket("ann", "refund", text="as A words it")
    assert created["status"] == 201
    assert b.create_ticket("ann", "refund", text="as B words it") == created
    assert len(run.desk.tickets) == 1
    verdict = run.main.prune("A", by="orchestrator", evidence="downstream validation failed")
    assert (verdict.kind, verdict.restored) == (PruneKind.CLEARED, True)
    assert verdict.adopted[0].relied_on_by == (f"{run.world.agent}/B",)
    with pytest.raises(FencedError):
        a.send_message("ann", "we opened a ticket")
    assert run.desk.messages == []


def test_pruned_before_the_winner_asks(run: Run, ledger: Ledger) -> None:
    """In the order in which it was observed: A commits, is pruned with an orphan, and B then takes the ticket over."""
    created = run.branches["A"].create_ticket("ann", "refund")
    verdict = run.verdict_when("A", PruneKind.VIOLATION)
    with pytest.raises(SpeculativeRollbackViolation):
        verdict.raise_for_violation()
    assert run.branches["B"].create_ticket("ann", "refund") == created
    assert len(run.desk.tickets) == 1
    assert len(set(run.desk.keys)) == 1
    assert run.main.prune("A").restored
    assert ledger.obligations(run.world.agent) == []


def test_an_irreversible_orphan_is_raised(run: Run, ledger: Ledger) -> None:
    """A message that A sent and nobody else wants: not a silent loss, but an obligation with a name."""
    run.branches["A"].send_message("ann", "your refund is on its way")
    verdict = run.verdict_when("A", PruneKind.VIOLATION)
    with pytest.raises(SpeculativeRollbackViolation) as caught:
        verdict.raise_for_violation()
    [orphan] = caught.value.orphans
    assert (orphan.tool, orphan.effect_class) == ("send_message", EffectClass.IRREVERSIBLE)
    assert [o.kind for o in ledger.obligations(run.world.agent)] == [ObligationKind.ORPHAN]


def test_an_entry_of_the_loser_is_taken_back(run: Run, ledger: Ledger) -> None:
    """A's entry is compensated before the checkpoint counts as restored; the book is as if A had never been."""
    desk = run.desk
    run.branches["A"].append_ledger_entry("ann", 500)
    verdict = run.verdict_when("A", PruneKind.OPEN)
    assert (verdict.restored, desk.book) == (False, {"ann": 500})

    @ledger.compensator("append_ledger_entry.reverse", state_hash=lambda _, payload: desk.balance(payload["account"]))
    def reverse(op: Any, payload: Any, idempotency_key: str) -> int:
        del op, idempotency_key
        return desk.append_entry(payload["account"], -payload["cents"])

    assert verdict.to_compensate is not None
    ledger.compensate(verdict.to_compensate, approved_by="ann")
    assert desk.book == {"ann": 0}
    assert run.main.prune("A").restored
    assert run.branches["C"].append_ledger_entry("ann", 500) == 500  # asked for anew, in the next round
    assert desk.book == {"ann": 500}


def test_a_deadline_while_the_owner_is_still_running(run: Run) -> None:
    """B may not send what A is sending, however long that takes; pruning A leaves it undecided until A has answered."""
    started, go = threading.Event(), threading.Event()
    a, b = run.branches["A"], run.branches["B"]

    def slow() -> None:
        started.set()
        assert go.wait(PATIENCE_S)

    a.during = slow
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(a.send_message, "ann", "hello from A")
        assert started.wait(PATIENCE_S)
        with pytest.raises(OperationInFlightError):
            b.send_message("ann", "hello from B")
        verdict = run.main.prune("A")
        assert (verdict.kind, [e.tool for e in verdict.undecided]) == (PruneKind.OPEN, ["send_message"])
        go.set()
        assert sending.result(PATIENCE_S) == "sent to ann"
    op_id = verdict.undecided[0].op_id
    run.world.status(op_id, Status.COMMITTED)
    assert b.send_message("ann", "hello from B") == "sent to ann"
    assert run.desk.messages == ["ann: hello from A"]
    assert run.main.prune("A").restored


def test_a_wide_fan_out_stays_cheap(run: Run, ledger: Ledger) -> None:
    """Three siblings that ask for the same leave one effect each behind; the report shows no orphan for the fan-out."""
    for tools in run.branches.values():
        tools.create_ticket("ann", "refund")
        tools.send_message("ann", "we have opened a ticket")
    for name in ("A", "C"):
        run.verdict_when(name, PruneKind.CLEARED)
    assert (len(run.desk.tickets), len(run.desk.messages)) == (1, 1)
    [row] = ledger.speculation_report(run.world.agent).rows
    assert (row.fan_out, row.forks, row.pruned, row.committed, row.adopted, row.orphans) == (3, 3, 2, 2, 2, 0)
