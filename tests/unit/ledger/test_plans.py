"""Plans: order, what stands in the way, what the digest binds, and what was changed after it was made."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.ledger.kit import at, forked, opened, token
from unit.ledger.plan_kit import adopted, facts, operation, sealed

from fencepost.ledger import InvalidArgumentError, LossNotAcceptedError, ManifestError, ManifestVerdict, Plan, Step
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.operation_fold import fold_operation
from fencepost.ledger.operations import Operation, Status
from fencepost.ledger.plan_order import MOST_LEFT, LeftStanding, ordered
from fencepost.ledger.plans import load, recorded, require_accepted, step_of
from fencepost.ledger.positions import Position


def plan_of(*operations: Operation, **values: Any) -> Plan:
    steps = {one.op_id: step_of(one) for one in operations}
    usual: dict[str, Any] = {
        "ledger_id": "l", "agent_id": "agent", "branch_id": "main", "cause": "rollback", "checkpoint_id": "c", "cause_id": "r",
    }  # fmt: skip
    return Plan(**{**usual, **values}, steps=ordered(operations, steps))


def names(plan: Plan) -> list[str]:
    return [step.op_id for step in plan.steps]


def test_steps_come_in_reverse_order_of_commit() -> None:
    """By session and number: positions of different partitions say nothing about which came first."""
    a = operation("t:a", 2, sealed("t:a"))
    b = operation("t:b", 9, sealed("t:b"))
    c = operation("t:c", 2, sealed("t:c"), epoch=Position(0, 7))
    assert names(plan_of(b, a, c)) == names(plan_of(a, c, b)) == ["t:c", "t:b", "t:a"]


def beside(number: int, **values: Any) -> dict[str, Any]:
    """Of a branch of its own, whose session was opened at this position: of two nobody can tell which came first."""
    return {"branch_id": f"b{number}", "epoch": Position(0, number), **values}


def test_dependents_come_first_where_the_order_of_commit_cannot_be_told() -> None:
    """What changed a resource that another effect names as its cascade goes before that other one."""
    base = operation("t:base", 2, sealed("t:base", resource="order", cascades=("crm",)), **beside(9))
    top = operation("t:top", 2, sealed("t:top", resource="crm", cascades=("mail",)), **beside(5))
    tip = operation("t:tip", 2, sealed("t:tip", resource="mail"), **beside(1))
    other = operation("t:other", 2, sealed("t:other", resource="crm"), **beside(9, branch_id="b5"))
    assert names(plan_of(base, top, tip)) == ["t:tip", "t:top", "t:base"]
    assert names(plan_of(top, base)) == ["t:top", "t:base"]
    assert names(plan_of(top, base, other)) == ["t:other", "t:top", "t:base"]


def test_an_effect_that_reaches_into_the_resource_of_an_older_one_is_undone_first() -> None:
    """In one session, in a later one of the branch, or in a branch that was forked from there: the order is known."""
    invoice = sealed("t:invoice", resource="invoice")
    older = operation("t:invoice", 2, invoice)
    deleted = sealed("t:bill", resource="bill", cascades=("invoice",))
    life = (opened("s1"), forked("b", token(0, 3)), opened("s2", token(0, 3, branch="b"), branch_id="b", segment="0.1"))
    agent = fold_agent("agent", at(*life))
    laters: list[dict[str, Any]] = [{}, {"epoch": Position(0, 1)}, {"epoch": Position(0, 2), "branch_id": "b"}]
    for bill in (operation("t:bill", 9, deleted, **later) for later in laters):
        steps = {one.op_id: step_of(one) for one in (older, bill)}
        assert [s.op_id for s in ordered([older, bill], steps, agent=agent)] == ["t:bill", "t:invoice"]
    bill = operation("t:bill", 9, deleted, **laters[-1])
    beyond = operation("t:invoice", 4, invoice)  # behind the fork: who came first cannot be told
    steps = {one.op_id: step_of(one) for one in (beyond, bill)}
    assert [s.op_id for s in ordered([beyond, bill], steps, agent=agent)] == ["t:invoice", "t:bill"]


def placed(op_id: str, seq: int, resource: str = "", *cascades: str, **values: Any) -> Operation:
    """Committed, with its resource and cascades in its intent."""
    return operation(op_id, seq, None, resource=resource, cascades=cascades, **values)


def test_what_a_plan_leaves_standing() -> None:
    """Built on an effect is what was not certainly done before it, and is on its resource or cascade, or reaches into its resource."""
    user = placed("t:user", 5, "user", "mail")
    built = [
        placed("t:same", 7, "user"),
        placed("t:hook", 9, "hook", "user"),
        placed("t:mail", 11, "mail"),
        placed("t:beside", 2, "user", **beside(7)),
        fold_operation("t:doubt", at(*facts("t:doubt", 13, None, resource="user")[:1])),
    ]
    others = [
        user,
        placed("t:before", 3, "user"),
        placed("t:third", 15, "third", "mail"),
        placed("t:none", 17),
        placed("t:read", 19, "user", effect_class=EffectClass.READ),
        placed("t:undone", 21, "user"),
        Operation("t:free"),
    ]
    left = LeftStanding([*built, *others], agent=None, undone={"t:user", "t:undone"})
    assert left.upon(user) == tuple(sorted(one.op_id for one in built))
    assert left.upon(placed("t:none", 1)) == ()
    many = [placed(f"t:{n}", 30 + n, "user") for n in range(MOST_LEFT + 1)]
    with pytest.raises(ManifestError, match=f"{len(many)} effects") as caught:
        LeftStanding(many, agent=None, undone=()).upon(user)
    assert caught.value.field == "leaves"


def test_a_cycle_of_cascades_is_refused() -> None:
    """No order undoes effects that each name the other's resource; all are named. A known order is one."""
    one = operation("t:1", 2, sealed("t:1", resource="a", cascades=("b",)))
    two = operation("t:2", 3, sealed("t:2", resource="b", cascades=("a",)))
    assert names(plan_of(one, two)) == ["t:2", "t:1"]
    two = operation("t:2", 3, sealed("t:2", resource="b", cascades=("a",)), **beside(7))
    with pytest.raises(ManifestError, match="t:1") as caught:
        plan_of(one, two)
    assert "t:2" in caught.value.message
    selfish = operation("t:3", 2, sealed("t:3", resource="a", cascades=("a",)))
    assert names(plan_of(selfish)) == ["t:3"]


