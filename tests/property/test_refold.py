"""Verify's second fold of a log finds no difference where there is none, whatever the cleaner removed; and finds what is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from unit.ledger.kit import (
    AGENTS,
    EFFECTS,
    FENCE,
    MemoryPartition,
    checkpointed,
    committed,
    effect,
    failed,
    fenced,
    intended,
    opened,
    resolved,
    token,
)

from fencepost.ledger import log_keys
from fencepost.ledger.embedded_scratch import Scratch
from fencepost.ledger.facts import AgentFact, EffectFact
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import OPEN, OPS, SET_ASIDE, UNSAFE
from fencepost.ledger.refolding import NOT_COMPARED, Refold

OPS_NAMES = ("pay:1", "pay:2")
EFFECT_STEPS = [
    "intend",
    "intend",
    "commit",
    "fail",
    "doubt",
    "absent",
    "committed",
    "compensated",
    "fence",
    "bad",
    "bad fence",
    "stray",
]
AGENT_STEPS = ["session", "checkpoint", "bad session", "bad checkpoint", "no key"]
ANY_STEPS = ["pay", "clean", "lose"]
known = st.booleans()


class Reader:
    """The log of a partition in memory, as it is now."""

    def __init__(self, log: MemoryPartition) -> None:
        self._log = log

    def bounds(self, partition: Partition) -> tuple[int, int]:
        del partition
        return 0, len(self._log.log)

    def entries(self, partition: Partition, *, start: int = 0, end: int | None = None) -> Iterator[LogEntry]:
        del partition
        return (entry for entry in self._log.log[start:end] if entry is not None)

    def raw(self, partition: Partition, offset: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Life:
    """What is written to one partition, by writers who know all of a key's history, or nothing."""

    def __init__(self, topic: Topic) -> None:
        self.log = MemoryPartition(EFFECTS if topic is Topic.EFFECTS else AGENTS)
        self._number = 0

    def take(self, what: str, op_id: str, attempt: str, *, knows: bool) -> None:
        log = self.log
        self._number += 1
        log.project()
        if what == "pay":
            log.pay()
        elif what == "clean":
            log.pay()
            log.clean()
        elif what == "lose":
            log.lose()
        elif what in {"bad", "bad fence", "stray", "bad session", "bad checkpoint", "no key"}:
            log.append_raw(self._bad_key(what, op_id), f"undecodable: {what}", stray=what == "stray")
        elif log.partition.topic is Topic.EFFECTS:
            key = FENCE if what == "fence" else op_id
            log.append(key, self._effect(what, op_id, attempt), log.history(key) if knows else ())
        else:
            key, fact = self._agent(what, attempt)
            log.append(key, fact, log.history(key) if knows else ())

    def _bad_key(self, what: str, op_id: str) -> str | None:
        keys = {
            "bad fence": FENCE, "bad session": log_keys.session("agent", "sa"),
            "bad checkpoint": log_keys.checkpoint("agent", "c"), "no key": None,
            "stray": "elsewhere",
        }  # fmt: skip
        return keys.get(what, op_id)

    def _effect(self, what: str, op_id: str, attempt: str) -> EffectFact:
        op = self.log.operation(op_id)
        own: dict[str, Any] = {"op_id": op_id, "round": op.round, "epoch": Position(0, ord(attempt) - ord("a"))}
        if what == "intend":
            return intended(attempt, **own, seq=self._number)
        if what == "fence":
            return fenced(ord(attempt) - ord("a"))
        if what in {"commit", "fail"}:
            return (committed if what == "commit" else failed)(attempt, **own, seq=self._number)
        if what == "doubt":
            return effect("IN_DOUBT", attempt, **own, seq=self._number)
        return resolved(what.upper(), op.version, op_id=op_id)

    def _agent(self, what: str, attempt: str) -> tuple[str, AgentFact]:
        if what == "session":
            return log_keys.session("agent", f"s{attempt}"), opened(f"s{attempt}")
        fact = checkpointed("c", "sa", token(0, self._number), seq=self._number)
        return log_keys.checkpoint("agent", "c"), fact

    def differences(self) -> dict[DocumentKey, str]:
        """What verify finds, with every document looked at."""
        log, scratch = self.log, Scratch()
        try:
            refold = Refold(log.partition, log.header, scratch)
            refold.read_on(Reader(log), log.header.applied_offset)
            refold.agree(log.documents)
            told: dict[DocumentKey, str] = {}
            for collection in refold.collections():
                for keys in refold.open_questions(collection, count=2):
                    found = {key: log.documents[key] for key in refold.to_read(keys) if key in log.documents}
                    told |= refold.differences(keys, found)
            return told
        finally:
            scratch.close()


