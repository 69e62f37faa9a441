"""Attempts that never owned an operation, kept as numbers (DESIGN section 3.8).

Ten thousand siblings that race for one operation leave one owner and 9,999 intents that claimed
nothing. Of those the oldest stay in the history as they are; the others become one SUMMARISED fact
that holds, for each agent, the (epoch, seq) of every fact that it stands for. So every sequence
number stays accounted for, and an intent that arrives again is recognised and claims nothing.

A summary is part of the union: it covers the facts that it stands for wherever they turn up, two
summaries become one, and the order in which records are seen makes no difference. Only attempts that
can no longer own anything are summarised: what was decided about an intent by the facts before it
is decided for good.

The numbers are runs, one for each agent and log generation in order: the length of the agent id
and its UTF-8, the generation, how many pairs follow, and the pairs in order, each the difference to
the epoch's offset before and the sequence number. Integers are zigzag varints, as Avro's are.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ..schemas import catalogue
from ..schemas.errors import DecodeError
from .facts import AgentFact, EffectFact, EffectKind, decode_effect, encode_effect
from .operations import Attempt, AttemptState, Operation
from .positions import Position

KEPT = 32
"""So many attempts that never owned stay in the history in full: the oldest ones, as evidence."""
SUMMARISED_FROM = 64
"""From so many on they are summarised, so that it is not done again for every one that follows."""

_NEVER_OWNED = {
    AttemptState.LOST,
    AttemptState.REJECTED,
    AttemptState.WRONG_ROUND,
    AttemptState.CONFLICT,
    AttemptState.FAILED,
}
_COVERED = {EffectKind.INTENDED, EffectKind.FAILED}


class Number(NamedTuple):
    """A fact's number: whose session wrote it, and the how-manieth it was."""

    agent_id: str
    epoch: Position
    seq: int


def number_of(fact: EffectFact | AgentFact) -> Number:
    """The number of a fact; one with seq 0 has none."""
    return Number(fact.agent_id, fact.epoch, fact.seq)


@lru_cache(maxsize=1)
def beginnings() -> tuple[bytes, ...]:
    """How the bytes of a summary begin, in every schema that knows them: header and kind."""
    found = []
    for version in catalogue.history("effect_fact"):
        symbols = version.schema["fields"][0]["type"]["symbols"]
        if EffectKind.SUMMARISED.value in symbols:
            kind = symbols.index(EffectKind.SUMMARISED.value) * 2  # zigzag; below 64 it takes one byte
            found.append(b"\xc3\x01" + version.fingerprint + bytes([kind]))
    return tuple(found)


def looks_like_summary(fact: bytes) -> bool:
    """Whether these bytes begin as a summary's do; they may be unreadable."""
    return fact.startswith(beginnings())


def is_summary(fact: bytes) -> bool:
    """Whether these are the bytes of a readable summary; of anything else that is told without decoding it."""
    if not looks_like_summary(fact):
        return False
    try:
        numbers(fact)
    except DecodeError:
        return False
    return True


@lru_cache(maxsize=64)  # each may hold thousands
def numbers(fact: bytes) -> frozenset[Number]:
    """The numbers that a summary stands for. Raises schemas.DecodeError."""
    return _numbers(decode_effect(fact).losers)


@lru_cache(maxsize=64)  # each may hold thousands
def _numbers(data: bytes | None) -> frozenset[Number]:
    found: set[Number] = set()
    read = _Reader(data or b"")
    while not read.done:
        agent_id, generation = read.text(), read.integer()
        offset = 0
        for _ in range(read.count()):
            offset += read.integer()
            found.add(Number(agent_id, Position(generation, offset), read.integer()))
    return frozenset(found)


def is_summarised(operation: Operation, fact: EffectFact) -> bool:
    """Whether a fact is only kept as a number: its attempt never owned the operation, and never will."""
    return any(number_of(fact) in _numbers(one.losers) for one in operation.summaries)


def count(operation: Operation) -> int:
    """How many facts of attempts that never owned the operation are only kept as numbers."""
    return len(frozenset().union(*(_numbers(one.losers) for one in operation.summaries)))


