"""Pruning a branch: closed and fenced before it is judged, so that nothing it does later is accepted.

    1. publish PRUNED on top of what is known under the branch's key, and wait until it is applied:
       from here on no session opens on the branch, nobody forks from it, and its session is over
    2. fence the branch in every effects partition (the epoch is the position of PRUNED) and wait
    3. gather what stands before the fences, and say what is left behind (`pruned_branches.py`)
    4. publish PRUNE_DECIDED with the obligations, unless the last one says the same, and wait
Called again, it goes on where it was, or looks anew: what turned up since is an obligation as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from . import log_keys
from . import projection as docs
from .engine import Engine
from .errors import InvalidArgumentError, NotFoundError
from .facts import AgentFact, AgentKind
from .lineage import Branch
from .positions import Position, Topic
from .prune_verdicts import PruneVerdict
from .pruned_branches import left_behind
from .rollbacks import pending_error, withdraw_if_stale
from .verdicts import NOBODY, Word
from .view import AgentView, age_s

RECORDED = 100
"""How many obligations a decision spells out in the log. What is open is always looked at anew."""
WITHDRAWAL_S = 2.0
"""How long the withdrawal of a rollback whose guard is gone may take to be applied."""


async def prune(engine: Engine, agent_id: str, branch_id: str, *, word: Word = NOBODY) -> PruneVerdict:
    """Close a branch for good and say what it left behind. Safe to call again; see the module.

    Args:
        word: who prunes it, and why, where somebody says so; recorded.

    Raises:
        NotFoundError: no such agent or branch.
        InvalidArgumentError: nobody forked the branch; it can only be rolled back.
        RollbackPendingError: a rollback of the branch is being decided.
        StaleProjectionError: not applied in time; pruning it again is safe.
    """
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    view = await engine.view.known_agent(agent_id)
    branch = _prunable(view, branch_id)
    if branch.pruned is None:
        await _require_no_rollback(engine, view, branch_id, deadline=deadline)
        branch = await _close(engine, branch, agent_id, word=word, deadline=deadline)
    await _fence(engine, agent_id, branch, deadline=deadline)
    view = await engine.view.agent(agent_id)
    branch = view.agent.branches[branch_id]
    verdict = await left_behind(engine, view, branch)
    await _record(engine, branch, verdict, word=word, deadline=deadline)
    return verdict


async def preview(engine: Engine, agent_id: str, branch_id: str) -> PruneVerdict:
    """What pruning the branch would leave behind, on the projection as it is; closes and fences nobody.

    Its plan cannot be carried out: there is none before the branch is pruned.

    Raises NotFoundError, InvalidArgumentError, as `prune`.
    """
    view = await engine.view.known_agent(agent_id)
    branch = _prunable(view, branch_id)
    verdict = await left_behind(engine, view, branch)
    return replace(verdict, dry_run=True, age_s=age_s(view.header))


def _prunable(view: AgentView, branch_id: str) -> Branch:
    branch = view.agent.branches.get(branch_id)
    if branch is None or not branch.begun:
        raise NotFoundError(
            f"branch {branch_id} of {view.agent.agent_id} does not exist.",
            next_step="List its branches with `fencepost branch list`.",
            field="branch",
        )
    if branch.forked is None:
        raise InvalidArgumentError(
            f"branch: {branch_id} of {view.agent.agent_id} was forked from nothing, so there is nothing to go back to.",
            next_step="Take it back to a checkpoint instead (`ledger.authorize_rollback`, `fencepost rollback authorize`).",
            field="branch",
        )
    return branch


async def _require_no_rollback(engine: Engine, view: AgentView, branch_id: str, *, deadline: float) -> None:
    """Raises RollbackPendingError; a rollback whose guard is gone is withdrawn first."""
    agent_id = view.agent.agent_id
    pending = view.agent.pending
    if pending is None or branch_id not in pending.branches:
        return
    if await withdraw_if_stale(engine, view):

        async def decided() -> bool | None:
            return True if not _pending(await engine.view.agent(agent_id), branch_id) else None

        soon = min(deadline, engine.clock.monotonic() + WITHDRAWAL_S)
        if await engine.wait_until(engine.view.agents_partition(agent_id), decided, deadline=soon):
            return
    raise pending_error(f"branch {branch_id} of {agent_id} cannot be pruned now", pending, view.header.now_ms)


def _pending(view: AgentView, branch_id: str) -> str:
    pending = view.agent.pending
    return pending.rollback_id if pending and branch_id in pending.branches else ""


async def _close(engine: Engine, branch: Branch, agent_id: str, *, word: Word, deadline: float) -> Branch:
    """Step 1. Of several that prune it at once the first in the log counts, for all of them."""
    key = log_keys.branch(agent_id, branch.branch_id)
    fact = AgentFact(
        kind=AgentKind.PRUNED,
        agent_id=agent_id,
        branch_id=branch.branch_id,
        rollback_id=engine.new_id(),
        checkpoint_id=branch.fork_checkpoint,
        by=word.by,
        evidence=word.evidence,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(key, fact, await engine.view.agent_history(agent_id, key))

    async def applied() -> Branch | None:
        found = (await engine.view.agent(agent_id)).agent.branches.get(branch.branch_id)
        return found if found is not None and found.pruned is not None else None

    partition = engine.view.agents_partition(agent_id)
    return await engine.applied(
        partition, applied, deadline=deadline, beyond=offset, what=f"the pruning of {agent_id}/{branch.branch_id}"
    )


async def _fence(engine: Engine, agent_id: str, branch: Branch, *, deadline: float) -> None:
    """Step 2; nothing is published where the fence stands already."""
    assert branch.pruned is not None  # noqa: S101 (step 1 gives no other)
    epoch = branch.pruned.position
    if not await _fenced(engine, agent_id, branch.branch_id, epoch):
        reason = f"prune {branch.pruned.prune_id}"
        await engine.fence(agent_id, [branch.branch_id], epoch, deadline=deadline, reason=reason)


async def _fenced(engine: Engine, agent_id: str, branch_id: str, epoch: Position) -> bool:
    document = docs.fence_document(agent_id, branch_id)
    partitions = engine.view.partitions(Topic.EFFECTS)
    found = await asyncio.gather(*(engine.view.read(partition, [document]) for partition in partitions))
    epochs = [docs.fence_epoch(docs.read_history(snapshot.documents.get(document))) for snapshot in found]
    return all(at is not None and at >= epoch for at in epochs)


async def _record(engine: Engine, branch: Branch, verdict: PruneVerdict, *, word: Word, deadline: float) -> None:
    """Step 4: the decision, unless the newest one says the same."""
    assert branch.pruned is not None  # noqa: S101 (step 1)
    obligations = verdict.obligations[:RECORDED]
    last = branch.pruned.decisions[-1] if branch.pruned.decisions else None
    if last is not None and (last.verdict, last.obligations) == (verdict.kind.value, obligations):
        return
    agent_id = verdict.agent_id
    key = log_keys.branch(agent_id, branch.branch_id)
    fact = AgentFact(
        kind=AgentKind.PRUNE_DECIDED,
        agent_id=agent_id,
        branch_id=branch.branch_id,
        rollback_id=verdict.prune_id,
        checkpoint_id=verdict.checkpoint_id,
        verdict=verdict.kind.value,
        obligations=obligations,
        plan_digest=verdict.to_compensate.digest if verdict.to_compensate else "",
        by=word.by,
        evidence=word.evidence,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(key, fact, await engine.view.agent_history(agent_id, key))

    async def applied() -> bool | None:
        found = (await engine.view.agent(agent_id)).agent.branches[branch.branch_id].pruned
        return True if found is not None and fact in found.decisions else None

    what = f"the decision on the pruned branch {agent_id}/{branch.branch_id}"
    await engine.applied(engine.view.agents_partition(agent_id), applied, deadline=deadline, beyond=offset, what=what)
