"""Resuming a restored agent: what a lossy summary lost is told from the ledger, and nothing is done twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from typing import Any

import pytest
from conformance.worlds import World, charge, never_suggests_a_retry, until

from fencepost.ledger import (
    AgentSession,
    AsyncLedger,
    Dropped,
    EffectClass,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    OperationInDoubtError,
    ReasonKind,
    Reconcile,
    Resume,
    SummaryReconciliationError,
)
from fencepost.ledger.operations import Status

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def kinds(answer: Resume | Reconcile) -> list[ReasonKind]:
    return [reason.kind for reason in answer.reasons] if isinstance(answer, Reconcile) else []


def reconciled(answer: Resume | Reconcile) -> Reconcile:
    assert isinstance(answer, Reconcile), answer
    return answer


def compact(session: AgentSession, *parts: str, dropped: Any = ()) -> str:
    """Compact the session's context to a summary of these parts; the summary."""
    summary = "\n".join((*parts, session.watermark().token))
    session.record_compaction(summary=summary, dropped=dropped)
    return summary


def test_a_whole_context_is_resumed(world: World, ledger: Ledger) -> None:
    """The generations agree, each effect is named, and each fact is there word for word; the agent goes on from it."""
    with ledger.session(world.agent) as session:
        result = world.charge(session, "a")
        summary = compact(session, f"{world.op_id('a')} gave {json.dumps(result)}", "The customer wants it in blue.")
        mark = session.checkpoint("c")
        answer = ledger.resume(
            world.agent,
            checkpoint="c",
            summary_generation=1,
            depends_on=[world.op_id("a"), ("colour", sha("The customer wants it in blue."))],
            summary=summary,
            held={"colour": "The customer wants it in blue."},
        )
        assert isinstance(answer, Resume), answer
        assert (answer.token, answer.generation, answer.agent_id) == (mark.token, 1, world.agent)
    with ledger.session(world.agent, resumed_from=answer.token) as restored:
        assert restored.replay_forward() == []


def test_a_summary_that_keeps_the_request_and_lost_the_action(world: World, ledger: Ledger) -> None:
    """It is reconciled: the agent learns what it did, in order and with results, and does not do it again."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        world.charge(session, "b", cents=70)
        summary = compact(session, f"The customer asked to charge {world.key('a')}. Maintenance was performed.")
        session.checkpoint("c")
    with ledger.session(world.agent) as restored:
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=summary))
        assert kinds(answer) == [ReasonKind.EFFECT_NOT_NAMED, ReasonKind.EFFECT_NOT_NAMED]
        assert [(op.op_id, op.result["cents"]) for op in answer.effects] == [
            (world.op_id("a"), 50),
            (world.op_id("b"), 70),
        ]
        again = ledger.reconcile(world.agent, checkpoint="c", summary_generation=1, summary=summary)
        assert {**again.to_dict(), "age_s": 0} == {**answer.to_dict(), "age_s": 0}
        assert world.charge(restored, "a") == answer.effects[0].result
    assert (world.hits("a"), world.hits("b")) == (1, 1)


def test_a_summary_that_is_older_than_the_checkpoint(world: World, ledger: Ledger) -> None:
    """The list of effects comes from the ledger, whatever the older summary says."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        older = compact(session, f"{world.op_id('a')} is done")
        world.charge(session, "b")
        newer = compact(session, f"{world.op_id('a')} and {world.op_id('b')} are done")
        session.checkpoint("c")
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=older))
        assert kinds(answer) == [
            ReasonKind.SUMMARY_OLDER,
            ReasonKind.SUMMARY_OF_ANOTHER_GENERATION,
            ReasonKind.EFFECT_NOT_NAMED,
        ]
        assert [op.op_id for op in answer.effects] == [world.op_id("b")]
        mislabelled = ledger.resume(world.agent, checkpoint="c", summary_generation=2, summary=older)
        assert ReasonKind.SUMMARY_OF_ANOTHER_GENERATION in kinds(mislabelled)
        assert kinds(ledger.resume(world.agent, checkpoint="c", summary_generation=3, summary=newer)) == [
            ReasonKind.SUMMARY_NEWER
        ]
        assert kinds(ledger.resume(world.agent, checkpoint="c", summary_generation=2, summary=newer)) == []
        assert kinds(ledger.resume(world.agent, checkpoint="c", summary_generation=2)) == []


