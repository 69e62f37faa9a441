"""Redis alone, as many guard their effects today: SET NX claims, HSET records. AOF everysec: a second may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench import frame

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings


def alone(settings: Settings, agents: int) -> Iterator[Measure]:
    import redis  # noqa: PLC0415 - only where it is measured

    with redis.Redis.from_url(frame.redis_url(settings)) as client:

        def effect(key: str) -> None:
            assert client.set(f"alone:{key}", "owned", nx=True, px=600_000)
            client.hset(f"alone:{key}:result", mapping={"state": "committed", "result": '{"paid":1}'})

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            done = frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings))
            for key in client.scan_iter(match="alone:*", count=1000):
                client.delete(key)
            return done

        yield one_round


def rows() -> list[Row]:
    return [
        frame.effects_row("baseline.redis", "Redis alone, SET NX and HSET", agents, partial(alone, agents=agents))
        for agents in frame.AGENTS
    ]


if __name__ == "__main__":
    frame.main(rows(), problem=frame.need("redis"), needs_services=True)
