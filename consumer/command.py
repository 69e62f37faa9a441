"""What the command line does on Kafka and Redis: run the projector, tell its lag, rebuild a projection."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer

from ..ledger.client_log import client_logger
from ..ledger.errors import GuaranteeError, StoreUnavailableError
from ..ledger.positions import Partition, Topic
from . import kafka_client, scripts
from .codec import codec_of
from .headers import header_of
from .keys import partition_keys
from .projector import Projector
from .redis_client import connect, execute, translated
from .topics import REDIS_ANSWERS, open_admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..ledger.ports import Header
    from ..ledger.urls import StoreUrl
    from .redis_client import SyncClient

_log = logging.getLogger("fencepost.projector")
_LOOK_S = 0.2
_COLLECTED = (50_000, 20, 100)  # a record makes hundreds of objects and no cycles; looking for them took a seventh
_DROP_TIMEOUT_S = 30.0


class Lag(NamedTuple):
    """How far the projection of a partition is.

    Attributes:
        partition: which one.
        log_end_offset: as a broker tells it.
        header: as Redis has it.
    """

    partition: Partition
    log_end_offset: int
    header: Header

    @property
    def lag_records(self) -> int:
        """Offsets between the projection and the end of the log."""
        return max(0, self.log_end_offset - self.header.applied_offset)


class Progress(NamedTuple):
    """How far a rebuild is: offsets applied, offsets to apply until it opens, partitions that are open again."""

    applied: int
    total: int
    open_partitions: int
    partitions: int


def default_group(url: StoreUrl) -> str:
    """The consumer group of a ledger's projectors; its committed offsets are settled offsets."""
    return f"{url.prefix}.projector"


def run_projector(url: StoreUrl, *, group: str | None = None, stop: threading.Event | None = None) -> None:
    """Run a projector until `stop` is set, or until SIGTERM or SIGINT when none is given.

    Several may run: the group shares the partitions among them.

    Raises:
        GuaranteeError: a setting breaks a promise; nothing was read.
        StoreUnavailableError: at the start Kafka or Redis did not answer.
    """
    topic_ids = asyncio.run(_checked_topic_ids(url))
    projector = Projector(url, group=group or default_group(url), topic_ids=topic_ids, codec=codec_of(url))
    if stop is not None:
        projector.run(stop)
        return
    with _stopped_by_signals() as event:
        gc.freeze()
        gc.set_threshold(*_COLLECTED)
        projector.run(event)


def lag(url: StoreUrl) -> list[Lag]:
    """How far each partition is, in order. Raises StoreUnavailableError."""
    with _log_client(url) as consumer:
        counts = kafka_client.partition_counts(url, consumer)
        partitions = [Partition(topic, number) for topic in Topic for number in range(counts[topic])]
        ends = {p: kafka_client.log_bounds(url, consumer, p)[1] for p in partitions}
    with _projection_client(url) as client:
        return [Lag(p, ends[p], _header(client, url, p)) for p in partitions]


def rebuild(
    url: StoreUrl,
    progress: Callable[[Progress], None],
    *,
    accept_gap: bool = False,
    timeout_s: float = 3600.0,
) -> None:
    """Drop the projection, and wait until running projectors have built it again.

    Args:
        url: of the ledger.
        progress: called several times a second.
        accept_gap: go on where records are missing that nobody had applied; what they said is lost.
        timeout_s: for all of it.

    Raises:
        StoreUnavailableError: the time is up; what is done stays done. Also when Kafka or Redis does not answer.
    """
    deadline = time.monotonic() + timeout_s
    before = {row.partition: row for row in lag(url)}
    with _projection_client(url) as client:
        for partition, row in before.items():
            below = row.log_end_offset if accept_gap else None
            with translated(url.projection):
                execute(client, scripts.drop(partition_keys(url, partition), accept_below=below))
        while True:
            headers = {p: _header(client, url, p) for p in before}
            progress(_progress(headers, before))
            if all(h.opened or (h.halted and h.incarnation) for h in headers.values()):
                return
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"The projection was not built again in {timeout_s:.0f} s.",
                    next_step="Check that a projector runs: fencepost projector lag.",
                )
            time.sleep(_LOOK_S)


def _progress(headers: Mapping[Partition, Header], before: Mapping[Partition, Lag]) -> Progress:
    ends = {p: h.horizon or before[p].log_end_offset for p, h in headers.items()}
    applied = {p: ends[p] if h.opened else min(h.applied_offset, ends[p]) for p, h in headers.items()}
    opened = sum(h.opened for h in headers.values())
    return Progress(sum(applied.values()), sum(ends.values()), opened, len(headers))


async def _checked_topic_ids(url: StoreUrl) -> Mapping[Topic, str]:
    admin = open_admin(url)
    checks = await admin.guarantees()
    weak = [f"{check.name} is {check.found}, not {check.wanted}" for check in checks if not check.ok]
    if weak:
        _log.warning("weaker than production: %s", "; ".join(weak))
    failed = [check for check in checks if not check.ok and check.severity == "refuse"]
    if failed:
        unreachable = [check.found for check in failed if check.name == REDIS_ANSWERS]
        if unreachable:
            raise StoreUnavailableError(unreachable[0], next_step="Then start it: fencepost projector run.")
        raise GuaranteeError(
            "; ".join(f"{c.name} is {c.found}, and must be {c.wanted}" for c in failed) + ".",
            next_step="Set it right; fencepost doctor checks it.",
            checks=[check._asdict() for check in failed],
        )
    facts = await admin.facts()
    await admin.record(facts)
    return facts.topic_ids


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    event = threading.Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _log_client(url: StoreUrl) -> Iterator[Consumer]:
    consumer = Consumer(kafka_client.reader_settings(url, f"{url.prefix}.reader"), logger=client_logger())
    try:
        yield consumer
    finally:
        consumer.poll(0)  # hands over what the client has to say of itself
        consumer.close()


@contextmanager
def _projection_client(url: StoreUrl) -> Iterator[SyncClient]:
    client = connect(url.projection)
    try:
        yield client
    finally:
        client.close()


def _header(client: SyncClient, url: StoreUrl, partition: Partition) -> Header:
    call, _ = scripts.read(partition_keys(url, partition), ())
    with translated(url.projection):
        reply = execute(client, call)
    return header_of(reply[0], reply[1])
