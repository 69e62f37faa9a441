"""Why an attempt may not begin, or not start: the errors that say so."""

from __future__ import annotations

from typing import Any

from .calls import Call
from .errors import FencedError, OperationInDoubtError, StaleProjectionError
from .sessions import SessionState


def in_doubt(call: Call, why: str, **details: Any) -> OperationInDoubtError:
    """Nobody can say whether the effect happened."""
    return OperationInDoubtError(
        f"operation {call.op_id} ({call.tool}) is in doubt: {why}. It may or may not have happened.",
        next_step="Find out outside, then settle it with `fencepost in-doubt resolve` or a probe.",
        **{"op_id": call.op_id, **details},
    )


def given_up(session: SessionState, call: Call) -> FencedError:
    """Its session was closed before its caller had the claim, and withdrew it."""
    return FencedError(
        f"the intent for {call.op_id} was withdrawn: its session was closed meanwhile. Nothing was run.",
        next_step="Open a new session and replay forward.",
        session_id=session.session_id,
        reason="closed",
    )


def left_open(session: SessionState, call: Call) -> FencedError:
    """Its session was closed when its caller had the claim, and could not know whether the effect was begun."""
    return FencedError(
        f"the session of the attempt at {call.op_id} was closed before it was decided. It is in doubt; run nothing.",
        next_step="Settle it with `fencepost in-doubt resolve`; open a new session for what is to be done.",
        session_id=session.session_id,
        reason="closed",
    )


def late(call: Call, session: SessionState) -> StaleProjectionError:
    """Its deadline has passed; how that comes about depends on the store."""
    if session.engine.store.at_once is None:
        step = "See `fencepost projector lag`; start one with `fencepost projector run`."
    else:
        step = "Begin it anew, and start what it does at once; a slow caller takes a longer `deadline_s`."
    return StaleProjectionError(
        f"the effect of {call.op_id} was not confirmed and started within {call.deadline_s:g} s. Its intent was "
        "withdrawn; nothing was run.",
        next_step=step,
        op_id=call.op_id,
    )
