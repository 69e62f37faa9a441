"""The short way: an effect begun, and settled, in one step each, where the store applies what it appends.

It is the protocol of `attempts.py`, with its numbers, in a single transaction of the store, from whatever
thread or loop the caller has:
    1. read the operation; 2. publish the intent on top of it; 3. see it applied
and, once that is durable, 4. Only what is plain goes this way: a free operation that nothing stands in
the way of, or a committed one that can be relied on as it is. Of everything else, and of every error, nothing
is left behind but what says so, and the long way begins from the beginning.

What was read in a transaction is used only after its commit: others shared it, and what they wrote was
perhaps rolled back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from . import adoption, attempts, losers
from . import projection as docs
from .attempt_facts import intent
from .attempts import Claim
from .calls import Call
from .engine import Tried
from .errors import FencepostError, OutcomeUnknownError, StoreClosedError
from .facts import EffectFact, encode_effect
from .history import History, Record
from .manifests import Manifest
from .operation_fold import fold_operation
from .operations import Operation, Status
from .ports import AtOnce, DocumentKey, Snapshot, Writing
from .positions import Partition
from .sameness import is_same
from .sessions import OpenAttempt, SessionState
from .undo import BoundUndo

Submit = Callable[[Coroutine[Any, Any, Any]], Future[Any]]


class Host(Protocol):
    """An opened session and a way onto the engine's loop."""

    submit: Submit

    @property
    def state(self) -> SessionState:
        """The opened session."""
        ...


# -- beginning -------------------------------------------------------------------------


def begun_here(host: Host, call: Call) -> Claim | None:
    """The claim on a call, or None: the long way it is. Waits in this thread; interrupted, nothing stays claimed."""
    way = _short_way(host.state, call)
    if way is None:
        return None
    place = _Place(host.state, call)
    if (known := _known(host, call, way, place)) is not None:
        return known
    start = _Start(host.state, call, place)
    try:
        way.write_here(start.work, (place.partition, place.keys))
        claim = start.claim()
    except FencepostError as error:
        start.failed(host, error)
        return None
    except BaseException:
        start.give_up(host, way)
        raise
    return claim if start.settled is None else _relied_on(host, call, *start.settled)


async def begun(host: Host, call: Call) -> Claim | None:
    """The same, awaited."""
    way = _short_way(host.state, call)
    if way is None:
        return None
    place = _Place(host.state, call)
    if (known := _known(host, call, way, place)) is not None:
        return known
    start = _Start(host.state, call, place)
    try:
        await way.write(start.work, (place.partition, place.keys))
        claim = start.claim()
    except FencepostError as error:
        start.failed(host, error)
        return None
    except BaseException:
        start.give_up(host, way)
        raise
    return claim if start.settled is None else _relied_on(host, call, *start.settled)


def _short_way(session: SessionState, call: Call) -> AtOnce | None:
    """The short way, None where it is not for this call.

    It is where nothing but the operation itself decides: after a gated rollback others do, and so does a state to be read.
    """
    way = session.engine.store.at_once
    if way is None or session.ended or session.crossed or session.declared or call.undo_round:
        return None
    return None if isinstance(call.undo, BoundUndo) else way


def _known(host: Host, call: Call, way: AtOnce, place: _Place) -> Claim | None:
    """The claim of an operation that was committed before, without a transaction.

    Looked for only where it is likely: as a rule an effect is new, and its transaction finds out as well.
    """
    session, view = host.state, host.state.engine.view
    if not (session.repeats or way.knows(place.partition, place.key)):
        return None
    since = view.seen(place.partition)
    try:
        snapshot = way.look(place.partition, place.keys)
        if snapshot is None:
            return None
        view.trusted(place.partition, snapshot.header, since)
    except FencepostError:  # the long way meets it again, and says so
        return None
    operation, facts = place.read(snapshot)
    if place.is_unsafe(snapshot) or not _can_be_relied_on(session, call, operation):
        return None
    return _relied_on(host, call, operation, facts)


def _can_be_relied_on(session: SessionState, call: Call, operation: Operation) -> bool:
    """Whether it is committed, is what the call asks for word for word, and may be relied on without a word to anybody."""
    return (
        operation.status is Status.COMMITTED
        and operation.settled is not None
        and is_same(operation, call)
        and (not call.content_digest or call.content_digest in operation.variants)  # another wording is noted
        and adoption.is_secure(session, operation)
    )