@given(st.permutations(range(5)), st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6))
def test_the_order_never_puts_a_base_before_its_dependent(seqs: list[int], edges: set[tuple[int, int]]) -> None:
    """Whatever depends on what: an order is found exactly when there is no cycle."""
    cascades = [sorted(f"r{b}" for a, b in edges if a == n and b != n) for n in range(5)]
    made = [
        operation(f"t:{n}", 2, sealed(f"t:{n}", resource=f"r{n}", cascades=tuple(cascades[n])), **beside(seqs[n]))
        for n in range(5)
    ]
    steps = {one.op_id: step_of(one) for one in made}
    try:
        found = ordered(made, steps)
    except ManifestError:
        assert _has_cycle({n: {int(c[1:]) for c in cascades[n]} for n in range(5)})
        return
    at = {step.op_id: place for place, step in enumerate(found)}
    assert all(at[f"t:{b}"] < at[f"t:{a}"] for a, b in edges if a != b)
    assert len(found) == 5


def _has_cycle(edges: dict[int, set[int]]) -> bool:
    left = {n: set(out) for n, out in edges.items()}
    while free := [n for n, out in left.items() if not out]:
        for n in free:
            del left[n]
        left = {n: out - set(free) for n, out in left.items()}
    return bool(left)


def test_what_was_not_sealed_cannot_be_undone_by_a_plan() -> None:
    """It says why it was not sealed; an operation that is not committed has nothing to undo."""
    with pytest.raises(ManifestError, match="no hash"):
        step_of(operation("t:a", 2, None))
    with pytest.raises(ManifestError, match="no sealed manifest"):
        step_of(Operation("t:a"))
    for status in (Status.OWNED, Status.IN_DOUBT):
        with pytest.raises(ManifestError, match="not known yet"):
            step_of(Operation("t:a", status))


