"""`fencepost init`, `doctor`, and `status`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Command, leave
from .cli_output import duration, warn
from .errors import GuaranteeError, StaleProjectionError, StoreUnavailableError

if TYPE_CHECKING:
    from .engine import Engine
    from .ports import Check, Store
    from .positions import Partition

STALE = 7
OWN_TOPICS = "the ledger's own topics"
_WIDTH = 120


@click.command(
    cls=Command,
    examples=(
        "fencepost init",
        "fencepost init --url 'kafka://host:9092/fencepost?projection=redis://host:6379/0' --partitions 12",
    ),
    exits={0: "it exists now; its id is on stdout", 1: "a setting breaks a promise", 7: "the place cannot be reached"},
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="Partitions of each topic on Kafka; can never be changed. 12 when not given.",
)
@click.option("--development", is_flag=True, help="Accept openly that Kafka keeps one copy only.")
@click.pass_obj
def init(app: App, partitions: int | None, development: bool) -> None:
    """Create the ledger, or leave it as it is, and print its id."""
    from .setup import initialise  # noqa: PLC0415 - takes its time
    from .stores import said  # noqa: PLC0415 - takes its time

    location = app.location()
    if location.scheme == "sqlite" and (partitions or development):
        app.out.note("A ledger in one file has one partition a topic and one copy; the options change nothing.")

    async def work(store: Store) -> tuple[str, Sequence[Check]]:
        with _silent("fencepost.store"):  # what is weak is told below, once
            ledger_id = await initialise(store, partitions=partitions, development=development)
        return ledger_id, [c for c in await store.check() if not c.ok and c.severity == "warn"]

    ledger_id, warnings = app.on_store(work)
    payload = {"schema": "fencepost.init.v1", "ledger_id": ledger_id, "url": app.shown_url()}
    app.out.data(payload, lambda: app.out.text(ledger_id))
    app.out.note(f"The ledger is at {app.shown_url()}.")
    for check in warnings:
        warn(f"Warning: {said(check)}.")
    if location.scheme != "sqlite":
        app.out.note("Keep a projector running: fencepost projector run")


@click.command(
    cls=Command,
    examples=("fencepost doctor", "fencepost doctor --json | jq '.checks[] | select(.state != \"ok\")'"),
    exits={0: "every guarantee holds (warnings count as holding)", 1: "one does not", 7: "no ledger, or no answer"},
)
@click.pass_obj
def doctor(app: App) -> None:
    """Check every guarantee that the ledger rests on: what is found, and what is wanted."""
    from .stores import require_guarantees  # noqa: PLC0415 - takes its time

    checks, own = app.on_store(_checked)
    rows = [{"name": c.name, "state": _state(c), "found": c.found, "wanted": c.wanted} for c in (*checks, *own)]
    payload = {
        "schema": "fencepost.doctor.v1",
        "url": app.shown_url(),
        "ok": all(row["state"] != "refuse" for row in rows),
        "checks": rows,
    }
    columns, cells = ("GUARANTEE", "STATE", "FOUND", "WANTED"), [list(r.values()) for r in rows]
    app.out.data(payload, lambda: app.out.table(columns, cells, empty="Nothing to check.", width=_WIDTH))
    app.require_existing()
    require_guarantees(checks)
    for check in own:
        if not check.ok:
            raise GuaranteeError(
                f"these are not the topics that the ledger was created on: found {check.found}, "
                f"recorded is {check.wanted}.",
                next_step="Bring back the topics, or move the ledger with `fencepost export` and `import`.",
                checks=[check._asdict()],
            )


async def _checked(store: Store) -> tuple[Sequence[Check], Sequence[Check]]:
    """What the store says of itself, and how its topics compare with what the ledger's own log says of them."""
    import asyncio  # noqa: PLC0415 - takes its time

    from .ports import Check  # noqa: PLC0415 - takes its time

    checks = await store.check()
    try:
        with _silent("fencepost.store"):  # the warnings are in the table
            found = (await store.terms()).identity
    except GuaranteeError:  # told already: what is refused is among the checks
        return checks, ()
    except StoreUnavailableError:
        if all(check.ok or check.severity == "warn" for check in checks):
            raise
        return checks, ()  # likewise: what does not answer is among them
    recorded = await asyncio.to_thread(_recorded_identity, store) if found else ""
    if not recorded:
        return checks, ()
    if found == recorded:
        return checks, [Check(OWN_TOPICS, ok=True, found="the same", wanted="as recorded in the log")]
    there, wanted = found.split(";"), recorded.split(";")
    differs = (
        "; ".join(p for p in one if p not in other) or "nothing" for one, other in ((there, wanted), (wanted, there))
    )
    return checks, [Check(OWN_TOPICS, False, *differs)]