def _relied_on(host: Host, call: Call, operation: Operation, facts: History) -> Claim:
    """The claim of such an operation; that this session has absorbed it is published and not waited for."""
    session, settled = host.state, operation.settled
    session.repeats = True
    absorbed = (call.op_id, operation.round)
    if settled is not None:
        session.finds(settled)
    own = settled is not None and settled.session_id == session.session_id and settled.seq != 0
    if not own and absorbed not in session.absorbed:
        fact = session.absorbing(*absorbed, call.tool)
        try:
            host.submit(session.noting(fact))
        except BaseException:
            session.unnoted(fact)
            raise
    return Claim(session, call, operation, owned=False, round=operation.round, history=facts)


class _Place:
    """Where an operation is read."""

    def __init__(self, session: SessionState, call: Call) -> None:
        self._view = session.engine.view
        self.partition: Partition = self._view.effects_partition(call.op_id)
        self._op_id = call.op_id
        self.key = DocumentKey(docs.OPS, call.op_id)
        self._mark = DocumentKey(docs.UNSAFE, call.op_id)
        self.keys = (self.key, self._mark)

    def read(self, snapshot: Snapshot) -> tuple[Operation, History]:
        """The operation and its facts."""
        return self._view.fold(self._op_id, snapshot.documents.get(self.key))

    def is_unsafe(self, snapshot: Snapshot) -> bool:
        """Whether a record of it was set aside."""
        return self._mark in snapshot.documents


class _Applied(NamedTuple):
    """An intent that was applied: its record's offset, and what is known of its operation then."""

    offset: int
    facts: History


