"""Whether the write-ahead log has lost what was acknowledged.

SQLite reads its write-ahead log up to the first frame that is not as it was written, and takes
the rest for a transaction that a crash cut off. After a crash that is right: nothing behind an
unfinished transaction was ever acknowledged. After a damaged byte it is not, and the ledger would
silently go back in time.

The two can be told apart. Every COMMIT here is synced before the next transaction begins. So
behind the cut there may be one commit, the last frame of the transaction that was cut off; a
commit with a further frame that was written after it had been synced, hence acknowledged.
A frame was written after another if its checksum goes on from the other's.

Source: SQLite documentation, "Database File Format", section 4, "The Write-Ahead Log".
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import apsw

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = 32
_FRAME = 24
_MAGIC = (0x377F0682, 0x377F0683)
_LOOKS = 10
_PAUSE_S = 0.02


def has_lost_commits(sql: apsw.Connection, path: Path) -> bool:
    """Whether acknowledged transactions stand behind the point up to which SQLite reads.

    Looked at again while another process writes: what it is just appending is not whole yet.

    Args:
        sql: a connection that is in no transaction.
        path: the database file.
    """
    wal = path.with_name(path.name + "-wal")
    for _ in range(_LOOKS):
        read_up_to = _frames_read(sql)
        if not _looks_cut(wal, read_up_to):
            return False
        if _frames_read(sql) == read_up_to:  # nobody has written on
            return True
        time.sleep(_PAUSE_S)
    return False


def _frames_read(sql: apsw.Connection) -> int:
    sql.pragma("user_version")  # a connection opens the write-ahead log with its first read
    return max(0, sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])


@dataclass(frozen=True, slots=True)
class _Frame:
    """The header of a frame: `pages` is not 0 where it commits."""

    index: int
    pages: int
    salts: tuple[int, int]
    checksum: tuple[int, int]


def _looks_cut(wal: Path, read_up_to: int) -> bool:
    try:
        # Closing it harms nobody: SQLite's locks are on the database and on the -shm file.
        with wal.open("rb") as file:
            return _commits_behind(file, read_up_to)
    except FileNotFoundError:
        return False


def _commits_behind(file: BinaryIO, read_up_to: int) -> bool:
    head = file.read(_HEADER)
    if len(head) < _HEADER:
        return False
    magic, _, page_size, _, *salts = struct.unpack(">6I", head[:24])
    first = _frame_at(file, 0, page_size) if 512 <= page_size <= 65536 else None  # noqa: PLR2004 - SQLite's bounds
    whole = magic in _MAGIC and _checksum(head[:24], (0, 0), magic) == struct.unpack(">2I", head[24:])
    if not whole:
        # Header and first frame begin in one sector, and the header is synced before a frame is.
        return any(head) and (first is None or any(first.salts))
    expected = (salts[0], salts[1])
    frames = _frames(file, read_up_to, page_size, expected)
    return any(frame.pages and _follows(file, frame, page_size, magic) for frame in frames)


def _frames(file: BinaryIO, start: int, page_size: int, salts: tuple[int, int]) -> Iterator[_Frame]:
    """Frames of this use of the file; those of a former use have other salts."""
    index = start
    while (frame := _frame_at(file, index, page_size)) is not None:
        if frame.salts == salts:
            yield frame
        index += 1


def _frame_at(file: BinaryIO, index: int, page_size: int) -> _Frame | None:
    file.seek(_HEADER + index * (_FRAME + page_size))
    data = file.read(_FRAME)
    if len(data) < _FRAME:
        return None
    _, pages, salt1, salt2, sum1, sum2 = struct.unpack(">6I", data)
    return _Frame(index, pages, (salt1, salt2), (sum1, sum2))


def _follows(file: BinaryIO, frame: _Frame, page_size: int, magic: int) -> bool:
    """Whether the next frame was written when this one had been."""
    following = _frame_at(file, frame.index + 1, page_size)
    if following is None or following.salts != frame.salts:
        return False
    file.seek(_HEADER + following.index * (_FRAME + page_size))
    data = file.read(_FRAME + page_size)
    if len(data) < _FRAME + page_size:
        return False
    return _checksum(data[:8] + data[_FRAME:], frame.checksum, magic) == following.checksum


def _checksum(data: bytes, seed: tuple[int, int], magic: int) -> tuple[int, int]:
    one, two = seed
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two
