"""Words of callers that several calls take: outcomes, policies, watermarks, who acts and how they know."""

from __future__ import annotations

from .errors import InvalidArgumentError
from .facts import Outcome
from .identity import check_id
from .verdicts import Policy, Word


def as_outcome(outcome: str, next_step: str) -> Outcome:
    """The outcome of this name, in any case. Raises InvalidArgumentError."""
    try:
        return Outcome(str(outcome).upper())
    except ValueError as error:
        raise InvalidArgumentError(f"outcome: {error}.", next_step=next_step, field="outcome") from error


def no_watermark(field: str, value: object) -> InvalidArgumentError:
    """The error for something else than a watermark."""
    return InvalidArgumentError(
        f"{field}: {value!r} is no watermark.",
        next_step="Pass a token, a Watermark, or (for a replay) a checkpoint's id.",
        field=field,
    )


def as_word(by: str, evidence: str) -> Word:
    """Who acts, and how they know, where somebody says so. Raises InvalidArgumentError."""
    return Word(
        by if by == "" else check_id("by", by, limit=200),
        evidence if evidence == "" else check_id("evidence", evidence, limit=2_000),
    )


def as_policy(policy: Policy | str) -> Policy:
    """The policy of this name, in any case. Raises InvalidArgumentError."""
    try:
        return Policy(str(policy).upper())
    except ValueError as error:
        raise InvalidArgumentError(
            f"policy: {policy!r} is not a policy.", next_step="Choose STRICT or GATED.", field="policy"
        ) from error
