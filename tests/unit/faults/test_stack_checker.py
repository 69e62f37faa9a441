"""The checker of the fault runs finds each promise that is broken by hand, and nothing in a sound history."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.stack.checker import _CHECKS, check
from faults.stack.evidence import (
    Acked,
    Called,
    Decided,
    Evidence,
    Hit,
    Raw,
    acked_line,
    decided_line,
    line,
    load,
    raw_line,
    write_projection,
)
from faults.stack.folded import fold

from fencepost.ledger import history, log_keys
from fencepost.ledger.facts import (
    AgentFact,
    AgentKind,
    EffectClass,
    EffectFact,
    EffectKind,
    encode_agent,
    encode_effect,
)
from fencepost.ledger.history import History, Record
from fencepost.ledger.operations import idempotency_key
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import OPS
from fencepost.ledger.watermarks import Watermark

EFFECTS, AGENTS = Partition(Topic.EFFECTS, 0), Partition(Topic.AGENTS, 0)


class Book:
    """Writes a history as agents and a projector would have left it behind, on one partition a topic."""

    def __init__(self) -> None:
        self.evidence = Evidence(1, tap={EFFECTS: [], AGENTS: []})
        self.known: dict[str, History] = {}
        self.at = 0

    def write(self, partition: Partition, key: str, fact: bytes | None) -> Position:
        """Append a record with all that is known, acknowledged."""
        records = self.evidence.tap[partition]
        at = Position(0, len(records))
        record = Record(key, self.known.get(key, ()), fact)
        records.append(Raw(at.offset, 1, key.encode(), history.encode(record)))
        self.known[key] = history.facts_of(record, at)
        self.at += 1
        if fact is not None:
            self.evidence.acked.append(Acked(partition, key, at.offset, fact, self.at))
        return at

    def agent(self, key: str, kind: AgentKind, **values: Any) -> Position:
        fact = AgentFact(kind=kind, agent_id="ann", branch_id="main", **values)
        return self.write(AGENTS, key, encode_agent(fact))

    def effect(self, kind: EffectKind, op_id: str, attempt: str, session: tuple[str, Position], seq: int, **values: Any) -> None:  # fmt: skip
        fact = EffectFact(
            kind=kind, op_id=op_id, attempt_id=attempt, agent_id="ann", branch_id="main", session_id=session[0],
            epoch=session[1], seq=seq, tool="pay", effect_class=EffectClass.IRREVERSIBLE, identity_digest="x", **values,
        )  # fmt: skip
        self.write(EFFECTS, op_id, encode_effect(fact))

    def opened(self, session_id: str, parent: Watermark | None = None) -> tuple[str, Position]:
        key = log_keys.session("ann", session_id)
        token = parent.token if parent else ""
        return session_id, self.agent(key, AgentKind.SESSION_OPENED, session_id=session_id, watermark=token)

    def paid(self, op_id: str, session: tuple[str, Position], seq: int) -> None:
        """An operation from its intent to its commit."""
        attempt = f"{op_id}-{session[0]}"
        self.effect(EffectKind.INTENDED, op_id, attempt, session, seq)
        self.at += 1
        key = idempotency_key(op_id, 1)
        self.evidence.sink.append(Hit("hit", key, op_id, attempt, "ann", session[0], self.at))
        self.effect(EffectKind.COMMITTED, op_id, attempt, session, seq + 1, result=json.dumps(op_id).encode())
        self.evidence.calls.append(Called("ann", op_id, "ok", ran=True, attempt_id=attempt, value=op_id))

    def checkpoint(self, name: str, session: tuple[str, Position], seq: int, *, knows: int) -> Watermark:
        mark = Watermark("L", "ann", "main", session[1], knows)
        values = {"session_id": session[0], "epoch": session[1], "seq": seq}
        key = log_keys.checkpoint("ann", name)
        self.agent(key, AgentKind.CHECKPOINTED, checkpoint_id=name, watermark=mark.token, **values)
        return mark

    def close(self, session: tuple[str, Position], seq: int) -> None:
        values = {"session_id": session[0], "epoch": session[1], "seq": seq, "sealed_seq": seq}
        self.agent(log_keys.session("ann", session[0]), AgentKind.SESSION_CLOSED, **values)

    def rolled_back(self, mark: Watermark, verdict: str, name: str = "r1") -> None:
        self.agent(log_keys.rollback("ann", name), AgentKind.ROLLBACK_REQUESTED, rollback_id=name, watermark=mark.token)
        self.at += 1
        self.evidence.decisions.append(Decided("ann", name, verdict, mark.point, self.at))

    def finished(self) -> Evidence:
        """With a log that nothing was removed from, and the projection that a projector would have."""
        self.evidence.log = {partition: list(records) for partition, records in self.evidence.tap.items()}
        self.evidence.projection = copy.deepcopy(fold(self.evidence.tap, 1).documents)
        return self.evidence


def written(*, verdict: str = "PROCEED", after: bool = False) -> Evidence:
    """Two payments, a checkpoint that knows both, a rollback to it, and a successor that absorbs one of them.

    With `after`, a third payment stands behind the checkpoint and before the rollback.
    """
    book = Book()
    first = book.opened("s1")
    book.paid("pay:1", first, 1)
    book.paid("pay:2", first, 3)
    mark = book.checkpoint("c1", first, 5, knows=4)
    if after:
        book.paid("pay:3", first, 6)
    book.rolled_back(mark, verdict)
    second = book.opened("s2", mark)
    values = {"session_id": "s2", "epoch": second[1], "seq": 1, "op_id": "pay:1"}
    book.agent(log_keys.absorbed("ann", "s2", "pay:1"), AgentKind.ABSORBED, **values)
    book.evidence.calls.append(Called("ann", "pay:1", "ok", value="pay:1"))
    book.close(second, 2)
    return book.finished()


def promises(evidence: Evidence) -> set[str]:
    return {violation.promise for violation in check(evidence).violations}


def test_a_sound_history_is_sound() -> None:
    """Nothing is found where nothing is wrong, and what was reached is counted."""
    findings = check(written())
    assert findings.violations == []
    assert findings.marks["hits"] == 2
    assert findings.marks["absorbed"] == 1
    assert findings.marks["verdict PROCEED"] == 1


def test_a_refusal_goes_back_over_nothing() -> None:
    """An effect behind the checkpoint is no violation if the guard refused, or let it through to be absorbed."""
    assert promises(written(verdict="REFUSE", after=True)) == set()
    assert promises(written(verdict="PROCEED_GATED", after=True)) == set()


def hit_again(evidence: Evidence) -> None:
    evidence.sink.append(evidence.sink[0])


def hit_under_another_key(evidence: Evidence) -> None:
    evidence.sink.append(evidence.sink[0]._replace(key="another"))


def hit_unasked(evidence: Evidence) -> None:
    evidence.sink.append(Hit("hit", "k", "pay:2", "nobody", "ann", "s1", 99))


def hit_too_early(evidence: Evidence) -> None:
    evidence.sink[0] = evidence.sink[0]._replace(at=0)


def hit_by_someone_else(evidence: Evidence) -> None:
    evidence.sink[0] = evidence.sink[0]._replace(agent_id="bob")


def hit_without_an_outcome(evidence: Evidence) -> None:
    evidence.sink.append(Hit("hit", idempotency_key("pay:9", 1), "pay:9", "a9", "ann", "s1", 99))


def denied_hit(evidence: Evidence) -> None:
    evidence.calls.append(Called("ann", "pay:1", "fail", attempt_id="pay:1-s1", error="StaleProjectionError: late"))


def imagined_hit(evidence: Evidence) -> None:
    evidence.calls.append(Called("ann", "pay:2", "ok", ran=True, attempt_id="none", value="pay:2"))


def acked_and_gone(evidence: Evidence) -> None:
    evidence.acked.append(evidence.acked[-1]._replace(offset=999))


def acked_elsewhere(evidence: Evidence) -> None:
    evidence.acked.append(evidence.acked[-1]._replace(offset=0))


def acked_without_offset_and_gone(evidence: Evidence) -> None:
    evidence.acked.append(evidence.acked[-1]._replace(offset=None, fact=b"never written"))


def compacted_away(evidence: Evidence) -> None:
    del evidence.log[EFFECTS][-2:]


def projected_wrongly(evidence: Evidence) -> None:
    key = DocumentKey(OPS, "pay:1")
    evidence.projection[EFFECTS][key] = evidence.projection[EFFECTS][DocumentKey(OPS, "pay:2")]


def projected_nothing(evidence: Evidence) -> None:
    evidence.projection[EFFECTS].pop(DocumentKey(OPS, "pay:1"))


def projected_too_much(evidence: Evidence) -> None:
    evidence.projection[AGENTS][DocumentKey("agents", "ghost")] = b""


def a_hole_in_the_archive(evidence: Evidence) -> None:
    del evidence.tap[EFFECTS][1]


def an_archive_that_ends_early(evidence: Evidence) -> None:
    evidence.tap[EFFECTS] = evidence.tap[EFFECTS][:-1]


def answered_wrongly(evidence: Evidence) -> None:
    evidence.calls.append(Called("ann", "pay:1", "ok", value="made up"))


def answered_without_a_commit(evidence: Evidence) -> None:
    evidence.calls.append(Called("ann", "pay:77", "ok", value="made up"))


def a_foreign_error(evidence: Evidence) -> None:
    evidence.calls.append(Called("ann", "pay:1", "foreign", error="KafkaException: what"))


BROKEN: dict[Callable[[Evidence], None], str] = {
    hit_again: "at most once",
    hit_under_another_key: "at most once",
    hit_unasked: "mediated",
    hit_too_early: "mediated",
    hit_by_someone_else: "mediated",
    hit_without_an_outcome: "outcome",
    denied_hit: "outcome",
    imagined_hit: "outcome",
    acked_and_gone: "acknowledged",
    acked_elsewhere: "acknowledged",
    acked_without_offset_and_gone: "acknowledged",
    compacted_away: "acknowledged",
    projected_wrongly: "fold",
    projected_nothing: "fold",
    projected_too_much: "fold",
    a_hole_in_the_archive: "tap",
    an_archive_that_ends_early: "tap",
    answered_wrongly: "answers",
    answered_without_a_commit: "answers",
    a_foreign_error: "typed",
}


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda f: f.__name__)
def test_what_is_broken_is_found(breaking: Callable[[Evidence], None]) -> None:
    """Each promise, broken by hand in a sound history, is named."""
    evidence = written()
    breaking(evidence)
    assert BROKEN[breaking] in promises(evidence)


def test_a_rollback_over_an_effect() -> None:
    """An authorised rollback to before an effect is named, with the effect and the rollback."""
    [found] = check(written(after=True)).violations
    assert found.promise == "guard"
    assert "pay:3" in found.what
    assert "r1" in found.what


def test_an_effect_after_the_rollback() -> None:
    """What a session that was left does after the decision is named, whatever the policy was."""
    evidence = written(verdict="PROCEED_GATED")
    evidence.sink[1] = evidence.sink[1]._replace(at=evidence.decisions[0].at + 1)
    assert promises(evidence) == {"guard"}


def test_a_rollback_that_is_not_in_the_log() -> None:
    """A verdict that nobody wrote down is no verdict."""
    evidence = written()
    evidence.decisions.append(replace_id(evidence.decisions[0], "r9"))
    assert promises(evidence) == {"guard"}


def replace_id(decided: Decided, rollback_id: str) -> Decided:
    return decided._replace(rollback_id=rollback_id)


def test_what_an_ancestor_knew_is_known() -> None:
    """A later session's checkpoint knows what its predecessor's did, and what it absorbed itself; and nothing else."""
    book = Book()
    first = book.opened("s1")
    book.paid("pay:1", first, 1)
    mark = book.checkpoint("c1", first, 3, knows=2)
    book.paid("pay:2", first, 4)
    second = book.opened("s2", mark)
    later = book.checkpoint("c2", second, 1, knows=0)
    book.rolled_back(later, "PROCEED")
    [found] = check(book.finished()).violations
    assert (found.promise, "pay:2" in found.what) == ("guard", True)


def test_a_sealed_session_with_a_missing_number() -> None:
    """A number that a close seals and the log does not have is named."""
    book = Book()
    session = book.opened("s1")
    book.paid("pay:1", session, 1)
    book.close(session, 4)
    [found] = check(book.finished()).violations
    assert found.promise == "sequence"
    assert "[3]" in found.what


def test_a_watermark_that_goes_back() -> None:
    """Within a session no checkpoint knows less than the one before."""
    book = Book()
    session = book.opened("s1")
    book.paid("pay:1", session, 1)
    book.checkpoint("c1", session, 3, knows=2)
    book.checkpoint("c2", session, 4, knows=1)
    assert promises(book.finished()) == {"sequence"}


def test_a_commit_of_a_loser() -> None:
    """Two commits of one operation are an anomaly, and the loser had no right to run."""
    book = Book()
    session = book.opened("s1")
    book.paid("pay:1", session, 1)
    book.effect(EffectKind.INTENDED, "pay:1", "late", session, 3)
    book.effect(EffectKind.COMMITTED, "pay:1", "late", session, 4, result=b'"pay:1"')
    book.evidence.sink.append(Hit("hit", "other", "pay:1", "late", "ann", "s1", 99))
    assert promises(book.finished()) >= {"owner", "at most once"}


def test_an_effect_of_a_withdrawn_attempt() -> None:
    """An attempt that says it failed must not have changed anything; its operation would be free."""
    book = Book()
    session = book.opened("s1")
    book.effect(EffectKind.INTENDED, "pay:1", "a", session, 1)
    book.evidence.sink.append(Hit("hit", "k", "pay:1", "a", "ann", "s1", 99))
    book.effect(EffectKind.FAILED, "pay:1", "a", session, 2)
    assert promises(book.finished()) == {"mediated", "outcome"}


def test_a_debt_at_rest() -> None:
    """The newest record of a key that leaves a fact out is named, although nothing is lost yet."""
    book = Book()
    session = book.opened("s1")
    book.paid("pay:1", session, 1)
    book.known["pay:1"] = ()
    book.effect(EffectKind.INTENDED, "pay:1", "loser", session, 3)
    evidence = book.finished()
    assert promises(evidence) == {"fold"}
    assert any("leaves something out" in violation.what for violation in check(evidence).violations)


def test_compaction_that_forgets_nothing() -> None:
    """Where each key's newest record holds everything, removing the others changes nothing."""
    evidence = written()
    for partition, records in evidence.log.items():
        newest = {raw.key: raw for raw in records}
        evidence.log[partition] = sorted(newest.values())
    findings = check(evidence)
    assert findings.violations == []
    assert findings.marks["removed by compaction"] == 3


