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
from .calls import plain_json
from .errors import OutcomeUnknownError, RecordTooLargeError, StoreError
from .facts import EffectFact, EffectKind, ResultForm
from .identity import digest
from .secret_values import may_hold_secrets
from .strangers import told


async def commit(
    claim: Claim,
    value: Any,
    *,
    reference: str = "",
    encode: Callable[[Any], bytes] | None = None,
    after: sealing.After = sealing.NOTHING_KNOWN,
) -> None:
    """The effect happened. A result that cannot be encoded is still a commit, and so is one that cannot be sealed.

    Args:
        after: what is known of the state after the effect, for the manifest.

    Raises OutcomeUnknownError with `result` attached when the commit cannot be published.
    """
    form, data, why = encode_result(value, claim.session.engine.limits.max_result_bytes, encode)
    if may_hold_secrets(claim.call.arguments) and not claim.call.secrets.texts:  # what is secret is not known here
        why = why.partition(":")[0]
    fact = replace(
        outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.COMMITTED),
        result=data if form is ResultForm.JSON else None,
        result_form=form,
        result_digest=digest(data) if data is not None else "",
        result_reference=text(reference, 2000),
        error=text(why, 500),
    )
    claim.value = value
    limit = claim.session.engine.limits.max_manifest_bytes
    await _settle(claim, sealing.sealed(fact, claim.manifest, after, limit=limit), "committed")


async def fail(claim: Claim, why: str) -> None:
    """The effect certainly did not happen; the operation is free again."""
    if claim.call.unconfirmed:  # nothing was claimed, so there is nothing to free
        _decided(claim, "failed")
        return
    fact = outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.FAILED)
    await _settle(claim, replace(fact, error=text(why, 500)), "failed")


async def doubt(claim: Claim, why: str) -> None:
    """The effect may or may not have happened. Only a probe, an operator, or a late outcome decides."""
    if claim.call.unconfirmed:
        _decided(claim, "in doubt")
        return
    fact = outcome(claim.session, claim.call, claim.attempt_id, claim.round, EffectKind.IN_DOUBT)
    await _settle(claim, replace(fact, reason=text(why, 500), error=text(why, 500)), "in doubt")


async def _settle(claim: Claim, fact: EffectFact, decided: str) -> None:
    session, fact = claim.session, claim.call.secrets.kept_out(fact)
    if claim.call.unconfirmed:
        session.in_background(session.publish_effect(fact, claim.history))
        _decided(claim, decided)
        return
    if fact.kind is EffectKind.COMMITTED:
        session.unreturned[fact.op_id] = fact.seq
    try:
        await session.publish_effect(fact, claim.history)
    except (StoreError, RecordTooLargeError) as error:
        session.returned(fact.op_id)
        raise unpublished(claim, decided, claim.value) from error
    _decided(claim, decided)


def unpublished(claim: Claim, decided: str, value: Any) -> OutcomeUnknownError:
    """The error for an outcome that did not get into the log; the result is attached."""
    return OutcomeUnknownError(
        f"the outcome of {claim.call.op_id} ({decided}) could not be published; the ledger shows it "
        "as owned or in doubt.",
        next_step="Keep the attached result; settle it with `fencepost in-doubt resolve`.",
        op_id=claim.call.op_id,
        result=value,
    )


def _decided(claim: Claim, decided: str) -> None:
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
        return ResultForm.NOT_ENCODABLE, None, told(error)[:300]
    return (ResultForm.JSON if len(data) <= limit else ResultForm.TOO_LARGE), data, ""
