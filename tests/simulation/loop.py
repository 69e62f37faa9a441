"""An event loop without a clock, a thread, or a socket: virtual time, and an order that one seed decides.

Every callback belongs to a `Process`. A process that was killed takes no further step, not even the clean-up in a
`finally`; one that is paused goes on later as if nothing had been. Within a process callbacks keep their order, as in
asyncio, unless `shuffled`; which process goes next is drawn.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MAX_STEPS = 40_000
"""Of one run; more means that something goes round in circles without letting time pass."""


class EndlessError(Exception):
    """A run that does not come to an end."""


class Process:
    """What lives and dies together: one operating system process of the simulated world.

    Attributes:
        die_at: the step before which it is killed.
        pause_at: (step, seconds) of each pause to come, in order.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = 0
        self.dead = False
        self.paused_until = 0.0
        self.die_at: int | None = None
        self.pause_at: list[tuple[int, float]] = []
        self.on_death: Callable[[], None] = lambda: None
        self.on_pause: Callable[[float], None] = lambda _: None

    def __repr__(self) -> str:
        return self.name


WORLD = Process("world")
_process: ContextVar[Process] = ContextVar("process", default=WORLD)


class _Due(asyncio.TimerHandle):
    """A callback that was asked for, and its place in the order."""

    __slots__ = ("args", "callback", "home", "number", "where")

    def __init__(
        self, when: float, number: int, callback: Callable[..., object], args: tuple[Any, ...], where: Context | None
    ) -> None:
        # The base is not initialised: it asks the loop for more than this one has. Only its type is of use.
        self.number, self.callback, self.args = number, callback, args
        self.where = copy_context() if where is None else where
        self.home = self.where.get(_process, WORLD)
        self._when = when
        self._cancelled = False

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<{self.home} {self.callback}>"

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._cancelled = True


class SeededLoop(asyncio.BaseEventLoop):
    """The loop. Only what coroutines need is there; anything that would touch the machine fails."""

    def __init__(self, rng: Random, *, shuffled: bool = False) -> None:
        super().__init__()
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.complaints: list[str] = []
        self._shuffled = shuffled
        self._number = 0
        self._due: dict[Process, deque[_Due]] = {}
        self._later: list[tuple[float, int, _Due]] = []
        self._parked: list[_Due] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._tidying = False

    # -- what coroutines see -------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._number += 1
        due = _Due(self.now, self._number, callback, args, context)
        self._enqueue(due)
        return due

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._number += 1
        due = _Due(when, self._number, callback, args, context)
        heapq.heappush(self._later, (when, due.number, due))
        return due

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """There are no threads: it runs now."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whoever awaits it gets it)
            future.set_exception(error)
        return future

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks.append(task)  # a task that is dropped would be closed, and its `finally` would run
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._tidying:
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    # -- what the simulation does with it ------------------------------------------------

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a part of a process."""
        context = copy_context()
        context.run(_process.set, process)
        task: asyncio.Task[T] = self.create_task(work, context=context)
        return task

    def kill(self, process: Process) -> None:
        """From now on nothing of it runs."""
        if not process.dead:
            process.dead = True
            process.on_death()

    def pause(self, process: Process, seconds: float) -> None:
        """Nothing of it runs for so long."""
        process.paused_until = self.now + seconds
        process.on_pause(seconds)

    def run(self, work: Coroutine[Any, Any, T], *, close: Callable[[], None] = lambda: None) -> T:
        """Run until `work` is done; then end what is left over.

        Args:
            close: makes everything fail at once that is tried from then on.

        Raises EndlessError.
        """
        events._set_running_loop(self)
        try:
            task: asyncio.Task[T] = self.create_task(work)
            while not task.done():
                if self.steps >= MAX_STEPS:
                    raise EndlessError(f"no end after {MAX_STEPS} steps, at {self.now:.3f} s")
                self._step()
            return task.result()
        finally:
            close()
            self._tidy()
            events._set_running_loop(None)
            self.close()

    def _enqueue(self, due: _Due) -> None:
        self._due.setdefault(due.home, deque()).append(due)

    def _step(self) -> None:
        """Run one callback; let time pass when there is none."""
        self.steps += 1
        later = self._later
        if not self._due:
            if not later:
                raise EndlessError(f"nothing can run any more, at {self.now:.3f} s")
            self.now = max(self.now, later[0][0])
        while later and later[0][0] <= self.now:
            due = heapq.heappop(later)[2]
            if not due._cancelled:
                self._enqueue(due)
        if not self._due:
            return
        homes = list(self._due)
        home = homes[self.rng.randrange(len(homes))] if len(homes) > 1 else homes[0]
        queue = self._due[home]
        if self._shuffled and len(queue) > 1:
            queue.rotate(-self.rng.randrange(len(queue)))
        due = queue.popleft()
        if not queue:
            del self._due[home]
        if not due._cancelled and self._may_run(due):
            due.where.run(due.callback, *due.args)

    def _may_run(self, due: _Due) -> bool:
        process = due.home
        if process.dead:
            self._parked.append(due)
            return False
        if process.paused_until > self.now:
            self._postpone(due)
            return False
        process.steps += 1
        if process.die_at is not None and process.steps >= process.die_at:
            self.kill(process)
            self._parked.append(due)
            return False
        if process.pause_at and process.steps >= process.pause_at[0][0]:
            self.pause(process, process.pause_at.pop(0)[1])
            self._postpone(due)
            return False
        return True

    def _postpone(self, due: _Due) -> None:
        heapq.heappush(self._later, (due.home.paused_until, due.number, due))

    def _tidy(self) -> None:
        """End every task that is left, so that none of them complains of having been forgotten.

        The world is closed by now: whatever they try fails at once. Nothing here is recorded.
        """
        self._tidying = True
        homes = {due.home for due in (*self._parked, *(due for _, _, due in self._later))} | set(self._due)
        for process in homes:
            process.dead, process.paused_until, process.die_at, process.pause_at = False, 0.0, None, []
        for due in self._parked:
            self._enqueue(due)
        self._parked.clear()
        limit = self.steps + MAX_STEPS
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            while self._due and self.steps < limit:
                self._step()
            if not self._due and self._later:
                self._step()
            if self.steps >= limit:
                raise RuntimeError(f"tasks do not end: {left}")
        for task in self._tasks:
            if not task.cancelled():
                task.exception()  # looked at, so that it is not complained of
        self._tasks.clear()
        self._later.clear()
