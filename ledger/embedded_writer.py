"""Writing into the embedded store: by a thread for many, by the caller's own thread for one.

The writing thread takes everything that is waiting into one transaction (group commit), so that many agents
share one sync of the disk, and answers nobody before the COMMIT has returned.

Where there is no company, the way to that thread and back costs more than it saves. A thread that finds nobody
writing or waiting, and the last transaction with one work only, carries out its own work, and nobody else's. Whoever
writes has the lead. Two never carry out a transaction themselves: an event loop, which must not stand still, and the main
thread, in which signal handlers run: one that used the ledger would wait for the transaction that it has interrupted.

An exception that another thread puts into a leader may end it between any two lines. What it had at stake is its own,
and unknown to it; whoever leads next rolls back what it has left.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .embedded_apply import Transaction
from .embedded_errors import DatabaseError, defect, may_go_on, translate, unknown_outcome
from .embedded_formats import require_present
from .embedded_tables import forget_beats
from .embedded_threads import CLOSE_TIMEOUT_S, Answers, Reply, ThreadReply, Worker, closed
from .errors import FencepostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .embedded_file import Connection, DatabaseFile
    from .embedded_known import Known
    from .ports import DocumentKey, Header, Reads
    from .positions import Partition

T = TypeVar("T")
MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do in a transaction of the writer.

    Attributes:
        work: does it; what it returns is given to `reply` once it is committed.
        alone: in a transaction of its own, which any error rolls back. Other jobs share one, and
            must leave it as it was when they raise anything but an error of the database.
        reads: what the work is going to read, as far as that is known.
    """

    work: Callable[[Transaction], Any]
    reply: Reply[Any] | ThreadReply[Any]
    alone: bool = False
    reads: Reads | None = None


