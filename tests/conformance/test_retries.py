"""How agents and frameworks ask again: with new ids, other words, and their own keys. The effect happens once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, charge

from fencepost.ledger import EffectClass, EffectNotExecuted, InvalidArgumentError, Ledger
from fencepost.ledger.operations import AttemptState, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencepost.ledger import AgentSession

IRREVERSIBLE = EffectClass.IRREVERSIBLE


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent, scope=world.key("task")) as session:
        yield session


def refunds(session: AgentSession, world: World) -> Any:
    """A tool as a framework calls it: with a tool-call id that it makes anew each time, and a key that the model chose."""
    calls = itertools.count(1)

    @session.effect(
        "billing.refund",
        kind=IRREVERSIBLE,
        identity=("order", "cents"),
        content=("reason", "tool_call_id"),
        key_argument="idempotency_key",
    )
    def refund(order: str, cents: int, reason: str, tool_call_id: str, idempotency_key: str = "") -> dict[str, Any]:
        world.hit(order, cents)
        return {"number": next(calls), "reason": reason, "call": tool_call_id, "key": idempotency_key}

    return refund


def test_planned_again_after_a_timeout(world: World, session: AgentSession) -> None:
    """Case 1: the answer did not come in time, so the agent plans anew: new call id, reworded, the first result returns."""
    refund = refunds(session, world)
    first = refund("A1", 50, "broken on arrival", "call-1")
    again = refund("A1", 50, reason="arrived broken, refunding", tool_call_id="call-2")
    assert again == first
    assert world.hits("A1") == 1


def test_task_of_three_is_retried(world: World, session: AgentSession) -> None:
    """Case 2: the second of three tools failed and the whole task is retried: the first is not emitted again."""
    failures = [EffectNotExecuted("no stock")]

    def tool(name: str) -> Callable[[str], str]:
        @session.effect(f"tool.{name}", kind=IRREVERSIBLE)
        def run(order: str) -> str:
            if name == "reserve" and failures:
                raise failures.pop()
            world.hit(f"{order}-{name}")
            return name

        return run

    tools = [tool(name) for name in ("charge", "reserve", "ship")]
    with pytest.raises(EffectNotExecuted):
        [run("A2") for run in tools]
    assert [run("A2") for run in tools] == ["charge", "reserve", "ship"]
    assert [world.hits(f"A2-{name}") for name in ("charge", "reserve", "ship")] == [1, 1, 1]


def test_key_of_the_model_never_counts(world: World, session: AgentSession, ledger: Ledger) -> None:
    """Case 3: the model supplies a key, a new one each time: ours is handed to the tool, its own is kept as evidence."""
    refund = refunds(session, world)
    first = refund("A3", 50, "r", "call-1", idempotency_key="model-made-1")
    assert refund("A3", 50, "r", "call-1", idempotency_key="model-made-2") == first
    assert first["key"].startswith("fencepost-")
    operation = world.status(refund.op_id("A3", 50, "r", "call-1"), Status.COMMITTED)
    assert operation.idempotency_key == first["key"]
    assert operation.first is not None
    assert operation.first.supplied_key == "model-made-1"
    assert world.hits("A3") == 1
    assert "model-made" not in ledger.operation(operation.op_id).operation.op_id


def test_four_retries_with_new_call_ids(world: World, session: AgentSession) -> None:
    """Case 4: a framework retries four times, each with a fresh tool-call id: one effect. As identity it is refused."""
    refund = refunds(session, world)
    results = [refund("A4", 50, "r", f"call-{number}") for number in range(4)]
    assert [result["number"] for result in results] == [1] * 4
    assert world.hits("A4") == 1
    with pytest.raises(InvalidArgumentError) as caught:

        @session.effect("billing.refund", kind=IRREVERSIBLE)
        def retried(order: str, tool_call_id: str) -> None:
            del order, tool_call_id

    assert caught.value.field == "identity"


def test_node_that_is_replayed_for_each_interrupt(world: World) -> None:
    """Case 5: a node with one effect is replayed, in a new process, for each of four interrupts: one commit."""
    for _ in range(4):
        [answer] = world.run(charge("A5", note="replayed"))
        assert answer["error"] == ""
    operation = world.status(world.op_id("A5"), Status.COMMITTED)
    assert [a.state for a in operation.attempts.values()].count(AttemptState.COMMITTED) == 1
    assert (world.hits("A5"), len(operation.attempts)) == (1, 1)


def test_two_attempts_are_both_in_the_history(world: World, ledger: Ledger) -> None:
    """Case 7: two processes begin the same operation: one commits, and the other's attempt stays to be seen."""
    late = world.worker(charge("A7", hold="before INTENDED", name="late"), armed=True, agent=f"late-{world.agent}")
    late.wait_held("late")
    world.run(charge("A7"))
    late.release("late")
    [answer] = late.finish()
    assert (answer["ran"], answer["error"]) == (False, "")
    operation = ledger.operation(world.op_id("A7")).operation
    assert sorted(a.state for a in operation.attempts.values()) == [AttemptState.COMMITTED, AttemptState.LOST]
    assert world.hits("A7") == 1


def test_a_wanted_repeat_is_another_operation(world: World, session: AgentSession) -> None:
    """Only what is said to be wanted twice happens twice."""
    refund = refunds(session, world)
    refund("A8", 50, "r", "call-1")
    refund.occurrence(2)("A8", 50, "r", "call-2")
    refund.occurrence(2)("A8", 50, "r", "call-3")
    assert world.hits("A8") == 2
