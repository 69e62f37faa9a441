"""Carrying out an approved plan of compensations (DESIGN section 7).

    1. compare the plan with the ledger: what asked for it still holds, every step stands as it was planned,
       every compensator is registered, and nobody has changed the states since
    2. the approval, a fact that is bound to the plan's digest
    3. open a session of `compensation:AGENT` on a branch that is named by the digest: a former run of the
       plan is fenced by it, the agent's own session is not
 of each step that is not undone yet, in the plan's order:
    4. publish COMPENSATING into the operation's own history and have it confirmed: from here on nobody
       can rely on the effect
    5. look whether somebody who stays relied on it before that, or the plan's cause is gone: then withdraw
    6. claim the compensation, an operation of its own, or learn that it was done
    7. read the state's hash; unless it is the one that the effect left behind, withdraw
    8. run the registered inverse
    9. publish COMMITTED of the compensation
   10. publish COMPENSATED into the operation's history, with the losses, and have it confirmed
To withdraw is FAILED of the compensation, if it was claimed, and COMPENSATION_WITHDRAWN of the operation, which
is then as it was before. A run that was killed anywhere goes on where it was: an inverse that is committed is not
run again; one that may have run is in doubt until a probe or an operator has settled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import attempts, opening, plan_checks, resolutions, sessions, settling
from .approvals import Approval, approval_of, approve, require_ours
from .attempts import Claim
from .calls import Call
from .compensation_reports import CompensationReport, Orders, Undone
from .compensators import Compensators
from .engine import Engine
from .errors import (
    CompensationBlockedError,
    FencedError,
    InvalidArgumentError,
    OperationBeingUndoneError,
    OperationInDoubtError,
    RecordTooLargeError,
    StaleProjectionError,
    VersionMovedError,
    moved,
)
from .facts import EffectClass, EffectFact, EffectKind
from .identity import canonical, check_id, digest
from .limits import ROOM_BYTES
from .manifests import ManifestVerdict
from .operations import Operation, Status, compensation_op_id
from .planning import runner_of
from .plans import Plan, Step
from .resolutions import OpenOperation, ProbeAnswer
from .secret_values import MARK
from .sessions import SessionState
from .strangers import cause_of, said_of, told_of, withholds
from .tool_words import EffectNotExecuted, StateMoved, says_key_voided
from .view import OperationView

Probe = Callable[[Operation], ProbeAnswer]
NOT_EXECUTED = "NOT_EXECUTED"
STATE_UNREADABLE = "STATE_UNREADABLE"
RELIED_ON = "RELIED_ON"


@dataclass(slots=True)
class _Run:
    """One run of a plan.

    Attributes:
        runner: who runs it, as the reason of its facts says it; their `by` is who approved it.
    """

    engine: Engine
    plan: Plan
    approval: Approval
    compensators: Compensators
    probes: dict[str, Probe]
    session: SessionState
    runner: str = ""
    done: list[Undone] = field(default_factory=list)

    def blocked(self, step: Step, verdict: str, why: str, next_step: str) -> CompensationBlockedError:
        """The error for a step that was not undone."""
        return CompensationBlockedError(
            f"operation {step.op_id} was not undone: {why}.",
            next_step=next_step,
            op_id=step.op_id,
            verdict=verdict,
            done=[one.op_id for one in self.done],
        )

    def fact(self, kind: EffectKind, step: Step, attempt_id: str, **values: Any) -> EffectFact:
        """A fact in the operation's own history. It belongs to no session of the agent that is undone."""
        return EffectFact(
            kind=kind,
            op_id=step.op_id,
            attempt_id=attempt_id,
            round=step.round,
            tool=step.manifest.tool,
            by=self.approval.by,
            plan_digest=self.plan.digest,
            manifest_digest=step.manifest.digest,
            other_op_id=compensation_op_id(step.op_id, step.round),
            time_ms=self.engine.clock.wall_ms(),
            **values,
        )


