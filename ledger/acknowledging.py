"""An operator's word on a reported call: what nothing in the ledger can take back is taken note of by name.

A reported call carries no op id, so it can neither be adopted nor undone: on a pruned branch it stays an
obligation, and in the guard's way it stays a reason. Whoever knows what became of it acknowledges it. The
word stands under the call's own key, behind the report, and names no place in a session: it is a
CALL_REPORTED that is declared as acknowledged. A resume is not eased by it: whoever goes on still learns
of the call.
"""

from __future__ import annotations

from . import log_keys
from .engine import Engine
from .errors import NotFoundError
from .facts import AgentFact, AgentKind
from .verdicts import Word
from .view import ACKNOWLEDGED


async def acknowledge(engine: Engine, agent_id: str, session_id: str, seq: int, *, word: Word) -> AgentFact:
    """Acknowledge a reported call; the word that counts: the first one.

    1. look for the report and for a word on it; 2. publish the word; 3. wait until it is applied.

    Raises:
        NotFoundError: no such agent, or no such call.
        StaleProjectionError: not confirmed in time; doing it again is safe.
    """
    await engine.view.known_agent(agent_id)
    call, said = await _found(engine, agent_id, session_id, seq)
    if call is None:
        raise NotFoundError(
            f"no call was reported by session {session_id} of {agent_id} under number {seq}.",
            next_step="List the reported calls with `fencepost agents show`.",
            field="seq",
        )
    if said is not None:
        return said
    fact = AgentFact(
        kind=AgentKind.CALL_REPORTED,
        agent_id=agent_id,
        branch_id=call.branch_id,
        tool=call.tool,
        effect_class=call.effect_class,
        declared_as=ACKNOWLEDGED,
        by=word.by,
        evidence=word.evidence,
        time_ms=engine.clock.wall_ms(),
    )
    key = log_keys.call(agent_id, session_id, seq)
    offset = await engine.publish_agent(key, fact, await engine.view.agent_history(agent_id, key))

    async def applied() -> AgentFact | None:
        return (await _found(engine, agent_id, session_id, seq))[1]

    deadline = engine.clock.monotonic() + engine.limits.apply_s
    partition = engine.view.agents_partition(agent_id)
    what = f"the acknowledgement of call {seq} of session {session_id}"
    return await engine.applied(partition, applied, deadline=deadline, beyond=offset, what=what)


async def _found(engine: Engine, agent_id: str, session_id: str, seq: int) -> tuple[AgentFact | None, AgentFact | None]:
    """(the report, the first word on it)."""
    reported = await engine.view.reported(agent_id)
    return next((one for one in reported if (one.call.session_id, one.call.seq) == (session_id, seq)), (None, None))
