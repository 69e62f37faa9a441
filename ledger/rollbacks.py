"""The guard's shell: writes before it reads, then lets `guard.decide` decide (DESIGN section 5).

    0. if what is applied suffices to refuse, refuse, and fence nobody
    1. publish ROLLBACK_REQUESTED and wait until it is applied: from here on no session or fork
       may name what would be abandoned
    2. publish a fence for every branch that descends from it, to every effects partition
    3. wait until all are applied, then decide on what stands before them
    4. publish the decision and wait: the first decision in the log counts
A guard that cannot decide withdraws what it has requested, so that whoever asks next is not held up by it.
No lock, no transaction, no trust in the projection's freshness: an intent before its fence is
seen by the decision, one after it is rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from . import log_keys
from . import projection as docs
from .basis import looked_outside, watched
from .engine import Engine, here
from .errors import (
    FencepostError,
    InvalidArgumentError,
    NotFoundError,
    RollbackPendingError,
    WatermarkMangledError,
)
from .facts import AgentFact, AgentKind, Crossed
from .gathering import gather, glance
from .guard import Evidence, SeenOperation, decide, is_harmless, unknown_calls, unknown_effects
from .lineage import Rollback
from .operations import Status
from .ports import DocumentKey
from .previews import Asked
from .processes import has_ended
from .verdicts import NOBODY, Policy, Reason, ReasonKind, Verdict, VerdictKind, WayOn, Word
from .view import AgentView, age_s
from .watermarks import Watermark
from .witnesses import witnesses_elsewhere

_REASONS = 50
WITHDRAW_S = 2.0
"""How long a guard that gave up tries to say so."""
STALE_ROLLBACK_S = 60.0
"""A rollback that nobody decided for so long may be withdrawn by whoever needs the branch; at once, if its process has ended."""
UNDER_WAY_S = 1.0
"""How long an effect that looks owned, or another rollback, is looked at again: its end may be written and not applied yet."""


async def authorize(
    engine: Engine,
    agent_id: str,
    checkpoint_id: str,
    *,
    policy: Policy = Policy.STRICT,
    branch_id: str = "",
    restored: str = "",
    word: Word = NOBODY,
) -> Verdict:
    """Decide whether a branch may go back to a checkpoint. A refusal is a value, not an error.

    Args:
        word: who asks for it, and why; recorded with the request and the decision.
        branch_id: the branch that goes back; the checkpoint's own when empty.
        restored: text of the state that is to be restored, with its token; when given, the token
            must be the registered one.

    Raises:
        NotFoundError: the ledger has never seen the agent.
        RollbackPendingError: another rollback of the agent is being decided.
        StaleProjectionError: it cannot be decided now; nothing was authorised.
    """
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    patience = engine.clock.monotonic() + UNDER_WAY_S
    await withdraw_if_stale(engine, await engine.view.known_agent(agent_id))
    while True:
        view = await engine.view.known_agent(agent_id)
        evidence = await _gather(engine, view, checkpoint_id, branch_id=branch_id, restored=restored)
        early = await _judged(engine, evidence, policy)
        kinds = {reason.kind for reason in early.reasons}
        passes = kinds == {ReasonKind.EFFECT_OWNED} or view.agent.pending is not None
        if not passes or engine.clock.monotonic() >= patience:
            break
        await asyncio.sleep(0.05)
    transient = {ReasonKind.WATERMARK_AHEAD}
    if early.kind is VerdictKind.REFUSE and not all(reason.kind in transient for reason in early.reasons):
        return replace(early, by=word.by, evidence=word.evidence)
    if (pending := view.agent.pending) is not None:  # a request would be rejected: nothing is written for that
        raise pending_error(f"the rollback of {agent_id} was not accepted", pending, view.header.now_ms)
    rollback_id = engine.new_id()
    try:
        rollback = await _request(engine, view, evidence, policy, rollback_id=rollback_id, word=word, deadline=deadline)
        await engine.fence(
            agent_id, rollback.branches, rollback.position, deadline=deadline, reason=f"rollback {rollback_id}"
        )
        view = await engine.view.agent(agent_id)
        evidence = await _gather(engine, view, checkpoint_id, branch_id=evidence.branch_id, restored=restored)
        judged = await _judged(engine, evidence, policy)
        verdict = replace(judged, rollback_id=rollback_id, fenced=True, by=word.by, evidence=word.evidence)
        if verdict.plan is not None:
            verdict = replace(verdict, plan=replace(verdict.plan, cause_id=rollback_id))
        return await _record(engine, verdict, deadline=deadline)
    except (NotFoundError, RollbackPendingError):  # it was not accepted, so it holds nobody up
        raise
    except BaseException:
        with contextlib.suppress(FencepostError, TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                await withdraw(engine, agent_id, evidence.branch_id, rollback_id, why="its guard could not decide")
        raise


async def withdraw(engine: Engine, agent_id: str, branch_id: str, rollback_id: str, *, why: str) -> None:
    """Decide, as withdrawn, a rollback that nobody else decides; of several decisions the first counts."""
    fact = AgentFact(
        kind=AgentKind.ROLLBACK_DECIDED,
        agent_id=agent_id,
        branch_id=branch_id,
        rollback_id=rollback_id,
        verdict="WITHDRAWN",
        reasons=(why,),
        time_ms=engine.clock.wall_ms(),
    )
    await engine.publish_agent(log_keys.rollback(agent_id, rollback_id), fact)


async def withdraw_if_stale(engine: Engine, view: AgentView) -> bool:
    """Decide, as withdrawn, a rollback whose guard is gone; the first decision counts. Whether that was due.

    Its guard is gone if its process has ended, where that can be told, or else after STALE_ROLLBACK_S. A guard that
    lives all the same finds its rollback withdrawn, and authorises nothing.
    """
    pending = view.agent.pending
    if pending is None:
        return False
    waiting = view.header.now_ms - pending.fact.time_ms < STALE_ROLLBACK_S * 1000
    if waiting and not has_ended(pending.fact.host, pending.fact.pid):
        return False
    agent_id = view.agent.agent_id
    await withdraw(engine, agent_id, pending.branch_id, pending.rollback_id, why="its guard did not decide")
    return True


def pending_error(lead: str, pending: Rollback, now_ms: int) -> RollbackPendingError:
    """The error of who finds a rollback that is being decided: by whom, since when, and when it is given up.

    Args:
        lead: what cannot be done for it.
        now_ms: by the store's clock.
    """
    fact = pending.fact
    age_s = max(0.0, (now_ms - fact.time_ms) / 1000)
    left_s = max(0.0, STALE_ROLLBACK_S - age_s)
    where = f"process {fact.pid} on {fact.host}" if fact.host else "a process that is not named"
    word = f", which {fact.by} asked for" if fact.by else ""
    return RollbackPendingError(
        f"{lead}: rollback {pending.rollback_id} to {fact.checkpoint_id}{word}, is being decided by {where}, "
        f"for {age_s:.0f} s now.",
        next_step=f"Wait for the decision. Once its process has ended, or in {left_s:.0f} s, whoever asks withdraws it. "
        "See `fencepost agents show`.",
        rollback_id=pending.rollback_id,
        host=fact.host,
        pid=fact.pid,
        by=fact.by,
        since_ms=fact.time_ms,
        left_s=round(left_s, 3),
    )


async def preview(
    engine: Engine,
    agent_id: str,
    checkpoint_id: str,
    *,
    policy: Policy = Policy.STRICT,
    branch_id: str = "",
    restored: str = "",
) -> Verdict:
    """A dry run: decides on the projection as it is, says its age, and fences nobody.

    `outlook` says of each effect that the checkpoint does not know what a replay would do:
    op_id → "absorbed", "fires again", "held until settled", with "cannot be undone" or "can be
    compensated" where that holds: a sealed manifest decides, not what its class allows.
    """
    asked = Asked(agent_id, checkpoint_id, policy, branch_id, restored)
    if (again := await engine.previews.again(engine.view, asked)) is not None:
        return again
    with watched() as basis:
        verdict = await _preview(engine, asked)
    engine.previews.remember(asked, verdict, basis)
    return replace(verdict, outlook=dict(verdict.outlook))


def preview_here(engine: Engine, asked: Asked) -> Verdict | None:
    """The same in this thread, where it is known at once; else None."""
    way = engine.store.at_once
    return engine.previews.again_here(engine.view, asked, way) if way is not None else None


async def _preview(engine: Engine, asked: Asked) -> Verdict:
    agent_id, checkpoint_id, policy, branch_id, restored = asked
    view, applied = await glance(engine, agent_id, checkpoint_id, branch_id=branch_id)
    evidence = await _with_restored(engine, applied, restored)
    verdict = await _judged(engine, evidence, policy)
    outlook = {s.operation.op_id: _outlook(s, agent_id) for s in unknown_effects(evidence)}
    for call in unknown_calls(evidence):
        again = "a repeat does no harm" if is_harmless(call) else "no op id; cannot be undone by the ledger"
        outlook[f"call {call.seq} of {call.session_id} ({call.tool})"] = f"fires again: {again}"
    return replace(verdict, dry_run=True, age_s=age_s(view.header), outlook=outlook)


async def _judged(engine: Engine, evidence: Evidence, policy: Policy) -> Verdict:
    """The decision; what a plan would undo is looked at as well, where somebody can read its state."""
    verdict = decide(evidence, policy)
    if verdict.plan is None:
        return verdict
    wanted = {step.op_id for step in verdict.plan.steps}
    looked_outside()
    hashes = await engine.states([s.operation for s in evidence.operations if s.operation.op_id in wanted])
    return decide(replace(evidence, state_hashes=hashes), policy)


def _outlook(seen: SeenOperation, agent_id: str) -> str:
    operation = seen.operation
    if seen.unsafe or operation.status is Status.UNSAFE:
        return "held until settled"
    if operation.status is Status.COMMITTED:
        again = "absorbed: the recorded result comes back"
    elif operation.harmless:
        return "fires again: a repeat does no harm"
    else:
        again = "held until settled"
    if operation.harmless:
        return again
    other, _ = operation.done_by_branch
    if other not in {"", agent_id}:
        return f"{again}; it stands for {other}, which did it"
    undo = "can be compensated" if operation.sealed_manifest else "cannot be undone"
    return f"{again}; {undo}"


async def _gather(
    engine: Engine, view: AgentView, checkpoint_id: str, *, branch_id: str = "", restored: str = ""
) -> Evidence:
    """All that a decision rests on, as it is applied now, with what the restored state says."""
    return await _with_restored(engine, await gather(engine, view, checkpoint_id, branch_id=branch_id), restored)


async def _with_restored(engine: Engine, evidence: Evidence, restored: str) -> Evidence:
    """With what the restored state says, and with who else relies on the effects."""
    claimed, problem = _claimed(restored)
    agent_id = evidence.agent.agent_id
    own = [s.operation for s in evidence.operations if s.operation.done_by_branch[0] == agent_id]  # no other is undone
    others = await witnesses_elsewhere(engine, agent_id, own)
    mark = None if problem else evidence.mark
    return replace(
        evidence,
        mark=mark,
        claimed=claimed,
        restored=restored,
        restored_problem=problem,
        others=others,
        open_at=evidence.open_at if mark else {},
        written=evidence.written if mark else {},
    )


def _claimed(restored: str) -> tuple[Watermark | None, str]:
    """The watermark in the restored state, and what is wrong with it there. Raises InvalidArgumentError."""
    given: object = restored
    if not isinstance(given, str):
        raise InvalidArgumentError(
            f"restored: must be text, not {type(given).__name__}.",
            next_step="Pass the restored state as a str that holds its token; decode bytes first.",
            field="restored",
        )
    if not restored:
        return None, ""
    try:
        found = Watermark.find(restored)
    except WatermarkMangledError:
        return None, "a damaged watermark token"
    return found, "" if found else "no watermark token"


async def _request(
    engine: Engine,
    view: AgentView,
    evidence: Evidence,
    policy: Policy,
    *,
    rollback_id: str,
    word: Word,
    deadline: float,
) -> Rollback:
    """Step 1. Raises RollbackPendingError, NotFoundError, StaleProjectionError."""
    agent_id = evidence.agent.agent_id
    branch = view.agent.branches[evidence.branch_id]
    host, pid = here()
    fact = AgentFact(
        kind=AgentKind.ROLLBACK_REQUESTED,
        agent_id=agent_id,
        branch_id=evidence.branch_id,
        rollback_id=rollback_id,
        checkpoint_id=evidence.checkpoint_id,
        watermark=evidence.mark.token if evidence.mark else "",
        segment=branch.segment,
        policy=policy.value,
        by=word.by,
        evidence=word.evidence,
        host=host,
        pid=pid,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(log_keys.rollback(agent_id, rollback_id), fact)

    async def applied() -> Rollback | None:
        return (await engine.view.agent(agent_id)).agent.rollbacks.get(rollback_id)

    partition = engine.view.agents_partition(agent_id)
    rollback = await engine.applied(
        partition,
        applied,
        deadline=deadline,
        beyond=offset,
        what=f"the rollback of {agent_id} (nothing was authorised)",
    )
    if "is being decided" in rollback.rejected or "another segment" in rollback.rejected:
        raise RollbackPendingError(
            f"the rollback of {agent_id} was not accepted: {rollback.rejected}.",
            next_step="Look with `fencepost agents show`, then decide anew.",
            rollback_id=rollback_id,
        )
    if rollback.rejected:
        raise NotFoundError(
            f"the rollback of {agent_id} was not accepted: {rollback.rejected}.",
            next_step="Choose a checkpoint from `fencepost checkpoints list`.",
            field="checkpoint",
        )
    return rollback


def recorded_reasons(verdict: Verdict) -> tuple[str, ...]:
    """The reasons as the decision's record has them: the first ones, and how many more there are."""
    told = tuple(reason.text for reason in verdict.reasons[:_REASONS])
    more = len(verdict.reasons) - len(told)
    return (*told, f"and {more} more") if more else told


