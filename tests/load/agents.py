"""One process of the load: several agents, each attempting its share of the operations.

    python agents.py URL OUT PROCESS PROCESSES AGENTS OPERATIONS SIBLINGS

Every operation is attempted by SIBLINGS agents of different processes. An execution appends
`op agent` to OUT/world.PROCESS; at the end OUT/wrote.PROCESS.json says what each agent wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fencepost.ledger import AsyncLedger, EffectClass, Limits, StoreError

T = TypeVar("T")


def share(agent: int, agents: int, operations: int, siblings: int) -> Iterator[int]:
    """The operations that an agent attempts: each has `siblings` agents, spread over the processes."""
    stride = agents // siblings
    for operation in range(operations):
        if any((operation + k * stride) % agents == agent for k in range(siblings)):
            yield operation


async def run_agent(ledger: AsyncLedger, world: int, agent: int, mine: list[int]) -> dict[str, object]:
    """Attempt every operation of the share in order; what this agent wrote and saw."""
    ran = absorbed = retried = 0
    session = await _patiently(lambda: ledger.session(f"agent-{agent}", scope="load").open())
    for operation in mine:
        while True:
            attempt = session.attempt("pay", key=f"order-{operation}", kind=EffectClass.IRREVERSIBLE, wait_s=120.0)
            try:
                async with attempt:
                    if attempt.owned:
                        os.write(world, f"{operation} {agent}\n".encode())
                        await attempt.commit({"paid": operation})
                        ran += 1
                    else:
                        absorbed += 1
                    assert attempt.result == {"paid": operation}
                break
            except StoreError as error:  # nothing was run: the projection is being rebuilt, for instance
                if not error.retryable:
                    raise
                retried += 1
                await asyncio.sleep(0.2)
    await session.close()
    return {"agent": agent, "ran": ran, "absorbed": absorbed, "retried": retried, "seq": session.seq}


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await work()
        except StoreError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.2)


async def main() -> None:
    """Run this process's agents at once."""
    url, out = sys.argv[1], Path(sys.argv[2])
    process, processes, agents, operations, siblings = map(int, sys.argv[3:])
    world = os.open(out / f"world.{process}", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    started = time.monotonic()
    limits = Limits(apply_s=120.0, deadline_s=120.0)
    async with AsyncLedger.open(url, limits=limits) as ledger:
        mine = range(process, agents, processes)
        wrote = await asyncio.gather(
            *(run_agent(ledger, world, a, list(share(a, agents, operations, siblings))) for a in mine)
        )
    took = time.monotonic() - started
    (out / f"wrote.{process}.json").write_text(json.dumps({"took_s": took, "agents": wrote}))


if __name__ == "__main__":
    asyncio.run(main())
