"""After a gated rollback: a call that matches none of the crossed effects is held until somebody says what it is.

Going back under GATED rests on op ids that are stable: what is asked for again is absorbed. A call of
the same tool under another op id may be the same intention in other words, or a new one; only
somebody who understands both can tell. So it is held, whether or not the crossed effects have been
matched by then: a match says nothing about what a further call is meant to be.

    - held as long as a crossed effect of its tool stands in the round in which it was crossed
    - declared the same as a crossed effect, it is that effect from then on, and absorbed; under the same name
      but with other identity arguments it is a conflict, as of any operation
    - declared new, it is an operation like any other
    - the first declaration in the log counts, for every process, session, and branch of the agent

A declaration says nothing about effects that are undone: an effect of a later round was not crossed.
What was asked for stands as the digest of its identity arguments in the facts that hold and declare it
(their `state_digest`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import log_keys
from .attempt_facts import text
from .calls import Call
from .engine import Engine
from .errors import AlreadyExistsError, DivergenceHeldError, InvalidArgumentError, OperationConflictError
from .facts import ANY_ROUND, AgentFact, AgentKind, Crossed
from .identity import check_id, check_op_id, digest
from .lineage import Agent
from .operations import Operation, Status
from .positions import Partition
from .sessions import SessionState
from .verdicts import Word

MOST_HELD = 64
"""Held attempts of an agent that are kept in the log at once, as evidence; further ones are held all the same."""
_TOLD = 5
_UNDER_WAY_S = 3.0
"""How long a declaration looks for the word that the attempt is held: it is not waited for where it is left."""
_ARGUMENTS_CHARS = 500


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """A call that waits until it is declared new, or the same as one of the candidates.

    Attributes:
        arguments: canonical JSON of what was asked for, cut at 500 characters.
        candidates: op ids of the crossed effects that it may be a rewording of.
    """

    op_id: str
    tool: str
    branch_id: str
    session_id: str
    arguments: str
    candidates: tuple[str, ...]
    time_ms: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "branch_id": self.branch_id, "session_id": self.session_id,
            "arguments": self.arguments, "candidates": list(self.candidates), "time_ms": self.time_ms,
        }  # fmt: skip


# -- an attempt ------------------------------------------------------------------------


async def known_as(session: SessionState, call: Call) -> Call:
    """The call; or the crossed effect that it was declared to be.

    Raises OperationConflictError if it has other identity arguments than the call that was declared.
    """
    declared = session.declared.get(call.op_id)
    if declared is None or declared.declared_as != "same":
        return call
    if declared.state_digest != call.identity_digest:
        raise await _conflict(session, call, declared.other_op_id)
    return replace(call, op_id=declared.other_op_id)


async def _conflict(session: SessionState, call: Call, other: str) -> OperationConflictError:
    """The error that names what was declared, and what is asked for now."""
    held = (await session.engine.view.agent(session.agent_id)).agent.held.get(call.op_id)
    _, known = session.refused.get(call.op_id, ("", held.evidence if held else ""))
    recorded = f"{call.tool} {known or 'arguments not kept'}"
    given = f"{call.tool} {_shown(call) or 'arguments not kept'}"
    unseen = ": what is secret differs, and is not shown" if call.secrets.texts and recorded == given else ""
    return OperationConflictError(
        f"operation {call.op_id} was declared the same as {other} when it was asked for as {recorded}, and was now "
        f"asked for as {given}{unseen}.",
        next_step=f"Use another key for another effect, or ask for {other} by its own name and arguments.",
        op_id=call.op_id,
        recorded=recorded,
        given=given,
    )


def _shown(call: Call) -> str:
    return text((call.arguments or b"").decode(), _ARGUMENTS_CHARS)


def as_recorded(call: Call, operation: Operation, *, asked: Call) -> Call:
    """The call, with the identity of the effect that it was declared to be, if it was asked for as another."""
    first = operation.first
    if call.op_id == asked.op_id or first is None:
        return call
    return replace(call, identity_digest=first.identity_digest)


async def admitted(session: SessionState, call: Call) -> Call:
    """The call to go on with: itself, or the crossed effect that somebody declared it to be meanwhile.

    Raises DivergenceHeldError: nothing is run until it is declared.
    """
    if call.unconfirmed or call.op_id in session.crossed or call.op_id in session.declared:
        return call
    rivals = [c for c in session.crossed.values() if c.tool == call.tool]
    if not rivals:
        return call
    engine = session.engine
    deadline = engine.clock.monotonic() + engine.limits.apply_s
    view = await engine.patiently(functools.partial(engine.view.agent, session.agent_id), deadline=deadline)
    session.declared = view.agent.declarations
    if call.op_id in session.declared:
        return await known_as(session, call)
    candidates = sorted(await _standing(engine, rivals))
    if not candidates:
        return call
    session.refused[call.op_id] = (call.identity_digest, _shown(call))
    await _note_held(session, call, view.agent)
    listed = ", ".join(candidates[:_TOLD]) + (", …" if len(candidates) > _TOLD else "")
    raise DivergenceHeldError(
        f"{call.op_id} is held: after the gated rollback {call.tool} was called for something that "
        f"matches none of the effects that were gone back over ({listed}). Nothing was run.",
        next_step="Declare it with `declare_new(op_id)` or `declare_same(op_id, as_=…)`, or with "
        "`fencepost rollback declare`.",
        op_id=call.op_id,
        candidates=candidates,
    )


async def _note_held(session: SessionState, call: Call, agent: Agent) -> None:
    """Leave word of it in the log, once, so that an operator elsewhere sees what waits.

    It is waited for, so that what is held is on record once the caller is told; held it is in any case.
    """
    waiting = agent.held.keys() - agent.declarations.keys()
    if call.op_id in agent.held or call.op_id in session.held or len(waiting | session.held) >= MOST_HELD:
        return
    session.held.add(call.op_id)
    fact = session.fact(
        AgentKind.DIVERGENCE_HELD,
        op_id=call.op_id,
        tool=call.tool,
        effect_class=call.effect_class,
        evidence=_shown(call),
        state_digest=call.identity_digest,
        seq=session.sequence.take(),
    )
    key = log_keys.rollback(session.agent_id, f"held-{digest(call.op_id.encode())[:32]}")
    session.in_background(session.publish(key, fact))
    await asyncio.wait(set(session.background), timeout=session.engine.limits.apply_s)  # what goes wrong is for `drain`


async def _standing(engine: Engine, crossed: Iterable[Crossed]) -> set[str]:
    """Those of the crossed effects that were not undone since."""
    by_partition: dict[Partition, list[Crossed]] = {}
    for effect in crossed:
        by_partition.setdefault(engine.view.effects_partition(effect.op_id), []).append(effect)
    found: set[str] = set()
    for partition, effects in by_partition.items():
        rounds = {effect.op_id: effect.round for effect in effects}
        for start in range(0, len(effects), 500):
            views = await engine.view.operations(partition, [e.op_id for e in effects[start : start + 500]])
            found |= {v.operation.op_id for v in views if still_crossed(v.operation, rounds[v.operation.op_id])}
    return found


def still_crossed(operation: Operation, crossed_round: int) -> bool:
    """Whether the round that was crossed is not over. One that was not told is over once nothing stands."""
    if crossed_round == ANY_ROUND:
        return operation.status is not Status.FREE
    return operation.round <= crossed_round


# -- declaring -------------------------------------------------------------------------


async def declare_in_session(session: SessionState, op_id: str, *, same_as: str | None, word: Word) -> None:
    """Declare an attempt that is held in this session; see `declare`. Raises FencedError once it is over."""
    session.require_live()
    await declare(session.engine, session.agent_id, op_id, same_as=same_as, word=word, session=session)


async def declare(
    engine: Engine, agent_id: str, op_id: str, *, same_as: str | None, word: Word, session: SessionState | None = None
) -> AgentFact:
    """Declare a held attempt: new, or the same as a crossed effect. The fact that counts, from here on for good.

    1. look whether it is held: on record, or in this session; 2. publish DIVERGENCE_DECLARED; 3. wait until a
    declaration of this op_id is applied: the first in the log counts, whoever made it.

    Args:
        same_as: a crossed effect; None for a new one.
        session: whose word it is; an operator's if not given.

    Raises:
        InvalidArgumentError: it is not held (nothing is declared in advance), it is crossed itself, it is no longer
            free, or `same_as` does not stand.
        AlreadyExistsError: it was declared as something else before.
        NotFoundError: the ledger has never seen the agent. StaleProjectionError: not confirmed in time.
    """
    check_op_id(op_id)
    wanted = ("new", "") if same_as is None else ("same", check_op_id(same_as, "same_as"))
    agent = (await engine.view.known_agent(agent_id)).agent
    if (known := agent.declarations.get(op_id)) is not None:
        return _require_agreement(session, agent, known, wanted)
    crossed = agent.all_crossed if session is None else session.crossed
    _require_crossed(agent, crossed, op_id)
    await _require_free(engine, op_id)
    agent = await _require_held(engine, agent, op_id, session)
    if (known := agent.declarations.get(op_id)) is not None:  # meanwhile
        return _require_agreement(session, agent, known, wanted)
    if same_as is not None:
        await _require_standing(engine, agent, crossed, op_id, same_as)
    round_number = crossed[wanted[1]].round if wanted[1] else 1  # 0 where no round is told
    said = {
        "op_id": op_id, "declared_as": wanted[0], "other_op_id": wanted[1], "round": round_number,
        "state_digest": _asked_for(agent, op_id, session), **word._asdict(),
    }  # fmt: skip
    offset = await _publish(engine, agent_id, said, session)

    async def applied() -> Agent | None:
        seen = (await engine.view.agent(agent_id)).agent
        return seen if op_id in seen.declarations or _over(seen, session) else None

    agent = await engine.applied(
        engine.view.agents_partition(agent_id),
        applied,
        deadline=engine.clock.monotonic() + engine.limits.apply_s,
        beyond=offset,
        what=f"the declaration of {op_id}",
    )
    if (counts := agent.declarations.get(op_id)) is None:
        if session is not None:
            session.ended = session.ended or agent.sessions[session.session_id].ended
            session.require_live()
        raise AssertionError("a declaration without a session always counts or finds another")
    return _require_agreement(session, agent, counts, wanted)


def _asked_for(agent: Agent, op_id: str, session: SessionState | None) -> str:
    """The digest of the identity arguments of the call that is declared: what this session was refused, or is on record."""
    on_record = agent.held[op_id].state_digest if op_id in agent.held else ""
    return session.refused.get(op_id, (on_record, ""))[0] if session else on_record


def _over(agent: Agent, session: SessionState | None) -> bool:
    """Whether the session's declarations no longer count: it does not speak for its branch any more."""
    known = agent.sessions.get(session.session_id) if session else None
    return known is not None and not known.live


