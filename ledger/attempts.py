"""Beginning an effect: claim it, or learn what became of it (DESIGN section 4).

`begin`:
    1. read the op. Committed: its result, and an ABSORBED fact in this session's sequence; if a
       branch beside this one committed it, and nobody relies on it yet, first an ADOPTED fact in the
       op's own history, confirmed: an undo that begins later is refused, one that came first is seen.
       Owned or being undone: wait. In doubt: raise. Free: go on; an effect that can be undone first
       needs the hash of the state before it, which its caller reads: then begin is called anew with it
    2. publish INTENDED on top of the history that was read
    3. wait until the projection has applied it, found by attempt id; or hear that nothing came in between
    4. not the owner: as in 1; rejected: FencedError. The owner runs, unless the deadline (a
       local monotonic clock, started before step 2) has passed: then FAILED withdraws it
What follows is in `settling.py`.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field, replace
from typing import Any

from . import adoption, divergence, losers
from .attempt_errors import given_up, in_doubt, late, left_open
from .attempt_facts import intent, outcome
from .calls import Call
from .engine import Tried
from .errors import (
    FencedError,
    FencepostError,
    ManifestError,
    OperationInFlightError,
    OutcomeUnknownError,
    RecordTooLargeError,
    ResultNotRecordedError,
    StaleProjectionError,
    TooManyAttemptsError,
)
from .facts import EffectFact, EffectKind, ResultForm
from .history import History
from .manifests import Manifest
from .operation_fold import fold_operation
from .operations import (
    Attempt,
    AttemptState,
    Operation,
    Status,
)
from .positions import Position
from .sameness import require_round, require_same
from .sessions import OpenAttempt, SessionState
from .undo import BoundUndo, UndoPath
from .view import OperationView

OWNER_LOOK_S = 1.0
"""How often a waiter looks whether the owner was fenced."""


@dataclass(slots=True)
class Claim:
    """The answer to `begin`: either this attempt owns the operation, or it was settled before.

    Attributes:
        owned: whether the caller may run the effect, now and once.
        operation: the operation as it was read.
        handed: it is in the hands of somebody who may run the effect without a further word.
        started: the permit to run was taken.
        manifest: how the effect is undone, as far as that was known before it.
        wants_path: nothing was claimed: read the state, and begin anew with `call.undo` for this round.
        tried: of its outcome, if that was published already and is not known to be written.
    """

    session: SessionState
    call: Call
    operation: Operation
    owned: bool
    attempt_id: str = ""
    round: int = 1
    history: History = ()
    handed: bool = False
    started: bool = False
    decided: str = ""
    expires: float = 0.0
    value: Any = field(default=None)
    manifest: Manifest | None = None
    wants_path: bool = False
    tried: Tried | None = None

    @property
    def idempotency_key(self) -> str:
        """The key to hand to the tool: the same in every attempt of this round."""
        return self.operation.idempotency_key

    @property
    def may_have_run(self) -> bool:
        """Whether the effect may have begun."""
        return self.handed or self.started

    def hand_over(self) -> None:
        """Say that from here on the effect may begin without a word. Raises FencedError once it was given up."""
        if not self.session.starts(self.attempt_id) and not self.call.unconfirmed:
            self.decided = "withdrawn"
            raise given_up(self.session, self.call)
        self.handed = True

    def start(self) -> None:
        """Say that the effect starts now. Raises StaleProjectionError past the deadline, FencedError once it was given up."""
        if not self.started and not self.in_time:
            raise late(self.call, self.session)
        gone = not self.session.starts(self.attempt_id) and not self.call.unconfirmed
        if gone and not self.started:
            if self.handed:
                raise left_open(self.session, self.call)
            self.decided = "withdrawn"
            raise given_up(self.session, self.call)
        self.started = True

    def refuse(self) -> None:
        """Say that its permit was refused, so that the effect does not run."""
        self.handed = False
        self.session.told(self.attempt_id, ran=False)

    def returned(self) -> None:
        """Say that what became of the operation is in the caller's hands."""
        self.session.returned(self.call.op_id)

    @property
    def in_time(self) -> bool:
        """Whether the effect may still start."""
        return self.call.unconfirmed or self.session.engine.clock.monotonic() < self.expires

    def recorded_result(self) -> Any:
        """The result that the winner recorded.

        Raises ResultNotRecordedError if it was too large or not encodable.
        """
        return recorded_result(self.operation)


