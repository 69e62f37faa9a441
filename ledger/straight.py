"""An outcome published straight from the thread or loop where its effect ran, where the log can be written to from there.

Two changes of threads, and a task of the engine's, are saved by that. It is one try: after any error the very same fact
is published by the long way, within the time that is left.
"""

from __future__ import annotations

import asyncio

from .attempts import Claim
from .engine import Tried
from .errors import FencepostError, OutcomeUnknownError
from .facts import EffectFact, encode_effect
from .history import Record
from .ports import StraightLog
from .positions import Partition


def settled_here(claim: Claim, fact: EffectFact) -> bool:
    """Whether an outcome is in the log, by this way; waits in this thread. If not, the long one has to publish it."""
    log = claim.session.engine.store.straight
    if log is None or claim.call.unconfirmed:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        log.publish_here(*_record(claim, fact), timeout_s=claim.session.engine.limits.publish_s)
    except FencepostError as error:
        return _missed(tried, error)
    return True


async def settled(claim: Claim, fact: EffectFact) -> bool:
    """The same, awaited."""
    log: StraightLog | None = claim.session.engine.store.straight
    if log is None or claim.call.unconfirmed:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        async with asyncio.timeout(claim.session.engine.limits.publish_s):
            await log.publish(*_record(claim, fact))
    except TimeoutError:
        return False
    except FencepostError as error:
        return _missed(tried, error)
    return True


def _missed(tried: Tried, error: FencepostError) -> bool:
    tried.perhaps_written = isinstance(error, OutcomeUnknownError)
    return False


def _record(claim: Claim, fact: EffectFact) -> tuple[Partition, Record]:
    partition = claim.session.engine.view.effects_partition(fact.op_id)
    return partition, Record(fact.op_id, claim.history, encode_effect(fact), fact.session_id)
