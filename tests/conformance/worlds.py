"""A test's part of a ledger: names of its own, and an outside world that counts how often it was changed."""

from __future__ import annotations

import itertools
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from conformance.acting import Answer, Worker
from conformance.homes import Home, new_home
from conformance.waiting import PATIENCE_S, answer_when_back, let_time_pass, until

from fencepost.deploy.processes import wait_until
from fencepost.ledger import AgentSession, EffectClass, Ledger, Limits, ReasonKind, Verdict
from fencepost.ledger.operations import Operation, Status

__all__ = [
    "PATIENCE_S",
    "Answer",
    "Home",
    "Worker",
    "World",
    "answer_when_back",
    "charge",
    "let_time_pass",
    "never_suggests_a_retry",
    "new_home",
    "until",
]
_numbers = itertools.count(1)


@dataclass
class World:
    """One test's part of a ledger: names of its own, and the outside world, which is an appended file."""

    home: Home
    ledger: Ledger
    directory: Path
    name: str = field(default_factory=lambda: f"w{next(_numbers)}-{secrets.token_hex(3)}")
    workers: list[Worker] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)

    @property
    def agent(self) -> str:
        return f"agent-{self.name}"

    @property
    def url(self) -> str:
        return self.home.url

    @property
    def hits_file(self) -> Path:
        return self.directory / "hits"

    def key(self, name: str) -> str:
        """A business key that no other test uses."""
        return f"{name}-{self.name}"

    def op_id(self, name: str, tool: str = "billing.charge") -> str:
        return f"{tool}:{self.key(name)}"

    def hit(self, name: str, cents: int = 50) -> dict[str, Any]:
        """What `charge` does to the outside world, done in this process."""
        with self.hits_file.open("a") as file:
            file.write(f"{self.key(name)} {cents}\n")
        return {"order": self.key(name), "cents": cents}

    def hits(self, name: str) -> int:
        """How often the world was changed under this name."""
        if not self.hits_file.exists():
            return 0
        return sum(line.split()[0] == self.key(name) for line in self.hits_file.read_text().splitlines())

    def open(self, **limits: Any) -> Ledger:
        """Another handle on the same ledger, as another process would have it."""
        ledger = Ledger.open(self.url, limits=Limits(**limits))
        self.ledgers.append(ledger)
        return ledger

    def status(self, op_id: str, wanted: Status) -> Operation:
        """The operation, once the projection shows it with this status."""
        until(lambda: self.ledger.operation(op_id).operation.status is wanted)
        return self.ledger.operation(op_id).operation

    def preview(self, checkpoint: str, **options: Any) -> Verdict:
        """A preview, once the outcomes that were written before it are applied."""
        late = {ReasonKind.EFFECT_OWNED, ReasonKind.WATERMARK_AHEAD}
        seen: list[Verdict] = []

        def settled() -> bool:
            seen.append(self.ledger.preview_rollback(self.agent, checkpoint=checkpoint, **options))
            return not any(reason.kind in late for reason in seen[-1].reasons)

        wait_until(settled, 5.0)
        return seen[-1]

    def charge(self, session: AgentSession, name: str, *, cents: int = 50, note: str = "", **options: Any) -> Any:
        """Run the tool `billing.charge` once in this process; its result, own or recorded."""

        @session.effect(
            "billing.charge",
            kind=options.pop("kind", EffectClass.IRREVERSIBLE),
            key=lambda order, **_: order,
            identity=("order", "cents"),
            content=("note",),
            **options,
        )
        def charge(order: str, cents: int, note: str = "") -> dict[str, Any]:
            del order, note
            return self.hit(name, cents)

        return charge(self.key(name), cents, note)

    def worker(self, *steps: dict[str, Any], agent: str = "", branch: str = "main", **options: Any) -> Worker:
        """Start a process that opens a session and takes these steps; see `worker.py`."""
        plan = {
            "url": self.url,
            "agent": agent or self.agent,
            "branch": branch,
            "hits": str(self.hits_file),
            "signals": str(self.directory),
            "steps": [self._named(step) for step in steps],
            **options,
        }
        self.workers.append(Worker(plan, self.directory))
        return self.workers[-1]

    def run(self, *steps: dict[str, Any], agent: str = "", branch: str = "main", **options: Any) -> list[Answer]:
        """The same, to its end."""
        return self.worker(*steps, agent=agent, branch=branch, **options).finish()

    def _named(self, step: dict[str, Any]) -> dict[str, Any]:
        return {**step, "order": self.key(step["order"])} if "order" in step else step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for ledger in self.ledgers:
            ledger.close()


def charge(order: str, cents: int = 50, **more: Any) -> dict[str, Any]:
    """A worker's step: call the tool `billing.charge`; see `worker.py` for what more it takes."""
    return {"do": "charge", "order": order, "cents": cents, **more}


def never_suggests_a_retry(text: str) -> bool:
    """Whether a message keeps from telling the caller to do the same again."""
    return not re.search(r"\bretr(y|ies|ying)\b|\btry(ing)? again\b|\bagain later\b|\bre-?run\b", text, re.IGNORECASE)
