"""Committed operations with sealed manifests, in few words."""

from __future__ import annotations

from typing import Any

from unit.ledger.kit import at

from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind
from fencepost.ledger.guard import SeenOperation
from fencepost.ledger.manifests import CompensatingAction, Manifest, action_key, path
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation
from fencepost.ledger.positions import Position


def sealed(op_id: str, *, before: str = "before", after: str = "after", **values: Any) -> Manifest:
    """The manifest of the first round of an operation."""
    cascades = values.pop("cascades", ())
    action = CompensatingAction(
        name="undo", payload={"op": op_id}, idempotency_key=action_key(op_id, 1), covers=tuple(cascades)
    )
    known = path(
        op_id=op_id, round_number=1, tool="t", pre_state_hash=before, action=action, cascades=cascades, **values
    )
    return known.seal(post_state_hash=after)


def facts(op_id: str, seq: int, manifest: Manifest | None, *more: EffectFact, **values: Any) -> tuple[EffectFact, ...]:
    """An operation that was done at a number of a session of the agent."""
    usual: dict[str, Any] = {
        "op_id": op_id, "attempt_id": "a", "agent_id": "agent", "branch_id": "main", "session_id": "s1",
        "epoch": Position(0, 0), "tool": "t", "effect_class": EffectClass.COMPENSATABLE, "identity_digest": "x",
    }  # fmt: skip
    usual |= values
    seal = (
        {"manifest": manifest.data, "manifest_digest": manifest.digest}
        if manifest
        else {"reason": "not sealed: no hash"}
    )
    return (
        EffectFact(kind=EffectKind.INTENDED, seq=seq - 1, **usual),
        EffectFact(kind=EffectKind.COMMITTED, seq=seq, **{**usual, **seal}),
        *more,
    )


def operation(op_id: str, seq: int, manifest: Manifest | None, *more: EffectFact, **values: Any) -> Operation:
    return fold_operation(op_id, at(*facts(op_id, seq, manifest, *more, **values)))


def standing(op_id: str, seq: int, manifest: Manifest | None, *more: EffectFact, **values: Any) -> SeenOperation:
    return SeenOperation(operation(op_id, seq, manifest, *more, **values))


def adopted(op_id: str, branch: str, agent: str = "agent", **values: Any) -> EffectFact:
    return EffectFact(
        kind=EffectKind.ADOPTED,
        op_id=op_id,
        attempt_id=f"by-{agent}-{branch}",
        agent_id=agent,
        branch_id=branch,
        **values,
    )
