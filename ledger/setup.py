"""Creating a ledger: topics or tables, and the fact that gives it its id."""

from __future__ import annotations

import asyncio
import uuid

from . import log_keys
from .errors import StoreUnavailableError
from .facts import AgentFact, AgentKind, decode_agent, encode_agent
from .history import Record
from .ports import Store
from .positions import Partition, Topic

_TRIES = 40

HOME = Partition(Topic.AGENTS, 0)
"""Where the fact stands that creates a ledger."""


async def initialise(store: Store, *, partitions: int | None = None, development: bool = False) -> str:
    """Create what is missing and return the ledger's id. Safe to call again, and from several processes.

    Raises StoreError; nothing that exists is changed.
    """
    generation = await _generation(store)
    await store.initialise(partitions=partitions, development=development, generation=generation)
    if known := await _patiently(store):
        return known
    await store.log.publish(HOME, Record(log_keys.LEDGER, (), await creation(store, uuid.uuid4().hex[:20]), "init"))
    return await _patiently(store)


async def creation(store: Store, ledger_id: str) -> bytes:
    """The fact that gives a ledger its id and notes which topics it lives in."""
    terms = await store.terms()
    return encode_agent(AgentFact(kind=AgentKind.LEDGER_CREATED, ledger_id=ledger_id, evidence=terms.identity))


async def _patiently(store: Store) -> str:
    """As `recorded_id`; brokers need a moment until a new topic has its leaders."""
    for tried in range(1, _TRIES + 1):
        try:
            return await asyncio.to_thread(recorded_id, store)
        except StoreUnavailableError:
            if tried == _TRIES:
                raise
            await asyncio.sleep(0.25)
    return ""


async def _generation(store: Store) -> int:
    """0 for a file, which may not exist yet; else what the URL says."""
    return 0 if store.url.startswith("sqlite:") else await store.generation()


def recorded_id(store: Store) -> str:
    """The ledger's id from its log, "" when there is none yet. The earliest fact counts."""
    reader = store.reader()
    try:
        for entry in reader.entries(HOME):
            if entry.key != log_keys.LEDGER or entry.record is None:
                continue
            facts = [fact for _, fact in entry.record.history]
            if entry.record.fact is not None:
                facts.append(entry.record.fact)
            if facts:
                return decode_agent(facts[0]).ledger_id
    finally:
        reader.close()
    return ""
