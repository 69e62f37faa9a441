"""What an entry of the log says: its facts, each decoded once, or why nothing can be taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..schemas.errors import DecodeError
from . import history, log_keys, losers
from .document_names import OPS, document_of
from .facts import AgentFact, EffectFact, EffectKind, decode_agent, decode_effect
from .history import History, LogEntry, PositionedFact
from .ports import DocumentKey
from .positions import Position, Topic

Fact = EffectFact | AgentFact
Told = tuple[PositionedFact, Fact]
"""A fact where it stands, and decoded."""


class Saying(NamedTuple):
    """What an entry says.

    Attributes:
        document: where the history of its key is kept; None when there is none.
        history: all that the record says.
        facts: the same facts, decoded.
        problem: why it cannot be taken; the facts are none then.
        summarised: whether it names attempts that are only kept as numbers.
    """

    document: DocumentKey | None
    history: History = ()
    facts: Sequence[Fact] = ()
    problem: str = ""
    summarised: bool = False


def said_by(entry: LogEntry, topic: Topic, generation: int) -> Saying:
    """What an entry of this topic says, read with this log generation."""
    document = document_of(topic, entry.key) if entry.key is not None else None
    record = entry.record
    if record is None:
        return Saying(document, problem=entry.problem)
    if document is None:
        horizon = entry.key is not None and log_keys.is_horizon(entry.key)
        return Saying(None, problem="" if horizon else "the key is of an unknown form")
    said = history.facts_of(record, Position(generation, entry.offset))
    try:
        if topic is Topic.AGENTS:
            return Saying(document, said, [decode_agent(item.fact) for item in said])
        facts = [decode_effect(item.fact) for item in said]
    except DecodeError as error:
        return Saying(document, problem=f"a fact is undecodable: {error}")
    own = record.key if document.collection == OPS else ""
    for fact in facts:
        if fact.op_id != own or fact.kind is EffectKind.SUMMARISED:
            problem = _problem(own, said, facts)
            return Saying(document, problem=problem) if problem else Saying(document, said, facts, summarised=True)
    return Saying(document, said, facts)


def decoded(topic: Topic, data: bytes) -> Fact:
    """A fact of this topic. Raises DecodeError."""
    return decode_effect(data) if topic is Topic.EFFECTS else decode_agent(data)


def _problem(own: str, said: History, facts: Sequence[EffectFact]) -> str:
    if any(f.kind is EffectKind.SUMMARISED and not losers.is_summary(i.fact) for i, f in zip(said, facts, strict=True)):
        return "a fact is undecodable: a summary's numbers"
    return "a fact names another operation" if any(fact.op_id != own for fact in facts) else ""
