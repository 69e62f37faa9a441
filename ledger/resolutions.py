"""Settling what is in doubt: listing, probing, resolving by version.

A resolution names the version of the operation that was looked at; it is judged in the log
like an intent (it counts only if it stands on that very version) and then confirmed.

ABSENT says that the effect did not happen, which frees the operation. It is accepted only
    - from a probe that has voided the idempotency key at the provider, or
    - once the intent's deadline and the tool's declared longest run have both passed;
otherwise only an operator who accepts the risk by name can say so.

Of an effect that is being undone nobody can say anything without looking at its inverse (`inverses.py`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import inverses
from .argument_checks import check_flag, check_text
from .engine import Engine
from .errors import (
    InvalidArgumentError,
    ManifestError,
    RefusedError,
    StaleProjectionError,
    moved,
    not_in_ledger,
)
from .facts import EffectFact, EffectKind, Outcome, ResultForm
from .identity import digest
from .manifests import Manifest, read
from .operations import VOIDED, Operation, Resolution, Status
from .settling import encode_result
from .strangers import cause_of, told_of
from .undo import plain_payload
from .view import OperationView, age_s

CLOCK_SKEW_S = 60.0
"""How far the clocks of an agent and of the store may be apart."""


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that needs time or a human.

    Attributes:
        state: "in flight", "in doubt", "silent" (its owner has not been heard of; advisory),
            "being undone" (perhaps left in the middle), "unsafe", or "anomaly".
        since_ms: the clock of the session that began the attempt, milliseconds since 1970.
    """

    view: OperationView
    state: str
    agent_id: str
    branch_id: str
    since_ms: int

    @property
    def operation(self) -> Operation:
        """The folded operation."""
        return self.view.operation

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        operation = self.operation
        return {
            "op_id": operation.op_id, "tool": operation.tool,
            "effect_class": operation.effect_class.value, "state": self.state,
            "version": operation.version, "round": operation.round, "agent_id": self.agent_id,
            "branch_id": self.branch_id, "since_ms": self.since_ms,
            "idempotency_key": operation.idempotency_key,
            "anomalies": [a.what for a in operation.anomalies],
            "problem": self.view.seen.unsafe, "age_s": round(age_s(self.view.header), 3),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a probe found out.

    Attributes:
        outcome: COMMITTED, ABSENT, or UNKNOWN; an `Outcome`, or its name.
        result: the effect's result, for COMMITTED.
        voided: for ABSENT: the idempotency key was voided at the provider, so that a call that
            is still under way can no longer take effect.
        post_state_hash: for COMMITTED: of what the effect left behind, so that it can be undone.
        payload: for the compensator, in place of the one from before the effect; None keeps that.
    """

    outcome: Outcome
    result: Any = None
    evidence: str = ""
    voided: bool = False
    post_state_hash: str = ""
    payload: Any = None

    def __post_init__(self) -> None:
        try:
            known = Outcome(str(self.outcome).upper())
        except ValueError:
            known = Outcome.COMPENSATED
        if known is Outcome.COMPENSATED:
            raise InvalidArgumentError(
                f"outcome: {self.outcome!r} is nothing that a probe can answer.",
                next_step="Answer COMMITTED, ABSENT, or UNKNOWN.",
                field="outcome",
            )
        object.__setattr__(self, "outcome", known)
        check_flag("voided", self.voided)
        for name in ("evidence", "post_state_hash"):
            check_text(name, getattr(self, name))


async def open_operations(engine: Engine, *, agent_id: str | None = None) -> list[OpenOperation]:
    """Everything that is owned, in doubt, unsafe, or an anomaly; oldest first."""
    found = []
    for view in await engine.view.open_operations():
        operation = view.operation
        owner = operation.owner.intent if operation.owner else operation.first
        if agent_id is not None and not any(a.intent.agent_id == agent_id for a in operation.attempts.values()):
            continue
        state = await _state(engine, view)
        if state:
            found.append(
                OpenOperation(
                    view,
                    state,
                    owner.agent_id if owner else "",
                    owner.branch_id if owner else "",
                    owner.time_ms if owner else 0,
                )
            )
    return sorted(found, key=lambda item: (item.since_ms, item.operation.op_id))


async def _state(engine: Engine, view: OperationView) -> str:
    operation = view.operation
    if view.seen.unsafe or operation.status is Status.UNSAFE:
        return "unsafe"
    if operation.status is Status.IN_DOUBT or view.seen.owner_ended:
        return "in doubt"
    if operation.status is Status.OWNED and operation.owner is not None:
        return "in flight" if await engine.lives(operation.owner.intent.session_id) else "silent"
    if operation.status is Status.COMPENSATING:
        return "being undone"
    return "anomaly" if operation.needs_attention else ""


async def resolve(
    engine: Engine,
    op_id: str,
    outcome: Outcome,
    *,
    version: str,
    by: str,
    evidence: str,
    result: Any = None,
    risk_accepted: bool = False,
    voided: bool = False,
    post_state_hash: str = "",
    payload: Any = None,
) -> Operation:
    """Settle an operation, bound to the exact version that was looked at.

    Args:
        outcome: COMMITTED, ABSENT, or COMPENSATED (a committed effect was undone outside). COMMITTED is also
            the word on one that is committed and `sealable`, with `post_state_hash`; ABSENT is also the word on a
            free operation at its cap of attempts, which may be tried on then.
        version: `Operation.version` as it was seen.
        risk_accepted: an operator takes the risk that an ABSENT effect still happens.
        post_state_hash: of what a COMMITTED effect left behind; seals how it is undone.
        payload: for the compensator, in place of the one from before the effect; None keeps that.

    Returns:
        The operation after the resolution.

    Raises:
        NotFoundError, VersionMovedError: look again.
        RefusedError: ABSENT cannot be known yet.
        InvalidArgumentError: this outcome does not apply to the operation's status, or to what became of its inverse.
        OperationBeingUndoneError: its inverse is running or in doubt; that is settled first.
        ManifestError: how it is undone cannot be sealed; nothing was recorded.
        StaleProjectionError: not confirmed in time; look again before anything else.
    """
    view = await engine.view.operation(op_id)
    operation = view.operation
    sealing = outcome is Outcome.COMMITTED and bool(post_state_hash) and operation.sealable
    if not _may_be_tried_on(engine, operation, outcome, version):
        _require_resolvable(view, outcome, version, sealing=sealing)
    if sealing and operation.at_rest and result is not None:
        raise _no_path("result", "the effect is committed, and its result was recorded with that")
    if outcome is Outcome.ABSENT and not (voided or risk_accepted):
        _require_past(view)
    form, data = ResultForm.NONE, None
    if outcome is Outcome.COMMITTED and result is not None:
        form, data, _ = encode_result(result, engine.limits.max_result_bytes)
    told = operation.result if operation.status is Status.COMMITTED else data
    sealed = _sealed(operation, outcome, told, post_state_hash=post_state_hash, payload=payload)
    await inverses.require_word(engine, view, outcome)
    fact = EffectFact(
        kind=EffectKind.RESOLVED,
        op_id=op_id,
        attempt_id=engine.new_id(),
        outcome=outcome,
        version=version,
        by=by,
        evidence=evidence,
        risk_accepted=risk_accepted,
        reason=VOIDED if voided else "",
        round=operation.round,
        tool=operation.tool,
        result=data if form is ResultForm.JSON else None,
        result_form=form,
        manifest=sealed.data if sealed else None,
        manifest_digest=sealed.digest if sealed else "",
        losses=_lost(operation) if outcome is Outcome.COMPENSATED else (),
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_effect(fact, view.facts)
    return await confirmed(engine, view, fact, offset)


def require_kept(result: Any, limit: int) -> None:
    """Raise InvalidArgumentError unless a result that a person gives can be kept: it stands nowhere else."""
    form, data, why = encode_result(result, limit)
    if form in {ResultForm.JSON, ResultForm.NONE}:
        return
    said = f"has no JSON form ({why[:300]})" if data is None else f"takes {len(data)} bytes; at most {limit} are kept"
    raise InvalidArgumentError(
        f"result: {said}. Nothing was recorded.",
        next_step="Pass plain JSON (text, numbers, lists, dicts): of what is large, where it can be found.",
        field="result",
    )


def _sealed(
    operation: Operation, outcome: Outcome, result: bytes | None, *, post_state_hash: str, payload: Any
) -> Manifest | None:
    """How the effect is undone, sealed from what its intent says. Raises InvalidArgumentError, ManifestError."""
    if not post_state_hash:
        if payload is not None:
            raise _no_path("payload", "it seals nothing without post_state_hash")
        return None
    path = operation.owner.intent.manifest if operation.owner else None
    if outcome is not Outcome.COMMITTED:
        raise _no_path("post_state_hash", f"it says nothing of an effect that is {outcome.value.lower()}")
    if path is None:
        raise _no_path("post_state_hash", "the intent does not say how the effect is undone")
    after = None if payload is None else plain_payload(payload)
    return read(path).seal(
        post_state_hash=post_state_hash, payload=after, result_digest=digest(result) if result is not None else ""
    )


def _no_path(field: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {why}.", next_step="Leave it out.", field=field)


def _lost(operation: Operation) -> tuple[str, ...]:
    """What nothing can take back, however the effect was undone outside."""
    try:
        return read(operation.sealed_manifest).irreversible if operation.sealed_manifest else ()
    except ManifestError:
        return ()


async def confirmed(engine: Engine, view: OperationView, fact: EffectFact, offset: int | None) -> Operation:
    """The operation once a resolution is applied. Raises VersionMovedError when it did not count.

    Raises StaleProjectionError when that is not known in time.
    """

    async def applied() -> tuple[Operation, Resolution] | None:
        operation = (await engine.view.operation(fact.op_id)).operation
        mine = [r for r in operation.resolutions if r.fact.attempt_id == fact.attempt_id]
        return (operation, mine[0]) if mine else None

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    found = await engine.wait_until(view.partition, applied, deadline=deadline, beyond=offset)
    if found is None:
        raise StaleProjectionError(
            f"the resolution of {fact.op_id} was not applied in time.",
            next_step="Look with `fencepost ops show` before you resolve it again.",
            op_id=fact.op_id,
        )
    operation, resolution = found
    if not resolution.effective:
        raise moved(fact.op_id, fact.version, operation.version)
    return operation


_ALLOWED = {
    Outcome.COMMITTED: {Status.OWNED, Status.IN_DOUBT, Status.UNSAFE, Status.COMMITTED, Status.COMPENSATING},
    Outcome.ABSENT: {Status.OWNED, Status.IN_DOUBT, Status.UNSAFE, Status.FREE},
    Outcome.COMPENSATED: {Status.UNSAFE, Status.COMMITTED, Status.COMPENSATING},
}


def _may_be_tried_on(engine: Engine, operation: Operation, outcome: Outcome, version: str) -> bool:
    """Whether this is the word on a free operation that has reached its cap: it may be tried on."""
    full = operation.status is Status.FREE and operation.tries >= engine.limits.max_attempts
    return full and outcome is Outcome.ABSENT and operation.version == version


def _require_resolvable(view: OperationView, outcome: Outcome, version: str, *, sealing: bool = False) -> None:
    operation = view.operation
    if not view.facts and not view.seen.unsafe:
        raise not_in_ledger(operation.op_id)
    if operation.version != version:
        raise moved(operation.op_id, version, operation.version)
    plain = operation.status in {Status.FREE, Status.COMMITTED} and outcome is not Outcome.COMPENSATED
    needless = plain and not view.seen.unsafe and not operation.needs_attention and not sealing
    if operation.status not in _ALLOWED.get(outcome, set()) or needless:
        raise InvalidArgumentError(
            f"outcome: {outcome.value} does not apply to {operation.op_id}, which is {operation.status.value}.",
            next_step="Look at it with `fencepost ops show`.",
            field="outcome",
        )


def _require_past(view: OperationView) -> None:
    """Refuse ABSENT while a call that is under way could still take effect."""
    owner = view.operation.owner
    if view.operation.status is Status.FREE:
        return
    intent = owner.intent if owner else None
    if intent is not None and intent.longest_run_s >= 0:
        over_ms = intent.time_ms + (intent.deadline_s + intent.longest_run_s + CLOCK_SKEW_S) * 1000
        if view.header.now_ms > over_ms:
            return
        why = f"its deadline and longest run are over in {(over_ms - view.header.now_ms) / 1000:.0f} s"
    else:
        why = "its tool declares no longest run, so it could still be under way"
    raise RefusedError(
        f"outcome: ABSENT cannot be known for {view.operation.op_id}: {why}.",
        next_step="Void its idempotency key at the provider in a probe, wait, or let an operator "
        "accept the risk by name (`--accept-risk`).",
        field="outcome",
    )


async def _asked(operation: Operation, ask: Callable[[Operation], ProbeAnswer]) -> ProbeAnswer:
    try:
        answer: object = await asyncio.to_thread(ask, operation)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:  # noqa: BLE001 (a stranger's code may raise anything)
        raise InvalidArgumentError(
            f"probe: that of {operation.tool} failed ({told_of(error, operation)}).",
            next_step="Correct the probe; nothing was recorded.",
            field="probe",
        ) from cause_of(error, operation)
    if not isinstance(answer, ProbeAnswer):
        raise InvalidArgumentError(
            f"probe: that of {operation.tool} answered {type(answer).__name__}, not a ProbeAnswer.",
            next_step="Return ProbeAnswer(Outcome.COMMITTED | ABSENT | UNKNOWN, …); nothing was recorded.",
            field="probe",
        )
    return answer


def _has_path(operation: Operation) -> bool:
    return operation.owner is not None and operation.owner.intent.manifest is not None


async def probe(
    engine: Engine, item: OpenOperation, ask: Callable[[Operation], ProbeAnswer], *, by: str
) -> tuple[ProbeAnswer, Operation]:
    """Ask a tool's probe about an operation and record what it found, unless that is UNKNOWN.

    The probe runs in a thread of its own. An ABSENT that cannot be accepted yet becomes UNKNOWN.

    Raises InvalidArgumentError when the probe fails or answers something else, OperationBeingUndoneError where the
    tool could not tell; nothing is recorded.
    """
    inverses.require_askable(item.operation)
    answer = await _asked(item.operation, ask)
    if answer.outcome is Outcome.UNKNOWN:
        return answer, item.operation
    try:
        operation = await resolve(
            engine,
            item.operation.op_id,
            answer.outcome,
            version=item.operation.version,
            by=by,
            evidence=answer.evidence or "probe",
            result=answer.result,
            voided=answer.voided,
            post_state_hash=answer.post_state_hash if _has_path(item.operation) else "",
            payload=answer.payload if answer.post_state_hash and _has_path(item.operation) else None,
        )
    except RefusedError as refused:
        unknown = ProbeAnswer(Outcome.UNKNOWN, evidence=f"{answer.evidence} ({refused.message})".strip())
        return unknown, item.operation
    return answer, operation