def lives(steps: list[str]) -> st.SearchStrategy[list[tuple[str, str, str, bool]]]:
    one = st.tuples(st.sampled_from([*steps, *ANY_STEPS]), st.sampled_from(OPS_NAMES), st.sampled_from("abc"), known)
    return st.lists(one, max_size=25)


def lived(topic: Topic, steps: list[tuple[str, str, str, bool]]) -> Life:
    life = Life(topic)
    for what, op_id, attempt, knows in steps:
        life.take(what, op_id, attempt, knows=knows)
    life.log.project()
    return life


@settings(max_examples=150)
@given(lives(EFFECT_STEPS))
def test_no_difference_is_made_up_of_operations(steps: list[tuple[str, str, str, bool]]) -> None:
    """Records that cannot be taken, losses of the projection, and every pass of the cleaner are allowed for."""
    life = lived(Topic.EFFECTS, steps)
    gone = {key for key in life.log.collection(SET_ASIDE) if life.log.log[int(key)] is None}
    event(f"set aside and gone: {len(gone)}; unsafe: {len(life.log.collection(UNSAFE))}")
    assert life.differences() == {}


@settings(max_examples=150)
@given(lives(AGENT_STEPS))
def test_no_difference_is_made_up_of_agents(steps: list[tuple[str, str, str, bool]]) -> None:
    """The same in the agents' log."""
    life = lived(Topic.AGENTS, steps)
    assert life.differences() == {}


@settings(max_examples=150)
@given(lives(EFFECT_STEPS) | lives(AGENT_STEPS), st.randoms(use_true_random=False))
def test_every_damage_is_found(steps: list[tuple[str, str, str, bool]], chance: random.Random) -> None:
    """A document that is missing, made up, or another, in any collection, is named, and no other one."""
    agents = any(what in AGENT_STEPS for what, _, _, _ in steps)
    steps = [step for step in steps if step[0] not in (EFFECT_STEPS if agents else AGENT_STEPS)]
    life = lived(Topic.AGENTS if agents else Topic.EFFECTS, steps)
    documents = life.log.documents
    compared = sorted(key for key in documents if key.collection not in NOT_COMPARED)
    made_up = [
        DocumentKey(SET_ASIDE, str(len(life.log.log) + 5)), DocumentKey(OPEN, "pay:3"), DocumentKey(OPS, "pay:3"),
        DocumentKey(UNSAFE, "pay:3"),
    ]  # fmt: skip
    key = chance.choice([*compared, *made_up])
    damage = chance.choice(["missing", "changed"]) if key in compared else "made up"
    event(f"{key.collection} {damage}")
    if damage == "missing":
        if not may_be_missing(life, key):
            del documents[key]
            assert life.differences().get(key) == "is in the log and not in the projection"
        return
    documents[key] = chance.choice([b"", b"{}", b"none", Record(key.key).key.encode(), note(key, life)])
    assert set(life.differences()) == {key}


def may_be_missing(life: Life, key: DocumentKey) -> bool:
    """Whether the log does not show any more that this should be there."""
    return key.collection in {SET_ASIDE, UNSAFE} and key not in fresh(life)


def fresh(life: Life) -> set[DocumentKey]:
    """What there would be if the projection were lost now."""
    again = MemoryPartition(life.log.partition, log=list(life.log.log))
    again.project()
    return set(again.documents)


def note(key: DocumentKey, life: Life) -> bytes:
    """A note about a record that is not there yet."""
    return json.dumps({"offset": len(life.log.log) + 5, "key": key.key, "problem": "made up", "time_ms": 1}).encode()
