"""What the errors of somebody else's code say, where it is written down or shown: safely, and without secrets.

The value of a secret argument is known only to the call that was made with it. Probes, inverses, and readers
of a state run later, elsewhere, and may say it all the same: they ask the same provider about the same effect.
So of an operation with a secret argument their errors are told by their types, and are not handed on as causes.

Source: decision record 0009.
"""

from __future__ import annotations

from .operations import Operation
from .secret_values import may_hold_secrets

_LONGEST = 500


UNCUT = 20_000
"""Characters of what is looked through for secrets, and cut afterwards."""


def told(error: BaseException, *, longest: int = _LONGEST) -> str:
    """What an exception says of itself, even if it fails to."""
    try:
        return f"{type(error).__name__}: {error}"[:longest]
    except Exception:  # noqa: BLE001 (a broken message must not keep an outcome from the log)
        return type(error).__name__


def told_of(error: BaseException, operation: Operation) -> str:
    """The same, of an error of code that deals with this operation."""
    return f"{type(error).__name__}; {_withheld(operation)}" if withholds(operation) else told(error)


def said_of(error: BaseException, operation: Operation, otherwise: str) -> str:
    """The text alone of such an error; `otherwise` if there is none, or it cannot be shown."""
    if withholds(operation):
        return otherwise
    return told(error).removeprefix(type(error).__name__).removeprefix(": ") or otherwise


def cause_of(error: BaseException, operation: Operation) -> BaseException | None:
    """The error as a cause to be handed on; None where it might show a secret."""
    return None if withholds(operation) else error


def withholds(operation: Operation) -> bool:
    """Whether an argument of the operation is secret, or nobody can tell."""
    return operation.first is not None and may_hold_secrets(operation.first.arguments)


def _withheld(operation: Operation) -> str:
    return f"what it says is not shown, since an argument of {operation.tool} is secret"
