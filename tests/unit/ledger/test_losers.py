"""Attempts that never owned an operation are kept as numbers: bounded, accounted for, and part of the union."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from unit.ledger.kit import OP, MemoryPartition, at, committed, effect, encoded, failed, fenced, intended

from fencepost.ledger import history, losers
from fencepost.ledger.derived_facts import agree
from fencepost.ledger.facts import EffectFact
from fencepost.ledger.history import Record
from fencepost.ledger.losers import KEPT, SUMMARISED_FROM, Number
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Status
from fencepost.ledger.positions import Position
from fencepost.ledger.projection import seqs
from fencepost.ledger.seq_bits import bits_of

LIMIT_BYTES = 256 * 1024


def racing(number: int, **values: object) -> EffectFact:
    """The intent of the n-th sibling: a session of its own, known by its epoch."""
    usual = {"session_id": f"s{number}", "epoch": Position(0, 1000 + number), "seq": 1 + number % 3}
    return intended(f"a{number}", **{**usual, **values})


@pytest.fixture
def log() -> MemoryPartition:
    return MemoryPartition()


def race(log: MemoryPartition, count: int) -> None:
    for number in range(count):
        log.append(OP, racing(number))
    log.pay()


def test_ten_thousand_siblings_of_one_operation_fit_into_a_record() -> None:
    """One owner, 9,999 losers, each a session of its own: the record that holds all of it stays under 256 KiB."""
    known = at(*(racing(number) for number in range(10_000)))
    assert len(b"".join(fact for _, fact in known)) > 3 * LIMIT_BYTES
    kept = history.summarised(OP, known, losers.to_summarise(fold_operation(OP, known)))
    operation = fold_operation(OP, kept)
    assert operation.owner is not None
    assert (operation.status, operation.owner.attempt_id) == (Status.OWNED, "a0")
    assert losers.count(operation) + len(operation.attempts) == 10_000
    assert len(history.encode(Record(OP, kept))) < LIMIT_BYTES / 4


def test_a_history_is_bounded_while_they_race(log: MemoryPartition) -> None:
    """Also in between, one record at a time: the document never holds more than a bounded number of attempts."""
    for number in range(1_000):
        log.append(OP, racing(number))
    for _ in range(50):
        log.project(20)
        assert len(log.operation().attempts) <= SUMMARISED_FROM + 1
    log.pay()
    assert losers.count(log.operation()) + len(log.operation().attempts) == 1_000
    assert not log.fold.debts


def test_every_sequence_number_stays_accounted_for(log: MemoryPartition) -> None:
    """Those of summarised attempts as well; also after a rebuild from the cleaned log, byte for byte."""
    race(log, 300)
    for number in range(300):
        seen = {int(k): v for k, v in log.collection(seqs("agent", Position(0, 1000 + number))).items()}
        assert bits_of(seen) == {1 + number % 3}, number
    before = dict(log.documents)
    log.clean()
    assert sum(entry is not None for entry in log.log) < 100
    log.lose()
    log.project()
    log.pay()
    assert log.documents == before


def test_few_losers_stay_as_they_are(log: MemoryPartition) -> None:
    """Evidence is kept in full while it is small; then the oldest of it."""
    race(log, SUMMARISED_FROM)
    assert (losers.count(log.operation()), len(log.operation().attempts)) == (0, SUMMARISED_FROM)
    log.append(OP, racing(SUMMARISED_FROM))
    log.pay()
    operation = log.operation()
    assert losers.count(operation) == SUMMARISED_FROM - KEPT
    assert list(operation.attempts) == [f"a{n}" for n in range(KEPT + 1)]


def test_an_intent_that_arrives_again_claims_nothing(log: MemoryPartition) -> None:
    """Its attempt is recognised by number, although the operation is free by now."""
    race(log, 200)
    log.append(OP, failed("a0", session_id="s0", epoch=Position(0, 1000), seq=9))
    log.append(OP, racing(150))
    log.pay()
    operation = log.operation()
    assert operation.status is Status.FREE
    assert "a150" not in operation.attempts
    log.append(OP, replace(racing(150), attempt_id="anew", seq=7))
    log.pay()
    assert log.operation().owner is not None


def test_a_late_commit_of_a_summarised_attempt_is_never_dropped(log: MemoryPartition) -> None:
    """As of any attempt that is not the owner: an anomaly while another owns it, flagged when it is free."""
    race(log, 200)
    log.append(OP, replace(committed("a150"), session_id="s150", epoch=Position(0, 1150), seq=8))
    log.pay()
    assert [a.attempt_id for a in log.operation().anomalies] == ["a150"]
    other = MemoryPartition()
    race(other, 200)
    other.append(OP, failed("a0", seq=9))
    other.append(OP, replace(committed("a150"), session_id="s150", epoch=Position(0, 1150), seq=8))
    other.pay()
    assert (other.operation().status, other.operation().flagged) == (Status.COMMITTED, True)


def test_an_attempt_that_owned_is_not_summarised(log: MemoryPartition) -> None:
    """Nor is one that was withdrawn before its intent came: the intent must find that it is."""
    log.append(OP, racing(0))
    log.append(OP, failed("a0", seq=5))
    log.append(OP, failed("late", session_id="sl", epoch=Position(0, 5), seq=2))
    for number in range(1, 200):
        log.append(OP, racing(number))
    log.pay()
    operation = log.operation()
    assert operation.owner is not None
    assert operation.owner.attempt_id == "a1"
    assert {"a0", "a1", "late"} <= set(operation.attempts)
    log.append(OP, failed("a1", session_id="s1", epoch=Position(0, 1001), seq=5))
    log.append(OP, intended("late", session_id="sl", epoch=Position(0, 5), seq=1))
    log.pay()
    assert log.operation().status is Status.FREE


def test_rejected_attempts_are_summarised_with_their_verdicts(log: MemoryPartition) -> None:
    """A fenced sibling's intent and the verdict on it go together, and stay gone."""
    for n in range(100):
        log.append(f"~fence/agent/main/0/{n}" if n == 0 else OP, fenced(5000) if n == 0 else racing(n))
    log.append(OP, racing(200, epoch=Position(0, 6000)))
    log.pay()
    operation = log.operation()
    assert operation.owner is not None
    assert operation.owner.attempt_id == "a200"
    states = {a.state for a in operation.attempts.values()}
    assert states == {AttemptState.REJECTED, AttemptState.OWNER}
    assert losers.count(operation) + len(operation.attempts) == 100
    assert len(operation.attempts) <= SUMMARISED_FROM
    old = at(*(racing(n) for n in range(1, 100)))
    log.append_record(Record(OP, old))
    log.pay()
    assert len(log.operation().attempts) < SUMMARISED_FROM + 2


