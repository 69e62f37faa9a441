"""Evidence about a pruned branch in few words: main, and branches a (pruned), b, and c that were forked from it."""

from __future__ import annotations

from typing import Any

from unit.ledger.kit import LEDGER_ID, OP, agent_fact, at, committed, effect, forked, intended, opened, token

from fencepost.ledger.facts import AgentFact, EffectFact
from fencepost.ledger.guard import SeenOperation
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.manifests import CompensatingAction, action_key, path
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.positions import Position
from fencepost.ledger.prune_verdicts import PruneVerdict
from fencepost.ledger.prunes import PruneEvidence, by_branch, examine
from fencepost.ledger.reliance import standing_paths


def pruned(branch_id: str = "a", prune_id: str = "p", **values: Any) -> AgentFact:
    return agent_fact("PRUNED", branch_id=branch_id, rollback_id=prune_id, **values)


def prune_decided(branch_id: str = "a", prune_id: str = "p", **values: Any) -> AgentFact:
    return agent_fact("PRUNE_DECIDED", branch_id=branch_id, rollback_id=prune_id, verdict="CLEARED", **values)


A, B, MAIN = 3, 4, 0
"""Epochs: the offsets at which the sessions of `a`, `b`, and main are opened."""
LIFE = (
    opened("s1"),
    forked("a", token(0, 2), checkpoint_id="c"),
    forked("b", token(0, 2), checkpoint_id="c"),
    opened("sa", token(0, 2, branch="a"), branch_id="a", segment="0.1"),
    opened("sb", token(0, 2, branch="b"), branch_id="b", segment="0.2"),
)
"""main at 0, forks at 1 and 2, a's session at 3, b's at 4."""


def by(branch: str, fact_of: Any, attempt: str, seq: int, **values: Any) -> EffectFact:
    """A fact that the session of a branch wrote."""
    epoch = {"a": A, "b": B, "main": MAIN}[branch]
    fact: EffectFact = fact_of(attempt, epoch=Position(0, epoch), seq=seq, branch_id=branch, **values)
    return fact


def adopted(branch: str, seq: int = 9, **values: Any) -> EffectFact:
    epoch = Position(0, {"a": A, "b": B, "main": MAIN}.get(branch, 0))
    return effect("ADOPTED", f"adopt-{branch}", branch_id=branch, **{"epoch": epoch, "seq": seq, **values})


def sealed(op_id: str = OP, *, irreversible: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The fields of a COMMITTED fact that carries its manifest."""
    action = CompensatingAction(name="undo", payload={"id": 1}, idempotency_key=action_key(op_id, 1), **more)
    manifest = path(
        op_id=op_id, round_number=1, tool="bank.pay", pre_state_hash="before", action=action, irreversible=irreversible
    ).seal(post_state_hash="after")
    return {"manifest": manifest.data, "manifest_digest": manifest.digest}


def done(seq: int = 5, *, branch: str = "a", op_id: str = OP, **values: Any) -> list[EffectFact]:
    """An effect that a branch committed."""
    commit = {name: values.pop(name) for name in ("manifest", "manifest_digest") if name in values}
    return [
        by(branch, intended, f"{branch}1", seq - 1, op_id=op_id, **values),
        by(branch, committed, f"{branch}1", seq, op_id=op_id, **values, **commit),
    ]


def seen(*facts: EffectFact, unsafe: str = "", owner_ended: bool = True) -> SeenOperation:
    """The operation that these facts tell of, whose owner is fenced."""
    return SeenOperation(fold_operation(facts[0].op_id, at(*facts)), unsafe, owner_ended)


def examined(
    *operations: SeenOperation, life: tuple[AgentFact, ...] = LIFE, more: tuple[AgentFact, ...] = (), **values: Any
) -> PruneVerdict:
    """The verdict on branch a, pruned after `life` and before `more`."""
    agent = fold_agent("agent", at(*life, pruned("a"), *more))
    relevant = by_branch("agent", operations, ["a"])["a"]
    return examine(PruneEvidence(LEDGER_ID, agent, agent.branches["a"], standing_paths(agent), relevant, **values))


def fates(verdict: PruneVerdict) -> list[str]:
    """The fields of the verdict that hold something."""
    names = ("free", "adopted", "compensated", "undoable", "orphans", "undecided", "violations")
    return [name for name in names if getattr(verdict, name)]