async def _publish(engine: Engine, agent_id: str, said: Mapping[str, Any], session: SessionState | None) -> int | None:
    key = log_keys.rollback(agent_id, f"declared-{engine.new_id()}")
    if session is not None:
        numbered = session.fact(AgentKind.DIVERGENCE_DECLARED, seq=session.sequence.take(), **said)
        return await session.publish(key, numbered)
    time_ms = engine.clock.wall_ms()
    fact = AgentFact(kind=AgentKind.DIVERGENCE_DECLARED, agent_id=agent_id, time_ms=time_ms, **said)
    return await engine.publish_agent(key, fact)


def _require_agreement(
    session: SessionState | None, agent: Agent, counts: AgentFact, wanted: tuple[str, str]
) -> AgentFact:
    """The declaration that counts, known to the session. Raises AlreadyExistsError if it says something else."""
    if session is not None:
        session.declared = agent.declarations
    if (counts.declared_as, counts.other_op_id) == wanted:
        return counts
    how = "new" if counts.declared_as == "new" else f"the same as {counts.other_op_id}"
    by = f" by {counts.by}" if counts.by else ""
    raise AlreadyExistsError(
        f"op_id: {counts.op_id} was declared {how}{by} before; the first declaration counts.",
        next_step="Go on with that one; see `fencepost agents show`.",
        field="op_id",
    )


