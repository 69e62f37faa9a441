"""Rollback manifests: enough for a successor who has never seen the code path to undo an effect.

A manifest has two stages. Before the effect runs, `path` says what is known then and is written
with the intent, so that an effect whose process died can still be undone once it is resolved. With
the outcome it is sealed: the hash of the state that the effect left behind joins, and the digest
over every field goes into the log in the same record as the commit.

Both fail closed: without a compensating action, with a blank idempotency key, or with a cascade that
the action does not cover, nothing is sealed, and before the effect nothing is run.

The digest is the SHA-256 of the canonical JSON (RFC 8785) of `to_dict()`; test vectors are in
`tests/unit/ledger/manifest_vectors.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import rfc8785

from .errors import ManifestError
from .operations import compensation_op_id, idempotency_key

SCHEMA = "fencepost.manifest.v1"


class ManifestVerdict(StrEnum):
    """What can be done about a sealed effect, given the state as it is now."""

    FULL_ROLLBACK_POSSIBLE = "FULL_ROLLBACK_POSSIBLE"
    PARTIAL_ROLLBACK_REQUIRES_HUMAN = "PARTIAL_ROLLBACK_REQUIRES_HUMAN"
    BLOCKED_CONCURRENT_MUTATION = "BLOCKED_CONCURRENT_MUTATION"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensatingAction:
    """The inverse of an effect.

    Attributes:
        name: under which the compensator is registered.
        payload: what it needs, as plain JSON.
        idempotency_key: handed to the compensator, so that the undo can be tried again.
        covers: the cascading side effects that it deals with as well.
        snapshot_of: the one ACID store of which it restores a snapshot; "" for a real inverse.
    """

    name: str
    payload: Any
    idempotency_key: str
    covers: tuple[str, ...] = ()
    snapshot_of: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name, "payload": self.payload, "idempotency_key": self.idempotency_key,
            "covers": sorted(self.covers), "snapshot_of": self.snapshot_of,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """How one round of an operation can be undone.

    Attributes:
        pre_state_hash: of what the effect was about to change, as its tool computes it.
        post_state_hash: of what it left behind; "" until it is sealed.
        cascades: other systems, caches, and records that the effect changed as well.
        irreversible: side effects that nothing can take back, by name.
        result_digest: of the recorded result; "" when there is none.
    """

    op_id: str
    round: int
    tool: str
    resource: str
    pre_state_hash: str
    action: CompensatingAction
    post_state_hash: str = ""
    cascades: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    result_digest: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data: every field, and nothing else, is under the digest."""
        return {
            "schema": SCHEMA, "op_id": self.op_id, "round": self.round, "tool": self.tool,
            "resource": self.resource, "pre_state_hash": self.pre_state_hash,
            "post_state_hash": self.post_state_hash, "action": self.action.to_dict(),
            "cascades": sorted(self.cascades), "irreversible": sorted(self.irreversible),
            "result_digest": self.result_digest,
        }  # fmt: skip

    @property
    def data(self) -> bytes:
        """Canonical JSON."""
        return rfc8785.dumps(self.to_dict())

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def sealed(self) -> bool:
        """Whether the state that the effect left behind is known."""
        return bool(self.post_state_hash)

    @property
    def verdict(self) -> ManifestVerdict:
        """What can be undone if nobody has changed the state since."""
        if self.irreversible:
            return ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN
        return ManifestVerdict.FULL_ROLLBACK_POSSIBLE

    def verify(self, current_state_hash: str) -> ManifestVerdict:
        """What can be undone, given the state's hash now.

        Undoing is admissible only on the very state that the effect left behind: on any other, it
        would overwrite what somebody else has done since.
        """
        if not self.sealed or current_state_hash != self.post_state_hash:
            return ManifestVerdict.BLOCKED_CONCURRENT_MUTATION
        return self.verdict

    def seal(self, *, post_state_hash: str, payload: Any = None, result_digest: str = "") -> Manifest:
        """The sealed manifest.

        Args:
            payload: replaces the action's, when it needs what the effect returned; None keeps it.

        Raises ManifestError naming what is missing.
        """
        if not _told(post_state_hash):
            raise _flaw("post_state_hash", "the state after the effect has no hash")
        action = self.action if payload is None else replace(self.action, payload=payload)
        sealed = replace(self, action=action, post_state_hash=post_state_hash, result_digest=result_digest)
        require_complete(sealed)
        return sealed


