"""`fencepost projector quarantine list|show|release`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group
from .cli_in_doubt import decoded_json
from .cli_output import when

if TYPE_CHECKING:
    from .ports import RawRecord
    from .quarantine import QuarantinedDetails, QuarantinedRecord

_SHOWN_BYTES = 512
_MOST_BYTES = 65_536
_ROW = 16


@click.group(cls=Group)
def quarantine() -> None:
    """See and deal with records that could not be taken; everything else went on without them."""


@quarantine.command(
    "list",
    examples=("fencepost projector quarantine list", "fencepost projector quarantine list --all --json"),
    exits={0: "done, also when there are some", 7: "the projection is too stale to say"},
)
@click.option("--all", "everything", is_flag=True, help="Also what is released.")
@click.pass_obj
def list_(app: App, everything: bool) -> None:
    """List what was set aside: where, why, when, and whether its key is unsafe."""
    with app.ledger() as ledger:
        items = ledger.quarantine()
    found = [item.to_dict() for item in items if everything or item.standing != "released"]
    payload = {"schema": "fencepost.quarantine.v1", "records": found, "released": _released(items)}
    columns = ("PLACE", "STANDING", "KEY", "PROBLEM", "TIME", "VERSION", "RELEASED BY")
    rows = [
        (r["place"], r["standing"], r["key"], r["problem"], when(r["time_ms"]), r["version"], r["released_by"] or None)
        for r in found
    ]
    app.out.data(payload, lambda: app.out.table(columns, rows, empty="Nothing is set aside."))
    if payload["released"] and not everything:
        app.out.note(f"{payload['released']} released: see --all")


def _released(items: list[QuarantinedRecord]) -> int:
    return sum(item.standing == "released" for item in items)


@quarantine.command(
    examples=("fencepost projector quarantine show effects/3:17",),
    exits={0: "done", 2: "not written as PARTITION:OFFSET", 5: "nothing was set aside there"},
)
@click.argument("place", metavar="PARTITION:OFFSET")
@click.option(
    "--bytes",
    "limit",
    type=click.IntRange(0, _MOST_BYTES),
    default=_SHOWN_BYTES,
    show_default=True,
    help="How many bytes of the value to show.",
)
@click.pass_obj
def show(app: App, place: str, limit: int) -> None:
    """Show a record's bytes, what is wrong with it, the operation's state, and how to release it."""
    from .cli_facts import operation_dict, show_operation  # noqa: PLC0415 - takes its time

    with app.ledger() as ledger:
        details = ledger.quarantined(place)
        op_id = details.item.record.op_id
        operation = operation_dict(ledger.operation(op_id)) if op_id else None
    values = details.item.to_dict()
    raw = _raw_dict(details.raw, limit)
    way = "" if values["standing"] == "released" else _way_on(details)
    payload = {
        "schema": "fencepost.quarantined.v1", **values, "raw": raw, "ways_on": [way] if way else [],
        "operation": operation,
    }  # fmt: skip

    def told() -> None:
        shown = {name: value for name, value in values.items() if name not in {"place", "op_id", "unsafe", "time_ms"}}
        app.out.fields((*shown.items(), ("time", when(values["time_ms"]))))
        app.out.heading("Bytes")
        for line in _dump(details.raw, limit):
            app.out.text(line)
        if operation is not None:
            app.out.heading("Operation")
            show_operation(app.out, operation)
        if way:
            app.out.heading("Ways on")
            app.out.text(way)

    app.out.data(payload, told)


def _way_on(details: QuarantinedDetails) -> str:
    item = details.item
    outcome = " --committed|--absent" if item.record.op_id else ""
    quoted = f"{item.place} --version {item.version}"
    return f"fencepost projector quarantine release {quoted}{outcome} --evidence … --by …"


def _raw_dict(raw: RawRecord | None, limit: int) -> dict[str, Any] | None:
    if raw is None:
        return None
    value = raw.value
    return {
        "key_hex": None if raw.key is None else raw.key[:_MOST_BYTES].hex(),
        "value_hex": None if value is None else value[:limit].hex(),
        "size_bytes": None if value is None else len(value),
        "cut": value is not None and len(value) > limit,
    }


def _dump(raw: RawRecord | None, limit: int) -> list[str]:
    """The value as offsets, hexadecimal, and what is printable of it."""
    if raw is None:
        return ["The log does not have it any more."]
    key = "none" if raw.key is None else repr(raw.key[:200])
    if raw.value is None:
        return [f"key {key}, no value (a tombstone)"]
    lines = [f"key {key}, value of {len(raw.value)} bytes"]
    for start in range(0, min(limit, len(raw.value)), _ROW):
        row = raw.value[start : min(start + _ROW, limit)]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)  # noqa: PLR2004 - printable ASCII
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {text}")
    if len(raw.value) > limit:
        lines.append(f"… {len(raw.value) - limit} bytes more: see --bytes")
    return lines


@quarantine.command(
    examples=(
        "fencepost projector quarantine release effects/3:17 --committed --version 0.17 \\",
        "    --evidence 'seen in the dashboard' --by alice",
        "fencepost projector quarantine release agents/0:9 --version 0.9 --evidence 'a stray test message' --by alice",
    ),
    exits={
        0: "released",
        2: "an outcome is missing, or there is no operation that could have one",
        3: "ABSENT cannot be known yet",
        5: "nothing was set aside there",
        6: "it changed meanwhile",
    },
)
@click.argument("place", metavar="PARTITION:OFFSET")
@click.option("--committed", is_flag=True, help="The operation's effect happened.")
@click.option("--absent", is_flag=True, help="It did not, and will not.")
@click.option("--result", metavar="JSON", help="The result to record, with --committed.")
@click.option("--accept-risk", is_flag=True, help="With --absent: you take the risk that it still happens.")
@click.option("--version", required=True, help="The version that you looked at; see `quarantine show`.")
@click.option("--evidence", required=True, help="How you know.")
@click.option("--by", required=True, metavar="WHO", help="Who decides.")
@click.pass_obj
def release(
    app: App,
    *,
    place: str,
    committed: bool,
    absent: bool,
    result: str | None,
    accept_risk: bool,
    version: str,
    evidence: str,
    by: str,
) -> None:
    """Deal with a record that was set aside, by an operator's word, bound to the version that was seen."""
    if committed and absent:
        raise click.UsageError("Say --committed or --absent.", click.get_current_context())
    if (result is not None and not committed) or (accept_risk and not absent):
        raise click.UsageError(
            "--result goes with --committed, --accept-risk with --absent.", click.get_current_context()
        )
    outcome = "committed" if committed else "absent" if absent else None
    value = decoded_json(result)
    with app.ledger() as ledger:
        item = ledger.release_quarantined(
            place, version=version, by=by, evidence=evidence, outcome=outcome, result=value, accept_risk=accept_risk
        )
    values = item.to_dict()
    payload = {"schema": "fencepost.release.v1", **values, "status": item.operation.status.value}
    shown = ("place", "standing", "key", "version", "released_by", "evidence")
    app.out.data(payload, lambda: app.out.fields([(name.replace("_", " "), values[name]) for name in shown]))
