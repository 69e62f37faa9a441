"""Opening a session: it speaks for its branch from now on, and its predecessor is fenced.

1. read the agent; choose the point that the session resumes from
2. publish SESSION_OPENED and wait until it is applied; its position is the epoch
3. look again at what stood before it: what was read in step 1 may be older than the log. Where the point
   should have been another one, open anew from that one (the session of step 2 has done nothing)
4. fence the predecessor in every partition of the effects log and wait for it
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Container
from dataclasses import replace

from . import log_keys
from .contexts import Checkpoint
from .engine import Engine, here
from .errors import FencedError, RefusedError, RollbackPendingError, StoreUnavailableError
from .facts import AgentFact, AgentKind
from .lineage import ROOT, Branch, Session
from .rollbacks import pending_error, withdraw_if_stale
from .sessions import SessionState
from .verdicts import Reason, ReasonKind
from .view import AgentView
from .watermarks import Point, Watermark


async def open_session(
    engine: Engine,
    agent_id: str,
    branch_id: str,
    *,
    resumed_from: Watermark | None = None,
    scope: str = "",
) -> SessionState:
    """Open a session that speaks for a branch from now on.

    Args:
        resumed_from: the watermark in the state that the agent was restored from. Without it:
            the end of the predecessor if that was closed, else its last checkpoint, since the
            memory of a process that died is gone.
        scope: the unit of work for derived op ids.

    Raises:
        RefusedError: the watermark is of another ledger or agent, or ahead of the ledger.
        RollbackPendingError: a rollback of the branch is being decided; try again.
        FencedError: the branch is closed.
        StaleProjectionError: the projection does not catch up in time; try again.
    """
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    opened: Session | str = ""
    pending, now_ms = None, 0
    mine: set[str] = set()
    chosen: Point | None = None
    for _ in range(10):
        view = await engine.patiently(functools.partial(engine.view.agent, agent_id), deadline=deadline)
        pending, now_ms = view.agent.pending, view.header.now_ms
        await withdraw_if_stale(engine, view)
        if pending is not None and branch_id in pending.branches:  # it would be rejected: nothing is written for that
            opened = f"rollback {pending.rollback_id} of its branch is being decided"
        else:
            opened = await _try_open(
                engine, view, branch_id, resumed_from=resumed_from, chosen=chosen, deadline=deadline
            )
        if isinstance(opened, Session):
            view = await engine.patiently(functools.partial(engine.view.agent, agent_id), deadline=deadline)
            point = opened.parent if resumed_from is not None else point_before(view, opened, mine)
            if point == opened.parent:
                return await _take_over(engine, view, opened, deadline=deadline, scope=scope)
            mine.add(opened.session_id)
            chosen = point
            continue
        chosen = None
        if not ("another segment" in opened or "being decided" in opened):
            raise FencedError(
                f"no session can be opened on {agent_id}/{branch_id}: {opened}.",
                next_step="Open one on another branch, or see `fencepost agents show`.",
                session_id="",
                reason=opened,
            )
        await asyncio.sleep(0.2)
    if pending is not None:
        raise pending_error(f"no session can be opened on {agent_id}/{branch_id} now", pending, now_ms)
    raise RollbackPendingError(
        f"no session can be opened on {agent_id}/{branch_id} now: {opened}.",
        next_step="Wait for the decision; see `fencepost agents show`.",
        rollback_id="",
    )


async def _try_open(
    engine: Engine,
    view: AgentView,
    branch_id: str,
    *,
    resumed_from: Watermark | None,
    chosen: Point | None,
    deadline: float,
) -> Session | str:
    agent_id = view.agent.agent_id
    branch = view.agent.branches.get(branch_id)
    if resumed_from is not None:
        await check_watermark(engine, view, resumed_from)
        point = resumed_from.point
    else:
        point = chosen if chosen is not None else resume_point(branch, view.checkpoints)
    session_id = engine.new_id()
    host, pid = here()
    fact = AgentFact(
        kind=AgentKind.SESSION_OPENED,
        agent_id=agent_id,
        branch_id=branch_id,
        session_id=session_id,
        segment=branch.segment if branch else "",
        watermark="" if point == ROOT else Watermark(engine.ledger_id, agent_id, branch_id, *point).token,
        host=host,
        pid=pid,
        time_ms=engine.clock.wall_ms(),
    )
    offset = await engine.publish_agent(log_keys.session(agent_id, session_id), fact)
    partition = engine.view.agents_partition(agent_id)

    async def applied() -> Session | None:
        return (await engine.view.agent(agent_id)).agent.sessions.get(session_id)

    session = await engine.applied(
        partition, applied, deadline=deadline, beyond=offset, what=f"the opening of a session on {agent_id}/{branch_id}"
    )
    return session.rejected or session


async def _take_over(engine: Engine, view: AgentView, session: Session, *, deadline: float, scope: str) -> SessionState:
    agent_id = view.agent.agent_id
    branch = view.agent.branches[session.branch_id]
    if branch.sessions[0].session_id != session.session_id:
        await engine.fence(
            agent_id, [session.branch_id], session.epoch, deadline=deadline, reason="a new session opened"
        )
    state = SessionState(
        engine, agent_id, session.branch_id, session.session_id, session.epoch, session.parent,
        session.segment, scope,
    )  # fmt: skip
    state.crossed = view.agent.crossed(session.branch_id)
    state.declared = view.agent.declarations
    state.generation = view.context.generation_at(session.parent)
    with contextlib.suppress(StoreUnavailableError):  # advisory, but it is heard of from the beginning
        await engine.store.projection.beat([session.session_id])
    engine.begin_beating(session.session_id)
    return state


def resume_point(branch: Branch | None, checkpoints: dict[str, Checkpoint]) -> Point:
    """What a session knows that does not say what it was restored from."""
    if branch is None:
        return ROOT
    head = branch.head
    if head is None or head.segment != branch.segment:
        return branch.origin
    if head.sealed_seq is not None:
        return Point(head.epoch, head.sealed_seq)
    marks = [c.mark.point for c in checkpoints.values() if c.mark and c.mark.epoch == head.epoch]
    return max(marks, default=head.parent)


def point_before(view: AgentView, session: Session, mine: Container[str] = ()) -> Point:
    """What a session that does not say what it was restored from knows, by what stands before it in the log.

    Args:
        mine: sessions that the same caller opened before, and did nothing in.
    """
    branch = view.agent.branches[session.branch_id]
    before = [s for s in branch.sessions if s.epoch < session.epoch and s.session_id not in mine]
    marks = {id_: c for id_, c in view.checkpoints.items() if c.position < session.epoch}
    return resume_point(replace(branch, segment=session.segment, sessions=before), marks)


async def check_watermark(engine: Engine, view: AgentView, mark: Watermark) -> None:
    """Raises RefusedError unless the watermark is of this ledger and agent and not ahead of it."""
    session = view.agent.by_epoch(mark.epoch)
    reason = None
    if mark.ledger_id != engine.ledger_id or mark.agent_id != view.agent.agent_id:
        reason = Reason(
            ReasonKind.WATERMARK_OF_ANOTHER_LEDGER,
            f"the watermark belongs to ledger {mark.ledger_id}, agent {mark.agent_id}; "
            f"this is ledger {engine.ledger_id}, agent {view.agent.agent_id}",
        )
    elif session is None or mark.seq > await engine.view.written(session, view.checkpoint_facts):
        reason = Reason(
            ReasonKind.WATERMARK_AHEAD,
            f"the watermark stands at {mark.epoch}/{mark.seq}, which this ledger does not know",
        )
    if reason is not None:
        raise RefusedError(
            f"watermark: {reason.text}.",
            next_step="Use the ledger that the watermark names, or let an operator reconcile.",
            field="watermark",
            reason=reason,
        )
