"""What a pruned branch leaves behind, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.ledger.kit import (
    OP,
    agent_fact,
    at,
    committed,
    effect,
    failed,
    fold,
    forked,
    intended,
    opened,
    resolved,
    token,
)
from unit.ledger.prune_kit import LIFE, A, B, adopted, by, done, examined, fates, pruned, sealed, seen

from fencepost.ledger.errors import SpeculativeRollbackViolation
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.guard import SeenOperation
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.manifests import CompensatingAction, ManifestVerdict, action_key, path
from fencepost.ledger.positions import Position
from fencepost.ledger.prune_verdicts import ObligationKind, PruneKind, open_obligations
from fencepost.ledger.prunes import by_branch
from fencepost.ledger.reliance import Witness
from fencepost.ledger.watermarks import Point

HARMLESS: list[dict[str, Any]] = [
    {"effect_class": EffectClass.READ},
    {"effect_class": EffectClass.REPEATABLE},
    {"effect_class": EffectClass.IDEMPOTENT, "order_safe": True},
]
HARMFUL = [EffectClass.COMPENSATABLE, EffectClass.IRREVERSIBLE, EffectClass.IDEMPOTENT, EffectClass.UNKNOWN]


def test_a_branch_that_did_nothing_is_cleared() -> None:
    """Pruning before a commit is free, and the fork's checkpoint counts as restored."""
    verdict = examined()
    assert (verdict.kind, verdict.restored, fates(verdict), verdict.obligations) == (PruneKind.CLEARED, True, [], ())
    assert (verdict.agent_id, verdict.branch_id, verdict.checkpoint_id, verdict.prune_id) == ("agent", "a", "c", "p")
    assert verdict.raise_for_violation() is verdict


# -- rows 1 and 2: what cannot be told, and what does no harm ------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        seen(*done(), unsafe="set aside"),
        seen(*done(), effect("UNKNOWN", "x")),
        seen(*done(branch="b"), unsafe="set aside"),
        seen(*done(**HARMLESS[0]), effect("UNKNOWN", "x")),
    ],
)
def test_what_cannot_be_read_is_undecided(operation: SeenOperation) -> None:
    """Whoever the readable facts name, and whatever class they tell: nobody can say whose it is."""
    verdict = examined(operation)
    assert (verdict.kind, fates(verdict), verdict.restored) == (PruneKind.OPEN, ["undecided"], False)
    assert verdict.undecided[0].why


def test_an_agents_log_that_cannot_be_read_is_undecided() -> None:
    """It tells who relies on what; so long as it holds something unknown, nothing is cleared."""
    verdict = examined(more=(agent_fact("UNKNOWN"),))
    assert (verdict.kind, fates(verdict), verdict.restored) == (PruneKind.OPEN, ["undecided"], False)
    assert "the agent's log" in verdict.undecided[0].why


def test_a_branch_that_never_acted_has_nothing_unreadable() -> None:
    """Nobody opened a session on it, so none of its facts can be in a record that was set aside."""
    assert examined(seen(*done(branch="b"), unsafe="set aside"), life=LIFE[:3]).kind is PruneKind.CLEARED


@pytest.mark.parametrize("acknowledged", [False, True])
def test_what_the_branch_did_beyond_what_was_granted_is_undecided(acknowledged: bool) -> None:
    """A late commit on what a sibling owns says that it may have happened twice, until somebody has looked."""
    facts = [by("b", intended, "b1", 3), by("a", intended, "a1", 3), by("b", committed, "b1", 4)]
    facts.append(by("a", committed, "a1", 4))
    if acknowledged:
        facts.append(resolved("COMMITTED", 3))
    assert fold(*facts).needs_attention is not acknowledged
    assert fates(examined(seen(*facts))) == ([] if acknowledged else ["undecided"])


@pytest.mark.parametrize("values", HARMLESS)
def test_harmless_effects_never_count(values: dict[str, Any]) -> None:
    """Committed or under way: a repeat of them does no harm."""
    for facts in (done(**values), done(**values)[:1]):
        assert examined(seen(*facts)).kind is PruneKind.CLEARED


# -- row 3: undecided ----------------------------------------------------------------------


