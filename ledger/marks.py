"""Marks: the facts that stand in a history for records that could not be taken (decisions 0008 and 0015).

They are of no known kind, so that whatever has one is unsafe, and their bytes are the same
whoever writes them.
"""

from __future__ import annotations

from functools import lru_cache

from . import log_keys
from .facts import AgentFact, AgentKind, EffectFact, EffectKind, encode_agent, encode_effect
from .positions import Topic

TOO_LARGE = "the key's history is too large"
NO_ROOM = "no room for a verdict"
"""How the problem of a record begins whose key's history took no more: that depends on what else is in it."""
_SET_ASIDE = "the record at this position was set aside"


def set_aside_mark(op_id: str) -> bytes:
    """The mark in an operation's history."""
    return encode_effect(EffectFact(kind=EffectKind.UNKNOWN, op_id=op_id, reason=_SET_ASIDE))


def set_aside_agent_mark(agent_id: str) -> bytes:
    """The mark in the history of an agent's key."""
    return encode_agent(AgentFact(kind=AgentKind.UNKNOWN, agent_id=agent_id, evidence=_SET_ASIDE))


@lru_cache(maxsize=4096)  # asked for with every key that is read
def mark_of(topic: Topic, key: str) -> bytes | None:
    """The mark that the history of a log key gets; None for keys that get none.

    A fence is judged by those that can be read. The ledger's own key says by its last fact which topics these are.
    """
    if topic is Topic.EFFECTS:
        return set_aside_mark(key) if log_keys.is_operation(key) else None
    owner = log_keys.agent_of(key)
    return set_aside_agent_mark(owner[1]) if owner else None
