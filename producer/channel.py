"""One shared client with the thread that polls it: publishing as futures, in order, with back-pressure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from . import errors
from .client import Client, Delivered, Message, NotNowError, RefusedByClientError, logger
from .errors import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .settings import Settings

Outcome = Delivered | Failure

_POLL_S = 0.1
_POLL_WHILE_WAITING_S = 0.02
_REPLACE_INTERVAL_S = 1.0
_ALONE = 1
_LINGER_S = 0.001  # a request costs the broker as much as a millisecond of its processor, however few records it has
_TOGETHER = 200
_JOIN_TIMEOUT_S = 5.0


@dataclass(eq=False, slots=True)
class _Publication:
    """A record whose outcome somebody awaits. The future gets an outcome, never an exception.

    Attributes:
        loop: that the future belongs to; None for one that a thread waits for.
    """

    owner: object
    message: Message
    loop: asyncio.AbstractEventLoop | None
    future: asyncio.Future[Outcome] | Future[Outcome]
    expires_s: float
    handed_over: bool = False
    there_was_room: bool = True


class Channel:
    """A client, its poller thread, and the publications that are open.

    Guarantees: records for one partition are sent in the order of `publish` calls, also when some had to wait for
    room: while any waits, later ones queue behind it.
    """

    def __init__(self, bootstrap: str, settings: Settings) -> None:
        self.bootstrap = bootstrap
        self.settings = settings
        self.counts: dict[str, int] = {}  # topic → partitions, as last told by the brokers
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: set[_Publication] = set()
        self._waiting: deque[_Publication] = deque()
        self._answers: list[tuple[_Publication, Outcome]] = []
        self._gathering = self._full = False
        self._stopping = threading.Event()
        self._replaced_s = float("-inf")
        self._client = self._new_client()
        self._poller = threading.Thread(target=self._run, name="fencepost-producer", daemon=True)
        self._poller.start()

    def publish(self, owner: object, message: Message) -> asyncio.Future[Outcome]:
        """Take a record and return the running loop's future of its outcome."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._take(owner, message, loop, future)
        return future

    def publish_here(self, owner: object, message: Message) -> Future[Outcome]:
        """Take a record and return a future of its outcome for a thread to wait on."""
        future: Future[Outcome] = Future()
        self._take(owner, message, None, future)
        return future

    def _take(
        self,
        owner: object,
        message: Message,
        loop: asyncio.AbstractEventLoop | None,
        future: asyncio.Future[Outcome] | Future[Outcome],
    ) -> None:
        one = _Publication(owner, message, loop, future, time.monotonic() + self.settings.room_timeout_s)
        with self._lock:
            self._open.add(one)
            if self._stopping.is_set():
                self._settle(one, Failure(errors.CLOSED, "", handed_over=False))
            elif len(self._waiting) >= self.settings.max_waiting:
                self._settle(one, Failure(errors.NO_ROOM, "too many wait", handed_over=False))
            elif self._waiting or self._crowded() or not self._hand_over(one):
                one.there_was_room = one.there_was_room and not self._full
                self._waiting.append(one)
                if loop is not None:  # a thread is served with the next answer
                    self._gather(loop)
        self._deliver_answers()

    def _crowded(self) -> bool:
        """Whether others are on their way already, so that this record does well to wait for company."""
        return len(self._open) - 1 > _ALONE

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Admit what waits in a moment; the poller does so too, with the next answer."""
        if not self._gathering:
            self._gathering = True
            loop.call_later(_LINGER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = False
        self._admit()
        self._deliver_answers()

    def partitions(self, topic: str) -> int:
        """How many partitions `topic` has, asked now. Raises StoreUnavailableError."""
        with self._lock:
            client = self._client
        count = client.partitions(topic)
        self._told_partitions(topic, count)
        return count

    def drain(self, owner: object | None, timeout_s: float) -> None:
        """Wait until what `owner` (or, for None, anybody) published has its outcome; then give up on the rest.

        What the client has taken by then may still be written; the waiters are told that the outcome is unknown.
        """
        with self._lock:
            self._changed.wait_for(lambda: not self._of(owner), timeout_s)
            self._give_up(self._of(owner), errors.CLOSED)
        self._deliver_answers()

    def stop(self) -> None:
        """Give up on what is open, end the thread, release the client. The channel is of no use afterwards."""
        self._stopping.set()
        self._poller.join(_JOIN_TIMEOUT_S)
        with self._lock:
            self._give_up(list(self._open), errors.CLOSED)
        self._deliver_answers()
        if self._poller.is_alive():  # freeing the client under a thread that uses it would crash the process
            logger.error("the poller thread did not end; its client is not released")
            return
        self._client.close()

    def abandon(self) -> None:
        """In a forked child: leave the parent's client alone, for ever."""
        self._client.leak()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._client.failed:
                    self._replace()
                else:
                    self._client.poll(_POLL_WHILE_WAITING_S if self._waiting else _POLL_S)
                self._admit()
                self._deliver_answers()
            except Exception:  # noqa: BLE001 - the outermost loop: without it every publish would hang
                logger.exception("the poller goes on after an error that nobody expected")
                self._stopping.wait(_POLL_S)

    def _new_client(self) -> Client:
        return Client(self.bootstrap, self.settings, on_partitions=self._told_partitions)

    def _hand_over(self, one: _Publication) -> bool:
        """Give a record to the client; False when it has to wait for room (or for a new client)."""
        one.handed_over = True
        try:
            self._client.send(one.message, partial(self._answered, one))
        except NotNowError:
            one.handed_over = one.there_was_room = False
            self._full = True
            return False
        except RefusedByClientError as refusal:
            one.handed_over = False
            self._settle(one, refusal.failure)
        return True

    def _admit(self) -> None:
        """Give waiting records to the client, oldest first, as long as it has room."""
        with self._lock:
            while self._waiting:
                some = self._next_waiting()
                if left := self._hand_over_all(some):
                    self._waiting.extendleft(reversed(left))
                    return
            self._full = False
            self._gathering = False  # also when the loop that should have been woken is gone

    def _next_waiting(self) -> list[_Publication]:
        """Some that still are to be sent; nobody waits any more for those that were passed over."""
        some: list[_Publication] = []
        while self._waiting and len(some) < _TOGETHER:
            one = self._waiting.popleft()
            if one.future.cancelled() and not one.there_was_room:  # nobody waits for it, and it was never sent
                self._open.discard(one)
            elif time.monotonic() > one.expires_s:
                self._settle(one, Failure(errors.NO_ROOM, "the queue stayed full", handed_over=False))
            elif one in self._open:
                some.append(one)
        return some

    def _hand_over_all(self, some: list[_Publication]) -> list[_Publication]:
        """Give records to the client, with one call a partition where it has room: each may cost this thread its turn.

        Returns those that have to wait, in their order.
        """
        if len(some) == 1 or not self._client.has_room([one.message for one in some]):
            taken = sum(1 for _ in takewhile(self._hand_over, some))
            return some[taken:]
        groups: dict[tuple[str, int], list[_Publication]] = {}
        for one in some:
            one.handed_over = True
            groups.setdefault((one.message.topic, one.message.partition), []).append(one)
        left: list[_Publication] = []
        for place, group in groups.items():
            refused = self._client.send_together(place, [(one.message, partial(self._answered, one)) for one in group])
            left += [group[index] for index in refused]
        for one in left:
            one.handed_over = one.there_was_room = False
        return left

    def _replace(self) -> None:
        """A producer that failed for good is thrown away, and a new one takes what still waits.

        What the old one had taken is unknown: it may be written already.
        """
        if self._stopping.wait(max(0.0, self._replaced_s + _REPLACE_INTERVAL_S - time.monotonic())):
            return
        self._replaced_s = time.monotonic()
        fresh = self._new_client()
        with self._lock:
            old, self._client = self._client, fresh
            self._give_up([one for one in self._open if one.handed_over], errors.REPLACED)
        self._deliver_answers()
        old.close()

    def _answered(self, one: _Publication, outcome: Outcome) -> None:
        with self._lock:
            self._settle(one, outcome)

    def _settle(self, one: _Publication, outcome: Outcome) -> None:
        if one in self._open:
            self._open.remove(one)
            self._answers.append((one, outcome))
            self._changed.notify_all()

    def _give_up(self, publications: Iterable[_Publication], code: str) -> None:
        for one in publications:
            self._settle(one, Failure(code, "", handed_over=one.handed_over))

    def _of(self, owner: object | None) -> list[_Publication]:
        return [one for one in self._open if owner is None or one.owner is owner]

    def _deliver_answers(self) -> None:
        """Tell each waiting loop its outcomes, with one wake-up a loop."""
        if not self._answers:  # whoever adds one delivers it
            return
        with self._lock:
            answers, self._answers = self._answers, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Publication, Outcome]]] = {}
        for one, outcome in answers:
            if one.loop is None:
                _resolve([(one, outcome)])
            else:
                by_loop.setdefault(one.loop, []).append((one, outcome))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, batch)
            except RuntimeError:
                logger.debug("%d outcomes came after their event loop was closed", len(batch))

    def _told_partitions(self, topic: str, count: int) -> None:
        self.counts[topic] = count


def _resolve(batch: list[tuple[_Publication, Outcome]]) -> None:
    for one, outcome in batch:
        if not one.future.done():
            one.future.set_result(outcome)
