"""Plans of compensations: which effects are undone, in which order, approved by whom.

A plan is a value: it can be exported, read by a person, approved by name, and carried out by a
successor. Every step names the version of its operation that was looked at and the sealed manifest,
and the plan's digest covers all of it, so that an approval is bound to exactly this plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rfc8785

from .errors import InvalidArgumentError, LossNotAcceptedError, ManifestError
from .manifests import Manifest, ManifestVerdict, from_dict, read
from .operations import Operation, Status

SCHEMA = "fencepost.plan.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The undo of one operation's round.

    Attributes:
        version: of the operation, as it was looked at.
        adopted_by: branches ("agent/branch") that adopted the effect and do not stand, or go away with the plan.
        leaves: effects that were built on this one, stand or may, and are in no step of the plan (`plan_order.LeftStanding`).
    """

    op_id: str
    round: int
    version: str
    manifest: Manifest
    adopted_by: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()

    @property
    def losses(self) -> tuple[str, ...]:
        """What this undo cannot take back: side effects, and effects that stand on nothing afterwards."""
        return (*self.manifest.irreversible, *self.leaves)

    @property
    def verdict(self) -> ManifestVerdict:
        """What can be undone, if nobody has changed the state since."""
        return ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN if self.leaves else self.manifest.verdict

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "op_id": self.op_id, "round": self.round, "version": self.version,
            "manifest": self.manifest.to_dict(), "manifest_digest": self.manifest.digest,
            "verdict": self.verdict.value, "adopted_by": list(self.adopted_by),
            **({"leaves": list(self.leaves)} if self.leaves else {}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in the order in which they are carried out.

    Attributes:
        cause: "rollback", "prune", or "operation": what asked for it.
        cause_id: the rollback's id; "" elsewhere.
    """

    ledger_id: str
    agent_id: str
    branch_id: str
    cause: str
    checkpoint_id: str = ""
    cause_id: str = ""
    steps: tuple[Step, ...] = ()

    @staticmethod
    def load(values: Mapping[str, Any] | str | bytes) -> Plan:
        """The plan that `to_dict`, or its JSON, gave. Raises InvalidArgumentError for anything changed since."""
        return load(values)

    @property
    def losses(self) -> tuple[str, ...]:
        """What carrying it out cannot take back; each must be accepted by name."""
        return tuple(dict.fromkeys(loss for step in self.steps for loss in step.losses))

    @property
    def verdict(self) -> ManifestVerdict:
        """What can be undone, if nobody has changed anything since."""
        if self.losses:
            return ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN
        return ManifestVerdict.FULL_ROLLBACK_POSSIBLE

    def _body(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA, "ledger_id": self.ledger_id, "agent_id": self.agent_id,
            "branch_id": self.branch_id, "cause": self.cause, "checkpoint_id": self.checkpoint_id,
            "cause_id": self.cause_id, "steps": [step.to_dict() for step in self.steps],
        }  # fmt: skip

    @property
    def data(self) -> bytes:
        """Canonical JSON, without the digest."""
        return rfc8785.dumps(self._body())

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal: what an approval is bound to."""
        return hashlib.sha256(self.data).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """As plain data, to be exported."""
        return {**self._body(), "verdict": self.verdict.value, "losses": list(self.losses), "digest": self.digest}

    def verify(self, current_state_hashes: Mapping[str, str]) -> dict[str, ManifestVerdict]:
        """op_id → what can be undone, given the states' hashes now (by op_id); without a hash it is blocked.

        Effects on one resource were done one upon the other: of those only the one that is undone first
        leaves the state as it is now, and each further one must have left what the next one found. Where one
        reaches into another's resource as a cascade, their hashes are of different things: until the one is undone
        nobody can tell what it leaves for the other, whose state is read once more before its own inverse runs.
        """
        found: dict[str, ManifestVerdict] = {}
        undone: dict[str, Step] = {}
        for step in self.steps:
            manifest = step.manifest
            now = current_state_hashes.get(step.op_id, "")
            touched = {name for name in (manifest.resource, *manifest.cascades) if name}
            before = [undone[name] for name in sorted(touched & undone.keys())] if now else []
            if before and all(found[s.op_id] is not ManifestVerdict.BLOCKED_CONCURRENT_MUTATION for s in before):
                now = _left_for(manifest, now, before, nearest=undone.get(manifest.resource))
            told = manifest.verify(now)
            found[step.op_id] = step.verdict if told is manifest.verdict else told
            undone |= dict.fromkeys(touched, step)
        return found


def _left_for(manifest: Manifest, now: str, undone: Sequence[Step], *, nearest: Step | None) -> str:
    """The hash that an effect finds once these are undone, which were done on what it touches."""
    if nearest is None or any(step.manifest.resource != manifest.resource for step in undone):
        return manifest.post_state_hash  # not known before
    if now == manifest.post_state_hash:
        return now
    return nearest.manifest.pre_state_hash


def load(values: Mapping[str, Any] | str | bytes) -> Plan:
    """The plan that `to_dict` (or its JSON) gave. Raises InvalidArgumentError for anything changed since.

    The digest must be there, and everything that follows from the other fields must say what follows.
    """
    given = parsed(values)
    plan = _read(given)
    if "digest" not in given:
        raise _unreadable("it has no digest, so nobody can tell whether it was changed")
    if not _same(given, plan.to_dict()):
        raise InvalidArgumentError(
            "plan: its digest does not match its fields: something was changed after it was made.",
            next_step="Export it again with `fencepost compensate plan`, and have that approved.",
            field="plan",
        )
    return plan


def recorded(data: bytes) -> Plan:
    """The plan in the bytes that `Plan.data` gave. Whoever holds its digest compares that.

    Raises InvalidArgumentError for what is none.
    """
    return _read(parsed(data))


def parsed(values: Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    """The object in a text of JSON. Raises InvalidArgumentError for what is none, or names a field twice."""
    if isinstance(values, Mapping):
        return values
    try:
        found = json.loads(values, object_pairs_hook=_once)
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable("it is not JSON") from error
    if not isinstance(found, dict):
        raise _unreadable("it is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; readers differ in which of two fields of one name counts, so there may be no two."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _unreadable("it names a field twice")
    return found


def _same(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    try:
        return rfc8785.dumps(dict(given)) == rfc8785.dumps(dict(wanted))
    except (rfc8785.CanonicalizationError, RecursionError, ValueError):
        return False


def _read(given: Mapping[str, Any]) -> Plan:
    """The plan in plain data; fields that follow from others are not looked at. Raises InvalidArgumentError."""
    try:
        plan = _plan(given)
        _ = plan.digest, plan.losses  # a value that has no place in a plan shows here
    except KeyError as error:
        raise _unreadable(f"the field {error.args[0]!r} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(f"it is not in the form {SCHEMA}") from error
    return plan


def _unreadable(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"plan: it cannot be read: {why}.",
        next_step="Export it again with `fencepost compensate plan`.",
        field="plan",
    )


def _plan(given: Mapping[str, Any]) -> Plan:
    if given["schema"] != SCHEMA:
        raise TypeError(SCHEMA)
    steps = tuple(
        Step(
            op_id=step["op_id"],
            round=step["round"],
            version=step["version"],
            manifest=from_dict(step["manifest"]),
            adopted_by=tuple(step["adopted_by"]),
            leaves=tuple(step.get("leaves", ())),
        )
        for step in given["steps"]
    )
    names = ("ledger_id", "agent_id", "branch_id", "cause", "checkpoint_id", "cause_id")
    plan = Plan(**{name: given[name] for name in names}, steps=steps)
    texts = [given[name] for name in names]
    texts += [text for step in steps for text in (step.op_id, step.version, *step.leaves)]
    if not all(isinstance(text, str) for text in texts) or not all(type(step.round) is int for step in steps):
        raise TypeError(SCHEMA)
    return plan


def step_of(operation: Operation, *, relying: Iterable[str] | None = None) -> Step:
    """How a committed operation is undone.

    Args:
        relying: who relies on the effect and stays, as `reliance.relied_on_by` tells; None: everybody who
            adopted it. An operator who adopted it is always among them.

    Raises ManifestError: nothing was sealed, it is being undone already, it was changed since, it does not cover all, or somebody
    who stays relies on the effect.
    """
    if operation.status in {Status.OWNED, Status.IN_DOUBT}:
        raise ManifestError(
            f"operation {operation.op_id} ({operation.tool}) is {operation.status.value}: whether there is anything to undo "
            "is not known yet.",
            next_step="Settle it with a probe or `fencepost in-doubt resolve … --committed --post-state-hash …`.",
            field="manifest",
            op_id=operation.op_id,
        )
    if operation.status is Status.COMPENSATING:
        plan = f" by plan {operation.undoing.plan_digest[:16]}" if operation.undoing else ""
        raise ManifestError(
            f"operation {operation.op_id} ({operation.tool}) is being undone{plan}.",
            next_step="Carry that one out to its end; see `fencepost compensate list`.",
            field="manifest",
            op_id=operation.op_id,
        )
    sealed = operation.sealed_manifest
    if operation.status is not Status.COMMITTED or sealed is None or operation.settled is None:
        raise ManifestError(
            f"operation {operation.op_id} ({operation.tool}) has no sealed manifest"
            f"{_why_unsealed(operation)}, so nobody knows how to undo it.",
            next_step=_way_to_seal(operation)
            + "Let an operator undo it outside, and record it with `fencepost in-doubt resolve … --compensated`.",
            field="manifest",
            op_id=operation.op_id,
        )
    manifest = read(sealed, digest=operation.settled.manifest_digest)
    if (manifest.op_id, manifest.round) != (operation.op_id, operation.round):
        raise ManifestError(
            f"operation {operation.op_id} carries the manifest of {manifest.op_id}, round {manifest.round}.",
            next_step="Let an operator look at it; nothing was undone.",
            field="manifest",
            op_id=operation.op_id,
        )
    adopters = {who(a.fact.agent_id, a.fact.branch_id) for a in operation.adoptions}
    operators = {a.fact.by for a in operation.adoptions if a.fact.by}
    everybody = (who(a.fact.agent_id, a.fact.branch_id) for a in operation.adoptions if not a.fact.by)
    staying = operators | set(everybody if relying is None else relying)
    if staying:
        names = ", ".join(sorted(staying))
        raise ManifestError(
            f"operation {operation.op_id} ({operation.tool}) is relied on by {names}, which stays.",
            next_step="Leave the effect as it is, or prune what relies on it first.",
            field="adopted_by",
            op_id=operation.op_id,
        )
    return Step(
        op_id=operation.op_id,
        round=operation.round,
        version=operation.version,
        manifest=manifest,
        adopted_by=tuple(sorted(adopters)),
    )


def _way_to_seal(operation: Operation) -> str:
    if operation.status is not Status.COMMITTED or not operation.sealable:
        return ""
    return (
        "Its intent tells how; say what it left behind with `fencepost in-doubt resolve … --committed "
        "--post-state-hash …`. Or: "
    )


def who(agent_id: str, branch_id: str) -> str:
    """How a branch is named in a plan."""
    return f"{agent_id}/{branch_id}"


def _why_unsealed(operation: Operation) -> str:
    reason = operation.settled.reason if operation.settled else ""
    return f" ({reason})" if reason and operation.status is Status.COMMITTED else ""


def require_accepted(plan: Plan, accepted: Sequence[str]) -> None:
    """Raises LossNotAcceptedError naming each loss of the plan that was not accepted by name."""
    missing = [loss for loss in plan.losses if loss not in set(accepted)]
    if missing:
        raise LossNotAcceptedError(
            f"the plan cannot take back {', '.join(missing)}: {ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN.value}.",
            next_step="A person accepts each by name (`accept_losses=[…]`, `--accept-loss`), or it is left alone. "
            "An operation that is named stands on what is undone: undo it as well, in the same plan.",
            field="losses",
            losses=missing,
        )
