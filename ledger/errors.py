"""Every error that Fencepost raises.

    FencepostError
    ├── UsageError                    the call is wrong; also a ValueError
    │   ├── InvalidArgumentError      a field is blank, too long, not printable, of the wrong type
    │   ├── WatermarkMangledError     a token was found, but a summary damaged it
    │   └── RecordTooLargeError       certainly not written: arguments or history over the limit
    ├── RefusedError                  refused as unsafe; trying again does not help
    │   ├── UnsafeRollbackError       a rollback would repeat or lose an effect
    │   ├── FencedError               this session was superseded, rolled back, or pruned
    │   ├── DivergenceHeldError       after a gated rollback: same tool, no crossed effect matches
    │   ├── CompactionRefusedError    a summary lost or damaged the token that it had to keep
    │   ├── SummaryReconciliationError  a restored context depends on facts that nothing can recover
    │   ├── ManifestError             an effect has no complete way back; nothing was sealed
    │   │   └── LossNotAcceptedError  a plan cannot take everything back, and nobody has accepted that
    │   ├── CompensationBlockedError  an undo would overwrite, or take away, what somebody relies on
    │   └── SpeculativeRollbackViolation  a pruned branch left an effect that cannot be taken back
    ├── UndecidedError                needs time or a human; never a permit to run
    │   ├── OperationInFlightError    its owner lives and has not decided yet
    │   ├── OperationBeingUndoneError an undo of the effect is under way
    │   └── OperationInDoubtError     the effect may have happened and its owner is gone
    ├── ConflictError                 the state is not what the caller thinks
    │   ├── OperationConflictError    other identity arguments under one op_id
    │   ├── VersionMovedError         the operation changed since it was looked at
    │   ├── AlreadyExistsError        this checkpoint or branch id is taken
    │   ├── GenerationConflictError   a checkpoint or compaction is of another generation
    │   ├── TooManyAttemptsError      the operation's cap on attempts is reached
    │   └── RollbackPendingError      another rollback of the agent is being decided
    ├── NotFoundError                 no such operation, agent, branch, or checkpoint
    ├── ResultNotRecordedError        committed, but the result was too large or not encodable
    └── StoreError                    the store cannot serve now
        ├── StoreUnavailableError     not reachable; retryable
        │   └── StoreClosedError      closed, or opened before a fork: open it anew; not retryable
        ├── StaleProjectionError      not caught up, rebuilding, or too old to decide from; retryable
        ├── OutcomeUnknownError       a publish may or may not have been written
        ├── PublishRefusedError       the broker refused a record: certainly not written
        ├── GuaranteeError            a broker, topic, or Redis setting breaks a promise
        └── LogGapError               records are missing that nobody had read

`retryable` says whether the same call may succeed later *and* is safe to make again.
Every message ends with the next step.
"""

from __future__ import annotations

from typing import Any, ClassVar


