"""Records that cannot be applied stop nothing, are reported with their place, and make their key unsafe."""

from __future__ import annotations

import json

import pytest
from unit.ledger.kit import (
    AGENTS,
    EFFECTS,
    FENCE,
    OP,
    MemoryPartition,
    agent_fact,
    committed,
    effect,
    encoded,
    failed,
    fenced,
    intended,
    opened,
    resolved,
)

from fencepost.ledger import history, log_keys
from fencepost.ledger.history import PositionedFact, Record, read_entry
from fencepost.ledger.marks import mark_of, set_aside_agent_mark, set_aside_mark
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import (
    AGENTS as AGENTS_INDEX,
)
from fencepost.ledger.projection import (
    OPEN,
    OPS,
    SET_ASIDE,
    UNSAFE,
    Debt,
    document_of,
    seqs,
)
from fencepost.ledger.seq_bits import SEQ_CHUNK, bits_of, set_bits
from fencepost.ledger.set_aside import WORDS, SetAside, is_given, without_marks, word_about


@pytest.fixture
def log() -> MemoryPartition:
    return MemoryPartition()


def test_a_record_that_cannot_be_read_is_set_aside_and_the_rest_goes_on(log: MemoryPartition) -> None:
    """Its place and its problem are kept; what comes behind is applied."""
    log.append_raw(OP, "undecodable: rubbish")
    log.append("x", intended("a", op_id="x"))
    log.project()
    note = json.loads(log.collection(SET_ASIDE)["0"])
    assert note == {
        "partition": "effects/0", "offset": 0, "generation": 0, "key": OP, "problem": "undecodable: rubbish",
        "time_ms": 1000, "stray": False,
    }  # fmt: skip
    assert log.collection(UNSAFE).keys() == {OP}
    assert log.collection(OPEN)[OP] == b"unsafe"
    assert log.operation("x").status.value == "owned"
    assert log.operation().status.value == "unsafe"
    assert log.fold.debts == {OP: Debt(0, 1000)}


def test_what_was_set_aside_stays_unsafe_when_the_record_is_gone(log: MemoryPartition) -> None:
    """The mark is in the operation's own history: the cleaner and a rebuild do not make it safe."""
    log.append(OP, intended("a"))
    log.append_raw(OP, "undecodable: rubbish")
    log.project()
    log.append(OP, failed("a"), log.history())
    log.project()
    log.pay()
    log.clean()
    assert all(entry is None or entry.record is not None for entry in log.log)
    log.lose()
    log.project()
    assert log.operation().status.value == "unsafe"
    assert log.collection(OPEN)[OP] == b"unsafe"
    log.append(OP, resolved("ABSENT", version_of(log)), log.history())
    log.project()
    assert log.operation().status.value == "free"
    assert log.collection(OPEN) == {}


def version_of(log: MemoryPartition) -> int:
    """The offset that the operation's version names."""
    return Position.parse(log.operation().version).offset


def test_a_tombstone_of_a_known_key_is_owed(log: MemoryPartition) -> None:
    """The cleaner would drop the key's history with it; the re-assertion puts it back."""
    log.append(OP, intended("a"))
    log.append_raw(OP, "the value is null (a tombstone)")
    log.project()
    assert log.fold.debts == {OP: Debt(1, 1001)}
    log.pay()
    assert log.header.settled_offset == 3
    log.clean()
    assert [entry.offset for entry in log.log if entry] == [2]
    log.lose()
    log.project()
    assert log.operation().status.value == "unsafe"
    assert list(log.operation().attempts) == ["a"]


def test_a_record_of_another_partition_touches_nothing(log: MemoryPartition) -> None:
    """It is reported; the history of its key stands elsewhere, so nothing is owed here."""
    log.append_raw(OP, "the key belongs to partition 3", stray=True)
    log.project()
    assert set(log.documents) == {DocumentKey(SET_ASIDE, "0")}
    assert log.fold.debts == {}


def test_a_record_without_a_key_is_only_reported(log: MemoryPartition) -> None:
    """There is no operation to distrust."""
    log.append_raw(None, "the key is missing or is not UTF-8")
    log.project()
    assert set(log.documents) == {DocumentKey(SET_ASIDE, "0")}


