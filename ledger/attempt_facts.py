"""The facts of an attempt, numbered as they are made."""

from __future__ import annotations

from typing import Any

from .calls import Call
from .facts import EffectFact, EffectKind
from .operations import Operation
from .sessions import SessionState


def intent(
    session: SessionState, call: Call, attempt_id: str, operation: Operation, *, manifest: bytes | None = None
) -> EffectFact:
    """The fact that claims an operation.

    Args:
        manifest: how the effect is undone, as far as that is known before it.
    """
    fact = EffectFact(
        kind=EffectKind.INTENDED,
        arguments=_kept(session, call),
        resource=call.resource,
        cascades=call.cascades,
        supplied_key=text(call.supplied_key, 200),
        idempotency_key=operation.idempotency_key,
        deadline_s=call.deadline_s,
        longest_run_s=call.longest_run_s,
        manifest=manifest,
        **_common(session, call, attempt_id, operation.round),
    )
    return call.secrets.kept_out(fact)


def text(value: str, limit: int) -> str:
    """What somebody said, in a form that can always be written: it must not keep an outcome from the log."""
    return value[:limit].encode(errors="backslashreplace").decode()


def _kept(session: SessionState, call: Call) -> bytes | None:
    if call.arguments is None or len(call.arguments) > session.engine.limits.max_arguments_bytes:
        return None
    return call.arguments


def outcome(
    session: SessionState, call: Call, attempt_id: str, round_number: int, kind: EffectKind, **said: Any
) -> EffectFact:
    """The fact that says what became of an attempt; `said` are further fields of it."""
    kept = _kept(session, call) if call.unconfirmed else None
    return EffectFact(kind=kind, arguments=kept, **_common(session, call, attempt_id, round_number), **said)


def adopted(session: SessionState, call: Call, attempt_id: str, round_number: int) -> EffectFact:
    """The fact that says that this branch relies on an effect that another committed."""
    return EffectFact(kind=EffectKind.ADOPTED, **_common(session, call, attempt_id, round_number))


def _common(session: SessionState, call: Call, attempt_id: str, round_number: int) -> dict[str, Any]:
    return {
        "op_id": call.op_id,
        "attempt_id": attempt_id,
        "agent_id": session.agent_id,
        "branch_id": session.branch_id,
        "session_id": session.session_id,
        "epoch": session.epoch,
        "seq": session.sequence.take(),
        "round": round_number,
        "tool": call.tool,
        "effect_class": call.effect_class,
        "order_safe": call.order_safe,
        "identity_digest": call.identity_digest,
        "content_digest": call.content_digest,
        "time_ms": session.engine.clock.wall_ms(),
    }