class FencepostError(Exception):
    """Base of all. Keyword arguments become typed fields and appear in `to_dict()`.

    Args:
        message: what happened, in one sentence.
        next_step: what the caller can do now; ends the message.
    """

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, next_step: str = "", **details: Any) -> None:
        self.message = message
        self.next_step = next_step
        self.details = details
        super().__init__(f"{message} {next_step}".strip())

    def __getattr__(self, name: str) -> Any:
        details = self.__dict__.get("details", {})
        if name in details:
            return details[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        state = (type(self), self.message, self.next_step, self.details)
        return _rebuild, state

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, the same for the command line and any API."""
        return {
            "schema": "fencepost.error.v1",
            "error": type(self).__name__,
            "message": self.message,
            "next_step": self.next_step,
            "retryable": self.retryable,
            "details": {name: _plain(value) for name, value in self.details.items()},
        }


def _rebuild(kind: type[FencepostError], message: str, next_step: str, details: dict[str, Any]) -> FencepostError:
    return kind(message, next_step=next_step, **details)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


class UsageError(FencepostError, ValueError):
    """The call itself is wrong."""

    exit_code = 2


class InvalidArgumentError(UsageError):
    """A field has a value that cannot be taken. Fields: `field`."""


class WatermarkMangledError(UsageError):
    """A watermark token is there, but damaged."""

    exit_code = 3


class RecordTooLargeError(UsageError):
    """A record would exceed the limit; certainly not written. Fields: `size_bytes`, `limit_bytes`."""


class RefusedError(FencepostError):
    """Refused as unsafe."""

    exit_code = 3


class UnsafeRollbackError(RefusedError):
    """A rollback is refused. Fields: `verdict`."""


class FencedError(RefusedError):
    """This session no longer speaks for its branch. Fields: `session_id`, `reason`."""


class DivergenceHeldError(RefusedError):
    """An attempt after a gated rollback matches none of the crossed effects. Fields: `op_id`, `candidates`."""


class CompactionRefusedError(RefusedError):
    """A compaction of the context is refused. Fields: `problem` ("absent", "mangled", "foreign", "outdated"), `token`."""


class SummaryReconciliationError(RefusedError):
    """What a resumed turn depends on cannot be recovered; not retryable. Fields: `missing`, `recovered`."""


class ManifestError(RefusedError):
    """An effect cannot be undone as declared; nothing was sealed. Fields: `field`."""


class LossNotAcceptedError(ManifestError):
    """A person must first accept by name what an undo cannot take back. Fields: `losses`, those that are missing."""

    exit_code = 4


class CompensationBlockedError(RefusedError):
    """An undo is refused; nothing was undone by it. Fields: `op_id`, `verdict`, `done`."""


class SpeculativeRollbackViolation(RefusedError):  # noqa: N818 (the word of the field)
    """A pruned branch left behind what nothing takes back, or was the last that relied on such an effect.

    Fields: `orphans`, `violations`, `verdict`.
    """


class UndecidedError(FencepostError):
    """Nobody may run the operation, and no result can be given yet. Fields: `op_id`."""

    exit_code = 4


class OperationInFlightError(UndecidedError):
    """The owner lives and has not decided yet."""


class OperationBeingUndoneError(UndecidedError):
    """An undo of the effect is under way, or was left in the middle. Fields: `op_id`; `inverse` to be settled first."""


class OperationInDoubtError(UndecidedError):
    """The effect may or may not have happened, and nobody who could say is left."""


class ConflictError(FencepostError):
    """The ledger's state is not what the call supposes."""

    exit_code = 6


class OperationConflictError(ConflictError):
    """Identity arguments, tool, or class differ under one op_id. Fields: `op_id`, `recorded`, `given`."""


class VersionMovedError(ConflictError):
    """The operation changed since it was looked at. Fields: `op_id`, `seen`, `current`."""


def not_in_ledger(op_id: str) -> NotFoundError:
    """The error for an operation that the ledger has never seen."""
    return NotFoundError(
        f"operation {op_id} is not in this ledger.",
        next_step="List operations with `fencepost ops list`.",
        field="op_id",
    )


def no_such_branch(agent_id: str, branch_id: str) -> NotFoundError:
    """The error for a branch that an agent does not have."""
    return NotFoundError(
        f"branch {branch_id} of {agent_id} does not exist.",
        next_step="See its branches with `fencepost branch list`.",
        field="branch",
    )


def moved(op_id: str, seen: str, current: str) -> VersionMovedError:
    """The error for an operation that is not any more what somebody looked at, or made a plan for."""
    return VersionMovedError(
        f"operation {op_id} changed: you saw version {seen or '(none)'}, it is {current or '(none)'} now.",
        next_step="Look at it with `fencepost ops show`, and decide anew; a plan is made anew.",
        op_id=op_id,
        seen=seen,
        current=current,
    )


class AlreadyExistsError(ConflictError):
    """The id is taken. Fields: `field`."""


class GenerationConflictError(ConflictError):
    """A checkpoint or compaction names another generation than the branch has. Fields: `given`, `current`."""


class TooManyAttemptsError(ConflictError):
    """The operation reached `Limits.max_attempts`; an operator lets it go on. Fields: `op_id`, `attempts`, `limit`."""


class RollbackPendingError(ConflictError):
    """Another rollback of this agent is being decided. Fields: `rollback_id`; `host`, `pid`, `by`, `since_ms`, `left_s`."""


class NotFoundError(FencepostError):
    """No such thing in this ledger."""

    exit_code = 5


class ResultNotRecordedError(FencepostError):
    """The operation is committed; its result is not in the ledger. Fields: `op_id`, `form`, `digest`, `reference`."""

    exit_code = 4


class StoreError(FencepostError):
    """The store cannot serve this call now."""

    exit_code = 7


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""

    retryable = True


class StoreClosedError(StoreUnavailableError):
    """This store object is closed, or belongs to the process that was forked."""

    retryable = False


class StaleProjectionError(StoreError):
    """The projection cannot be decided from now."""

    retryable = True


class OutcomeUnknownError(StoreError):
    """A publish may or may not have been written, now or later. Fields: `result` where one is attached."""


class PublishRefusedError(StoreError):
    """The log refused a record; it is certainly not written."""


class GuaranteeError(StoreError):
    """A setting breaks a promise. Fields: `checks`."""

    exit_code = 1


class LogGapError(StoreError):
    """Records are missing above the settled offset. Fields: `partition`, `expected`, `found`."""

    exit_code = 4
