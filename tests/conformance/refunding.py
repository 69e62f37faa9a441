"""Refunds of one test: effects that can be undone, plans of them, and processes that carry those out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.accounts import Account, refund_of, register
from conformance.worlds import World, until

from fencepost.ledger import (
    Ledger,
    Plan,
)
from fencepost.ledger.operations import Operation, Status, compensation_op_id

if TYPE_CHECKING:
    from fencepost.ledger import AgentSession


@dataclass
class Refunds:
    """The refunds of one test: an account of its own, and an action that nobody else registers."""

    world: World

    @property
    def ledger(self) -> Ledger:
        return self.world.ledger

    @property
    def action(self) -> str:
        return self.world.key("billing.recharge")

    @property
    def account(self) -> Account:
        return Account(self.world.directory, self.world.key("account"))

    def op_id(self, name: str) -> str:
        return self.world.op_id(name, "billing.refund")

    def do(self, session: AgentSession, *names: str, cents: int = 1, **options: Any) -> None:
        refund = refund_of(session, self.world.directory, self.action, **options)
        for name in names:
            refund(self.world.key(name), self.world.key("account"), cents)

    def done(self, *names: str, **options: Any) -> None:
        """In a session of its own; the checkpoint "c" is before them."""
        with self.ledger.session(self.world.agent) as session:
            session.checkpoint("c")
            self.do(session, *names, **options)

    def operation(self, name: str) -> Operation:
        return self.ledger.operation(self.op_id(name)).operation

    def inverse(self, name: str, round_number: int = 1) -> Operation:
        return self.ledger.operation(compensation_op_id(self.op_id(name), round_number)).operation

    def plan(self, *names: str) -> Plan:
        for name in names:
            until(lambda name=name: self.operation(name).status is Status.COMMITTED)
        return self.ledger.plan_compensation([self.op_id(name) for name in names])

    def register(self, **options: Any) -> list[dict[str, Any]]:
        return register(self.ledger, self.world.directory, self.action, **options)

    def step(self, plan: Plan, **more: Any) -> dict[str, Any]:
        """A worker's step that carries a plan out."""
        return {"do": "compensate", "plan": plan.to_dict(), "action": self.action, "by": "alice", **more}

    def undoer(self, plan: Plan, **more: Any) -> Any:
        """A process that carries a plan out."""
        return self.world.worker(self.step(plan, **more), agent=f"undoer-{self.world.agent}", armed=True)