@pytest.mark.parametrize("key", ["~nothing/of/ours", "~fence/only/three"])
def test_keys_of_an_unknown_form_are_set_aside(log: MemoryPartition, key: str) -> None:
    """They may be of a later version: reported, not guessed at."""
    log.append(key, None)
    log.project()
    assert "unknown form" in json.loads(log.collection(SET_ASIDE)["0"])["problem"]


def test_a_fact_that_names_another_operation_is_not_taken(log: MemoryPartition) -> None:
    """Neither as the record's own fact nor in its history; the key is unsafe."""
    stray = intended("a", op_id="elsewhere")
    log.append(OP, stray)
    log.append(OP, intended("b"), (PositionedFact(Position(0, 0), encoded(stray)),))
    log.project()
    assert {fact for _, fact in log.history()} == {set_aside_mark(OP)}
    assert len(log.collection(SET_ASIDE)) == 2
    assert "another operation" in json.loads(log.collection(UNSAFE)[OP])["problem"]


def test_a_fence_holds_no_facts_of_operations(log: MemoryPartition) -> None:
    """And an operation's key none without an operation."""
    log.append(FENCE, intended("a"))
    log.append(OP, fenced(5))
    log.project()
    assert log.collection(UNSAFE).keys() == {FENCE, OP}
    assert log.history(FENCE) == ()


def test_a_fact_that_does_not_decode_sets_the_whole_record_aside(log: MemoryPartition) -> None:
    """Half a record is not taken; what was known before stays."""
    log.append(OP, intended("a"))
    log.project()
    log.append_record(Record(OP, (*log.history(), PositionedFact(Position(0, 5), b"rubbish")), encoded(committed("a"))))
    log.append_record(Record(FENCE, (), b"rubbish"))
    log.project()
    assert log.operation().status.value == "unsafe"
    assert [fact for _, fact in log.history()] == [encoded(intended("a")), set_aside_mark(OP)]
    assert "a fact is undecodable" in json.loads(log.collection(SET_ASIDE)["1"])["problem"]
    assert log.fold.debts == {OP: Debt(1, 1001)}
    assert set(log.collection(UNSAFE)) == {OP, FENCE}


def test_only_a_resolution_behind_the_record_clears_the_mark(log: MemoryPartition) -> None:
    """Ordinary facts do not, nor a resolution of another version."""
    log.append(OP, intended("a"))
    log.append_raw(OP, "undecodable")
    log.project()
    log.append(OP, committed("a"), log.history())
    log.append(OP, resolved("COMMITTED", 0), log.history())
    log.project()
    assert OP in log.collection(UNSAFE)
    log.append(OP, resolved("COMMITTED", 2), log.history())
    log.project()
    assert (log.collection(UNSAFE), log.collection(OPEN)) == ({}, {})


def test_a_resolution_before_the_record_does_not_clear_it(log: MemoryPartition) -> None:
    """Its author could not have known."""
    log.append(OP, intended("a"))
    log.append(OP, resolved("ABSENT", 0), log.history())
    log.append_raw(OP, "undecodable")
    log.project()
    log.append(OP, intended("b"), log.history())
    log.project()
    assert OP in log.collection(UNSAFE)


def test_raw_bytes_become_an_entry_or_a_problem() -> None:
    """Nothing raises: the problem is the answer."""
    good = Record(OP, (), encoded(intended("a")))
    raw = history.encode(good)
    assert read_entry(EFFECTS, 3, 7, key=OP.encode(), value=raw).record == good
    for key, value, problem in (
        (None, raw, "missing"),
        (b"", raw, "missing"),
        (b"\xff", raw, "UTF-8"),
        (OP.encode(), None, "tombstone"),
        (OP.encode(), b"", "undecodable"),
        (OP.encode(), raw[:-1], "undecodable"),
        (b"other", raw, "names another key"),
    ):
        entry = read_entry(EFFECTS, 3, 7, key=key, value=value)
        assert entry.record is None
        assert problem in entry.problem
        assert (entry.offset, entry.time_ms) == (3, 7)


# -- indexes -------------------------------------------------------------------------------


