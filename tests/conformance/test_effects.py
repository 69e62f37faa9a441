"""Running effects: the decorator, the context manager, plain calls; ids, arguments, results."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    EffectNotExecuted,
    InvalidArgumentError,
    Ledger,
    OperationConflictError,
    OperationInDoubtError,
    RecordTooLargeError,
    ResultNotRecordedError,
    StaleProjectionError,
    TooManyAttemptsError,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger import AgentSession

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}
UNUSABLE = ["", "   ", "x" * 600, "bell\x07", "null\x00", "line\nbreak", " edge ", 7, None]


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


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
    assert order.__name__ == "order"
    assert order.__doc__ == "Order something."
    assert order.op_id(world.key("a"), note="x") == order.op_id(world.key("a"))
    assert len(runs) == 3


def test_key_scope_resource_and_cascades(session: AgentSession, world: World, ledger: Ledger) -> None:
    """A business key names the operation; what it touches is recorded with it, filled in from the arguments."""

    @session.effect(
        "billing.refund", kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, identity=("order", "cents"),
        resource="order:{order}", cascades=("crm:{order}", "mail:{cents}"), longest_run_s=5,
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
    operation = ledger.operation(f"pay:{world.key('k')}").operation
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
    [view] = ledger.operations(world.agent)
    intent = next(iter(view.operation.attempts.values())).intent
    assert got == [view.operation.idempotency_key]
    assert intent.supplied_key == "made-up-1"


def test_context_manager(session: AgentSession, world: World, ledger: Ledger) -> None:
    """Committed: recorded. Never started: withdrawn and free. Started and left: in doubt. Left by an error: in doubt."""
    with session.attempt(key=world.key("done"), **SEND) as attempt:
        assert attempt.owned
        attempt.commit({"id": 1})
    assert attempt.result == {"id": 1}
    with session.attempt(key=world.key("idle"), **SEND):
        pass
    with session.attempt(key=world.key("left"), **SEND) as left:
        assert left.owned
    with pytest.raises(ZeroDivisionError), session.attempt(key=world.key("error"), **SEND) as broken:
        assert broken.owned
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), session.attempt(key=world.key("early"), **SEND):
        raise ZeroDivisionError
    names = ["done", "idle", "left", "error", "early"]
    found = [ledger.operation(world.op_id(name, "mail.send")).operation.status for name in names]
    assert found == [Status.COMMITTED, Status.FREE, Status.IN_DOUBT, Status.IN_DOUBT, Status.FREE]


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
    [view] = ledger.operations(world.agent)
    assert [a.state.value for a in view.operation.attempts.values()] == ["failed", "failed", "committed"]


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
    assert ledger.in_doubt(world.agent)


def test_one_op_has_one_class_and_tool(session: AgentSession, world: World) -> None:
    """Another effect class under the same op is a conflict, whichever came first."""
    session.attempt("t", key=world.key("x"), kind=EffectClass.IRREVERSIBLE).begin().commit()
    with pytest.raises(OperationConflictError) as caught:
        session.attempt("t", key=world.key("x"), kind=EffectClass.REPEATABLE).begin()
    assert "IRREVERSIBLE" in caught.value.recorded
    assert "REPEATABLE" in caught.value.given


@pytest.mark.parametrize(
    ("value", "form"), [(object(), "NOT_ENCODABLE"), (float("nan"), "NOT_ENCODABLE"), ("\ud800", "NOT_ENCODABLE"), ("x" * 300_000, "TOO_LARGE")]
)  # fmt: skip
def test_result_that_cannot_be_kept_is_still_a_commit(session: AgentSession, world: World, value: Any, form: str) -> None:
    """The effect happened: it is committed, its result is told to be elsewhere, and nobody runs it again."""
    with session.attempt(key=world.key("r"), **SEND) as attempt:
        assert attempt.owned
        attempt.commit(value, reference="s3://bucket/result")
    assert attempt.result is value
    again = session.attempt(key=world.key("r"), **SEND).begin()
    assert not again.owned
    with pytest.raises(ResultNotRecordedError) as caught:
        _ = again.result
    assert (caught.value.form, caught.value.reference) == (form, "s3://bucket/result")
    assert not caught.value.retryable


def test_error_text_of_any_kind_is_recorded(session: AgentSession, world: World, ledger: Ledger) -> None:
    """An exception whose text cannot be written as UTF-8, or is very long, still leaves its effect in doubt."""
    for name, text in [("surrogate", "file \ud800 name"), ("long", "x" * 3_000_000)]:
        with pytest.raises(TimeoutError), session.attempt(key=world.key(name), **SEND) as attempt:
            assert attempt.owned
            raise TimeoutError(text)
        assert ledger.operation(attempt.op_id).operation.status is Status.IN_DOUBT


def test_words_of_the_caller_do_not_lose_the_outcome(session: AgentSession, world: World, ledger: Ledger) -> None:
    """What a caller says beside an outcome (a reason, a reference) cannot keep the outcome from being recorded."""
    for name, text in [("surrogate", "\ud800"), ("long", "x" * 3_000_000)]:
        for decision, status in [("fail", Status.FREE), ("doubt", Status.IN_DOUBT)]:
            attempt = session.attempt(key=world.key(f"{name}-{decision}"), **SEND).begin()
            assert attempt.owned
            getattr(attempt, decision)(text)
            assert ledger.operation(attempt.op_id).operation.status is status
        attempt = session.attempt(key=world.key(f"{name}-commit"), **SEND).begin()
        assert attempt.owned
        attempt.commit(reference=text)
        assert ledger.operation(attempt.op_id).operation.status is Status.COMMITTED


def test_past_the_deadline_nothing_starts(session: AgentSession, world: World, ledger: Ledger) -> None:
    """An attempt that is begun too late to start is withdrawn: nothing runs, and the operation is free for the next."""
    with session.attempt(key=world.key("late"), deadline_s=0.05, **SEND) as attempt:
        late = attempt.claim.expires
        while ledger._engine.clock.monotonic() < late:
            pass
        with pytest.raises(StaleProjectionError):
            _ = attempt.owned
    assert ledger.operation(attempt.op_id).operation.status is Status.FREE
    with session.attempt(key=world.key("late"), **SEND) as again:
        assert again.owned
        again.commit()


def test_attempts_are_capped(world: World) -> None:
    """An operation that fails for ever ends with a clear error, not with a record that no longer fits."""
    ledger = world.open(max_attempts=3)
    with ledger.session(world.agent) as session:
        for _ in range(3):
            session.attempt(key=world.key("c"), **SEND).begin().fail("no")
        with pytest.raises(TooManyAttemptsError) as caught:
            session.attempt(key=world.key("c"), **SEND).begin()
        assert (caught.value.attempts, caught.value.limit) == (3, 3)


def test_history_keeps_room_for_the_outcome(world: World) -> None:
    """An intent is refused when the largest outcome might not fit into the operation's record any more."""
    ledger = world.open(max_history_bytes=3000)
    with ledger.session(world.agent) as session:
        with pytest.raises(RecordTooLargeError) as caught:
            for _ in range(20):
                session.attempt(key=world.key("h"), **SEND).begin().fail("x" * 400)
        assert caught.value.size_bytes > caught.value.limit_bytes == 3000
        session.checkpoint("c")  # and leaves no hole in the sequence
    assert ledger.watermark(world.agent).mark.seq == ledger.watermark(world.agent).highest_seq