async def _require_held(engine: Engine, agent: Agent, op_id: str, session: SessionState | None) -> Agent:
    """The agent as it stands once the attempt is known as held, or declared; word of it may be on its way."""

    def held_in(seen: Agent) -> bool:
        here = session is not None and op_id in session.refused
        return here or op_id in seen.held or op_id in seen.declarations

    async def told() -> Agent | None:
        seen = (await engine.view.known_agent(agent.agent_id)).agent
        return seen if held_in(seen) else None

    if held_in(agent):
        return agent
    deadline = engine.clock.monotonic() + min(_UNDER_WAY_S, engine.limits.apply_s)
    found = await engine.wait_until(engine.view.agents_partition(agent.agent_id), told, deadline=deadline)
    found = found or await told()  # nothing is refused on a projection that may not be believed
    if found is None:
        raise InvalidArgumentError(
            f"op_id: {op_id} is not held: no call of {agent.agent_id} was refused under this name.",
            next_step="List what is held with `fencepost rollback held`. Of an agent with more held calls than are "
            "listed, declare those first, and let it ask for this one again.",
            field="op_id",
        )
    return found


def _require_crossed(agent: Agent, crossed: Mapping[str, Crossed], op_id: str) -> None:
    if not crossed:
        raise InvalidArgumentError(
            f"op_id: nothing of {agent.agent_id} is held: no gated rollback has gone back over an effect.",
            next_step="Declare only what a DivergenceHeldError, or `fencepost rollback held`, names.",
            field="op_id",
        )
    if op_id in crossed:
        raise InvalidArgumentError(
            f"op_id: {op_id} is itself an effect that the rollback went back over; it is absorbed by its own name.",
            next_step="Declare only what a DivergenceHeldError names.",
            field="op_id",
        )


