"""What cannot be read in a store, because somebody else has written there, is an error of the store for whoever asked."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from ..schemas.errors import DecodeError
from .errors import StoreError

T = TypeVar("T")


class Legible(Coroutine[Any, Any, T]):
    """A coroutine of which what it could not read in the store is an error of the store, and decides nothing.

    Not one around the other: where it is never begun, nothing must be left that was not awaited.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        """See `Coroutine`. Raises StoreError for what cannot be read."""
        try:
            return self._work.send(value)
        except DecodeError as error:
            raise _illegible(error) from error

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`. Raises StoreError for what cannot be read."""
        try:
            return self._work.throw(*error)
        except DecodeError as cause:
            raise _illegible(cause) from cause

    def close(self) -> None:
        """See `Coroutine`."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()


def _illegible(error: DecodeError) -> StoreError:
    return StoreError(
        f"what the store holds cannot be read: {error.what}: {error.reason}. Somebody else has written there, or a newer version.",
        next_step="See `fencepost projector verify`; `fencepost projector rebuild` derives the projection again from the log.",
    )
