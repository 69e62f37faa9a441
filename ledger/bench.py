"""`fencepost bench`: measures the ledger on this machine, row by row, with its costs and the noise around it.

The parts:
    bench_machine   processor time of process trees, memory, calibration, how busy others are
    bench_rows      settings, rounds, medians, the table
    bench_load      agents in a closed loop, in threads, tasks, and processes
    bench_filled    ledgers with many operations
    bench_guard     rows of the guard and of replay
    bench_embedded  rows of the embedded store
    bench_kafka     rows on Kafka and Redis, with projectors of their own
Nothing here judges: a number is compared by whoever reads it, with the calibration beside it.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from . import bench_embedded, bench_kafka
from .bench_machine import calibrate
from .bench_rows import EMBEDDED, KAFKA, SCHEMA, Row, Settings, measure
from .errors import FencepostError, InvalidArgumentError


def all_rows() -> list[Row]:
    """Every row, of both stores."""
    return [*bench_embedded.rows(), *bench_kafka.rows()]


def chosen(names: Sequence[str], settings: Settings) -> list[Row]:
    """The rows that are asked for: by name, or by the beginning of their names up to a dot; all that can run otherwise.

    Raises InvalidArgumentError for a name that no row has, or whose store has no URL.
    """
    stores = {EMBEDDED, KAFKA} if settings.kafka_url else {EMBEDDED}
    found = [row for row in all_rows() if row.store in stores]
    for name in names:
        if not any(_named(row, name) for row in found):
            known = [row for row in all_rows() if _named(row, name)]
            raise InvalidArgumentError(
                f"row: {name!r} needs a ledger URL on Kafka and Redis." if known else f"row: there is no row {name!r}.",
                next_step="Pass --url kafka://…, or run `make bench STORE=kafka`."
                if known
                else "List them with `fencepost bench --list`.",
                field="row",
            )
    return [row for row in found if not names or any(_named(row, name) for name in names)]


def _named(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}.")


def calibration(settings: Settings) -> dict[str, Any]:
    """What this machine is and how fast it is now, as a line of the result."""
    return {
        "schema": SCHEMA,
        "row": "calibration",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "scale": settings.scale,
        **calibrate(settings.directory).to_dict(),
    }


def run(rows: Sequence[Row], settings: Settings) -> Iterator[dict[str, Any]]:
    """The result of each row, one after the other; a row that fails says why and stops no other."""
    for row in rows:
        began = time.monotonic()
        try:
            result = measure(row, settings)
        except FencepostError as error:
            result = {"schema": SCHEMA, "row": row.name, "store": row.store, "what": row.what,
                      "size": dict(row.size(settings)), "problem": error.message}  # fmt: skip
        yield result | {"took_s": round(time.monotonic() - began, 1)}