async def _record(engine: Engine, verdict: Verdict, *, deadline: float) -> Verdict:
    """Step 4: the decision, confirmed as the first one."""
    fact = AgentFact(
        kind=AgentKind.ROLLBACK_DECIDED,
        agent_id=verdict.agent_id,
        branch_id=verdict.branch_id,
        rollback_id=verdict.rollback_id,
        checkpoint_id=verdict.checkpoint_id,
        policy=verdict.policy.value,
        verdict=verdict.kind.value,
        reasons=recorded_reasons(verdict),
        crossed=tuple(Crossed(effect.op_id, effect.tool, effect.round) for effect in verdict.crossed),
        plan_digest=verdict.plan.digest if verdict.plan else "",
        by=verdict.by,
        evidence=verdict.evidence,
        time_ms=engine.clock.wall_ms(),
    )
    agent_id, rollback_id = verdict.agent_id, verdict.rollback_id
    partition = engine.view.agents_partition(agent_id)
    key = log_keys.rollback(agent_id, rollback_id)
    snapshot = await engine.view.read(partition, [DocumentKey(docs.agent_documents("rollback", agent_id), key)])
    known = docs.read_history(next(iter(snapshot.documents.values()), None))
    offset = await engine.publish_agent(key, fact, known)

    async def applied() -> AgentFact | None:
        rollback = (await engine.view.agent(agent_id)).agent.rollbacks.get(rollback_id)
        return rollback.decision if rollback else None

    decision = await engine.applied(
        partition,
        applied,
        deadline=deadline,
        beyond=offset,
        what=f"the decision on the rollback of {agent_id} (nothing is authorised until it is)",
    )
    if decision.verdict == verdict.kind.value:
        return verdict
    reason = Reason(ReasonKind.WITHDRAWN, "somebody withdrew this rollback before it was decided")
    return replace(
        verdict,
        kind=VerdictKind.REFUSE,
        reasons=(reason,),
        crossed=(),
        plan=None,
        ways_on=(WayOn.REPLAY_FORWARD, WayOn.OPERATOR),
    )
