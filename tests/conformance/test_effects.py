"""Running effects: the decorator, the context manager, plain calls; ids, arguments, results."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, until

from fencepost.ledger import (
    EffectClass,
    EffectNotExecuted,
    InvalidArgumentError,
    Ledger,
    OperationConflictError,
    OperationInDoubtError,
    StaleProjectionError,
    Undo,
)
from fencepost.ledger.engine import Engine
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger import AgentSession

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


def break_off(session: AgentSession, key: str, error: Exception, *, start: bool = True) -> None:
    """Leave an attempt by an exception, after its effect was started or before."""
    with session.attempt(key=key, **SEND) as attempt:
        assert not start or attempt.owned
        raise error


@dataclasses.dataclass
class Receipt:
    number: int
    lines: list[str]


def test_decorator(session: AgentSession, world: World) -> None:
    """A decorated function runs once for its identity arguments; afterwards its recorded result comes back, typed."""
    runs = []

    @session.effect("shop.order", kind=EffectClass.IRREVERSIBLE, identity=("item",), content=("note",))
    def order(item: str, note: str = "") -> Receipt:
        """Order something."""
        runs.append((item, note))
        return Receipt(len(runs), [item])

    first = order(world.key("a"), note="please")
    assert order(world.key("a"), note="now!") == first == Receipt(1, [world.key("a")])
    assert order(item=world.key("b")).number == 2
    assert order.occurrence(2)(world.key("a")).number == 3
    assert order.occurrence(2)(world.key("a")).number == 3
    assert getattr(order, "__name__", "") == "order"
    assert order.__doc__ == "Order something."
    assert order.op_id(world.key("a"), note="x") == order.op_id(world.key("a"))
    assert len(runs) == 3


def test_key_scope_resource_and_cascades(session: AgentSession, world: World, ledger: Ledger) -> None:
    """A business key names the operation; what it touches is recorded with it, filled in from the arguments."""

    @session.effect(
        "billing.refund", kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, identity=("order", "cents"),
        resource="order:{order}", cascades=("crm:{order}", "mail:{cents}"), longest_run_s=5,
        undo=Undo(action="billing.recharge", state_hash=lambda **_: "h", covers=("crm:{order}", "mail:{cents}")),
    )  # fmt: skip
    def refund(order: str, cents: int) -> None:
        del order, cents

    refund(world.key("r"), 500)
    view = ledger.operation(f"billing.refund:{world.key('r')}")
    intent = next(iter(view.operation.attempts.values())).intent
    assert (intent.resource, intent.cascades) == (f"order:{world.key('r')}", (f"crm:{world.key('r')}", "mail:500"))
    assert intent.longest_run_s == 5
    assert b'"cents":500' in (intent.arguments or b"")


def test_idempotency_key_is_handed_over(session: AgentSession, world: World, ledger: Ledger) -> None:
    """The tool gets the operation's key: the same for every session and branch, another in another round."""
    seen = []

    def run(one: AgentSession) -> None:
        @one.effect("pay", kind=EffectClass.IRREVERSIBLE, key=lambda order: order, not_executed=(OSError,))
        def pay(order: str) -> None:
            seen.append((one.current.idempotency_key, one.current.round))
            if len(seen) == 1:
                raise OSError(order)

        pay(world.key("k"))

    with pytest.raises(OSError, match="k"):
        run(session)
    with ledger.session(f"other-{world.agent}") as other:
        run(other)
    operation = world.status(f"pay:{world.key('k')}", Status.COMMITTED)
    assert operation.idempotency_key == seen[0][0] == seen[1][0]
    ledger.resolve(operation.op_id, outcome="compensated", version=operation.version, by="ann", evidence="undone")
    run(session)
    assert seen[2][0] != seen[0][0]
    assert [number for _, number in seen] == [1, 1, 2]


def test_a_key_that_the_model_made_up(session: AgentSession, world: World, ledger: Ledger) -> None:
    """A key that the caller supplies is recorded and not used: the tool gets ours, and it is no part of the identity."""
    got = []

    @session.effect("pay2", kind=EffectClass.IRREVERSIBLE, key_argument="request_id", identity=("order",))
    def pay(order: str, request_id: str = "") -> str:
        got.append(request_id)
        return order

    pay(world.key("k"), request_id="made-up-1")
    pay(world.key("k"), request_id="made-up-2")
    until(lambda: len(ledger.operations(world.agent)) == 1)
    [view] = ledger.operations(world.agent)
    intent = next(iter(view.operation.attempts.values())).intent
    assert got == [view.operation.idempotency_key]
    assert intent.supplied_key == "made-up-1"


def test_context_manager(session: AgentSession, world: World, ledger: Ledger) -> None:
    """Committed: recorded. Left, or left by an error: in doubt, also where nobody asked whether it may run."""
    with session.attempt(key=world.key("done"), **SEND) as attempt:
        assert attempt.owned
        attempt.commit({"id": 1})
    assert attempt.result == {"id": 1}
    with session.attempt(key=world.key("idle"), **SEND):
        pass
    with session.attempt(key=world.key("left"), **SEND) as left:
        assert left.owned
    for name, start in [("error", True), ("early", False)]:
        with pytest.raises(ZeroDivisionError):
            break_off(session, world.key(name), ZeroDivisionError(), start=start)
    names = ["done", "idle", "left", "error", "early"]
    wanted = [Status.COMMITTED, *[Status.IN_DOUBT] * 4]
    for name, status in zip(names, wanted, strict=True):
        world.status(world.op_id(name, "mail.send"), status)