def test_a_dropped_result_of_a_write(world: World, ledger: Ledger) -> None:
    """The drop manifest lists it, it is recovered, and running the tool again is refused: the recorded result comes back."""
    with ledger.session(world.agent) as session:
        result = world.charge(session, "a")
        op_id = world.op_id("a")
        summary = compact(session, f"{op_id} was done", dropped=[(op_id, json.dumps(result)), "call_7"])
        session.checkpoint("c")
        [compaction] = ledger.compactions(world.agent)
        assert compaction.dropped == (Dropped(op_id, sha(json.dumps(result))), Dropped("call_7"))
        assert kinds(ledger.resume(world.agent, checkpoint="c", summary_generation=1, summary=summary)) == []
        answer = ledger.reconcile(
            world.agent, checkpoint="c", summary_generation=1, depends_on=[op_id], summary=summary
        )  # fmt: skip
        assert reconciled(answer).recovered == {op_id: result}
        assert kinds(answer) == [ReasonKind.DEPENDENCY_NOT_PRESENT]
        assert world.charge(session, "a") == result
    assert world.hits("a") == 1


def test_results_of_reads_are_recovered(world: World, ledger: Ledger) -> None:
    """Recorded ones come from the ledger, others from the user's own source; a reader does not force a reconciliation."""
    source = {"doc:1": "the first document", "doc:2": "the second, since edited"}
    with ledger.session(world.agent) as session:

        @session.effect("docs.read", kind=EffectClass.READ, key=lambda name: name, record=True)
        def read(name: str) -> dict[str, str]:
            return {"text": f"what {name} says"}

        recorded = read(world.key("r"))
        summary = compact(
            session, "read it all", dropped=[("doc:1", "the first document"), ("doc:2", "the second"), "doc:3"]
        )  # fmt: skip
        session.checkpoint("c")
        read_op = read.op_id(world.key("r"))
        until(lambda: ledger.operations(world.agent))
        asked: list[str] = []

        def resolve(reference: str) -> str | bytes | None:
            asked.append(reference)
            if reference == "doc:4":
                raise OSError("the disk is gone")
            return source.get(reference)

        same: dict[str, Any] = {"checkpoint": "c", "summary_generation": 1, "summary": summary}
        assert kinds(ledger.resume(world.agent, **same)) == []
        wanted: list[Any] = [read_op, "doc:1", "doc:2", "doc:3", ("doc:4", sha("four"))]
        answer = reconciled(ledger.resume(world.agent, depends_on=wanted, resolve=resolve, **same))
        assert answer.recovered == {read_op: recorded, "doc:1": "the first document"}
        assert sorted(asked) == ["doc:1", "doc:2", "doc:3", "doc:4"]
        assert {name: why.split(":")[0] for name, why in answer.missing.items()} == {
            "doc:2": "the text that was found for it is another one",
            "doc:3": "no digest of it is known, so no text can be believed to be it",
            "doc:4": "the resolver failed",
        }
        assert answer.effects == ()
        with pytest.raises(SummaryReconciliationError) as caught:
            ledger.reconcile(world.agent, depends_on=wanted, resolve=resolve, **same)
        assert list(caught.value.missing) == ["doc:2", "doc:3", "doc:4"]
        assert caught.value.recovered == answer.recovered
        assert not caught.value.retryable
        assert never_suggests_a_retry(str(caught.value))
        whole = ledger.resume(
            world.agent, checkpoint="c", summary_generation=1, depends_on=["doc:1"], summary=summary,
            state="the first document", resolve=resolve,
        )  # fmt: skip
        assert isinstance(whole, Resume)


def test_facts_from_elsewhere(world: World, ledger: Ledger) -> None:
    """Another agent's result is in the ledger; where a text that is held is not the one, the resolver may have it."""
    with ledger.session(f"{world.agent}-other") as other:
        result = world.charge(other, "a")
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        until(lambda: ledger.operation(world.op_id("a")).operation.status is Status.COMMITTED)
        wanted: list[Any] = [world.op_id("a"), ("doc:1", sha("one")), ("doc:2", sha("two"))]
        answer = ledger.reconcile(
            world.agent, checkpoint="c", summary_generation=0, depends_on=wanted,
            held={"doc:1": "stale", "doc:2": b"two"}, resolve={"doc:1": "one"}.get,
        )  # fmt: skip
        assert reconciled(answer).recovered == {world.op_id("a"): result, "doc:1": "one", "doc:2": "two"}
        assert reconciled(answer).effects == ()
        state = f"{json.dumps(result)} doc:1 one doc:2 two"
        assert isinstance(
            ledger.resume(
                world.agent, checkpoint="c", summary_generation=0, depends_on=wanted, state=state,
                held={"doc:1": "one", "doc:2": "two"},
            ),
            Resume,
        )  # fmt: skip