@dataclass(slots=True)
class _Start:
    """One attempt to begin, from the caller's thread through the store's and back.

    Attributes:
        fact: the intent, once it has a number.
        applied: the operation's facts with the intent applied; to be believed after the commit only.
        settled: the operation, where it was committed before and can be relied on, and its facts; after the commit only.
        given_up: its caller is gone: what has not been begun is not begun any more.
        worked: the thread that does the work, and the number that it had taken last before.
    """

    session: SessionState
    call: Call
    place: _Place
    fact: EffectFact | None = None
    manifest: Manifest | None = None
    applied: _Applied | None = None
    unconfirmed: tuple[Operation, History] | None = None
    settled: tuple[Operation, History] | None = None
    given_up: bool = False
    attempt: OpenAttempt | None = None
    worked: tuple[int, tuple[int, ...]] = (0, ())
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.session.engine.clock.monotonic()

    def work(self, writing: Writing) -> None:
        """Steps 1 to 3, in one transaction. Leaves nothing behind where it does not get through."""
        session, call, place = self.session, self.call, self.place
        if self.given_up or session.ended:
            return
        self.worked = threading.get_ident(), session.sequence.taken_here()
        since = session.engine.view.seen(place.partition)
        snapshot = writing.read(place.partition, place.keys)  # 1
        session.engine.view.require_trusted(place.partition, snapshot.header, since)
        operation, facts = place.read(snapshot)
        plain = operation.status is Status.FREE and is_same(operation, call)
        if place.is_unsafe(snapshot) or session.engine.terms.min_compaction_lag_s is not None:
            return
        if not plain:
            self.settled = (operation, facts) if _can_be_relied_on(session, call, operation) else None
            return
        if call.unconfirmed:
            self.unconfirmed = (operation, facts)
            return
        self.manifest = attempts.path(session, call, operation)
        attempts.require_room(session, call, operation, facts)
        attempt_id = session.engine.new_id()
        fact = intent(session, call, attempt_id, operation, manifest=self.manifest.data if self.manifest else None)
        self.fact = fact
        self._open(attempt_id, OpenAttempt(call.op_id, operation.round, intent_seq=fact.seq))
        record = Record(call.op_id, facts, encode_effect(fact), session.session_id)
        offset = writing.publish(place.partition, record)  # 2
        self.applied = _Applied(offset, writing.history(place.partition, place.key))  # 3: folded by whom it concerns

    def _open(self, attempt_id: str, attempt: OpenAttempt) -> None:
        self.session.open_attempts[attempt_id] = self.attempt = attempt
        if self.given_up:  # just now
            attempt.given_up = True

    def claim(self) -> Claim | None:
        """Step 4: what came of it, now that it is durable. Raises FencedError, StaleProjectionError: nothing was run."""
        session, call = self.session, self.call
        session.repeats = False
        if self.unconfirmed is not None:
            return attempts.claimed(session, call, *self.unconfirmed)
        if self.applied is None or self.fact is None:
            return None
        offset, facts = self.applied
        session.engine.view.saw(self.place.partition, offset + 1)
        attempts.written(session, call, self.fact)
        found = fold_operation(call.op_id, facts), facts
        attempt = found[0].attempts.get(self.fact.attempt_id)
        if attempt is None:  # one of very many that came too late
            if losers.is_summarised(found[0], self.fact):
                session.open_attempts.pop(self.fact.attempt_id, None)
            return None
        claim = attempts.confirmed(session, call, attempt, found, self.began + call.deadline_s)
        if claim is not None:
            claim.manifest = self.manifest
        return claim

    def failed(self, host: Host, error: FencepostError) -> None:
        """Account for the intent, as far as there is one; what its record rests on is not known to stand."""
        fact, self.fact = self.fact, None
        mine = self.session.open_attempts.get(fact.attempt_id) if fact is not None else None
        if fact is None or mine is None:
            if self.applied is not None:  # it was written, and what step 4 found is the answer
                raise error
            return
        if mine.written or isinstance(error, OutcomeUnknownError):
            host.submit(self._withdrawn(fact))
        else:
            self.session.open_attempts.pop(fact.attempt_id, None)
            self.session.sequence.void(fact.seq)
        if mine.written:
            raise error

    def give_up(self, host: Host, way: AtOnce) -> None:
        """Nothing is begun any more; what was begun already is withdrawn, and a `drain` waits for that."""
        self.given_up = True
        thread, before = self.worked
        if self.attempt is not None:
            self.attempt.given_up = True
        elif thread == threading.get_ident():  # in the middle of its own work
            taken = self.session.sequence.taken_here()
            if taken is not before:
                self.session.sequence.discount(*taken)
        with contextlib.suppress(StoreClosedError):  # then so is its session
            host.submit(self._giving_up(way))

    async def _giving_up(self, way: AtOnce) -> None:
        self.session.in_background(self._taken_back(way))

    async def _taken_back(self, way: AtOnce) -> None:
        """Withdraw what its caller never heard of, once it is known whether there is anything."""
        with contextlib.suppress(FencepostError):
            await way.write(lambda _: None)  # behind it: the store does what it is given in order
        if self.fact is not None:
            await self._withdrawn(self.fact)

    async def _withdrawn(self, fact: EffectFact) -> None:
        if fact.attempt_id in self.session.open_attempts:
            attempts.withdraw(self.session, self.call, fact, ())


# -- settling --------------------------------------------------------------------------


def settled_here(claim: Claim, fact: EffectFact) -> bool:
    """Whether an outcome is in the log, by this way. If not, the very same fact is published by the long one."""
    way = claim.session.engine.store.at_once
    if way is None or claim.call.unconfirmed:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        _saw(claim, way.write_here(_outcome(claim, fact)))
    except FencepostError as error:
        tried.missed(error)
        return False
    return True


async def settled(claim: Claim, fact: EffectFact) -> bool:
    """The same, awaited."""
    way = claim.session.engine.store.at_once
    if way is None or claim.call.unconfirmed:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        _saw(claim, await way.write(_outcome(claim, fact)))
    except FencepostError as error:
        tried.missed(error)
        return False
    return True


def _saw(claim: Claim, offset: int) -> None:
    view = claim.session.engine.view
    view.saw(view.effects_partition(claim.call.op_id), offset + 1)


def _outcome(claim: Claim, fact: EffectFact) -> Callable[[Writing], int]:
    partition = claim.session.engine.view.effects_partition(fact.op_id)
    record = Record(fact.op_id, claim.history, encode_effect(fact), fact.session_id)
    return lambda writing: writing.publish(partition, record)
