"""`fencepost in-doubt list|show|probe|resolve`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from .cli_app import App
from .cli_commands import Group, leave
from .cli_given import bad_module, imported
from .cli_output import shortened
from .errors import FencepostError

if TYPE_CHECKING:
    from .operations import Operation
    from .resolutions import ProbeAnswer
    from .service import Probe

UNKNOWN = 4


@click.group("in-doubt", cls=Group)
def in_doubt() -> None:
    """Settle operations of which nobody knows the outcome: by asking the tool, or by an operator's word."""


@in_doubt.command(
    "list",
    examples=("fencepost in-doubt list", "fencepost in-doubt list --agent nightly --all"),
    exits={0: "done, also when there are some", 5: "no such agent", 7: "the projection is too stale to say"},
)
@click.option("--agent", metavar="AGENT", help="Only what this agent has attempted.")
@click.option("--all", "everything", is_flag=True, help="Also what is in flight: its owner lives and may yet decide.")
@click.pass_obj
def list_(app: App, agent: str | None, everything: bool) -> None:
    """List what needs a probe or a human, oldest first: in doubt, silent, unsafe, anomalies."""
    from .cli_agents import show_open  # noqa: PLC0415 - only here

    with app.ledger() as ledger:
        if agent is not None:
            ledger.agent(agent)
        items = ledger.open_operations(agent) if everything else ledger.in_doubt(agent)
        hidden = 0 if items or everything else len(ledger.open_operations(agent))
    found = [item.to_dict() for item in items]
    payload = {"schema": "fencepost.in_doubt.v1", "operations": found}
    app.out.data(payload, lambda: show_open(app.out, found, empty="Nothing is in doubt."))
    if hidden:
        told = "1 operation is" if hidden == 1 else f"{hidden} operations are"
        app.out.note(f"{told} in flight or not heard of yet: see --all")


@in_doubt.command(
    examples=("fencepost in-doubt show billing.refund:A1",),
    exits={0: "done", 5: "no such operation", 7: "the projection is too stale to say"},
)
@click.argument("op_id", metavar="OP")
@click.pass_obj
def show(app: App, op_id: str) -> None:
    """Show an operation, the state it is open in, and the command lines that can settle it."""
    from .cli_facts import operation_dict, show_operation  # noqa: PLC0415 - takes its time

    with app.ledger() as ledger:
        view = ledger.operation(op_id)
        state = next((i.state for i in ledger.open_operations() if i.operation.op_id == op_id), "")
    operation = operation_dict(view)
    ways = _ways_on(view.operation, state)
    payload = {"schema": "fencepost.in_doubt_operation.v1", "state": state, "ways_on": ways, "operation": operation}

    def told() -> None:
        app.out.fields((("open", state or "no"),))
        show_operation(app.out, operation)
        app.out.heading("Ways on")
        for way in ways:
            app.out.text(way)

    app.out.data(payload, told)


def _ways_on(operation: Operation, state: str) -> list[str]:
    """Command lines, bound to the version that was seen."""
    from .operations import Status  # noqa: PLC0415 - takes its time

    op_id, version = shlex.quote(operation.op_id), shlex.quote(operation.version)
    resolve = f"fencepost in-doubt resolve {op_id} --version {version} --evidence … --by …"
    committed = f"{resolve} --committed{' --post-state-hash …' if operation.sealable else ''}"
    if operation.status is Status.COMMITTED:
        return [committed, f"{resolve} --compensated"] if state or operation.sealable else [f"{resolve} --compensated"]
    if not state:
        return []
    if operation.status is Status.FREE:
        return [f"{resolve} --absent"]
    if operation.status is Status.COMPENSATING:
        return [
            "fencepost compensate run PLAN.json --by … --compensators …",
            f"{resolve} --committed",
            f"{resolve} --compensated",
        ]
    if operation.status is Status.UNSAFE and operation.undoing is not None:  # its tool cannot tell
        return [committed, f"{resolve} --absent", f"{resolve} --compensated"]
    words = ["absent", *(["compensated"] if operation.status is Status.UNSAFE else [])]
    return [f"fencepost in-doubt probe {op_id} --module …", committed, *(f"{resolve} --{word}" for word in words)]


