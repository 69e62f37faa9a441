"""Reading what a decision about a checkpoint rests on: the guard's, and whether a restored agent may resume."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from .engine import Engine
from .facts import AgentFact
from .guard import Evidence, SeenOperation
from .listing import CHUNK
from .positions import Partition
from .view import AgentView

Calls = Callable[[str], Awaitable[Sequence[AgentFact]]]


async def gather(
    engine: Engine, view: AgentView, checkpoint_id: str, *, branch_id: str = "", calls: Calls | None = None
) -> Evidence:
    """The evidence as it is applied now, without what the caller himself has to say.

    Args:
        branch_id: the branch that goes back; the checkpoint's own when empty.
        calls: of an agent: those that count; by default the reported ones that nobody has acknowledged.
    """
    agent = view.agent
    registered = view.checkpoints.get(checkpoint_id)
    mark = registered.mark if registered else None
    mine, absorbed, reported = await asyncio.gather(
        engine.view.agent_operations(agent.agent_id),
        engine.view.absorbed(agent.agent_id),
        (calls or engine.view.calls)(agent.agent_id),
    )
    operations = {one.operation.op_id: one.seen for one in mine}
    elsewhere = await those_of_the_ledger(engine, sorted({op_id for op_id, _ in absorbed} - set(operations)))
    written = {}
    if mark and (session := agent.by_epoch(mark.epoch)) is not None:
        written[mark.epoch] = await engine.view.written(session, view.checkpoint_facts)
    return Evidence(
        engine.ledger_id,
        agent,
        branch_id or (registered.branch_id if registered else "main"),
        checkpoint_id,
        mark,
        registered=registered is not None,
        operations=list(operations.values()),
        elsewhere=list(elsewhere.values()),
        absorbed=absorbed,
        open_at=view.context.open_at(mark.point, registered) if mark else {},
        calls=reported,
        written=written,
    )


async def those_of_the_ledger(engine: Engine, references: Iterable[str]) -> dict[str, SeenOperation]:
    """Those of these references that are operations of the ledger, by op_id."""
    names: dict[Partition, list[str]] = {}
    for name in references:
        if not name.startswith("~"):
            names.setdefault(engine.view.effects_partition(name), []).append(name)
    chunks = [(p, some[at : at + CHUNK]) for p, some in names.items() for at in range(0, len(some), CHUNK)]
    parts = await asyncio.gather(*(engine.view.operations(partition, chunk) for partition, chunk in chunks))
    return {one.operation.op_id: one.seen for part in parts for one in part if one.facts or one.seen.unsafe}
