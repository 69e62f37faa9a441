"""Settling what is in doubt: a probe asks the world, and the parked agents go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .demo_runs import HAND_OVER, WRITES
from .demo_text import Printer
from .demo_world import World
from .errors import NotFoundError
from .facade import Ledger
from .facts import Outcome
from .operations import Operation
from .resolutions import OpenOperation, ProbeAnswer


@dataclass(slots=True)
class Settled:
    """How many operations a probe settled, and how; the rest waits for an operator."""

    committed: int = 0
    absent: int = 0
    left: int = 0


def register_probes(ledger: Ledger, world: World) -> None:
    """For each tool that can be asked. Nobody can ask whether a hand-over was heard: it has none."""
    for tool in WRITES - {HAND_OVER}:
        ledger.probe(tool)(_asking(world))


def _asking(world: World) -> Callable[[Operation], ProbeAnswer]:
    def ask(operation: Operation) -> ProbeAnswer:
        hit = world.find(operation.idempotency_key)
        if hit is not None:
            return ProbeAnswer(Outcome.COMMITTED, result=hit.result, evidence="found in the world")
        # A killed process is reaped before its successor starts, and appending is all that a call
        # does: no call under this key is under way any more. That is what `voided` asserts.
        return ProbeAnswer(Outcome.ABSENT, evidence="not in the world, and its process is gone", voided=True)

    return ask


def settle(ledger: Ledger, items: list[OpenOperation], say: Printer) -> Settled:
    """Ask the probe about each operation in doubt, and tell what it found."""
    settled = Settled()
    for item in items:
        operation = item.operation
        name = f"{operation.tool} of {item.agent_id}/{item.branch_id}"
        try:
            answer, after = ledger.run_probe(operation.op_id, by="demo probe")
        except NotFoundError:
            settled.left += 1
            say.item(f"{name}: its tool has no probe; stays in doubt for an operator")
            continue
        if answer.outcome is Outcome.COMMITTED:
            settled.committed += 1
        elif answer.outcome is Outcome.ABSENT:
            settled.absent += 1
        else:
            settled.left += 1
        say.item(f"{name}: {answer.outcome.value}, {answer.evidence}; now {after.status.value}")
    return settled
