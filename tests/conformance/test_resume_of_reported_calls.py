"""Calls outside the ledger on the path of a restored context: no op_id names them, so a compaction may have lost them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.worlds import World, until

from fencepost.ledger import EffectClass, Ledger, ReasonKind, Reconcile, Resume

if TYPE_CHECKING:
    from fencepost.ledger import AgentSession


def compact(session: AgentSession, text: str) -> str:
    summary = f"{text} {session.watermark().token}"
    session.record_compaction(dropped=["msg:1"], summary=summary)
    return summary


def test_a_reported_call_that_a_summary_may_have_lost(world: World, ledger: Ledger) -> None:
    """The summary keeps the request and has lost the action: the agent is told what was called, by whom, and when."""
    with ledger.session(world.agent) as session:
        session.report_call("mail.send", kind=EffectClass.IRREVERSIBLE, by="ann", evidence="her outbox")
        summary = compact(session, "The user asked to mail A1.")
        session.checkpoint("c")
    answer = ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=summary)
    assert isinstance(answer, Reconcile)
    [reason] = answer.reasons
    assert reason.kind is ReasonKind.CALL_NOT_NAMED
    assert reason.effect is not None
    [call] = answer.calls
    assert (call.tool, call.effect_class, call.branch_id) == ("mail.send", EffectClass.IRREVERSIBLE, "main")
    assert (call.by, call.evidence, call.seq) == ("ann", "her outbox", reason.effect.seq)
    assert call.time_ms > 0
    assert answer.to_dict()["calls"] == [call.to_dict()]


def test_calls_that_no_compaction_has_touched(world: World, ledger: Ledger) -> None:
    """What the context holds as it was, and what does no harm, is no reason; what the checkpoint lacks is told as well."""
    with ledger.session(world.agent) as session:
        session.report_call("mail.read", kind=EffectClass.READ)
        summary = compact(session, "Nothing was done.")
        session.report_call("mail.send", kind=EffectClass.IRREVERSIBLE)
        session.checkpoint("c")
        assert isinstance(ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=summary), Resume)
        session.report_call("mail.send", kind=EffectClass.IRREVERSIBLE)

        def answered() -> Resume | Reconcile:
            return ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=summary)

        until(lambda: isinstance(answered(), Reconcile))  # the report is applied
        answer = answered()
        assert isinstance(answer, Reconcile)
        assert [r.kind for r in answer.reasons] == [ReasonKind.CALL_OUTSIDE_LEDGER]
        assert len(answer.calls) == 1
