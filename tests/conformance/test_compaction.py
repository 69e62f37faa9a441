"""Compactions of a context: the stamp and the drop manifest, the token that a summary must keep, one generation a checkpoint."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import Any

import pytest
from conformance.worlds import World, charge, never_suggests_a_retry, until

from fencepost.ledger import (
    AgentSession,
    CompactionRefusedError,
    Dropped,
    EffectClass,
    FencedError,
    GenerationConflictError,
    InvalidArgumentError,
    Ledger,
    OutcomeUnknownError,
    PublishRefusedError,
    ReasonKind,
    Reconcile,
    RecordTooLargeError,
    Watermark,
    compactions,
)
from fencepost.ledger.compaction_rules import MAX_DROPPED, MAX_DROPPED_BYTES, MAX_KEPT, MAX_KEPT_BYTES
from fencepost.ledger.engine import Engine
from fencepost.ledger.facts import AgentKind


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def summarised(*parts: str) -> str:
    return "What was done so far:\n" + "\n".join(parts)


def test_the_stamp_and_the_drop_manifest(world: World, ledger: Ledger) -> None:
    """A compaction says its generation, its token, what it dropped with digests, and which operations it names."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        world.charge(session, "b")
        mark = session.checkpoint("c")
        text = summarised(f"charged {world.op_id('a')} as asked", mark.token)
        dropped: list[Any] = [
            "call_17",
            (world.op_id("b"), "text of b"),
            ("doc:1", b"\xff\x00"),
            Dropped("doc:2", sha("two")),
        ]
        compaction = session.record_compaction(summary=text, dropped=dropped)
        assert (compaction.generation, compaction.mark) == (1, mark)
        assert compaction.dropped == (
            Dropped("call_17"),
            Dropped(world.op_id("b"), sha("text of b")),
            Dropped("doc:1", hashlib.sha256(b"\xff\x00").hexdigest()),
            Dropped("doc:2", sha("two")),
        )
        assert compaction.kept == (world.op_id("a"),)
        assert compaction.summary_digest == sha(text)
        session.checkpoint("d")
        later = session.record_compaction(generation=7, summary=session.watermark().token)
        session.checkpoint("e")
    assert [c.generation for c in ledger.checkpoints(world.agent)] == [0, 1, 7]
    assert [c.to_dict() for c in ledger.compactions(world.agent)] == [compaction.to_dict(), later.to_dict()]


def test_before_any_checkpoint(world: World, ledger: Ledger) -> None:
    """The watermark of now can be embedded: what was done up to it is known, background publishing included."""
    with ledger.session(world.agent) as session:
        for number in range(20):
            with session.attempt("cache.fill", key=world.key(f"f{number}"), kind=EffectClass.REPEATABLE) as attempt:
                attempt.commit(number)
        mark = session.watermark()
        assert (mark.seq, mark.agent_id, mark.epoch) == (20, world.agent, session.epoch)
        assert session.record_compaction(summary=mark.token).mark == mark
        until(lambda: len(ledger.operations(world.agent)) == 20)
    assert ledger.replay_forward(world.agent, since=mark) == []


def refusal(session: AgentSession, summary: str) -> CompactionRefusedError:
    """How this summary is refused; the token that it names would have been taken."""
    with pytest.raises(CompactionRefusedError) as caught:
        session.record_compaction(summary=summary, dropped=["doc:1"])
    assert not caught.value.retryable
    assert never_suggests_a_retry(str(caught.value))
    assert caught.value.token in caught.value.next_step
    return caught.value


