"""Which documents a rebuild has perhaps written: what it certainly has not need not be looked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .ports import DocumentKey

_BITS = 1 << 22  # half a megabyte; with a million documents a fifth of the others is looked for in vain


class Written:
    """The documents that were written since a projection began, in bounded memory: of a few others it says so, too.

    Only for whoever began the projection, and has written all of it.

    Args:
        bits: of memory; the fewer, the more of the others.
    """

    def __init__(self, *, bits: int = _BITS) -> None:
        self._size = bits
        self._bits = bytearray(bits // 8)

    def note(self, keys: Iterable[DocumentKey]) -> None:
        """These were written, or deleted."""
        bits, size = self._bits, self._size
        for key in keys:
            place = hash(key) % size
            bits[place >> 3] |= 1 << (place & 7)

    def perhaps(self, keys: Iterable[DocumentKey]) -> set[DocumentKey]:
        """Those of the documents that may have been written; the others certainly were not."""
        bits, size = self._bits, self._size
        return {key for key in keys if bits[(place := hash(key) % size) >> 3] >> (place & 7) & 1}
