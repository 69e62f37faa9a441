"""A file system that loses what was not synced: for tests of power cuts and failing disks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

SECTOR = 512


class LosingVFS(apsw.VFS):
    """Keeps writes in memory until they are synced.

    It has no shared memory, so a database on it must be locked exclusively.

    Attributes:
        honest: whether a sync does anything; False stands for a disk that lies.
        failing: makes every sync raise an I/O error, and drops what it should have written.
        before: called before each write and sync, when a power cut may strike.
    """

    def __init__(self, name: str) -> None:
        self.files: dict[str, LosingFile] = {}
        self.honest = True
        self.failing = False
        self.before: Callable[[], None] = lambda: None
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> LosingFile:  # noqa: N802
        file = LosingFile(self, name, flags)
        self.files[file.path] = file
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.files.pop(filename, None)
        super().xDelete(filename, syncdir)

    def image(self, chance: random.Random) -> dict[str, bytes]:
        """Path → content after a power cut now: any of the sectors that were not synced may be there."""
        return {path: file.survivor(chance) for path, file in self.files.items()}


class LosingFile(apsw.VFSFile):
    """A file of which `content` is what the program sees; the disk has what was synced."""

    def __init__(self, vfs: LosingVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._vfs = vfs
        self._dirty: set[int] = set()
        self._cut_short = False
        super().__init__("", name, flags)
        self.content = bytearray(Path(self.path).read_bytes())

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self.content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._vfs.before()
        end = offset + len(data)
        self.content.extend(bytes(max(0, end - len(self.content))))
        self.content[offset:end] = data
        self._dirty.update(range(offset // SECTOR, (end - 1) // SECTOR + 1))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        del self.content[newsize:]
        self._cut_short = True

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.content)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.before()
        if self._vfs.failing:
            self._dirty.clear()  # the kernel drops the pages and calls them clean
            raise apsw.IOError("no sync today")
        if not self._vfs.honest:
            return
        if self._cut_short:
            super().xTruncate(len(self.content))
            self._cut_short = False
        for sector in sorted(self._dirty):
            at = sector * SECTOR
            if data := bytes(self.content[at : at + SECTOR]):
                super().xWrite(data, at)
        self._dirty.clear()
        super().xSync(flags)

    def survivor(self, chance: random.Random) -> bytes:
        """What the disk has, and some of the sectors that are on the way there."""
        disk = bytearray(Path(self.path).read_bytes())
        for sector in self._dirty:
            if chance.random() < 0.5:
                at, data = sector * SECTOR, self.content[sector * SECTOR : (sector + 1) * SECTOR]
                disk.extend(bytes(max(0, at + len(data) - len(disk))))
                disk[at : at + len(data)] = data
        return bytes(disk)