class Writer(Worker):
    """Owns the writing connection; whoever has the lead uses it.

    Args:
        file: what to connect to.
        written: called after each commit, by whoever has the lead.
    """

    def __init__(self, file: DatabaseFile, written: Callable[[], None] = lambda: None) -> None:
        super().__init__("fencepost-writer", file)
        self._written = written
        self._jobs: deque[Job] = deque()
        self._lead = threading.Lock()
        self._in_company = False
        self._begun = False
        self._headers: dict[Partition, Header] = {}
        self._known: dict[Partition, Known] = {}
        self._version: object = None

    def submit(self, job: Job) -> None:
        """Queue a job for the writing thread; jobs are done in order. Raises StoreUnavailableError, then nothing is written."""
        with self._changed:
            self._admit(len(self._jobs))
            self._jobs.append(job)
            self._changed.notify()

    def do_here(self, work: Callable[[Transaction], T], reads: Reads | None = None) -> T:
        """What a work returns, once it is committed; carried out in this thread, or waited for.

        Raises StoreUnavailableError, then nothing is written; and what `work` raises.
        """
        reply: ThreadReply[T] = ThreadReply()
        job = Job(work, reply, reads=reads)
        if self._has_company() or threading.current_thread() is threading.main_thread():
            self.submit(job)
        else:
            with self._lead:
                if self._closed:
                    raise closed()
                self._serve([job])
        return reply.wait()

    def _has_company(self) -> bool:
        """Whether others are writing as well, so that the writing thread should do it for all: a guess."""
        return self._in_company or bool(self._jobs) or self._lead.locked()

    def applied(self, partition: Partition) -> Header | None:
        """The header that the last commit of this process left; None before the first.

        The log never gets shorter, so what this shows as applied is applied for ever.
        """
        return self._headers.get(partition)

    def knows(self, partition: Partition, key: DocumentKey) -> bool:
        """Whether there was such a document when this process last saw it, as far as it remembers. From any thread."""
        known = self._known.get(partition)
        return known is not None and known.documents.has(key)

    async def close(self) -> None:
        """Serve what is waiting, then end the thread and close the connection; bounded."""
        await super().close()
        await asyncio.get_running_loop().run_in_executor(None, self._finish)

    def _finish(self) -> None:
        """Close the connection, when nobody uses it any more: nobody will, after the thread has ended."""
        if self._lead.acquire(timeout=CLOSE_TIMEOUT_S):
            self._drop()
            self._known.clear()
            self._headers.clear()  # what a closed ledger knew is no answer
            self._lead.release()

    def _run(self) -> None:
        while batch := self._take():
            self._in_company = True  # from here on nobody takes the lead before it
            with self._lead:
                self._in_company = len(batch) > 1
                self._serve(batch)

    def _take(self) -> list[Job]:
        """What is waiting and goes into one transaction; nothing when the thread is to end."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            batch: list[Job] = []
            while self._jobs and len(batch) < MAX_BATCH and not (batch and (batch[0].alone or self._jobs[0].alone)):
                batch.append(self._jobs.popleft())
            return batch

    def _serve(self, batch: list[Job]) -> None:
        """Do all jobs in one transaction and answer them. Only for whoever has the lead.

        1. begin, in the file that this process knows
        2. do each job; one that fails by itself fails alone; write what all have changed
        3. commit, and answer only then
        """
        jobs, committing = batch, False
        if self._begun:  # and left: whoever did that was interrupted
            self._undo()
        self._begun = True
        try:
            connection = self._begin()  # 1
            transaction = Transaction(connection.sql, self._file.path, self._headers, self._known)
            done = self._do(transaction, batch)  # 2
            jobs = [job for job, _ in done]
            transaction.flush()
            committing = True
            connection.sql.execute("COMMIT")  # 3
        except FencepostError as error:
            self._undo()
            for job in jobs:
                job.reply.fail(error)
        except DatabaseError as error:
            self._give_up(jobs, error, committing=committing)
        except Exception as error:  # noqa: BLE001 - the thread's outermost: nobody would be answered any more
            self._undo()
            failure = unknown_outcome(error, self._file.path) if committing else defect(error)
            failure.__cause__ = error
            for job in jobs:
                job.reply.fail(failure)
        else:
            self._headers.update(transaction.headers)
            answers = Answers()
            for job, value in done:
                answers.give(job.reply, value)
            answers.send()
            self._written()
        self._begun = False

    def _begin(self) -> Connection:
        """Begin a transaction; what is known is dropped if another connection has committed since the last one.

        SQLite's `data_version` tells that, of whatever process, and does not change with commits of this connection.
        """
        if self._connection is None:
            self._version = None
            forget_beats(self._connected(query_only=False).sql)
        self._file.require_in_place(writing=True)
        connection = self._connected(query_only=False)
        connection.sql.execute("BEGIN IMMEDIATE")
        version: object = connection.sql.execute("PRAGMA data_version").get
        if version != self._version:
            self._known.clear()
            require_present(connection.sql, self._file.path)
            self._version = version
        return connection

    def _do(self, transaction: Transaction, batch: list[Job]) -> list[tuple[Job, object]]:
        done: list[tuple[Job, object]] = []
        if len(batch) > 1:
            transaction.read_ahead(job.reads for job in batch if job.reads is not None)
        for job in batch:
            try:
                done.append((job, job.work(transaction)))
            except DatabaseError:
                raise
            except Exception as error:  # noqa: BLE001 - the thread's outermost: one defect must not stop the others
                failure = error if isinstance(error, FencepostError) else defect(error)
                if failure is not error:
                    failure.__cause__ = error
                if job.alone:
                    raise failure from failure.__cause__
                job.reply.fail(failure)
        return done

    def _undo(self) -> bool:
        """Roll back; whether that is certain. A connection that cannot do it is not used again.

        Nothing is known any more: what was folded is not in the file.
        """
        self._known.clear()
        undone = self._connection is None or self._connection.rollback()
        if not undone:
            self._drop()
        return undone

    def _give_up(self, jobs: Sequence[Job], error: DatabaseError, *, committing: bool) -> None:
        """Roll back and answer with what is known of the outcome.

        A connection that saw the disk fail is not used again: what it has in memory may differ
        from what is on the disk.
        """
        undone = self._undo()
        if not may_go_on(error):
            self._drop()
        path = self._file.path
        for job in jobs:
            if committing and not (undone and may_go_on(error)):
                failure: FencepostError = unknown_outcome(error, path)
            else:
                failure = translate(error, path, writing=True)
            failure.__cause__ = error
            job.reply.fail(failure)