def test_withdrawals_of_summarised_attempts_are_summarised_too(log: MemoryPartition) -> None:
    """Hundreds of siblings that gave up waiting: the history stays small, and each number is accounted for."""
    race(log, 400)
    for number in range(100, 400):
        gone = replace(failed(f"a{number}"), session_id=f"s{number}", epoch=Position(0, 1000 + number), seq=7)
        log.append(OP, replace(gone, intent_seq=1 + number % 3))
    log.pay()
    operation = log.operation()
    assert len(operation.attempts) <= SUMMARISED_FROM + 1
    in_full = sum(1 + (attempt.outcome is not None) for attempt in operation.attempts.values())
    assert losers.count(operation) + in_full == 400 + 300
    seen = {int(k): v for k, v in log.collection(seqs("agent", Position(0, 1300))).items()}
    assert bits_of(seen) == {1 + 300 % 3, 7}
    before = dict(log.documents)
    log.clean()
    log.lose()
    log.project()
    log.pay()
    assert log.documents == before


def test_a_summary_that_cannot_be_read_is_set_aside(log: MemoryPartition) -> None:
    """Like any fact that cannot: the operation is unsafe, and the next record is taken."""
    log.append(OP, racing(0))
    log.append(OP, effect("SUMMARISED", "", losers=b"\x02"))
    log.append("other", intended("a", op_id="other"))
    log.pay()
    assert log.operation().status is Status.UNSAFE
    assert log.operation("other").status is Status.OWNED
    assert OP in log.collection("unsafe")


