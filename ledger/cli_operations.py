"""`fencepost ops list|show|tail`."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .cli_app import App
from .cli_commands import Group
from .cli_output import Output, clean, when

if TYPE_CHECKING:
    from .history import LogEntry
    from .ports import LogReader, Store
    from .positions import Partition

_LOOK_S = 0.2
_STATUSES = ("free", "owned", "committed", "in-doubt", "compensating", "unsafe")


@click.group(cls=Group)
def ops() -> None:
    """Show logical operations: each is one intended effect, whoever tries it and however often."""


@ops.command(
    "list",
    examples=(
        "fencepost ops list --agent nightly",
        "fencepost ops list --status in-doubt --tool mail.send",
        "fencepost ops list --stream --json | jq -r .op_id",
    ),
    exits={0: "done", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.option("--agent", metavar="AGENT", help="Only what this agent has attempted.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only what stands like this.")
@click.option("--tool", metavar="TOOL", default="", help="Only operations of this tool.")
@click.option("--after", metavar="OP", default="", help="Only operations whose names come behind this one.")
@click.option("--limit", type=click.IntRange(min=1), default=500, show_default=True, help="At most so many.")
@click.option(
    "--stream", is_flag=True, help="All of them, a line each (with --json one object a line), as they are read."
)
@click.pass_obj
def list_(app: App, *, agent: str | None, status: str | None, tool: str, after: str, limit: int, stream: bool) -> None:
    """List operations by name: tool, class, status, and whose they are."""
    from .cli_facts import summary_dict  # noqa: PLC0415 - takes its time

    wanted: dict[str, str] = {"tool": tool, "status": (status or "").replace("-", " "), "after": after}
    with app.ledger() as ledger:
        if agent is not None:
            ledger.agent(agent)
        if stream:
            for view in ledger.each_operation(agent, **wanted):
                _print_line(app.out, summary_dict(view))
            return
        found = [summary_dict(view) for view in ledger.operations(agent, limit=limit + 1, **wanted)]
    more = found[limit - 1]["op_id"] if len(found) > limit else None
    _show_list(app.out, found[:limit], more)


def _print_line(out: Output, values: dict[str, Any]) -> None:
    told = (values["op_id"], values["tool"] or "-", values["status"], values["agent_id"] or "-")
    out.line({"schema": "fencepost.operation_summary.v1", **values}, lambda: "  ".join(clean(part) for part in told))


def _show_list(out: Output, found: list[dict[str, Any]], more: str | None) -> None:
    """A page of operations; `more` is the last name on it if others follow."""
    columns = ("OPERATION", "TOOL", "CLASS", "STATUS", "ROUND", "ATTEMPTS", "AGENT", "BRANCH", "SETTLED AT")
    rows = [
        (
            op["op_id"], op["tool"] or None, op["effect_class"], op["status"], op["round"], op["attempts"],
            op["agent_id"] or None, op["branch_id"] or None, op["settled_at"],
        )
        for op in found
    ]  # fmt: skip
    payload = {"schema": "fencepost.operations.v1", "operations": found, "next_after": more}
    out.data(payload, lambda: out.table(columns, rows, empty="No operations."))
    if more is not None:
        out.note(f"There are more: --after {shlex.quote(more)}")


@ops.command(
    examples=("fencepost ops show billing.refund:A1",),
    exits={0: "done", 5: "no such operation", 7: "the projection is too stale to say"},
)
@click.argument("op_id", metavar="OP")
@click.pass_obj
def show(app: App, op_id: str) -> None:
    """Show one operation with every fact, attempt, and position."""
    from .cli_facts import operation_dict, show_operation  # noqa: PLC0415 - takes its time

    with app.ledger() as ledger:
        values = operation_dict(ledger.operation(op_id))
    payload = {"schema": "fencepost.operation.v1", **values}
    app.out.data(payload, lambda: show_operation(app.out, values))


@ops.command(
    examples=("fencepost ops tail --follow", "fencepost ops tail --agent nightly --lines 100 --json"),
    exits={0: "done", 5: "no such agent (with --follow it may yet come)", 130: "interrupted while following"},
)
@click.option("--agent", metavar="AGENT", help="Only facts of this agent.")
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, until interrupted.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="How many facts to begin with."
)
@click.pass_obj
def tail(app: App, agent: str | None, follow: bool, lines: int) -> None:
    """Print the newest facts of operations, oldest first, straight from the log; with --json one object a line."""
    app.require_existing()

    async def work(store: Store) -> int:
        reader = store.reader()
        try:
            return await _Tail(store, reader, app.out, agent).run(lines=lines, follow=follow)
        finally:
            reader.close()

    if not app.on_store(work) and agent is not None:
        with app.ledger() as ledger:
            ledger.agent(agent)  # a misspelt one has no facts either


class _Tail:
    """Reads the effects log from its end; each partition from where it was left."""

    def __init__(self, store: Store, reader: LogReader, out: Output, agent: str | None) -> None:
        from .cli_setup import all_partitions  # noqa: PLC0415 - only here

        self._reader = reader
        self._out = out
        self._agent = agent
        self._partitions = [p for p in all_partitions(store) if p.topic.value == "effects"]
        self._next: dict[Partition, int] = {}

    async def run(self, *, lines: int, follow: bool) -> int:
        """How many facts there were to begin with."""
        ends = {partition: self._reader.bounds(partition)[1] for partition in self._partitions}
        begun = [item for p in self._partitions for item in self._last(p, ends[p], lines)]
        begun.sort(key=lambda item: (item[0], item[1]["partition"], item[1]["offset"]))
        for _, values in begun[-lines:] if lines else ():
            self._print(values)
        self._next = ends
        from asyncio import sleep  # noqa: PLC0415 - takes its time

        if follow and self._agent is not None and lines and not begun:
            self._out.note(f"No fact of {self._agent} is in this ledger yet.")
        while follow:
            await sleep(_LOOK_S)
            for partition in self._partitions:
                self._print_new(partition)
        return len(begun)

    def _print_new(self, partition: Partition) -> None:
        _, end = self._reader.bounds(partition)
        if end <= self._next[partition]:
            return
        for entry in self._reader.entries(partition, start=self._next[partition], end=end):
            for values in self._told(entry):
                self._print(values)
        self._next[partition] = end

    def _last(self, partition: Partition, end: int, lines: int) -> list[tuple[int, dict[str, Any]]]:
        """The newest facts of a partition, from a stretch that is doubled until it holds enough of them."""
        first, _ = self._reader.bounds(partition)
        stretch = max(lines, 1)
        while lines:
            start = max(first, end - stretch)
            found: deque[tuple[int, dict[str, Any]]] = deque(maxlen=lines)
            for entry in self._reader.entries(partition, start=start, end=end):
                found.extend((entry.time_ms, values) for values in self._told(entry))
            if len(found) >= lines or start <= first:
                return list(found)
            stretch *= 4
        return []

    def _told(self, entry: LogEntry) -> Iterator[dict[str, Any]]:
        """The new fact of a record, or why the record could not be taken; nothing for re-assertions and fences."""
        from .cli_facts import fact_dict  # noqa: PLC0415 - takes its time
        from .facts import decode_effect  # noqa: PLC0415 - takes its time
        from .log_keys import is_operation  # noqa: PLC0415 - takes its time
        from .positions import Position  # noqa: PLC0415 - takes its time

        place = {"schema": "fencepost.fact.v1", "partition": str(entry.partition), "offset": entry.offset}
        if entry.record is None:
            if self._agent is None:
                yield {**place, "key": entry.key, "problem": entry.problem, "fact": None}
        elif entry.record.fact is not None and is_operation(entry.record.key):
            try:
                fact = decode_effect(entry.record.fact)
            except ValueError as error:
                yield {**place, "key": entry.key, "problem": str(error), "fact": None}
                return
            if self._agent in (None, fact.agent_id):
                values = fact_dict(Position(0, entry.offset), fact)
                values.pop("position")
                yield {**place, "key": entry.key, "problem": "", "fact": values}

    def _print(self, values: dict[str, Any]) -> None:
        self._out.line(values, lambda: _row(values))


def _row(values: dict[str, Any]) -> str:
    from .cli_facts import detail  # noqa: PLC0415 - takes its time

    fact = values["fact"]
    place = f"{values['partition']}@{values['offset']}"
    if fact is None:
        return f"{place:<14}  SET ASIDE  {clean(values['key'])}  {clean(values['problem'])}"
    who = f"{fact['agent_id']}/{fact['branch_id']}" if fact["agent_id"] else fact["by"]
    told = f"{when(fact['time_ms']) or '-':<20}  {place:<14}  {fact['kind']:<11}  "
    return (told + f"{clean(fact['op_id'])}  {clean(who)}  {clean(detail(fact))}").rstrip()
