"""Moments of the protocol, whichever way it goes: right before a record is published, right after that was acknowledged.

The long way publishes through `Engine.publish`, an outcome on Kafka straight (`ledger/straight.py`). On a store that applies what it appends an effect is begun and committed
by the short way (`ledger/at_once.py`), each in one transaction. There
    before  is in that transaction, when all was read and the record is not published yet (in the store's own thread, so
            that nobody else writes meanwhile: do not wait here for anybody who does)
    after   is once its COMMIT was answered, in the thread or on the loop of the caller, who has not heard of it yet
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fencepost.ledger import straight
from fencepost.ledger.embedded_store import EmbeddedAtOnce
from fencepost.ledger.engine import Engine
from fencepost.ledger.errors import StoreUnavailableError
from fencepost.ledger.facts import AgentFact, EffectFact, decode_agent, decode_effect
from fencepost.ledger.positions import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger.history import Record
    from fencepost.ledger.positions import Partition


@dataclass(frozen=True)
class Moment:
    """A record about to be published, or acknowledged (then with its offset, where the log told it).

    Attributes:
        short: whether it goes the short way.
    """

    partition: Partition
    record: Record
    short: bool = False
    offset: int | None = None

    @property
    def fact(self) -> EffectFact | AgentFact:
        """What the record says."""
        data = self.record.fact or b""
        return decode_effect(data) if self.partition.topic is Topic.EFFECTS else decode_agent(data)

    @property
    def kind(self) -> str:
        """Of the fact, for instance INTENDED."""
        return str(self.fact.kind.value)


class _Writing:
    """A transaction of the short way of which it is noted what was published in it."""

    def __init__(self, writing: Any, before: Callable[[Moment], None]) -> None:
        self.published: list[Moment] = []
        self.read, self.history = writing.read, writing.history
        self._writing = writing
        self._before = before

    def publish(self, partition: Partition, record: Record) -> int:
        moment = Moment(partition, record, short=True)
        self._before(moment)
        offset: int = self._writing.publish(partition, record)
        self.published.append(replace(moment, offset=offset))
        return offset


class _Work:
    """A work of the short way, watched."""

    def __init__(self, work: Callable[[Any], Any], before: Callable[[Moment], None]) -> None:
        self.published: list[Moment] = []
        self._work = work
        self._before = before

    def __call__(self, writing: Any) -> Any:
        watched = _Writing(writing, self._before)
        found = self._work(watched)
        self.published = watched.published
        return found


def _nothing(_: Moment) -> None:
    """Nothing happens then."""


def watch(
    *,
    before: Callable[[Moment], None] = _nothing,
    after: Callable[[Moment], None] = _nothing,
    put: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Have these called at the moments of every record of this process.

    Args:
        before: what it raises (FencepostError) is what becomes of the publishing.
        put: how what is there is replaced; pass `monkeypatch.setattr` to have it taken back.
    """
    publish, write, write_here = Engine.publish, EmbeddedAtOnce.write, EmbeddedAtOnce.write_here

    async def published(engine: Engine, partition: Partition, record: Record, **tried: Any) -> int | None:
        moment = Moment(partition, record)
        before(moment)
        offset = await publish(engine, partition, record, **tried)
        after(replace(moment, offset=offset))
        return offset

    straight_on, straight_here = straight.publish, straight.publish_here

    async def published_straight(engine: Engine, log: Any, partition: Partition, record: Record) -> int | None:
        moment = Moment(partition, record)
        before(moment)
        offset = await straight_on(engine, log, partition, record)
        after(replace(moment, offset=offset))
        return offset

    def published_here(engine: Engine, log: Any, partition: Partition, record: Record) -> int | None:
        moment = Moment(partition, record)
        before(moment)
        offset = straight_here(engine, log, partition, record)
        after(replace(moment, offset=offset))
        return offset

    async def written(way: EmbeddedAtOnce, work: Callable[[Any], Any], *reads: Any) -> Any:
        watched = _Work(work, before)
        found = await write(way, watched, *reads)
        for moment in watched.published:
            after(moment)
        return found

    def written_here(way: EmbeddedAtOnce, work: Callable[[Any], Any], *reads: Any) -> Any:
        watched = _Work(work, before)
        found = write_here(way, watched, *reads)
        for moment in watched.published:
            after(moment)
        return found

    put(Engine, "publish", published)
    put(straight, "publish", published_straight)
    put(straight, "publish_here", published_here)
    put(EmbeddedAtOnce, "write", written)
    put(EmbeddedAtOnce, "write_here", written_here)


def close_the_short_way(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Nothing goes the short way from here on, as when its file is busy: certainly not written, so it is the long way.

    For what can only come in between there: the short way reads and publishes in one transaction.
    """

    async def busy(*_: Any) -> Any:
        raise StoreUnavailableError("the file is busy.", next_step="Wait.")

    def busy_here(*_: Any) -> Any:
        raise StoreUnavailableError("the file is busy.", next_step="Wait.")

    put(EmbeddedAtOnce, "write", busy)
    put(EmbeddedAtOnce, "write_here", busy_here)
    put(straight, "publish", busy)
    put(straight, "publish_here", busy_here)