def test_what_happened_after_the_checkpoint(world: World, ledger: Ledger) -> None:
    """The restored agent must learn it; once its session has absorbed it, its next checkpoint is whole."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        world.charge(session, "a")
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
    mark = ledger.checkpoints(world.agent)[0].mark
    with ledger.session(world.agent, resumed_from=mark) as restored:
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=0))
        assert kinds(answer) == [ReasonKind.EFFECT_NOT_KNOWN, ReasonKind.CALL_OUTSIDE_LEDGER]
        assert [op.op_id for op in answer.effects] == [world.op_id("a")]
        restored.replay_forward()
        restored.checkpoint("d")
        assert kinds(ledger.resume(world.agent, checkpoint="d", summary_generation=0)) == [
            ReasonKind.CALL_OUTSIDE_LEDGER
        ]


def test_an_operation_that_was_open_at_the_checkpoint(world: World, ledger: Ledger) -> None:
    """It is shown as it stands now: while it runs, when it is done, and once it is settled by an operator."""
    with ledger.session(world.agent) as session:
        attempt = session.attempt(key=world.key("open"), **SEND).begin()
        assert attempt.owned
        session.checkpoint("c")
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=0))
        assert answer.open_operations == {attempt.op_id: "owned"}
        assert kinds(answer) == [ReasonKind.EFFECT_OWNED]
        attempt.doubt("no answer")
        world.status(attempt.op_id, Status.IN_DOUBT)
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=0))
        assert answer.open_operations == {attempt.op_id: "in doubt"}
        assert [(op.op_id, op.status) for op in answer.effects] == [(attempt.op_id, "in doubt")]
        with pytest.raises(SummaryReconciliationError, match="settle it first"):
            ledger.reconcile(world.agent, checkpoint="c", summary_generation=0, depends_on=[attempt.op_id])
        version = ledger.operation(attempt.op_id).operation.version
        ledger.resolve(
            attempt.op_id, outcome="absent", version=version, by="ann", evidence="looked", accept_risk=True
        )  # fmt: skip
        settled = ledger.resume(world.agent, checkpoint="c", summary_generation=0)
        assert isinstance(settled, Resume)
        assert settled.open_operations == {attempt.op_id: "free"}


def test_what_was_undone_since(world: World, ledger: Ledger) -> None:
    """The checkpoint has it as done: the agent is told that it is not any more, until its text names the undoing."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        session.checkpoint("c")
        version = ledger.operation(world.op_id("a")).operation.version
        ledger.resolve(world.op_id("a"), outcome="compensated", version=version, by="ann", evidence="refunded by hand")
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=0))
        assert kinds(answer) == [ReasonKind.EFFECT_UNDONE]
        [undone] = answer.undone
        assert (undone.op_id, undone.by) == (world.op_id("a"), "ann")
        named = f"taken back as {undone.undo_op_id}"
        assert isinstance(ledger.resume(world.agent, checkpoint="c", summary_generation=0, state=named), Resume)
        compact(session, named)
        session.checkpoint("d")
        assert isinstance(ledger.resume(world.agent, checkpoint="d", summary_generation=1), Resume)


def test_checkpoints_that_a_rollback_left_behind(world: World, ledger: Ledger) -> None:
    """They cannot be resumed, and are not the latest any more; which one is comes from the ledger."""
    with ledger.session(world.agent) as session:
        assert ledger.latest_checkpoint(world.agent) is None
        session.checkpoint("c")
        session.checkpoint("d")
        latest = ledger.latest_checkpoint(world.agent)
        assert latest is not None
        assert latest.checkpoint_id == "d"
        with session.rollback("c"):
            latest = ledger.latest_checkpoint(world.agent, "main")
            assert latest is not None
            assert latest.checkpoint_id == "c"
            assert kinds(ledger.resume(world.agent, checkpoint="d", summary_generation=0)) == [
                ReasonKind.CHECKPOINT_NOT_ON_PATH
            ]
            assert isinstance(ledger.resume(world.agent, checkpoint="c", summary_generation=0), Resume)
            assert kinds(ledger.resume(world.agent, checkpoint="never", summary_generation=0)) == [
                ReasonKind.CHECKPOINT_NOT_REGISTERED
            ]


