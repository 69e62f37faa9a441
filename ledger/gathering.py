"""Reading what a decision about a checkpoint rests on: the guard's, and whether a restored agent may resume."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .engine import Engine
from .facts import AgentFact
from .guard import Evidence, SeenOperation
from .listing import CHUNK
from .positions import Partition, Position
from .view import AgentView
from .watermarks import Point

Calls = Callable[[str], Awaitable[Sequence[AgentFact]]]


async def gather(
    engine: Engine, view: AgentView, checkpoint_id: str, *, branch_id: str = "", calls: Calls | None = None
) -> Evidence:
    """The evidence as it is applied now, without what the caller himself has to say.

    Args:
        branch_id: the branch that goes back; the checkpoint's own when empty.
        calls: of an agent: those that count; by default the reported ones that nobody has acknowledged.
    """
    effects, written = await asyncio.gather(
        _effects(engine, view.agent.agent_id, calls or engine.view.calls), _written(engine, view, checkpoint_id)
    )
    return _evidence(engine, view, checkpoint_id, branch_id=branch_id, effects=effects, written=written)


async def glance(
    engine: Engine, agent_id: str, checkpoint_id: str, *, branch_id: str = ""
) -> tuple[AgentView, Evidence]:
    """The agent and the evidence, read side by side: for who looks only. A decision is made on what stands before its fences."""

    async def known() -> tuple[AgentView, Mapping[Position, int]]:
        view = await engine.view.known_agent(agent_id)
        return view, await _written(engine, view, checkpoint_id)

    (view, written), effects = await asyncio.gather(known(), _effects(engine, agent_id, engine.view.calls))
    return view, _evidence(engine, view, checkpoint_id, branch_id=branch_id, effects=effects, written=written)


@dataclass(frozen=True, slots=True)
class _Effects:
    """What an agent did, and what it took over from others."""

    operations: Mapping[str, SeenOperation]
    absorbed: Mapping[tuple[str, int], Sequence[Point]]
    calls: Sequence[AgentFact]


async def _effects(engine: Engine, agent_id: str, calls: Calls) -> _Effects:
    mine, absorbed, reported = await asyncio.gather(
        engine.view.agent_operations(agent_id), engine.view.absorbed(agent_id), calls(agent_id)
    )
    operations = {one.operation.op_id: one.seen for one in mine}
    taken_over = await those_of_the_ledger(engine, sorted({op_id for op_id, _ in absorbed} - set(operations)))
    return _Effects(operations | taken_over, absorbed, reported)


async def _written(engine: Engine, view: AgentView, checkpoint_id: str) -> Mapping[Position, int]:
    """Epoch of the checkpoint's session → up to where its sequence is complete."""
    registered = view.checkpoints.get(checkpoint_id)
    mark = registered.mark if registered else None
    session = view.agent.by_epoch(mark.epoch) if mark else None
    if mark is None or session is None:
        return {}
    return {mark.epoch: await engine.view.written(session, view.checkpoint_facts)}


def _evidence(
    engine: Engine,
    view: AgentView,
    checkpoint_id: str,
    *,
    branch_id: str,
    effects: _Effects,
    written: Mapping[Position, int],
) -> Evidence:
    registered = view.checkpoints.get(checkpoint_id)
    mark = registered.mark if registered else None
    return Evidence(
        engine.ledger_id,
        view.agent,
        branch_id or (registered.branch_id if registered else "main"),
        checkpoint_id,
        mark,
        registered=registered is not None,
        operations=list(effects.operations.values()),
        absorbed=effects.absorbed,
        open_at=view.context.open_at(mark.point, registered) if mark else {},
        calls=effects.calls,
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
