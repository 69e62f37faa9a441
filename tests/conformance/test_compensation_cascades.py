"""Effects that reach into the resource of another one: a bill that is deleted takes its invoice along, and gives it back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from conformance.branching import ACTION, Siblings

from fencepost.ledger import (
    AgentSession,
    CompensationBlockedError,
    EffectClass,
    Ledger,
    LossNotAcceptedError,
    ManifestError,
    ManifestVerdict,
    Plan,
    ReasonKind,
    Undo,
    UndoPath,
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

    def note(self, session: AgentSession, name: str, resource: str, *cascades: str) -> None:
        """An effect that is named after itself, on this resource."""

        def note() -> None:
            self.rows[resource] = name

        self.tool(session, name, resource, *cascades)(note)()

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


# -- effects that a plan leaves standing ---------------------------------------------------


@pytest.mark.parametrize(("resource", "cascades"), [("hook", ("user",)), ("user", ()), ("mail", ())])
def test_what_was_built_on_an_effect_is_named_when_that_is_undone(
    books: Books, world: World, ledger: Ledger, resource: str, cascades: tuple[str, ...]
) -> None:
    """On its resource, on its cascade, or with its resource as a cascade: undone in the same plan, or accepted by name."""
    with ledger.session(world.agent) as session:
        books.note(session, "before", "user")
        books.note(session, "user", "user", "mail")
        books.note(session, "other", "other", "mail")  # both reach into a third thing
        books.note(session, "hook", resource, *cascades)
        session.checkpoint("later")
    world.status(books.op_id("hook"), Status.COMMITTED)
    user, hook = books.op_id("user"), books.op_id("hook")
    alone = ledger.plan_compensation([user])
    assert (alone.verdict, alone.losses) == (ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN, (hook,))
    assert Plan.load(alone.to_dict()) == alone
    with pytest.raises(LossNotAcceptedError) as caught:
        ledger.approve_plan(alone, by="ann")
    assert caught.value.losses == [hook]
    both = ledger.plan_compensation([user, hook])
    assert ([step.op_id for step in both.steps], both.losses) == ([hook, user], ())
    assert both.verdict is ManifestVerdict.FULL_ROLLBACK_POSSIBLE
    assert ledger.plan_compensation([hook]).losses == ()
    ledger.compensate(ledger.plan_compensation([hook]), approved_by="ann")
    assert ledger.plan_compensation([user]).losses == ()


def test_a_plan_that_was_made_before_something_was_built_on_its_effect(
    books: Books, world: World, ledger: Ledger
) -> None:
    """It is refused, and made anew; what a person accepts by name may stand, and is told as lost."""
    with ledger.session(world.agent) as session:
        books.note(session, "user", "user")
        user = books.op_id("user")
        world.status(user, Status.COMMITTED)
        plan = ledger.plan_compensation([user])
        ledger.approve_plan(plan, by="ann")
        books.note(session, "hook", "hook", "user")
        world.status(books.op_id("hook"), Status.COMMITTED)
    for work in (ledger.compensate, ledger.verify_plan):
        with pytest.raises(ManifestError, match=books.op_id("hook")) as caught:
            work(plan)
        assert caught.value.field == "leaves"
    assert books.undone == []
    books.rows["user"] = "user"
    plan = ledger.plan_compensation([user])
    ledger.compensate(plan, approved_by="ann", accept_losses=[books.op_id("hook")])
    assert (books.undone, ledger.operation(user).operation.losses) == (["user"], (books.op_id("hook"),))


def test_a_pruned_branch_whose_orphan_stands_on_what_can_be_undone(world: World, ledger: Ledger) -> None:
    """Its plan names the orphan: first somebody sees to that, or accepts that it stands on nothing."""
    with Siblings(world) as crew:
        path = UndoPath(action=ACTION, pre_state_hash="before", payload={})
        effects: dict[str, dict[str, Any]] = {
            "user": {"kind": EffectClass.COMPENSATABLE, "undo": path, "resource": "user"},
            "hook": {"kind": EffectClass.IRREVERSIBLE, "resource": "hook", "cascades": ("user",)},
        }
        for name, options in effects.items():
            with crew["a"].attempt("tool", key=world.key(name), **options) as attempt:
                assert attempt.owned
                attempt.commit(post_state_hash="after" if name == "user" else "")
            crew.committed(name)
        plan = crew.prune("a").to_compensate
        assert plan is not None
        assert ([s.op_id for s in plan.steps], plan.losses) == ([crew.op_id("user")], (crew.op_id("hook"),))
        word: dict[str, Any] = {"version": crew.version("hook"), "by": "ann", "evidence": "removed by hand"}
        ledger.resolve(crew.op_id("hook"), outcome="compensated", **word)
        after = crew.prune("a").to_compensate
        assert after is not None
        assert after.losses == ()