def test_a_summary_that_lost_its_token_is_refused(world: World, ledger: Ledger) -> None:
    """Absent, mangled, another's, and outdated are told apart; nothing is recorded, and the named token is taken."""
    with ledger.session(f"{world.agent}-other") as other:
        foreign = other.checkpoint("c").token
    with ledger.session(world.agent) as session:
        first = session.checkpoint("c1").token
        session.fork("b", checkpoint="c1").close()
        with ledger.session(world.agent, "b") as sibling:
            beside = sibling.checkpoint("cb").token
        world.charge(session, "a")
        newest = session.checkpoint("c2")
        of_now = session.watermark()
        ahead = Watermark(newest.ledger_id, world.agent, "main", newest.epoch, of_now.seq + 1).token
        elsewhere = Watermark("another", world.agent, "main", newest.epoch, newest.seq).token
        for summary, problem in {
            "we went on": "absent",
            "": "absent",
            newest.token.replace(":main:", ":mein:"): "mangled",
            newest.token[:-6]: "mangled",
            foreign: "foreign",
            elsewhere: "foreign",
            beside: "foreign",
            ahead: "foreign",
            first: "outdated",
            f"{first} {foreign} {beside}": "outdated",
        }.items():
            refused = refusal(session, summary)
            assert (refused.problem, refused.token) == (problem, newest.token), summary
        assert ledger.compactions(world.agent) == []
        assert session.record_compaction(summary=f"{first} then {newest.token} beside {foreign}").generation == 1
        world.charge(session, "b")
        assert refusal(session, first).problem == "outdated"
        assert session.record_compaction(summary=refusal(session, first).token).generation == 2


def test_a_token_left_behind_by_a_rollback_is_foreign(world: World, ledger: Ledger) -> None:
    """And the successor is at the generation of the point that it went back to."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.record_compaction(summary=session.watermark().token)
        behind = session.checkpoint("d").token
        with session.rollback("c") as successor:
            assert refusal(successor, behind).problem == "foreign"
            successor.checkpoint("e")
            assert successor.record_compaction(summary=successor.watermark().token).generation == 1
    assert [c.generation for c in ledger.checkpoints(world.agent)] == [0, 1, 0]


def test_an_outdated_token_is_one_before_the_former_compactions(world: World, ledger: Ledger) -> None:
    """Not only checkpoints move the token that a summary must hold."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.record_compaction(summary=(newest := session.watermark()).token)
        refused = refusal(session, ledger.checkpoints(world.agent)[0].fact.watermark)
    assert (refused.problem, refused.token) == ("outdated", newest.token)


def test_nested_summaries_keep_the_token(world: World, ledger: Ledger) -> None:
    """A summary of a summary, ten times, quoted anew each time: the token is found, and the operation that it names."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        text = f"{world.op_id('a')} is done. {session.checkpoint('c').token}"
        for generation in range(1, 11):
            text = (
                f"> Summary {generation} of: {json.dumps(text)}\n> and nothing since"
                if generation % 2
                else f"* {text} *"
            )
            compaction = session.record_compaction(summary=text)
            assert (compaction.generation, compaction.kept) == (generation, (world.op_id("a"),))
    assert len(ledger.compactions(world.agent)) == 10


def test_a_generation_that_is_not_newer_is_a_conflict(world: World, ledger: Ledger) -> None:
    """The session stays where it is; the same compaction again is the one that was recorded."""
    with ledger.session(world.agent) as session:
        text = session.watermark().token
        first = session.record_compaction(generation=3, summary=text)
        again = session.record_compaction(generation=3, summary=text)
        assert again.to_dict() == first.to_dict()
        for given in (3, 2):
            with pytest.raises(GenerationConflictError) as caught:
                session.record_compaction(generation=given, summary=f"other {text}")
            assert (caught.value.given, caught.value.current) == (given, 3)
        assert (session.seq, ledger.agent(world.agent).context.refused) == (1, [])
        with pytest.raises(GenerationConflictError):
            session.checkpoint("c", generation=4)
        session.checkpoint("d")
    assert len(ledger.compactions(world.agent)) == 1
    assert [c.generation for c in ledger.checkpoints(world.agent)] == [3]


def test_a_compaction_that_is_overtaken_in_the_log(world: World, ledger: Ledger) -> None:
    """Whoever has not seen it yet is told so by the log, and the one that came first counts."""
    with ledger.session(world.agent) as session:
        mark = session.watermark()
        before = ledger.agent(world.agent).context
        first = session.record_compaction(summary=mark.token)
        late = session.state.fact(AgentKind.COMPACTED, generation=1, watermark=mark.token, summary_digest=sha("late"))
        publishing = compactions._publish(session.state, late, before, time.monotonic() + 30)
        with pytest.raises(GenerationConflictError) as caught:
            session.submit(publishing).result(60)
        assert (caught.value.given, caught.value.current) == (1, 1)
        session.checkpoint("c")
    context = ledger.agent(world.agent).context
    assert [c.summary_digest for c in context.compactions] == [first.summary_digest]
    assert [c.summary_digest for c in context.refused] == [sha("late")]


def test_what_went_wrong_in_the_background_is_raised(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a watermark nor a compaction covers up what could not be published."""

    async def refused(self: Engine, *args: Any) -> int | None:
        raise PublishRefusedError("the log is full.", next_step="Make room.")

    with ledger.session(world.agent) as session:
        token = session.state.mark(0).token
        for ask in (session.watermark, lambda: session.record_compaction(summary=token)):
            with (
                monkeypatch.context() as patched,
                session.attempt("cache.fill", key=world.key("f"), kind=EffectClass.REPEATABLE) as attempt,
            ):
                patched.setattr(Engine, "publish_effect", refused)
                attempt.commit(1)
                with pytest.raises(PublishRefusedError):
                    ask()
    assert ledger.compactions(world.agent) == []


