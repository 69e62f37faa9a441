"""Siblings that race for one operation, two or very many: one owns it, and its history stays small."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from conformance.worlds import World, until

from fencepost.ledger import EffectClass, Ledger, OperationInDoubtError, attempts, history, losers
from fencepost.ledger.facts import EffectFact, EffectKind
from fencepost.ledger.history import Record
from fencepost.ledger.operations import AttemptState, Status
from fencepost.ledger.positions import Position

SIBLINGS = 300


def test_hundreds_of_siblings_that_all_read_it_as_free(world: World, ledger: Ledger) -> None:
    """The record stays bounded, each number stays accounted for, and a later sibling gets the owner's result."""
    engine, op_id = ledger._engine, world.op_id("hot", "bank.pay")

    def racing(number: int, kind: EffectKind = EffectKind.INTENDED, **more: Any) -> EffectFact:
        return EffectFact(
            kind=kind, op_id=op_id, attempt_id=f"a{number}", agent_id=world.agent, branch_id=f"b{number}",
            session_id=f"s{number}", epoch=Position(0, 10**9 + number), seq=1 if kind is EffectKind.INTENDED else 2,
            tool="bank.pay", effect_class=EffectClass.IRREVERSIBLE, **more,
        )  # fmt: skip

    async def race() -> None:
        await asyncio.gather(*(engine.publish_effect(racing(number), ()) for number in range(SIBLINGS)))

    ledger.submit(race()).result(120)
    until(lambda: _accounted(ledger, op_id) == SIBLINGS)
    view = ledger.operation(op_id)
    owner = view.operation.owner
    assert owner is not None
    assert view.operation.status is Status.OWNED
    assert len(view.operation.attempts) <= losers.SUMMARISED_FROM + 1
    assert len(history.encode(Record(op_id, view.facts))) < 64 * 1024

    number = int(owner.attempt_id[1:])
    commit = racing(number, EffectKind.COMMITTED, result=b'"paid"')
    ledger.submit(engine.publish_effect(commit, view.facts)).result(60)
    until(lambda: ledger.operation(op_id).operation.status is Status.COMMITTED)
    again = racing((number + SIBLINGS // 2) % SIBLINGS)
    ledger.submit(engine.publish_effect(again, ())).result(60)
    until(lambda: _accounted(ledger, op_id) == SIBLINGS)
    assert ledger.operation(op_id).operation.status is Status.COMMITTED


def test_a_claim_that_read_it_as_free_and_comes_second(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent is applied like any other, and owns nothing: between the read and the intent another one got there first."""
    op_id = world.op_id("overtaken", "bank.pay")
    publish_and_confirm = attempts._publish_and_confirm

    async def overtaken(session: Any, call: Any, view: Any, intent: EffectFact, expires: float) -> Any:
        elsewhere: dict[str, Any] = {
            "agent_id": "rival",
            "session_id": "elsewhere",
            "epoch": Position(0, 10**9),
            "seq": 1,
        }
        await session.engine.publish_effect(replace(intent, attempt_id="first", **elsewhere), view.facts)
        return await publish_and_confirm(session, call, view, intent, expires)

    monkeypatch.setattr(ledger._engine.store, "at_once", None)  # which leaves nothing between the read and the intent
    monkeypatch.setattr(attempts, "_publish_and_confirm", overtaken)
    attempt = (
        ledger.session(world.agent)
        .open()
        .attempt("bank.pay", key=world.key("overtaken"), kind=EffectClass.IRREVERSIBLE, wait_s=0.3)
    )
    with pytest.raises(OperationInDoubtError, match="has not been heard of"):
        attempt.begin()
    operation = ledger.operation(op_id).operation
    assert operation.owner is not None
    assert operation.owner.attempt_id == "first"
    assert [a.state for a in operation.attempts.values()] == [AttemptState.OWNER, AttemptState.LOST]


def _accounted(ledger: Ledger, op_id: str) -> int:
    """How many attempts the history accounts for, in full or in the summary of losers; from one look."""
    operation = ledger.operation(op_id).operation
    return losers.count(operation) + len(operation.attempts)