def recorded_result(operation: Operation) -> Any:
    """The recorded result of a committed operation, decoded.

    Raises ResultNotRecordedError: it is committed, but the result is not in the ledger.
    """
    form, settled = operation.result_form, operation.settled
    if form is ResultForm.JSON and settled is not None and settled.result is not None:
        return json.loads(settled.result)
    if form is ResultForm.NONE:
        return None
    raise ResultNotRecordedError(
        f"operation {operation.op_id} is committed, but its result is not in the ledger ({form.value}).",
        next_step="Read it from the tool's own system; do not run the operation again.",
        op_id=operation.op_id,
        form=form.value,
        digest=settled.result_digest if settled else "",
        reference=settled.result_reference if settled else "",
    )


# -- begin -----------------------------------------------------------------------------


async def begin(session: SessionState, call: Call) -> Claim:
    """Claim an operation, or learn what became of it. See the module for the steps.

    Raises:
        OperationInFlightError, OperationInDoubtError: nobody may run it now.
        OperationConflictError: other identity arguments, tool, or class under this op_id.
        FencedError: this session is over. DivergenceHeldError: declare the attempt first.
        TooManyAttemptsError, RecordTooLargeError: the operation is full.
        StaleProjectionError, OutcomeUnknownError: nothing was run, and nothing will be.
        VersionMovedError: it was undone while this attempt waited; nothing was run.
        ManifestError: how it is undone is not known completely; nothing was run.
    """
    session.require_live()
    asked, call = call, await divergence.known_as(session, call)
    engine = session.engine
    patience = engine.clock.monotonic() + call.wait_s
    first_round = call.undo_round
    while True:
        readable = engine.clock.monotonic() + engine.limits.apply_s
        view = await engine.patiently(functools.partial(engine.view.operation, call.op_id), deadline=readable)
        operation = view.operation
        first_round = first_round or operation.round
        require_round(call, operation, first_round)
        call = divergence.as_recorded(call, operation, asked=asked)
        require_same(operation, call)
        if operation.status is Status.COMMITTED and not await adoption.secured(session, call, view):
            continue
        settled = await _settled(session, call, view)
        if settled is not None:
            return settled
        if operation.status is Status.COMPENSATING:
            await adoption.wait_for_undo(session, call, view, patience)
            continue
        if operation.status is Status.OWNED:
            await _wait_for_owner(session, call, view, patience)
            continue
        if (named := await divergence.admitted(session, call)) is not call:
            call, first_round = named, call.undo_round  # somebody else has declared it: from here on it is that effect
            continue
        if call.unconfirmed:
            return claimed(session, call, operation, view.facts)
        if isinstance(call.undo, BoundUndo):
            return Claim(session, call, operation, owned=False, round=operation.round, wants_path=True)
        manifest = path(session, call, operation)
        require_room(session, call, operation, view.facts)
        await _require_settled_log(session, view)
        claim = await _intend(session, call, view, manifest)
        if claim is not None:
            return claim


def claimed(session: SessionState, call: Call, operation: Operation, facts: History, attempt_id: str = "") -> Claim:
    """The claim of an attempt that may run."""
    attempt_id = attempt_id or session.engine.new_id()
    return Claim(session, call, operation, owned=True, attempt_id=attempt_id, round=operation.round, history=facts)


async def _settled(session: SessionState, call: Call, view: OperationView) -> Claim | None:
    """The claim of a committed operation (absorbed); raises when it is in doubt."""
    operation = view.operation
    if view.seen.unsafe or operation.status is Status.UNSAFE:
        raise in_doubt(call, view.seen.unsafe or "it holds a fact of an unknown kind")
    if operation.status is Status.COMMITTED:
        settled = operation.settled
        if settled is not None:
            session.finds(settled)
        if settled is None or settled.session_id != session.session_id or settled.seq == 0:
            await session.note_absorbed(call.op_id, operation.round, call.tool)
        _note_wording(session, call, view)
        return Claim(session, call, operation, owned=False, round=operation.round, history=view.facts)
    if operation.status is Status.IN_DOUBT:
        reason = operation.owner.outcome.reason if operation.owner and operation.owner.outcome else ""
        raise in_doubt(call, reason or "its owner could not tell whether the effect happened")
    if operation.status is Status.OWNED and view.seen.owner_ended:
        raise in_doubt(call, "the session that owned it is over and left no outcome")
    return None


def _note_wording(session: SessionState, call: Call, view: OperationView) -> None:
    """Keep the wording of an absorbed call as a variant: an intent on a committed op never owns it."""
    operation = view.operation
    room = len(operation.attempts) + losers.count(operation) < session.engine.limits.max_attempts
    if room and call.content_digest not in {"", *operation.variants}:
        wording = intent(session, call, session.engine.new_id(), operation)
        session.in_background(session.publish_effect(wording, view.facts))


