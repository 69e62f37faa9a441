"""The guard on branches and paths: where a checkpoint must stand so that a branch can go back to it."""

from __future__ import annotations

from unit.ledger.guard_kit import BOTH, LIFE, evidence, kinds, seen
from unit.ledger.kit import (
    LEDGER_ID,
    agent_fact,
    at,
    committed,
    decided,
    effect,
    intended,
    opened,
    point,
    requested,
    token,
)

from fencepost.ledger.guard import Evidence, decide, effect_reasons
from fencepost.ledger.lineage import fold_agent
from fencepost.ledger.positions import Position
from fencepost.ledger.verdicts import Policy, ReasonKind
from fencepost.ledger.watermarks import Watermark

# -- the agent, its branches and its watermarks --------------------------------------------


@BOTH
def test_a_branch_that_does_not_exist_or_is_closed(policy: Policy) -> None:
    """There is nothing that could go back."""
    closed = (*LIFE, requested("r", token(0, 1)), decided("r"))
    assert kinds(decide(evidence(life=closed, seq=1), policy)) == set()
    for life, branch in ((LIFE, "nowhere"), (closed, "b")):
        verdict = decide(Evidence(LEDGER_ID, fold_agent("agent", at(*life)), branch, "c", None), policy)
        assert kinds(verdict) == {ReasonKind.CHECKPOINT_NOT_ON_PATH}


@BOTH
def test_a_checkpoint_beside_the_path_refuses(policy: Policy) -> None:
    """Of a sibling, of the lost end of a crashed session, of an abandoned stretch: also when nothing is crossed."""
    sibling = Watermark(LEDGER_ID, "agent", "b", Position(0, 2), 3)
    crashed = (opened("s1"), opened("s2", token(0, 4)))
    back = (opened("s1"), requested("r", token(0, 2)), decided("r"))
    for given in (evidence(mark=sibling), evidence(life=crashed), evidence(life=back)):
        assert kinds(decide(given, policy)) == {ReasonKind.CHECKPOINT_NOT_ON_PATH}
    assert decide(evidence(life=crashed, seq=4), policy).authorised
    assert decide(evidence(life=back, seq=2), policy).authorised


@BOTH
def test_an_agent_whose_log_cannot_be_trusted_refuses(policy: Policy) -> None:
    """A fact of an unknown kind, or a record that was set aside: of that the view says so of the agent."""
    assert kinds(decide(evidence(life=(*LIFE, agent_fact("UNKNOWN"))), policy)) == {ReasonKind.AGENT_UNSAFE}
    set_aside = evidence()
    set_aside.agent.unsafe = "a record that was set aside"
    assert kinds(decide(set_aside, policy)) == {ReasonKind.AGENT_UNSAFE}


@BOTH
def test_what_was_absorbed_of_others_is_being_undone(policy: Policy) -> None:
    """It counts like the agent's own, known or not: refused until that has ended, also if the state names it."""
    foreign = {"agent_id": "other", "epoch": Position(0, 9)}
    facts = (
        intended("x", seq=1, **foreign),
        committed("x", seq=2, **foreign),
        effect("COMPENSATING", "u", version="0.1"),
    )
    for place in (point(0, 4), point(0, 6)):
        shown = evidence(absorbed={("pay:1", 1): [place]}, operations=[seen(*facts)], restored="undo:pay:1:1")
        verdict = decide(shown, policy)
        assert kinds(verdict) == {ReasonKind.EFFECT_BEING_UNDONE}
        assert "which other/main did and the agent relies on" in verdict.reasons[0].text
        assert [reason.kind for reason in effect_reasons(shown)] == [ReasonKind.EFFECT_BEING_UNDONE]
    assert decide(evidence(absorbed={("pay:1", 2): [point(0, 4)]}, operations=[seen(*facts)]), policy).authorised
