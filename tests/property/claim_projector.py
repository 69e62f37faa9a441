"""The projector and the log cleaner of the small world: the real fold, and ways to break it on purpose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from property import claim_world as claims
from property.claim_world import PARTITION, Switches, World

from fencepost.ledger import log_keys
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import LogEntry, Record
from fencepost.ledger.ports import DocumentKey, Header
from fencepost.ledger.projection import (
    DEBTS,
    FENCES,
    OPS,
    UNJUDGED,
    UNSAFE,
    Debt,
    PartitionFold,
    document_of,
    reassertion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Projected = frozenset[tuple[DocumentKey, bytes]]
ESSENTIAL = frozenset({OPS, FENCES, UNJUDGED, DEBTS, UNSAFE})
"""The collections on which something depends; indexes can be left out of a search."""
HORIZON = log_keys.horizon(0, lambda _: 0)
MARKER = Record(HORIZON, (), encode_effect(EffectFact(kind=EffectKind.HORIZON)))


class NoDebts(PartitionFold):
    """A projector that never notes what a record left out."""

    def _owe(self, key: str, debt: Debt) -> None:
        del key, debt


class StrikesEarly(PartitionFold):
    """A projector that takes any re-assertion for a payment."""

    def _settle_debt(self, entry: LogEntry, *, covered: bool) -> None:
        paid = entry.record is not None and entry.record.fact is None
        super()._settle_debt(entry, covered=covered or paid)


@dataclass(slots=True)
class Projector:
    """Moves a world's projection; `essential` leaves out the documents on which nothing depends."""

    switches: Switches = field(default_factory=Switches)
    essential: bool = True
    _steps: dict[object, tuple[Header, Projected]] = field(default_factory=dict)

    def fold(self, world: World) -> PartitionFold:
        kind = StrikesEarly if not self.switches.strict_strike else PartitionFold
        return (kind if self.switches.debts else NoDebts)(PARTITION, world.header, world.debts)

    def apply(self, world: World) -> World | None:
        """Read one record; what it changes and the position that moves are one step."""
        at = world.header.applied_offset
        if at >= len(world.log) or self._due(world):
            return None
        record = world.log[at]
        same = (world.header, world.projected, record)
        if same not in self._steps:
            self._steps[same] = self._applied(world, record)
        header, projected = self._steps[same]
        paid = {record.key} if record is not None and record.writer == "projector" else set()
        return replace(world, header=header, projected=projected, flying=world.flying - paid)

    def _applied(self, world: World, record: Record | None) -> tuple[Header, Projected]:
        fold, at, documents = self.fold(world), world.header.applied_offset, world.documents
        if record is None:
            fold.skip_to(at + 1)
        else:
            entry = LogEntry(PARTITION, at, at + 1000, record.key, record)
            while needed := fold.needs(entry):
                fold.provide({key: documents.get(key) for key in needed})
            fold.apply(entry)
        return self._committed(world, fold)

    def open(self, world: World) -> World | None:
        """At the horizon: judge what was put off, then open."""
        if not self._due(world):
            return None
        fold, documents = self.fold(world), world.documents
        fences = {key: data for key, data in documents.items() if key.collection == FENCES}
        unjudged = [key.key for key in documents if key.collection == UNJUDGED]
        fold.provide({key: documents.get(key) for o in unjudged for key in _of(o)})
        fold.judge(unjudged, fences)
        fold.provide(fences)
        fold.open(fences)
        header, projected = self._committed(world, fold)
        after = replace(world, header=header, projected=projected)
        return replace(after, forgotten=world.forgotten or not set(world.before_loss) <= set(after.facts))

    def _due(self, world: World) -> bool:
        return not world.header.opened and self.fold(world).horizon_reached()

    def _committed(self, world: World, fold: PartitionFold) -> tuple[Header, Projected]:
        step = fold.take_step()
        after: dict[DocumentKey, bytes | None] = {**world.documents, **step.writes}
        kept = ((k, v) for k, v in after.items() if v is not None and (not self.essential or k.collection in ESSENTIAL))
        return step.header, frozenset(kept)

    def settle(self, world: World) -> World:
        """Commit the settled offset to where a loss of the store does not reach."""
        return replace(world, durable=max(world.durable, world.header.settled_offset))

    def reassert(self, world: World, key: str) -> World | None:
        """Pay a debt: one re-assertion a key in flight."""
        if not world.header.opened or key not in world.debts or key in world.flying:
            return None
        return replace(world.append(self._payment(world, key)), flying=world.flying | {key})

    def leave_zombie(self, world: World, key: str) -> World | None:
        """A former projector made a payment that lands later, or never."""
        if not world.header.opened or key not in world.debts:
            return None
        late = replace(self._payment(world, key), writer="zombie")
        return replace(world, zombies=(*world.zombies, late))

    def _payment(self, world: World, key: str) -> Record:
        document = document_of(PARTITION.topic, key)
        return reassertion(key, world.documents.get(document) if document else None)

    def zombie_lands(self, world: World, index: int) -> World | None:
        rest = (*world.zombies[:index], *world.zombies[index + 1 :])
        return replace(world.append(world.zombies[index]), zombies=rest)

    def crash(self, world: World) -> World | None:
        """The projector starts anew on its store."""
        projected = world.projected
        if not self.switches.keep_debts:
            projected = frozenset(item for item in projected if item[0].collection != DEBTS)
        return replace(world, flying=frozenset(), crashes=world.crashes + 1, projected=projected)

    def lose_store(self, world: World) -> World | None:
        """The store is empty: a new projection, with a horizon where the log ends now."""
        horizon = len(world.log) + 1
        header = Header(
            incarnation=str(world.losses + 1),
            settled_offset=world.durable,
            judge_from=world.durable,
            horizon=horizon if self.switches.horizon else 0,
            opened=not self.switches.horizon,
        )
        return replace(
            world.append(MARKER) if self.switches.horizon else world,
            header=header,
            projected=frozenset(),
            flying=frozenset(),
            before_loss=world.facts if world.header.opened else world.before_loss,
            losses=world.losses + 1,
        )

    def removable(self, world: World) -> frozenset[int]:
        """Offsets that a legal cleaning may remove: superseded by a later record that is settled too."""
        safe = world.durable if self.switches.debts else min(world.header.applied_offset, len(world.log))
        last = {r.key: at for at, r in enumerate(world.log[:safe]) if r is not None}
        return frozenset(at for at, r in enumerate(world.log[:safe]) if r is not None and at < last[r.key])

    def clean(self, world: World, offsets: frozenset[int]) -> World | None:
        if not offsets:
            return None
        log = tuple(None if at in offsets else record for at, record in enumerate(world.log))
        return replace(world, log=log, cleanings=world.cleanings + 1)

    def to_rest(self, world: World) -> World:
        """Let the projector do its work until nothing is left to do."""
        for _ in range(10_000):
            nexts = (self.open(world), self.apply(world), *(self.reassert(world, key) for key in sorted(world.debts)))
            after = next((n for n in nexts if n is not None), None)
            if after is None:
                return world
            world = after
        raise AssertionError("the projector does not come to rest")