def summary(op_id: str, of: Iterable[Number]) -> bytes:
    """The one summary of these numbers: equal numbers are equal bytes."""
    body = bytearray()
    for (agent_id, generation), group in groupby(sorted(of), key=lambda n: (n.agent_id, n.epoch.generation)):
        pairs = [(number.epoch.offset, number.seq) for number in group]
        name = agent_id.encode()
        body += _integer(len(name)) + name + _integer(generation) + _integer(len(pairs))
        last = 0
        for offset, seq in pairs:
            body += _integer(offset - last) + _integer(seq)
            last = offset
    return encode_effect(EffectFact(kind=EffectKind.SUMMARISED, op_id=op_id, losers=bytes(body)))


def _integer(value: int) -> bytes:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while rest > _LOW:
        out.append(rest & _LOW | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_LOW = 0x7F


class _Reader:
    """Reads what `summary` wrote. Raises DecodeError for anything else."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._data)

    def integer(self) -> int:
        value = shift = 0
        while True:
            if self.done or shift > _LONGEST:
                raise DecodeError("EffectFact", "a summary's numbers are cut off")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & _LOW) << shift
            shift += 7
            if byte <= _LOW:
                return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def count(self) -> int:
        """How many pairs follow; never more than there are bytes for."""
        value = self.integer()
        if not 0 <= value <= len(self._data) - self._at:
            raise DecodeError("EffectFact", "a summary names more numbers than it has")
        return value

    def text(self) -> str:
        size = self.count()
        part = self._data[self._at : self._at + size]
        self._at += size
        try:
            return part.decode()
        except UnicodeDecodeError as error:
            raise DecodeError("EffectFact", "a summary's agent is not UTF-8") from error


_LONGEST = 63


def withdrawn(facts: Iterable[bytes], by: frozenset[Number]) -> frozenset[Number]:
    """The numbers of withdrawals whose intents a summary stands for: it stands for them as well."""
    found: set[Number] = set()
    for data in facts:
        try:
            fact = decode_effect(data)
        except DecodeError:  # whoever takes the record sets it aside
            continue
        taken_back = Number(fact.agent_id, fact.epoch, fact.intent_seq)
        if fact.kind is EffectKind.FAILED and fact.seq > 0 and fact.intent_seq > 0 and taken_back in by:
            found.add(number_of(fact))
    return frozenset(found)


def covered(facts: Iterable[bytes], by: frozenset[Number]) -> set[bytes]:
    """The facts that a summary stands for, and the verdicts on their attempts."""
    found: set[bytes] = set()
    verdicts: list[tuple[str, bytes]] = []
    attempts: set[str] = set()
    for data in facts:
        try:
            fact = decode_effect(data)
        except DecodeError:  # whoever takes the record sets it aside
            continue
        if fact.kind in _COVERED and number_of(fact) in by:
            found.add(data)
            attempts.add(fact.attempt_id)
        elif fact.kind is EffectKind.REJECTED:
            verdicts.append((fact.attempt_id, data))
    return found | {data for attempt_id, data in verdicts if attempt_id in attempts}


def to_summarise(operation: Operation, *, kept: int = KEPT, least: int = SUMMARISED_FROM) -> frozenset[Number]:
    """The numbers of what may be summarised now; empty while there is little of it.

    Args:
        kept: so many of the oldest stay as they are.
        least: with fewer attempts that never owned it nothing is summarised.
    """
    losers = [a for a in operation.attempts.values() if _never_owned(operation, a)]
    if len(losers) < least:
        return frozenset()
    rest = sorted(losers, key=lambda a: a.position)[kept:]
    return frozenset(number_of(f) for a in rest for f in (a.intent, a.outcome) if f is not None)


def _never_owned(operation: Operation, attempt: Attempt) -> bool:
    """An attempt without an intent is not among them: its intent may still come, and must claim nothing."""
    return (
        attempt.state in _NEVER_OWNED
        and not attempt.owned
        and attempt.intent.kind is EffectKind.INTENDED
        and attempt.intent.seq > 0
        and attempt.intent is not operation.first
        and (attempt.outcome is None or (attempt.outcome.kind is EffectKind.FAILED and attempt.outcome.seq > 0))
    )
