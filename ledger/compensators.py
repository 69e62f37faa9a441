"""Compensators: how the inverses of effects are run, registered by the names that manifests give them.

They belong to the user. A plain function runs in a thread of its own; a coroutine function is awaited in the
user's own loop where the ledger is an asyncio one, else in a loop of its own. Neither can hold up the engine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .argument_checks import check_seconds
from .errors import InvalidArgumentError, ManifestError, NotFoundError
from .identity import check_id
from .manifests import Manifest, read
from .operations import Operation
from .plans import Plan

VERDICT_S = 5.0
"""How long all states together may take to be read for a verdict, which is made without those that are late."""

Inverse = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensator:
    """A registered inverse.

    Attributes:
        state_hash: gets the operation, and the manifest's payload as `payload` if it has such a parameter.
        longest_run_s: how long it can still act after it was started; None when that is not known.
    """

    action: str
    function: Inverse
    state_hash: Callable[..., Any]
    longest_run_s: float | None = None

    def arguments(self, operation: Operation, manifest: Manifest, key: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the inverse is called with."""
        named = (
            {"expected_state_hash": manifest.post_state_hash} if _takes(self.function, "expected_state_hash") else {}
        )
        return (operation, manifest.action.payload, key), named

    def hash_arguments(self, operation: Operation, manifest: Manifest) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the state's hash is asked with."""
        named = {"payload": manifest.action.payload} if _takes(self.state_hash, "payload") else {}
        return (operation,), named


@dataclass(slots=True)
class Compensators:
    """The registered ones, by name.

    Attributes:
        loop: the user's event loop, where there is one.
    """

    loop: asyncio.AbstractEventLoop | None = None
    _known: dict[str, Compensator] = field(default_factory=dict)

    def register(
        self, action: str, function: Inverse, *, state_hash: Callable[..., Any], longest_run_s: float | None
    ) -> None:
        """Take an inverse. Raises InvalidArgumentError naming the field."""
        check_id("action", action, limit=200)
        if longest_run_s is not None:
            check_seconds("longest_run_s", longest_run_s)
        for name, value in (("function", function), ("state_hash", state_hash)):
            if not callable(value):
                raise InvalidArgumentError(
                    f"{name}: {value!r} cannot be called.",
                    next_step="Register it like `@ledger.compensator(action, state_hash=…)`.",
                    field=name,
                )
        hashed = {"payload": None} if _takes(state_hash, "payload") else {}
        _require_fit("state_hash", state_hash, None, **hashed)
        checked = {"expected_state_hash": ""} if _takes(function, "expected_state_hash") else {}
        _require_fit("function", function, None, None, "", **checked)
        self._known[action] = Compensator(
            action=action, function=function, state_hash=state_hash, longest_run_s=longest_run_s
        )

    def get(self, action: str) -> Compensator | None:
        """The one of this name, if it is registered."""
        return self._known.get(action)

    def require(self, plan: Plan) -> None:
        """Raises NotFoundError naming each action of the plan that nobody has registered."""
        missing = sorted({step.manifest.action.name for step in plan.steps} - set(self._known))
        if missing:
            raise _unregistered(*missing)

    async def hash_of(self, operation: Operation, manifest: Manifest) -> str:
        """The hash of the state now. Raises what the reader raises, and NotFoundError when there is none."""
        known = self._known.get(manifest.action.name)
        if known is None:
            raise _unregistered(manifest.action.name)
        args, named = known.hash_arguments(operation, manifest)
        return str(await self.call(known.state_hash, *args, **named))

    async def hashes(self, operations: Iterable[Operation]) -> Mapping[str, str]:
        """op_id → the hash of the state now, of those where it can be read in time."""
        found: dict[str, str] = {}

        async def look(operation: Operation, manifest: Manifest) -> None:
            try:
                found[operation.op_id] = await self.hash_of(operation, manifest)
            except Exception:  # noqa: BLE001 (a stranger's reader; what it cannot tell is not known)
                return

        known = [(o, m) for o in operations if (m := _sealed(o)) is not None and m.action.name in self._known]
        tasks = [asyncio.ensure_future(look(operation, manifest)) for operation, manifest in known]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=VERDICT_S)
            for task in late:
                task.cancel()
        return dict(found)

    async def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What a user's function gives, whether it is plain or to be awaited."""
        loop = self.loop

        def run() -> Any:
            value = function(*args, **named)
            if not inspect.isawaitable(value) or (loop is not None and loop.is_running()):
                return value
            return asyncio.run(_awaited(value))

        value = await asyncio.to_thread(run)
        if inspect.isawaitable(value) and loop is not None:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(value), loop))
        return value


def _unregistered(*actions: str) -> NotFoundError:
    return NotFoundError(
        f"no compensator is registered for {', '.join(actions)}. Nothing was undone.",
        next_step="Register it with `@ledger.compensator(action, state_hash=…)`, or name the module that does "
        "with `--compensators`.",
        field="compensator",
        actions=list(actions),
    )


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _require_fit(field: str, function: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Refuse what cannot be called as it will be: an inverse that fails so would be in doubt."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some builtins nobody can tell
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{field}: it cannot be called as it will be ({error}).",
            next_step="It is called as function(op, payload, idempotency_key), or state_hash(op).",
            field=field,
        ) from None


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _sealed(operation: Operation) -> Manifest | None:
    if operation.sealed_manifest is None or operation.settled is None:
        return None
    try:
        return read(operation.sealed_manifest, digest=operation.settled.manifest_digest)
    except ManifestError:
        return None
