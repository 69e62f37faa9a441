"""Rows of the guard and of replay, the same on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from . import bench_filled as filled
from .bench_machine import Meter
from .bench_rows import Measure, Round, Row, Settings
from .facade import Ledger
from .facts import EffectClass
from .session_faces import AgentSession
from .stores import open_store

_PREVIEWS, _DECISIONS = 500, 30
_KNOWN = 10
"""Effects of the agent before its checkpoint."""
_BEYOND = 5
"""Order-safe effects beyond it, so that the verdict is to proceed."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A ledger for a row, and what watches its parts."""

    ledger: Ledger
    meter: Callable[[], Meter]


Opening = Callable[[Settings], AbstractContextManager[Opened]]


def _prepared(session: AgentSession, checkpoint: str) -> None:
    """A session with a checkpoint in the middle of its effects."""
    pay = session.effect("bench.pay", kind=EffectClass.IRREVERSIBLE)(_act)
    put = session.effect("bench.set", kind=EffectClass.IDEMPOTENT, order_safe=True)(_act)
    for number in range(_KNOWN):
        pay(checkpoint, number)
    session.checkpoint(checkpoint)
    for number in range(_BEYOND):
        put(checkpoint, number)
    session.checkpoint(f"{checkpoint}-end")


def _act(checkpoint: str, number: int) -> dict[str, int]:
    del checkpoint
    return {"paid": number}


def preview(name: str, store: str, opening: Opening, *, moving: bool = False) -> Row:
    """What a dry run of the guard costs.

    Args:
        moving: whether another agent does an effect before each, so that nothing that is remembered holds. It is not
            in the latencies and the rate; in the processor times it is.
    """

    def size(settings: Settings) -> Mapping[str, int]:
        return {"previews": settings.scaled(_PREVIEWS), "effects": _KNOWN + _BEYOND}

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with opening(settings) as opened, opened.ledger.session("previewed") as session:
            _prepared(session, "mark")
            other = opened.ledger.session("mover").open() if moving else None
            pay = other.effect("bench.pay", kind=EffectClass.IRREVERSIBLE)(_act) if other else None

            def one_round(number: int) -> Round:
                def move(place: int) -> None:
                    if pay is not None:
                        pay(f"round {number}", place)

                def ask(_: int) -> None:
                    opened.ledger.preview_rollback("previewed", checkpoint="mark")

                return _timed(opened, size(settings)["previews"] if number >= 0 else 1, ask, before=move)

            yield one_round
            if other is not None:
                other.close()

    return Row(name, store, "guard: dry run" + (", something has moved" if moving else ""), size, prepare)


def decision(name: str, store: str, opening: Opening) -> Row:
    """What a decision of the guard costs, fences in all partitions included."""

    def size(settings: Settings) -> Mapping[str, int]:
        return {"decisions": settings.scaled(_DECISIONS), "effects": _KNOWN + _BEYOND}

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        with opening(settings) as opened:

            def one_round(number: int) -> Round:
                times = size(settings)["decisions"] if number >= 0 else 1
                agents = [f"decided{number}-{place}" for place in range(times)]
                for agent in agents:
                    _prepared(opened.ledger.session(agent).open(), f"mark-{agent}")

                def decide(place: int) -> None:
                    agent = agents[place]
                    verdict = opened.ledger.authorize_rollback(agent, checkpoint=f"mark-{agent}")
                    verdict.raise_for_refusal()

                return _timed(opened, times, decide)

            yield one_round

    return Row(name, store, "guard: decision to proceed", size, prepare)


def _timed(
    opened: Opened, times: int, work: Callable[[int], object], *, before: Callable[[int], object] = lambda _: None
) -> Round:
    watch, latencies = opened.meter(), []
    for place in range(times):
        before(place)
        since = time.perf_counter_ns()
        work(place)
        latencies.append(time.perf_counter_ns() - since)
    return Round(times, sum(latencies) / 1e9, latencies, watch.spent())


def replay(name: str, store: str, opening: Opening, operations: int) -> Row:
    """What it costs to tell a restored agent what it has done."""

    def size(settings: Settings) -> Mapping[str, int]:
        return {"operations": settings.scaled(operations)}

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        known = size(settings)["operations"]
        with opening(settings) as opened, opened.ledger.session("replayed") as session:
            session.checkpoint("start")
            author = filled.Author("replayed", session.session_id, session.epoch)
            asyncio.run(_fill(opened.ledger.url, author, known, session.seq + 1))
            _until_applied(opened.ledger, known)

            def one_round(number: int) -> Round:
                if number < 0:
                    return Round(1, 1.0, (), opened.meter().spent())
                watch, began = opened.meter(), time.perf_counter()
                found = opened.ledger.replay_forward("replayed", since="start")
                return Round(len(found), time.perf_counter() - began, (), watch.spent())

            yield one_round

    return Row(name, store, "operations replayed forward to an agent", size, prepare)


async def _fill(url: str, author: filled.Author, operations: int, first_seq: int) -> None:
    store = open_store(url)
    try:
        await filled.fill(store.log, author, operations, first_seq=first_seq)
    finally:
        await store.close()


def _until_applied(ledger: Ledger, operations: int, *, within_s: float = 600.0) -> None:
    deadline = time.monotonic() + within_s
    while len(ledger.replay_forward("replayed", since="start")) < operations and time.monotonic() < deadline:
        time.sleep(0.2)