def test_every_promise_was_broken_once() -> None:
    """No check of the checker is without a test that makes it speak."""
    elsewhere = {"guard", "sequence", "owner"}
    assert {*BROKEN.values(), *elsewhere} == set(_CHECKS)


def test_evidence_survives_its_files(tmp_path: Path) -> None:
    """What the processes write is what the checker reads, and a line that a kill cut off is left out."""
    evidence = written()
    with (tmp_path / "sink.jsonl").open("wb") as out:
        out.writelines(line(hit._asdict()) for hit in evidence.sink)
    (tmp_path / "acked.a.jsonl").write_bytes(b"".join(acked_line(one) for one in evidence.acked) + b'{"topic": "eff')
    (tmp_path / "calls.a.jsonl").write_bytes(b"".join(line(one._asdict()) for one in evidence.calls))
    (tmp_path / "decisions.a.jsonl").write_bytes(b"".join(decided_line(one) for one in evidence.decisions))
    for name, log in (("tap", evidence.tap), ("log", evidence.log)):
        text = b"".join(raw_line(partition, raw) for partition, records in log.items() for raw in records)
        (tmp_path / f"{name}.jsonl").write_bytes(text + text)
    write_projection(tmp_path / "projection.jsonl", evidence.projection)
    assert load(tmp_path, 1) == evidence