def test_merging_is_a_union() -> None:
    """Commutative, associative, idempotent: with summaries on either side, on both, and their facts anywhere."""
    chance = random.Random(7)
    facts = at(*(racing(n) for n in range(40)))
    verdicts = dict(zip(facts, at(*(replace(effect("REJECTED", f"a{n}"), seq=0) for n in range(10))), strict=False))
    numbers = [losers.number_of(racing(n)) for n in range(40)]
    for _ in range(300):
        parts = []
        for _ in range(3):
            picked = chance.sample(facts, 12)
            some = history.merge(picked, (verdicts[f] for f in picked if f in verdicts))  # they travel together
            if chance.random() < 0.7:
                chosen = frozenset(chance.sample(numbers, chance.randint(1, 15)))
                some = history.merge(some, (history.PositionedFact(Position(0, 99), losers.summary(OP, chosen)),))
            parts.append(some)
        a, b, c = parts
        whole = history.merge(a, b, c)
        assert history.merge(history.merge(a, b), c) == history.merge(a, history.merge(c, b))
        assert history.merge(whole, a) == whole == history.merge(whole, whole)
        assert history.contains(whole, b)
        assert sum(losers.is_summary(f) for _, f in whole) <= 1


def test_a_record_that_lacks_the_summary_is_owed(log: MemoryPartition) -> None:
    """A writer that read the operation before it was summarised leaves the summary out."""
    race(log, 200)
    log.append(OP, committed("a0", session_id="s0", epoch=Position(0, 1000), seq=9), at(racing(0)))
    log.project()
    assert OP in log.fold.debts
    log.pay()
    assert log.operation().status is Status.COMMITTED
    assert history.contains(log.log[-1].record.history, log.history())  # type: ignore[union-attr]


def test_numbers_round_trip() -> None:
    """Whatever the agents, generations, and gaps; equal numbers are equal bytes."""
    some = {Number(a, Position(g, e), s) for a in ("a", "é/b") for g in (0, 2) for e in (0, 7, 10**12) for s in (1, 9)}
    data = losers.summary(OP, some)
    assert losers.numbers(data) == some
    assert losers.summary(OP, sorted(some, reverse=True)) == data
    assert losers.is_summary(data)
    assert not losers.is_summary(encoded(intended("a")))
    assert not losers.is_summary(data[:-1])


@pytest.mark.parametrize(
    "body", [b"\x02", b"\x02a", b"\x02a\x00\x04\x00\x02", b"\xff" * 12, b"\x02\xff\x00\x00", b"\x01"]
)
def test_a_summary_that_cannot_be_read_is_none(body: bytes) -> None:
    """Cut off, endless, not UTF-8, a negative length: it is set aside with its record, and covers nothing."""
    fact = encoded(effect("SUMMARISED", "", losers=body))
    assert not losers.is_summary(fact)
    facts = at(racing(1), racing(2))
    bad = history.PositionedFact(Position(0, 5), fact)
    assert history.merge(facts, (bad,)) == (*facts, bad)


def test_below_the_horizon_nothing_is_summarised(log: MemoryPartition) -> None:
    """A verdict may be missing there, and with it the owner may change."""
    for number in range(100):
        log.append(OP, racing(number))
    log.header = replace(log.header, opened=False, horizon=100)
    log.restart()
    log.project(99)
    assert losers.count(fold_operation(OP, log.history())) == 0


def test_a_history_agrees_with_its_summary_and_with_no_other() -> None:
    """What verify compares: the same facts, partly as numbers; a number that nobody wrote is a difference."""
    whole = at(*(racing(n) for n in range(20)))
    some = frozenset(losers.number_of(racing(n)) for n in range(5, 15))
    short = history.summarised(OP, whole, some)
    assert agree(whole, short)
    assert agree(short, whole)
    assert agree(short, history.summarised(OP, whole, frozenset(losers.number_of(racing(n)) for n in range(8, 18))))
    assert not agree(whole, whole[:-1])
    assert not agree(whole[:-1], short)
    assert not agree(whole, history.summarised(OP, whole, some | {Number("agent", Position(0, 9), 9)}))
