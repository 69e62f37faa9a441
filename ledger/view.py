"""What the engine reads: documents of the projection, folded; each with its age.

A projection that is not opened, was halted, or went back behind what this process has seen of
it answers nothing: `StaleProjectionError`, never a guess.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..schemas.errors import DecodeError
from . import log_keys
from . import projection as docs
from .contexts import Checkpoint, Compaction, Context, fold_context
from .errors import NotFoundError, StaleProjectionError
from .facts import AgentFact, AgentKind, decode_agent
from .guard import SeenOperation
from .history import History, PositionedFact
from .lineage import Agent, Session, fold_agent
from .notes import read_note
from .operation_fold import fold_operation
from .operations import Operation, Status
from .ports import DocumentKey, Header, Snapshot, Store
from .positions import NOWHERE, Partition, Position, Topic
from .seq_bits import bits_of
from .set_aside import is_given, noted, without_marks, word_about
from .watermarks import Point, low_water


@dataclass(frozen=True, slots=True)
class OperationView:
    """One operation as of `header`."""

    seen: SeenOperation
    facts: History
    header: Header
    partition: Partition

    @property
    def operation(self) -> Operation:
        """The folded operation."""
        return self.seen.operation


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent's structure and checkpoints as of `header`."""

    agent: Agent
    context: Context
    checkpoint_facts: History
    header: Header

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """The checkpoints that count, by id, oldest first."""
        return self.context.checkpoints

    @property
    def compactions(self) -> list[Compaction]:
        """The compactions of the agent's context that count, oldest first."""
        return self.context.compactions


def age_s(header: Header) -> float:
    """How old an answer is: seconds since the projector last said that it was up to date."""
    return max(0.0, (header.now_ms - header.seen_ms) / 1000)


ACKNOWLEDGED = "acknowledged"
"""What an operator's word on a reported call is declared as; it stands under the call's own key."""


class ReportedFact(NamedTuple):
    """A reported call, and the operator's word that acknowledges it (None without one)."""

    call: AgentFact
    word: AgentFact | None


class _Gathered:
    """Keys that are about to be read together."""

    def __init__(self) -> None:
        self.keys: dict[DocumentKey, None] = {}
        self.answers: list[asyncio.Future[Snapshot]] = []
        self.reading: asyncio.Task[None]

    def tell(self, snapshot: Snapshot | None, error: BaseException | None = None) -> None:
        """Give everybody who asked the documents, or the error."""
        for answer in self.answers:
            if answer.done():
                continue
            if snapshot is not None:
                answer.set_result(snapshot)
            elif error is not None:
                answer.set_exception(error)


