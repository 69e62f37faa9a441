"""Reading the logs that tell who relies on an effect; what follows from them is in `reliance.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .engine import Engine
from .errors import StaleProjectionError
from .lineage import Agent
from .operations import Operation
from .reliance import Witness

MOST_AGENTS = 100
"""How many other agents' logs are read for one answer. An adoption by any further one counts as it was written."""
_AT_ONCE = 10


async def witnesses_of(engine: Engine, agent: Agent, operations: Iterable[Operation]) -> tuple[Witness, ...]:
    """Of an agent, and of the other agents that adopted one of these operations."""
    absorbed, others = await asyncio.gather(
        engine.view.absorbed(agent.agent_id), witnesses_elsewhere(engine, agent.agent_id, operations)
    )
    return (Witness.of(agent, absorbed), *others)


async def witnesses_elsewhere(engine: Engine, agent_id: str, operations: Iterable[Operation]) -> tuple[Witness, ...]:
    """Of the other agents that adopted one of these operations; none of one whose log cannot be believed now."""
    adopters = (a.fact.agent_id for o in operations for a in o.adoptions if not a.fact.by)
    others = [name for name in dict.fromkeys(adopters) if name != agent_id][:MOST_AGENTS]
    found: list[Witness | None] = []
    for start in range(0, len(others), _AT_ONCE):
        found += await asyncio.gather(*(_witness(engine, name) for name in others[start : start + _AT_ONCE]))
    return tuple(witness for witness in found if witness is not None)


async def _witness(engine: Engine, agent_id: str) -> Witness | None:
    try:
        agent = (await engine.view.agent(agent_id)).agent  # before what it absorbed: who comes later looks for himself
        if agent.unsafe or not agent.sessions:
            return None
        return Witness.of(agent, await engine.view.absorbed(agent_id))
    except StaleProjectionError:
        return None
