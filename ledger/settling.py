"""Settling an attempt (DESIGN section 4): committed, failed, or in doubt.

COMMITTED with the result; FAILED only if the effect certainly did not happen; IN_DOUBT otherwise. An
outcome that cannot be published is raised at the end, the result attached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import sealing
from .attempt_facts import outcome, text
from .attempts import Claim
from .errors import OutcomeUnknownError, RecordTooLargeError, StoreError
from .facts import EffectFact, EffectKind, ResultForm
from .identity import digest
from .operations import VOIDED
from .results import plain_json
from .secret_values import may_hold_secrets
from .strangers import UNCUT, told

COMMITTED = "committed"
"""What a claim is, as which an outcome says that the effect happened."""
MOST_READINGS = 8
"""So many different results of one recorded read are kept."""


async def commit(
    claim: Claim,
    value: Any,
    *,
    reference: str = "",
    encode: Callable[[Any], bytes] | None = None,
    after: sealing.After = sealing.NOTHING_KNOWN,
) -> None:
    """The effect happened: see `committed`.

    Raises OutcomeUnknownError with `result` attached when the commit cannot be published.
    """
    await settle(claim, committed(claim, value, reference=reference, encode=encode, after=after), COMMITTED)


def committed(
    claim: Claim,
    value: Any,
    *,
    reference: str = "",
    encode: Callable[[Any], bytes] | None = None,
    after: sealing.After = sealing.NOTHING_KNOWN,
) -> EffectFact:
    """The fact that says so. A result that cannot be encoded is still a commit, and so is one that cannot be sealed.

    From here on the call counts as not returned, until `Claim.returned` says so.

    Args:
        after: what is known of the state after the effect, for the manifest.
    """
    if not claim.call.unconfirmed:
        claim.session.unreturning(claim.call.op_id)
    form, data, why = encode_result(value, claim.session.engine.limits.max_result_bytes, encode)
    if may_hold_secrets(claim.call.arguments) and not claim.call.secrets.texts:  # what is secret is not known here
        why = why.partition(":")[0]
    fact = outcome(
        claim.session,
        claim.call,
        claim.attempt_id,
        claim.round,
        EffectKind.COMMITTED,
        result=data if form is ResultForm.JSON else None,
        result_form=form,
        result_digest=digest(data) if data is not None else "",
        result_reference=_said(claim, reference, 2000),
        error=_said(claim, why, 500),
    )
    claim.value = value
    limit = claim.session.engine.limits.max_manifest_bytes
    fact = claim.call.secrets.kept_out(sealing.sealed(fact, claim.manifest, after, limit=limit))
    if not claim.call.unconfirmed:
        claim.session.unreturned[fact.op_id] = fact.seq  # its very number: that of another may have come first
    return fact


def reading(claim: Claim, value: Any, *, encode: Callable[[Any], bytes] | None = None) -> EffectFact | None:
    """The fact that a read gave another result than those recorded before it; None if there is nothing to say.

    The caller's context holds this one, so the recorded one must not be taken for it. Of a read that gives ever
    new results `MOST_READINGS` are recorded, the first one included; beyond the room of a history by digest.
    """
    limits, told = claim.session.engine.limits, claim.operation.told
    if len(told) >= MOST_READINGS:
        return None
    room = limits.max_history_bytes - sum(len(fact) for _, fact in claim.history)
    form, data, why = encode_result(value, max(0, min(limits.max_result_bytes, room)), encode)
    said: dict[str, Any] = {
        "result": data if form is ResultForm.JSON else None,
        "result_form": form,
        "result_digest": digest(data) if data is not None else "",
        "error": text(why.partition(":")[0], 500),
    }
    kept = claim.call.secrets.kept_out(EffectFact(kind=EffectKind.COMMITTED, **said))
    if any((f.result_digest or f.result_form) == (kept.result_digest or kept.result_form) for f in told):
        return None
    claim.value, attempt_id = value, claim.session.engine.new_id()
    fact = outcome(claim.session, claim.call, attempt_id, claim.round, EffectKind.COMMITTED, **said)
    return claim.call.secrets.kept_out(replace(fact, arguments=None))


async def fail(claim: Claim, why: str, *, key_voided: bool = False) -> None:
    """The effect certainly did not happen; the operation is free again.

    Args:
        key_voided: because its idempotency key is void at the provider: the next attempt gets another one.
    """
    if claim.call.unconfirmed:  # nothing was claimed, so there is nothing to free
        close(claim, "failed")
        return
    fact = outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.FAILED)
    await settle(claim, replace(fact, error=_said(claim, why, 500), reason=VOIDED if key_voided else ""), "failed")


async def doubt(claim: Claim, why: str) -> None:
    """The effect may or may not have happened. Only a probe, an operator, or a late outcome decides."""
    if claim.call.unconfirmed:
        close(claim, "in doubt")
        return
    fact = outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.IN_DOUBT)
    said = _said(claim, why, 500)
    await settle(claim, replace(fact, reason=said, error=said), "in doubt")


def _said(claim: Claim, why: str, limit: int) -> str:
    """A text as it may be written down: cut only once no secret is in it, of which the beginning may not be known."""
    return text(claim.call.secrets.hidden(why[:UNCUT]), limit)


async def settle(claim: Claim, fact: EffectFact, decided: str) -> None:
    """Publish an outcome. Raises OutcomeUnknownError with `result` attached when it cannot be published."""
    session, fact = claim.session, claim.call.secrets.kept_out(fact)
    if claim.call.unconfirmed:
        session.in_background(session.publish_effect(fact, claim.history))
        close(claim, decided)
        return
    try:
        before = {"tried": claim.tried} if claim.tried else {}
        await session.publish_effect(fact, claim.history, **before)
    except (StoreError, RecordTooLargeError) as error:
        session.returned(fact.op_id)
        raise unpublished(claim, decided, claim.value) from error
    close(claim, decided)


def unpublished(claim: Claim, decided: str, value: Any) -> OutcomeUnknownError:
    """The error for an outcome that did not get into the log; the result is attached."""
    return OutcomeUnknownError(
        f"the outcome of {claim.call.op_id} ({decided}) could not be published; the ledger shows it "
        "as owned or in doubt.",
        next_step="Keep the attached result; settle it with `fencepost in-doubt resolve`.",
        op_id=claim.call.op_id,
        result=value,
    )


def close(claim: Claim, decided: str) -> None:
    """Say that the outcome is in the log: the attempt is not open any more."""
    claim.decided = decided
    claim.session.open_attempts.pop(claim.attempt_id, None)


def encode_result(
    value: Any, limit: int, encode: Callable[[Any], bytes] | None = None
) -> tuple[ResultForm, bytes | None, str]:
    """(form, JSON bytes, why it could not be encoded) of a result; `limit` in bytes."""
    if value is None:
        return ResultForm.NONE, None, ""
    try:
        data = encode(value) if encode else plain_json(value)
    except Exception as error:  # noqa: BLE001 (any encoder may raise anything; a commit it stays)
        return ResultForm.NOT_ENCODABLE, None, told(error, longest=UNCUT)
    return (ResultForm.JSON if len(data) <= limit else ResultForm.TOO_LARGE), data, ""
