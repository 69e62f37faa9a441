"""Whether an operation is what a call asks for: the same effect with the same identity, in the round that was looked at."""

from __future__ import annotations

from .calls import Call
from .errors import OperationConflictError, VersionMovedError
from .facts import EffectClass
from .operations import Operation, Status


def is_same(operation: Operation, call: Call) -> bool:
    """Whether the operation is what the call asks for."""
    first = operation.first
    if first is None:
        return True
    recorded = (first.tool, first.effect_class, first.order_safe, first.identity_digest)
    return recorded == (call.tool, call.effect_class, call.order_safe, call.identity_digest)


def require_same(operation: Operation, call: Call) -> None:
    """Raises OperationConflictError, which names both, where it is not."""
    first = operation.first
    if first is None or is_same(operation, call):
        return
    told = _readable(first.tool, first.effect_class, first.arguments, order_safe=first.order_safe)
    asked = _readable(call.tool, call.effect_class, call.arguments, order_safe=call.order_safe)
    unseen = "what is secret differs, and is not shown" if call.secrets.texts else "what differs is not kept"
    raise OperationConflictError(
        f"operation {call.op_id} is recorded as {told}, and was now asked for as {asked}"
        f"{f': {unseen}' if told == asked else ''}.",
        next_step="Use another key for another effect, or correct the arguments.",
        op_id=call.op_id,
        recorded=told,
        given=asked,
    )


def _readable(tool: str, effect_class: EffectClass, arguments: bytes | None, *, order_safe: bool) -> str:
    shown = arguments.decode() if arguments is not None else "arguments not kept"
    return f"{tool} [{effect_class.value}{', order-safe' if order_safe else ''}] {shown}"


def require_round(call: Call, operation: Operation, first_round: int) -> None:
    """A call that was made before the effect was undone must not do it anew by itself."""
    if operation.round != first_round and operation.status is not Status.COMMITTED:
        raise VersionMovedError(
            f"operation {call.op_id} was undone while this attempt waited (round {first_round} is over). Nothing was run.",
            next_step="Find out whether it is still wanted before it is asked for.",
            op_id=call.op_id,
            seen=f"round {first_round}",
            current=operation.version,
        )
