"""What a step announces: how far the projection is, and which documents it has just written.

A document is told by its fingerprint: whoever knows what it must look like after his own record sees that it does, and
need not read it. One that looks otherwise, or of which nothing was heard, is read.

    message = incarnation SPACE applied_offset [NEWLINE fingerprint...]
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from ..ledger.projection import FENCES, OPS

if TYPE_CHECKING:
    from ..ledger.ports import DocumentKey, Step

_BYTES = 16
_TOLD = frozenset({OPS, FENCES})
"""Collections whose documents somebody waits for."""


class Announcement(NamedTuple):
    """What was announced.

    Attributes:
        incarnation: of the projection; "" when it was dropped.
        applied_offset: the next offset that will be read.
        fingerprints: of documents as they are at that offset; not of all that were written.
    """

    incarnation: str
    applied_offset: int
    fingerprints: tuple[bytes, ...] = ()

    @classmethod
    def read(cls, message: bytes) -> Announcement:
        """The announcement in a message."""
        state, _, told = message.partition(b"\n")
        incarnation, _, offset = state.decode().partition(" ")
        return cls(incarnation, int(offset), tuple(told[i : i + _BYTES] for i in range(0, len(told), _BYTES)))


def fingerprint(key: DocumentKey, document: bytes) -> bytes:
    """Tells a document with these very bytes from every other one."""
    name = f"{key.collection}\x1f{key.key}".encode()
    return blake2b(b"%d:%b%b" % (len(name), name, document), digest_size=_BYTES).digest()


def told(step: Step) -> bytes:
    """The fingerprints of what a step writes, joined; none while the projection answers nobody."""
    if not step.header.opened:
        return b""
    return b"".join(
        fingerprint(key, data) for key, data in step.writes.items() if data is not None and key.collection in _TOLD
    )
