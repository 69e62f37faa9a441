"""Evidence for the guard in few words: an agent with a sibling branch, and what its sessions did."""

from __future__ import annotations

from typing import Any

import pytest
from unit.ledger.kit import LEDGER_ID, at, committed, fold, forked, intended, opened, token

from fencepost.ledger.facts import AgentFact, EffectClass, EffectFact
from fencepost.ledger.guard import Evidence, SeenOperation
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind, Verdict
from fencepost.ledger.watermarks import Watermark

LIFE = (opened("s1"), forked("b", token(0, 2)), opened("f1", token(0, 2, branch="b"), branch_id="b", segment="0.1"))
HARMFUL = [EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE, EffectClass.UNKNOWN, EffectClass.IDEMPOTENT]
BOTH = pytest.mark.parametrize("policy", list(Policy))


def evidence(*operations: SeenOperation, seq: int = 5, life: tuple[AgentFact, ...] = LIFE, **values: Any) -> Evidence:
    """The agent goes back to a checkpoint at number `seq` of its first session."""
    usual: dict[str, Any] = {
        "mark": Watermark(LEDGER_ID, "agent", "main", Position(0, 0), seq),
        "written": {Position(0, 0): 50, Position(0, 2): 50},
        "operations": operations,
    }
    return Evidence(LEDGER_ID, fold_agent("agent", at(*life)), "main", "c", **{**usual, **values})


def seen(*facts: EffectFact, unsafe: str = "", owner_ended: bool = False) -> SeenOperation:
    return SeenOperation(fold(*facts), unsafe, owner_ended)


def here(fact_of: Any, attempt: str, seq: int, epoch: int = 0, **values: Any) -> EffectFact:
    """A fact that a session of the agent wrote with this number."""
    fact: EffectFact = fact_of(attempt, epoch=Position(0, epoch), seq=seq, **values)
    return fact


def done(seq: int, **values: Any) -> SeenOperation:
    return seen(here(intended, "a", seq - 1, **values), here(committed, "a", seq, **values))


def kinds(verdict: Verdict) -> set[ReasonKind]:
    return {reason.kind for reason in verdict.reasons}


def beyond(effect_class: EffectClass) -> ReasonKind:
    """The reason that names a settled effect of this class which the checkpoint does not know."""
    if effect_class is EffectClass.IDEMPOTENT:
        return ReasonKind.EFFECT_ORDER_DEPENDENT
    return ReasonKind.EFFECT_NOT_KNOWN
