"""An attempt in a user's hands: a context manager, or begun and decided by plain calls."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from . import settling
from .at_once import Host
from .attempts import Claim
from .calls import Call, EffectOptions
from .errors import InvalidArgumentError
from .facts import EffectFact
from .running import begun, begun_async, commit, commit_async, outcome_of, settle, settled
from .sealing import NOTHING_KNOWN, After


class _AttemptBase:
    """An attempt in a user's hands. Reading `owned` as True takes the permit to run."""

    def __init__(self, session: Host, options: EffectOptions, call: Call) -> None:
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

    def _got(self, claim: Claim) -> Self:
        self._claim = claim
        if not claim.owned:
            claim.returned()
        return self

    async def _leave(self, error: BaseException | None) -> None:
        claim = self.claim
        if not claim.owned or claim.decided:
            return
        if error is not None:
            await outcome_of(claim, self._options, error)
        elif not claim.started:
            await settling.fail(claim, "withdrawn: it was never started")
        else:
            await settling.doubt(claim, "left without saying whether the effect happened")

    def _committed(self, value: Any, reference: str, post_state_hash: str | None, payload: Any) -> EffectFact:
        self._require_open()
        self._ran()
        after = NOTHING_KNOWN if post_state_hash is None else After(post_state_hash, payload)
        return settling.committed(self.claim, value, reference=reference, after=after)

    async def _fail(self, why: str, *, key_voided: bool) -> None:
        self._require_open()
        await settling.fail(self.claim, why, key_voided=key_voided)

    async def _doubt(self, why: str) -> None:
        self._require_open()
        self._ran()
        await settling.doubt(self.claim, why)

    def _ran(self) -> None:
        """Note that the effect was begun, whether or not its permit was asked for."""
        self.claim.session.starts(self.claim.attempt_id)

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
        return self._got(begun(self._session, self._call))

    def commit(
        self, value: Any = None, *, reference: str = "", post_state_hash: str | None = None, payload: Any = None
    ) -> None:
        """The effect happened.

        Args:
            reference: where a result that is too large can be found.
            post_state_hash: of what the effect left behind; without it nobody can undo it by itself.
            payload: for the compensator, in place of the one from before, when it needs what came out.
        """
        commit(self._session, self.claim, self._committed(value, reference, post_state_hash, payload))
        self.claim.returned()

    def fail(self, why: str = "", *, key_voided: bool = False) -> None:
        """The effect certainly did not happen; the operation is free again.

        Args:
            key_voided: the provider refused the idempotency key as void; see `KeyVoided`.
        """
        settle(self._session.submit(self._fail(why, key_voided=key_voided)))

    def doubt(self, why: str = "") -> None:
        """The effect may or may not have happened."""
        settle(self._session.submit(self._doubt(why)))

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        settle(self._session.submit(self._leave(error)))


class AsyncAttempt(_AttemptBase):
    """An attempt, for asyncio."""

    async def begin(self) -> Self:
        """See `Attempt.begin`."""
        return self._got(await begun_async(self._session, self._call))

    async def commit(
        self, value: Any = None, *, reference: str = "", post_state_hash: str | None = None, payload: Any = None
    ) -> None:
        """See `Attempt.commit`."""
        fact = self._committed(value, reference, post_state_hash, payload)
        await commit_async(self._session, self.claim, fact)
        self.claim.returned()

    async def fail(self, why: str = "", *, key_voided: bool = False) -> None:
        """See `Attempt.fail`."""
        await settled(self._session.submit(self._fail(why, key_voided=key_voided)))

    async def doubt(self, why: str = "") -> None:
        """See `Attempt.doubt`."""
        await settled(self._session.submit(self._doubt(why)))

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await settled(self._session.submit(self._leave(error)))