def test_what_is_not_there_is_not_found(world: World, ledger: Ledger) -> None:
    """An agent that the ledger has never seen, and a branch that it does not have."""
    for ask in (
        lambda: ledger.resume("nobody", checkpoint="c", summary_generation=0),
        lambda: ledger.latest_checkpoint("nobody"),
        lambda: ledger.compactions("nobody"),
    ):
        with pytest.raises(NotFoundError):
            ask()
    with ledger.session(world.agent), pytest.raises(NotFoundError):
        ledger.latest_checkpoint(world.agent, "none")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"checkpoint": ""}, "checkpoint"),
        ({"summary_generation": -1}, "summary_generation"),
        ({"summary_generation": "1"}, "summary_generation"),
        ({"depends_on": "doc"}, "depends_on"),
        ({"depends_on": [("doc", "its text")]}, "depends_on"),
        ({"summary": None}, "summary"),
        ({"state": b"x"}, "state"),
        ({"state": "\ud800"}, "state"),
        ({"held": ["doc"]}, "held"),
        ({"held": {"doc": 1}}, "held"),
    ],
)
def test_wrong_arguments_are_named(world: World, ledger: Ledger, arguments: dict[str, Any], field: str) -> None:
    """Before anything is looked for."""
    given: dict[str, Any] = {"checkpoint": "c", "summary_generation": 0, **arguments}
    with pytest.raises(InvalidArgumentError) as caught:
        ledger.resume(world.agent, **given)
    assert caught.value.field == field


@pytest.mark.slow
def test_killed_after_the_effect_and_compacted_away(world: World, ledger: Ledger) -> None:
    """The dead process' effect is in doubt: the successor that is restored from the checkpoint learns of it."""
    dead = world.worker(
        charge("a"), {"do": "checkpoint", "id": "c"}, charge("b"), charge("d", die="after effect")
    )  # fmt: skip
    mark = dead.dies()[1]["value"]
    with ledger.session(world.agent, resumed_from=mark) as restored:
        answer = reconciled(ledger.resume(world.agent, checkpoint="c", summary_generation=0))
        assert [(op.op_id, op.status) for op in answer.effects] == [
            (world.op_id("b"), "committed"),
            (world.op_id("d"), "in doubt"),
        ]
        assert kinds(answer) == [ReasonKind.EFFECT_NOT_KNOWN, ReasonKind.EFFECT_IN_DOUBT]
        assert world.charge(restored, "b")["cents"] == 50
        with pytest.raises(OperationInDoubtError):
            world.charge(restored, "d")
    assert (world.hits("a"), world.hits("b"), world.hits("d")) == (1, 1, 1)


def test_the_same_awaited(world: World) -> None:
    """Compacting, resuming, and reconciling by the asyncio face; a resolver may be a coroutine function."""
    asked: list[int] = []

    async def resolve(reference: str) -> str | None:
        asked.append(threading.get_ident())
        await asyncio.sleep(0)
        return {"doc:1": "one"}.get(reference)

    async def main() -> None:
        async with AsyncLedger.open(world.url) as ledger, ledger.session(world.agent) as session:
            mark = await session.watermark()
            compaction = await session.record_compaction(summary=mark.token, dropped=[("doc:1", "one"), "doc:2"])
            assert [c.to_dict() for c in await ledger.compactions(world.agent)] == [compaction.to_dict()]
            await session.checkpoint("c")
            latest = await ledger.latest_checkpoint(world.agent)
            assert latest is not None
            assert latest.checkpoint_id == "c"
            same: dict[str, Any] = {"checkpoint": "c", "summary_generation": 1, "resolve": resolve}
            assert isinstance(await ledger.resume(world.agent, **same), Resume)
            answer = await ledger.reconcile(world.agent, depends_on=["doc:1"], **same)
            assert reconciled(answer).recovered == {"doc:1": "one"}
            with pytest.raises(SummaryReconciliationError):
                await ledger.reconcile(world.agent, depends_on=["doc:1", "doc:2"], **same)
        assert threading.get_ident() not in asked

    asyncio.run(main())
    assert asked
