"""Sequence numbers as bitmaps: so many bits a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SEQ_CHUNK = 1024
"""How many numbers a document holds."""


def set_bits(chunk: bytes | None, numbers: Iterable[int]) -> bytes:
    """`chunk` with the bits of these sequence numbers set."""
    bits = bytearray(chunk or bytes(SEQ_CHUNK // 8))
    for number in numbers:
        byte, bit = divmod(number % SEQ_CHUNK, 8)
        bits[byte] |= 1 << bit
    return bytes(bits)


def bits_of(chunks: Mapping[int, bytes]) -> set[int]:
    """The sequence numbers in bitmaps by chunk number."""
    return {
        number * SEQ_CHUNK + byte * 8 + bit
        for number, chunk in chunks.items()
        for byte, value in enumerate(chunk)
        if value
        for bit in range(8)
        if value >> bit & 1
    }
