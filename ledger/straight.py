"""An outcome published straight from the thread or loop where its effect ran, where the log can be written to from there.

Two changes of threads, and a task of the engine's, are saved by that. It is one try: after any error the very same fact
is published by the long way, within the time that is left.
"""

from __future__ import annotations

import asyncio

from .attempts import Claim
from .engine import Engine, Tried
from .errors import FencepostError
from .facts import EffectFact, encode_effect
from .history import Record
from .ports import StraightLog
from .positions import Partition


def settled_here(claim: Claim, fact: EffectFact) -> bool:
    """Whether an outcome is in the log, by this way; waits in this thread. If not, the long one has to publish it."""
    log = _log(claim)
    if log is None:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        publish_here(claim.session.engine, log, *_record(claim, fact))
    except FencepostError as error:
        tried.missed(error)
        return False
    return True


async def settled(claim: Claim, fact: EffectFact) -> bool:
    """The same, awaited."""
    log = _log(claim)
    if log is None:
        return False
    tried = claim.tried = Tried(claim.session.engine.publish_by())
    try:
        await publish(claim.session.engine, log, *_record(claim, fact))
    except TimeoutError:
        return False
    except FencepostError as error:
        tried.missed(error)
        return False
    return True


def publish_here(engine: Engine, log: StraightLog, partition: Partition, record: Record) -> int | None:
    """Append a record; waits in this thread, `publish_s` at most."""
    return log.publish_here(partition, record, timeout_s=engine.limits.publish_s)


async def publish(engine: Engine, log: StraightLog, partition: Partition, record: Record) -> int | None:
    """The same, awaited. Raises TimeoutError."""
    async with asyncio.timeout(engine.limits.publish_s):
        return await log.publish(partition, record)


def _log(claim: Claim) -> StraightLog | None:
    """None for a call that is not confirmed: its outcome is not waited for."""
    return None if claim.call.unconfirmed else claim.session.engine.store.straight


def _record(claim: Claim, fact: EffectFact) -> tuple[Partition, Record]:
    partition = claim.session.engine.view.effects_partition(fact.op_id)
    return partition, Record(fact.op_id, claim.history, encode_effect(fact), fact.session_id)
