"""What a user passes, looked at before anything is done with it: each error names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .errors import InvalidArgumentError
from .identity import check_id


def check_flag(field: str, value: object) -> bool:
    """`value` if it is True or False; "false" and 1 are neither. Raises InvalidArgumentError."""
    if isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{field}: {value!r:.80} is not True or False.", next_step="Pass a bool.", field=field)


def check_text(field: str, value: object) -> str:
    """`value` if it is text, of any length. Raises InvalidArgumentError, which does not show it."""
    if isinstance(value, str):
        return value
    raise InvalidArgumentError(
        f"{field}: must be text, not {type(value).__name__}.",
        next_step=f"Pass (or return) a str as {field}.",
        field=field,
    )


def check_count(field: str, value: object, *, most: int = 2**63 - 1) -> int:
    """`value` if it is a whole number from 1 to `most`. Raises InvalidArgumentError."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
        return value
    raise InvalidArgumentError(
        f"{field}: {value!r:.80} is not a whole number from 1.", next_step="Count from 1.", field=field
    )


def check_seconds(field: str, value: object) -> None:
    """Raises InvalidArgumentError naming `field` unless `value` is a number of seconds, 0 or more."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value < 10**7:
        return
    raise InvalidArgumentError(
        f"{field}: {value!r:.80} is not a number of seconds.", next_step="Pass 0 or more.", field=field
    )


def check_names(field: str, value: object) -> tuple[str, ...]:
    """`value` as a tuple of names or templates. Raises InvalidArgumentError naming `field`; a text is no list."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):  # not shown: it may hold a secret
        raise InvalidArgumentError(
            f"{field}: must be a list of names, not {type(value).__name__}.",
            next_step=f'Pass {field}=("…",); one name is written with a comma.',
            field=field,
        )
    return tuple(check_id(field, name) for name in value)


def check_exceptions(field: str, value: object) -> None:
    """Raises InvalidArgumentError naming `field` unless `value` is a tuple of exception types."""
    if isinstance(value, tuple) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in value):
        return
    raise InvalidArgumentError(
        f"{field}: {value!r:.80} is no tuple of exception types.",
        next_step=f"Pass {field}=(CardDeclined,); one is written with a comma.",
        field=field,
    )
