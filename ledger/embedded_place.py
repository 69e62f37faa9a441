"""What kind of file system a path is on, and whether a ledger may live there.

A network file system gives no memory that processes of several machines share, and often no locks
that hold: the file would be damaged, or two would own one operation.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from .errors import GuaranteeError, StoreError

NETWORK = frozenset(
    (
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "coda", "ncpfs",
        "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse",
        "fuse.goofys", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.blobfuse", "fuse.blobfuse2", "fuse.juicefs", "davfs",
    )
)  # fmt: skip
"""Types as Linux names them in its table of mounts."""

MAGIC = {
    0x6969: "nfs", 0xFF534D42: "cifs", 0xFE534D42: "smb3", 0x517B: "smbfs", 0x5346414F: "afs", 0x6B414653: "afs",
    0x00C36400: "ceph", 0x0BD00BD0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x73757245: "coda",
    0x564C: "ncpfs",
}  # fmt: skip
"""The same by the number that statfs gives. Source: statfs(2) and linux/magic.h."""


def size_of(path: Path) -> int | None:
    """Bytes of a file; None where there is none. Raises StoreError where this user may not look: there may be one."""
    try:
        return path.stat().st_size
    except PermissionError as error:
        raise StoreError(
            f"{path} cannot be looked at: this user may not enter its folder.",
            next_step="Act as the user whose ledger it is, or name another one with `--url` or FENCEPOST_URL.",
            path=str(path),
        ) from error
    except OSError:
        return None


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, or will; "" where that cannot be told. Raises as `size_of` does."""
    size_of(path)
    existing = next(p for p in (path, *path.parents) if p.exists()).resolve()
    return MAGIC.get(magic_of(existing), "") or mounted_type(existing)


def require_local(path: Path) -> None:
    """Raise GuaranteeError if `path` is on a network file system."""
    kind = file_system(path)
    if kind in NETWORK:
        raise GuaranteeError(
            f"{path} is on a network file system ({kind}): locks and shared memory do not hold there.",
            next_step="Name a file on a local disk in the store URL, or use Kafka for agents on several machines.",
            checks=[{"name": "file system", "ok": False, "found": kind, "wanted": "a local one", "severity": "refuse"}],
        )


def magic_of(path: Path) -> int:
    """The number of the file system's type; 0 where that cannot be told."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).statfs(os.fsencode(path), answer):
        return 0
    size = ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(answer.raw[:size], sys.byteorder) & 0xFFFFFFFF


def mounted_type(path: Path) -> str:
    """The type by the table of mounts, which tells one FUSE file system from another."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
