"""Runs one seed again and prints what happened: `python tests/simulation/replay.py SEED [VARIANT]`.

VARIANT names one of the ledgers in `broken.py`. With `--digest` only the digest of the trace is printed. Exit code 1 when
a promise is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.broken import BROKEN
from simulation.checker import violations
from simulation.run import Kinds, Recorded, simulate
from simulation.world import Event

from fencepost.ledger.facts import decode_agent, decode_effect
from fencepost.ledger.positions import Topic


def digest(run: Recorded) -> str:
    """Two runs with the same digest went the same way."""
    return hashlib.sha256("\n".join(map(str, (*run.events, run.steps))).encode()).hexdigest()


def told(run: Recorded, event: Event) -> str:
    """An event as a line; of a record what it says."""
    what = " ".join(map(str, event.what))
    if event.kind == "wrote":
        partition, offset = event.what
        record = run.left[partition].written[offset].record
        if record is not None and record.fact is not None:
            effects = partition.topic is Topic.EFFECTS
            kind = decode_effect(record.fact).kind if effects else decode_agent(record.fact).kind
            what = f"{what} {record.key}: {kind.value} after {len(record.history)} facts"
        elif record is not None:
            what = f"{what} {record.key}: {len(record.history)} facts asserted again"
    return f"{event.at:10.4f}  {event.who:12} {event.kind:24} {what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("variant", nargs="?", choices=sorted(BROKEN))
    parser.add_argument("--digest", action="store_true")
    chosen = parser.parse_args()
    with BROKEN[chosen.variant]() if chosen.variant else contextlib.nullcontext(Kinds()) as kinds:
        run = simulate(chosen.seed, kinds)
    if chosen.digest:
        print(digest(run))  # noqa: T201 (the answer)
        return 0
    for event in run.events:
        print(told(run, event))  # noqa: T201 (the answer)
    found = violations(run)
    for line in found or ["nothing is wrong"]:
        print(line)  # noqa: T201 (the answer)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
