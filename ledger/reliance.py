"""Who still relies on a committed effect that another branch made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .facts import EffectFact
from .lineage import Agent
from .operations import Operation
from .plans import who
from .positions import Position
from .watermarks import Point

Branches = frozenset[tuple[str, str]]
"""(agent_id, branch_id) of branches."""


def left_behind(agent: Agent, operation: Operation, *, elsewhere: Branches = frozenset()) -> Branches:
    """The branches that adopted the effect and do not stand any more, so that it need not stand for them.

    Of this agent those that were pruned, that descend from what was abandoned, or that went back
    over it; of other agents those `elsewhere`, which were pruned there.
    """
    adopters = [a.fact for a in operation.adoptions if not a.fact.by]
    standing = {_branch(fact) for fact in adopters if _stands(agent, fact, elsewhere)}
    return frozenset({_branch(fact) for fact in adopters} - standing)


def relied_on_by(
    agent: Agent,
    operation: Operation,
    *,
    paths: Mapping[str, Mapping[Position, int]],
    absorbed: Mapping[tuple[str, int], Sequence[Point]],
    beside: str,
    elsewhere: Branches = frozenset(),
) -> tuple[str, ...]:
    """For whom the effect stands, as of now: branches ("agent/branch") and operators.

    Args:
        paths: of the agent's branches that stand, as `standing_paths` gives them.
        absorbed: (op_id, round) → the places where sessions of the agent absorbed it.
        beside: the branch that made it; what its own sessions do with it does not count.
    """
    gone = left_behind(agent, operation, elsewhere=elsewhere) | {(agent.agent_id, beside)}
    names = [
        a.fact.by or who(*_branch(a.fact)) for a in operation.adoptions if a.fact.by or _branch(a.fact) not in gone
    ]
    for place in absorbed.get((operation.op_id, operation.round), ()):
        branch_id = agent.branch_of(place)
        if branch_id != beside and agent.stands(branch_id, place):
            names.append(who(agent.agent_id, branch_id))
    names += [who(agent.agent_id, name) for name in _that_know(agent, operation, paths) if name != beside]
    return tuple(dict.fromkeys(names))


def _branch(fact: EffectFact) -> tuple[str, str]:
    return fact.agent_id, fact.branch_id


def _stands(agent: Agent, adoption: EffectFact, elsewhere: Branches) -> bool:
    if adoption.agent_id != agent.agent_id:
        return _branch(adoption) not in elsewhere
    return agent.stands(adoption.branch_id, Point(adoption.epoch, adoption.seq))


def standing_paths(agent: Agent) -> dict[str, dict[Position, int]]:
    """What each branch that stands knows: branch → epoch → highest sequence number."""
    return {
        name: agent.path(agent.head_point(branch)) for name, branch in agent.branches.items() if not branch.forbidden
    }


def _that_know(agent: Agent, operation: Operation, paths: Mapping[str, Mapping[Position, int]]) -> Iterable[str]:
    """Branches that have the effect on their path: they were forked after it, or resumed from there."""
    settled = operation.settled
    if settled is None or settled.agent_id != agent.agent_id:
        return
    for name, path in paths.items():
        if agent.knows(path, settled.epoch, settled.seq):
            yield name
