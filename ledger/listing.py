"""Operations in the order of their names, a page at a time: a ledger may hold more of them than memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from . import projection as docs
from .argument_checks import check_count, check_text
from .engine import Engine
from .errors import InvalidArgumentError
from .identity import check_id
from .operations import Status
from .positions import Partition, Topic
from .view import OperationView

CHUNK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which operations are asked for.

    Attributes:
        agent_id: attempted by this agent; by any when empty.
        status: a `Status` by its value, what is known of the owner included; any when empty.
        after: only those whose op_id comes behind it.
        limit: at most so many; None for all.
    """

    agent_id: str = ""
    tool: str = ""
    status: str = ""
    after: str = ""
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("agent", self.agent_id), ("tool", self.tool), ("after", self.after)):
            check_text(name, value)
        if self.status and self.status not in set(Status):
            raise InvalidArgumentError(
                f"status: {self.status!r} is none.",
                next_step=f"Choose one of: {', '.join(Status)}.",
                field="status",
            )
        if self.limit is not None:
            check_count("limit", self.limit)

    def has(self, view: OperationView) -> bool:
        """Whether this operation is asked for."""
        return self.tool in {"", view.operation.tool} and self.status in {"", standing(view).value}


def check_agent(agent_id: str | None) -> str | None:
    """An agent's id, None for any agent. Raises InvalidArgumentError for a blank one, which is not any agent."""
    return None if agent_id is None else check_id("agent", agent_id, limit=200)


def standing(view: OperationView) -> Status:
    """Where an operation stands, the projection's knowledge of its key and of its owner included."""
    if view.seen.unsafe:
        return Status.UNSAFE
    if view.operation.status is Status.OWNED and view.seen.owner_ended:
        return Status.IN_DOUBT
    return view.operation.status


async def names(engine: Engine, wanted: Wanted) -> list[str]:
    """The op_ids that may be asked for, in order; of the operations nothing but the name is kept."""
    partitions = engine.view.partitions(Topic.EFFECTS)
    parts = await asyncio.gather(*(_names(engine, partition, wanted.agent_id) for partition in partitions))
    return sorted(name for part in parts for name in part if name > wanted.after)


async def _names(engine: Engine, partition: Partition, agent_id: str) -> set[str]:
    if agent_id:
        snapshot = await engine.view.scan(partition, docs.agent_ops(agent_id))
        return {key for _, key in snapshot.documents}
    found: set[str] = set()
    cursor = ""
    while True:
        snapshot, cursor = await engine.view.page(partition, docs.OPS, cursor=cursor, count=CHUNK)
        found |= {key for _, key in snapshot.documents}
        if not cursor:
            return found


async def named(engine: Engine, op_ids: Iterable[str], wanted: Wanted) -> list[OperationView]:
    """Those of these operations that are asked for, in the order of their names."""
    by_partition: dict[Partition, list[str]] = {}
    for op_id in op_ids:
        by_partition.setdefault(engine.view.effects_partition(op_id), []).append(op_id)
    parts = await asyncio.gather(*(engine.view.operations(p, ids) for p, ids in by_partition.items()))
    found = [view for part in parts for view in part if wanted.has(view)]
    return sorted(found, key=lambda view: view.operation.op_id)


def batched(op_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names in stretches that are read at once."""
    for start in range(0, len(op_ids), CHUNK):
        yield op_ids[start : start + CHUNK]


async def pages(engine: Engine, wanted: Wanted) -> AsyncIterator[list[OperationView]]:
    """What is asked for, in order, in pages; the limit ends them."""
    left = wanted.limit
    op_ids = await names(engine, wanted)
    for chunk in batched(op_ids):
        found = await named(engine, chunk, wanted)
        yield found if left is None else found[:left]
        if left is not None and (left := left - len(found)) <= 0:
            return