def fold_log(log: tuple[Record | None, ...]) -> dict[DocumentKey, bytes]:
    """What the real fold makes of a log from its beginning, with every payment that it asks for."""
    rest = Projector(essential=False).to_rest(World((), log=log))
    return rest.documents


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often each fault may happen in a search, and how long the log may get."""

    log: int = 9
    losses: int = 1
    crashes: int = 1
    cleanings: int = 1
    zombies: int = 1
    resends: int = 0
    fences: int = 1


def steps(world: World, projector: Projector, bounds: Bounds) -> Iterator[tuple[str, World]]:
    """Every next state within the bounds, with the name of the step."""
    for label, go in (*_sessions(world, bounds), *_machinery(world, projector, bounds)):
        after = go()
        if after is not None and after != world and len(after.log) <= bounds.log:
            yield label, after


Step = tuple[str, "Callable[[], World | None]"]


def _sessions(world: World, bounds: Bounds) -> Iterator[Step]:
    moves = (claims.read, claims.intend, claims.confirm, claims.execute, claims.withdraw, claims.commit)
    for index, session in enumerate(world.sessions):
        for move in moves:
            yield f"{session.name} {move.__name__}", lambda m=move, i=index: m(world, i)  # type: ignore[misc]
        if bounds.resends:
            yield f"{session.name} resend", lambda i=index: claims.resend(world, i)  # type: ignore[misc]


def _machinery(world: World, projector: Projector, bounds: Bounds) -> Iterator[Step]:
    yield "guard fence", lambda: claims.fence(world)
    yield "guard decide", lambda: claims.decide(world, projector.switches, fences=bounds.fences)
    yield "projector open", lambda: projector.open(world)
    yield "projector apply", lambda: projector.apply(world)
    for key in sorted(world.debts):
        yield f"projector pays {key}", lambda k=key: projector.reassert(world, k)  # type: ignore[misc]
        if len(world.zombies) < bounds.zombies:
            yield f"zombie of {key}", lambda k=key: projector.leave_zombie(world, k)  # type: ignore[misc]
    for index in range(len(world.zombies)):
        yield "zombie lands", lambda i=index: projector.zombie_lands(world, i)  # type: ignore[misc]
    if world.crashes < bounds.crashes and world.debts:
        yield "projector crash", lambda: projector.crash(world)
    if world.losses < bounds.losses and world.header.applied_offset:
        yield "store lost", lambda: projector.lose_store(world)
        yield "store lost, all settled", lambda: projector.lose_store(projector.settle(world))
    if world.cleanings < bounds.cleanings:
        settled = projector.settle(world)
        yield "cleaner", lambda: projector.clean(settled, projector.removable(settled))


def _of(op_id: str) -> tuple[DocumentKey, DocumentKey]:
    return DocumentKey(OPS, op_id), DocumentKey(UNSAFE, op_id)