@pytest.mark.parametrize("effect_class", HARMFUL)
@pytest.mark.parametrize(("more", "ended"), [((), True), ((), False), (("IN_DOUBT",), True)])
def test_what_is_owned_or_in_doubt_must_be_settled_first(
    effect_class: EffectClass, more: tuple[str, ...], ended: bool
) -> None:
    """Of every class that can do harm; it is an obligation until a probe or an operator has settled it."""
    facts = [by("a", intended, "a1", 4, effect_class=effect_class)]
    facts += [by("a", lambda name, **v: effect("IN_DOUBT", name, **v), "a1", 5) for _ in more]
    verdict = examined(seen(*facts, owner_ended=ended))
    assert (verdict.kind, fates(verdict)) == (PruneKind.OPEN, ["undecided"])
    assert [o.kind for o in verdict.obligations] == ["UNDECIDED"]
    status = "owned" if not ended and not more else "in doubt"
    assert verdict.undecided[0].status == status


def test_what_is_being_undone_is_open_until_that_has_ended() -> None:
    """It is neither gone nor something that another plan could undo."""
    facts = [*done(**sealed()), effect("COMPENSATING", "u", version="0.1", branch_id="", agent_id="")]
    assert fold(*facts).status.value == "compensating"
    verdict = examined(seen(*facts))
    assert (verdict.kind, verdict.to_compensate, verdict.committed) == (PruneKind.OPEN, None, 1)
    assert verdict.undecided[0].why == "it is being undone"
    assert [o.kind for o in verdict.obligations] == ["BEING_UNDONE"]


def test_what_a_sibling_owns_is_not_the_branchs() -> None:
    """Its own attempt lost: it never ran."""
    verdict = examined(seen(by("b", intended, "b1", 3), by("a", intended, "a1", 4)))
    assert (verdict.kind, fates(verdict)) == (PruneKind.CLEARED, [])


# -- row 4: adopted, to compensate, orphan -------------------------------------------------


@pytest.mark.parametrize("effect_class", HARMFUL)
def test_an_unsealed_effect_that_nobody_relies_on_is_an_orphan(effect_class: EffectClass) -> None:
    """The pruning is a violation that names it, and the way on; the checkpoint does not count as restored."""
    verdict = examined(seen(*done(7, effect_class=effect_class)))
    assert (verdict.kind, fates(verdict), verdict.restored) == (PruneKind.VIOLATION, ["orphans"], False)
    [orphan] = verdict.orphans
    assert (orphan.op_id, orphan.tool, orphan.seq, orphan.status) == (OP, "bank.pay", 7, "committed")
    with pytest.raises(SpeculativeRollbackViolation) as caught:
        verdict.raise_for_violation()
    assert (caught.value.orphans, caught.value.violations, caught.value.verdict) == ((orphan,), (), verdict)
    assert OP in str(caught.value)
    assert "fencepost branch adopt" in str(caught.value)
    assert not caught.value.retryable


def test_a_sealed_effect_that_nobody_relies_on_is_to_be_compensated() -> None:
    """The plan names what asked for it; its checkpoint is the one that the branch was forked at."""
    verdict = examined(seen(*done(**sealed())))
    assert (verdict.kind, fates(verdict)) == (PruneKind.OPEN, ["undoable"])
    plan = verdict.to_compensate
    assert plan is not None
    assert (plan.cause, plan.cause_id, plan.agent_id, plan.branch_id, plan.checkpoint_id) == (
        "prune",
        "p",
        "agent",
        "a",
        "c",
    )
    assert [(s.op_id, s.version) for s in plan.steps] == [(OP, "0.1")]
    assert [o.kind for o in verdict.obligations] == ["COMPENSATE"]


def test_what_can_be_undone_in_part_is_planned_with_its_losses() -> None:
    """A person accepts them by name when the plan is carried out."""
    plan = examined(seen(*done(**sealed(irreversible=("mail",))))).to_compensate
    assert plan is not None
    assert (plan.losses, plan.verdict) == (("mail",), ManifestVerdict.PARTIAL_ROLLBACK_REQUIRES_HUMAN)


