"""Which seeds a run of the tests takes: the same ones every day, and as many that no day before has seen."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator

COUNT = int(os.environ.get("FENCEPOST_SIMULATION_SEEDS", "2000"))
FORMER = (91, 513, 1183, 1948, 3353, 3708, 739_950_000_002, 739_950_000_078)
"""Seeds that once found something."""
REPLAY = "python tests/simulation/replay.py"


def today() -> dt.date:
    """The day that half of the seeds is taken from; FENCEPOST_SIMULATION_DATE says another."""
    given = os.environ.get("FENCEPOST_SIMULATION_DATE")
    return dt.date.fromisoformat(given) if given else dt.datetime.now(dt.UTC).date()


def fixed() -> Iterator[int]:
    """The seeds of every day."""
    yield from FORMER
    yield from range(COUNT // 2)


def seeds() -> Iterator[int]:
    """All of them."""
    yield from fixed()
    first = today().toordinal() * 1_000_000
    yield from range(first, first + COUNT - COUNT // 2)
