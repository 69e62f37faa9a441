"""A session in a user's hands, for synchronous code and for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from . import divergence, sessions
from .argument_checks import check_names, check_text
from .asked import as_policy, as_word
from .at_once import Submit
from .attempt_faces import AsyncAttempt, Attempt
from .attempts import Claim
from .calls import Call, EffectOptions, Tool
from .context_faces import AsyncCompactionCalls, CompactionCalls
from .errors import FencedError, InvalidArgumentError
from .facts import EffectClass
from .identity import check_id
from .positions import Position
from .prune_verdicts import PruneVerdict
from .replay import ReplayedOperation
from .running import EffectFunction, current, decorated, wait
from .service import Service
from .undo import Undo
from .verdicts import Policy
from .watermarks import Watermark

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Opening:
    """How a session is to be opened."""

    agent: str
    branch: str
    resumed_from: str | Watermark | None = None
    scope: str = ""

    def __post_init__(self) -> None:
        if self.scope != "":
            check_id("scope", self.scope, limit=250)


class _SessionBase:
    """What both faces of a session share."""

    def __init__(
        self,
        service: Service,
        submit: Submit,
        opening: Opening,
    ) -> None:
        self.agent_id = opening.agent
        self.branch_id = opening.branch
        self.submit = submit
        self._service = service
        self._opening = opening
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
        claim = current.get()
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
        undo: Undo | None = None,
        secret: Sequence[str] = (),
        stable_ids: Sequence[str] = (),
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
            record: record the result of a READ, so that a dropped one can be recovered. It runs whenever it is asked
                for; where it then gives another result, that one is recorded as well (up to 8 of them), and after that
                only the digest of a dropped one says which is to be recovered.
            undo: how it is undone. A COMPENSATABLE effect must say so; an IDEMPOTENT one that is not
                order-safe may.
            secret: arguments whose values reach neither the log nor an error. In `identity` they
                still tell operations apart; see decision record 0009 for what that gives away.
            stable_ids: identity arguments, or keys within one ("order.uuid"), that are called like what a model
                or framework makes anew with each run, call, or retry (an id of a run, thread, tool call, or
                request, an idempotency key, a nonce, a time stamp, …), and name what the tool acts on; others
                of these names are refused as identity.
        """
        options = EffectOptions(
            tool=tool, kind=kind, order_safe=order_safe, deadline_s=deadline_s, wait_s=wait_s,
            longest_run_s=longest_run_s, not_executed=not_executed, record=record, undo=undo,
            secret=secret, stable_ids=stable_ids,
        )  # fmt: skip

        def decorate(function: Callable[P, T]) -> EffectFunction[P, T]:
            described = Tool(
                function=function,
                options=options,
                identity=None if identity is None else check_names("identity", identity),
                content=check_names("content", content),
                key=key,
                scope=scope,
                resource=resource,
                cascades=check_names("cascades", cascades),
                key_argument=key_argument,
            )
            return cast(EffectFunction[P, T], decorated(self, described))

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
        unknown = sorted(set(rest) - {f.name for f in fields(EffectOptions)})
        if unknown:
            raise InvalidArgumentError(
                f"{unknown[0]}: no such option of an attempt.",
                next_step="See `AgentSession.attempt` for those that there are.",
                field=unknown[0],
            )
        declared = EffectOptions(tool=tool, kind=kind, **rest)
        call = declared.call(
            scope=check_text("scope", options.get("scope", "")) or self.state.scope,
            key=key,
            identity=identity,
            content=content,
            occurrence=occurrence,
            **named,
        )
        return declared, call

    def _told(self, replayed: list[ReplayedOperation]) -> list[ReplayedOperation]:
        self.state.returned(*(operation.op_id for operation in replayed))
        return replayed

    def _on_branch(self, branch: str) -> Opening:
        return Opening(self.agent_id, branch, scope=self._state.scope if self._state else self._opening.scope)

    def _successor(self) -> Opening:
        return Opening(self.agent_id, self.branch_id, scope=self.state.scope)


