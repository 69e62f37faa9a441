"""Verify: is the projection what the log says, is every number accounted for, has every commit an owner?

It proves three things and names what breaks them (DESIGN section 6):
    1. projection = fold(log), document by document
    2. every sealed session's sequence is complete; of others, missing numbers are listed
    3. every commit has an owner: no anomaly, no unsafe key
The whole fold is held in memory while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import projection as docs
from .engine import Engine
from .errors import StaleProjectionError
from .facts import decode_agent
from .lineage import Session
from .operation_fold import fold_operation
from .ports import DocumentKey, Header, LogReader, Snapshot, Store
from .positions import Partition, Topic
from .projection import PartitionFold

Progress = Callable[[str, int, int], None]
"""(what is being read, records done, records in all)."""

_NOT_COMPARED = frozenset({docs.DEBTS, docs.UNJUDGED, docs.SET_ASIDE, docs.UNSAFE, docs.OPEN})
"""Bookkeeping, or dependent on records that the log cleaner may have removed by now."""


_TOLD = 20
"""How many missing numbers a finding lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: "projection", "sequence", "unaccounted", "owner", "set aside".
        where: a partition, a session, or an operation.
        grave: whether it breaks a promise; others are told only.
    """

    kind: str
    where: str
    text: str
    grave: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"kind": self.kind, "where": self.where, "text": self.text, "grave": self.grave}


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: {"partitions": 0, "records": 0, "operations": 0, "sessions": 0, "documents": 0}
    )

    @property
    def ok(self) -> bool:
        """Whether no promise is broken."""
        return not any(finding.grave for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        findings = [finding.to_dict() for finding in self.findings]
        return {"schema": "fencepost.verify.v1", "ok": self.ok, "counts": self.counts, "findings": findings}


async def verify(engine: Engine, *, progress: Progress | None = None) -> VerifyReport:
    """Compare the projection with the log, and look for broken sequences and ownerless commits.

    Raises StaleProjectionError when a partition keeps moving or cannot be decided from.
    """
    report = VerifyReport()
    for topic in Topic:
        for partition in engine.view.partitions(topic):
            await _verify_partition(engine, partition, report, progress or (lambda *_: None))
    await _verify_sessions(engine, report)
    return report


async def _verify_partition(engine: Engine, partition: Partition, report: VerifyReport, progress: Progress) -> None:
    store = engine.store
    header = (await engine.view.read(partition, [])).header
    reader = store.reader()
    folded = _Folded(partition, header)
    try:
        for _ in range(20):
            end = header.applied_offset
            await asyncio.to_thread(folded.read_on, reader, end, report, progress)
            documents = {
                collection: await _collection(store, partition, collection) for collection in folded.collections()
            }
            header = (await store.projection.read(partition, [])).header
            if header.applied_offset == end and not folded.debts(await _debts(store, partition)):
                _compare(partition, folded.opened(), documents, report)
                return
            await asyncio.sleep(0.1)
    finally:
        reader.close()
    raise StaleProjectionError(
        f"{partition} is not at rest: it keeps moving, or owes re-assertions.",
        next_step="Verify when nothing is being published and a projector runs.",
        partition=str(partition),
    )


class _Folded:
    """A partition folded from its log into memory."""

    def __init__(self, partition: Partition, header: Header) -> None:
        self._partition = partition
        self._documents: dict[DocumentKey, bytes] = {}
        start = Header(generation=header.generation, judge_from=header.settled_offset, horizon=header.applied_offset)
        self._fold = PartitionFold(partition, start, {})

    def read_on(self, reader: LogReader, end: int, report: VerifyReport, progress: Progress) -> None:
        start = self._fold.header.applied_offset
        for done, entry in enumerate(reader.entries(self._partition, start=start, end=end), start=1):
            while needed := self._fold.needs(entry):
                self._fold.provide({key: self._documents.get(key) for key in needed})
            self._fold.apply(entry)
            self._keep()
            report.counts["records"] += 1
            if done % 1000 == 0:
                progress(str(self._partition), start + done, end)
        self._fold.skip_to(end)

    def _keep(self) -> None:
        for key, value in self._fold.take_step().writes.items():
            if value is None:
                self._documents.pop(key, None)
            else:
                self._documents[key] = value

    def debts(self, noted: Mapping[DocumentKey, bytes]) -> bool:
        """Whether the projection owes something: then it is not at rest."""
        return bool(noted)

    def collections(self) -> set[str]:
        return {key.collection for key in self._documents} - _NOT_COMPARED

    def opened(self) -> dict[DocumentKey, bytes]:
        """The documents with the verdicts that were put off."""
        unjudged = [key.key for key in self._documents if key.collection == docs.UNJUDGED]
        fences = {key: data for key, data in self._documents.items() if key.collection == docs.FENCES}
        keys = [DocumentKey(collection, k) for collection in (docs.OPS, docs.UNSAFE) for k in unjudged]
        self._fold.provide({key: self._documents.get(key) for key in keys})
        self._fold.judge(unjudged, fences)
        self._fold.open(fences)
        self._keep()
        return self._documents


async def _collection(store: Store, partition: Partition, collection: str) -> dict[DocumentKey, bytes]:
    found: dict[DocumentKey, bytes] = {}
    async for snapshot in pages(store, partition, collection):
        found.update(snapshot.documents)
    return found


async def pages(store: Store, partition: Partition, collection: str) -> Any:
    """A large collection, page by page (an async iterator of snapshots)."""
    cursor = ""
    while True:
        snapshot, cursor = await store.projection.page(partition, collection, cursor=cursor)
        yield snapshot
        if not cursor:
            return


async def _debts(store: Store, partition: Partition) -> Mapping[DocumentKey, bytes]:
    snapshot: Snapshot = await store.projection.scan(partition, docs.DEBTS)
    return snapshot.documents


def _compare(
    partition: Partition,
    expected: Mapping[DocumentKey, bytes],
    found: Mapping[str, Mapping[DocumentKey, bytes]],
    report: VerifyReport,
) -> None:
    report.counts["partitions"] += 1
    for difference in _differences(expected, found):
        report.findings.append(Finding("projection", str(partition), difference))
    for key, data in expected.items():
        if key.collection in _NOT_COMPARED:
            continue
        report.counts["documents"] += 1
        if key.collection == docs.OPS:
            report.counts["operations"] += 1
            _look_at_operation(key.key, data, report)
    for key in expected:
        if key.collection == docs.UNSAFE:
            text = "a record of this key was set aside; it is unsafe until an operator resolves it"
            report.findings.append(Finding("set aside", key.key, text))


def _differences(
    expected: Mapping[DocumentKey, bytes], found: Mapping[str, Mapping[DocumentKey, bytes]]
) -> Iterator[str]:
    for key, data in expected.items():
        if key.collection in _NOT_COMPARED:
            continue
        have = found.get(key.collection, {}).get(key)
        if have is None:
            yield f"{key.collection}: {key.key!r} is in the log and not in the projection"
        elif have != data:
            yield f"{key.collection}: {key.key!r} differs from what the log says"
    for documents in found.values():
        for key in documents:
            if key not in expected:
                yield f"{key.collection}: {key.key!r} is in the projection and not in the log"


def _look_at_operation(op_id: str, data: bytes, report: VerifyReport) -> None:
    operation = fold_operation(op_id, docs.read_history(data))
    for anomaly in operation.anomalies:
        grave = anomaly.position > operation.last_resolution
        report.findings.append(Finding("owner", op_id, f"at {anomaly.position}: {anomaly.what}", grave))
    if operation.flagged:
        report.findings.append(Finding("owner", op_id, "settled by a late commit of a former attempt", grave=False))


async def _verify_sessions(engine: Engine, report: VerifyReport) -> None:
    for agent_id in await engine.view.agents():
        view = await engine.view.agent(agent_id)
        for session in view.agent.sessions.values():
            if session.rejected:
                continue
            report.counts["sessions"] += 1
            voided = set(session.voided)
            for _, data in view.checkpoint_facts:
                fact = decode_agent(data)
                voided |= set(fact.voided) if fact.session_id == session.session_id else set()
            missing = _missing(session, await engine.view.seqs(session) | voided)
            if missing:
                report.findings.append(_missing_finding(agent_id, session, missing))


def _missing(session: Session, seen: set[int]) -> list[int]:
    last = session.sealed_seq if session.sealed_seq is not None else max(seen, default=0)
    return [number for number in range(1, last + 1) if number not in seen]


def _missing_finding(agent_id: str, session: Session, missing: list[int]) -> Finding:
    sealed = session.sealed_seq is not None
    listed = ", ".join(map(str, missing[:_TOLD])) + (", …" if len(missing) > _TOLD else "")
    where = f"{agent_id}/{session.branch_id} session {session.session_id}"
    if sealed:
        return Finding("sequence", where, f"sealed at {session.sealed_seq}, but {listed} are not in the log")
    return Finding("unaccounted", where, f"{listed} have not arrived; a late outcome may fill them", grave=False)
