"""Ledgers that are broken on purpose, each in one way: the simulation must find every one of them.

A simulation that has never failed proves nothing. Each variant takes away one safeguard of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from simulation import projecting
from simulation.run import Kinds

from fencepost.consumer import debts, partition_worker
from fencepost.consumer.debts import DebtPayer
from fencepost.ledger import attempts, projection
from fencepost.ledger.engine import Engine
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import Header
from fencepost.ledger.positions import Partition, Position
from fencepost.ledger.projection import Debt, PartitionFold
from fencepost.ledger.view import View

Break = Callable[[], AbstractContextManager[Kinds]]


class _NotesNoDebts(PartitionFold):
    def _owe(self, key: str, debt: Debt) -> None:
        del key, debt


class _StrikesEarly(PartitionFold):
    def _settle_debt(self, entry: LogEntry, *, covered: bool) -> None:
        paid = entry.record is not None and entry.record.fact is None
        super()._settle_debt(entry, covered=covered or paid)


class _JudgesNothing(PartitionFold):
    def _judge(self, candidates: Any, known: Any) -> Any:
        del candidates, known
        return ()


class _ForgetsDebts(PartitionFold):
    def __init__(self, partition: Partition, header: Header, debts: Any) -> None:
        del debts
        super().__init__(partition, header, {})


class _JudgesBelowTheHorizon(PartitionFold):
    def __init__(self, partition: Partition, header: Header, debts: Any) -> None:
        super().__init__(partition, replace(header, opened=True), debts)


def _half(key: str, document: bytes | None) -> Record:
    whole = projection.reassertion(key, document)
    return replace(whole, history=whole.history[len(whole.history) // 2 :])


@contextmanager
def _patched(*changes: tuple[object, str, Any]) -> Iterator[Kinds]:
    patches = [patch.object(where, name, what) for where, name, what in changes]
    for one in patches:
        one.start()
    try:
        yield Kinds()
    finally:
        for one in reversed(patches):
            one.stop()


def _fold(kind: type[PartitionFold]) -> AbstractContextManager[Kinds]:
    return _patched((partition_worker, "PartitionFold", kind))


def _anything(self: View, partition: Partition, header: Header, since: int) -> Header:
    """Believes a projection that is being rebuilt, and one that went back."""
    del self, partition, since
    return header


async def _fence_unheard(
    self: Engine, partition: Partition, agent_id: str, branch_id: str, epoch: Position, *, deadline: float, reason: str
) -> None:
    """Writes the fence and does not wait until it is applied."""

    async def at_once(*_: Any, **__: Any) -> bool:
        return True

    class _Unwaited:
        def __getattr__(self, name: str) -> Any:
            return at_once if name in {"wait_until", "_shows"} else getattr(engine, name)

    engine = self
    await _fence_one(_Unwaited(), partition, agent_id, branch_id, epoch, deadline=deadline, reason=reason)  # type: ignore[arg-type]


_fence_one = Engine._fence_one


async def _unconfirmed(session: Any, call: Any, view: Any, intent: Any, expires: float) -> Any:
    """Takes an acknowledged intent for a granted one."""
    await session.engine.publish_effect(intent, view.facts)
    claim = attempts.claimed(session, call, view.operation, view.facts, intent.attempt_id)
    claim.expires = expires
    return claim


async def _unfenced(self: Engine, *_: Any, **__: Any) -> None:
    """A guard, and a successor, that fence nobody."""
    del self


def _any_owner(self: projecting.SimulatedPartitionStore) -> None:
    """A store that takes the steps of every projector."""
    if self._place.stored.header is None:
        self._refuse("lost", "")


@contextmanager
def _eager_cleaner() -> Iterator[Kinds]:
    yield Kinds(cleaner_passes_settled=True)


BROKEN: dict[str, Break] = {
    "debts are not noted": lambda: _fold(_NotesNoDebts),
    "debts are not paid": lambda: _patched((DebtPayer, "pay", lambda *_: None)),
    "debts are forgotten in a crash": lambda: _fold(_ForgetsDebts),
    "a debt is struck by an incomplete record": lambda: _patched(
        (partition_worker, "PartitionFold", _StrikesEarly), (debts, "reassertion", _half)
    ),
    "a re-assertion lacks a part of the history": lambda: _patched((debts, "reassertion", _half)),
    "answers below the horizon": lambda: _patched((View, "trusted", _anything)),
    "judges below the horizon": lambda: _fold(_JudgesBelowTheHorizon),
    "fenced intents get no verdict": lambda: _fold(_JudgesNothing),
    "the guard does not wait for its fences": lambda: _patched((Engine, "_fence_one", _fence_unheard)),
    "nobody is fenced": lambda: _patched((Engine, "fence", _unfenced)),
    "an intent is not confirmed": lambda: _patched((attempts, "_publish_and_confirm", _unconfirmed)),
    "the cleaner passes the settled offset": _eager_cleaner,
    "a stale projector is not refused": lambda: _patched(
        (projecting.SimulatedPartitionStore, "_proven", _any_owner),
        (projecting.SimulatedPartitionStore, "_proven_owner", lambda _: None),
        (projecting.SimulatedPartitionStore, "_expect", lambda *_: None),
    ),
}
