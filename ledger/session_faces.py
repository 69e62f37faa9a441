"""A session in a user's hands: the decorator, the context manager, and plain calls."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast

from . import attempts, sessions
from .attempts import Call, Claim
from .calls import EffectOptions, Tool
from .errors import FencedError, InvalidArgumentError
from .facts import EffectClass, ResultForm
from .guard import Policy
from .positions import Position
from .replay import ReplayedOperation
from .service import Service
from .watermarks import Watermark

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]

_current: ContextVar[Claim | None] = ContextVar("fencepost_current", default=None)


class _SessionBase:
    """What both faces of a session share."""

    def __init__(
        self,
        service: Service,
        submit: Submit,
        agent: str,
        branch: str,
        resumed_from: str | Watermark | None,
        scope: str,
    ) -> None:
        self.agent_id = agent
        self.branch_id = branch
        self._service = service
        self.submit = submit
        self._resumed_from = resumed_from
        self._scope = scope
        self._state: sessions.SessionState | None = None

    @property
    def state(self) -> sessions.SessionState:
        """The opened session. Raises FencedError before `open()`."""
        if self._state is None:
            raise FencedError(
                f"the session of {self.agent_id}/{self.branch_id} is not open.",
                next_step="Enter it with `with` (or `async with`), or call `open()`.",
                session_id="",
                reason="not open",
            )
        return self._state

    def adopt(self, state: sessions.SessionState) -> Self:
        """Speak for a session that was opened elsewhere (by a rollback)."""
        self._state = state
        return self

    @property
    def session_id(self) -> str:
        """This session's id."""
        return self.state.session_id

    @property
    def epoch(self) -> Position:
        """The log position of the record that opened this session."""
        return self.state.epoch

    @property
    def seq(self) -> int:
        """The highest sequence number that this session has given out."""
        return self.state.sequence.last

    @property
    def current(self) -> Claim:
        """Inside a running effect: its claim, with `idempotency_key` and `round`."""
        claim = _current.get()
        if claim is None:
            raise InvalidArgumentError(
                "current: no effect is running here.",
                next_step="Read `current` inside the decorated function.",
                field="current",
            )
        return claim

    def effect(
        self,
        tool: str,
        *,
        kind: EffectClass,
        identity: Sequence[str] | None = None,
        content: Sequence[str] = (),
        key: Callable[..., str] | None = None,
        scope: str | Callable[..., str] = "",
        resource: str = "",
        cascades: Sequence[str] = (),
        order_safe: bool = False,
        key_argument: str = "",
        not_executed: tuple[type[BaseException], ...] = (),
        deadline_s: float = 30.0,
        wait_s: float = 30.0,
        longest_run_s: float | None = None,
        record: bool = False,
    ) -> Callable[[Callable[P, T]], EffectFunction[P, T]]:
        """Make a function (or coroutine function) an effect of the ledger.

        Args:
            tool: a stable name, never the function's: a rename must not fire anything again.
            kind: the effect's class; IRREVERSIBLE when in doubt.
            identity: arguments that make the operation what it is; all but `content` if not given.
            content: arguments that may be reworded without making it another operation.
            key: makes the business key from the arguments (given by name).
            scope: the unit of work for derived op ids; the session's if not given.
            resource: template of what it touches, for instance "order:{order}".
            cascades: templates of what else it changes.
            order_safe: an IDEMPOTENT effect of which a late repeat does no harm either.
            key_argument: the parameter that takes an idempotency key. The tool gets ours; what
                the caller passed is recorded and not used.
            not_executed: exception types that say that the effect certainly did not happen.
                Any other exception of a non-idempotent effect leaves it in doubt.
            deadline_s: from the intent to the start of the effect.
            wait_s: how long to wait for another owner's decision.
            longest_run_s: the longest that the tool can still act after it was started.
            record: record the result of a READ, so that a dropped one can be recovered.
        """
        options = EffectOptions(
            tool=tool, kind=kind, order_safe=order_safe, deadline_s=deadline_s, wait_s=wait_s,
            longest_run_s=longest_run_s, not_executed=not_executed, record=record,
        )  # fmt: skip

        def decorate(function: Callable[P, T]) -> EffectFunction[P, T]:
            described = Tool(
                function=function,
                options=options,
                identity=None if identity is None else tuple(identity),
                content=tuple(content),
                key=key,
                scope=scope,
                resource=resource,
                cascades=tuple(cascades),
                key_argument=key_argument,
            )
            return cast(EffectFunction[P, T], _decorated(self, described))

        return decorate

    def _call_of(
        self,
        tool: str,
        kind: EffectClass,
        *,
        key: str | None,
        identity: Mapping[str, Any] | None,
        content: Mapping[str, Any] | None,
        occurrence: int,
        options: Mapping[str, Any],
    ) -> tuple[EffectOptions, Call]:
        named = {name: options[name] for name in ("resource", "cascades", "supplied_key") if name in options}
        rest = {name: value for name, value in options.items() if name not in named and name != "scope"}
        declared = EffectOptions(tool=tool, kind=kind, **rest)
        call = declared.call(
            scope=options.get("scope", "") or self.state.scope,
            key=key,
            identity=identity,
            content=content,
            occurrence=occurrence,
            **named,
        )
        return declared, call


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


