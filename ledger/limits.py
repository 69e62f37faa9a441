"""The bounds of the protocol, as a user may set them."""

from __future__ import annotations

from dataclasses import dataclass

from .argument_checks import check_count, check_seconds
from .errors import InvalidArgumentError

ROOM_BYTES = 900_000
"""What a record has room for beside names and positions, so that an outcome always fits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the protocol, in seconds, bytes, and counts.

    Attributes:
        deadline_s: from an intent to the start of its effect; later it is withdrawn.
        wait_s: for another owner's decision.
        apply_s: for the projection to apply what was published.
        publish_s: for an outcome to be acknowledged, over all tries.
        max_result_bytes: larger results go by digest and reference.
        max_manifest_bytes: of how an effect is undone; stands in its intent and, sealed, in its commit.
        max_history_bytes: a key's history may not grow beyond it by an intent, so that the
            largest outcome always fits into a record.
        max_attempts: of one operation, of those that owned it; what lost a race is kept as numbers. One that has
            reached it goes on once an operator has looked at it (ABSENT), or under a higher one.
    """

    deadline_s: float = 30.0
    wait_s: float = 30.0
    apply_s: float = 30.0
    publish_s: float = 60.0
    max_result_bytes: int = 256_000
    max_arguments_bytes: int = 64_000
    max_history_bytes: int = 500_000
    max_attempts: int = 64
    max_manifest_bytes: int = 32_000

    def __post_init__(self) -> None:
        for name in ("deadline_s", "wait_s", "apply_s", "publish_s"):
            check_seconds(name, getattr(self, name))
        for name in (
            "max_result_bytes",
            "max_arguments_bytes",
            "max_history_bytes",
            "max_attempts",
            "max_manifest_bytes",
        ):
            check_count(name, getattr(self, name))
        largest = (
            self.max_history_bytes + self.max_arguments_bytes + self.max_result_bytes + 2 * self.max_manifest_bytes
        )
        if largest > ROOM_BYTES:
            raise InvalidArgumentError(
                f"limits: history, arguments, result and two manifests may take {largest} bytes together; a record "
                f"has room for {ROOM_BYTES}.",
                next_step="Lower max_history_bytes, max_arguments_bytes, max_result_bytes, or max_manifest_bytes.",
                field="limits",
            )