def test_decided_once(session: AgentSession, world: World) -> None:
    """An attempt that is decided, or that does not own the operation, cannot be decided (again)."""
    attempt = session.attempt(key=world.key("once"), **SEND).begin()
    attempt.commit(1)
    for decide in (attempt.commit, attempt.fail, attempt.doubt):
        with pytest.raises(InvalidArgumentError):
            decide()
    other = session.attempt(key=world.key("once"), **SEND).begin()
    assert not other.owned
    with pytest.raises(InvalidArgumentError):
        other.commit(2)
    assert other.result == 1


def test_tool_that_says_it_did_not_happen(session: AgentSession, world: World, ledger: Ledger) -> None:
    """`EffectNotExecuted` and declared exceptions free the operation: it runs when it is asked for next; both tries stay."""
    tries: list[str] = []

    @session.effect("ship", kind=EffectClass.IRREVERSIBLE, not_executed=(ConnectionRefusedError,))
    def ship(parcel: str) -> str:
        tries.append(parcel)
        if len(tries) == 1:
            raise EffectNotExecuted("no stamp")
        if len(tries) == 2:
            raise ConnectionRefusedError
        return "shipped"

    for error in (EffectNotExecuted, ConnectionRefusedError):
        with pytest.raises(error):
            ship(world.key("p"))
    assert ship(world.key("p")) == "shipped"
    operation = world.status(ship.op_id(world.key("p")), Status.COMMITTED)
    assert [a.state.value for a in operation.attempts.values()] == ["failed", "failed", "committed"]


@pytest.mark.parametrize("kind", [EffectClass.REPEATABLE, EffectClass.READ])
def test_harmless_effects_may_fail_and_run_again(session: AgentSession, world: World, kind: EffectClass) -> None:
    """An exception out of an effect that may be repeated leaves nothing in doubt."""
    runs = []

    @session.effect("warm", kind=kind, record=True)
    def warm(cache: str) -> int:
        runs.append(cache)
        if len(runs) == 1:
            raise TimeoutError
        return len(runs)

    with pytest.raises(TimeoutError):
        warm(world.key("c"))
    assert warm(world.key("c")) == 2


def test_idempotent_but_not_order_safe_is_confirmed(session: AgentSession, world: World, ledger: Ledger) -> None:
    """`set(A)` that could come after a later `set(B)` is treated like any other effect: one run, in doubt on an error."""

    @session.effect("set", kind=EffectClass.IDEMPOTENT)
    def put(value: str) -> None:
        raise TimeoutError(value)

    with pytest.raises(TimeoutError):
        put(world.key("v"))
    with pytest.raises(OperationInDoubtError):
        put(world.key("v"))
    until(lambda: ledger.in_doubt(world.agent))


def test_one_op_has_one_class_and_tool(session: AgentSession, world: World) -> None:
    """Another effect class under the same op is a conflict, whichever came first."""
    session.attempt("t", key=world.key("x"), kind=EffectClass.IRREVERSIBLE).begin().commit()
    with pytest.raises(OperationConflictError) as caught:
        session.attempt("t", key=world.key("x"), kind=EffectClass.REPEATABLE).begin()
    assert "IRREVERSIBLE" in caught.value.recorded
    assert "REPEATABLE" in caught.value.given


def test_a_claim_that_is_not_confirmed_in_time_is_withdrawn(
    session: AgentSession, world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent is in the log and owns the operation; since nothing was run, that is taken back and the next may run."""

    async def not_in_time(*_: Any, **__: Any) -> None:
        return None

    with monkeypatch.context() as patched:
        patched.setattr(ledger._engine.store, "at_once", None)  # there an intent is confirmed as it is written
        patched.setattr(Engine, "undisturbed", not_in_time)
        patched.setattr(Engine, "wait_until", not_in_time)
        attempt = session.attempt(key=world.key("unconfirmed"), **SEND)
        with pytest.raises(StaleProjectionError, match="withdrawn"):
            attempt.begin()
    until(lambda: len(ledger.operations(world.agent)) == 1)
    world.status(world.op_id("unconfirmed", "mail.send"), Status.FREE)
    with session.attempt(key=world.key("unconfirmed"), **SEND) as again:
        assert again.owned
        again.commit()


def test_past_the_deadline_nothing_starts(session: AgentSession, world: World, ledger: Ledger) -> None:
    """An attempt that is begun too late to start is withdrawn: nothing runs, and the operation is free for the next."""
    with session.attempt(key=world.key("late"), **SEND) as attempt:
        attempt.claim.expires = ledger._engine.clock.monotonic()
        with pytest.raises(StaleProjectionError):
            _ = attempt.owned
    world.status(attempt.op_id, Status.FREE)
    with session.attempt(key=world.key("late"), **SEND) as again:
        assert again.owned
        again.commit()