def test_open_operations_are_indexed_until_they_are_settled(log: MemoryPartition) -> None:
    """Owned, in doubt, with an anomaly: open. Free and committed: not."""
    log.append(OP, intended("a"))
    log.project()
    assert log.collection(OPEN) == {OP: b"owned"}
    log.append(OP, effect("IN_DOUBT", "a"), log.history())
    log.project()
    assert log.collection(OPEN) == {OP: b"in doubt"}
    log.append(OP, committed("a"), log.history())
    log.project()
    assert log.collection(OPEN) == {}
    log.append(OP, intended("b"), log.history())
    log.append(OP, committed("b"), log.history())
    log.pay()
    assert log.collection(OPEN) == {OP: b"committed"}


def test_operations_are_indexed_by_every_agent_that_attempted_them(log: MemoryPartition) -> None:
    """So that the guard finds an agent's effects without reading all."""
    log.append(OP, intended("a"))
    log.append(OP, intended("b", agent_id="second"), ())
    log.pay()
    assert log.collection("agent-ops/agent").keys() == log.collection("agent-ops/second").keys() == {OP}
    assert log.collection(AGENTS_INDEX).keys() == {"agent", "second"}


def test_sequence_numbers_are_kept_as_bitmaps(log: MemoryPartition) -> None:
    """Of facts in a record's history too; numbers of facts that no session wrote are 0 and not kept."""
    numbers = {1, 2, 9, SEQ_CHUNK - 1, SEQ_CHUNK, 3 * SEQ_CHUNK + 5}
    for number in sorted(numbers):
        op_id = f"op{number}"
        log.append(op_id, intended("a", op_id=op_id, session_id="s", seq=number))
    log.append("zero", intended("a", op_id="zero", session_id="s"))
    log.project()
    chunks = {int(key): data for key, data in log.collection(seqs("agent", intended("a").epoch)).items()}
    assert bits_of(chunks) == numbers
    assert set(chunks) == {0, 1, 3}
    assert set_bits(None, ()) == bytes(SEQ_CHUNK // 8)


def test_agents_documents_are_kept_by_family() -> None:
    """Structure together, and checkpoints, absorptions and calls apart, so that each is read alone."""
    log = MemoryPartition(AGENTS)
    for key in (
        log_keys.session("ag/1", "s"), log_keys.branch("ag/1", "b"), log_keys.rollback("ag/1", "r"),
        log_keys.checkpoint("ag/1", "c"), log_keys.absorbed("ag/1", "s", "op"), log_keys.call("ag/1", "s", 4),
    ):  # fmt: skip
        log.append(key, opened("s", agent_id="ag/1"))
    log.append(log_keys.LEDGER, agent_fact("LEDGER_CREATED", agent_id=""))
    log.append("unknown/family", opened("s"))
    log.project()
    sizes = {name: len(log.collection(f"{name}/ag/1")) for name in ("agent", "checkpoints", "absorbed", "calls")}
    assert sizes == {"agent": 3, "checkpoints": 1, "absorbed": 1, "calls": 1}
    assert len(log.collection("ledger")) == 1
    assert log.collection(AGENTS_INDEX).keys() == {"ag/1"}
    assert log.collection(SET_ASIDE).keys() == {"7"}


def test_which_document_holds_a_key() -> None:
    """One for each operation, fence and agent key; none for markers and unknown forms."""
    assert document_of(Topic.EFFECTS, OP) == DocumentKey(OPS, OP)
    assert document_of(Topic.EFFECTS, log_keys.horizon(0, lambda _: 0)) is None
    assert document_of(Topic.AGENTS, log_keys.horizon(0, lambda _: 0)) is None
    assert document_of(Topic.EFFECTS, "~other") is None
    assert document_of(Topic.AGENTS, OP) is None


# -- agents --------------------------------------------------------------------------------


def agents_log() -> tuple[MemoryPartition, str]:
    log, key = MemoryPartition(AGENTS), log_keys.session("agent", "s")
    log.append(key, opened("s"))
    return log, key


def test_what_was_set_aside_of_an_agent_stays_when_the_record_is_gone() -> None:
    """The mark is in the key's own history: a cleaner and a rebuild do not make the agent safe."""
    log, key = agents_log()
    log.append_raw(key, "undecodable: rubbish")
    log.project()
    assert log.history(key)[-1].fact == set_aside_agent_mark("agent")
    assert log.fold.debts == {key: Debt(1, 1001)}
    log.pay()
    log.clean()
    assert all(entry is None or entry.record is not None for entry in log.log)
    log.lose()
    log.project()
    note = json.loads(log.collection(UNSAFE)[key])
    assert (note["offset"], note["generation"], note["key"]) == (1, 0, key)


def test_the_ledgers_own_record_gets_no_mark() -> None:
    """Its last fact says which topics these are; a mark behind it would say none."""
    log = MemoryPartition(AGENTS)
    log.append(log_keys.LEDGER, agent_fact("LEDGER_CREATED", agent_id=""))
    log.append_raw(log_keys.LEDGER, "undecodable: rubbish")
    log.project()
    assert len(log.collection("ledger")) == 1
    assert len(log.history(log_keys.LEDGER)) == 1
    assert log.collection(UNSAFE).keys() == {log_keys.LEDGER}


def test_which_keys_get_a_mark() -> None:
    """Operations and agents; an operation that is called like an agent's key is an operation."""
    key = log_keys.session("agent", "s")
    assert mark_of(Topic.EFFECTS, OP) == set_aside_mark(OP)
    assert mark_of(Topic.EFFECTS, key) == set_aside_mark(key)
    assert mark_of(Topic.AGENTS, key) == set_aside_agent_mark("agent")
    assert (mark_of(Topic.EFFECTS, FENCE), mark_of(Topic.AGENTS, log_keys.LEDGER)) == (None, None)


def test_marks_are_told_from_facts() -> None:
    """Only the very bytes of the mark are one: a fact of a later version is not to be overlooked."""
    key = log_keys.session("agent", "s")
    mark, later = set_aside_agent_mark("agent"), encoded(agent_fact("UNKNOWN"))
    facts = tuple(PositionedFact(Position(0, n), fact) for n, fact in enumerate((encoded(opened("s")), mark, later)))
    kept, marked = without_marks(key, Topic.AGENTS, facts)
    assert (len(kept), marked) == (2, (Position(0, 1),))
    other = log_keys.session("other", "s")
    assert without_marks(other, Topic.AGENTS, facts) == (facts, ())


def test_the_word_about_one_record_is_none_about_another() -> None:
    """Another key, place, or topic has another op_id; the same record always the same."""
    key = log_keys.session("agent", "s")
    words = {
        word_about(topic, name, Position(generation, offset))
        for topic in Topic
        for name in (key, "x")
        for generation in (0, 1)
        for offset in (1, 2)
    }
    assert len(words) == 16
    assert all(log_keys.is_operation(word) and word.startswith(WORDS) for word in words)
    record = SetAside(AGENTS, Position(0, 1), key, "rubbish")
    assert record.word == word_about(Topic.AGENTS, key, Position(0, 1))
    moved = SetAside(Partition(Topic.AGENTS, 5), Position(0, 1), key, "rubbish")
    assert moved.word == record.word
    keyless = [SetAside(Partition(Topic.AGENTS, n), Position(0, 1), None, "rubbish") for n in (0, 1)]
    assert keyless[0].word != keyless[1].word


def test_what_a_record_that_was_set_aside_belongs_to() -> None:
    """An operation, a key that is distrusted, or nothing."""
    at = Position(0, 1)
    cases = {
        SetAside(EFFECTS, at, OP, ""): (OP, True),
        SetAside(EFFECTS, at, OP, "", stray=True): ("", False),
        SetAside(EFFECTS, at, FENCE, ""): ("", True),
        SetAside(EFFECTS, at, "~unknown", ""): ("", False),
        SetAside(EFFECTS, at, None, ""): ("", False),
        SetAside(AGENTS, at, log_keys.session("agent", "s"), ""): ("", True),
        SetAside(AGENTS, at, OP, ""): ("", False),
    }
    assert {record: (record.op_id, record.distrusted) for record in cases} == cases


def test_only_an_operators_word_counts_as_one(log: MemoryPartition) -> None:
    """Somebody who claims the op_id under which a word is kept has given none, and prevents one."""
    word = word_about(Topic.EFFECTS, FENCE, Position(0, 1))
    assert not is_given(fold_operation(word, ()))
    given = PositionedFact(Position(0, 5), encoded(resolved("ABSENT", "", op_id=word)))
    assert is_given(fold_operation(word, (given,)))
    claimed = PositionedFact(Position(0, 4), encoded(intended("a", op_id=word)))
    assert not is_given(fold_operation(word, (claimed, given)))
    assert not is_given(fold_operation(word, (claimed,)))
