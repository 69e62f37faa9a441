"""A small world around the real fold: one operation, its sessions, a guard, a projector, a log cleaner.

Every transition takes a state and gives the next one; nothing here draws lots. A search runs the
transitions exhaustively, a state machine at random. The projector's decisions are those of the real
`PartitionFold`; what it is given (stale reads, resent records, lost stores, zombies) is the world's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from fencepost.ledger import history, log_keys
from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import History, Record
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import AttemptState, Operation, Status
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.projection import (
    DEBTS,
    OPS,
    Debt,
    fence_document,
    fence_epoch,
    read_history,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

PARTITION = Partition(Topic.EFFECTS, 0)
OP = "pay"
FENCE = log_keys.fence("A", "main", 0, lambda _: 0)
OP_DOCUMENT = DocumentKey(OPS, OP)
FENCE_DOCUMENT = fence_document("A", "main")
BUSY = frozenset({Status.OWNED, Status.COMMITTED, Status.IN_DOUBT})


known = lru_cache(65536)(read_history)
folded = lru_cache(65536)(fold_operation)


@dataclass(frozen=True, slots=True)
class Switches:
    """What the design asks for; each can be switched off to see that the search notices."""

    debts: bool = True
    keep_debts: bool = True
    strict_strike: bool = True
    horizon: bool = True
    barrier: bool = True


@dataclass(frozen=True, slots=True)
class Session:
    """One session that wants the operation: where it is in the protocol, and what it read."""

    name: str
    agent_id: str
    epoch: int
    step: str = "start"
    attempt: int = 1
    known: History = ()
    round: int = 1
    offset: int = -1
    sent: Record | None = None

    @property
    def attempt_id(self) -> str:
        return f"{self.name}{self.attempt}"


@dataclass(frozen=True, slots=True)
class World:
    """Everything there is. `projected` are the documents of the projection store."""

    sessions: tuple[Session, ...]
    log: tuple[Record | None, ...] = ()
    header: Header = field(default_factory=lambda: Header(opened=True))
    projected: frozenset[tuple[DocumentKey, bytes]] = frozenset()
    durable: int = 0
    flying: frozenset[str] = frozenset()
    zombies: tuple[Record, ...] = ()
    executed: tuple[tuple[int, str, int], ...] = ()
    guard: tuple[str, int, int] = ("fence", 1, 0)
    authorised: tuple[int, int] = (0, 0)
    before_loss: History = ()
    forgotten: bool = False
    losses: int = 0
    crashes: int = 0
    cleanings: int = 0

    @property
    def documents(self) -> dict[DocumentKey, bytes]:
        return dict(self.projected)

    @property
    def debts(self) -> dict[str, Debt]:
        return {key.key: Debt.read(data) for key, data in self.projected if key.collection == DEBTS}

    @property
    def facts(self) -> History:
        """What the projection knows of the operation."""
        return known(dict(self.projected).get(OP_DOCUMENT))

    @property
    def caught_up(self) -> bool:
        return self.header.opened and self.header.applied_offset == len(self.log)

    @property
    def at_rest(self) -> bool:
        return self.caught_up and not self.debts and not self.flying

    def append(self, record: Record) -> World:
        return replace(self, log=(*self.log, record))

    def moved(self, index: int, session: Session) -> World:
        return replace(self, sessions=(*self.sessions[:index], session, *self.sessions[index + 1 :]))


def operation(world: World) -> Operation:
    return folded(OP, world.facts)


def told_by(log: Iterable[Record | None], key: str = OP) -> History:
    """All facts of a key that a log still holds."""
    parts = [history.facts_of(r, Position(0, at)) for at, r in enumerate(log) if r is not None and r.key == key]
    return history.merge(*parts)


_NUMBER = {EffectKind.COMMITTED: 1, EffectKind.FAILED: 1}


@cache
def fact(kind: EffectKind, session: Session | None, *, round_number: int = 1, epoch: int = 0) -> bytes:
    """The bytes of a fact of a session's attempt; of a fence without one."""
    if session is None:
        fence = EffectFact(kind=kind, agent_id="A", branch_id="main", epoch=Position(0, epoch))
        return encode_effect(fence)
    return encode_effect(
        EffectFact(
            kind=kind,
            op_id=OP,
            attempt_id=session.attempt_id,
            agent_id=session.agent_id,
            branch_id="main",
            session_id=session.name,
            epoch=Position(0, session.epoch),
            seq=4 * session.attempt + _NUMBER.get(kind, 0),
            round=round_number,
            tool="bank.pay",
            effect_class=EffectClass.IRREVERSIBLE,
            identity_digest="same",
        )
    )


def _said(kind: EffectKind, session: Session, round_number: int) -> bytes:
    return fact(
        kind, Session(session.name, session.agent_id, session.epoch, attempt=session.attempt), round_number=round_number
    )


# -- a session: read, intend, have it confirmed, execute, record -----------------------------


def read(world: World, index: int) -> World | None:
    """Read the operation, however old or half-built the projection is."""
    session, op = world.sessions[index], operation(world)
    if session.step != "start" or op.status is not Status.FREE:
        return None
    return world.moved(index, replace(session, step="intend", known=world.facts, round=op.round))


