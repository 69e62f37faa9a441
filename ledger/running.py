"""Running a decorated function: begin, the function itself, and what its end says of the effect."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypeVar

from . import at_once, attempts, sealing, settling, straight, strangers
from .at_once import Host
from .attempts import Claim
from .calls import Call, EffectOptions, Tool
from .errors import InvalidArgumentError, StoreClosedError
from .facts import EffectClass, EffectFact, ResultForm
from .sealing import NOTHING_KNOWN, After
from .tool_words import EffectNotExecuted, says_key_voided
from .undo import BoundUndo, UndoPath

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")
Declared = BoundUndo | UndoPath | None

current: ContextVar[Claim | None] = ContextVar("fencepost_current", default=None)
"""The claim of the effect that runs here."""


class EffectFunction(Protocol[P, R_co]):
    """A decorated function: runs the effect at most once a round, or returns the recorded result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it, or get the recorded result."""
        ...

    def occurrence(self, number: int) -> Callable[P, R_co]:
        """The same function for the `number`-th wanted repeat, from 1."""
        ...

    def op_id(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The op_id that this call would have; runs nothing."""
        ...


def decorated(session: Host, tool: Tool) -> Any:
    """The function of a tool, run through the ledger: see `EffectFunction`."""

    def numbered(number: int) -> Any:
        if tool.is_awaited:

            @functools.wraps(tool.function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return await _run_async(session, tool, args, kwargs, number)

            return awaited

        @functools.wraps(tool.function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return _run_sync(session, tool, args, kwargs, number)

        return plain

    def op_id(*args: Any, **kwargs: Any) -> str:
        return tool.bind(args, kwargs, scope=session.state.scope, occurrence=1).op_id

    function = numbered(1)
    function.occurrence = numbered
    function.op_id = op_id
    return function


# -- running ---------------------------------------------------------------------------
#
# The two runners differ only in `await`; what happens to an exception is decided by
# `outcome_of`, once for both. Settling is never cancelled: an interrupted wait leaves it going on.


def _run_sync(session: Host, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Any:
    call = tool.bind(args, kwargs, scope=session.state.scope, occurrence=number)
    if _unrecorded(tool):
        return tool.function(*args, **kwargs)
    claim = begun(session, call)
    if not claim.owned and not _reads_again(tool):
        return _recorded(tool, claim)
    token = current.set(claim)
    try:
        args, kwargs = tool.arguments(args, kwargs, claim.idempotency_key)
        claim.start()
        value = _run(tool, args, kwargs)
    except BaseException as error:
        settle(session.submit(outcome_of(claim, tool.options, error)))
        raise
    finally:
        current.reset(token)
    if claim.owned:
        after = _read_after(session, tool, claim, call.undo, value)
        commit(session, claim, settling.committed(claim, value, encode=tool.encode, after=after))
    elif (reading := settling.reading(claim, value, encode=tool.encode)) is not None:
        commit(session, claim, reading)
    claim.returned()
    return value


async def _run_async(session: Host, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Any:
    call = tool.bind(args, kwargs, scope=session.state.scope, occurrence=number)
    if _unrecorded(tool):
        return await tool.function(*args, **kwargs)
    claim = await begun_async(session, call)
    if not claim.owned and not _reads_again(tool):
        return _recorded(tool, claim)
    token = current.set(claim)
    try:
        args, kwargs = tool.arguments(args, kwargs, claim.idempotency_key)
        claim.start()
        value = await tool.function(*args, **kwargs)
    except BaseException as error:
        await settled(session.submit(outcome_of(claim, tool.options, error)))
        raise
    finally:
        current.reset(token)
    if claim.owned:
        after = await _read_after_async(session, tool, claim, call.undo, value)
        await commit_async(session, claim, settling.committed(claim, value, encode=tool.encode, after=after))
    elif (reading := settling.reading(claim, value, encode=tool.encode)) is not None:
        await commit_async(session, claim, reading)
    claim.returned()
    return value


def _read_after(session: Host, tool: Tool, claim: Claim, undo: Declared, value: Any) -> After:
    """What is known after the effect; an interruption of the reading still commits it."""
    if not isinstance(undo, BoundUndo):
        return NOTHING_KNOWN
    try:
        return sealing.read_after(undo, value)
    except BaseException as error:
        commit(session, claim, settling.committed(claim, value, encode=tool.encode, after=sealing.unknown(error)))
        raise


async def _read_after_async(session: Host, tool: Tool, claim: Claim, undo: Declared, value: Any) -> After:
    """The same, awaited; a cancellation too."""
    if not isinstance(undo, BoundUndo):
        return NOTHING_KNOWN
    try:
        return await sealing.read_after_async(undo, value)
    except BaseException as error:
        unsealed = settling.committed(claim, value, encode=tool.encode, after=sealing.unknown(error))
        await commit_async(session, claim, unsealed)
        raise


def _run(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function's result; a coroutine that it returns has not run yet, and is not run."""
    value = tool.function(*args, **kwargs)
    if inspect.iscoroutine(value):
        value.close()
        raise _NotRunError(
            f"function: {tool.options.tool} returned a coroutine, which was not run.",
            next_step="Decorate the coroutine function itself (`async def`).",
            field="function",
        )
    return value


class _NotRunError(InvalidArgumentError, EffectNotExecuted):
    """The effect certainly did not happen."""


def commit(session: Host, claim: Claim, fact: EffectFact) -> None:
    """Publish a commit. An interrupted wait leaves it going on.

    Raises OutcomeUnknownError, the result attached, when it cannot be published.
    """
    try:
        if at_once.settled_here(claim, fact) or straight.settled_here(claim, fact):
            settling.close(claim, settling.COMMITTED)
            return
    except BaseException:  # whatever became of it: the very same fact once more changes nothing
        _publishing(session, claim, fact)
        raise
    settle(_publishing(session, claim, fact))


async def commit_async(session: Host, claim: Claim, fact: EffectFact) -> None:
    """The same, awaited; a cancellation leaves it going on."""
    try:
        if await at_once.settled(claim, fact) or await straight.settled(claim, fact):
            settling.close(claim, settling.COMMITTED)
            return
    except BaseException:
        _publishing(session, claim, fact)
        raise
    await settled(_publishing(session, claim, fact))


def _publishing(session: Host, claim: Claim, fact: EffectFact) -> Future[None]:
    """The commit, under way. Raises OutcomeUnknownError, the result attached, when the ledger is closed."""
    try:
        return session.submit(settling.settle(claim, fact, settling.COMMITTED))
    except StoreClosedError as error:
        raise settling.unpublished(claim, settling.COMMITTED, claim.value) from error


def begun(session: Host, call: Call) -> Claim:
    """The claim on a call. Interrupted, it is withdrawn, even if it was there already.

    What reads the state before the effect runs here, in the caller's thread, and only once the effect
    is to be run: an effect that was done before is not asked for its state.
    """
    while True:
        if (soon := at_once.begun_here(session, call)) is not None:
            return soon
        with _taken_back(session) as claims:
            claim: Claim = wait(session.submit(_begin(session, call, claims)))
        if not (claim.wants_path and isinstance(call.undo, BoundUndo)):
            return claim
        call = replace(call, undo=sealing.path_before(call.undo), undo_round=claim.round)


async def begun_async(session: Host, call: Call) -> Claim:
    """The same, awaited; cancelled, it is withdrawn."""
    while True:
        if (soon := await at_once.begun(session, call)) is not None:
            return soon
        with _taken_back(session) as claims:
            claim: Claim = await asyncio.wrap_future(session.submit(_begin(session, call, claims)))
        if not (claim.wants_path and isinstance(call.undo, BoundUndo)):
            return claim
        call = replace(call, undo=await sealing.path_before_async(call.undo), undo_round=claim.round)


@contextlib.contextmanager
def _taken_back(session: Host) -> Iterator[list[Claim]]:
    """A place for a claim that is being begun; an interruption (no ordinary error) withdraws what came into it."""
    claims: list[Claim] = []
    try:
        yield claims
    except Exception:
        raise
    except BaseException:
        session.submit(_take_back(claims))
        raise


async def _begin(session: Host, call: Call, claims: list[Claim]) -> Claim:
    claim = await attempts.begin(session.state, call)
    claims.append(claim)
    return claim


async def _take_back(claims: list[Claim]) -> None:
    """Withdraw a claim that its caller never heard of; runs after the cancellation of what began it."""
    for claim in claims:
        if claim.owned and not claim.started and not claim.decided:
            claim.session.in_background(settling.fail(claim, "withdrawn: whoever began it was gone"))


async def outcome_of(claim: Claim, options: EffectOptions, error: BaseException) -> None:
    """Record what an exception out of an effect says about it."""
    if not claim.owned or claim.decided:
        return
    why = strangers.told(error, longest=strangers.UNCUT)
    if not claim.may_have_run or options.certainly_not(error) or claim.call.unconfirmed:
        await settling.fail(claim, why, key_voided=claim.may_have_run and says_key_voided(error))
    else:
        await settling.doubt(claim, why)


def _unrecorded(tool: Tool) -> bool:
    """Reads go past the ledger unless their results are to be recorded."""
    return tool.options.kind is EffectClass.READ and not tool.options.record


def _reads_again(tool: Tool) -> bool:
    """A read runs whenever it is asked for; another result than the recorded ones is recorded beside them."""
    return tool.options.kind is EffectClass.READ


def _recorded(tool: Tool, claim: Claim) -> Any:
    settled = claim.operation.settled
    try:
        if claim.operation.result_form is ResultForm.JSON and settled is not None and settled.result is not None:
            with contextlib.suppress(ValueError):  # recorded under another annotation: give what is there
                return tool.decode(settled.result)
        return claim.recorded_result()
    finally:
        claim.returned()


def wait(future: Future[T]) -> T:
    """The future's result; an interrupted wait cancels the work."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def settle(future: Future[T]) -> T:
    """As `wait`, but an interrupted wait leaves the work going on: it records what happened."""
    return future.result()


async def settled(future: Future[T]) -> T:
    """As `settle`, for asyncio: a cancelled task leaves the work going on."""
    return await asyncio.shield(asyncio.wrap_future(future))
