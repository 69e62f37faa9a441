"""What a ledger's log holds, as bytes: for tests of what must not be in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.stores import open_store

if TYPE_CHECKING:
    from conformance.worlds import World


def everything_written(world: World) -> bytes:
    """Every byte of the log that a record holds: keys, histories, and facts."""

    async def read() -> bytes:
        store = open_store(world.url)
        reader = store.reader()
        found = b""
        try:
            for topic in Topic:
                for number in range(store.log.partitions(topic)):
                    for entry in reader.entries(Partition(topic, number)):
                        record = entry.record
                        facts = [data for _, data in record.history] if record else []
                        found += b"".join([(entry.key or "").encode(), *facts, (record and record.fact) or b""])
        finally:
            reader.close()
            await store.close()
        return found

    return asyncio.run(read())