@pytest.mark.parametrize("written", [False, True])
def test_a_compaction_of_which_nobody_heard(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    """Whether it was written or not, recording the same again gives one compaction, and the session goes on from it."""
    original = Engine.publish_agent

    async def unheard(self: Engine, *args: Any) -> int | None:
        if written:
            await original(self, *args)
        raise OutcomeUnknownError("nobody answered.", next_step="Look.")

    with ledger.session(world.agent) as session:
        text = session.watermark().token
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "publish_agent", unheard)
            with pytest.raises(OutcomeUnknownError):
                session.record_compaction(summary=text)
        until(lambda: len(ledger.compactions(world.agent)) == written)
        assert session.record_compaction(summary=text).generation == 1
        session.checkpoint("c")
    assert len(ledger.compactions(world.agent)) == 1
    assert [c.generation for c in ledger.checkpoints(world.agent)] == [1]


def test_checkpoints_and_compactions_race(world: World, ledger: Ledger) -> None:
    """Whatever threads of a session do at the same time, each checkpoint is of the generation where it stands."""
    told: list[BaseException] = []
    with ledger.session(world.agent) as session:
        start = threading.Barrier(4)

        def work(compact: bool, name: str) -> None:
            start.wait(30)
            for number in range(8):
                try:
                    if compact:
                        session.record_compaction(summary=f"{name}-{number} {session.watermark().token}")
                    else:
                        session.checkpoint(f"{name}-{number}")
                except (GenerationConflictError, CompactionRefusedError) as error:
                    told.append(error)
                except BaseException as error:
                    told.append(error)
                    raise

        threads = [threading.Thread(target=work, args=(n % 2 == 0, f"t{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        context = ledger.agent(world.agent).context
        last = session.checkpoint("last")
    assert {type(error) for error in told} <= {GenerationConflictError, CompactionRefusedError}
    assert context.compactions
    assert context.checkpoints
    assert context.refused == []
    assert all("it names generation" in c.rejected for c in context.every if c.rejected)
    for checkpoint in context.checkpoints.values():
        assert checkpoint.mark is not None
        assert context.generation_at(checkpoint.mark.point) == checkpoint.generation
        before = [c for c in context.compactions if c.position < checkpoint.position]
        assert checkpoint.generation == max((c.generation for c in before), default=0)
    assert last.seq >= max(c.point.seq for c in context.compactions)
    assert len(context.checkpoints) + len(context.compactions) + len(told) == 32


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"dropped": "doc"}, "dropped"),
        ({"dropped": [""]}, "dropped"),
        ({"dropped": [None]}, "dropped"),
        ({"dropped": ["a\x00b"]}, "dropped"),
        ({"dropped": ["d" * 513]}, "dropped"),
        ({"dropped": [("doc", 7)]}, "dropped"),
        ({"dropped": [("doc", "\ud800")]}, "dropped"),
        ({"dropped": [Dropped("doc", "abc")]}, "dropped"),
        ({"dropped": [Dropped(" ")]}, "dropped"),
        ({"dropped": [("doc", "one"), ("doc", "two")]}, "dropped"),
        ({"generation": 0.5}, "generation"),
        ({"generation": -1}, "generation"),
        ({"generation": True}, "generation"),
        ({"summary": None}, "summary"),
        ({"summary": b"text"}, "summary"),
        ({"summary": "\udfff"}, "summary"),
    ],
)
def test_wrong_arguments_are_named(world: World, ledger: Ledger, arguments: dict[str, Any], field: str) -> None:
    """Refused before anything is written, with the argument's name."""
    with ledger.session(world.agent) as session:
        given = {"summary": session.watermark().token, **arguments}
        with pytest.raises(InvalidArgumentError) as caught:
            session.record_compaction(**given)
        assert caught.value.field == field
        assert session.seq == 0