@in_doubt.command(
    examples=(
        "fencepost in-doubt probe billing.refund:A1 --module billing.probes:refund",
        "fencepost in-doubt probe billing.refund:A1 --module billing.probes",
    ),
    exits={
        0: "the answer was recorded",
        1: "the probe failed or gave no ProbeAnswer; nothing was recorded",
        4: "the probe does not know, or cannot: it is being undone",
        5: "not open",
        6: "it changed meanwhile",
    },
)
@click.argument("op_id", metavar="OP")
@click.option(
    "--module",
    "target",
    metavar="MODULE[:NAME]",
    required=True,
    help="Where the probe is: a function of the operation that gives a ProbeAnswer, or a mapping of tools to such "
    "functions. The name is `probes` when not given. Imported with the working directory on the path.",
)
@click.option("--by", metavar="WHO", default="probe", show_default=True, help="Who is recorded as having asked.")
@click.pass_obj
def probe(app: App, op_id: str, target: str, by: str) -> None:
    """Ask a tool's probe what became of an operation, and record its answer."""
    with app.ledger() as ledger:
        tool = ledger.operation(op_id).operation.tool
        asked = _Asked(target, _probe_from(target, tool))
        ledger.probe(tool)(asked)
        try:
            answer, operation = ledger.run_probe(op_id, by=by)
        except FencepostError:
            if asked.failed is not None:  # what went wrong, without what was made of it on the way
                raise asked.failed from asked.failed.__cause__
            raise
    values = {
        "op_id": op_id,
        "outcome": answer.outcome.value,
        "evidence": answer.evidence,
        "result": answer.result,
        "status": operation.status.value,
        "version": operation.version,
    }
    payload = {"schema": "fencepost.probe.v1", **values}
    app.out.data(payload, lambda: app.out.fields((*_shown(values, "result"), ("result", shortened(answer.result)))))
    if answer.outcome.value == "COMMITTED" and answer.result is not None and operation.result_form.value != "JSON":
        why = operation.result_form.value.lower().replace("_", " ")
        app.out.note(f"The commit was recorded, its result was not: {why}.")
    _note_taking_over(app, operation)
    leave(0 if values["outcome"] != "UNKNOWN" else UNKNOWN)


def _shown(values: dict[str, Any], left_out: str) -> list[tuple[str, Any]]:
    return [(name.replace("_id", "").replace("op", "operation"), v) for name, v in values.items() if name != left_out]


class _Asked:
    """A probe whose failures are errors that name it. Nothing is recorded then.

    Attributes:
        failed: what went wrong, if something did.
    """

    def __init__(self, target: str, probe: Probe) -> None:
        self.failed: FencepostError | None = None
        self._target = target
        self._probe = probe

    def __call__(self, operation: Operation) -> Any:
        """The probe's answer, or what gives it when awaited."""
        from .strangers import cause_of  # noqa: PLC0415 - takes its time

        try:
            answer: object = self._probe(operation)
        except Exception as error:  # noqa: BLE001 (a stranger's code may raise anything)
            raise self._failed(error, operation) from cause_of(error, operation)
        return self._awaited(answer, operation) if isinstance(answer, Awaitable) else self._checked(answer)

    async def _awaited(self, answer: Awaitable[Any], operation: Operation) -> ProbeAnswer:
        from .strangers import cause_of  # noqa: PLC0415 - takes its time

        try:
            found = await answer
        except Exception as error:  # noqa: BLE001 (a stranger's code may raise anything)
            raise self._failed(error, operation) from cause_of(error, operation)
        return self._checked(found)

    def _checked(self, answer: object) -> ProbeAnswer:
        from .resolutions import ProbeAnswer  # noqa: PLC0415 - takes its time

        if isinstance(answer, ProbeAnswer):
            return answer
        raise self._problem(f"gave {type(answer).__name__}, not a ProbeAnswer")

    def _failed(self, error: Exception, operation: Operation) -> FencepostError:
        from .strangers import told_of  # noqa: PLC0415 - takes its time

        return self._problem(f"failed: {told_of(error, operation)}")

    def _problem(self, why: str) -> FencepostError:
        self.failed = FencepostError(
            f"the probe {self._target} {why}.",
            next_step="Nothing was recorded. Correct the probe, or settle it with `fencepost in-doubt resolve`.",
            probe=self._target,
        )
        return self.failed


def _probe_from(target: str, tool: str) -> Probe:
    """The probe of `tool` that MODULE[:NAME] names. Raises InvalidArgumentError."""
    found = imported(target, "module")
    if isinstance(found, Mapping):
        if tool not in found:
            raise bad_module(f"{target!r} has no probe for the tool {tool!r}", "module")
        found = found[tool]
    if not callable(found):
        raise bad_module(f"{target!r} is neither a function nor a mapping of tools to functions", "module")
    return cast("Probe", found)


