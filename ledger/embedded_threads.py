"""The threads of the embedded store: each owns one connection, so that the event loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from .errors import FencepostError, StoreClosedError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .embedded_file import Connection, DatabaseFile

T = TypeVar("T")
MAX_WAITING = 20_000
CLOSE_TIMEOUT_S = 30.0


class Reply(Generic[T]):
    """An asyncio future of the running loop that another thread settles.

    Nothing happens when nobody waits any more: the call was cancelled, or its loop is closed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()

    def give(self, value: T) -> None:
        """Settle with a value."""

        def settle() -> None:
            if not self.future.done():
                self.future.set_result(value)

        self._post(settle)

    def fail(self, error: FencepostError) -> None:
        """Settle with an error."""

        def settle() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        self._post(settle)

    def _post(self, settle: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(settle)


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
            raise StoreClosedError("The ledger is closed.", next_step="Open it again.")
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
