"""The keys under which facts stand in the two topics.

An operation's key in the effects topic is its op_id. Every other key there starts with
``~``, which no op_id may. Keys of the agents topic name the agent first, quoted, so that
the agent can be read back from the key alone.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, unquote

LEDGER = "~ledger"
_FENCE = "~fence/"
_HORIZON = "~horizon/"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def is_operation(key: str) -> bool:
    """Whether an effects key is an operation's."""
    return not key.startswith("~")


def fence(agent_id: str, branch_id: str, partition: int, partition_of: Callable[[str], int]) -> str:
    """A fence key of this branch that the one partitioner puts into `partition`.

    The nonce is the smallest that fits, so every writer finds the same key.
    """
    base = f"{_FENCE}{_quoted(agent_id, branch_id)}/{partition}/"
    for nonce in range(1_000_000):
        key = f"{base}{nonce}"
        if partition_of(key) == partition:
            return key
    raise RuntimeError(f"no fence key found for partition {partition}: is the partitioner constant?")


def fence_of(key: str) -> tuple[str, str] | None:
    """(agent_id, branch_id) of a fence key, or None for any other key."""
    if not key.startswith(_FENCE):
        return None
    match key[len(_FENCE) :].split("/"):
        case [agent_id, branch_id, _, _]:
            return unquote(agent_id), unquote(branch_id)
    return None


def horizon(partition: int, partition_of: Callable[[str], int]) -> str:
    """A key for the marker of a rebuild horizon that falls into `partition`."""
    for nonce in range(1_000_000):
        key = f"{_HORIZON}{partition}/{nonce}"
        if partition_of(key) == partition:
            return key
    raise RuntimeError(f"no horizon key found for partition {partition}")


def is_horizon(key: str) -> bool:
    """Whether this key marks a rebuild horizon."""
    return key.startswith(_HORIZON)


def session(agent_id: str, session_id: str) -> str:
    """The key of one session: its opening and its close."""
    return f"session/{_quoted(agent_id, session_id)}"


def branch(agent_id: str, branch_id: str) -> str:
    """The key of one branch: its fork and its pruning."""
    return f"branch/{_quoted(agent_id, branch_id)}"


def rollback(agent_id: str, rollback_id: str) -> str:
    """The key of one rollback: request, decision, declared divergences."""
    return f"rollback/{_quoted(agent_id, rollback_id)}"


def checkpoint(agent_id: str, checkpoint_id: str) -> str:
    """The key of one checkpoint."""
    return f"checkpoint/{_quoted(agent_id, checkpoint_id)}"


def absorbed(agent_id: str, session_id: str, op_id: str) -> str:
    """The key under which a session notes that it absorbed an operation."""
    return f"absorbed/{_quoted(agent_id, session_id, op_id)}"


def call(agent_id: str, session_id: str, number: int) -> str:
    """The key of a reported call that did not go through the ledger."""
    return f"call/{_quoted(agent_id, session_id)}/{number}"


def compaction(agent_id: str, branch_id: str, session_id: str, generation: int) -> str:
    """The key of one compaction of a branch's context."""
    return f"compaction/{_quoted(agent_id, branch_id, session_id)}/{generation}"


def plan(agent_id: str, digest: str) -> str:
    """The key of one approved plan of compensations."""
    return f"plan/{_quoted(agent_id, digest)}"


FAMILIES = frozenset({"session", "branch", "rollback", "checkpoint", "compaction", "absorbed", "call", "plan"})
"""First parts of the keys that name an agent."""


def agent_of(key: str) -> tuple[str, str] | None:
    """(family, agent_id) of a key in the agents topic, or None when it names no agent."""
    family, _, rest = key.partition("/")
    if family not in FAMILIES:
        return None
    return family, unquote(rest.partition("/")[0])
