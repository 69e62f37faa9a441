"""Whether a process that the log names has ended, where that can be told: on this very machine."""

from __future__ import annotations

import os
from pathlib import Path

from .engine import here


def has_ended(host: str, pid: int) -> bool:
    """Whether this process has certainly ended. False for one on another machine, or of which nobody can tell.

    A number that was given to another process since looks alive. In a container that shares its host's name and
    not its processes, one that lives may look ended: nothing that must be safe may rest on it.
    """
    if os.name != "posix" or host != here()[0] or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended and only its parent has not looked yet; Linux tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
