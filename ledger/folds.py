"""Folds of what was read lately: the same documents have the same fold, so it is not made anew at every look."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import projection as docs
from .contexts import Context, fold_context
from .history import History, PositionedFact
from .lineage import Agent, fold_agent
from .operation_fold import fold_operation
from .operations import Operation
from .ports import DocumentKey
from .positions import Topic
from .recent import Recent
from .set_aside import without_marks

_OPERATIONS, _OPERATION_BYTES = 512, 8_192
_AGENTS, _AGENT_BYTES = 64, 65_536
"""What is larger is folded anew each time: a cache of it would have no bound worth the name."""

Documents = Mapping[DocumentKey, bytes]


class _Agent(NamedTuple):
    structure: Documents
    marks: Documents
    agent: Agent
    context: Context
    facts: History


class Folds:
    """Remembers a bounded number of folds. What it gives is shared: nobody may change it. From any thread."""

    def __init__(self) -> None:
        self._operations: Recent[bytes, tuple[Operation, History]] = Recent(_OPERATIONS)
        self._agents: Recent[str, _Agent] = Recent(_AGENTS)

    def operation(self, op_id: str, document: bytes | None) -> tuple[Operation, History]:
        """The operation that a document describes, and its facts; one without any is FREE."""
        if document is None or len(document) > _OPERATION_BYTES:
            return _operation(op_id, document)
        found = self._operations.get(document)
        if found is None or found[0].op_id != op_id:
            found = _operation(op_id, document)
            self._operations.put(document, found)
        return found

    def agent(self, agent_id: str, structure: Documents, marks: Documents) -> tuple[Agent, Context, History]:
        """The agent that these documents describe, its context, and the facts of that."""
        known = self._agents.get(agent_id)
        if known is None or known.structure != structure or known.marks != marks:
            agent = fold_agent(agent_id, facts_of(structure))
            facts = tuple(facts_of(marks))
            known = _Agent(structure, marks, agent, fold_context(agent, facts), facts)
            if sum(map(len, (*structure.values(), *marks.values()))) <= _AGENT_BYTES:
                self._agents.put(agent_id, known)
        return known.agent, known.context, known.facts


def _operation(op_id: str, document: bytes | None) -> tuple[Operation, History]:
    facts = docs.read_history(document)
    return fold_operation(op_id, facts), facts


def facts_of(documents: Documents) -> Iterable[PositionedFact]:
    """All facts but the marks of records that were set aside: what stands against the agent is said by its notes."""
    for key, data in documents.items():
        yield from without_marks(key.key, Topic.AGENTS, docs.read_history(data))[0]