def _decorated(session: _SessionBase, tool: Tool) -> Any:
    def numbered(number: int) -> Any:
        if inspect.iscoroutinefunction(tool.function):

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
# `_outcome_of`, once for both.


def _run_sync(session: _SessionBase, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Any:
    call = tool.bind(args, kwargs, scope=session.state.scope, occurrence=number)
    if _unrecorded(tool):
        return tool.function(*args, **kwargs)
    claim = wait(session.submit(attempts.begin(session.state, call)))
    if not claim.owned and not _reads_again(tool):
        return _recorded(tool, claim)
    token = _current.set(claim)
    try:
        args, kwargs = tool.arguments(args, kwargs, claim.idempotency_key)
        claim.start()
        value = tool.function(*args, **kwargs)
    except BaseException as error:
        wait(session.submit(_outcome_of(claim, tool.options, error)))
        raise
    finally:
        _current.reset(token)
    if claim.owned:
        wait(session.submit(attempts.commit(claim, value, encode=tool.encode)))
    return value


async def _run_async(
    session: _SessionBase, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], number: int
) -> Any:
    call = tool.bind(args, kwargs, scope=session.state.scope, occurrence=number)
    if _unrecorded(tool):
        return await tool.function(*args, **kwargs)
    claim = await asyncio.wrap_future(session.submit(attempts.begin(session.state, call)))
    if not claim.owned and not _reads_again(tool):
        return _recorded(tool, claim)
    token = _current.set(claim)
    try:
        args, kwargs = tool.arguments(args, kwargs, claim.idempotency_key)
        claim.start()
        value = await tool.function(*args, **kwargs)
    except BaseException as error:
        # Shielded: a cancelled task must still record what it knows.
        await asyncio.shield(asyncio.wrap_future(session.submit(_outcome_of(claim, tool.options, error))))
        raise
    finally:
        _current.reset(token)
    if claim.owned:
        settle = attempts.commit(claim, value, encode=tool.encode)
        await asyncio.shield(asyncio.wrap_future(session.submit(settle)))
    return value


async def _outcome_of(claim: Claim, options: EffectOptions, error: BaseException) -> None:
    """Record what an exception out of an effect says about it."""
    if not claim.owned or claim.decided:
        return
    why = f"{type(error).__name__}: {error}"[:500]
    if not claim.started or options.certainly_not(error) or claim.call.unconfirmed:
        await attempts.fail(claim, why)
    else:
        await attempts.doubt(claim, why)


def _unrecorded(tool: Tool) -> bool:
    """Reads go past the ledger unless their results are to be recorded."""
    return tool.options.kind is EffectClass.READ and not tool.options.record


def _reads_again(tool: Tool) -> bool:
    """A read runs whenever it is asked for; its first result stays recorded."""
    return tool.options.kind is EffectClass.READ


def _recorded(tool: Tool, claim: Claim) -> Any:
    settled = claim.operation.settled
    if claim.operation.result_form is ResultForm.JSON and settled is not None and settled.result is not None:
        try:
            return tool.decode(settled.result)
        except ValueError:  # recorded under another annotation: give what is there
            return claim.recorded_result()
    return claim.recorded_result()


