"""Manifests: published vectors, what seals, what fails closed, and that any later change is noticed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost.ledger import ManifestError, ManifestVerdict
from fencepost.ledger.manifests import CompensatingAction, Manifest, action_key, from_dict, path, read
from fencepost.ledger.operations import compensation_op_id, idempotency_key

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("manifest_vectors.json").read_text("utf-8"))[
    "vectors"
]
ACTION = CompensatingAction(name="undo", payload={"order": "A1"}, idempotency_key="k", covers=("crm:A1",))


def known(**values: Any) -> Manifest:
    usual: dict[str, Any] = {
        "op_id": "t:A1", "round_number": 1, "tool": "t", "pre_state_hash": "before", "action": ACTION,
        "resource": "order:A1", "cascades": ("crm:A1",),
    }  # fmt: skip
    return path(**{**usual, **values})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    """Each published manifest has exactly these canonical bytes, this digest, and this verdict."""
    manifest = from_dict(vector["manifest"])
    assert manifest.data.decode() == vector["canonical"]
    assert manifest.digest == vector["digest"] == hashlib.sha256(vector["canonical"].encode()).hexdigest()
    assert manifest.verdict == vector["verdict"]
    assert read(vector["canonical"].encode(), digest=vector["digest"]) == manifest
    assert manifest.to_dict() == vector["manifest"]


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, int):
        return value + 1
    return [*value, "x"] if isinstance(value, list) else {"x": value}


FIELDS: list[tuple[str, ...]] = [(name,) for name in VECTORS[0]["manifest"] if name not in {"schema", "action"}]
FIELDS += [("action", name) for name in VECTORS[0]["manifest"]["action"]]


@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_the_digest_covers_every_field(field: tuple[str, ...]) -> None:
    """A change of any single field, the payload and the cascades too, changes the digest, and reading notices it."""
    for vector in VECTORS:
        values = json.loads(json.dumps(vector["manifest"]))
        inner = values["action"] if len(field) == 2 else values
        inner[field[-1]] = changed(inner[field[-1]])
        other = from_dict(values)
        assert other.digest != vector["digest"], vector["name"]
        with pytest.raises(ManifestError, match="digest"):
            read(other.data, digest=vector["digest"])


def test_fields_in_another_form_are_no_manifest() -> None:
    """Bytes that say the same in another form, or something more, are refused: the digest is of one form only."""
    for text in (
        json.dumps(VECTORS[0]["manifest"]),
        json.dumps({**VECTORS[0]["manifest"], "more": 1}, sort_keys=True, separators=(",", ":")),
        "[]", "null", "{", '"text"', json.dumps({**VECTORS[0]["manifest"], "schema": "v0"}),
    ):  # fmt: skip
        with pytest.raises(ManifestError):
            read(text.encode())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("action", {"action": replace(ACTION, name=" ")}),
        ("idempotency_key", {"action": replace(ACTION, idempotency_key="")}),
        ("idempotency_key", {"action": replace(ACTION, idempotency_key=" \t")}),
        ("pre_state_hash", {"pre_state_hash": ""}),
        ("pre_state_hash", {"pre_state_hash": None}),
        ("cascades", {"cascades": ("crm:A1", "cache:A1")}),
        ("cascades", {"action": replace(ACTION, covers=())}),
        ("payload", {"action": replace(ACTION, payload={"at": object()})}),
        ("payload", {"action": replace(ACTION, payload=float("nan"))}),
        ("snapshot_of", {"action": replace(ACTION, snapshot_of="orders.db")}),
        (
            "snapshot_of",
            {"action": replace(ACTION, snapshot_of="orders.db"), "cascades": (), "irreversible": ("mail",)},
        ),
    ],
)
def test_fails_closed(field: str, values: dict[str, Any]) -> None:
    """Without a compensating action, with a blank key, or with a cascade that is not covered nothing is declared."""
    with pytest.raises(ManifestError, match=field) as caught:
        known(**values)
    assert caught.value.field == field


def test_a_snapshot_of_one_store_is_enough_for_an_effect_inside_it() -> None:
    """A snapshot may restore what is confined to one store: no cascade, nothing irreversible."""
    manifest = known(action=replace(ACTION, snapshot_of="orders.db", covers=()), cascades=())
    assert manifest.seal(post_state_hash="after").verify("after") is ManifestVerdict.FULL_ROLLBACK_POSSIBLE


@pytest.mark.parametrize("blank", ["", "  ", None])
def test_sealing_needs_the_state_after(blank: Any) -> None:
    """Without the hash of what the effect left behind there is no way back."""
    with pytest.raises(ManifestError, match="post_state_hash"):
        known().seal(post_state_hash=blank)


def test_sealing_takes_what_only_the_result_knows() -> None:
    """The payload from after the effect takes the place of the one from before it; the digest is another one."""
    sealed = known().seal(post_state_hash="after", payload={"id": 7}, result_digest="d")
    assert (sealed.action.payload, sealed.result_digest, sealed.sealed) == ({"id": 7}, "d", True)
    assert sealed.digest != known().seal(post_state_hash="after", result_digest="d").digest
    with pytest.raises(ManifestError, match="payload"):
        known().seal(post_state_hash="after", payload={"at": object()})


def test_admissible_only_on_the_state_that_the_effect_left_behind() -> None:
    """Undoing is blocked on any other state, the one before the effect included; irreversible effects need a person."""
    sealed = known().seal(post_state_hash="after")
    assert sealed.verify("after") is ManifestVerdict.FULL_ROLLBACK_POSSIBLE
    for state in ("before", "other", ""):
        assert sealed.verify(state) is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION
    partial = known(irreversible=("mail:A1",)).seal(post_state_hash="after")
    assert partial.verify("after") is ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN
    assert partial.verify("before") is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION
    assert known().verify("") is ManifestVerdict.BLOCKED_CONCURRENT_MUTATION  # not sealed: no state admits it


def test_keys_of_undoing_are_the_operations_and_the_rounds() -> None:
    """The derived key is that of the compensation's own first round: whoever undoes it, and whenever, uses the same."""
    assert action_key("t:A1", 2) == idempotency_key(compensation_op_id("t:A1", 2), 1)
    assert len({action_key(op, number) for op in ("t:A1", "t:A2") for number in (1, 2)}) == 4
    assert len(compensation_op_id("x" * 512, 10**6)) <= 512
