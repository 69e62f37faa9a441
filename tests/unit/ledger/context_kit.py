"""Compactions and contexts in few words."""

from __future__ import annotations

from typing import Any

from unit.ledger.kit import agent_fact, at, checkpointed, token

from fencepost.ledger.contexts import Context, fold_context
from fencepost.ledger.facts import AgentFact
from fencepost.ledger.lineage import fold_agent

STRUCTURE = {"SESSION_OPENED", "SESSION_CLOSED", "FORKED", "PRUNED", "ROLLBACK_REQUESTED", "ROLLBACK_DECIDED"}


def compacted(session_id: str, generation: int, seq: int, mark: str = "", **values: Any) -> AgentFact:
    return agent_fact("COMPACTED", session_id=session_id, generation=generation, seq=seq, watermark=mark, **values)


def marked(name: str, session_id: str, epoch: int, seq: int, generation: int = 0, **values: Any) -> AgentFact:
    """A checkpoint whose watermark stands at (epoch, seq)."""
    return checkpointed(name, session_id, token(epoch, seq), generation=generation, **values)


def context_of(*facts: AgentFact | None) -> Context:
    """The context after these facts at consecutive offsets; the structure is folded from the same log."""
    placed = at(*facts)
    structure = at(*(f if f is not None and f.kind.value in STRUCTURE else None for f in facts))
    return fold_context(fold_agent("agent", structure), placed)