def test_a_manifest_that_was_changed_makes_an_orphan() -> None:
    """Nobody undoes by a manifest that does not match its digest."""
    verdict = examined(seen(*done(**{**sealed(), "manifest_digest": "0" * 64})))
    assert fates(verdict) == ["orphans"]
    assert "changed after sealing" in verdict.orphans[0].why


def test_effects_that_no_order_undoes_are_orphans() -> None:
    """Two that name each other's resource as a cascade: the plan would have to undo each before the other."""
    first = _with_cascade("pay:1", resource="x", cascade="y")
    second = _with_cascade("pay:2", resource="y", cascade="x")
    verdict = examined(first, second)
    assert (verdict.to_compensate, [e.op_id for e in verdict.orphans]) == (None, ["pay:1", "pay:2"])
    assert "no order" in verdict.orphans[0].why


def _with_cascade(op_id: str, *, resource: str, cascade: str) -> SeenOperation:
    action = CompensatingAction(name="u", payload=None, idempotency_key=action_key(op_id, 1), covers=(cascade,))
    manifest = path(
        op_id=op_id, round_number=1, tool="t", pre_state_hash="0", action=action, resource=resource, cascades=[cascade]
    ).seal(post_state_hash="1")
    return seen(*done(op_id=op_id, manifest=manifest.data, manifest_digest=manifest.digest))


@pytest.mark.parametrize("more", [{}, sealed()])
def test_what_a_standing_branch_adopted_stands(more: dict[str, Any]) -> None:
    """Sealed or not: it is recorded against the logical operation, and no obligation."""
    verdict = examined(seen(*done(**more), adopted("b")))
    assert (verdict.kind, fates(verdict), verdict.restored, verdict.committed) == (
        PruneKind.CLEARED,
        ["adopted"],
        True,
        1,
    )
    assert verdict.adopted[0].relied_on_by == ("agent/b",)


def test_what_another_agent_adopted_stands_until_it_is_pruned_there() -> None:
    """Op ids can be shared by agents; their branches are asked for in their own log."""
    operation = seen(*done(), adopted("x", agent_id="other"))
    assert examined(operation).adopted[0].relied_on_by == ("other/x",)
    life = (opened("o1", branch_id="x", agent_id="other"), pruned("x", agent_id="other"))
    standing, gone = (Witness.of(fold_agent("other", at(*life[:n]))) for n in (1, 2))
    assert examined(operation, others=[standing]).adopted[0].relied_on_by == ("other/x",)
    assert fates(examined(operation, others=[gone])) == ["orphans"]


def test_what_an_operator_adopted_stands_whatever_becomes_of_the_branch() -> None:
    """Also for the pruned branch itself: a person has said that it may stand."""
    verdict = examined(seen(*done(), adopted("a", epoch=Position(0, -1), seq=0, by="ann", version="0.1")))
    assert (verdict.kind, verdict.adopted[0].relied_on_by) == (PruneKind.CLEARED, ("ann",))


@pytest.mark.parametrize(
    ("adoption", "more"),
    [
        (adopted("b"), (pruned("b", "p2"),)),
        (adopted("a"), ()),
        (adopted("nowhere"), ()),
    ],
)
@pytest.mark.parametrize("manifest", [{}, sealed()])
def test_an_adoption_that_does_not_stand_any_more_is_none(adoption: Any, more: Any, manifest: dict[str, Any]) -> None:
    """By a branch that was pruned since, by the branch itself, by none that there is; and it does not bar the undo."""
    verdict = examined(seen(*done(**manifest), adoption), more=more)
    assert fates(verdict) == (["undoable"] if manifest else ["orphans"])


def test_an_adoption_on_a_stretch_that_was_left_behind_is_none() -> None:
    """Branch b went back over it, and has not asked for it since; once it does, it has absorbed it."""
    back = (
        agent_fact(
            "ROLLBACK_REQUESTED", branch_id="b", rollback_id="r", watermark=token(B, 5, branch="b"), segment="0.2"
        ),
        agent_fact("ROLLBACK_DECIDED", branch_id="b", rollback_id="r", verdict="PROCEED_GATED"),
        opened("sb2", token(B, 5, branch="b"), branch_id="b", segment="0.6"),
    )
    operation = seen(*done(**sealed()), adopted("b", 9))
    assert fates(examined(operation, more=back)) == ["undoable"]
    assert fates(examined(seen(*done(), adopted("b", 4)), more=back)) == ["adopted"]
    again = {(OP, 1): [Point(Position(0, 8), 2)]}
    assert fates(examined(operation, more=back, absorbed=again)) == ["adopted"]


