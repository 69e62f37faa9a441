"""A plan is of one agent: whose effect came first cannot be told across two, so that is refused, and each has a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.refunding import Refunds

from fencepost.ledger import EffectClass, InvalidArgumentError, Ledger, ManifestError
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from conformance.worlds import World


def test_both_agents_and_the_way_on_are_named(world: World, ledger: Ledger) -> None:
    """With what each of them did; the plans that it asks for can be made and carried out."""
    refunds = Refunds(world)
    refunds.register()
    other = f"{world.agent}-other"
    with ledger.session(world.agent) as session, ledger.session(other) as another:
        refunds.do(session, "a", "b")
        refunds.do(another, "d")
    names = [refunds.op_id(name) for name in ("a", "b", "d")]
    for op_id in names:
        world.status(op_id, Status.COMMITTED)
    with pytest.raises(InvalidArgumentError) as caught:
        ledger.plan_compensation(names)
    for part in (f"{world.agent} did {names[0]}, {names[1]}", f"{other} did {names[2]}", "a plan for each agent"):
        assert part in str(caught.value)
    assert caught.value.field == "op_ids"
    assert caught.value.agents == {world.agent: names[:2], other: names[2:]}
    assert caught.value.to_dict()["details"]["agents"] == {world.agent: names[:2], other: names[2:]}
    for agent_id, op_ids in reversed(caught.value.agents.items()):  # what was done upon the others' comes first
        plan = ledger.plan_compensation(op_ids)
        assert plan.agent_id == agent_id
        ledger.compensate(plan, approved_by="alice", evidence="ticket 17")
    assert {ledger.operation(op_id).operation.round for op_id in names} == {2}


def test_what_nobody_did_is_said_of_that_operation(world: World, ledger: Ledger) -> None:
    """It is no second agent."""
    refunds = Refunds(world)
    with ledger.session(world.agent) as session:
        refunds.do(session, "a")
        failed = session.attempt("tool", key=world.key("f"), kind=EffectClass.IRREVERSIBLE).begin()
        failed.fail("no connection")
    world.status(refunds.op_id("a"), Status.COMMITTED)
    world.status(failed.op_id, Status.FREE)
    with pytest.raises(ManifestError, match=failed.op_id):
        ledger.plan_compensation([refunds.op_id("a"), failed.op_id])