def wait(future: Future[T]) -> T:
    """The future's result; an interrupted wait cancels the work."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


# -- attempts --------------------------------------------------------------------------


class _AttemptBase:
    """An attempt in a user's hands. Reading `owned` as True takes the permit to run."""

    def __init__(self, session: _SessionBase, options: EffectOptions, call: Call) -> None:
        self._session = session
        self._options = options
        self._call = call
        self._claim: Claim | None = None

    @property
    def claim(self) -> Claim:
        """The claim, once it was begun."""
        if self._claim is None:
            raise InvalidArgumentError("attempt: it was not begun.", next_step="Enter it with `with`.", field="attempt")
        return self._claim

    @property
    def op_id(self) -> str:
        """The operation's id."""
        return self._call.op_id

    @property
    def owned(self) -> bool:
        """Whether this attempt may run the effect, now and once; reading True starts it.

        Raises StaleProjectionError past the deadline: it was withdrawn, run nothing.
        """
        claim = self.claim
        if claim.owned:
            claim.start()
        return claim.owned

    @property
    def idempotency_key(self) -> str:
        """The key to hand to the tool."""
        return self.claim.idempotency_key

    @property
    def round(self) -> int:
        """The operation's round, from 1."""
        return self.claim.round

    @property
    def result(self) -> Any:
        """Its own result once committed, or the recorded one. Raises ResultNotRecordedError."""
        claim = self.claim
        return claim.value if claim.owned else claim.recorded_result()

    async def _begin(self) -> None:
        self._claim = await attempts.begin(self._session.state, self._call)

    async def _leave(self, error: BaseException | None) -> None:
        claim = self.claim
        if not claim.owned or claim.decided:
            return
        if error is not None:
            await _outcome_of(claim, self._options, error)
        elif not claim.started:
            await attempts.fail(claim, "withdrawn: it was never started")
        else:
            await attempts.doubt(claim, "left without saying whether the effect happened")

    async def _commit(self, value: Any, reference: str) -> None:
        self._require_open()
        await attempts.commit(self.claim, value, reference=reference)

    async def _fail(self, why: str) -> None:
        self._require_open()
        await attempts.fail(self.claim, why)

    async def _doubt(self, why: str) -> None:
        self._require_open()
        await attempts.doubt(self.claim, why)

    def _require_open(self) -> None:
        claim = self.claim
        if not claim.owned or claim.decided:
            state = claim.decided or "not owned by this attempt"
            raise InvalidArgumentError(
                f"attempt: {self.op_id} is {state}; it cannot be decided again.",
                next_step="Read `result`.",
                field="attempt",
            )
        claim.started = True


class Attempt(_AttemptBase):
    """An attempt, synchronously: a context manager, or begun and decided by plain calls."""

    def begin(self) -> Self:
        """Claim the operation, or learn what became of it; see `attempts.begin` for what it raises."""
        wait(self._session.submit(self._begin()))
        return self

    def commit(self, value: Any = None, *, reference: str = "") -> None:
        """The effect happened. `reference`: where a result that is too large can be found."""
        wait(self._session.submit(self._commit(value, reference)))

    def fail(self, why: str = "") -> None:
        """The effect certainly did not happen; the operation is free again."""
        wait(self._session.submit(self._fail(why)))

    def doubt(self, why: str = "") -> None:
        """The effect may or may not have happened."""
        wait(self._session.submit(self._doubt(why)))

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait(self._session.submit(self._leave(error)))


class AsyncAttempt(_AttemptBase):
    """An attempt, for asyncio."""

    async def begin(self) -> Self:
        """See `Attempt.begin`."""
        await asyncio.wrap_future(self._session.submit(self._begin()))
        return self

    async def commit(self, value: Any = None, *, reference: str = "") -> None:
        """See `Attempt.commit`."""
        await asyncio.shield(asyncio.wrap_future(self._session.submit(self._commit(value, reference))))

    async def fail(self, why: str = "") -> None:
        """See `Attempt.fail`."""
        await asyncio.shield(asyncio.wrap_future(self._session.submit(self._fail(why))))

    async def doubt(self, why: str = "") -> None:
        """See `Attempt.doubt`."""
        await asyncio.shield(asyncio.wrap_future(self._session.submit(self._doubt(why))))

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.wrap_future(self._session.submit(self._leave(error))))


# -- the two faces of a session --------------------------------------------------------