class AgentSession(_SessionBase, CompactionCalls):
    """A session, synchronously. Safe to use from several threads."""

    _awaited: AsyncAgentSession | None = None

    def open(self) -> Self:
        """Open it: its predecessor is fenced. See `opening.open_session` for what it raises."""
        opening = self._service.open_session(
            self.agent_id, self.branch_id, resumed_from=self._opening.resumed_from, scope=self._opening.scope
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

    async def __aenter__(self) -> AsyncAgentSession:
        """The same session for asyncio, opened; `async with ledger.session(…)` gives its awaited calls."""
        self._awaited = AsyncAgentSession(self._service, self.submit, self._opening)
        return await self._awaited.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._awaited is not None:
            await self._awaited.close()

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
                not_executed, deadline_s, wait_s, longest_run_s, secret, stable_ids; and undo, an `UndoPath`.
        """
        declared, call = self._call_of(
            tool, kind, key=key, identity=identity, content=content, occurrence=occurrence, options=options
        )
        return Attempt(self, declared, call)

    def checkpoint(self, checkpoint_id: str, *, state_digest: str = "", generation: int | None = None) -> Watermark:
        """Register a checkpoint; the watermark's `token` belongs into the checkpoint's own state."""
        registering = self._service.checkpoint(
            self.state, checkpoint_id, self.state.standing(), state_digest=state_digest, generation=generation
        )
        mark: Watermark = wait(self.submit(registering))
        return mark

    def fork(self, branch: str, *, checkpoint: str) -> AgentSession:
        """Begin a branch of this agent at a checkpoint: a session on it, opened by `with` or by `.open()`.

        It has this session's scope, so that siblings derive the same op ids from the same arguments.
        """
        wait(self.submit(self._service.fork(self.agent_id, branch, checkpoint_id=checkpoint)))
        return AgentSession(self._service, self.submit, self._on_branch(branch))

    def prune(self, branch: str, *, by: str = "", evidence: str = "") -> PruneVerdict:
        """Close a branch of this agent for good, and say what it left behind; see `Ledger.prune_branch`.

        Raises FencedError once this session is over. Pruning its own branch ends it.
        """
        pruning = self._service.prune_from(self.state, branch, word=as_word(by, evidence))
        verdict: PruneVerdict = wait(self.submit(pruning))
        return verdict

    def rollback(
        self,
        checkpoint: str,
        *,
        policy: Policy | str = Policy.STRICT,
        restored: str = "",
        by: str = "",
        evidence: str = "",
    ) -> AgentSession:
        """Go back to a checkpoint: the successor session, opened. This one is over.

        Args:
            by, evidence: who wants it, and why, where a person does; recorded with the decision.

        Raises UnsafeRollbackError; then this session may be over as well (`verdict.fenced`).
        """
        successor = AgentSession(self._service, self.submit, self._successor())
        going_back = self._service.roll_back(
            self.state, checkpoint, as_policy(policy), restored, word=as_word(by, evidence)
        )
        return successor.adopt(wait(self.submit(going_back)))

    def replay_forward(self) -> list[ReplayedOperation]:
        """What this session does not know yet, in order; the committed ones are absorbed into it: it takes them over.

        From then on its checkpoints know them, whoever did or settled them; a probe or an operator who settles an
        effect writes for no session. What is undecided is told only, until it is settled and this is called again.
        """
        return self._told(wait(self.submit(self._service.take_over(self.state))))

    def report_call(
        self, tool: str, *, kind: EffectClass, order_safe: bool = False, by: str = "", evidence: str = ""
    ) -> None:
        """Record a call that did not go through the ledger, so that the guard counts it."""
        word = as_word(by, evidence)
        wait(self.submit(self._service.report_call(self.state, tool, kind, order_safe=order_safe, word=word)))

    def declare_new(self, op_id: str, *, by: str = "", evidence: str = "") -> None:
        """After a gated rollback: this held attempt is a new effect. See `divergence.declare` for what it raises."""
        word = as_word(by, evidence)
        wait(self.submit(divergence.declare_in_session(self.state, op_id, same_as=None, word=word)))

    def declare_same(self, op_id: str, *, as_: str, by: str = "", evidence: str = "") -> None:
        """After a gated rollback: this held attempt is the crossed effect `as_`."""
        word = as_word(by, evidence)
        wait(self.submit(divergence.declare_in_session(self.state, op_id, same_as=as_, word=word)))


class AsyncAgentSession(_SessionBase, AsyncCompactionCalls):
    """A session, for asyncio: the calls of `AgentSession`, awaited."""

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return cast(T, await asyncio.wrap_future(self.submit(work)))

    async def open(self) -> Self:
        """See `AgentSession.open`."""
        opening = self._service.open_session(
            self.agent_id, self.branch_id, resumed_from=self._opening.resumed_from, scope=self._opening.scope
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

    async def checkpoint(
        self, checkpoint_id: str, *, state_digest: str = "", generation: int | None = None
    ) -> Watermark:
        """See `AgentSession.checkpoint`."""
        registering = self._service.checkpoint(
            self.state, checkpoint_id, self.state.standing(), state_digest=state_digest, generation=generation
        )
        return await self._call(registering)

    async def fork(self, branch: str, *, checkpoint: str) -> AsyncAgentSession:
        """See `AgentSession.fork`; the session is opened by `async with` or by `await ….open()`."""
        await self._call(self._service.fork(self.agent_id, branch, checkpoint_id=checkpoint))
        return AsyncAgentSession(self._service, self.submit, self._on_branch(branch))

    async def prune(self, branch: str, *, by: str = "", evidence: str = "") -> PruneVerdict:
        """See `AgentSession.prune`."""
        return await self._call(self._service.prune_from(self.state, branch, word=as_word(by, evidence)))

    async def rollback(
        self,
        checkpoint: str,
        *,
        policy: Policy | str = Policy.STRICT,
        restored: str = "",
        by: str = "",
        evidence: str = "",
    ) -> AsyncAgentSession:
        """See `AgentSession.rollback`."""
        successor = AsyncAgentSession(self._service, self.submit, self._successor())
        going_back = self._service.roll_back(
            self.state, checkpoint, as_policy(policy), restored, word=as_word(by, evidence)
        )
        return successor.adopt(await self._call(going_back))

    async def replay_forward(self) -> list[ReplayedOperation]:
        """See `AgentSession.replay_forward`."""
        return self._told(await self._call(self._service.take_over(self.state)))

    async def report_call(
        self, tool: str, *, kind: EffectClass, order_safe: bool = False, by: str = "", evidence: str = ""
    ) -> None:
        """See `AgentSession.report_call`."""
        word = as_word(by, evidence)
        await self._call(self._service.report_call(self.state, tool, kind, order_safe=order_safe, word=word))

    async def declare_new(self, op_id: str, *, by: str = "", evidence: str = "") -> None:
        """See `AgentSession.declare_new`."""
        word = as_word(by, evidence)
        await self._call(divergence.declare_in_session(self.state, op_id, same_as=None, word=word))

    async def declare_same(self, op_id: str, *, as_: str, by: str = "", evidence: str = "") -> None:
        """See `AgentSession.declare_same`."""
        word = as_word(by, evidence)
        await self._call(divergence.declare_in_session(self.state, op_id, same_as=as_, word=word))
