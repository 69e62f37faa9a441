"""What an entry of the log says: its facts, each decoded once, or why nothing can be taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..schemas.errors import DecodeError
from . import history, log_keys, losers
from .document_names import document_of
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
    """

    document: DocumentKey | None
    history: History = ()
    facts: Sequence[Fact] = ()
    problem: str = ""


def said_by(entry: LogEntry, topic: Topic, generation: int) -> Saying:
    """What an entry of this topic says, read with this log generation."""
    document = document_of(topic, entry.key) if entry.key is not None else None
    if entry.record is None:
        return Saying(document, problem=entry.problem)
    if document is None:
        horizon = entry.key is not None and log_keys.is_horizon(entry.key)
        return Saying(None, problem="" if horizon else "the key is of an unknown form")
    said = history.facts_of(entry.record, Position(generation, entry.offset))
    try:
        facts = [decoded(topic, item.fact) for item in said]
    except DecodeError as error:
        return Saying(document, problem=f"a fact is undecodable: {error}")
    problem = _problem(entry.record.key, said, facts) if topic is Topic.EFFECTS else ""
    return Saying(document, said, facts, problem) if not problem else Saying(document, problem=problem)


def decoded(topic: Topic, data: bytes) -> Fact:
    """A fact of this topic. Raises DecodeError."""
    return decode_effect(data) if topic is Topic.EFFECTS else decode_agent(data)


def _problem(key: str, said: History, facts: Sequence[Fact]) -> str:
    own = key if log_keys.is_operation(key) else ""
    problem = ""
    for item, fact in zip(said, facts, strict=True):
        if fact.kind is EffectKind.SUMMARISED and not losers.is_summary(item.fact):
            return "a fact is undecodable: a summary's numbers"
        if fact.op_id != own:
            problem = "a fact names another operation"
    return problem