async def compensate(
    engine: Engine, plan: Plan, orders: Orders, *, compensators: Compensators, probes: dict[str, Probe]
) -> CompensationReport:
    """Carry a plan out, or go on with it. See the module for the steps.

    Raises:
        NotFoundError: a compensator is not registered; nothing was undone.
        LossNotAcceptedError: a loss was not accepted by name; nothing was undone.
        ManifestError: a step cannot be undone as planned.
        VersionMovedError: the plan is not of the ledger as it is; make another one.
        CompensationBlockedError: nothing was changed by the step that it names; `done` are those before it.
        OperationInDoubtError: an inverse may or may not have run; settle that, then go on with the plan.
        OperationBeingUndoneError: another plan, or another run of this one, is at it.
        StaleProjectionError, OutcomeUnknownError: not confirmed in time; going on with the plan is safe.
    """
    plan = require_ours(engine, plan)
    compensators.require(plan)
    views = await plan_checks.require_current(engine, plan)
    await _require_unchanged(plan, views, compensators)
    runner = _runner(orders)
    approval = await _approved(engine, plan, orders)
    if all(view.operation.round > step.round for view, step in zip(views, plan.steps, strict=True)):
        steps = [await _undone_before(engine, step, v.operation) for v, step in zip(views, plan.steps, strict=True)]
        return CompensationReport(plan=plan, approval=approval, steps=tuple(steps))
    session = await opening.open_session(engine, *runner_of(plan.agent_id, plan.digest), scope=plan.digest)
    run = _Run(engine, plan, approval, compensators, probes, session, runner)
    try:
        for step in plan.steps:
            run.done.append(await _undo(run, step))
    finally:
        await sessions.close_session(session)
    return CompensationReport(plan=plan, approval=approval, steps=tuple(run.done))


def _runner(orders: Orders) -> str:
    """Who runs the plan, as its facts say it beside who approved it; "" if nobody was named."""
    return f"run by {check_id('approved_by', orders.approved_by, limit=200)}" if orders.approved_by else ""


async def _approved(engine: Engine, plan: Plan, orders: Orders) -> Approval:
    """Step 2. Raises InvalidArgumentError when nobody approves it."""
    known = await approval_of(engine, plan)
    if known is not None:
        return known
    if not orders.approved_by:
        raise InvalidArgumentError(
            f"approved_by: nobody has approved plan {plan.digest[:16]} as it is.",
            next_step="Have it approved (`ledger.approve_plan(plan, by=…)`, `fencepost compensate approve`).",
            field="approved_by",
        )
    return await approve(
        engine,
        plan,
        by=check_id("approved_by", orders.approved_by, limit=200),
        evidence=orders.evidence,
        accepted=orders.accepted,
    )


async def _require_unchanged(plan: Plan, views: Sequence[OperationView], compensators: Compensators) -> None:
    """Of step 1: nothing is begun when it is plain that the plan cannot be carried out to its end."""
    todo = {
        v.operation.op_id: v.operation
        for v, step in zip(views, plan.steps, strict=True)
        if v.operation.status is Status.COMMITTED and v.operation.round == step.round
    }
    if len(todo) < len(plan.steps):  # it was begun: a state in the middle says nothing about what comes later
        return
    hashes = await compensators.hashes(todo.values())
    for op_id, verdict in plan.verify(hashes).items():
        if op_id in hashes and verdict is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION:
            raise CompensationBlockedError(
                f"operation {op_id} was not undone: the state that it left behind was changed since, and undoing it "
                "would overwrite that. Nothing was begun.",
                next_step="Let an operator reconcile what was changed; the newer state stands.",
                op_id=op_id,
                verdict=verdict.value,
                done=[],
            )


# -- one step --------------------------------------------------------------------------


async def _undo(run: _Run, step: Step) -> Undone:
    """Steps 4 to 10 for one operation."""
    view = await run.engine.view.operation(step.op_id)
    if view.operation.round > step.round:
        return await _undone_before(run.engine, step, view.operation)
    if view.operation.status is Status.COMMITTED:
        await plan_checks.require_cause(run.engine, run.plan)
    begun = await _begin_undo(run, step, view)
    try:
        claim = await _claim(run, step, begun, secret=withholds(view.operation))
    except FencedError as fenced:
        raise _taken_over(step) from fenced
    result = await _run_inverse(run, step, claim, begun) if claim.owned else _recorded(claim)
    await _finish(run, step, begun)
    return Undone(
        op_id=step.op_id,
        round=step.round,
        compensation_op_id=claim.call.op_id,
        now=True,
        result=result,
        losses=step.losses,
    )


def _taken_over(step: Step) -> OperationBeingUndoneError:
    return OperationBeingUndoneError(
        f"operation {step.op_id} is being undone by another run of the plan, which took over.",
        next_step="Wait for it, then see `fencepost compensate list`.",
        op_id=step.op_id,
    )


async def _undone_before(engine: Engine, step: Step, operation: Operation) -> Undone:
    ended = next((fact for fact in operation.compensations if fact.round == step.round), None)
    compensation = compensation_op_id(step.op_id, step.round)
    view = await engine.view.operation(compensation)
    return Undone(
        op_id=step.op_id,
        round=step.round,
        compensation_op_id=compensation if view.facts else "",
        now=False,
        losses=ended.losses if ended else (),
    )