def _recorded_identity(store: Store) -> str:
    """Which topics the ledger lives in, as its log says; after a move the last fact counts. "" when it does not say."""
    from . import log_keys  # noqa: PLC0415 - takes its time
    from .facts import decode_agent  # noqa: PLC0415 - takes its time
    from .setup import HOME  # noqa: PLC0415 - takes its time

    reader = store.reader()
    try:
        for entry in reader.entries(HOME):
            if entry.key == log_keys.LEDGER and entry.record is not None:
                known = [data for _, data in entry.record.history]
                fact = entry.record.fact or (known[-1] if known else None)
                if fact is not None:
                    return decode_agent(fact).evidence
    finally:
        reader.close()
    return ""


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep what this logger would say to itself."""
    import logging  # noqa: PLC0415 - takes its time

    def nothing(_: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(name)
    logger.addFilter(nothing)
    try:
        yield
    finally:
        logger.removeFilter(nothing)


def _state(check: Check) -> str:
    return "ok" if check.ok else check.severity


@click.command(
    cls=Command,
    examples=("fencepost status", "fencepost status --json --quiet"),
    exits={0: "the projection can be decided from", 7: "it cannot (halted, being rebuilt, or silent), or no answer"},
)
@click.pass_obj
def status(app: App) -> None:
    """Show what is where: the ledger, each partition of its projection, and how much is open."""
    app.require_existing()
    payload = {"schema": "fencepost.status.v1", "url": app.shown_url(), **app.on_store(_look)}
    app.out.data(payload, lambda: _show_status(app, payload))
    leave(STALE if payload["problems"] else 0)


async def _look(store: Store) -> dict[str, Any]:
    import asyncio  # noqa: PLC0415 - takes its time

    from .engine import Engine  # noqa: PLC0415 - takes its time
    from .setup import recorded_id  # noqa: PLC0415 - takes its time

    engine = Engine(store)
    problems: list[str] = []
    partitions = [await partition_status(engine, p, problems) for p in all_partitions(store)]
    return {
        "ledger_id": await asyncio.to_thread(recorded_id, store),
        "partitions": partitions,
        "counts": None if problems else await _counts(engine, problems),
        "problems": problems,
    }


def all_partitions(store: Store) -> list[Partition]:
    """Every partition of both topics."""
    from .positions import Partition, Topic  # noqa: PLC0415 - takes its time

    return [Partition(topic, number) for topic in Topic for number in range(store.log.partitions(topic))]


async def partition_status(engine: Engine, partition: Partition, problems: list[str]) -> dict[str, Any]:
    """What the projection says of a partition; adds to `problems` why it cannot be decided from."""
    from . import projection as docs  # noqa: PLC0415 - takes its time
    from .view import age_s  # noqa: PLC0415 - takes its time

    header = (await engine.store.projection.read(partition, [])).header
    trusted = True
    try:
        engine.view.trusted(partition, header, engine.view.seen(partition))
    except StaleProjectionError as error:
        trusted = False
        problems.append(error.message)
    debts: set[str] = set()
    cursor = ""
    while True:
        snapshot, cursor = await engine.store.projection.page(partition, docs.DEBTS, cursor=cursor)
        debts |= {key.key for key in snapshot.documents}
        if not cursor:
            break
    return {
        "partition": str(partition),
        "incarnation": header.incarnation,
        "generation": header.generation,
        "applied_offset": header.applied_offset,
        "settled_offset": header.settled_offset,
        "horizon": header.horizon,
        "opened": header.opened,
        "trusted": trusted,
        "halted": header.halted,
        "debts": len(debts),
        "age_s": round(age_s(header), 3) if header.seen_ms else None,
    }


async def _counts(engine: Engine, problems: list[str]) -> dict[str, Any] | None:
    from . import pruned_branches  # noqa: PLC0415 - takes its time
    from .quarantine import listed  # noqa: PLC0415 - takes its time
    from .resolutions import open_operations  # noqa: PLC0415 - takes its time

    try:
        agents = await engine.view.agents()
        states = [item.state for item in await open_operations(engine)]
        obligations = await pruned_branches.obligations(engine)
        records = [record.standing.value for record in await listed(engine)]
    except StaleProjectionError as error:
        problems.append(error.message)
        return None
    return {
        "agents": len(agents),
        "open_operations": len(states),
        "in_flight": states.count("in flight"),
        "need_attention": sum(state != "in flight" for state in states),
        "obligations": len(obligations),
        "set_aside": len(records) - records.count("released"),
    }


def _show_status(app: App, payload: dict[str, Any]) -> None:
    counts = payload["counts"] or {}
    app.out.fields(
        (
            ("ledger", payload["ledger_id"] or "(unknown)"),
            ("url", payload["url"]),
            ("agents", counts.get("agents")),
            ("open operations", counts.get("open_operations")),
            ("in flight", counts.get("in_flight")),
            ("need attention", counts.get("need_attention")),
            ("obligations", counts.get("obligations")),
            ("set aside", counts.get("set_aside")),
        )
    )
    app.out.text("")
    show_partitions(app, payload["partitions"])
    for problem in payload["problems"]:
        warn(f"Problem: {problem}")


def show_partitions(app: App, partitions: Sequence[dict[str, Any]]) -> None:
    """A table of what `partition_status` gives."""
    columns = ("PARTITION", "INCARNATION", "APPLIED", "SETTLED", "DEBTS", "OPEN", "AGE", "HALTED")
    rows = [
        (
            p["partition"],
            p["incarnation"][:12] or None,
            p["applied_offset"],
            p["settled_offset"],
            p["debts"],
            p["opened"],
            duration(p["age_s"]) if p["age_s"] is not None else "never applied",
            p["halted"] or None,
        )
        for p in partitions
    ]
    app.out.table(columns, rows, empty="No partitions.")
