"""Compactions of a session's context: the generation stamp and the drop manifest, in the agents log.

`record` goes in turn with the session's checkpoints, so that each of them belongs to one generation:
    1. drain what the session has published
    2. the summary must hold the token of where the agent stands; find which operations it names
    3. publish COMPACTED: the generation, that token, what was dropped, what is named, what is open
    4. wait until it is applied, and counts (`contexts.py`); only then the session has moved on
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from dataclasses import replace

from . import log_keys
from .compaction_rules import DroppedItem, drop_manifest, require_room, require_token, text_digest
from .contexts import Checkpoint, Compaction, Context
from .engine import Engine
from .errors import GenerationConflictError, InvalidArgumentError, no_such_branch
from .facts import AgentFact, AgentKind
from .operations import UNDO, compensation_op_id
from .sessions import SessionState, require_generation
from .summaries import named
from .watermarks import Point, Watermark


async def record(
    state: SessionState, *, generation: int | None, dropped: Iterable[DroppedItem], summary: str
) -> Compaction:
    """Record that the session's context was compacted, and what the new summary dropped. See the module.

    Args:
        generation: of the new context; the session's present one and 1 if not given.

    Raises:
        InvalidArgumentError, RecordTooLargeError: `field` says which argument; nothing was written.
        CompactionRefusedError: the summary does not hold the token that it must hold.
        GenerationConflictError: the branch's context is not older than that generation.
        FencedError: the session is over.
        StaleProjectionError: not applied in time; recording the same again is safe.
    """
    state.require_live()
    manifest = drop_manifest(dropped)
    digest = text_digest(require_text("summary", summary), "summary")
    generation = state.generation + 1 if generation is None else generation
    require_generation(generation)
    engine, owned = state.engine, state.open_operations()
    async with state.turn:
        await state.drain()
        here = Point(state.epoch, state.sequence.last)
        deadline = engine.clock.monotonic() + engine.limits.apply_s
        view = await engine.patiently(functools.partial(engine.view.agent, state.agent_id), deadline=deadline)
        mark = await asyncio.to_thread(require_token, view.context, here, summary, engine.ledger_id)
        kept = tuple(sorted(await asyncio.to_thread(named, summary, await _known_op_ids(state, summary))))
        require_room(manifest, kept)
        fact = state.fact(
            AgentKind.COMPACTED,
            generation=generation,
            watermark=mark.token,
            dropped=manifest,
            kept=kept,
            owned=owned,
            summary_digest=digest,
        )
        compaction = _recorded(view.context, fact) or await _publish(state, fact, view.context, deadline)
        state.generation = max(state.generation, compaction.generation)
        if mark.epoch == state.epoch:
            state.marked = max(state.marked, mark.seq)
        return compaction


async def _publish(state: SessionState, unnumbered: AgentFact, context: Context, deadline: float) -> Compaction:
    """Steps 3 and 4."""
    engine, generation = state.engine, unnumbered.generation
    current = context.generation_at(Point(state.epoch, state.sequence.last))
    if generation <= current:
        raise _conflict(f"generation {generation} is not newer than {current}", generation, current)
    fact = replace(unnumbered, seq=state.sequence.take())
    key = log_keys.compaction(state.agent_id, state.branch_id, state.session_id, generation)
    offset = await state.publish(key, fact)

    async def applied() -> Compaction | None:
        found = (await engine.view.agent(state.agent_id)).context
        mine = [c for c in found.refused if (c.fact.session_id, c.fact.seq) == (state.session_id, fact.seq)]
        return _recorded(found, fact) or next(iter(mine), None)

    compaction = await engine.applied(
        engine.view.agents_partition(state.agent_id),
        applied,
        deadline=deadline,
        beyond=offset,
        what=f"the compaction to generation {generation}",
    )
    if compaction.conflicts:
        raise _conflict(compaction.rejected, generation, compaction.current_generation)
    if compaction.rejected:
        state.ended = compaction.rejected
        state.require_live()
    return compaction


def _recorded(context: Context, fact: AgentFact) -> Compaction | None:
    """The compaction that says what this fact says, if one counts: recorded twice, it is one."""
    for compaction in context.compactions:
        if compaction.fact.session_id == fact.session_id and _says(compaction.fact) == _says(fact):
            return compaction
    return None


def _says(fact: AgentFact) -> tuple[object, ...]:
    return (fact.generation, fact.summary_digest, fact.dropped)


def _conflict(why: str, given: int, current: int) -> GenerationConflictError:
    return GenerationConflictError(
        f"the compaction to generation {given} does not count: {why}.",
        next_step="Compact the context as it is now, and give it a generation that is newer than its own.",
        given=given,
        current=current,
    )


async def _known_op_ids(state: SessionState, summary: str) -> set[str]:
    """The operations that this agent has had to do with, and the undoing of those that were undone."""
    view = state.engine.view
    mine, absorbed = await asyncio.gather(view.agent_op_ids(state.agent_id), view.absorbed(state.agent_id))
    known = mine | {op_id for op_id, _ in (*absorbed, *state.absorbed)}
    if UNDO not in summary:  # only then it is worth to look which were undone
        return known
    undone = {
        compensation_op_id(seen.operation.op_id, number)
        for seen in await view.agent_operations(state.agent_id)
        for number in range(1, 1 + len(seen.operation.compensations))
    }
    return known | undone


async def watermark(state: SessionState, known: int) -> Watermark:
    """The watermark of now: all that this session has written so far is known to it. Its token is for a summary.

    It stands before what was done by a call that has not returned, unless a checkpoint stands there already, which
    names that as open.

    Args:
        known: the session's `known_seq` when it was called for, in the caller's thread.

    Raises FencedError if the session is over, and what its background publishing raised.
    """
    state.require_live()
    async with state.turn:
        await state.drain()
        return state.mark(max(known, state.marked))


async def latest_checkpoint(engine: Engine, agent_id: str, branch_id: str) -> Checkpoint | None:
    """The newest checkpoint on a branch's path that no rollback has left behind; None if there is none.

    Raises NotFoundError for an agent or a branch that the ledger has never seen.
    """
    view = await engine.view.known_agent(agent_id)
    if branch_id not in view.agent.branches:
        raise no_such_branch(agent_id, branch_id)
    return view.context.latest(branch_id)


async def compactions(engine: Engine, agent_id: str) -> list[Compaction]:
    """The compactions of an agent's context that count, oldest first. Raises NotFoundError."""
    return list((await engine.view.known_agent(agent_id)).compactions)


def require_text(field: str, value: object) -> str:
    """`value` if it is text. Raises InvalidArgumentError naming `field`."""
    if isinstance(value, str):
        return value
    raise InvalidArgumentError(
        f"{field}: must be text, not {type(value).__name__}.", next_step=f"Pass a str as {field}.", field=field
    )
