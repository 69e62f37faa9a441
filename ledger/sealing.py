"""Sealing: the hash of the state that an effect left behind joins its manifest, in the record of its commit.

An effect that happened is recorded in any case. What cannot be sealed says why, and nobody undoes it by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from .errors import ManifestError
from .facts import EffectFact
from .manifests import Manifest
from .strangers import told
from .undo import BoundUndo, UndoPath, plain_payload, unread


@dataclass(frozen=True, slots=True)
class After:
    """What is known after the effect: the state's hash, and the payload that only the result knows.

    Attributes:
        payload: takes the place of the one from before; None keeps that.
        problem: why nothing is known.
    """

    post_state_hash: str = ""
    payload: Any = None
    problem: str = ""


NOTHING_KNOWN = After(problem="the hash of the state after the effect was not given")


def sealed(fact: EffectFact, manifest: Manifest | None, after: After, *, limit: int) -> EffectFact:
    """The commit with the sealed manifest; or with why there is none.

    Args:
        limit: bytes that a manifest may take.
    """
    if manifest is None:
        return fact
    if after.problem:
        return replace(fact, reason=_why(after.problem))
    try:
        payload = None if after.payload is None else plain_payload(after.payload)
        found = manifest.seal(post_state_hash=after.post_state_hash, payload=payload, result_digest=fact.result_digest)
        data = found.data
    except ManifestError as error:
        return replace(fact, reason=_why(error.message))
    except Exception as error:  # noqa: BLE001 (a stranger's value may raise anything; a commit it stays)
        return replace(fact, reason=_why(told(error)))
    if len(data) > limit:
        return replace(fact, reason=_why(f"it takes {len(data)} bytes, the limit is {limit}"))
    return replace(fact, manifest=data, manifest_digest=found.digest)


def _why(problem: str) -> str:
    return f"not sealed: {problem}"[:500].encode(errors="backslashreplace").decode()


# -- reading the state, in the caller's own thread or loop -------------------------------------
#
# What reads a state belongs to the tool's author, as the tool does, and may be bound to that thread or loop.


def path_before(bound: BoundUndo) -> UndoPath:
    """The path of a call that is about to run. Raises ManifestError: it must not run."""
    with bound.secrets.kept_out_of_errors():
        try:
            found = bound.state_hash()
            found = _alone(found) if isinstance(found, Awaitable) else found
        except Exception as error:
            raise unread("pre_state_hash", error) from error
        return bound.path(found)


async def path_before_async(bound: BoundUndo) -> UndoPath:
    """The same, awaited."""
    with bound.secrets.kept_out_of_errors():
        try:
            found = bound.state_hash()
            found = await found if isinstance(found, Awaitable) else found
        except Exception as error:
            raise unread("pre_state_hash", error) from error
        return bound.path(found)


def read_after(bound: BoundUndo, result: Any) -> After:
    """What is known after the effect. Raises nothing that is an ordinary error: the effect has happened."""
    try:
        found = bound.state_hash()
        found = _alone(found) if isinstance(found, Awaitable) else found
    except Exception as error:  # noqa: BLE001 (a commit is never lost by what reads the state)
        return unknown(error)
    return _payload(bound, found, result)


async def read_after_async(bound: BoundUndo, result: Any) -> After:
    """The same, awaited."""
    try:
        found = bound.state_hash()
        found = await found if isinstance(found, Awaitable) else found
    except Exception as error:  # noqa: BLE001 (a commit is never lost by what reads the state)
        return unknown(error)
    return _payload(bound, found, result)


def unknown(error: BaseException) -> After:
    """That reading the state after the effect failed, or was interrupted."""
    why = error.message if isinstance(error, ManifestError) else told(error)
    return After(problem=f"the state after the effect could not be read ({why})")


def _payload(bound: BoundUndo, state_hash: Any, result: Any) -> After:
    """What is known after the effect, once the state was read."""
    try:
        return After(state_hash, bound.payload_after(result))
    except Exception as error:  # noqa: BLE001 (a commit is never lost by what makes the payload)
        why = error.message if isinstance(error, ManifestError) else told(error)
        return After(problem=f"the payload of its undo could not be made: payload_after failed ({why})")


def _alone(awaitable: Awaitable[Any]) -> Any:
    """The result of an awaitable, in synchronous code that may itself run inside a loop."""

    async def wait() -> Any:
        return await awaitable

    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(wait()))
        except BaseException as error:  # noqa: BLE001 (handed over, whatever it is)
            done.set_exception(error)

    thread = threading.Thread(target=run, name="fencepost-state", daemon=True)
    thread.start()
    return done.result()
