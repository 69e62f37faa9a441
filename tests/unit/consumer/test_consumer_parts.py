"""The small pure parts of the consumer: keys, headers, entries, payments, guarantees, failpoints, imports."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from confluent_kafka import murmur2

from fencepost.consumer import guarantees, keys
from fencepost.consumer.entries import RawMessage, entry_from_message
from fencepost.consumer.guarantees import TopicFacts, identity_checks, setting_checks, wanted_settings
from fencepost.consumer.headers import header_of, leader_epoch_of, words_of
from fencepost.consumer.kafka_client import Settled, partitioner
from fencepost.consumer.keys import PartitionKeys
from fencepost.consumer.payments import IN_FLIGHT, Payments
from fencepost.ledger import history, urls
from fencepost.ledger.history import Record
from fencepost.ledger.ports import Header
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import LAYOUT, Debt
from fencepost.schemas import SingleObjectCodec

EFFECTS = Partition(Topic.EFFECTS, 1)
URL = "kafka://h:1/led?projection=redis://h:2/0"


def words(*given: object) -> list[bytes]:
    return [str(word).encode() for word in given]


# -- keys and headers ------------------------------------------------------------------------


def test_keys_of_a_partition_share_a_hash_tag() -> None:
    """All keys that one script touches are in one slot of a cluster; another generation has keys of its own."""
    names = PartitionKeys("led", EFFECTS)
    every = [names.header, names.epoch, names.collections, names.accepted, names.channel, names.collection("a{b}")]
    assert {name.partition("}")[0] for name in every} == {f"{{led.effects.l{LAYOUT}.1"}
    assert len(set(every)) == len(every)
    moved = keys.partition_keys(urls.parse(f"{URL}&generation=2"), EFFECTS)
    assert moved.header == f"{{led.effects.g2.l{LAYOUT}.1}}:header"
    assert keys.meta(urls.parse(URL)) == "led:meta"
    assert keys.meta(urls.parse(f"{URL}&generation=2")) == "led:meta:g2"


def test_headers_come_back() -> None:
    """A header survives its way through the store, numbers of any size included."""
    header = Header(
        incarnation="i",
        generation=1,
        applied_offset=2**63 - 1,
        settled_offset=2**53 + 1,
        settled_time_ms=4,
        judge_from=5,
        horizon=6,
        opened=True,
        halted="because",
    )
    stored = [word.encode() for word in words_of(header, 8)]
    kept = [*stored, *words("seen_ms", 12, "counted", 3)]
    assert header_of(kept, words(3, 4_999)) == replace(header, seen_ms=12, now_ms=3004)
    assert leader_epoch_of(stored) == 8


def test_a_damaged_header() -> None:
    """A header that lost a field, or was marked, is as good as none, and says why."""
    stored = [*words_of(Header(incarnation="i", opened=True), 8), "seen_ms", "12", "counted", "3"]
    for lost in range(0, len(stored), 2):
        found = header_of(words(*stored[:lost], *stored[lost + 2 :]), words(1, 0))
        assert (found.incarnation, found.opened) == ("", False)
        assert f"no {stored[lost]}" in found.halted
    found = header_of(words(*stored, "damaged", "it has 1 of 2 documents in ops"), words(1, 0))
    assert (found.incarnation, found.opened) == ("", False)
    assert "1 of 2 documents in ops" in found.halted


def test_no_header() -> None:
    """Where nothing is stored, nothing is open."""
    assert header_of([], words(1, 0)) == Header(now_ms=1000)
    assert leader_epoch_of([]) == -1


def test_settled_offsets_need_metadata() -> None:
    """Only what a projector committed counts as settled."""
    settled = Settled(7, 1, "inc", "topic")
    assert Settled.read(7, settled.metadata()) == settled
    for other in (None, "", "x", "{}", "[]", "3", '{"time_ms": "x", "incarnation": "", "topic_id": ""}'):
        assert Settled.read(7, other) is None


# -- entries ---------------------------------------------------------------------------------


def entry(topic: Topic, key: str, number: int, value: bytes | None = None) -> history.LogEntry:
    raw = RawMessage(Partition(topic, number), 5, 9, key.encode(), value or history.encode(Record(key)))
    return entry_from_message(raw, partitioner(4))


@pytest.mark.parametrize("key", ["op", "~fence/a/b/1/0", "~horizon/1/3", "ü"])
def test_effects_stand_where_murmur2_puts_them(key: str) -> None:
    """In the effects topic the whole key decides, as Kafka's own partitioner does."""
    right = murmur2(key.encode(), 4)
    assert entry(Topic.EFFECTS, key, right).record == Record(key)
    wrong = entry(Topic.EFFECTS, key, (right + 1) % 4)
    assert wrong.record is None
    assert f"belongs to partition {right}" in wrong.problem


