"""Records that cannot be taken: set aside with their coordinates, their keys unsafe, everything else goes on."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import murmur2
from projection_kit import Rig, committed, effect, make_rig, projector

from fencepost.ledger import history
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.history import Record
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import OPEN, OPS, SET_ASIDE, UNSAFE

KEY = "poisoned"
GOOD = history.encode(Record(KEY, (), effect(EffectKind.INTENDED, KEY, "a9"), "test"))
POISON = {
    "empty": (b"", "undecodable"),
    "random": (random.Random(7).randbytes(300), "undecodable"),
    "truncated": (GOOD[:-9], "undecodable"),
    "longer": (GOOD + b"x", "undecodable"),
    "registry id": (b"\x00\x00\x00\x00\x07abc", "schema registry"),
    "tombstone": (None, "tombstone"),
    "huge": (b"\xc3\x01" + bytes(1_500_000), "undecodable"),
    "another key": (history.encode(Record("other", (), effect(EffectKind.INTENDED, "other", "a9"))), "another key"),
    "another op": (history.encode(Record(KEY, (), effect(EffectKind.INTENDED, "other", "a9"))), "another operation"),
    "no fact": (history.encode(Record(KEY, (), b"\xc3\x01nonsense")), "undecodable"),
}


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    return make_rig(kafka_bootstrap, redis_url)


@pytest.mark.parametrize("name", POISON)
def test_poison(rig: Rig, name: str) -> None:
    """One bad record stops nothing; it is reported with its offset, and what is known of its key is owed and written again."""
    value, problem = POISON[name]
    place = rig.partition_of(Topic.EFFECTS, KEY)
    with projector(rig.url):
        committed(KEY, rig)
        offset = rig.write_raw(place, KEY.encode(), value)
        for number in range(8):
            committed(f"good-{number}", rig)
        rig.check()
    documents = rig.projected()[place]
    note = json.loads(documents[DocumentKey(SET_ASIDE, str(offset))])
    assert (note["offset"], note["key"]) == (offset, KEY)
    assert problem in note["problem"]
    assert DocumentKey(UNSAFE, KEY) in documents
    assert DocumentKey(OPEN, KEY) in documents
    everywhere = {key.key for found in rig.projected().values() for key in found if key.collection == OPS}
    assert everywhere >= {KEY, *(f"good-{n}" for n in range(8))}


def test_a_key_that_is_not_text(rig: Rig) -> None:
    """Such a record is set aside too; it has no key that could be unsafe."""
    place = Partition(Topic.EFFECTS, 0)
    with projector(rig.url):
        offset = rig.write_raw(place, b"\xff\xfe", GOOD)
        committed("good", rig)
        rig.check()
    assert DocumentKey(SET_ASIDE, str(offset)) in rig.projected()[place]


@pytest.mark.parametrize("topic", Topic)
def test_the_wrong_partition(rig: Rig, topic: Topic) -> None:
    """A writer with another partitioner is found out: its record is set aside where it stands."""
    key = KEY if topic is Topic.EFFECTS else f"session/{KEY}/s1"
    right = murmur2(KEY.encode(), 2)
    value = GOOD if topic is Topic.EFFECTS else history.encode(Record(key))
    wrong = Partition(topic, 1 - right)
    with projector(rig.url):
        offset = rig.write_raw(wrong, key.encode(), value)
        committed("good", rig)
        rig.check()
    note = json.loads(rig.projected()[wrong][DocumentKey(SET_ASIDE, str(offset))])
    assert f"belongs to partition {right}" in note["problem"]


def test_the_ledger_key(rig: Rig) -> None:
    """The ledger's own record belongs to partition 0 of the agents topic, whatever its hash."""
    value = history.encode(Record("~ledger"))
    with projector(rig.url):
        rig.write_raw(Partition(Topic.AGENTS, 0), b"~ledger", value)
        offset = rig.write_raw(Partition(Topic.AGENTS, 1), b"~ledger", value)
        rig.check()
    found = {p: [k for k in d if k.collection == SET_ASIDE] for p, d in rig.projected().items()}
    assert found[Partition(Topic.AGENTS, 0)] == []
    assert found[Partition(Topic.AGENTS, 1)] == [DocumentKey(SET_ASIDE, str(offset))]
