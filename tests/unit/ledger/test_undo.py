"""Declaring how an effect is undone: what is refused, and how it is filled in for a call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fencepost.ledger import EffectClass, InvalidArgumentError, ManifestError, Undo, UndoPath
from fencepost.ledger.calls import EffectOptions, Tool
from fencepost.ledger.facts import EffectFact, EffectKind
from fencepost.ledger.manifests import Manifest, action_key, read
from fencepost.ledger.sealing import (
    NOTHING_KNOWN,
    After,
    path_before,
    path_before_async,
    read_after,
    read_after_async,
    sealed,
)
from fencepost.ledger.undo import BoundUndo

ORDER = {"order": "A1", "cents": 5}


def undo(**values: Any) -> Undo:
    return Undo(**{"action": "recharge", "state_hash": lambda **_: "h", **values})


def bound(**values: Any) -> BoundUndo:
    return BoundUndo(undo=undo(**values), values=ORDER, arguments=json.dumps(ORDER).encode())


def manifest(path: UndoPath, **values: Any) -> Manifest:
    return path.manifest(**{"op_id": "t:A1", "round_number": 2, "tool": "t", **values})


@pytest.mark.parametrize("kind", [EffectClass.READ, EffectClass.REPEATABLE, EffectClass.IRREVERSIBLE])
def test_what_is_never_undone_must_not_say_how(kind: EffectClass) -> None:
    """A declaration that could never be used is a mistake, and is told as one."""
    with pytest.raises(InvalidArgumentError, match="undo") as caught:
        EffectOptions(tool="t", kind=kind, undo=undo())
    assert caught.value.field == "undo"


def test_what_must_and_what_may_say_how() -> None:
    """A COMPENSATABLE effect must; an idempotent one may, unless it is order-safe."""
    with pytest.raises(InvalidArgumentError, match="undo"):
        EffectOptions(tool="t", kind=EffectClass.COMPENSATABLE)
    assert EffectOptions(tool="t", kind=EffectClass.COMPENSATABLE, undo=undo()).undo is not None
    assert EffectOptions(tool="t", kind=EffectClass.IDEMPOTENT, undo=undo()).undo is not None
    assert EffectOptions(tool="t", kind=EffectClass.IDEMPOTENT).undo is None
    with pytest.raises(InvalidArgumentError, match="undo"):
        EffectOptions(tool="t", kind=EffectClass.IDEMPOTENT, order_safe=True, undo=undo())


def test_each_form_has_its_place() -> None:
    """A tool is declared with an Undo, an attempt with an UndoPath; anything else is neither."""
    path = UndoPath(action="recharge", pre_state_hash="h")
    with pytest.raises(InvalidArgumentError, match="undo"):
        Tool(function=lambda order: order, options=EffectOptions(tool="t", kind=EffectClass.COMPENSATABLE, undo=path))
    with pytest.raises(InvalidArgumentError, match="undo"):
        EffectOptions(tool="t", kind=EffectClass.COMPENSATABLE, undo=undo()).call(scope="s", key="k")
    wrong: Any = {"action": "recharge"}
    with pytest.raises(InvalidArgumentError, match="undo"):
        EffectOptions(tool="t", kind=EffectClass.COMPENSATABLE, undo=wrong)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("action", ""), ("action", None), ("state_hash", None), ("state_hash", "h"), ("payload", "text"), ("payload", 5),
        ("payload_after", "x"), ("covers", "crm"), ("covers", ("",)), ("covers", 5), ("irreversible", "mail"),
        ("irreversible", (None,)), ("idempotency_key", ""), ("idempotency_key", "  "), ("idempotency_key", "refund-{order}"),
        ("snapshot_of", " "),
    ],
)  # fmt: skip
def test_wrong_declarations_name_the_field(field: str, value: Any) -> None:
    """Also a key without the round: the undo of the next round would be taken for a repeat of this one."""
    with pytest.raises(InvalidArgumentError, match=field) as caught:
        undo(**{field: value})
    assert caught.value.field == field


async def _later(*_: Any, **__: Any) -> str:
    return "h"


def test_a_payload_cannot_be_awaited() -> None:
    """It is refused when it is declared, and a coroutine that comes back all the same is no payload."""
    with pytest.raises(InvalidArgumentError, match="payload"):
        undo(payload=_later)
    with pytest.raises(InvalidArgumentError, match="payload_after"):
        undo(payload_after=_later)
    with pytest.raises(ManifestError, match="payload"):
        manifest(bound(payload=lambda **_: _later()).path("h"))


def test_templates_and_payload_are_filled_in_from_the_arguments() -> None:
    """And the derived key is that of the round which was claimed."""
    one = bound(
        covers=("crm:{order}",), irreversible=("mail:{order}",), payload=lambda order, cents: {"o": order, "c": cents}
    ).path("before")
    found = manifest(one, resource="r", cascades=("crm:A1",))
    assert (found.action.covers, found.irreversible, found.pre_state_hash) == (("crm:A1",), ("mail:A1",), "before")
    assert found.action.payload == {"o": "A1", "c": 5}
    assert found.action.idempotency_key == action_key("t:A1", 2)
    assert manifest(bound().path("h")).action.payload == ORDER
    assert manifest(bound(payload={"fixed": (1, 2)}).path("h")).action.payload == {"fixed": [1, 2]}
    keyed = manifest(bound(idempotency_key="re-{order}-{round}").path("h"))
    assert keyed.action.idempotency_key == "re-A1-2"
    with pytest.raises(InvalidArgumentError, match="covers"):
        bound(covers=("crm:{nothing}",)).path("h")


def _raises(**_: Any) -> str:
    raise OSError("no connection")


def test_what_cannot_be_read_before_the_effect_is_an_error() -> None:
    """The state's hash, the payload: nothing is run without them; the cause is named."""
    for one, field in ((bound(state_hash=_raises), "pre_state_hash"), (bound(payload=_raises), "payload")):
        with pytest.raises(ManifestError, match="no connection") as caught:
            path_before(one)
        assert caught.value.field == field
        with pytest.raises(ManifestError, match="no connection"):
            asyncio.run(path_before_async(one))
    with pytest.raises(ManifestError, match="pre_state_hash"):
        manifest(path_before(bound(state_hash=lambda **_: " ")))


