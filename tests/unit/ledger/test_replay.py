"""Replay forward: what a restored agent must learn that it has done, in order, with results."""

from __future__ import annotations

from typing import Any

from unit.ledger.kit import at, committed, effect, failed, intended, opened, point, resolved, token

from fencepost.ledger.facts import EffectFact, ResultForm
from fencepost.ledger.guard import SeenOperation
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.positions import Position
from fencepost.ledger.replay import ReplayedOperation, replay_forward

AGENT = fold_agent("agent", at(opened("s1"), opened("s2", token(0, 20))))


def seen(op_id: str, *facts: EffectFact, unsafe: str = "", owner_ended: bool = False) -> SeenOperation:
    return SeenOperation(fold_operation(op_id, at(*facts)), unsafe, owner_ended)


def done(op_id: str, seq: int, epoch: int = 0, **values: Any) -> SeenOperation:
    place: dict[str, Any] = {"op_id": op_id, "epoch": Position(0, epoch)}
    result = {"result": f'"{op_id}"'.encode(), "result_form": ResultForm.JSON, **values}
    return seen(op_id, intended("a", seq=seq - 1, **place), committed("a", seq=seq, **{**place, **result}))


def replay(*operations: SeenOperation, seq: int = 5, absorbed: Any = None) -> list[ReplayedOperation]:
    return replay_forward(AGENT, operations, absorbed or {}, since=point(0, seq))


def test_operations_come_in_the_order_of_session_and_number() -> None:
    """Of what settled them, wherever they stand in the log; the point's own are left out."""
    found = replay(done("c", 3, epoch=1), done("b", 9), done("known", 5), done("a", 7))
    assert [(op.op_id, op.epoch.offset, op.seq, op.result) for op in found] == [
        ("a", 0, 7, "a"),
        ("b", 0, 9, "b"),
        ("c", 1, 3, "c"),
    ]
    assert all(op.own and op.branch_id == "main" and op.status == "committed" for op in found)


def test_what_does_not_stand_is_left_out() -> None:
    """Failed, withdrawn and compensated operations; but not those that cannot be read."""
    place: dict[str, Any] = {"op_id": "x", "seq": 7, "epoch": Position(0, 0)}
    gone = seen("x", intended("a", **place), failed("a", **place))
    undone = seen("x", intended("a", **place), committed("a", **place), effect("COMPENSATED", "u", op_id="x"))
    assert replay(gone, undone) == []
    unsafe = seen("x", intended("a", **place), unsafe="set aside")
    assert [op.status for op in replay(unsafe)] == ["unsafe"]


def test_open_operations_are_told_with_their_status() -> None:
    """Owned and in doubt, at the number of their intent; an owner that is over means doubt. Known or not."""
    place: dict[str, Any] = {"op_id": "x", "seq": 3, "epoch": Position(0, 0)}
    owned = intended("a", **place)
    assert [(op.status, op.seq) for op in replay(seen("x", owned))] == [("owned", 3)]
    assert [op.status for op in replay(seen("x", owned, owner_ended=True))] == ["in doubt"]
    assert [op.status for op in replay(seen("x", owned, effect("IN_DOUBT", "a", **place)))] == ["in doubt"]


def test_what_was_absorbed_is_told_and_is_not_the_agents_own() -> None:
    """At the place where it was absorbed; known from there on."""
    theirs: dict[str, Any] = {"op_id": "x", "agent_id": "other", "seq": 1}
    facts = (intended("b", **theirs), committed("b", **theirs, result=b"4", result_form=ResultForm.JSON))
    absorbed = {("x", 1): [point(1, 2)]}
    found = replay(seen("x", *facts), absorbed=absorbed)
    assert [(op.epoch, op.seq, op.own, op.result) for op in found] == [(Position(0, 1), 2, False, 4)]
    assert replay(seen("x", *facts), absorbed={("x", 1): [point(0, 5)]}) == []
    assert replay(seen("x", *facts)) == []


def test_what_an_operator_settled_stands_where_it_began() -> None:
    """A resolution has no place in a session."""
    place: dict[str, Any] = {"op_id": "x", "seq": 8, "epoch": Position(0, 0)}
    found = replay(seen("x", intended("a", **place), resolved("COMMITTED", 0, op_id="x")))
    assert [(op.seq, op.status, op.own) for op in found] == [(8, "committed", True)]


def test_results_that_were_not_recorded_are_told_as_such() -> None:
    """Nothing is made up: the form says why there is none."""
    found = replay(done("x", 7, result=None, result_form=ResultForm.TOO_LARGE))
    assert [(op.result, op.result_form) for op in found] == [(None, ResultForm.TOO_LARGE)]


def test_a_replayed_operation_as_plain_data() -> None:
    """Enough for a program that knows nothing of the ledger."""
    plain = replay(done("x", 7))[0].to_dict()
    assert (plain["op_id"], plain["seq"], plain["result"], plain["result_form"]) == ("x", 7, "x", "JSON")
    assert plain["epoch"] == str(Position(0, 0))
