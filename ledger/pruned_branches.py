"""Verdicts on pruned branches, as things are applied now: what they left behind, and what is still open.

Nothing is written here, and nobody is fenced. What a prune tells is more than what its own branch did: an
effect of a branch that was pruned before may have stood for nobody else (`left_behind`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from . import speculation
from .engine import Engine
from .facts import AgentFact
from .gathering import those_of_the_ledger
from .guard import SeenOperation
from .lineage import Agent, Branch
from .prune_verdicts import OpenObligation, PruneVerdict, open_obligations
from .prunes import PruneEvidence, by_branch, examine
from .reliance import Branches, Witness, standing_paths
from .view import AgentView
from .watermarks import Point
from .witnesses import witnesses_elsewhere

_AT_ONCE = 10
"""How many other agents' logs are read side by side."""


@dataclass(frozen=True, slots=True)
class _Life:
    """What an agent did, absorbed, and reported."""

    agent: Agent
    operations: Sequence[SeenOperation]
    absorbed: Mapping[tuple[str, int], Sequence[Point]]
    calls: Sequence[AgentFact]


async def _life(engine: Engine, agent: Agent) -> _Life:
    operations, absorbed, calls = await asyncio.gather(
        engine.view.agent_operations(agent.agent_id),
        engine.view.absorbed(agent.agent_id),
        engine.view.calls(agent.agent_id),
    )
    return _Life(agent, [o.seen for o in operations], absorbed, calls)


async def left_behind(engine: Engine, view: AgentView, branch: Branch) -> PruneVerdict:
    """The verdict on a branch that is pruned, or would be: for it, the branch does not stand any more.

    Told are what it did itself; what it was the last to rely on, of branches that were pruned before, of this agent
    or of another; and what is open of branches that were pruned from the same checkpoint.
    """
    agent, place = view.agent, (view.agent.agent_id, branch.branch_id)
    life = await _life(engine, agent)
    relied = await _relied_on(engine, life, branch)
    others = [b for b in agent.branches.values() if b.pruned and b.branch_id != branch.branch_id]
    siblings = {b.branch_id for b in others if b.fork_checkpoint == branch.fork_checkpoint}
    wanted = [b for b in others if b.branch_id in siblings or (agent.agent_id, b.branch_id) in relied]
    leaving = frozenset({place})
    verdict, *beside = await _verdicts(engine, life, [branch, *wanted], leaving=leaving)
    open_ = obligations_of(agent, beside)
    elsewhere = sorted({agent_id for agent_id, _ in relied} - {agent.agent_id})
    for start in range(0, len(elsewhere), _AT_ONCE):
        some = elsewhere[start : start + _AT_ONCE]
        found = await asyncio.gather(*(_open_of_another(engine, name, relied, leaving=leaving) for name in some))
        open_ += [obligation for one in found for obligation in one]
    return verdict.with_others(
        completed=[o for o in open_ if o.op_id in relied.get((o.agent_id, o.branch_id), ())],
        siblings=[o for o in open_ if o.agent_id == agent.agent_id and o.branch_id in siblings],
    )


async def _relied_on(engine: Engine, life: _Life, branch: Branch) -> dict[tuple[str, str], set[str]]:
    """(agent_id, branch_id) → the effects of that branch on which this one relies, or did until it was pruned."""
    agent = life.agent
    path = agent.path(agent.head_point(branch))
    mine = {seen.operation.op_id for seen in life.operations}
    told = {name for (name, _), places in life.absorbed.items() if any(agent.knows(path, *place) for place in places)}
    taken_over = await those_of_the_ledger(engine, sorted(told - mine))
    knows = Witness(agent, {branch.branch_id: path}, life.absorbed)
    found: dict[tuple[str, str], set[str]] = {}
    for seen in (*life.operations, *taken_over.values()):
        operation, place = seen.operation, seen.operation.done_by_branch
        if operation.stands and place != (agent.agent_id, branch.branch_id) and knows.relying(operation):
            found.setdefault(place, set()).add(operation.op_id)
    return found


async def _open_of_another(
    engine: Engine, agent_id: str, relied: Collection[tuple[str, str]], *, leaving: Branches
) -> list[OpenObligation]:
    """What is open of those pruned branches of another agent."""
    agent = (await engine.view.agent(agent_id)).agent
    branches = [b for b in agent.branches.values() if b.pruned and (agent_id, b.branch_id) in relied]
    if not branches:
        return []
    return obligations_of(agent, await _verdicts(engine, await _life(engine, agent), branches, leaving=leaving))


async def _verdicts(
    engine: Engine, life: _Life, branches: Sequence[Branch], *, leaving: Branches = frozenset()
) -> list[PruneVerdict]:
    """The verdict on each of these branches of an agent, as if those that are leaving did not stand."""
    agent = life.agent
    others = await witnesses_elsewhere(engine, agent.agent_id, [seen.operation for seen in life.operations])
    relevant = by_branch(agent.agent_id, life.operations, [branch.branch_id for branch in branches])
    paths = standing_paths(agent)
    return [
        examine(
            PruneEvidence(
                engine.ledger_id,
                agent,
                branch,
                paths,
                operations=relevant[branch.branch_id],
                absorbed=life.absorbed,
                calls=life.calls,
                others=others,
                leaving=leaving,
            )
        )
        for branch in branches
    ]


# -- what is open, and what speculation costs ------------------------------------------------


async def _pruned(engine: Engine, view: AgentView) -> list[PruneVerdict]:
    """The verdict on every pruned branch of an agent."""
    branches = [b for b in view.agent.branches.values() if b.pruned]
    return await _verdicts(engine, await _life(engine, view.agent), branches) if branches else []


async def obligations(engine: Engine, agent_id: str | None = None) -> list[OpenObligation]:
    """Open obligations of pruned branches, of one agent or of all, oldest first. Raises NotFoundError."""
    found: list[OpenObligation] = []
    for view in await _views(engine, agent_id):
        found += obligations_of(view.agent, await _pruned(engine, view))
    return sorted(found, key=lambda o: (o.since_ms, o.agent_id, o.branch_id, o.op_id))


def obligations_of(agent: Agent, verdicts: Iterable[PruneVerdict]) -> list[OpenObligation]:
    """The open obligations of an agent's pruned branches, given the verdicts on them."""
    found: list[OpenObligation] = []
    for verdict in verdicts:
        request = agent.branches[verdict.branch_id].pruned
        if request is not None:
            found += open_obligations(verdict, request.fact, decided=bool(request.decisions))
    return found


async def report(engine: Engine, agent_id: str | None = None) -> speculation.SpeculationReport:
    """What speculation left behind, by fan-out and prune rate. Raises NotFoundError."""
    parts: list[speculation.Fork] = []
    for view in await _views(engine, agent_id):
        parts += speculation.forks_of(view.agent, await _pruned(engine, view))
    return speculation.summarise(parts, agent_id or "")


async def _views(engine: Engine, agent_id: str | None) -> list[AgentView]:
    if agent_id is not None:
        return [await engine.view.known_agent(agent_id)]
    return [await engine.view.agent(name) for name in await engine.view.agents()]