@in_doubt.command(
    examples=(
        'fencepost in-doubt resolve billing.refund:A1 --committed --result \'{"id": "r-17"}\' \\',
        "    --version 0.42 --evidence 'seen in the dashboard' --by alice",
        "fencepost in-doubt resolve mail.send:9 --absent --accept-risk --version 0.44 --evidence 'no such mail' --by bob",
    ),
    exits={
        0: "settled",
        2: "this outcome does not apply",
        3: "ABSENT cannot be known yet, or how it is undone cannot be sealed",
        4: "its inverse is running or in doubt",
        6: "it changed meanwhile",
    },
)
@click.argument("op_id", metavar="OP")
@click.option("--committed", is_flag=True, help="The effect happened.")
@click.option("--absent", is_flag=True, help="It did not, and will not.")
@click.option("--compensated", is_flag=True, help="It was undone outside.")
@click.option("--result", metavar="JSON", help="The result to record, with --committed.")
@click.option(
    "--post-state-hash",
    default="",
    metavar="HASH",
    help="With --committed: of what it left behind, so that it can be undone; it may also be told later.",
)
@click.option(
    "--payload", metavar="JSON", help="With --post-state-hash: for the compensator, in place of the one from before."
)
@click.option("--accept-risk", is_flag=True, help="With --absent: you take the risk that it still happens.")
@click.option("--version", required=True, help="The version that you looked at; see `in-doubt show`.")
@click.option("--evidence", required=True, help="How you know.")
@click.option("--by", required=True, metavar="WHO", help="Who decides.")
@click.pass_obj
def resolve(
    app: App,
    *,
    op_id: str,
    committed: bool,
    absent: bool,
    compensated: bool,
    result: str | None,
    post_state_hash: str,
    payload: str | None,
    accept_risk: bool,
    version: str,
    evidence: str,
    by: str,
) -> None:
    """Settle an operation by an operator's word, bound to the version that was seen."""
    said = {"committed": committed, "absent": absent, "compensated": compensated}
    outcome = _one_outcome([name for name, given in said.items() if given], result=result, accept_risk=accept_risk)
    if (post_state_hash and not committed) or (payload is not None and not post_state_hash):
        raise click.UsageError(
            "--post-state-hash goes with --committed, and --payload with both.", click.get_current_context()
        )
    decoded = decoded_json(result)
    with app.ledger() as ledger:
        operation = ledger.resolve(
            op_id, outcome=outcome, version=version, by=by, evidence=evidence, result=decoded, accept_risk=accept_risk,
            post_state_hash=post_state_hash, payload=decoded_json(payload, "--payload"),
        )  # fmt: skip
    values = {
        "op_id": op_id,
        "outcome": outcome.upper(),
        "status": operation.status.value,
        "version": operation.version,
        "round": operation.round,
        "by": by,
    }
    if post_state_hash:
        values["sealed"] = operation.sealed_manifest is not None
    answered = {"schema": "fencepost.resolution.v1", **values}
    app.out.data(answered, lambda: app.out.fields(_shown(values, "")))
    _note_taking_over(app, operation)


def _note_taking_over(app: App, operation: Operation) -> None:
    """What is still to be done once somebody beside its session has settled an effect as done."""
    from .operations import UNDO  # noqa: PLC0415 - takes its time

    settled = operation.settled
    outside = operation.status.value == "committed" and settled is not None and settled.seq == 0
    if outside and not operation.harmless and not operation.op_id.startswith(UNDO):
        app.out.note(
            "This belongs to no session yet: the agent's own takes it over with `replay_forward()`, so that its "
            "checkpoints know it."
        )


def _one_outcome(outcomes: list[str], *, result: str | None, accept_risk: bool) -> str:
    if len(outcomes) != 1:
        raise click.UsageError(
            "Say exactly one of --committed, --absent, and --compensated.", click.get_current_context()
        )
    if result is not None and outcomes[0] != "committed":
        raise click.UsageError("--result goes with --committed.", click.get_current_context())
    if accept_risk and outcomes[0] != "absent":
        raise click.UsageError("--accept-risk goes with --absent.", click.get_current_context())
    return outcomes[0]


def decoded_json(result: str | None, option: str = "--result") -> Any:
    """The value of an option that takes JSON. Raises BadParameter."""

    def refused(name: str) -> Any:
        raise ValueError(f"{name} is no JSON value")

    try:
        return None if result is None else json.loads(result, parse_constant=refused)
    except ValueError as error:
        raise click.BadParameter(f"not JSON ({error})", click.get_current_context(), param_hint=option) from error
