"""How an effect is undone, as its author declares it: what a manifest is built from.

`Undo` is declared with a tool and filled in for each call; `UndoPath` says the same of one call in
plain values. Both only describe: reading the state and running the inverse is the shells' work.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import rfc8785

from . import manifests
from .errors import InvalidArgumentError, ManifestError
from .facts import EffectClass
from .identity import check_id, filled
from .manifests import CompensatingAction, Manifest
from .secret_values import NO_SECRETS, Secrets
from .strangers import told

StateHash = Callable[..., str | Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """How a tool's effect is undone: declared once, filled in for each call.

    Args:
        action: the name under which the compensator is registered.
        state_hash: gets the call's arguments by name and returns the hash of what the effect changes, as
            it is now; asked before the effect and after it. A coroutine function is awaited.
        payload: what the compensator needs: a mapping, or a callable of the call's arguments that returns
            plain JSON; without it, the arguments themselves.
        payload_after: a callable of the result and the arguments, for what only the result knows (an id);
            what it returns takes the payload's place when the manifest is sealed.
        covers: templates of the cascades that the compensator deals with as well.
        irreversible: templates of what it cannot take back; undoing then needs a person who accepts each.
        idempotency_key: template of the compensator's key, with `{round}` in it; derived when not given.
        snapshot_of: the one ACID store of which the compensator restores a snapshot.
    """

    action: str
    state_hash: StateHash
    payload: Mapping[str, Any] | Callable[..., Any] | None = None
    payload_after: Callable[..., Any] | None = None
    covers: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    idempotency_key: str | None = None
    snapshot_of: str = ""

    def __post_init__(self) -> None:
        _check(self)
        for name in ("state_hash", "payload_after"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name == "payload_after"):
                raise _wrong(name, f"{value!r} cannot be called")
        for name in ("payload", "payload_after"):
            if inspect.iscoroutinefunction(getattr(self, name)):
                raise _wrong(name, "it is a coroutine function")
        if not (self.payload is None or callable(self.payload) or isinstance(self.payload, Mapping)):
            raise _wrong("payload", f"{self.payload!r} is neither a mapping nor callable")


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPath:
    """How one call's effect is undone, in plain values; for `attempt(…, undo=…)`.

    Args:
        pre_state_hash: of what the effect is about to change, as it is before it.
        payload: what the compensator needs, as plain JSON.
        idempotency_key: of the compensator, with `{round}` in it; derived when not given.

    The others are as of `Undo`, without templates.
    """

    action: str
    pre_state_hash: str
    payload: Any = None
    covers: tuple[str, ...] = ()
    irreversible: tuple[str, ...] = ()
    idempotency_key: str | None = None
    snapshot_of: str = ""

    def __post_init__(self) -> None:
        _check(self)

    def manifest(
        self, *, op_id: str, round_number: int, tool: str, resource: str = "", cascades: Iterable[str] = ()
    ) -> Manifest:
        """What is known before the effect runs. Raises ManifestError naming what is missing."""
        if self.idempotency_key is None:
            key = manifests.action_key(op_id, round_number)
        else:
            key = self.idempotency_key.replace("{round}", str(round_number))
        action = CompensatingAction(
            name=self.action,
            payload=plain_payload(self.payload),
            idempotency_key=key,
            covers=tuple(sorted(set(self.covers))),
            snapshot_of=self.snapshot_of,
        )
        return manifests.path(
            op_id=op_id,
            round_number=round_number,
            tool=tool,
            resource=resource,
            pre_state_hash=self.pre_state_hash,
            action=action,
            cascades=cascades,
            irreversible=self.irreversible,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundUndo:
    """A tool's `Undo` with the arguments of one call.

    Attributes:
        arguments: canonical JSON of them.
        secrets: the values of the secret ones, which no error shows.
    """

    undo: Undo
    values: Mapping[str, Any]
    arguments: bytes = b"{}"
    secrets: Secrets = field(default=NO_SECRETS, repr=False, compare=False)

    def state_hash(self) -> str | Awaitable[str]:
        """The hash of the state now, or what gives it when awaited."""
        return self.undo.state_hash(**self.values)

    def path(self, pre_state_hash: str) -> UndoPath:
        """The path of this call. Raises ManifestError when the payload cannot be had, or a template shows a secret."""
        undo = self.undo
        with self.secrets.kept_out_of_errors():
            return UndoPath(
                action=undo.action,
                pre_state_hash=pre_state_hash,
                payload=self._payload(),
                covers=self._filled("covers", undo.covers),
                irreversible=self._filled("irreversible", undo.irreversible),
                idempotency_key=undo.idempotency_key and self._filled("idempotency_key", [undo.idempotency_key])[0],
                snapshot_of=undo.snapshot_of,
            )

    def payload_after(self, result: Any) -> Any:
        """The payload that only the result knows; None when the one from before stays."""
        after = self.undo.payload_after
        return None if after is None else plain_payload(after(result, **self.values))

    def _payload(self) -> Any:
        payload = self.undo.payload
        if payload is None:
            return json.loads(self.arguments)
        if not callable(payload):
            return payload
        try:
            return payload(**self.values)
        except Exception as error:
            raise unread("payload", error) from error

    def _filled(self, field: str, templates: Iterable[str]) -> tuple[str, ...]:
        values = {**self.values, "round": "{round}"} if field == "idempotency_key" else self.values
        found = tuple(filled(field, template, values) for template in templates)
        if any(self.secrets.in_text(text) for text in found):
            raise ManifestError(
                f"manifest: {field}: it is made from a secret argument, and would write it down. Nothing was run.",
                next_step="Make it from other arguments.",
                field=field,
            )
        return found


def plain_payload(payload: Any) -> Any:
    """The payload as JSON reads it back. Raises ManifestError for what has no canonical form."""
    if inspect.iscoroutine(payload):
        payload.close()
    try:
        return json.loads(rfc8785.dumps(payload))
    except (rfc8785.CanonicalizationError, RecursionError, ValueError) as error:
        raise unread("payload", error) from error


def unread(field: str, error: Exception) -> ManifestError:
    """The error for a part of a manifest that could not be had."""
    return ManifestError(
        f"manifest: {field}: it could not be had ({told(error)}).",
        next_step="Correct what gives it; an effect whose way back is not known is not run.",
        field=field,
    )


def check_declared(kind: EffectClass, undo: object, *, order_safe: bool) -> None:
    """Raises InvalidArgumentError unless effects of this class may, or must, say how they are undone."""
    if undo is None:
        if kind is EffectClass.COMPENSATABLE:
            raise _undo("a COMPENSATABLE effect must say how it is undone", "Pass undo=, or declare it IRREVERSIBLE.")
        return
    if not isinstance(undo, (Undo, UndoPath)):
        raise _undo(f"{undo!r} is no Undo", "Pass an Undo; for an attempt an UndoPath.")
    undone = kind is EffectClass.COMPENSATABLE or (kind is EffectClass.IDEMPOTENT and not order_safe)
    if not undone:
        safe = "order-safe " if order_safe else ""
        raise _undo(f"an {safe}{kind.value} effect is never undone", "Leave it out, or declare it COMPENSATABLE.")


def _undo(why: str, next_step: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"undo: {why}.", next_step=next_step, field="undo")


def _check(undo: Undo | UndoPath) -> None:
    check_id("action", undo.action, limit=200)
    for name in ("covers", "irreversible"):
        value: object = getattr(undo, name)
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise _wrong(name, f"{value!r} is no list of names")
        object.__setattr__(undo, name, tuple(check_id(name, item) for item in value))
    if undo.snapshot_of:
        check_id("snapshot_of", undo.snapshot_of, limit=200)
    key: object = undo.idempotency_key
    if key is None:
        return
    check_id("idempotency_key", key)
    if "{round}" not in str(key):  # the undo of the next round would be taken for a repeat of this one
        raise _wrong("idempotency_key", f"{key!r} does not contain {{round}}, so two rounds would share it")


def _wrong(field: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{field}: {why}.", next_step="See `fencepost.ledger.Undo`.", field=field)