def path(
    *,
    op_id: str,
    round_number: int,
    tool: str,
    pre_state_hash: str,
    action: CompensatingAction,
    resource: str = "",
    cascades: Iterable[str] = (),
    irreversible: Iterable[str] = (),
) -> Manifest:
    """What is known before the effect runs. Raises ManifestError naming what is missing."""
    manifest = Manifest(
        op_id=op_id,
        round=round_number,
        tool=tool,
        resource=resource,
        pre_state_hash=pre_state_hash,
        action=action,
        cascades=tuple(sorted(set(cascades))),
        irreversible=tuple(sorted(set(irreversible))),
    )
    require_complete(manifest)
    return manifest


def require_complete(manifest: Manifest) -> None:
    """Raises ManifestError unless the manifest says how the effect is undone, all of it."""
    action = manifest.action
    for field, value in (
        ("action", action.name),
        ("idempotency_key", action.idempotency_key),
        ("pre_state_hash", manifest.pre_state_hash),
    ):
        if not _told(value):
            raise _flaw(field, "it is blank")
    uncovered = sorted(set(manifest.cascades) - set(action.covers))
    if uncovered:
        raise _flaw("cascades", f"{action.name} does not cover {', '.join(uncovered)}")
    if action.snapshot_of and (manifest.cascades or manifest.irreversible):
        raise _flaw(
            "snapshot_of",
            f"a snapshot of {action.snapshot_of} restores that store and nothing outside, and the effect "
            f"also changes {', '.join(manifest.cascades + manifest.irreversible)}",
        )
    try:
        rfc8785.dumps(action.payload)
    except (rfc8785.CanonicalizationError, RecursionError, ValueError) as error:
        raise _flaw("payload", f"it has no canonical JSON form ({error})") from error


def action_key(op_id: str, round_number: int) -> str:
    """The idempotency key of the undo of an operation's round, derived from the operation."""
    return idempotency_key(compensation_op_id(op_id, round_number), 1)


def read(data: bytes, *, digest: str = "") -> Manifest:
    """The manifest in canonical JSON.

    Args:
        digest: what it must have; "" leaves it unchecked (an unsealed one has none).

    Raises ManifestError when it is not a manifest, not canonical, or was changed.
    """
    try:
        values = json.loads(data)
        manifest = from_dict(values)
        changed = manifest.data != data
    except (ValueError, TypeError, KeyError, AttributeError, rfc8785.CanonicalizationError) as error:
        raise _flaw("manifest", f"it cannot be read ({type(error).__name__}: {error})") from error
    if changed or (digest and manifest.digest != digest):
        raise _flaw("digest", "it does not match the manifest's fields: something was changed after sealing")
    return manifest


def from_dict(values: Mapping[str, Any]) -> Manifest:
    """The manifest in plain data. Raises KeyError, TypeError for what is none."""
    if values["schema"] != SCHEMA:
        raise TypeError(f"schema {values['schema']!r} is not {SCHEMA}")
    action = values["action"]
    known = {name: values[name] for name in ("op_id", "round", "tool", "resource", "pre_state_hash", "post_state_hash")}
    return Manifest(
        **known,
        result_digest=values["result_digest"],
        cascades=tuple(values["cascades"]),
        irreversible=tuple(values["irreversible"]),
        action=CompensatingAction(
            name=action["name"],
            payload=action["payload"],
            idempotency_key=action["idempotency_key"],
            covers=tuple(action["covers"]),
            snapshot_of=action["snapshot_of"],
        ),
    )


def _told(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _flaw(field: str, why: str) -> ManifestError:
    return ManifestError(
        f"manifest: {field}: {why}.",
        next_step="Say how the effect is undone, all of it, or declare it IRREVERSIBLE.",
        field=field,
    )
