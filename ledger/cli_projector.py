"""`fencepost projector run|lag|rebuild|verify|quarantine`.

The projector between Kafka and Redis is another package's; it is found by an entry point of the
group `fencepost.projectors`. A ledger in one file projects in the transaction that writes.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_output import Progress, duration
from .cli_quarantine import quarantine
from .client_log import client_logger
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .ports import Header, Store
    from .positions import Partition
    from .urls import StoreUrl

NEEDS_A_HUMAN = 4


class Lag(Protocol):
    """How far the projection of a partition is."""

    @property
    def partition(self) -> Partition:
        """Which one."""
        ...

    @property
    def log_end_offset(self) -> int:
        """As a broker tells it."""
        ...

    @property
    def header(self) -> Header:
        """As the projection has it."""
        ...


class RebuildProgress(Protocol):
    """How far a rebuild is."""

    @property
    def applied(self) -> int:
        """Offsets applied."""
        ...

    @property
    def total(self) -> int:
        """Offsets to apply."""
        ...


class Commands(Protocol):
    """What a projector's package offers the command line."""

    def run_projector(self, url: StoreUrl, *, group: str | None = None, stop: threading.Event | None = None) -> None:
        """Run until stopped."""
        ...

    def lag(self, url: StoreUrl) -> Sequence[Lag]:
        """How far each partition is."""
        ...

    def rebuild(
        self, url: StoreUrl, progress: Callable[[RebuildProgress], None], *, accept_gap: bool, timeout_s: float
    ) -> None:
        """Drop the projection and wait until it is built again."""
        ...


def projector_commands(scheme: str) -> Commands:
    """The projector's package for stores of this scheme. Raises InvalidArgumentError when there is none."""
    from importlib import import_module  # noqa: PLC0415 - takes its time
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes its time

    for entry in entry_points(group="fencepost.projectors", name=scheme):
        return cast(Commands, import_module(entry.module))
    raise InvalidArgumentError(
        f"url: no projector for {scheme!r} is installed.",
        next_step="Install fencepost completely: `pip install fencepost`.",
        field="url",
    )


@click.group(cls=Group)
def projector() -> None:
    """Run, watch, rebuild, and verify the projection, which is derived from the log and disposable."""


@projector.command(
    examples=("fencepost projector run", "fencepost projector run --group blue"),
    exits={0: "stopped by SIGTERM or Ctrl-C", 1: "a setting breaks a promise", 7: "Kafka or Redis does not answer"},
)
@click.option("--group", metavar="NAME", help="The consumer group; projectors of one group share the partitions.")
@click.pass_obj
def run(app: App, group: str | None) -> None:
    """Run a projector until it is stopped; several may run. A ledger in one file needs none."""
    location = app.location()
    if location.scheme == "sqlite":
        app.out.note("A ledger in one file needs no projector: whoever writes a record also applies it.")
        return
    level = logging.WARNING if app.quiet else logging.INFO
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    client_logger().propagate = app.debug  # it repeats itself many times a second; what matters is in our own lines
    projector_commands(location.scheme).run_projector(location, group=group)


@projector.command(examples=("fencepost projector lag", "fencepost projector lag --json | jq '.partitions[].lag'"))
@click.pass_obj
def lag(app: App) -> None:
    """Show how far the projection of each partition is behind the end of its log."""
    app.require_existing()
    location = app.location()
    rows = (
        _embedded_lag(app)
        if location.scheme == "sqlite"
        else _lag_rows(projector_commands(location.scheme).lag(location))
    )
    payload = {"schema": "fencepost.lag.v1", "partitions": rows}
    columns = ("PARTITION", "LAG", "APPLIED", "LOG END", "SETTLED", "OPEN", "AGE", "HALTED")
    cells = [
        (
            r["partition"],
            r["lag"],
            r["applied_offset"],
            r["log_end_offset"],
            r["settled_offset"],
            r["opened"],
            duration(r["age_s"]) if r["age_s"] is not None else "never applied",
            r["halted"] or None,
        )
        for r in rows
    ]
    app.out.data(payload, lambda: app.out.table(columns, cells, empty="No partitions."))


def _lag_rows(lags: Sequence[Lag]) -> list[dict[str, Any]]:
    return [_lag_row(str(item.partition), item.log_end_offset, item.header) for item in lags]


