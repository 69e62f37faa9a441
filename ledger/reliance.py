"""Who relies on a committed effect, so that it must stand for them. Pure.

One rule for all who ask: prunes, rollbacks, and plans of compensations. A branch relies on an effect iff
it stands and its path knows a place where the effect was settled, adopted, or absorbed: it was told that
it happened, or was forked or resumed from where somebody had been told. A branch that went back over
that place does not rely on it any more, nor does one that was pruned or abandoned. What an operator
adopted by name stands until an operator releases it.

The branch that made the effect is never counted, nor are branches that go away with what asks. Of
another agent whose log is not at hand each adoption counts as it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .facts import EffectFact, EffectKind
from .lineage import Agent
from .operations import Operation
from .plans import Step, step_of, who
from .positions import Position
from .watermarks import Point

Branches = frozenset[tuple[str, str]]
"""(agent_id, branch_id) of branches."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What one agent's log tells of who relies on effects.

    Attributes:
        paths: what each branch that stands knows; see `standing_paths`.
        absorbed: (op_id, round) → the places (epoch, seq) where sessions of the agent absorbed it.
    """

    agent: Agent
    paths: Mapping[str, Mapping[Position, int]]
    absorbed: Mapping[tuple[str, int], Sequence[Point]] = field(default_factory=dict)

    @staticmethod
    def of(agent: Agent, absorbed: Mapping[tuple[str, int], Sequence[Point]] | None = None) -> Witness:
        """The witness of an agent as it stands."""
        return Witness(agent, standing_paths(agent), absorbed or {})

    def relying(self, operation: Operation) -> list[str]:
        """The agent's branches that stand and rely on the effect, the one that made it among them."""
        places = [*self._places(operation), *self.absorbed.get((operation.op_id, operation.round), ())]
        unplaced = {fact.branch_id for fact in self._adoptions(operation) if not self._placed(fact)}
        return [
            name
            for name, path in self.paths.items()
            if name in unplaced or any(self.agent.knows(path, *place) for place in places)
        ]

    def _places(self, operation: Operation) -> list[Point]:
        """Where sessions of the agent settled or adopted it, as its own history tells."""
        told = [fact for fact in self._adoptions(operation) if self._placed(fact)]
        if operation.settled is not None and operation.settled.agent_id == self.agent.agent_id:
            told.append(operation.settled)
        outcome = operation.owner.outcome if operation.owner else None  # beside an operator's word it is not `settled`
        if outcome is not None and outcome.kind is EffectKind.COMMITTED and outcome.agent_id == self.agent.agent_id:
            told.append(outcome)
        return [Point(fact.epoch, fact.seq) for fact in told]

    def _adoptions(self, operation: Operation) -> list[EffectFact]:
        return [a.fact for a in operation.adoptions if a.fact.agent_id == self.agent.agent_id and not a.fact.by]

    def _placed(self, adoption: EffectFact) -> bool:
        """Whether the log tells which session adopted it; without that it counts for as long as its branch stands."""
        return self.agent.branch_of(Point(adoption.epoch, adoption.seq)) == adoption.branch_id


def standing_paths(agent: Agent) -> dict[str, dict[Position, int]]:
    """What each branch that stands knows: branch → epoch → highest sequence number."""
    return {
        name: agent.path(agent.head_point(branch)) for name, branch in agent.branches.items() if not branch.forbidden
    }


def relied_on_by(
    operation: Operation, witnesses: Iterable[Witness], *, leaving: Branches = frozenset()
) -> tuple[str, ...]:
    """For whom the effect stands, as of now: operators and branches ("agent/branch"). See the module.

    Args:
        witnesses: of the agent that made it, and of those of the other adopters whose log is at hand.
        leaving: branches that go away with what asks.
    """
    at_hand = {witness.agent.agent_id: witness for witness in witnesses}
    gone = leaving | {operation.done_by_branch}
    operators = [a.fact.by for a in operation.adoptions if a.fact.by]
    written = [(a.fact.agent_id, a.fact.branch_id) for a in operation.adoptions if not a.fact.by]
    branches = [place for place in written if place[0] not in at_hand]
    branches += [(agent_id, name) for agent_id, witness in at_hand.items() for name in witness.relying(operation)]
    return tuple(dict.fromkeys([*operators, *(who(*place) for place in branches if place not in gone)]))


def step_now(operation: Operation, witnesses: Iterable[Witness], *, leaving: Branches = frozenset()) -> Step:
    """How an effect is undone, as things stand.

    Args:
        witnesses, leaving: as in `relied_on_by`.

    Raises ManifestError, as `plans.step_of`; also if somebody relies on the effect.
    """
    return step_of(operation, relying=relied_on_by(operation, witnesses, leaving=leaving))