def _recorded(claim: Claim) -> Any:
    """The recorded result of an inverse that ran before; None where it is not recorded."""
    return claim.recorded_result() if claim.operation.result is not None else None


async def _begin_undo(run: _Run, step: Step, view: OperationView) -> EffectFact:
    """Step 4. Raises VersionMovedError, OperationBeingUndoneError: the operation moved."""
    engine, operation = run.engine, view.operation
    await plan_checks.require_step(engine, run.plan, step, view)
    size = sum(len(fact) for _, fact in view.facts)
    if size > ROOM_BYTES:
        raise RecordTooLargeError(
            f"operation {step.op_id} has {size} bytes of history; its undo might not fit. Nothing was undone by it.",
            next_step="Undo it outside, and record that with `fencepost in-doubt resolve … --compensated`.",
            size_bytes=size,
            limit_bytes=ROOM_BYTES,
        )
    fact = run.fact(EffectKind.COMPENSATING, step, engine.new_id(), version=operation.version, reason=run.runner)
    offset = await engine.publish_effect(fact, view.facts)

    async def applied() -> tuple[Operation, bool] | None:
        now, _ = await engine.view.folded(step.op_id)
        mine = [u for u in now.undoings if u.fact.attempt_id == fact.attempt_id]
        return (now, mine[0].effective) if mine else None

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    now, effective = await engine.applied(
        view.partition, applied, deadline=deadline, beyond=offset, what=f"that {step.op_id} is being undone"
    )
    if not effective:
        raise moved(step.op_id, step.version, now.version)
    return fact


async def _claim(run: _Run, step: Step, begun: EffectFact, *, secret: bool) -> Claim:
    """Steps 5 and 6; an inverse that is in doubt is asked for, where it has a probe."""
    call = _call(run, step, secret=secret)
    view = await run.engine.view.operation(call.op_id)
    if view.operation.status is Status.FREE and not view.seen.unsafe:  # what was claimed may have run: too late to look
        await _require_nobody_relies(run, step, begun)
    try:
        return await attempts.begin(run.session, call)
    except OperationInDoubtError:
        probe = run.probes.get(call.tool)
        if probe is None:
            raise
    view = await run.engine.view.operation(call.op_id)
    item = OpenOperation(view, "in doubt", run.session.agent_id, run.session.branch_id, 0)
    await resolutions.probe(run.engine, item, probe, by="probe")
    return await attempts.begin(run.session, call)


async def _require_nobody_relies(run: _Run, step: Step, begun: EffectFact) -> None:
    """Step 5. Raises VersionMovedError, CompensationBlockedError once the undo is withdrawn."""
    try:
        await plan_checks.require_cause(run.engine, run.plan)
        relying = await plan_checks.relying(run.engine, run.plan, step)
    except VersionMovedError:
        await _withdraw(run, step, begun, "what asked for the plan is gone")
        raise
    if relying:
        await _withdraw(run, step, begun, f"it is relied on by {relying}")
        raise run.blocked(
            step,
            RELIED_ON,
            f"it is relied on by {relying}, which stays",
            "Leave the effect as it is, or prune what relies on it first.",
        )


def _call(run: _Run, step: Step, *, secret: bool) -> Call:
    """The compensation: an operation of its own, which nothing but this manifest can be claimed for.

    Args:
        secret: an argument of what it undoes is; the compensation's own arguments say so as well.
    """
    manifest = step.manifest
    known = run.compensators.get(manifest.action.name)
    longest = known.longest_run_s if known else None
    identity = {"op_id": step.op_id, "round": step.round, "manifest": manifest.digest}
    return Call(
        op_id=compensation_op_id(step.op_id, step.round),
        tool=manifest.action.name,
        effect_class=EffectClass.IRREVERSIBLE,
        identity_digest=digest(canonical(identity)),
        arguments=canonical({**identity, "payload": manifest.action.payload} | ({"secret": MARK} if secret else {})),
        resource=manifest.resource,
        deadline_s=run.engine.limits.deadline_s,
        wait_s=run.engine.limits.wait_s,
        longest_run_s=-1.0 if longest is None else longest,
    )


