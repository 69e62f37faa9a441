"""A restored summary says by its token which compaction it is of; the number that the caller names is not believed alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fencepost.ledger import AgentSession, EffectClass, Ledger, ReasonKind, Reconcile, Resume, Watermark

if TYPE_CHECKING:
    from conformance.worlds import World


def compacted(session: AgentSession, text: str) -> str:
    """Compact the session's context to this text and the token of now; the summary."""
    summary = f"{text}\n{session.watermark().token}"
    session.record_compaction(summary=summary)
    return summary


def edited(summary: str) -> str:
    """What a later turn made of a summary: its digest is not the recorded one any more."""
    return f"{summary}\nThe customer says hello."


def kinds(answer: Resume | Reconcile) -> list[ReasonKind]:
    return [reason.kind for reason in answer.reasons] if isinstance(answer, Reconcile) else []


def test_the_token_of_another_compaction_is_told_apart(world: World, ledger: Ledger) -> None:
    """An older one's, a newer one's, another agent's, and none: each by its own kind, with the token to look for."""
    named = world.op_id("a")
    with ledger.session(world.agent) as session, ledger.session(f"{world.agent}-other") as other:
        world.charge(session, "a")
        first = compacted(session, f"{named} is done")
        world.charge(session, "b")
        second = compacted(session, f"{named} and {world.op_id('b')} are done")
        session.checkpoint("c")
        world.charge(session, "d")
        third = compacted(session, f"{named}, {world.op_id('b')}, and {world.op_id('d')} are done")
        session.checkpoint("d")
        foreign = compacted(other, f"{named} and {world.op_id('b')} are done")

    def asked(checkpoint: str, generation: int, summary: str) -> Resume | Reconcile:
        return ledger.resume(world.agent, checkpoint=checkpoint, summary_generation=generation, summary=summary)

    assert isinstance(asked("d", 3, edited(third)), Resume)
    all_named = f"{named} {world.op_id('b')} {world.op_id('d')}"
    expected = {
        edited(first): ReasonKind.SUMMARY_OLDER,
        edited(second): ReasonKind.SUMMARY_OLDER,
        edited(foreign): ReasonKind.SUMMARY_FOREIGN,
        "none": ReasonKind.SUMMARY_WITHOUT_TOKEN,
    }
    [*_, newest] = ledger.compactions(world.agent)
    assert newest.mark is not None
    for summary, kind in expected.items():
        answer = asked("d", 3, f"{all_named}\n{summary}")
        assert isinstance(answer, Reconcile)
        assert kinds(answer) == [kind]
        assert newest.mark.token in answer.reasons[0].text
        assert answer.raise_for_missing() is answer
    newer = kinds(asked("c", 2, edited(third)))
    assert newer[:2] == [ReasonKind.SUMMARY_NEWER, ReasonKind.WATERMARK_MISMATCH]


def test_a_generation_that_was_left_behind_by_a_rollback(world: World, ledger: Ledger) -> None:
    """Two paths have a generation of the same number: the token tells which one a summary is of, the digest does too."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.report_call("search", kind=EffectClass.READ)
        left = compacted(session, "the first try")
        with session.rollback("c") as again:
            again.report_call("search", kind=EffectClass.READ)
            summary = compacted(again, "the second try")
            again.checkpoint("d")
    same: dict[str, Any] = {"checkpoint": "d", "summary_generation": 1}
    assert isinstance(ledger.resume(world.agent, summary=edited(summary), **same), Resume)
    answer = ledger.resume(world.agent, summary=edited(left), **same)
    assert kinds(answer) == [ReasonKind.SUMMARY_OF_ANOTHER_GENERATION, ReasonKind.WATERMARK_MISMATCH]


def test_a_state_that_holds_a_token_holds_its_checkpoints(world: World, ledger: Ledger) -> None:
    """Another ledger's or agent's, a mangled one, and another checkpoint's are named, and what that state lacks is told."""
    with ledger.session(world.agent) as session, ledger.session(f"{world.agent}-other") as other:
        before = session.checkpoint("a").token
        foreign = other.checkpoint("a").token
        world.charge(session, "a")
        mine = session.checkpoint("c").token
        world.charge(session, "b")
        summary = compacted(session, f"{world.op_id('a')} and {world.op_id('b')} are done")
        last = session.checkpoint("d").token

    mark = Watermark.parse(mine)
    elsewhere = replace(mark, ledger_id="another").token
    damaged = f"{mine[:-6]}x{mine[-5:]}"

    def asked(checkpoint: str, state: str) -> Resume | Reconcile:
        compact: dict[str, Any] = {"summary_generation": 1, "summary": summary} if checkpoint == "d" else {}
        return ledger.resume(world.agent, checkpoint=checkpoint, state=state, **{"summary_generation": 0, **compact})

    names = [world.op_id("a"), world.op_id("b")]
    for state, kind, unknown in (
        (before, ReasonKind.WATERMARK_MISMATCH, names),
        (mine, ReasonKind.WATERMARK_MISMATCH, names[1:]),
        (foreign, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER, names),
        (elsewhere, ReasonKind.WATERMARK_OF_ANOTHER_LEDGER, names),
        (damaged, ReasonKind.WATERMARK_UNREADABLE, names),
    ):
        answer = asked("d", f"mark: {state}")
        assert isinstance(answer, Reconcile)
        assert kinds(answer) == [kind]
        assert last in answer.reasons[0].text
        assert [effect.op_id for effect in answer.effects] == unknown
    for state in (
        "nothing of the ledger",
        f"mark: {last}",
        f"{summary} mark: {last}",
        f"mark: {last} other: {foreign}",
    ):
        assert isinstance(asked("d", state), Resume)
    assert kinds(asked("c", f"mark: {mine}")) == [ReasonKind.EFFECT_NOT_KNOWN]
    assert kinds(asked("c", f"mark: {foreign}"))[0] is ReasonKind.WATERMARK_OF_ANOTHER_LEDGER
