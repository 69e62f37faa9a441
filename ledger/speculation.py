"""What speculation costs: forks, prunes, and what pruned branches left behind, by fan-out. Pure.

The fan-out of a branch is the number of branches that were forked from the same checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .lineage import Agent
from .prune_verdicts import PruneVerdict


@dataclass(frozen=True, slots=True)
class Fork:
    """One forked branch; `verdict` is what its pruning came to, None while it stands."""

    fan_out: int
    verdict: PruneVerdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRow:
    """The branches of one fan-out, or of all of them (then `fan_out` is 0).

    Attributes:
        committed: effects that pruned branches had committed, and what became of them: `adopted`,
            `compensated`, `to_compensate` (being undone included), `orphans`.
        undecided: effects of pruned branches of which nobody knows yet whether they happened.
    """

    fan_out: int
    forks: int
    pruned: int
    committed: int = 0
    adopted: int = 0
    compensated: int = 0
    to_compensate: int = 0
    orphans: int = 0
    violations: int = 0
    undecided: int = 0

    @property
    def prune_rate(self) -> float:
        """The share of branches that were pruned, from 0 to 1."""
        return self.pruned / self.forks if self.forks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "fan_out": self.fan_out, "forks": self.forks, "pruned": self.pruned,
            "prune_rate": round(self.prune_rate, 4), "committed": self.committed, "adopted": self.adopted,
            "compensated": self.compensated, "to_compensate": self.to_compensate, "orphans": self.orphans,
            "violations": self.violations, "undecided": self.undecided,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport:
    """What speculation left behind: a row a fan-out, smallest first, and the total."""

    agent_id: str
    rows: tuple[SpeculationRow, ...]
    total: SpeculationRow

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with a stable schema."""
        return {
            "schema": "fencepost.speculation.v1",
            "agent_id": self.agent_id,
            "rows": [row.to_dict() for row in self.rows],
            "total": self.total.to_dict(),
        }


def forks_of(agent: Agent, verdicts: Iterable[PruneVerdict]) -> list[Fork]:
    """An agent's forked branches, each with its fan-out and the verdict on its pruning."""
    by_branch = {verdict.branch_id: verdict for verdict in verdicts}
    forked = [branch for branch in agent.branches.values() if branch.begun and branch.forked is not None]
    siblings = Counter(branch.fork_checkpoint for branch in forked)
    return [Fork(siblings[branch.fork_checkpoint], by_branch.get(branch.branch_id)) for branch in forked]


def summarise(forks: Sequence[Fork], agent_id: str = "") -> SpeculationReport:
    """The report on these branches."""
    rows = [_row(n, [f for f in forks if f.fan_out == n]) for n in sorted({f.fan_out for f in forks})]
    return SpeculationReport(agent_id=agent_id, rows=tuple(rows), total=_row(0, forks))


def _row(fan_out: int, forks: Sequence[Fork]) -> SpeculationRow:
    pruned = [fork.verdict for fork in forks if fork.verdict is not None]
    undone = sum(effect.status == "compensating" for verdict in pruned for effect in verdict.undecided)
    return SpeculationRow(
        fan_out=fan_out,
        forks=len(forks),
        pruned=len(pruned),
        committed=sum(verdict.committed for verdict in pruned),
        adopted=sum(len(verdict.adopted) for verdict in pruned),
        compensated=sum(len(verdict.compensated) for verdict in pruned),
        to_compensate=sum(len(verdict.undoable) for verdict in pruned) + undone,
        orphans=sum(len(verdict.orphans) for verdict in pruned),
        violations=sum(len(verdict.violations) for verdict in pruned),
        undecided=sum(len(verdict.undecided) for verdict in pruned) - undone,
    )
