"""Effects that reach into the resource of another one: a bill that is deleted takes its invoice along, and gives it back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from fencepost.ledger import (
    AgentSession,
    CompensationBlockedError,
    EffectClass,
    Ledger,
    ManifestVerdict,
    Plan,
    ReasonKind,
    Undo,
    Verdict,
    VerdictKind,
)
from fencepost.ledger.operations import Operation, Status

if TYPE_CHECKING:
    from conformance.worlds import World


@dataclass
class Books:
    """A bill and an invoice, and tools that change them; `undone` names the inverses as they ran."""

    world: World
    rows: dict[str, str] = field(default_factory=lambda: {"bill": "1"})
    undone: list[str] = field(default_factory=list)

    def state(self, *names: str) -> str:
        return repr([self.rows.get(name) for name in names])

    def tool(self, session: AgentSession, name: str, resource: str, *cascades: str) -> Any:
        """A tool on one resource, whose state hash is of all that it touches; its payload is the whole state before."""
        touched = (resource, *cascades)
        undo = Undo(
            action=self.world.key(name),
            state_hash=lambda *_: self.state(*touched),
            payload=lambda *_: dict(self.rows),
            covers=cascades,
        )
        self.restores(name, *touched)
        return session.effect(
            name,
            kind=EffectClass.COMPENSATABLE,
            key=lambda *_: self.world.key(name),
            resource=resource,
            cascades=cascades,
            undo=undo,
        )

    def restores(self, name: str, *touched: str) -> None:
        @self.world.ledger.compensator(self.world.key(name), state_hash=lambda _: self.state(*touched))
        def undo(op: Operation, payload: Any, idempotency_key: str) -> None:
            del op, idempotency_key
            self.undone.append(name)
            for row in touched:
                self.rows.pop(row, None)
                self.rows |= {row: payload[row]} if row in payload else {}

    def op_id(self, name: str) -> str:
        return self.world.op_id(name, name)

    def create_invoice(self, session: AgentSession) -> None:
        self.tool(session, "create", "invoice")(lambda: self.rows.update(invoice="open"))()

    def delete_bill(self, session: AgentSession) -> None:
        def delete() -> None:
            self.rows.clear()

        self.tool(session, "delete", "bill", "invoice")(delete)()

    def pay_invoice(self, session: AgentSession) -> None:
        self.tool(session, "pay", "invoice")(lambda: self.rows.update(invoice="paid"))()


@pytest.fixture
def books(world: World) -> Books:
    return Books(world)


def planned(world: World) -> tuple[Verdict, Plan]:
    world.preview("c")
    verdict = world.ledger.authorize_rollback(world.agent, checkpoint="c")
    assert verdict.kind is VerdictKind.COMPENSATE_FIRST, [r.text for r in verdict.reasons]
    assert verdict.plan is not None
    return verdict, verdict.plan


def test_the_agents_own_later_cascade_is_no_concurrent_mutation(books: Books, world: World, ledger: Ledger) -> None:
    """The deletion is undone first and gives the invoice back; then its creation can be undone."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        books.create_invoice(session)
        books.delete_bill(session)
    _, plan = planned(world)
    assert [step.op_id for step in plan.steps] == [books.op_id("delete"), books.op_id("create")]
    assert set(ledger.verify_plan(plan).values()) == {ManifestVerdict.FULL_ROLLBACK_POSSIBLE}
    ledger.compensate(plan, approved_by="alice")
    assert (books.undone, books.rows) == (["delete", "create"], {"bill": "1"})
    assert ledger.authorize_rollback(world.agent, checkpoint="c").authorised


def test_a_later_change_of_what_the_effect_took_along(books: Books, world: World, ledger: Ledger) -> None:
    """The other way round: the agent's own later effect is on the resource that the older one names as its cascade."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        books.delete_bill(session)
        books.create_invoice(session)
        books.pay_invoice(session)
    _, plan = planned(world)
    ledger.compensate(plan, approved_by="alice")
    assert (books.undone, books.rows) == (["pay", "create", "delete"], {"bill": "1"})


def test_somebody_elses_change_still_blocks(books: Books, world: World, ledger: Ledger) -> None:
    """Before the verdict on what is undone first; between the steps, where only that undo shows it."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        books.create_invoice(session)
        books.rows["invoice"] = "somebody's"
        books.delete_bill(session)
    _, plan = planned(world)
    books.rows["bill"] = "somebody's"
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c")
    assert (verdict.kind, {r.kind for r in verdict.reasons}) == (VerdictKind.REFUSE, {ReasonKind.CONCURRENT_MUTATION})
    with pytest.raises(CompensationBlockedError, match="Nothing was begun"):
        ledger.compensate(plan, approved_by="alice")
    del books.rows["bill"]
    _, plan = planned(world)
    with pytest.raises(CompensationBlockedError) as caught:
        ledger.compensate(plan, approved_by="alice")
    assert caught.value.op_id == books.op_id("create")
    assert caught.value.done == [books.op_id("delete")]
    assert (books.undone, books.rows) == (["delete"], {"bill": "1", "invoice": "somebody's"})
    assert ledger.operation(books.op_id("create")).operation.status is Status.COMMITTED