async def _require_standing(
    engine: Engine, agent: Agent, crossed: Mapping[str, Crossed], op_id: str, same_as: str
) -> None:
    held = agent.held.get(op_id)
    choices = sorted(c.op_id for c in crossed.values() if held is None or c.tool == held.tool)
    chosen = crossed.get(same_as)
    if chosen is None or same_as not in choices:
        why = "is none of the effects that the rollback went back over" if chosen is None else "is of another tool"
        more = f", and {len(choices) - 20} more" if len(choices) > 20 else ""  # noqa: PLR2004 (as many as a line takes)
        raise InvalidArgumentError(
            f"same_as: {same_as} {why}.", next_step="Choose one of: " + ", ".join(choices[:20]) + more, field="same_as"
        )
    if not await _standing(engine, [chosen]):
        raise InvalidArgumentError(
            f"same_as: {same_as} was undone since: there is nothing left by which {op_id} could be absorbed.",
            next_step="Declare it new, if it is still wanted.",
            field="same_as",
        )


async def _require_free(engine: Engine, op_id: str) -> None:
    status = (await engine.view.operation(op_id)).operation.status
    if status is not Status.FREE:
        raise InvalidArgumentError(
            f"op_id: {op_id} is {status.value}, so it is not held.",
            next_step="Look at it with `fencepost ops show`.",
            field="op_id",
        )


# -- what waits ------------------------------------------------------------------------


async def held(engine: Engine, agent_id: str) -> list[HeldAttempt]:
    """The held attempts of an agent that nobody has declared yet, oldest first."""
    agent = (await engine.view.known_agent(agent_id)).agent
    found = []
    for fact in agent.held.values():
        if fact.op_id in agent.declarations:
            continue
        rivals = [c for c in agent.crossed(fact.branch_id).values() if c.tool == fact.tool]
        candidates = tuple(sorted(await _standing(engine, rivals)))
        if candidates:
            found.append(
                HeldAttempt(
                    fact.op_id, fact.tool, fact.branch_id, fact.session_id, fact.evidence, candidates, fact.time_ms
                )
            )
    return found


def operators_word(by: str, evidence: str) -> Word:
    """Who decides, and how they know. Raises InvalidArgumentError for one that is missing."""
    return Word(check_id("by", by, limit=200), check_id("evidence", evidence, limit=2_000))