def test_a_manifest_of_another_operation_or_round_or_a_changed_one_is_refused() -> None:
    """The manifest must be the very one that was sealed with this round."""
    with pytest.raises(ManifestError, match="t:b"):
        step_of(operation("t:a", 2, sealed("t:b")))
    with pytest.raises(ManifestError, match="round 2"):
        step_of(operation("t:a", 2, replace(sealed("t:a"), round=2)))
    op = operation("t:a", 2, sealed("t:a"))
    assert op.settled is not None
    op.settled = replace(op.settled, manifest=sealed("t:a", after="other").data)
    with pytest.raises(ManifestError, match="digest"):
        step_of(op)


def test_an_effect_that_somebody_who_stays_relies_on_is_refused() -> None:
    """Whoever goes away with the plan is named in it; an operator's word never goes away."""
    op = operation("t:a", 2, sealed("t:a"), adopted("t:a", "b"))
    with pytest.raises(ManifestError, match="agent/b") as caught:
        step_of(op)
    assert caught.value.field == "adopted_by"
    assert step_of(op, relying=()).adopted_by == ("agent/b",)
    word = operation("t:a", 2, sealed("t:a"), adopted("t:a", "b", by="ann"))
    with pytest.raises(ManifestError, match="ann"):
        step_of(word, relying=())


def test_losses_must_be_accepted_each_by_its_name() -> None:
    """A plan that cannot take everything back needs a person, whatever else is in order."""
    plan = plan_of(
        operation("t:a", 2, sealed("t:a", irreversible=("mail:a", "sms:a"))), operation("t:b", 4, sealed("t:b"))
    )
    assert (plan.losses, plan.verdict) == (("mail:a", "sms:a"), ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN)
    with pytest.raises(LossNotAcceptedError, match="sms:a") as caught:
        require_accepted(plan, ["mail:a", "everything"])
    assert caught.value.losses == ["sms:a"]
    assert caught.value.exit_code == 4
    require_accepted(plan, ["sms:a", "mail:a"])
    require_accepted(plan_of(operation("t:b", 4, sealed("t:b"))), ())


def test_an_exported_plan_comes_back_as_it_was() -> None:
    """As plain data, as text, and as bytes; as it is recorded, beside its digest, as well."""
    plan = plan_of(operation("t:a", 2, sealed("t:a", irreversible=("mail",))), operation("t:b", 4, sealed("t:b")))
    values = plan.to_dict()
    assert (
        load(values)
        == load(json.dumps(values))
        == load(json.dumps(values, indent=3).encode())
        == recorded(plan.data)
        == plan
    )
    assert Plan.load(values).digest == plan.digest == values["digest"]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key], (*path, key))]
    if isinstance(value, list):
        return [leaf for n, item in enumerate(value) for leaf in leaves(item, (*path, n))] or [path]
    return [path]


def test_any_change_of_an_exported_plan_is_noticed() -> None:
    """Every single field of it, what is derived from the others too."""
    plan = plan_of(
        operation("t:a", 2, sealed("t:a", resource="r", cascades=("crm",), irreversible=("mail",))),
        operation("t:b", 4, sealed("t:b")),
    )
    found = leaves(plan.to_dict())
    assert len(found) > 40
    for path in found:
        values = json.loads(json.dumps(plan.to_dict()))
        inside = values
        for part in path[:-1]:
            inside = inside[part]
        old = inside[path[-1]]
        inside[path[-1]] = f"{old}x" if isinstance(old, str) else old + 1 if isinstance(old, int) else ["x"]
        with pytest.raises(InvalidArgumentError, match="plan"):
            load(values)


def objects(value: Any) -> list[dict[str, Any]]:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return ([value] if isinstance(value, dict) else []) + [found for item in inside for found in objects(item)]


def test_a_field_too_many_or_too_few_is_noticed() -> None:
    """In the plan, in a step, and in a manifest; the digest and what is derived from the others are fields as well."""
    plan = plan_of(operation("t:a", 2, sealed("t:a", irreversible=("mail",))))
    count = len(objects(plan.to_dict()))
    for number in range(count):
        values = json.loads(json.dumps(plan.to_dict()))
        objects(values)[number]["note"] = "x"
        with pytest.raises(InvalidArgumentError, match="changed after it was made"):
            load(values)
        for name in objects(plan.to_dict())[number]:
            values = json.loads(json.dumps(plan.to_dict()))
            del objects(values)[number][name]
            with pytest.raises(InvalidArgumentError, match="plan") as caught:
                load(values)
            assert "Error" not in caught.value.message