def test_hashes_are_read_by_plain_and_by_awaited_functions() -> None:
    """From synchronous code too, even where a loop runs already."""

    async def inside() -> str:
        return path_before(bound(state_hash=_later)).pre_state_hash

    assert path_before(bound(state_hash=_later)).pre_state_hash == "h"
    assert asyncio.run(inside()) == "h"
    assert asyncio.run(path_before_async(bound(state_hash=_later))).pre_state_hash == "h"
    assert asyncio.run(path_before_async(bound())).pre_state_hash == "h"
    assert read_after(bound(payload_after=lambda r, **_: {"id": r}), 7) == After("h", {"id": 7})
    assert asyncio.run(read_after_async(bound(payload_after=lambda r, **_: {"id": r}), 7)) == After("h", {"id": 7})


COMMIT = EffectFact(kind=EffectKind.COMMITTED, op_id="t:A1", result_digest="d")


def test_a_commit_is_sealed_with_the_state_after_it() -> None:
    """Manifest and digest stand in the record of the commit, and the digest of the result is part of it."""
    path = manifest(bound().path("before"))
    fact = sealed(COMMIT, path, After("after", {"id": 1}), limit=10_000)
    assert fact.manifest is not None
    found = read(fact.manifest, digest=fact.manifest_digest)
    assert (found.post_state_hash, found.action.payload, found.result_digest) == ("after", {"id": 1}, "d")
    assert fact.reason == ""
    assert sealed(COMMIT, None, NOTHING_KNOWN, limit=10_000) == COMMIT


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (NOTHING_KNOWN, "was not given"),
        (After(""), "post_state_hash"),
        (After("h", {"x": object()}), "payload"),
        (After("h", "x" * 20_000), "bytes"),
        (read_after(bound(state_hash=_raises), 1), "no connection"),
        (read_after(bound(payload_after=lambda *_, **__: 1 / 0), 1), "division"),
        (After(5), "post_state_hash"),  # type: ignore[arg-type]
    ],
)
def test_a_commit_that_cannot_be_sealed_stays_a_commit(after: After, why: str) -> None:
    """It says why, and carries no manifest: nobody undoes it by a plan."""
    fact = sealed(COMMIT, manifest(bound().path("before")), after, limit=10_000)
    assert (fact.kind, fact.manifest, fact.manifest_digest) == (EffectKind.COMMITTED, None, "")
    assert fact.reason.startswith("not sealed")
    assert why in fact.reason


def test_what_makes_the_payload_is_not_what_reads_the_state() -> None:
    """Which of the two failed after the effect is told; in a loop as well."""
    broken = bound(payload_after=lambda *_, **__: 1 / 0)
    for after in (read_after(broken, 1), asyncio.run(read_after_async(broken, 1))):
        assert "payload_after failed (" in after.problem
        assert "state" not in after.problem
    unreadable = bound(state_hash=_raises)
    for after in (read_after(unreadable, 1), asyncio.run(read_after_async(unreadable, 1))):
        assert "the state after the effect could not be read" in after.problem
