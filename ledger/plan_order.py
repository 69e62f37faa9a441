"""In which order effects are undone: the newest first, and what was built on an effect before it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from .errors import ManifestError
from .lineage import Agent
from .operations import Operation, Status
from .plans import Step
from .positions import Position
from .watermarks import Point


class Ages:
    """Which of an agent's effects was certainly done after which.

    Of one branch the numbers of its sessions tell. Of several only the lineage does: what a session's path
    knows was done before it. Beyond that nobody can tell: positions of different partitions say nothing about order.
    """

    def __init__(self, agent: Agent | None) -> None:
        self._agent = agent
        self._paths: dict[Position, Mapping[Position, int]] = {}

    def after(self, one: Operation, other: Operation) -> bool:
        """Whether `one` was certainly done after `other`."""
        (epoch, seq, _), (before, number, _) = one.done_at, other.done_at
        if (epoch, seq) <= (before, number):
            return False
        if epoch == before or one.done_by_branch == other.done_by_branch:
            return True
        return self._agent is not None and self._agent.knows(self._path(epoch), before, number)

    def _path(self, epoch: Position) -> Mapping[Position, int]:
        """What the session of that epoch knew when it began: its own effects are told by their numbers."""
        if epoch not in self._paths:
            self._paths[epoch] = self._agent.path(Point(epoch, 0)) if self._agent else {}
        return self._paths[epoch]


MOST_LEFT = 20
"""How many effects a step can leave standing: each is a name in the record that ends its undo."""


class LeftStanding:
    """What a plan leaves standing: effects of the agent that were built on those that it undoes.

    One was built on another if it is on its resource or on one of its cascades, or names its resource as a
    cascade, unless it was certainly done before. One that may have happened counts as well; what a repeat does no
    harm to leaves nothing behind.

    Args:
        operations: the agent's; those that it undoes may be among them.
        undone: op_ids of what the plan undoes.
    """

    def __init__(self, operations: Iterable[Operation], *, agent: Agent | None, undone: Collection[str]) -> None:
        self._ages = Ages(agent)
        self._on: dict[str, list[Operation]] = {}
        self._into: dict[str, list[Operation]] = {}
        for operation in operations:
            if operation.status is Status.FREE or operation.harmless or operation.op_id in undone:
                continue
            resource, cascades = _place(operation)
            self._on.setdefault(resource, []).append(operation)
            for cascade in cascades:
                self._into.setdefault(cascade, []).append(operation)

    def upon(self, operation: Operation) -> tuple[str, ...]:
        """The op_ids of what was built on this effect. Raises ManifestError when a record cannot name them all."""
        resource, cascades = _place(operation)
        places = [self._on.get(name, ()) for name in {resource, *cascades} if name]
        places.append(self._into.get(resource, ()) if resource else ())
        found = sorted({o.op_id for some in places for o in some if not self._ages.after(operation, o)})
        if len(found) > MOST_LEFT:
            raise ManifestError(
                f"operation {operation.op_id} cannot be undone by itself: {len(found)} effects that were built on it would "
                f"stand, {', '.join(found[:_TOLD])} among them.",
                next_step="Undo the newest effects first, in the same plan or in plans of their own.",
                field="leaves",
                op_id=operation.op_id,
            )
        return tuple(found)


_TOLD = 3


def _place(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """Its resource and cascades, as its intent tells them."""
    told = operation.owner.intent if operation.owner else operation.first
    return (told.resource, told.cascades) if told else ("", ())


def ordered(
    operations: Iterable[Operation], steps: Mapping[str, Step], *, agent: Agent | None = None
) -> tuple[Step, ...]:
    """The steps in reverse order of commit; where that cannot be told, dependents first.

    Commits are ordered by (epoch, seq) of the fact that settled each. Of two effects of which nobody knows which was
    done first, the one depends on the other whose cascades name its resource: what was built on an effect is
    taken down before it. Where the order is known it decides: an effect that reaches into the resource of an
    older one is undone first, and leaves that as it was.

    Args:
        agent: whose lineage tells what was done before what; without it only its branches' own order is known.

    Raises ManifestError when two depend on each other.
    """
    newest = sorted((o for o in operations if o.op_id in steps), key=lambda o: o.done_at, reverse=True)
    order = [steps[operation.op_id] for operation in newest]
    ages = Ages(agent)
    if not _contradicted(newest, steps, ages):
        return tuple(order)
    waits = _waits(newest, steps, ages)
    done: list[Step] = []
    while order:
        left = {step.op_id for step in order}
        free = next((step for step in order if not waits[step.op_id] & left), None)
        if free is None:
            names = ", ".join(step.op_id for step in order)
            raise ManifestError(
                f"operations {names} name each other's resource as a cascade: no order undoes them.",
                next_step="Let an operator undo them.",
                field="cascades",
            )
        done.append(free)
        order.remove(free)
    return tuple(done)


def _contradicted(newest: Sequence[Operation], steps: Mapping[str, Step], ages: Ages) -> bool:
    """Whether a dependent would come after what it depends on: hardly ever, and cheap to find out."""
    of_resource: dict[str, list[Operation]] = {}
    for operation in newest:
        of_resource.setdefault(steps[operation.op_id].manifest.resource, []).append(operation)
    return any(
        _depends(steps[other.op_id], steps[operation.op_id]) and not ages.after(operation, other)
        for operation in newest
        for cascade in steps[operation.op_id].manifest.cascades
        for other in of_resource.get(cascade, ())
        if other.done_at < operation.done_at
    )


def _waits(newest: Sequence[Operation], steps: Mapping[str, Step], ages: Ages) -> dict[str, set[str]]:
    """op_id → the effects that are undone before it."""
    return {
        operation.op_id: {
            other.op_id
            for other in newest
            if other is not operation
            and (
                ages.after(other, operation)
                or (_depends(steps[other.op_id], steps[operation.op_id]) and not ages.after(operation, other))
            )
        }
        for operation in newest
    }


def _depends(dependent: Step, step: Step) -> bool:
    resource = dependent.manifest.resource
    return bool(resource) and resource in step.manifest.cascades and resource != step.manifest.resource
