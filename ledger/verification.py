"""Verify: is the projection what the log says, is every number accounted for, has every commit an owner?

It proves three things and names what breaks them (DESIGN section 8):
    1. projection = fold(log), document by document; and the log has no gap but what its cleaner made
    2. every session's sequence is accounted for. A close seals the last number, a fence the last that
       was seen; what is missing below is named, and so is what was given out and never written
    3. every commit has an owner: no anomaly, no unsafe key
The ledger may be written meanwhile: each document is compared as of one offset that the projection
has applied. The fold is on disk (a nameless temporary file), so memory does not grow with the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
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
from .refolding import Progress, Refold
from .view import AgentView

__all__ = ["Finding", "Progress", "VerifyReport", "pages", "verify"]

MAX_FINDINGS = 1_000
"""Of one kind, that a report lists; the others are counted."""
_AT_ONCE = 200
_LOOKS = 5
_RUNS_TOLD = 50


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: "projection", "log", "sequence", "unaccounted", "never written", "owner", "set aside".
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
    """What was looked at and what was found.

    Attributes:
        findings: at most `MAX_FINDINGS` of a kind and weight.
        more: findings that are not listed.
        applied: partition → the applied offset up to which it was folded and compared.
    """

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: {"partitions": 0, "records": 0, "operations": 0, "sessions": 0, "documents": 0}
    )
    more: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    _listed: dict[tuple[str, bool], int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no promise is broken."""
        return not any(finding.grave for finding in self.findings)

    def add(self, finding: Finding) -> None:
        """List a finding, or count it."""
        kind = (finding.kind, finding.grave)
        self._listed[kind] = self._listed.get(kind, 0) + 1
        if self._listed[kind] <= MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.more += 1

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        findings = [finding.to_dict() for finding in self.findings]
        return {
            "schema": "fencepost.verify.v1", "ok": self.ok, "counts": self.counts, "findings": findings,
            "more": self.more, "applied": self.applied,
        }  # fmt: skip


async def verify(engine: Engine, *, progress: Progress | None = None) -> VerifyReport:
    """Compare the projection with the log, and look for broken sequences and ownerless commits.

    Raises StaleProjectionError when a partition cannot be decided from, or is begun again meanwhile.
    """
    report = VerifyReport()
    reader = await asyncio.to_thread(engine.store.reader)
    try:
        for topic in Topic:
            for partition in engine.view.partitions(topic):
                await _Comparison(engine, partition, reader, report, progress or (lambda *_: None)).run()
        await _verify_sessions(engine, reader, report)
    finally:
        await asyncio.to_thread(reader.close)
    return report


class _Comparison:
    """One partition's projection beside the fold of its log."""

    def __init__(
        self, engine: Engine, partition: Partition, reader: LogReader, report: VerifyReport, progress: Progress
    ) -> None:
        self._engine = engine
        self._partition = partition
        self._reader = reader
        self._report = report
        self._progress = progress
        self._incarnation = ""

    async def run(self) -> None:
        """Compare; add what is found to the report.

        1. fold the log up to where the projection stands
        2. note, page by page, which documents agree with that
        3. look at the others again, each run of them as of one offset, folding on to it
        4. look at the log's gaps, the operations, and what was set aside
        """
        from .embedded_scratch import Scratch  # noqa: PLC0415 - loads the client library

        header = (await self._engine.view.read(self._partition, [])).header
        self._incarnation = header.incarnation
        scratch = Scratch()
        try:
            refold = Refold(self._partition, header, scratch)
            await self._fold_on(refold, header)  # 1
            for collection in await asyncio.to_thread(refold.collections):
                async for snapshot in pages(self._engine.store, self._partition, collection):  # 2
                    self._same(snapshot.header)
                    await asyncio.to_thread(refold.agree, snapshot.documents)
                    self._count(len(snapshot.documents))
            for collection in await asyncio.to_thread(refold.collections):
                await self._look_again(refold, collection)  # 3
            await self._conclude(refold)  # 4
        finally:
            await asyncio.to_thread(scratch.close)

    async def _fold_on(self, refold: Refold, header: Header) -> None:
        await asyncio.to_thread(refold.read_on, self._reader, header.applied_offset, self._progress)

    def _same(self, header: Header) -> None:
        if header.incarnation != self._incarnation or not header.opened or header.halted:
            raise StaleProjectionError(
                f"{self._partition} was begun again, or halted, while it was verified.",
                next_step="See `fencepost projector lag`, and verify again when it is opened.",
                partition=str(self._partition),
            )

    def _count(self, documents: int) -> None:
        self._report.counts["documents"] += documents
        self._progress(f"{self._partition} compared", self._report.counts["documents"], 0)

    async def _look_again(self, refold: Refold, collection: str) -> None:
        questions = refold.open_questions(collection, count=_AT_ONCE)
        while keys := await asyncio.to_thread(next, questions, None):
            for key, text in (await self._differences(refold, keys)).items():
                self._report.add(Finding("projection", str(self._partition), f"{collection}: {key.key!r} {text}"))

    async def _differences(self, refold: Refold, keys: Sequence[DocumentKey]) -> Mapping[DocumentKey, str]:
        """How these documents differ, as of one offset.

        Where the log cleaner is at work it may have moved facts behind that offset while the log was
        read; what differs because of that agrees later on.
        """
        told: Mapping[DocumentKey, str] = {}
        for _ in range(_LOOKS):
            snapshot = await self._engine.store.projection.read(self._partition, refold.to_read(keys))
            self._same(snapshot.header)
            await self._fold_on(refold, snapshot.header)
            told = await asyncio.to_thread(refold.differences, keys, snapshot.documents)
            if not told or not refold.gaps:
                break
            keys = list(told)
            await self._engine.store.projection.advanced(self._partition, snapshot.header.applied_offset, timeout_s=0.2)
        return told

    async def _conclude(self, refold: Refold) -> None:
        await self._look_at_gaps(refold)
        report = self._report
        await asyncio.to_thread(_look_at_operations, refold, report)
        async for key, text in _set_aside(self._engine, self._partition, refold):
            report.add(Finding("set aside", key, text))
        report.counts["partitions"] += 1
        report.counts["records"] += refold.records
        report.applied[str(self._partition)] = refold.applied

    async def _look_at_gaps(self, refold: Refold) -> None:
        """Offsets are dense above the settled offset; a log that has no cleaner has none missing at all."""
        if not refold.gaps:
            return
        header = (await self._engine.store.projection.read(self._partition, [])).header
        cleaned = (await self._engine.store.terms()).min_compaction_lag_s is not None
        for gap in refold.gaps:
            start = max(gap.start, header.settled_offset) if cleaned else gap.start
            if start < gap.end:
                text = f"the records {start} to {gap.end - 1} are missing, and nothing may have removed them"
                self._report.add(Finding("log", str(self._partition), text))


