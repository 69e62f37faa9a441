"""The outside world of the demo: a file to which every executed write appends a line.

Several processes append at once. A line is written by one call on a descriptor that is opened for
appending, and is on the disk before the tool returns: what happened outside does not unhappen
when an agent is killed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class ToolRefused(Exception):  # noqa: N818 (says what is so: nothing was changed)
    """A tool refused a call; the world is as it was."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One executed write.

    Attributes:
        op_id: the logical operation that it carried out.
        branch: agent and branch that asked for it.
        life: how often that agent had been killed and restored before.
        key: the idempotency key that the tool was handed; "" without a ledger.
    """

    op_id: str
    tool: str
    branch: str
    life: int
    result: str
    key: str = ""


class World:
    """The file, for one process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def act(self, hit: Hit) -> None:
        """Change the world: after this call the write has happened, whatever becomes of the caller."""
        append(self.path, asdict(hit), durable=True)

    def hits(self) -> list[Hit]:
        """Every executed write, in the order in which they happened."""
        return [Hit(**values) for values in lines(self.path)]

    def find(self, key: str) -> Hit | None:
        """The write that was executed under an idempotency key, if there is one: what a probe asks."""
        return next((hit for hit in self.hits() if hit.key == key), None)


def append(path: Path, values: dict[str, Any], *, durable: bool = False) -> None:
    """Append one line of JSON; lines of several processes do not mix."""
    line = json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[dict[str, Any]]:
    """What `append` wrote; nothing if the file is not there."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Hits beyond the first of each logical operation, by where they come from.

    Attributes:
        sibling: another branch of the same agent had done it.
        restored: an earlier life of the same branch had done it, and it was forgotten.
        repeated: the recorded run itself asked twice.
        tools: how many of each tool, most first.
    """

    operations: int
    hits: int
    sibling: int
    restored: int
    repeated: int
    tools: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """All hits beyond the first."""
        return self.hits - self.operations


def count_duplicates(hits: Iterable[Hit]) -> Duplicates:
    """The duplicates among these hits; their order does not matter."""
    by_op: dict[str, Counter[tuple[str, int]]] = {}
    tools: Counter[str] = Counter()
    for hit in hits:
        tools[hit.tool] += hit.op_id in by_op
        by_op.setdefault(hit.op_id, Counter())[hit.branch, hit.life] += 1
    sibling = restored = repeated = 0
    for times in by_op.values():
        branches = {branch for branch, _ in times}
        sibling += len(branches) - 1
        restored += len(times) - len(branches)
        repeated += sum(times.values()) - len(times)
    total = sum(sum(times.values()) for times in by_op.values())
    listed = sorted((+tools).items(), key=lambda item: (-item[1], item[0]))
    return Duplicates(len(by_op), total, sibling, restored, repeated, tuple(listed))