@pytest.mark.parametrize(
    ("place", "round_number", "more", "fate"),
    [
        (Point(Position(0, B), 7), 1, (), "adopted"),
        (Point(Position(0, A), 7), 1, (), "orphans"),
        (Point(Position(0, B), 7), 2, (), "orphans"),
        (Point(Position(0, B), 7), 1, (pruned("b", "p2"),), "orphans"),
        (Point(Position(0, 77), 7), 1, (), "orphans"),
    ],
)
def test_absorbed_by_a_branch_that_stands(place: Point, round_number: int, more: Any, fate: str) -> None:
    """In this round, by a session of another branch that was not pruned."""
    absorbed = {(OP, round_number): [place]}
    assert fates(examined(seen(*done()), more=more, absorbed=absorbed)) == [fate]


@pytest.mark.parametrize(
    ("seq", "closed", "fate"), [(5, False, "adopted"), (4, False, "orphans"), (5, True, "orphans")]
)
def test_a_branch_that_was_forked_from_it_after_the_effect_relies_on_it(seq: int, closed: bool, fate: str) -> None:
    """Its path knows the effect; not one that was forked before it, nor one that was pruned as well."""
    child = forked("child", token(A, seq, branch="a"), parent_branch_id="a", checkpoint_id="c-a")
    more = (pruned("child", "p2"),) if closed else ()
    verdict = examined(seen(*done(5)), life=(*LIFE, child), more=more)
    assert fates(verdict) == [fate]
    if fate == "adopted":
        assert verdict.adopted[0].relied_on_by == ("agent/child",)


def test_a_branch_that_took_its_state_over_before_the_pruning_relies_on_it() -> None:
    """A session of main that resumed from where the branch had come to."""
    taken = opened("s2", token(A, 5, branch="a"))
    verdict = examined(seen(*done(5)), life=(*LIFE, taken))
    assert verdict.adopted[0].relied_on_by == ("agent/main",)
    assert fates(examined(seen(*done(6)), life=(*LIFE, taken))) == ["orphans"]


def test_a_late_commit_that_settled_a_free_operation_counts() -> None:
    """It was resolved as absent, and then it turned out that it had happened."""
    facts = [by("a", intended, "a1", 4), resolved("ABSENT", 0), by("a", committed, "a1", 5)]
    assert fates(examined(seen(*facts))) == ["orphans"]


def test_what_was_resolved_as_committed_counts_for_who_owned_it() -> None:
    """The operator's word stands in for the outcome."""
    assert fates(examined(seen(by("a", intended, "a1", 4), resolved("COMMITTED", 0)))) == ["orphans"]
    assert fates(examined(seen(by("b", intended, "b1", 4), resolved("COMMITTED", 0)))) == []


# -- rows 5 and 6: undone, and never done --------------------------------------------------


def test_what_was_undone_is_listed_as_compensated() -> None:
    """By a plan, or by an operator outside; whoever did it anew in a later round."""
    undone = [*done(), effect("COMPENSATED", "u", round=1, branch_id="", agent_id="")]
    verdict = examined(seen(*undone))
    assert (verdict.kind, fates(verdict), verdict.committed) == (PruneKind.CLEARED, ["compensated"], 1)
    anew = [by("b", intended, "b1", 4, round=2), by("b", committed, "b1", 5, round=2)]
    assert fates(examined(seen(*undone, *anew))) == ["compensated"]
    own = [by("a", intended, "a2", 8, round=2), by("a", committed, "a2", 9, round=2)]
    assert fates(examined(seen(*undone, *own))) == ["compensated", "orphans"]


