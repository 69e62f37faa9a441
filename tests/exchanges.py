"""Counting how often somebody waits for a server: scripts in Redis, and records in Kafka, one after the other."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from fencepost.consumer.redis_line import Line
from fencepost.producer.store import KafkaLog

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Waits:
    """Every call of a method: when it began, and when its answer was there.

    Args:
        owner: the class of the method.
        counts: whether a call with these arguments is one.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, counts: Callable[..., bool] = lambda *_: True
    ) -> None:
        self.spans: list[tuple[float, float]] = []
        method = getattr(owner, name)

        @functools.wraps(method)
        async def counted(one: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            done = await method(one, *args, **kwargs)
            if counts(*args):
                self.spans.append((began, time.monotonic()))
            return done

        monkeypatch.setattr(owner, name, counted)

    def chain(self) -> int:
        """The longest chain of calls of which each began only once the one before had its answer."""
        longest: list[tuple[float, int]] = []
        for began, ended in sorted(self.spans):
            before = max((count for end, count in longest if end <= began), default=0)
            longest.append((ended, before + 1))
        return max((count for _, count in longest), default=0)

    def least(self, work: Callable[[], object]) -> int:
        """The shortest chain of three runs: what a session does beside it now and then is no part of it."""
        found = []
        for _ in range(3):
            self.spans.clear()
            work()
            found.append(self.chain())
        return min(found)


def reads(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Scripts that are run in Redis by whoever reads there, in this process."""
    return Waits(monkeypatch, Line, "ask", lambda *words: words[0] in {"EVAL", "EVALSHA"})


def produces(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Records of this process, each from its handing over to its acknowledgement."""
    waits, publish_here = Waits(monkeypatch, KafkaLog, "publish"), KafkaLog.publish_here

    def counted(log: KafkaLog, *args: Any, **kwargs: Any) -> int | None:
        began = time.monotonic()
        offset = publish_here(log, *args, **kwargs)
        waits.spans.append((began, time.monotonic()))
        return offset

    monkeypatch.setattr(KafkaLog, "publish_here", counted)
    return waits
