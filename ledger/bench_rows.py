"""Rows of a benchmark: fixed work, done several times; medians and spread, never a single number."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bench_machine import Spent

SCHEMA = "fencepost.bench.v1"
EMBEDDED, KAFKA = "embedded", "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run is to be done.

    Attributes:
        directory: for ledgers that are made and thrown away; its disk is what is measured.
        kafka_url: a ledger URL on Kafka and Redis; each row appends to its prefix. "" leaves those rows out.
        rounds: how often each row is measured.
        scale: factor on the size of every row.
    """

    directory: Path
    kafka_url: str = ""
    rounds: int = 5
    scale: float = 1.0

    def scaled(self, size: int, *, least: int = 1) -> int:
        """A size of this run: the row's own, times the scale."""
        return max(least, round(size * self.scale))


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement.

    Attributes:
        operations: how many were done.
        seconds: from the first to the last.
        latencies_ns: of single operations; may be empty where they are not done one by one.
        spent: what it cost.
        more: further numbers by name.
    """

    operations: int
    seconds: float
    latencies_ns: Sequence[int]
    spent: Spent
    more: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[int], Round]
"""Does one round, by its number; -1 is the warm-up, which may be smaller and is not counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """Something to measure.

    Attributes:
        name: what `--row` chooses it by.
        store: which store it needs.
        what: one line for people.
        size: what its numbers stand for, in these settings.
        prepare: makes what the rounds need, and takes it down.
    """

    name: str
    store: str
    what: str
    size: Callable[[Settings], Mapping[str, int]]
    prepare: Callable[[Settings], AbstractContextManager[Measure]]


def measure(row: Row, settings: Settings) -> dict[str, Any]:
    """The row's result as plain data (`SCHEMA`): see `summary`."""
    with row.prepare(settings) as one_round:
        one_round(-1)
        rounds = [one_round(number) for number in range(settings.rounds)]
    return {"schema": SCHEMA, "row": row.name, "store": row.store, "what": row.what,
            "size": dict(row.size(settings)), **summary(rounds)}  # fmt: skip


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds, each with the lowest and the highest.

    Returns: `rounds`; `operations` of a round; `per_s`; `p50_ms` and `p99_ms` of single operations (None where
    there are none); `cpu_us` an operation by part; `others_share`, of all processors; `more`.
    """
    parts = sorted({part for one in rounds for part in one.spent.cpu_s})
    more = sorted({name for one in rounds for name in one.more})
    shares = [one.spent.others_share for one in rounds if one.spent.others_share is not None]
    return {
        "rounds": len(rounds),
        "operations": rounds[0].operations,
        "per_s": spread([one.operations / one.seconds for one in rounds], 1),
        "p50_ms": spread([percentile_ms(one.latencies_ns, 0.5) for one in rounds if one.latencies_ns], 4),
        "p99_ms": spread([percentile_ms(one.latencies_ns, 0.99) for one in rounds if one.latencies_ns], 4),
        "cpu_us": {p: spread([one.spent.cpu_s[p] / one.operations * 1e6 for one in rounds], 1) for p in parts},
        "others_share": spread(shares, 3),
        "more": {n: spread([one.more[n] for one in rounds if n in one.more], 3) for n in more},
    }


def spread(values: Sequence[float], digits: int) -> dict[str, float] | None:
    """The median and the ends of what was measured; None of nothing."""
    if not values:
        return None
    return {
        "median": round(statistics.median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
    }


def percentile_ms(latencies_ns: Sequence[int], share: float) -> float:
    """The latency, in milliseconds, that this share of the operations does not exceed."""
    ordered = sorted(latencies_ns)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6


COLUMNS = ("row", "size", "ops/s", "low-high", "p50 ms", "p99 ms", "client us", "projector us", "servers us", "others")


def cells(result: Mapping[str, Any]) -> list[str | None]:
    """A result as a line of a table with `COLUMNS`."""
    size = " ".join(f"{name}={value:,}" for name, value in result["size"].items())
    if problem := result.get("problem"):
        return [result["row"], size, problem, *[None] * (len(COLUMNS) - 3)]
    cpu, rate = result["cpu_us"], result["per_s"]
    costs = [_middle(cpu.get(part), "{:,.0f}") for part in ("client", "projector", "servers")]
    more = ", ".join(f"{name} {_middle(value, '{:,.4g}')}" for name, value in result["more"].items())
    return [
        result["row"] + (f" ({more})" if more else ""),
        size,
        _middle(rate, "{:,.0f}"),
        f"{rate['low']:,.0f}-{rate['high']:,.0f}",
        _middle(result["p50_ms"], "{:.3f}"),
        _middle(result["p99_ms"], "{:.3f}"),
        *costs,
        _middle(result["others_share"], "{:.0%}"),
    ]


def _middle(value: Mapping[str, float] | None, form: str) -> str | None:
    return None if value is None else form.format(value["median"])