def test_sizes_are_bounded(world: World, ledger: Ledger) -> None:
    """The largest manifest fits into a record of either store; one more is refused with the field's name."""
    each = MAX_DROPPED_BYTES // 400
    with ledger.session(world.agent) as session:
        token = session.watermark().token
        fits = [(f"{number:03}{'d' * (each - 75)}", "text") for number in range(400)]
        assert len(session.record_compaction(summary=token, dropped=fits).dropped) == 400
        many = [f"d{number}" for number in range(MAX_DROPPED)]
        assert len(session.record_compaction(summary=token, dropped=many).dropped) == MAX_DROPPED
        for dropped in ([*many, "one more"], [(f"{n:03}{'ü' * 400}", "text") for n in range(400)]):
            with pytest.raises(RecordTooLargeError) as caught:
                session.record_compaction(summary=token, dropped=dropped)
            assert (caught.value.field, caught.value.limit_bytes) == ("dropped", MAX_DROPPED_BYTES)
        assert len(ledger.compactions(world.agent)) == 2


def test_a_summary_that_names_too_much_is_told(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is kept has to fit."""
    names = {f"op:{number}" for number in range(MAX_KEPT + 1)}

    async def known(state: object, summary: str) -> set[str]:
        return names

    monkeypatch.setattr("fencepost.ledger.compactions._known_op_ids", known)
    with ledger.session(world.agent) as session:
        token = session.watermark().token
        with pytest.raises(RecordTooLargeError) as caught:
            session.record_compaction(summary=f"{' '.join(names)} {token}")
        assert (caught.value.field, caught.value.limit_bytes) == ("kept", MAX_KEPT_BYTES)
        names.discard("op:0")
        assert len(session.record_compaction(summary=f"{' '.join(names)} {token}").kept) == MAX_KEPT


def test_the_largest_compaction_twice_in_one_record(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was sent again leaves two positions of one fact: the log can still say both in one record."""
    original = Engine.publish_agent

    async def twice(self: Engine, *args: Any) -> int | None:
        await original(self, *args)
        return await original(self, *args)

    monkeypatch.setattr(Engine, "publish_agent", twice)
    with ledger.session(world.agent) as session:
        fits = [(f"{number:03}{'d' * 300}", "text") for number in range(530)]
        compaction = session.record_compaction(summary=session.watermark().token, dropped=fits)
    until(lambda: len(ledger.agent(world.agent).context.refused) == 1)
    assert [c.to_dict() for c in ledger.compactions(world.agent)] == [compaction.to_dict()]


def test_only_who_speaks_for_the_branch_compacts(world: World, ledger: Ledger) -> None:
    """A session that was superseded learns of it; its compaction does not count, and neither does it once it is closed."""
    with ledger.session(world.agent) as session:
        token = session.watermark().token
        with ledger.session(world.agent) as successor:
            for _ in range(2):
                with pytest.raises(FencedError):
                    session.record_compaction(summary=token)
            with pytest.raises(FencedError):
                session.watermark()
            successor.record_compaction(summary=successor.watermark().token)
        with pytest.raises(FencedError):
            successor.record_compaction(summary=token)
    assert [c.generation for c in ledger.compactions(world.agent)] == [1]


def test_an_operation_that_was_absorbed_is_named(world: World, ledger: Ledger) -> None:
    """What another agent did, and this one took over, is among the operations that a summary can name."""
    kinds = {"a": EffectClass.IRREVERSIBLE, "b": EffectClass.REPEATABLE}
    names = {world.op_id(name) for name in kinds}
    with ledger.session(f"{world.agent}-other") as other:
        for name, kind in kinds.items():
            world.charge(other, name, kind=kind)
        other.checkpoint("c")
    until(lambda: len(ledger.operations(f"{world.agent}-other")) == 2)
    with ledger.session(world.agent) as session:
        for name, kind in kinds.items():
            world.charge(session, name, kind=kind)
        first = session.record_compaction(summary=f"{names} {session.watermark().token}")
    until(lambda: ledger.watermark(world.agent).sealed)
    with ledger.session(world.agent) as successor:
        second = successor.record_compaction(summary=f"{names} {successor.watermark().token}")
    assert set(first.kept) == set(second.kept) == names
    assert (world.hits("a"), world.hits("b")) == (1, 1)


def test_a_call_that_is_open_outlives_the_compaction(world: World, ledger: Ledger) -> None:
    """The stamp and the checkpoint behind it carry it as open, whatever the summary says; nobody goes back before it is settled."""
    with ledger.session(world.agent) as session:
        attempt = session.attempt("mail.send", key=world.key("open"), kind=EffectClass.IRREVERSIBLE).begin()
        assert attempt.owned
        compaction = session.record_compaction(summary=f"all is done {session.watermark().token}")
        assert (compaction.fact.owned, compaction.kept) == ((attempt.op_id,), ())
        session.checkpoint("c")
        assert ledger.checkpoints(world.agent)[0].fact.owned == (attempt.op_id,)
        refused = ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated")
        assert [reason.kind for reason in refused.reasons] == [ReasonKind.EFFECT_OWNED]
        answer = ledger.resume(world.agent, checkpoint="c", summary_generation=1)
        assert answer.open_operations == {attempt.op_id: "owned"}
        attempt.commit("sent")
        assert world.preview("c").authorised is False
        lost = ledger.resume(world.agent, checkpoint="c", summary_generation=1)
        assert isinstance(lost, Reconcile)
        assert [(op.op_id, op.result) for op in lost.effects] == [(attempt.op_id, "sent")]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "generation"), [("before COMPACTED", 0), ("after COMPACTED", 1)])
def test_killed_around_a_compaction(world: World, ledger: Ledger, point: str, generation: int) -> None:
    """It counts or it does not; a successor that resumes from where it was is of that generation."""
    world.worker(charge("a"), {"do": "compact", "die": point}, armed=True).dies()
    mark = ledger.watermark(world.agent).mark
    until(lambda: len(ledger.compactions(world.agent)) == generation)
    with ledger.session(world.agent, resumed_from=mark) as session:
        session.checkpoint("c")
    assert [c.generation for c in ledger.checkpoints(world.agent)] == [generation]