def test_agents_stand_where_their_agent_is() -> None:
    """In the agents topic all keys of an agent are together; the ledger's key is in partition 0, horizons as anywhere."""
    right = murmur2(b"a/b", 4)
    for key in ("session/a%2Fb/s", "checkpoint/a%2Fb/c", "absorbed/a%2Fb/s/op"):
        assert entry(Topic.AGENTS, key, right).problem == ""
        assert "belongs to" in entry(Topic.AGENTS, key, (right + 1) % 4).problem
    assert entry(Topic.AGENTS, "~ledger", 0).problem == ""
    assert "partition 0" in entry(Topic.AGENTS, "~ledger", 1).problem
    assert entry(Topic.AGENTS, "~horizon/2/0", murmur2(b"~horizon/2/0", 4)).problem == ""
    assert entry(Topic.AGENTS, "unheard/of", 3).problem == "", "the fold says what is wrong with it"


def test_murmur2_is_that_of_kafka() -> None:
    """The partitioner gives what Kafka's Java client gives for the same key."""
    assert partitioner(2**31 - 1)("kafka") == (0xD067CF64 & 0x7FFFFFFF) % (2**31 - 1)


def test_two_problems_are_both_told() -> None:
    """An undecodable record in the wrong partition is both."""
    right = murmur2(b"op", 4)
    assert entry(Topic.EFFECTS, "op", (right + 1) % 4, b"junk").problem.count(";") >= 1


def test_registry_format() -> None:
    """Values in a registry's wire format are read when a registry is configured; others as ever."""

    class Registry(SingleObjectCodec):
        def decode_record(self, data: bytes) -> dict[str, object]:
            return super().decode_record(data[5:])

    codec, record = Registry(), Record("op", (), None, "w")
    plain = history.encode(record)
    framed = b"\x00\x00\x00\x00\x07" + plain
    place = Partition(Topic.EFFECTS, murmur2(b"op", 4))

    def read(value: bytes | None, key: bytes = b"op") -> history.LogEntry:
        return entry_from_message(RawMessage(place, 1, 2, key, value), partitioner(4), codec)

    assert framed[:1] == b"\x00"
    assert read(framed).record == read(plain).record == record
    assert "undecodable" in read(framed[:-1]).problem
    assert "tombstone" in read(None).problem
    assert "another key" in read(framed, b"~horizon/1/0").problem
    assert read(framed, b"\xff").key is None


# -- payments --------------------------------------------------------------------------------


def debts(count: int) -> dict[str, Debt]:
    return {f"k{n}": Debt(1000 - n, 5) for n in range(count)}


def test_oldest_debts_first_and_not_too_many() -> None:
    """A bounded number is in flight, the oldest first; none twice."""
    payments, owed = Payments(), debts(600)
    first = payments.due(owed, 0, 1.0)
    assert first == [f"k{n}" for n in range(599, 599 - IN_FLIGHT, -1)]
    for key in first:
        payments.begin(key, 1.0).delivered(2000)
    assert payments.due(owed, 2000, 2.0) == []
    for key in first[:10]:
        del owed[key]
    assert payments.due(owed, 2000, 2.0) == [f"k{n}" for n in range(599 - IN_FLIGHT, 589 - IN_FLIGHT, -1)]


def test_payments_that_come_to_nothing_are_repeated() -> None:
    """Failed, read back without sufficing, or never heard of again: the key is paid once more."""
    payments, owed = Payments(), debts(3)
    for key, pay in zip(payments.due(owed, 0, 0.0), ("failed", "short", "silent"), strict=True):
        payment = payments.begin(key, 0.0)
        if pay == "failed":
            payment.failed(0.0)
        elif pay == "short":
            payment.delivered(50)
        else:
            payment.delivered(None)
    assert payments.due(owed, 50, 0.1) == []
    assert payments.due(owed, 51, 0.1) == ["k1"]
    payments.begin("k1", 0.1)
    assert payments.due(owed, 51, 0.6) == ["k2"]
    payments.begin("k2", 0.6)
    assert payments.due(owed, 51, 30.0) == ["k0"]


