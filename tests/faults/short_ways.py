"""What the tests of the short way share: a ledger in a file, which way its records went, and a writer that stands still."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from conformance.homes import new_home
from conformance.moments import Moment, watch
from conformance.worlds import PATIENCE_S, World, until

from fencepost.ledger import EffectClass, Ledger
from fencepost.ledger.embedded_store import EmbeddedAtOnce, EmbeddedWriting
from fencepost.ledger.embedded_threads import ThreadReply
from fencepost.ledger.embedded_writer import Job, Writer
from fencepost.ledger.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fencepost.ledger.operations import Attempt

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    home = new_home("embedded", tmp_path, None)
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path) as world:
        yield world


@pytest.fixture
def ledger(world: World) -> Ledger:
    return world.ledger


class Ways:
    """Which way each record went, once it was acknowledged; and what happens before one is published."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moments: list[Moment] = []
        self.stop = ""
        """Where a transaction of the short way stands still until `released`: "read", or before it publishes this kind."""
        self.also: Callable[[Moment], None] = lambda _: None
        self.reached = threading.Event()
        self.released = threading.Event()
        read = EmbeddedWriting.read

        def reading(writing: EmbeddedWriting, *args: Any) -> Any:
            if self.stop == "read":
                self._stand()
            return read(writing, *args)

        monkeypatch.setattr(EmbeddedWriting, "read", reading)
        watch(before=self._before, after=self.moments.append, put=monkeypatch.setattr)

    def went(self, *kinds: str) -> list[tuple[str, str]]:
        """Of the records of these kinds: (kind, "short" or "long")."""
        return [(m.kind, "short" if m.short else "long") for m in self.moments if m.kind in kinds]

    def _before(self, moment: Moment) -> None:
        self.also(moment)
        if moment.kind == self.stop and moment.short:
            self._stand()

    def _stand(self) -> None:
        self.reached.set()
        assert self.released.wait(PATIENCE_S)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    ways = Ways(monkeypatch)
    yield ways
    ways.released.set()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Interrupts the thread that waits for the store next: `interrupted(moment, meanwhile)`, for instance "after" that."""

    def arm(moment: str, meanwhile: Any = lambda: None) -> None:
        write_here, wait = EmbeddedAtOnce.write_here, ThreadReply.wait
        armed = [True]

        def once() -> bool:
            return bool(armed) and armed.pop()

        def interrupted_before(way: EmbeddedAtOnce, work: Any, *reads: Any) -> Any:
            if once():
                raise KeyboardInterrupt
            return write_here(way, work, *reads)

        def interrupted_waiting(reply: ThreadReply[Any]) -> Any:
            if not once():
                return wait(reply)
            if moment == "after":
                wait(reply)
            meanwhile()
            raise KeyboardInterrupt

        if moment == "before":
            monkeypatch.setattr(EmbeddedAtOnce, "write_here", interrupted_before)
        else:
            monkeypatch.setattr(ThreadReply, "wait", interrupted_waiting)

    return arm


class Writing:
    """The writer of a ledger, standing still: what is given to it meanwhile shares one transaction."""

    def __init__(self, ledger: Ledger) -> None:
        store: Any = ledger._engine.store
        self._writer: Writer = store.log._writer
        self._released = threading.Event()
        self._reached = threading.Event()
        self._reply: ThreadReply[None] = ThreadReply()

    def hold(self) -> None:
        def stand(_: object) -> None:
            self._reached.set()
            assert self._released.wait(PATIENCE_S)

        self._writer.submit(Job(stand, self._reply, alone=True))
        assert self._reached.wait(PATIENCE_S)

    def wait_for(self, jobs: int) -> None:
        """Until so many works wait."""
        until(lambda: len(self._writer._jobs) >= jobs)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def writer(ledger: Ledger) -> Iterator[Writing]:
    writer = Writing(ledger)
    yield writer
    writer.release()


def attempts_at(world: World, op_id: str) -> list[Attempt]:
    """The attempts that the log has of an operation."""
    try:
        return list(world.ledger.operation(op_id).operation.attempts.values())
    except NotFoundError:
        return []


def runs_elsewhere(world: World, name: str) -> None:
    """Nobody has the operation, which was not run; another agent runs it, once."""
    assert world.hits(name) == 0
    with world.ledger.session(f"other-{world.agent}") as other:
        assert world.charge(other, name, wait_s=5) == {"order": world.key(name), "cents": 50}
    assert world.hits(name) == 1
    assert world.ledger.operation(world.op_id(name)).operation.anomalies == []


def complete(world: World) -> None:
    """Every number of the agent's sessions is accounted for."""
    for known in world.ledger.watermarks(world.agent):
        assert known.mark.seq == known.highest_seq, known