async def _wait_for_owner(session: SessionState, call: Call, view: OperationView, patience: float) -> None:
    """Wait until the owner decides. Past `patience` raises; a deadline is no permit to run."""
    engine, version = session.engine, view.operation.version
    looked = engine.clock.monotonic()

    async def moved() -> bool | None:
        nonlocal looked
        now, _ = await engine.view.folded(call.op_id)
        if now.version != version:
            return True
        if engine.clock.monotonic() - looked < OWNER_LOOK_S:
            return None
        looked = engine.clock.monotonic()
        return (await engine.view.operation(call.op_id)).seen.owner_ended or None

    if await engine.wait_until(view.partition, moved, deadline=patience) is not None:
        return
    owner = view.operation.owner
    details = {"op_id": call.op_id, "owner": owner.intent.session_id if owner else ""}
    if owner is not None and await engine.lives(owner.intent.session_id):
        raise OperationInFlightError(
            f"operation {call.op_id} is in flight: its owner ({owner.intent.agent_id}/"
            f"{owner.intent.branch_id}) lives and has not decided within {call.wait_s:g} s.",
            next_step="Wait longer, or look with `fencepost ops show`; it must not be run meanwhile.",
            **details,
        )
    raise in_doubt(call, "the session that owned it has not been heard of", **details)


def path(session: SessionState, call: Call, operation: Operation) -> Manifest | None:
    """How this round's effect is undone, as far as that is known before it; it must be complete, and fit."""
    if not isinstance(call.undo, UndoPath):
        return None
    with call.secrets.kept_out_of_errors():
        manifest = call.undo.manifest(
            op_id=call.op_id,
            round_number=operation.round,
            tool=call.tool,
            resource=call.resource,
            cascades=call.cascades,
        )
    if call.secrets.in_manifest(manifest.data):
        raise ManifestError(
            f"how {call.op_id} is undone would write down the value of a secret argument. Nothing was run.",
            next_step="Let the payload name where the compensator finds it.",
            field="payload",
        )
    size, limit = len(manifest.data), session.engine.limits.max_manifest_bytes
    if size > limit:
        raise RecordTooLargeError(
            f"how {call.op_id} is undone takes {size} bytes. Nothing was run.",
            next_step=f"Keep the payload below max_manifest_bytes ({limit}); pass large parts by reference.",
            size_bytes=size,
            limit_bytes=limit,
        )
    return manifest


async def _intend(session: SessionState, call: Call, view: OperationView, manifest: Manifest | None) -> Claim | None:
    """Steps 2 to 4: publish the intent, have it confirmed. None: look at the op again."""
    engine = session.engine
    started = engine.clock.monotonic()
    attempt_id = engine.new_id()
    fact = intent(session, call, attempt_id, view.operation, manifest=manifest.data if manifest else None)
    session.open_attempts[attempt_id] = OpenAttempt(call.op_id, view.operation.round, intent_seq=fact.seq)
    try:
        claim = await _publish_and_confirm(session, call, view, fact, started + call.deadline_s)
    except BaseException as error:
        # Whatever became of the intent, it certainly never ran: a cancelled or failed begin
        # must not leave an operation that looks owned.
        mine = session.open_attempts.get(attempt_id)
        if mine is not None and _unwritten(mine, error):
            session.open_attempts.pop(attempt_id)
        elif mine is not None:
            withdraw(session, call, fact, view.facts)
        raise
    if claim is not None:
        claim.manifest = manifest
    return claim


def _unwritten(attempt: OpenAttempt, error: BaseException) -> bool:
    """Whether the intent is certainly not in the log, and never will be: then there is nothing to withdraw."""
    return not attempt.written and isinstance(error, FencepostError) and not isinstance(error, OutcomeUnknownError)


async def _publish_and_confirm(
    session: SessionState, call: Call, view: OperationView, intent: EffectFact, expires: float
) -> Claim | None:
    engine = session.engine
    offset = await session.publish_effect(intent, view.facts)
    written(session, call, intent)
    found: list[tuple[Operation, History]] = []

    async def seen() -> bool | None:
        operation, facts = await engine.view.folded(call.op_id)
        found[:] = [(operation, facts)]
        return intent.attempt_id in operation.attempts or losers.is_summarised(operation, intent) or None

    at = None if offset is None else Position(view.header.generation, offset)
    if (mine := await engine.undisturbed(intent, view.facts, at, deadline=expires)) is not None:
        found.append((fold_operation(call.op_id, mine), mine))
    elif await engine.wait_until(view.partition, seen, deadline=expires, beyond=offset) is None:
        raise late(call, session)
    attempt = found[0][0].attempts.get(intent.attempt_id)
    if attempt is None:  # one of very many that came too late
        session.open_attempts.pop(intent.attempt_id, None)
        return None
    return confirmed(session, call, attempt, found[0], expires)


