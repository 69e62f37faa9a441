"""The one place where what the Kafka client says becomes an error of Fencepost.

It knows the client's errors by name only; `client.py` alone imports the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ledger.errors import (
    FencepostError,
    GuaranteeError,
    OutcomeUnknownError,
    PublishRefusedError,
    RecordTooLargeError,
    StoreClosedError,
    StoreUnavailableError,
)
from ..ledger.ports import Check
from ..schemas.errors import RegistryUnavailableError, SchemaError
from .settings import FIRST_RETRY_AFTER_S

if TYPE_CHECKING:
    from ..ledger.positions import Partition

NO_ROOM = "NO_ROOM"
CLOSED = "CLOSED"
REPLACED = "REPLACED"
NOT_TOLD = "NOT_TOLD"

_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"})
_REFUSED_FOR_CONTENT = frozenset({"INVALID_RECORD", "INVALID_TIMESTAMP", "INVALID_MSG_SIZE"})
_REFUSED_FOR_NOW = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "POLICY_VIOLATION",
        "NOT_ENOUGH_REPLICAS",
        "TOPIC_EXCEPTION",
        "UNKNOWN_TOPIC_OR_PART",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a record was not delivered.

    Attributes:
        code: the client's name of the error, or one of this module's.
        text: the client's words.
        handed_over: whether the client had taken the record; if not, it was never sent.
        elapsed_s: from handing over to this answer.
        cause: the client's exception.
    """

    code: str
    text: str
    handed_over: bool
    elapsed_s: float = 0.0
    cause: Exception | None = None


def of_publish(failure: Failure, partition: Partition, size_bytes: int) -> FencepostError:
    """The error of a publish, by what is certain.

    1. The client never took the record: it is not written.
    2. A refusal for what the record is: it is not written, since every try has the same answer.
    3. A refusal for what the cluster is now (rights, replicas): the *last* try was not written. An earlier one whose
       answer was lost may have been, so this counts as certain only when no earlier one can have been made.
    4. Anything else: unknown. A message that timed out can still be written later.

    Source: librdkafka keeps the state of persistence to itself, so it is inferred; see `FIRST_RETRY_AFTER_S`.
    """
    what = f"{failure.code} ({failure.text})" if failure.text else failure.code
    if failure.code in _TOO_LARGE:
        return RecordTooLargeError(
            f"The log refused a record of {size_bytes} bytes as too large.",
            next_step="Raise the topic's max.message.bytes, or send large values by digest and reference.",
            size_bytes=size_bytes,
            limit_bytes=None,
        )
    for_now = failure.code in _REFUSED_FOR_NOW and failure.elapsed_s < FIRST_RETRY_AFTER_S
    if not failure.handed_over or failure.code in _REFUSED_FOR_CONTENT or for_now:
        return PublishRefusedError(
            f"A record for {partition} was refused and is not written: {what}.",
            next_step=_NEXT_STEPS.get(failure.code, "Correct what the error names, then publish again."),
            code=failure.code,
            partition=str(partition),
        )
    return OutcomeUnknownError(
        f"Whether a record for {partition} is or will be written is not known: {what}.",
        next_step="Publish it again; the same fact twice is the same fact.",
        code=failure.code,
        partition=str(partition),
    )


_NEXT_STEPS = {
    NO_ROOM: "The log takes records more slowly than they come; publish again later.",
    CLOSED: "Open the ledger again.",
    "TOPIC_AUTHORIZATION_FAILED": "Give this client the right to write to the topic.",
    "CLUSTER_AUTHORIZATION_FAILED": "Give this client the right of idempotent writes.",
    "NOT_ENOUGH_REPLICAS": "Wait until enough replicas are in sync, then publish again.",
}


def refused(partition: Partition, reason: str, next_step: str) -> PublishRefusedError:
    """A refusal that was decided here, before anything was sent."""
    return PublishRefusedError(
        f"A record for {partition} was refused and is not written: {reason}.",
        next_step=next_step,
        code="",
        partition=str(partition),
    )


def too_large(size_bytes: int, limit_bytes: int) -> RecordTooLargeError:
    """A record over the limit of this package."""
    return RecordTooLargeError(
        f"The record has at least {size_bytes} bytes, more than fits ({limit_bytes} with its frame); it is not written.",
        next_step="Send large arguments and results by digest and reference.",
        size_bytes=size_bytes,
        limit_bytes=limit_bytes,
    )


def unreachable(bootstrap: str, code: str, text: str) -> StoreUnavailableError:
    """The brokers did not answer, or refused to."""
    return StoreUnavailableError(
        f"Kafka at {bootstrap} cannot be used: {code} ({text}).",
        next_step="Check the address and that the brokers run, then try again.",
    )


def missing_topic(bootstrap: str, topic: str, code: str) -> StoreUnavailableError:
    """A topic of the ledger is not there."""
    return StoreUnavailableError(
        f"Kafka at {bootstrap} has no usable topic {topic!r}: {code}.",
        next_step="Create the ledger's topics with `fencepost init`, or check the prefix in the URL.",
    )


def forked() -> StoreClosedError:
    """The log was opened by the parent of this process."""
    return StoreClosedError(
        "This log was opened before the process forked, and its connections belong to the parent.",
        next_step="Open the ledger after the fork, in the process that uses it (or start processes with spawn).",
    )


def closed() -> StoreClosedError:
    """The log was closed before this call."""
    return StoreClosedError("This log is closed.", next_step="Open the ledger again.")


def repartitioned(topic: str, found: int, wanted: int) -> GuaranteeError:
    """The partition count moved, so keys would move to other partitions."""
    return GuaranteeError(
        f"Topic {topic!r} has {found} partitions, but had {wanted} when the log was opened; nothing is published.",
        next_step="Never add partitions; export the settled ledger and import it into a new topic.",
        checks=[Check(f"partitions of {topic}", ok=False, found=str(found), wanted=str(wanted))],
    )


def of_registry(error: SchemaError) -> FencepostError:
    """The schema registry failed while the log was opened."""
    if isinstance(error, RegistryUnavailableError):
        return StoreUnavailableError(f"No answer from the schema registry: {error}.", next_step="Try again.")
    return GuaranteeError(
        f"The schema registry of the URL cannot be used: {error.reason}.",
        next_step="Correct that, or leave the registry out of the URL.",
        checks=[Check("schema registry", ok=False, found=error.reason, wanted="the published schemas")],
    )
