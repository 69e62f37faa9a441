"""Replay forward: what an agent has done that a checkpoint does not know, in order. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .facts import EffectClass, ResultForm
from .guard import SeenOperation
from .lineage import Agent
from .operations import AttemptState, Status
from .positions import NOWHERE, Position
from .watermarks import Point


@dataclass(frozen=True, slots=True)
class ReplayedOperation:
    """One operation with its recorded result.

    Attributes:
        seq: of the fact that settled it (or began it), in its session; 0 when no session of
            this agent wrote that fact.
        result: decoded; None unless `result_form` is JSON. Of a read that was read again, what it gave first.
        own: an attempt of this agent owns or settled it; otherwise the agent absorbed it.
    """

    op_id: str
    tool: str
    effect_class: EffectClass
    status: str
    round: int
    branch_id: str
    epoch: Position
    seq: int
    result: Any
    result_form: ResultForm
    own: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "tool": self.tool, "effect_class": self.effect_class.value,
            "status": self.status, "round": self.round, "branch_id": self.branch_id,
            "epoch": str(self.epoch), "seq": self.seq, "result": self.result,
            "result_form": self.result_form.value, "own": self.own,
        }  # fmt: skip


def replay_forward(
    agent: Agent,
    operations: Iterable[SeenOperation],
    absorbed: Mapping[tuple[str, int], Iterable[Point]],
    *,
    since: Point,
    open_at: Mapping[Position, Collection[str]] | None = None,
) -> list[ReplayedOperation]:
    """Operations that `since` does not know, ordered by (epoch, seq) of what settled them.

    Free operations (failed, withdrawn, compensated) are left out: nothing of them stands.

    Args:
        open_at: as of `Evidence`, for `since`.
    """
    still_open = open_at or {}
    path = agent.path(since)
    found = []
    for seen in operations:
        operation = seen.operation
        if operation.status is Status.FREE and not seen.unsafe:
            continue
        told = told_at(agent, seen, absorbed)
        known = any(agent.knows(path, *at) and operation.op_id not in still_open.get(at.epoch, ()) for at in told)
        places = told or _begun_here(agent, seen)
        if not places or (known and operation.status is Status.COMMITTED and not seen.unsafe):
            continue
        found.append(_replayed(agent, seen, min(places)))
    return sorted(found, key=lambda op: (op.epoch, op.seq, op.op_id))


def told_at(agent: Agent, seen: SeenOperation, absorbed: Mapping[tuple[str, int], Iterable[Point]]) -> list[Point]:
    """Where this agent learned what became of the operation's present round: it settled or absorbed it there."""
    operation = seen.operation
    return [*_settled_here(agent, seen), *absorbed.get((operation.op_id, operation.round), ())]


def _settled_here(agent: Agent, seen: SeenOperation) -> list[Point]:
    """Where a session of this agent wrote the fact that settled it; a resolution has no place."""
    settled = seen.operation.settled
    if settled is None or settled.agent_id != agent.agent_id or settled.seq == 0:
        return []
    return [Point(settled.epoch, settled.seq)]


def _begun_here(agent: Agent, seen: SeenOperation) -> list[Point]:
    owner = seen.operation.owner
    if owner is None or owner.intent.agent_id != agent.agent_id:
        return []
    return [Point(owner.intent.epoch, owner.intent.seq)]


def _replayed(agent: Agent, seen: SeenOperation, place: Point) -> ReplayedOperation:
    operation = seen.operation
    form, settled = operation.result_form, operation.settled
    decoded = None
    if form is ResultForm.JSON and settled is not None and settled.result is not None:
        decoded = json.loads(settled.result)
    session = agent.by_epoch(place.epoch) if place.epoch != NOWHERE else None
    owner = operation.owner
    own = owner is not None and owner.intent.agent_id == agent.agent_id
    in_doubt = operation.status is Status.OWNED and seen.owner_ended
    return ReplayedOperation(
        operation.op_id,
        operation.tool,
        operation.effect_class,
        "unsafe" if seen.unsafe else Status.IN_DOUBT.value if in_doubt else operation.status.value,
        operation.round,
        session.branch_id if session else "",
        place.epoch,
        place.seq,
        decoded,
        form,
        own and (owner.state is not AttemptState.LOST if owner else False),
    )