def confirmed(
    session: SessionState, call: Call, attempt: Attempt, found: tuple[Operation, History], expires: float
) -> Claim | None:
    """Step 4: the claim, or None where another owns it. Raises FencedError, StaleProjectionError: nothing was run."""
    operation, facts = found
    if attempt.state is AttemptState.OWNER and operation.owner is attempt:
        claim = claimed(session, call, operation, facts, attempt.attempt_id)
        claim.expires = expires
        if not claim.in_time:
            raise late(call, session)
        return claim
    session.open_attempts.pop(attempt.attempt_id, None)
    if attempt.state is AttemptState.REJECTED:
        session.ended = session.ended or "its branch was fenced"
        raise FencedError(
            f"the intent for {call.op_id} was rejected: session {session.session_id} of "
            f"{session.agent_id}/{session.branch_id} is fenced. Nothing was run.",
            next_step="Open a new session and replay forward.",
            session_id=session.session_id,
            reason="its branch was fenced",
        )
    require_same(operation, call)
    return None


def withdraw(session: SessionState, call: Call, intent: EffectFact, facts: History) -> None:
    """Free the operation: this attempt certainly never ran."""
    fact = outcome(session, call, intent.attempt_id, intent.round, EffectKind.FAILED)
    attempt = session.open_attempts.pop(intent.attempt_id)

    async def publish() -> None:
        await session.publish_effect(
            replace(fact, reason="withdrawn: it was not started in time", intent_seq=intent.seq), facts
        )
        if not attempt.written:  # from here on the intent means nothing, whether it arrives or not
            session.sequence.discount(intent.seq)

    session.in_background(publish())


def withdraw_claim(claim: Claim) -> None:
    """Free the operation of a claim whose permit was refused; published and not waited for."""
    attempt = claim.session.open_attempts.pop(claim.attempt_id, None)
    if attempt is None:  # its session has said so
        return
    fact = outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.FAILED)
    fact = replace(fact, reason="withdrawn: it was not started in time", intent_seq=attempt.intent_seq)
    claim.session.in_background(claim.session.publish_effect(fact, claim.history))


# -- what begin refuses ----------------------------------------------------------------


def require_room(session: SessionState, call: Call, operation: Operation, facts: History) -> None:
    """Raises TooManyAttemptsError, RecordTooLargeError when another attempt might leave no room for its outcome."""
    limits = session.engine.limits
    attempts = operation.tries
    if attempts >= limits.max_attempts:
        raise TooManyAttemptsError(
            f"operation {call.op_id} was owned by {attempts} attempts that did not commit; the limit is {limits.max_attempts}.",
            next_step="Find out why it fails (`fencepost ops show`). Once the cause is gone, let it go on: say so with "
            f"`fencepost in-doubt resolve {call.op_id} --absent --version {operation.version} --evidence … --by …`, or "
            "open the ledger with a higher `Limits(max_attempts=…)`.",
            op_id=call.op_id,
            attempts=attempts,
            limit=limits.max_attempts,
        )
    size = sum(len(fact) for _, fact in facts)
    if size > limits.max_history_bytes:
        raise RecordTooLargeError(
            f"operation {call.op_id} has {size} bytes of history; an outcome might not fit any more.",
            next_step="Open the ledger with a higher `Limits(max_history_bytes=…)`, or use another key for new work; "
            "record large results by reference.",
            size_bytes=size,
            limit_bytes=limits.max_history_bytes,
        )


async def _require_settled_log(session: SessionState, view: OperationView) -> None:
    header, lag_s = view.header, session.engine.terms.min_compaction_lag_s
    if lag_s is None or not header.settled_time_ms:
        return
    debt_s = (header.now_ms - header.settled_time_ms) / 1000
    if debt_s > lag_s / 2:
        raise StaleProjectionError(
            f"{view.partition} owes re-assertions that are {debt_s:.0f} s old; claims stop until they "
            "are paid, since the log cleaner could overtake them.",
            next_step="See `fencepost projector lag`: a projector must run and be able to publish.",
            partition=str(view.partition),
        )


def written(session: SessionState, call: Call, intent: EffectFact) -> None:
    """Say that an intent was acknowledged. Raises FencedError where the session was closed meanwhile, and withdrew it."""
    mine = session.open_attempts.get(intent.attempt_id)
    if mine is None:
        raise given_up(session, call)
    mine.written = True