def test_a_key_that_owes_again_waits_for_its_turn() -> None:
    """A debt that was struck while it waited is not paid; a younger one of the same key comes later."""
    payments, owed = Payments(), debts(300)
    for key in payments.due(owed, 0, 0.0):
        payments.begin(key, 0.0).delivered(5000)
    waiting = [key for key in owed if key not in payments._in_flight]
    del owed[waiting[0]]
    for key in list(payments._in_flight):
        del owed[key]
    assert waiting[0] not in payments.due(owed, 6000, 1.0)
    assert payments.due({}, 6000, 1.0) == []


# -- guarantees ------------------------------------------------------------------------------


def facts(**settings: str) -> TopicFacts:
    given = wanted_settings(development=False, min_compaction_lag_ms=guarantees.DAY_MS)
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    return TopicFacts("t", "id", 3, 3, given)


def failing(found: TopicFacts, *, development: bool = False) -> dict[str, str]:
    return {c.name: c.severity for c in setting_checks(found, development=development) if not c.ok}


def test_what_is_created_is_what_is_wanted() -> None:
    """A topic made by `initialise` passes every check."""
    assert failing(facts()) == {}


@pytest.mark.parametrize("policy", ["compact,delete", "delete,compact", "delete", ""])
def test_policy(policy: str) -> None:
    """Exactly compact: anything more deletes the last record of a key."""
    assert failing(facts(cleanup_policy=policy), development=True) == {"t: cleanup.policy": "refuse"}


def test_numbers() -> None:
    """Too short a lag and too few copies: refused, or loud warnings in development; nonsense counts as too little."""
    weak = replace(facts(min_compaction_lag_ms="86399999", min_insync_replicas="x"), replicas=2)
    names = {"t: min.compaction.lag.ms", "t: min.insync.replicas", "t: replicas"}
    assert failing(weak) == dict.fromkeys(names, "refuse")
    assert failing(weak, development=True) == dict.fromkeys(names, "warn")


@pytest.mark.parametrize("development", [False, True])
def test_a_limit_below_what_an_outcome_may_need(development: bool) -> None:
    """Whether an outcome fits is no question of the profile: too low a limit is refused in both."""
    found = facts(max_message_bytes=str(guarantees.MAX_MESSAGE_BYTES - 1))
    assert failing(found, development=development) == {"t: max.message.bytes": "refuse"}


def test_a_setting_that_is_not_told() -> None:
    """What the broker does not tell is not given."""
    found = facts()
    del found.settings["message.timestamp.type"]  # type: ignore[attr-defined]
    [check] = [c for c in setting_checks(found, development=True) if not c.ok]
    assert (check.name, check.found) == ("t: message.timestamp.type", "not set")


def test_identity() -> None:
    """The topic's id and partition count are compared with all that is known of them."""
    assert identity_checks(facts(), {}) == []
    assert all(c.ok for c in identity_checks(facts(), {"topic_id": "id", "partitions": "3"}, "id"))
    found = identity_checks(facts(), {"topic_id": "old", "partitions": "2"}, "other")
    assert [(c.wanted, c.ok) for c in found] == [("old", False), ("other", False), ("exactly 2", False)]


# -- processes -------------------------------------------------------------------------------


def run(code: str, failpoint: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code], env={"FENCEPOST_FAILPOINT": failpoint}, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    ("failpoint", "printed", "code"),
    [
        ("", b"012", 0),
        ("here:kill", b"", -signal.SIGKILL),
        ("here:kill:3", b"01", -signal.SIGKILL),
        ("there:kill", b"012", 0),
        ("here", b"012", 0),
        ("here:sing", b"012", 0),
    ],
)
def test_failpoints(failpoint: str, printed: bytes, code: int) -> None:
    """Only the named place kills, at the wanted time; unarmed ones do nothing."""
    text = "from fencepost.consumer import failpoints\nfor n in range(3):\n failpoints.hit('here')\n print(n,end='',flush=True)"
    done = run(text, failpoint)
    assert (done.stdout, done.returncode) == (printed, code)


def test_importing_is_light() -> None:
    """Importing the package loads no client library."""
    done = run(
        "import sys, fencepost.consumer; print({m.partition('.')[0] for m in sys.modules} & {'redis','confluent_kafka'})"
    )
    assert done.stdout.strip() == b"set()"