def _look_at_operations(refold: Refold, report: VerifyReport) -> None:
    for page in refold.documents(docs.OPS):
        for key, data in page.items():
            report.counts["operations"] += 1
            for finding in _owner_findings(key.key, data):
                report.add(finding)


def _owner_findings(op_id: str, data: bytes) -> Iterable[Finding]:
    operation = fold_operation(op_id, docs.read_history(data))
    for anomaly in operation.anomalies:
        grave = anomaly.position > operation.last_resolution
        yield Finding("owner", op_id, f"at {anomaly.position}: {anomaly.what}", grave)
    if operation.flagged:
        yield Finding("owner", op_id, "settled by a late commit of a former attempt", grave=False)


async def _set_aside(engine: Engine, partition: Partition, refold: Refold) -> AsyncIterator[tuple[str, str]]:
    """Keys that are unsafe, by the projection or by the log."""
    for run in refold.keys(docs.UNSAFE, count=_AT_ONCE):
        snapshot = await engine.store.projection.read(partition, run)
        unsafe = refold.existing(run) | set(snapshot.documents)
        for key in await engine.view.not_released(partition, sorted(key.key for key in unsafe)):
            yield key, "a record of this key was set aside; it is unsafe until an operator resolves it"


async def pages(store: Store, partition: Partition, collection: str) -> AsyncIterator[Snapshot]:
    """A large collection, page by page."""
    cursor = ""
    while True:
        snapshot, cursor = await store.projection.page(partition, collection, cursor=cursor)
        yield snapshot
        if not cursor:
            return


# -- sequences ---------------------------------------------------------------------------


async def _verify_sessions(engine: Engine, reader: LogReader, report: VerifyReport) -> None:
    for agent_id in await engine.view.agents():
        view = await engine.view.agent(agent_id)
        for session in view.agent.sessions.values():
            if session.rejected:
                continue
            report.counts["sessions"] += 1
            voided = _voided(view, session)
            seen = await engine.view.seqs(session)
            if session.sealed_seq is not None and missing_of(session, seen | voided):
                # What was written before the close may not be applied yet, in another partition.
                await _applied_to_the_end(engine, reader)
                seen = await engine.view.seqs(session)
            for finding in _session_findings(agent_id, session, seen, voided):
                report.add(finding)


def _voided(view: AgentView, session: Session) -> set[int]:
    voided = set(session.voided)
    for _, data in view.checkpoint_facts:
        fact = decode_agent(data)
        voided |= set(fact.voided) if fact.session_id == session.session_id else set()
    return voided


async def _applied_to_the_end(engine: Engine, reader: LogReader) -> None:
    """Wait until what the log holds now is applied. Raises StaleProjectionError when that takes too long."""
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    for topic in Topic:
        for partition in engine.view.partitions(topic):
            _, end = await asyncio.to_thread(reader.bounds, partition)

            async def applied(partition: Partition = partition, end: int = end) -> bool | None:
                header = (await engine.view.read(partition, [])).header
                return True if header.applied_offset >= end else None

            await engine.applied(partition, applied, deadline=deadline, beyond=None, what=f"{partition} up to {end}")


def missing_of(session: Session, accounted: set[int]) -> list[int]:
    """The numbers up to the sealed one, else up to the last that was seen, that nothing accounts for."""
    last = session.sealed_seq if session.sealed_seq is not None else max(accounted, default=0)
    return [number for number in range(1, last + 1) if number not in accounted]


def _session_findings(agent_id: str, session: Session, seen: set[int], voided: set[int]) -> Iterable[Finding]:
    where = f"{agent_id}/{session.branch_id} session {session.session_id}"
    sealed = session.sealed_seq
    if missing := missing_of(session, seen | voided):
        named = runs_of(missing)
        if sealed is not None:
            yield Finding("sequence", where, f"sealed at {sealed}, but {named} are not in the log")
        else:
            ended = f"it was ended ({session.ended}), and " if session.ended else ""
            text = f"{ended}{named} have not arrived; a late outcome may fill them"
            yield Finding("unaccounted", where, text, grave=False)
    if sealed is not None and (late := sorted(number for number in seen if number > sealed)):
        yield Finding("sequence", where, f"sealed at {sealed}, but {runs_of(late)} were written as well")
    if never := sorted(voided - seen):
        text = f"{runs_of(never)} were given out and never written: the session has given them up"
        yield Finding("never written", where, text, grave=False)


def runs_of(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: "3, 5-9, 12"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:_RUNS_TOLD]]
    more = f", and {len(runs) - _RUNS_TOLD} more runs up to {numbers[-1]}" if len(runs) > _RUNS_TOLD else ""
    return ", ".join(told) + more