async def _run_inverse(run: _Run, step: Step, claim: Claim, begun: EffectFact) -> Any:
    """Steps 7 to 9."""
    operation, _ = await run.engine.view.folded(step.op_id)
    if operation.undoing is None or operation.undoing.attempt_id != begun.attempt_id:
        await settling.fail(claim, "its undo was withdrawn or taken over")
        if operation.undoing is not None:
            raise _taken_over(step)
        raise moved(step.op_id, begun.version, operation.version)
    manifest = step.manifest
    try:
        async with asyncio.timeout(run.engine.limits.apply_s):
            now = await run.compensators.hash_of(operation, manifest)
    except Exception as error:  # noqa: BLE001 (a stranger's code may raise anything)
        await _give_up(run, step, claim, begun, "the state's hash could not be read")
        why = f"the state's hash could not be read ({told_of(error, operation)})"
        problem = run.blocked(step, STATE_UNREADABLE, why, "Correct what reads it, then go on with the plan.")
        raise problem from cause_of(error, operation)
    if manifest.verify(now) is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION:
        await _give_up(run, step, claim, begun, "the state was changed since")
        raise _overwritten(run, step)
    known = run.compensators.get(manifest.action.name)
    assert known is not None, "the plan's compensators were looked for"  # noqa: S101 (not input: `require` has seen it)
    args, named = known.arguments(operation, manifest, _key(step, claim))
    try:
        claim.start()
    except StaleProjectionError as late:
        await _give_up(run, step, claim, begun, late.message)
        raise
    try:
        value = await run.compensators.call(known.function, *args, **named)
    except StateMoved as error:
        await _give_up(run, step, claim, begun, said_of(error, operation, "the state was changed since"))
        raise _overwritten(run, step) from cause_of(error, operation)
    except EffectNotExecuted as error:
        said = said_of(error, operation, "it does not say why")
        await _give_up(run, step, claim, begun, said, key_voided=says_key_voided(error))
        why = f"{manifest.action.name} says that nothing was done ({said})"
        problem = run.blocked(step, NOT_EXECUTED, why, "Remove the cause, then go on with the plan.")
        raise problem from cause_of(error, operation)
    except Exception as error:  # noqa: BLE001 (a stranger's code may raise anything)
        said = told_of(error, operation)
        await settling.doubt(claim, said)
        raise OperationInDoubtError(
            f"the inverse of {step.op_id} ({claim.call.op_id}) is in doubt: {said}. It may or may not have run.",
            next_step="Find out outside, settle it with a probe or `fencepost in-doubt resolve`, then go on with the plan.",
            op_id=claim.call.op_id,
            done=[one.op_id for one in run.done],
        ) from cause_of(error, operation)
    await settling.commit(claim, value)
    claim.returned()
    return value


def _key(step: Step, claim: Claim) -> str:
    """The manifest's key; another one where that is void at the provider, or an inverse was itself undone."""
    key, operation = step.manifest.action.idempotency_key, claim.operation
    key = key if operation.round == 1 else f"{key}-{operation.round}"
    return f"{key}.{operation.voids}" if operation.voids else key


def _overwritten(run: _Run, step: Step) -> CompensationBlockedError:
    return run.blocked(
        step,
        ManifestVerdict.BLOCKED_CONCURRENT_MUTATION.value,
        "the state that it left behind was changed since, and undoing it would overwrite that",
        "Let an operator reconcile what was changed; the newer state stands.",
    )


async def _give_up(
    run: _Run, step: Step, claim: Claim, begun: EffectFact, why: str, *, key_voided: bool = False
) -> None:
    await settling.fail(claim, why, key_voided=key_voided)
    await _withdraw(run, step, begun, why)


async def _withdraw(run: _Run, step: Step, begun: EffectFact, why: str) -> None:
    """Say that this undo certainly changed nothing, and wait until the operation shows it."""
    reason = why[:500].encode(errors="backslashreplace").decode()
    fact = run.fact(EffectKind.COMPENSATION_WITHDRAWN, step, begun.attempt_id, reason=reason)
    await _publish(run, fact, lambda now: now.undoing is None or now.undoing.attempt_id != begun.attempt_id)


async def _finish(run: _Run, step: Step, begun: EffectFact) -> None:
    """Step 10."""
    words: dict[str, Any] = {"losses": step.losses, "evidence": run.approval.evidence, "reason": run.runner}
    fact = run.fact(EffectKind.COMPENSATED, step, begun.attempt_id, **words)
    await _publish(run, fact, lambda now: now.round > step.round)


async def _publish(run: _Run, fact: EffectFact, shown: Callable[[Operation], bool]) -> None:
    """Publish a fact about the operation and wait until the operation shows it."""
    engine = run.engine
    _, facts = await engine.view.folded(fact.op_id)
    offset = await engine.publish_effect(fact, facts)

    async def applied() -> bool | None:
        now, _ = await engine.view.folded(fact.op_id)
        return shown(now) or None

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.effects_partition(fact.op_id)
    await engine.applied(
        partition, applied, deadline=deadline, beyond=offset, what=f"{fact.kind.value} of {fact.op_id}"
    )
