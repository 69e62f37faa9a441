"""A bounded cache of what was used last."""

from __future__ import annotations

from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Recent(Generic[_Key, _Value]):
    """The values that were put or got last, between `size` and twice as many of them.

    Threads may use it together: at worst one of them forgets what another one put.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: dict[_Key, _Value] = {}
        self._old: dict[_Key, _Value] = {}

    def get(self, key: _Key) -> _Value | None:
        """The value, if it is remembered."""
        found = self._new.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: _Key, value: _Value) -> None:
        """Remember a value; half of the others may be forgotten for it."""
        if len(self._new) >= self._size:
            self._old, self._new = self._new, {}
        self._new[key] = value
