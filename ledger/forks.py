"""Forking a branch from a checkpoint: siblings share op ids, and the first commit wins."""

from __future__ import annotations

from . import log_keys
from .engine import Engine
from .errors import AlreadyExistsError, FencedError, FencepostError, NotFoundError, RollbackPendingError
from .facts import AgentFact, AgentKind
from .lineage import Branch
from .rollbacks import WITHDRAW_S, pending_error, withdraw_if_stale
from .view import AgentView


async def fork(engine: Engine, agent_id: str, branch_id: str, *, checkpoint_id: str) -> None:
    """Begin a branch at a checkpoint. A name whose fork was refused stays free.

    Raises:
        NotFoundError: no such agent, or the checkpoint is not registered.
        AlreadyExistsError: the branch exists, or somebody else forked one of that name meanwhile.
        FencedError: the checkpoint lies on an abandoned stretch, or on a branch that was pruned.
        RollbackPendingError: a rollback is being decided; fork when it is.
        StaleProjectionError: not applied in time; look whether it exists.
    """
    view = await _undisturbed(engine, agent_id)
    fact = _request(engine, view, branch_id, checkpoint_id)
    key = log_keys.branch(agent_id, branch_id)
    offset = await engine.publish_agent(key, fact, await engine.view.agent_history(agent_id, key))

    async def applied() -> Branch | None:
        branch = (await engine.view.agent(agent_id)).agent.branches.get(branch_id)
        return branch if branch is not None and (branch.begun or fact in branch.refused) else None

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(agent_id)
    branch = await engine.applied(partition, applied, deadline=deadline, beyond=offset, what=f"the fork {branch_id}")
    if fact in branch.refused:
        raise _refusal(branch_id, branch.forbidden or "it was refused")
    if branch.forked != fact:
        raise _taken(agent_id, branch_id)


async def _undisturbed(engine: Engine, agent_id: str) -> AgentView:
    """The agent; a rollback whose guard is gone is withdrawn first."""
    view = await engine.view.known_agent(agent_id)
    if view.agent.pending is None or not await withdraw_if_stale(engine, view):
        return view

    async def decided() -> AgentView | None:
        now = await engine.view.agent(agent_id)
        return now if now.agent.pending is None else None

    deadline = engine.clock.monotonic() + WITHDRAW_S
    return await engine.wait_until(engine.view.agents_partition(agent_id), decided, deadline=deadline) or view


def _request(engine: Engine, view: AgentView, branch_id: str, checkpoint_id: str) -> AgentFact:
    agent = view.agent
    registered = view.checkpoints.get(checkpoint_id)
    if registered is None or registered.mark is None:
        raise NotFoundError(
            f"checkpoint {checkpoint_id} of {agent.agent_id} is not registered.",
            next_step="List them with `fencepost checkpoints list`.",
            field="checkpoint",
        )
    if agent.pending:
        raise pending_error(f"branch {branch_id} cannot be forked now", agent.pending, view.header.now_ms)
    if (taken := agent.branches.get(branch_id)) is not None and taken.begun:
        raise _taken(agent.agent_id, branch_id)
    return AgentFact(
        kind=AgentKind.FORKED,
        agent_id=agent.agent_id,
        branch_id=branch_id,
        parent_branch_id=registered.branch_id,
        checkpoint_id=checkpoint_id,
        watermark=registered.mark.token,
        time_ms=engine.clock.wall_ms(),
    )


def _taken(agent_id: str, branch_id: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"branch: {branch_id} of {agent_id} exists.",
        next_step="Open a session on it, or choose another name.",
        field="branch",
    )


def _refusal(branch_id: str, why: str) -> FencepostError:
    if "being decided" in why:
        return RollbackPendingError(
            f"branch {branch_id} was not forked: {why}.",
            next_step="Fork when it is decided, under this name if you like; see `fencepost agents show`.",
            rollback_id="",
        )
    return FencedError(
        f"branch {branch_id} cannot be used: {why}.",
        next_step="Fork from a checkpoint that still stands, under this name if you like.",
        session_id="",
        reason=why,
    )
