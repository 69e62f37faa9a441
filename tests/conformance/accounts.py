"""Accounts of the outside world: files that effects change, that are hashed, and that inverses change back.

Used by the tests, and by processes that carry plans out and have never seen the effects.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger import AgentSession, Ledger, Operation, ProbeAnswer


class Account:
    """One account: a journal of who moved how much. Its hash is that of its balance."""

    def __init__(self, directory: Path, name: str) -> None:
        self._journal = directory / f"account-{name}"

    def move(self, cents: int, who: str) -> None:
        with self._journal.open("a") as file:
            file.write(f"{who} {cents}\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[list[str]]:
        return (
            [line.rsplit(" ", 1) for line in self._journal.read_text().splitlines()] if self._journal.exists() else []
        )

    @property
    def balance(self) -> int:
        return sum(int(cents) for _, cents in self._lines())

    def moves(self, who: str = "") -> int:
        """How often somebody whose name begins like this has moved something."""
        return sum(name.startswith(who) for name, _ in self._lines())

    @property
    def hash(self) -> str:
        return hashlib.sha256(str(self.balance).encode()).hexdigest()


def refund_of(session: AgentSession, directory: Path, action: str, **options: Any) -> Callable[[str, str, int], Any]:
    """The effect `billing.refund` of a session: it moves cents on an account, and says how it is undone."""
    from fencepost.ledger import EffectClass, Undo  # noqa: PLC0415 (a process that only undoes never gets here)

    at = options.pop("at", lambda _: None)
    undo = Undo(
        action=action,
        state_hash=lambda account, **_: Account(directory, account).hash,
        payload=lambda order, account, cents: {"account": account, "cents": cents, "order": order},
        **options,
    )

    @session.effect(
        "billing.refund",
        kind=EffectClass.COMPENSATABLE,
        key=lambda order, **_: order,
        resource="account:{account}",
        undo=undo,
    )
    def refund(order: str, account: str, cents: int = 1) -> dict[str, Any]:
        at("before effect")
        Account(directory, account).move(cents, f"refund:{session.current.idempotency_key}")
        at("after effect")
        return {"order": order}

    return refund


def register(
    ledger: Ledger, directory: Path, action: str, *, at: Callable[[str], None] = lambda _: None, probe: bool = False
) -> list[dict[str, Any]]:
    """Register the inverse of refunds under a name; what it was called with, call by call."""
    from fencepost.ledger import Outcome, ProbeAnswer  # noqa: PLC0415

    calls: list[dict[str, Any]] = []

    def state_hash(op: Operation, payload: dict[str, Any]) -> str:
        del op
        return Account(directory, payload["account"]).hash

    def found(op: Operation) -> ProbeAnswer:
        assert op.first is not None
        payload = json.loads(op.first.arguments or b"{}")["payload"]
        if Account(directory, payload["account"]).moves(f"undo:{op.idempotency_key}"):
            return ProbeAnswer(Outcome.COMMITTED, result={"found": True}, evidence="it is in the journal")
        return ProbeAnswer(Outcome.ABSENT, voided=True, evidence="it is not in the journal, and the key is void")

    @ledger.compensator(action, state_hash=state_hash, probe=found if probe else None)
    def recharge(
        op: Operation, payload: dict[str, Any], idempotency_key: str, expected_state_hash: str
    ) -> dict[str, Any]:
        calls.append({"op_id": op.op_id, "payload": payload, "key": idempotency_key, "expected": expected_state_hash})
        at("before inverse")
        Account(directory, payload["account"]).move(-payload["cents"], f"undo:{idempotency_key}")
        at("after inverse")
        return {"pid": os.getpid()}

    return calls
