"""What the documents of a partition's projection are called. The names that come with every fact are remembered."""

from __future__ import annotations

from functools import lru_cache

from . import log_keys
from .losers import Number
from .ports import DocumentKey
from .positions import Position, Topic
from .seq_bits import SEQ_CHUNK

LAYOUT = 2
"""Of the documents: raised whenever they are named or made differently, so that a projection of another
layout is not there, and is derived anew. (1: sequence numbers by session id.)"""
OPS = "ops"
OPEN = "open"
FENCES = "fences"
DEBTS = "debts"
UNJUDGED = "unjudged"
UNSAFE = "unsafe"
SET_ASIDE = "set-aside"
AGENTS = "agents"
LEDGER = "ledger"


@lru_cache(maxsize=1024)
def agent_ops(agent_id: str) -> str:
    """Collection: op_ids that this agent has attempted, in one effects partition."""
    return f"agent-ops/{agent_id}"


def agent_documents(family: str, agent_id: str) -> str:
    """Collection of an agent's keys: structure, checkpoints with compactions, absorbed, calls, or plans."""
    return f"{_AGENT_COLLECTIONS.get(family, 'agent')}/{agent_id}"


_AGENT_COLLECTIONS = {
    "checkpoint": "checkpoints", "compaction": "checkpoints", "absorbed": "absorbed", "call": "calls", "plan": "plans",
}  # fmt: skip


def seqs(agent_id: str, epoch: Position) -> str:
    """Collection: bitmaps of the sequence numbers seen of the session of this agent and epoch."""
    return f"seqs/{agent_id}/{epoch}"


def seq_document(number: Number) -> DocumentKey:
    """Where it is kept that a fact with this number was seen."""
    return session_document(number.agent_id, number.epoch, number.seq // SEQ_CHUNK)


@lru_cache(maxsize=1024)
def session_document(agent_id: str, epoch: Position, chunk: int) -> DocumentKey:
    """Where the sequence numbers of one chunk of a session are kept."""
    return DocumentKey(seqs(agent_id, epoch), str(chunk))


@lru_cache(maxsize=1024)
def fence_document(agent_id: str, branch_id: str) -> DocumentKey:
    """Where the fence of a branch is kept in an effects partition."""
    return DocumentKey(FENCES, f"{agent_id}\x1f{branch_id}")


def document_of(topic: Topic, key: str) -> DocumentKey | None:
    """Where the history of a log key is kept; None for keys that have none (horizons)."""
    if topic is Topic.EFFECTS and log_keys.is_operation(key):
        return DocumentKey(OPS, key)
    if log_keys.is_horizon(key):
        return None
    if topic is Topic.EFFECTS:
        fence = log_keys.fence_of(key)
        return fence_document(*fence) if fence else None
    if key == log_keys.LEDGER:
        return DocumentKey(LEDGER, key)
    owner = log_keys.agent_of(key)
    return DocumentKey(agent_documents(*owner), key) if owner else None