class View:
    """Reads a store's projection.

    Args:
        max_age_s: an answer from a projector that has been silent for longer is stale.
    """

    def __init__(self, store: Store, *, max_age_s: float = 30.0) -> None:
        self._store = store
        self._max_age_s = max_age_s
        self._last: dict[Partition, int] = {}
        self._raising = threading.Lock()
        self._gathering: dict[Partition, _Gathered] = {}

    # -- places ------------------------------------------------------------------------

    def effects_partition(self, op_id: str) -> Partition:
        """Where an operation's facts stand."""
        return Partition(Topic.EFFECTS, self._store.log.partition_of(Topic.EFFECTS, op_id))

    def agents_partition(self, agent_id: str) -> Partition:
        """Where an agent's facts stand."""
        return Partition(Topic.AGENTS, self._store.log.partition_of(Topic.AGENTS, agent_id))

    def partitions(self, topic: Topic) -> list[Partition]:
        """All partitions of a topic."""
        return [Partition(topic, n) for n in range(self._store.log.partitions(topic))]

    # -- raw reads ---------------------------------------------------------------------

    def seen(self, partition: Partition) -> int:
        """The highest applied offset that was believed before a projection is read; for `trusted`."""
        return self._last.get(partition, 0)

    def trusted(self, partition: Partition, header: Header, since: int) -> Header:
        """`header` if it may be believed; then it is seen. Raises StaleProjectionError otherwise."""
        self.require_trusted(partition, header, since)
        self.saw(partition, header.applied_offset)
        return header

    def require_trusted(self, partition: Partition, header: Header, since: int) -> None:
        """Raises StaleProjectionError unless `header` may be believed.

        Args:
            since: what was seen when the read began. Reads that overlap may be answered in any
                order; a projection went back only if it shows less than was known before it was asked.
                That holds across incarnations: one that was begun anew opens behind all that was ever
                applied, so one that shows less is a former one that the store brought back.
        """
        if not header.opened or header.halted:
            why = header.halted or (
                f"it is being rebuilt ({header.applied_offset} of {header.horizon} records)"
                if header.incarnation
                else "no projector has read this partition yet"
            )
            raise _stale(partition, why, header)
        if header.applied_offset < since:
            raise _stale(partition, f"it went back from offset {since}", header)
        if age_s(header) > self._max_age_s:
            raise _stale(partition, f"no projector has been seen for {age_s(header):.0f} s", header)

    def saw(self, partition: Partition, applied_offset: int) -> None:
        """Note that so much was applied, durably: a projection that shows less has gone back. From any thread."""
        with self._raising:
            self._last[partition] = max(applied_offset, self.seen(partition))

    async def read(self, partition: Partition, keys: Sequence[DocumentKey]) -> Snapshot:
        """Documents of a partition, if it may be believed.

        What is asked of one partition at the same time is read in one go.
        """
        loop = asyncio.get_running_loop()
        gathered = self._gathering.get(partition)
        if gathered is None:
            gathered = self._gathering[partition] = _Gathered()
            gathered.reading = loop.create_task(self._read(partition, gathered))
        gathered.keys.update(dict.fromkeys(keys))
        answer: asyncio.Future[Snapshot] = loop.create_future()
        gathered.answers.append(answer)
        return await answer

    async def _read(self, partition: Partition, gathered: _Gathered) -> None:
        """Read what was asked for until this task began: in the turn of the loop before."""
        del self._gathering[partition]
        since = self.seen(partition)
        try:
            snapshot = await self._store.projection.read(partition, list(gathered.keys))
            self.trusted(partition, snapshot.header, since)
        except asyncio.CancelledError:
            for answer in gathered.answers:
                answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (theirs to deal with)
            gathered.tell(None, error)
        else:
            gathered.tell(snapshot)

    def applied(self, partition: Partition) -> int:
        """The applied offset that was seen last; what is read later shows at least that."""
        return self.seen(partition)

    async def scan(self, partition: Partition, collection: str) -> Snapshot:
        """A whole collection, if the partition may be believed."""
        since = self.seen(partition)
        snapshot = await self._store.projection.scan(partition, collection)
        self.trusted(partition, snapshot.header, since)
        return snapshot

    async def page(
        self, partition: Partition, collection: str, *, cursor: str = "", count: int = 500
    ) -> tuple[Snapshot, str]:
        """A page of a large collection and the cursor of the next one, if the partition may be believed."""
        since = self.seen(partition)
        snapshot, following = await self._store.projection.page(partition, collection, cursor=cursor, count=count)
        self.trusted(partition, snapshot.header, since)
        return snapshot, following

    # -- operations --------------------------------------------------------------------

    async def operation(self, op_id: str) -> OperationView:
        """One operation; one without any facts is FREE."""
        return (await self.operations(self.effects_partition(op_id), [op_id]))[0]

    async def folded(self, op_id: str) -> tuple[Operation, History]:
        """An operation by its facts alone, and those facts (one read)."""
        key = DocumentKey(docs.OPS, op_id)
        snapshot = await self.read(self.effects_partition(op_id), [key])
        facts = docs.read_history(snapshot.documents.get(key))
        return fold_operation(op_id, facts), facts

    async def operations(self, partition: Partition, op_ids: Sequence[str]) -> list[OperationView]:
        """Operations of one partition, each with whether its owner is fenced."""
        keys = [DocumentKey(docs.OPS, op_id) for op_id in op_ids]
        marks = [DocumentKey(docs.UNSAFE, op_id) for op_id in op_ids]
        snapshot = await self.read(partition, [*keys, *marks])
        found = []
        for op_id, key, mark in zip(op_ids, keys, marks, strict=True):
            facts = docs.read_history(snapshot.documents.get(key))
            unsafe = _problem(snapshot.documents.get(mark))
            found.append((fold_operation(op_id, facts), facts, unsafe))
        ended = await self._fenced_owners(partition, [op for op, _, _ in found])
        return [
            OperationView(SeenOperation(op, unsafe, op.op_id in ended), facts, snapshot.header, partition)
            for op, facts, unsafe in found
        ]

    async def _fenced_owners(self, partition: Partition, operations: Iterable[Operation]) -> set[str]:
        """op_ids whose owner is fenced in this partition, or belongs to a former log generation."""
        owned = [o for o in operations if o.status in {Status.OWNED, Status.IN_DOUBT} and o.owner]
        if not owned:
            return set()
        keys = {o.op_id: docs.fence_document(o.owner.intent.agent_id, o.owner.intent.branch_id)
                for o in owned if o.owner}  # fmt: skip
        snapshot = await self.read(partition, list(dict.fromkeys(keys.values())))
        ended = set()
        for operation in owned:
            epoch = operation.owner.intent.epoch if operation.owner else Position(0, -1)
            fence = docs.fence_epoch(docs.read_history(snapshot.documents.get(keys[operation.op_id])))
            if (fence is not None and fence > epoch) or epoch.generation < snapshot.header.generation:
                ended.add(operation.op_id)
        return ended

    async def agent_operations(self, agent_id: str) -> list[OperationView]:
        """Every operation that this agent has attempted, over all partitions."""
        views = await asyncio.gather(*(self._agent_operations(p, agent_id) for p in self.partitions(Topic.EFFECTS)))
        return [view for part in views for view in part]

    async def agent_op_ids(self, agent_id: str) -> set[str]:
        """The ids of every operation that this agent has attempted; nothing is folded for that."""
        parts = await asyncio.gather(*(self.scan(p, docs.agent_ops(agent_id)) for p in self.partitions(Topic.EFFECTS)))
        return {key for part in parts for _, key in part.documents}

    async def _agent_operations(self, partition: Partition, agent_id: str) -> list[OperationView]:
        snapshot = await self.scan(partition, docs.agent_ops(agent_id))
        op_ids = [key for _, key in snapshot.documents]
        found: list[OperationView] = []
        for start in range(0, len(op_ids), 500):
            found += await self.operations(partition, op_ids[start : start + 500])
        return found

    async def open_operations(self) -> list[OperationView]:
        """Every operation that is owned, in doubt, unsafe, or has an anomaly."""
        found: list[OperationView] = []
        for partition in self.partitions(Topic.EFFECTS):
            snapshot = await self.scan(partition, docs.OPEN)
            op_ids = [key for _, key in snapshot.documents]
            for start in range(0, len(op_ids), 500):
                found += await self.operations(partition, op_ids[start : start + 500])
        return found

    # -- agents ------------------------------------------------------------------------

    async def agent(self, agent_id: str) -> AgentView:
        """An agent's structure and checkpoints; empty for one that was never seen."""
        partition = self.agents_partition(agent_id)
        structure, marks, unsafe = await asyncio.gather(
            self.scan(partition, docs.agent_documents("session", agent_id)),
            self.scan(partition, docs.agent_documents("checkpoint", agent_id)),
            self.scan(partition, docs.UNSAFE),
        )
        agent = fold_agent(agent_id, _agent_facts_of(structure))
        bad = [key.key for key in unsafe.documents if log_keys.agent_of(key.key) in _families(agent_id)]
        bad = await self.not_released(partition, bad)
        if bad and not agent.unsafe:
            agent.unsafe = f"records that were set aside under {', '.join(sorted(bad)[:3])}"
        facts = tuple(_agent_facts_of(marks))
        return AgentView(agent, fold_context(agent, facts), facts, structure.header)

    async def not_released(self, partition: Partition, unsafe: Iterable[str]) -> list[str]:
        """Of unsafe keys those about which no operator has given his word, record by record.

        An operation's key is safe as soon as the operation is resolved, and none of these then.
        """
        found = []
        for key in unsafe:
            document = docs.document_of(partition.topic, key)
            if (
                document is None
                or document.collection == docs.OPS
                or not await self._released(partition, document, key)
            ):
                found.append(key)
        return found

    async def _released(self, partition: Partition, document: DocumentKey, key: str) -> bool:
        note = DocumentKey(docs.UNSAFE, key)
        snapshot = await self.read(partition, [document, note])
        if note not in snapshot.documents:
            return True
        try:
            record = noted(partition, snapshot.documents[note], snapshot.header.generation)
        except DecodeError:  # damaged: `verify` says so, and nobody has released it
            return False
        _, marked = without_marks(key, partition.topic, docs.read_history(snapshot.documents.get(document)))
        words = {word_about(partition.topic, key, position) for position in (record.position, *marked)}
        operations = await asyncio.gather(*(self.folded(word) for word in sorted(words)))
        return all(is_given(operation) for operation, _ in operations)

    async def known_agent(self, agent_id: str) -> AgentView:
        """As `agent`; raises NotFoundError for one that the ledger has never seen."""
        view = await self.agent(agent_id)
        if not view.agent.sessions:
            raise NotFoundError(
                f"agent {agent_id} is not in this ledger.",
                next_step="List the agents with `fencepost agents list`.",
                field="agent",
            )
        return view

    async def agents(self) -> list[str]:
        """The ids of all agents."""
        found: set[str] = set()
        for partition in self.partitions(Topic.AGENTS):
            snapshot = await self.scan(partition, docs.AGENTS)
            found |= {key for _, key in snapshot.documents}
        return sorted(found)

    async def agent_history(self, agent_id: str, key: str) -> History:
        """The facts that are known under one of an agent's keys in the agents log."""
        owner = log_keys.agent_of(key)
        document = DocumentKey(docs.agent_documents(owner[0] if owner else "", agent_id), key)
        snapshot = await self.read(self.agents_partition(agent_id), [document])
        return docs.read_history(snapshot.documents.get(document))

    async def absorbed(self, agent_id: str) -> dict[tuple[str, int], list[Point]]:
        """(op_id, round) → where sessions of this agent absorbed it."""
        found: dict[tuple[str, int], list[Point]] = {}
        for fact in await self._agent_facts(agent_id, "absorbed"):
            if fact.kind is AgentKind.ABSORBED:
                found.setdefault((fact.op_id, fact.round), []).append(Point(fact.epoch, fact.seq))
        return found

    async def calls(self, agent_id: str) -> list[AgentFact]:
        """Calls that were reported to have bypassed the ledger, and that no operator has acknowledged."""
        return [one.call for one in await self.reported(agent_id) if one.word is None]

    async def reported(self, agent_id: str) -> list[ReportedFact]:
        """All reported calls, each with an operator's word on it, in the order of their sessions."""
        snapshot = await self.scan(self.agents_partition(agent_id), docs.agent_documents("call", agent_id))
        found: list[ReportedFact] = []
        for key, data in snapshot.documents.items():
            facts = [decode_agent(fact) for _, fact in without_marks(key.key, Topic.AGENTS, docs.read_history(data))[0]]
            once = dict.fromkeys(facts)  # one that was published again stands there twice
            told = [fact for fact in once if fact.kind is AgentKind.CALL_REPORTED]
            word = next((fact for fact in told if fact.declared_as == ACKNOWLEDGED), None)
            found += [ReportedFact(fact, word) for fact in told if fact.declared_as != ACKNOWLEDGED]
        return sorted(found, key=lambda one: (one.call.epoch, one.call.seq))

    async def _agent_facts(self, agent_id: str, family: str) -> list[AgentFact]:
        snapshot = await self.scan(self.agents_partition(agent_id), docs.agent_documents(family, agent_id))
        return [decode_agent(fact) for _, fact in _agent_facts_of(snapshot)]

    async def seqs(self, session: Session) -> set[int]:
        """The sequence numbers that the projection has seen of a session."""
        agent_id = session.opened.agent_id
        partitions = [*self.partitions(Topic.EFFECTS), self.agents_partition(agent_id)]
        parts = await asyncio.gather(*(self.scan(p, docs.seqs(agent_id, session.epoch)) for p in partitions))
        seen: set[int] = set()
        for part in parts:
            seen |= bits_of({int(key): data for (_, key), data in part.documents.items()})
        return seen

    async def written(self, session: Session, checkpoint_facts: History) -> int:
        """Up to where a session's sequence is complete (its low-water mark)."""
        return (await self.progress(session, checkpoint_facts))[0]

    async def progress(self, session: Session, checkpoint_facts: History) -> tuple[int, int]:
        """(low-water mark, highest number seen) of a session's sequence."""
        voided = set(session.voided)
        for _, data in checkpoint_facts:
            fact = decode_agent(data)
            if fact.session_id == session.session_id:
                voided |= set(fact.voided)
        seen = await self.seqs(session)
        return low_water(seen, voided), max(seen, default=0)

    async def ledger(self) -> tuple[str, str] | None:
        """(id, identity of the store) of this ledger, once the fact that created it is applied.

        The first fact gives the id, the last one, after a move, the identity.
        """
        partition = Partition(Topic.AGENTS, 0)
        snapshot = await self.read(partition, [DocumentKey(docs.LEDGER, log_keys.LEDGER)])
        facts = sorted(_all_facts(snapshot))
        return (decode_agent(facts[0].fact).ledger_id, decode_agent(facts[-1].fact).evidence) if facts else None


def _families(agent_id: str) -> set[tuple[str, str]]:
    return {(family, agent_id) for family in log_keys.FAMILIES}


def _all_facts(snapshot: Snapshot) -> Iterable[PositionedFact]:
    for data in snapshot.documents.values():
        yield from docs.read_history(data)


def _agent_facts_of(snapshot: Snapshot) -> Iterable[PositionedFact]:
    """All facts but the marks of records that were set aside: what stands against the agent is said by its notes."""
    for key, data in snapshot.documents.items():
        yield from without_marks(key.key, Topic.AGENTS, docs.read_history(data))[0]


def _problem(note: bytes | None) -> str:
    if note is None:
        return ""
    try:
        said = read_note(note, NOWHERE.generation)
    except DecodeError:
        return "a record was set aside, and the projection's note about it is damaged"
    return (
        f"the record at {said.partition or 'its partition'} offset {said.position.offset} was set aside: {said.problem}"
    )


def _stale(partition: Partition, why: str, header: Header) -> StaleProjectionError:
    return StaleProjectionError(
        f"the projection of {partition} cannot be decided from: {why}.",
        next_step="See `fencepost projector lag`; start one with `fencepost projector run`.",
        partition=str(partition),
        applied_offset=header.applied_offset,
    )