@pytest.mark.parametrize(
    "facts",
    [
        [by("a", intended, "a1", 4), by("a", failed, "a1", 5)],
        [by("a", intended, "a1", 4), resolved("ABSENT", 0)],
        [by("a", intended, "a1", 4), by("a", lambda n, **v: effect("REJECTED", n, **v), "a1", 0)],
    ],
)
def test_what_certainly_never_ran_is_free(facts: list[Any]) -> None:
    """Failed, overruled, rejected; also when a sibling did it afterwards."""
    verdict = examined(seen(*facts))
    assert (verdict.kind, fates(verdict), verdict.committed) == (PruneKind.CLEARED, ["free"], 0)
    assert (verdict.free[0].op_id, verdict.free[0].tool) == (OP, "bank.pay")
    assert fates(examined(seen(*facts, *done(branch="b")))) == ["free"]


def test_only_the_branch_itself_counts() -> None:
    """Not what main did, before the fork or after it, nor a branch of the same name of another agent."""
    others = done(branch="main"), done(branch="b"), [replace(f, agent_id="other") for f in done()]
    for facts in others:
        assert (examined(seen(*facts)).kind, fates(examined(seen(*facts)))) == (PruneKind.CLEARED, [])


def test_a_verdict_looks_only_at_what_can_be_the_branchs() -> None:
    """What its attempts had to do with, and what nobody can attribute."""
    mine, other, nobodys = seen(*done()), seen(*done(branch="b")), seen(*done(branch="b"), unsafe="set aside")
    found = by_branch("agent", [mine, other, nobodys], ["a", "main"])
    assert found == {"a": [mine, nobodys], "main": [nobodys]}
    assert by_branch("somebody else", [mine], ["a"]) == {"a": []}


# -- calls outside the ledger --------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "counts"), [*(({"effect_class": c}, True) for c in HARMFUL), *((v, False) for v in HARMLESS)]
)
def test_a_call_without_an_op_id_is_a_violation(values: dict[str, Any], counts: bool) -> None:
    """Unless it was a read, or a repeat of it does no harm; those of other branches do not count."""
    call = agent_fact(
        "CALL_REPORTED", branch_id="a", session_id="sa", epoch=Position(0, A), seq=6, tool="shell", **values
    )
    verdict = examined(calls=[call, replace(call, branch_id="b"), replace(call, agent_id="other")])
    assert fates(verdict) == (["violations"] if counts else [])
    if not counts:
        return
    assert (verdict.kind, [o.op_id for o in verdict.obligations], verdict.restored) == (
        PruneKind.VIOLATION,
        [""],
        False,
    )
    with pytest.raises(SpeculativeRollbackViolation) as caught:
        verdict.raise_for_violation()
    assert [(v.tool, v.session_id, v.seq) for v in caught.value.violations] == [("shell", "sa", 6)]
    assert "session sa, sequence 6" in caught.value.message
    assert "operator" in caught.value.next_step
    assert "fencepost branch acknowledge" in caught.value.next_step


# -- the values ----------------------------------------------------------------------------


def test_a_verdict_is_plain_data_for_programs() -> None:
    """With a schema; the gravest kind holds when there are several."""
    two = [replace(f, op_id="pay:2") for f in done(7, **sealed("pay:2"))]
    verdict = examined(seen(*done()), seen(*two), seen(by("a", intended, "a9", 9)))
    told = verdict.to_dict()
    assert (told["schema"], told["verdict"], told["restored"]) == ("fencepost.prune.v1", "VIOLATION", False)
    assert told["orphans"][0]["op_id"] == OP
    assert told["to_compensate"]["steps"][0]["op_id"] == "pay:2"
    assert [kind for kind, _ in verdict.open_effects] == [
        ObligationKind.ORPHAN, ObligationKind.UNDECIDED, ObligationKind.COMPENSATE,
    ]  # fmt: skip


def test_obligations_say_since_when() -> None:
    """Since the pruning, or since the effect if that came later; a pruning left in the middle is one by itself."""
    verdict = examined(seen(*done(time_ms=50)))
    [orphan] = open_obligations(verdict, pruned("a", time_ms=40), decided=True)
    assert (orphan.kind, orphan.since_ms, orphan.op_id) == (ObligationKind.ORPHAN, 50, OP)
    _, unfinished = open_obligations(verdict, pruned("a", time_ms=60), decided=False)
    assert (unfinished.kind, unfinished.since_ms) == (ObligationKind.PRUNE_UNFINISHED, 60)
    assert orphan.to_dict()["kind"] == "ORPHAN"