def _lag_row(partition: str, end: int, header: Header) -> dict[str, Any]:
    from .view import age_s  # noqa: PLC0415 - takes its time

    return {
        "partition": partition,
        "log_end_offset": end,
        "applied_offset": header.applied_offset,
        "settled_offset": header.settled_offset,
        "lag": max(0, end - header.applied_offset),
        "opened": header.opened,
        "halted": header.halted,
        "age_s": round(age_s(header), 3) if header.seen_ms else None,
    }


def _embedded_lag(app: App) -> list[dict[str, Any]]:
    from .cli_setup import all_partitions  # noqa: PLC0415 - only here

    async def work(store: Store) -> list[dict[str, Any]]:
        reader = store.reader()
        try:
            rows = []
            for partition in all_partitions(store):
                _, end = reader.bounds(partition)
                header = (await store.projection.read(partition, [])).header
                rows.append(_lag_row(str(partition), end, header))
            return rows
        finally:
            reader.close()

    return app.on_store(work)


@projector.command(
    examples=("fencepost projector rebuild",),
    exits={0: "built again", 4: "a partition is halted and needs an operator", 7: "not built again in time"},
)
@click.option("--accept-gap", is_flag=True, help="Go on where records are missing that nobody had read (Kafka).")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=1), default=3600.0, show_default=True, help="Seconds (Kafka)."
)
@click.pass_obj
def rebuild(app: App, accept_gap: bool, timeout_s: float) -> None:
    """Drop the projection and derive it again from the log; nothing is answered wrongly meanwhile."""
    from .cli_setup import show_partitions  # noqa: PLC0415 - only here

    app.require_existing()
    location = app.location()
    with app.out.progress("rebuild") as bar:
        if location.scheme == "sqlite":
            app.on_store(lambda store: _rebuild_file(store, bar))
        else:
            projector_commands(location.scheme).rebuild(
                location, lambda p: bar("offsets", p.applied, p.total), accept_gap=accept_gap, timeout_s=timeout_s
            )
    partitions = app.on_store(_partitions)
    payload = {"schema": "fencepost.rebuild.v1", "partitions": partitions}
    app.out.data(payload, lambda: show_partitions(app, partitions))
    leave(NEEDS_A_HUMAN if any(p["halted"] for p in partitions) else 0)


async def _rebuild_file(store: Store, bar: Progress) -> None:
    from .embedded_store import EmbeddedStore  # noqa: PLC0415 - loads the client library

    if isinstance(store, EmbeddedStore):
        await store.rebuild(lambda partition, done, total: bar(str(partition), done, total))


async def _partitions(store: Store) -> list[dict[str, Any]]:
    from .cli_setup import all_partitions, partition_status  # noqa: PLC0415 - only here
    from .engine import Engine  # noqa: PLC0415 - takes its time

    engine = Engine(store)
    return [await partition_status(engine, partition, []) for partition in all_partitions(store)]


@projector.command(
    examples=("fencepost projector verify", "fencepost projector verify --json | jq .findings"),
    exits={
        0: "everything holds, what is only told included",
        4: "something does not, and is named",
        7: "a partition cannot be decided from",
    },
)
@click.pass_obj
def verify(app: App) -> None:
    """Prove that the projection is what the log says, that no number is missing, that every commit has an owner.

    The ledger may be written meanwhile. Needs room for the documents of one partition in a temporary file.
    """
    with app.ledger() as ledger, app.out.progress("verify") as bar:
        report = ledger.verify(progress=bar)

    def show() -> None:
        verdict = "everything holds" if report.ok else "something is wrong"
        up_to = ", ".join(f"{partition} to {offset}" for partition, offset in report.applied.items())
        app.out.fields((("verdict", verdict), *report.counts.items(), ("up to", up_to)))
        if report.findings:
            rows = [(f.kind, "grave" if f.grave else "told", f.where, f.text) for f in report.findings]
            app.out.heading("Findings")
            app.out.table(("KIND", "WEIGHT", "WHERE", "WHAT"), rows, empty="")
        if report.more:
            app.out.note(f"{report.more} more findings are not listed.")

    app.out.data(report.to_dict(), show)
    leave(0 if report.ok else NEEDS_A_HUMAN)


projector.add_command(quarantine)