def intend(world: World, index: int) -> World | None:
    session = world.sessions[index]
    if session.step != "intend":
        return None
    record = Record(OP, session.known, _said(EffectKind.INTENDED, session, session.round))
    return world.append(record).moved(index, replace(session, step="confirm", offset=len(world.log), sent=record))


def resend(world: World, index: int) -> World | None:
    """The same record once more, as a retry whose first answer was lost would send it."""
    sent = world.sessions[index].sent
    return None if sent is None else world.append(sent)


def confirm(world: World, index: int) -> World | None:
    """Look whether the intent is applied and owns the operation; if not, begin again."""
    session, op = world.sessions[index], operation(world)
    if session.step != "confirm" or not world.header.opened or world.header.applied_offset <= session.offset:
        return None
    attempt = op.attempts.get(session.attempt_id)
    if attempt is not None and attempt.state is AttemptState.OWNER and op.owner is attempt:
        return world.moved(index, replace(session, step="run", known=world.facts))
    return world.moved(index, replace(session, step="over"))


def again(world: World, index: int) -> World | None:
    """A session that was refused, or has finished, tries once more with a new attempt."""
    session = world.sessions[index]
    if session.step != "over":
        return None
    return world.moved(index, Session(session.name, session.agent_id, session.epoch, attempt=session.attempt + 1))


def execute(world: World, index: int) -> World | None:
    session = world.sessions[index]
    if session.step != "run":
        return None
    ran = (session.round, session.attempt_id, session.epoch if session.agent_id == "A" else 99)
    return replace(world.moved(index, replace(session, step="record")), executed=(*world.executed, ran))


def withdraw(world: World, index: int) -> World | None:
    """Confirmed, and not started in time: FAILED frees the operation."""
    return _outcome(world, index, "run", EffectKind.FAILED)


def commit(world: World, index: int) -> World | None:
    return _outcome(world, index, "record", EffectKind.COMMITTED)


def _outcome(world: World, index: int, step: str, kind: EffectKind) -> World | None:
    session = world.sessions[index]
    if session.step != step:
        return None
    record = Record(OP, session.known, _said(kind, session, session.round))
    return world.append(record).moved(index, replace(session, step="over", sent=record))


def compensate(world: World) -> World | None:
    """Undo what is committed: the round is over."""
    op = operation(world)
    if not world.header.opened or op.status is not Status.COMMITTED:
        return None
    undo = _said(EffectKind.COMPENSATED, Session("undo", "U", 0), op.round)
    return world.append(Record(OP, world.facts, undo))


# -- the guard: fence the sessions of A, wait, decide -----------------------------------------


def fence(world: World) -> World | None:
    step, epoch, _ = world.guard
    if step != "fence":
        return None
    record = Record(FENCE, known(world.documents.get(FENCE_DOCUMENT)), fact(EffectKind.FENCED, None, epoch=epoch))
    return replace(world.append(record), guard=("decide", epoch, len(world.log)))


def decide(world: World, switches: Switches, *, fences: int = 2) -> World | None:
    step, epoch, at = world.guard
    if step != "decide":
        return None
    if switches.barrier:
        raised = fence_epoch(known(world.documents.get(FENCE_DOCUMENT)))
        applied = raised is not None and raised >= Position(0, epoch)
        if not world.header.opened or world.header.applied_offset <= at or not applied:
            return None
    op = operation(world)
    owner = op.owner.intent if op.owner and op.status in BUSY else None
    ok = owner is None or owner.agent_id != "A" or owner.epoch >= Position(0, epoch)
    guard = ("fence", epoch + 1, 0) if epoch < fences else ("done", epoch, 0)
    return replace(world, guard=guard, authorised=(epoch, op.round) if ok else world.authorised)


# -- what must never be -----------------------------------------------------------------------


def harm(world: World) -> str:
    """What has gone wrong in the world outside, or is bound to, or ""."""
    rounds = [ran[0] for ran in world.executed]
    if len(rounds) > len(set(rounds)):
        return f"double execution: {world.executed}"
    epoch, since = world.authorised
    crossed = any(at < epoch and number >= since for number, _, at in world.executed)
    running = any(s.agent_id == "A" and s.epoch < epoch and s.step == "run" for s in world.sessions)
    if crossed or running:
        return "the guard authorised a rollback over an effect that ran or is about to"
    if world.at_rest:
        op = folded(OP, told_by(world.log))
        for number, attempt_id, _ in world.executed:
            held = op.owner is not None and op.owner.attempt_id == attempt_id and op.status in BUSY
            if number >= op.round and not held:
                return f"the log forgot the execution of {attempt_id}: {op.status}"
    return ""


def violation(world: World) -> str:
    """What is wrong with this state: harm, or a projection that is not what the log says."""
    if found := harm(world):
        return found
    if world.forgotten:
        return "a rebuild forgot facts"
    if world.at_rest and world.facts != told_by(world.log):
        return "projection != fold(log)"
    return ""