class AgentSession(_SessionBase):
    """A session, synchronously. Safe to use from several threads."""

    def open(self) -> Self:
        """Open it: its predecessor is fenced. See `sessions.open_session` for what it raises."""
        opening = self._service.open_session(
            self.agent_id, self.branch_id, resumed_from=self._resumed_from, scope=self._scope
        )
        self._state = wait(self.submit(opening))
        return self

    def close(self) -> None:
        """Seal its last number. Raises what its background publishing raised."""
        if self._state is not None:
            wait(self.submit(sessions.close_session(self._state)))

    def __enter__(self) -> Self:
        return self if self._state is not None else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def attempt(
        self,
        tool: str,
        *,
        kind: EffectClass,
        key: str | None = None,
        identity: Mapping[str, Any] | None = None,
        content: Mapping[str, Any] | None = None,
        occurrence: int = 1,
        **options: Any,
    ) -> Attempt:
        """One attempt at an operation; use it with `with`, or `begin()` and decide.

        Args:
            options: as of `effect`: scope, resource, cascades, order_safe, supplied_key,
                not_executed, deadline_s, wait_s, longest_run_s.
        """
        declared, call = self._call_of(
            tool, kind, key=key, identity=identity, content=content, occurrence=occurrence, options=options
        )
        return Attempt(self, declared, call)

    def checkpoint(self, checkpoint_id: str, *, state_digest: str = "", generation: int = 0) -> Watermark:
        """Register a checkpoint; the watermark's `token` belongs into the checkpoint's own state."""
        registering = self._service.checkpoint(
            self.state, checkpoint_id, state_digest=state_digest, generation=generation
        )
        mark: Watermark = wait(self.submit(registering))
        return mark

    def fork(self, branch: str, *, checkpoint: str) -> None:
        """Begin a branch of this agent at a checkpoint; open it with `ledger.session(agent, branch)`."""
        wait(self.submit(self._service.fork(self.agent_id, branch, checkpoint_id=checkpoint)))

    def rollback(self, checkpoint: str, *, policy: Policy | str = Policy.STRICT, restored: str = "") -> AgentSession:
        """Go back to a checkpoint: the successor session, opened. This one is over.

        Raises UnsafeRollbackError; then this session may be over as well (`verdict.fenced`).
        """
        successor = AgentSession(self._service, self.submit, self.agent_id, self.branch_id, None, self.state.scope)
        going_back = self._service.roll_back(self.state, checkpoint, str(policy), restored)
        return successor.adopt(wait(self.submit(going_back)))

    def replay_forward(self) -> list[ReplayedOperation]:
        """What this session does not know yet, in order; the committed ones are absorbed into it."""
        return wait(self.submit(self._service.take_over(self.state)))

    def report_call(self, tool: str, *, kind: EffectClass, order_safe: bool = False) -> None:
        """Record a call that did not go through the ledger, so that the guard counts it."""
        wait(self.submit(self._service.report_call(self.state, tool, kind, order_safe=order_safe)))

    def declare_new(self, op_id: str) -> None:
        """After a gated rollback: this held attempt is a new effect."""
        wait(self.submit(sessions.declare(self.state, op_id, same_as=None)))

    def declare_same(self, op_id: str, *, as_: str) -> None:
        """After a gated rollback: this held attempt is the crossed effect `as_`."""
        wait(self.submit(sessions.declare(self.state, op_id, same_as=as_)))


class AsyncAgentSession(_SessionBase):
    """A session, for asyncio: the calls of `AgentSession`, awaited."""

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return cast(T, await asyncio.wrap_future(self.submit(work)))

    async def open(self) -> Self:
        """See `AgentSession.open`."""
        opening = self._service.open_session(
            self.agent_id, self.branch_id, resumed_from=self._resumed_from, scope=self._scope
        )
        self._state = await self._call(opening)
        return self

    async def close(self) -> None:
        """See `AgentSession.close`."""
        if self._state is not None:
            closing = asyncio.wrap_future(self.submit(sessions.close_session(self._state)))
            await asyncio.shield(closing)

    async def __aenter__(self) -> Self:
        return self if self._state is not None else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def attempt(
        self,
        tool: str,
        *,
        kind: EffectClass,
        key: str | None = None,
        identity: Mapping[str, Any] | None = None,
        content: Mapping[str, Any] | None = None,
        occurrence: int = 1,
        **options: Any,
    ) -> AsyncAttempt:
        """One attempt at an operation; use it with `async with`. See `AgentSession.attempt`."""
        declared, call = self._call_of(
            tool, kind, key=key, identity=identity, content=content, occurrence=occurrence, options=options
        )
        return AsyncAttempt(self, declared, call)

    async def checkpoint(self, checkpoint_id: str, *, state_digest: str = "", generation: int = 0) -> Watermark:
        """See `AgentSession.checkpoint`."""
        return await self._call(
            self._service.checkpoint(self.state, checkpoint_id, state_digest=state_digest, generation=generation)
        )

    async def fork(self, branch: str, *, checkpoint: str) -> None:
        """See `AgentSession.fork`."""
        await self._call(self._service.fork(self.agent_id, branch, checkpoint_id=checkpoint))

    async def rollback(
        self, checkpoint: str, *, policy: Policy | str = Policy.STRICT, restored: str = ""
    ) -> AsyncAgentSession:
        """See `AgentSession.rollback`."""
        successor = AsyncAgentSession(self._service, self.submit, self.agent_id, self.branch_id, None, self.state.scope)
        going_back = self._service.roll_back(self.state, checkpoint, str(policy), restored)
        return successor.adopt(await self._call(going_back))

    async def replay_forward(self) -> list[ReplayedOperation]:
        """See `AgentSession.replay_forward`."""
        return await self._call(self._service.take_over(self.state))

    async def report_call(self, tool: str, *, kind: EffectClass, order_safe: bool = False) -> None:
        """See `AgentSession.report_call`."""
        await self._call(self._service.report_call(self.state, tool, kind, order_safe=order_safe))

    async def declare_new(self, op_id: str) -> None:
        """See `AgentSession.declare_new`."""
        await self._call(sessions.declare(self.state, op_id, same_as=None))

    async def declare_same(self, op_id: str, *, as_: str) -> None:
        """See `AgentSession.declare_same`."""
        await self._call(sessions.declare(self.state, op_id, same_as=as_))
