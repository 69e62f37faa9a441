"""An attempt in a user's hands: a context manager, or begun and decided by plain calls."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from . import attempts, settling
from .argument_checks import check_flag, check_text
from .at_once import Host
from .attempts import Claim
from .calls import Call, EffectOptions
from .errors import InvalidArgumentError, StaleProjectionError, StoreClosedError
from .facts import EffectFact
from .running import begun, begun_async, commit, commit_async, outcome_of, settle, settled
from .sealing import NOTHING_KNOWN, After


class _AttemptBase:
    """An attempt in a user's hands. Once `begin` has returned, the effect may have run, whatever was read of it.

    So an attempt that is left undecided is in doubt; it is free again only if it says so (`fail`), or if `owned`
    refused to let it start.
    """

    def __init__(self, session: Host, options: EffectOptions, call: Call) -> None:
        self._session = session
        self._options = options
        self._call = call
        self._claim: Claim | None = None
        self._entered = False

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

        Raises:
            StaleProjectionError: past the deadline; it was withdrawn, run nothing.
            FencedError: its session was closed meanwhile.
            InvalidArgumentError: it failed or is in doubt; run nothing.
        """
        self._start()
        if self.claim.decided not in {"", settling.COMMITTED} and self.claim.owned:
            raise self._decided()
        return self.claim.owned

    @property
    def idempotency_key(self) -> str:
        """The key to hand to the tool; reading it starts the effect, and raises, as reading `owned` does."""
        self._start()
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
        if claim.owned:
            claim.hand_over()
        else:
            claim.returned()
        self._claim = claim
        return self

    def _start(self) -> None:
        claim = self.claim
        if not claim.owned:
            return
        if claim.decided and not claim.started:
            raise self._decided()
        try:
            claim.start()
        except StaleProjectionError:
            claim.refuse()
            if not self._entered:  # else leaving does it
                withdrawal = self._withdrawn()
                try:
                    self._session.submit(withdrawal)
                except StoreClosedError:  # then so is its session
                    withdrawal.close()
            raise

    async def _withdrawn(self) -> None:
        attempts.withdraw_claim(self.claim)

    async def _leave(self, error: BaseException | None) -> None:
        claim = self.claim
        if not claim.owned or claim.decided:
            return
        if error is not None:
            await outcome_of(claim, self._options, error)
        elif not claim.may_have_run:
            await settling.fail(claim, "withdrawn: it was not started in time")
        else:
            await settling.doubt(claim, "left without saying whether the effect happened")

    def _committed(self, value: Any, reference: str, post_state_hash: str | None, payload: Any) -> EffectFact:
        check_text("reference", reference)
        if post_state_hash is not None:
            check_text("post_state_hash", post_state_hash)
        self._require_open()
        self._ran()
        after = NOTHING_KNOWN if post_state_hash is None else After(post_state_hash, payload)
        return settling.committed(self.claim, value, reference=reference, after=after)

    async def _fail(self, why: str, *, key_voided: bool) -> None:
        check_text("why", why)
        check_flag("key_voided", key_voided)
        self._require_open()
        await settling.fail(self.claim, why, key_voided=key_voided)

    async def _doubt(self, why: str) -> None:
        check_text("why", why)
        self._require_open()
        self._ran()
        await settling.doubt(self.claim, why)

    def _ran(self) -> None:
        """Note that the effect was begun, whether or not its permit was asked for."""
        self.claim.session.told(self.claim.attempt_id, ran=True)

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

    def _decided(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"attempt: that at {self.op_id} is over: {self.claim.decided}. Nothing may be run by it any more.",
            next_step="Look with `fencepost ops show`; what is wanted again takes an attempt of its own.",
            field="attempt",
        )


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
        self._entered = True
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
        self._entered = True
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await settled(self._session.submit(self._leave(error)))