def test_a_field_that_is_named_twice_is_refused() -> None:
    """Readers differ in which one counts."""
    text = json.dumps(plan_of(operation("t:a", 2, sealed("t:a"))).to_dict())
    with pytest.raises(InvalidArgumentError, match="names a field twice"):
        load(text.replace('"losses": []', '"losses": ["mail"], "losses": []'))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"schema": "fencepost.plan.v1"}', '"x"', "nonsense", b"\xff", "[" * 100_000]
)
def test_what_is_no_plan_is_refused(text: str | bytes) -> None:
    """With the field's name, whatever it is, and in no words of the language that it is written in."""
    with pytest.raises(InvalidArgumentError, match="plan") as caught:
        load(text)
    assert caught.value.field == "plan"
    assert not re.search("Error|Expecting|codec|NoneType|indices", caught.value.message)


def test_a_step_left_out_or_exchanged_makes_another_plan() -> None:
    """The digest binds which steps there are, and their order."""
    plan = plan_of(operation("t:a", 2, sealed("t:a")), operation("t:b", 4, sealed("t:b")))
    others = [replace(plan, steps=plan.steps[:1]), replace(plan, steps=plan.steps[::-1]), replace(plan, cause_id="r2")]
    assert len({plan.digest, *(other.digest for other in others)}) == 4


BLOCKED, FULL = ManifestVerdict.BLOCKED_CONCURRENT_MUTATION, ManifestVerdict.FULL_ROLLBACK_POSSIBLE


def test_states_are_compared_with_what_each_effect_left_behind() -> None:
    """A state that is not known admits nothing, nor does one that somebody has changed."""
    plan = plan_of(operation("t:a", 2, sealed("t:a")), operation("t:b", 4, sealed("t:b")))
    assert plan.verify({"t:a": "after", "t:b": "after"}) == {"t:a": FULL, "t:b": FULL}
    assert plan.verify({"t:a": "after", "t:b": "before"}) == {"t:a": FULL, "t:b": BLOCKED}
    assert plan.verify({"t:a": "after"}) == {"t:a": FULL, "t:b": BLOCKED}


def test_effects_one_upon_the_other_are_undone_one_after_the_other() -> None:
    """On one resource only the last effect left the state as it is; the ones before it must be what the next one found."""

    def step(name: str, seq: int, before: str, after: str, resource: str = "account") -> Operation:
        return operation(name, seq, sealed(name, before=before, after=after, resource=resource))

    plan = plan_of(step("t:a", 2, "0", "1"), step("t:b", 4, "1", "2"), step("t:c", 6, "2", "3"))
    now = dict.fromkeys(names(plan), "3")
    assert set(plan.verify(now).values()) == {FULL}
    assert set(plan.verify(dict.fromkeys(now, "4")).values()) == {BLOCKED}
    gap = plan_of(step("t:a", 2, "0", "1"), step("t:b", 4, "1.5", "2"))
    assert gap.verify(dict.fromkeys(now, "2")) == {"t:b": FULL, "t:a": BLOCKED}
    apart = plan_of(step("t:a", 2, "0", "1", ""), step("t:b", 4, "1", "2", ""))
    assert apart.verify(dict.fromkeys(now, "2")) == {"t:b": FULL, "t:a": BLOCKED}
    own = plan_of(step("t:a", 2, "x", "1"), step("t:b", 4, "y", "2"))  # each hashes a part of its own
    assert own.verify({"t:a": "1", "t:b": "2"}) == {"t:a": FULL, "t:b": FULL}


def test_a_plan_names_each_step_once() -> None:
    """What a step says of itself is in the plan: version, round, and who goes away with it."""
    [step] = plan_of(operation("t:a", 2, sealed("t:a"))).steps
    assert step == Step(op_id="t:a", round=1, version="0.1", manifest=sealed("t:a"))
    assert step.to_dict()["manifest_digest"] == sealed("t:a").digest
