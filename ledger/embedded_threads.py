"""The threads of the embedded store: each owns one connection, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from .errors import FencepostError, StoreClosedError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .embedded_file import Connection, DatabaseFile

T = TypeVar("T")
MAX_WAITING = 20_000
CLOSE_TIMEOUT_S = 30.0
_LOOK_S = 1.0


class Reply(Generic[T]):
    """An asyncio future of the running loop that another thread settles.

    Nothing happens when nobody waits any more: the call was cancelled, or its loop is closed.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def give(self, value: T) -> None:
        """Settle with a value."""
        self._post(lambda: self.settle(value))

    def settle(self, value: T) -> None:
        """Settle with a value, in the loop's own thread."""
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: FencepostError) -> None:
        """Settle with an error."""

        def settle() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        self._post(settle)

    def _post(self, settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(settle)


class ThreadReply(Generic[T]):
    """What a thread waits for. The first answer counts.

    Attributes:
        given: whether it is there.
    """

    __slots__ = ("_error", "_there", "_value", "given")

    def __init__(self) -> None:
        self.given = False
        self._error: FencepostError | None = None
        self._value: T | None = None
        self._there = threading.Lock()
        self._there.acquire()

    def give(self, value: T) -> None:
        """Settle with a value."""
        if not self.given:
            self._value = value
            self._settle()

    def fail(self, error: FencepostError) -> None:
        """Settle with an error."""
        if not self.given:
            self._error = error
            self._settle()

    def _settle(self) -> None:
        self.given = True
        self._there.release()

    def wait(self) -> T:
        """The value, once it is there. Raises the error."""
        while not self.given:
            self._there.acquire(timeout=_LOOK_S)
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


class Answers:
    """Replies that are given at the same time: each loop is woken once, however many of its calls wait."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}

    def give(self, reply: Reply[T] | ThreadReply[T], value: T) -> None:
        """Settle with a value, when they are sent; a thread's at once."""
        if isinstance(reply, ThreadReply):
            reply.give(value)
        else:
            self._by_loop.setdefault(reply.loop, []).append(lambda: reply.settle(value))

    def send(self) -> None:
        """Settle all of them."""
        for loop, settling in self._by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle_all, settling)
        self._by_loop = {}


def _settle_all(settling: Sequence[Callable[[], None]]) -> None:
    for settle in settling:
        settle()


def closed() -> StoreClosedError:
    """The error of a call that comes after the close."""
    return StoreClosedError("The ledger is closed.", next_step="Open it again.")


class Worker:
    """A thread that serves a queue until it is closed; it starts with the first job.

    Args:
        name: of the thread.
        file: what to connect to.
    """

    def __init__(self, name: str, file: DatabaseFile) -> None:
        self._file = file
        self._changed = threading.Condition()
        self._closed = False
        self._started = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._connection: Connection | None = None

    async def close(self) -> None:
        """Serve what is waiting, then end the thread and close its connection; bounded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._started:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        raise NotImplementedError

    def _admit(self, waiting: int) -> None:
        """Take up one more job. Raises StoreUnavailableError if it cannot be served. The lock is held."""
        if self._closed:
            raise closed()
        if waiting >= MAX_WAITING:
            raise StoreUnavailableError(f"{waiting} calls are waiting already.", next_step="Try again later.")
        if not self._started:
            self._started = True
            self._thread.start()

    def _connected(self, *, query_only: bool) -> Connection:
        if self._connection is None:
            self._connection = self._file.connect(query_only=query_only)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
