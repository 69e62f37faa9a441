"""Places at which a test can kill the process: FENCEPOST_FAILPOINT=name:kill, or name:kill:3 for the third time there."""

from __future__ import annotations

import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def hit(name: str) -> None:
    """Die here, without any clean-up, if this failpoint is armed."""
    armed = os.environ.get("FENCEPOST_FAILPOINT")
    if not armed:
        return
    target, _, rest = armed.partition(":")
    action, _, times = rest.partition(":")
    if target != name or action != "kill":
        return
    _passed[name] += 1
    if _passed[name] >= int(times or 1):
        os.kill(os.getpid(), signal.SIGKILL)
