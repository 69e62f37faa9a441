"""After a gated rollback: what is held, for whom, until when, and who may say what it is."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, charge, never_suggests_a_retry, until

from fencepost.ledger import (
    AlreadyExistsError,
    AsyncLedger,
    DivergenceHeldError,
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    OperationConflictError,
    ReasonKind,
    VerdictKind,
    guard,
)
from fencepost.ledger import divergence as rules
from fencepost.ledger.operations import Status
from fencepost.ledger.sessions import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger import AgentSession
    from fencepost.ledger.facts import AgentFact


def gone_back(world: World, ledger: Ledger, *names: str) -> AgentSession:
    """A session that went back under GATED over a charge of each of these names."""
    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    for name in names:
        world.charge(session, name)
    return session.rollback("c", policy="gated")


def held(world: World, session: AgentSession, name: str) -> DivergenceHeldError:
    """The error by which a charge of this name is held; nothing was run."""
    with pytest.raises(DivergenceHeldError) as caught:
        world.charge(session, name)
    assert world.hits(name) == 0
    return caught.value


def test_held_for_whoever_comes_after(world: World, ledger: Ledger) -> None:
    """Sessions opened later, another process, and a branch forked from there are held as well, naming the candidates."""
    gone_back(world, ledger, "first").close()
    with ledger.session(world.agent) as later:
        error = held(world, later, "second")
        assert error.candidates == [world.op_id("first")]
        assert never_suggests_a_retry(str(error))
        assert not error.retryable
        later.checkpoint("later")
    [answer] = world.run(charge("second"))
    assert (answer["error"], answer["ran"]) == ("DivergenceHeldError", False)
    ledger.fork(world.agent, "b", checkpoint="later")
    [forked] = world.run(charge("second"), branch="b")
    assert (forked["error"], forked["ran"]) == ("DivergenceHeldError", False)
    [absorbed] = world.run(charge("first"), branch="b")
    assert (absorbed["error"], absorbed["ran"]) == ("", False)
    assert (world.hits("first"), world.hits("second")) == (1, 0)


def test_what_is_held_is_on_record_once_its_caller_is_told(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the log takes: whoever is told to declare it finds it in the list."""
    real, written = SessionState.publish, []

    async def slow(state: SessionState, key: str, fact: AgentFact) -> int | None:
        await asyncio.sleep(0.3)
        written.append(fact.op_id)
        return await real(state, key, fact)

    with gone_back(world, ledger, "first") as session:
        with monkeypatch.context() as patch:
            patch.setattr(SessionState, "publish", slow)
            held(world, session, "second")
            assert written == [world.op_id("second")]
        until(lambda: [attempt.op_id for attempt in ledger.held(world.agent)] == written)


def test_held_after_all_are_matched(world: World, ledger: Ledger) -> None:
    """A further call is held although every crossed effect was asked for again: a match says nothing about it."""
    with gone_back(world, ledger, "first") as session:
        world.charge(session, "first")
        held(world, session, "second")
        assert world.hits("first") == 1


def test_harmless_calls_of_the_tool_are_free(world: World, ledger: Ledger) -> None:
    """Only what must not repeat is held: a call of the same tool that may be repeated runs."""
    with (
        gone_back(world, ledger, "first") as session,
        session.attempt("billing.charge", key=world.key("look"), kind=EffectClass.READ) as attempt,
    ):
        assert attempt.owned
        attempt.commit("seen")


def test_declared_the_same_is_absorbed(world: World, ledger: Ledger) -> None:
    """Declared the same, the recorded result comes back and counts as absorbed: later checkpoints know the effect."""
    with gone_back(world, ledger, "first") as session:
        held(world, session, "renamed")
        session.declare_same(world.op_id("renamed"), as_=world.op_id("first"), by="ann", evidence="the same order")
        assert world.charge(session, "renamed") == {"order": world.key("first"), "cents": 50}
        session.checkpoint("knows")
        assert world.preview("knows").authorised
    [declared] = ledger.agent(world.agent).agent.declarations.values()
    assert (declared.by, declared.evidence) == ("ann", "the same order")
    [again] = world.run(charge("renamed"))
    assert (again["error"], again["ran"], again["value"]["order"]) == ("", False, world.key("first"))
    assert (world.hits("first"), world.hits("renamed")) == (1, 0)


def test_running_session_sees_the_operators_word(world: World, ledger: Ledger) -> None:
    """What an operator declares elsewhere counts at once in a session that runs: new runs, the same is absorbed."""
    elsewhere = world.open()
    with gone_back(world, ledger, "first") as session:
        held(world, session, "new")
        held(world, session, "renamed")
        elsewhere.declare(world.agent, world.op_id("new"), by="ann", evidence="another order")
        world.charge(session, "new")
        elsewhere.declare(
            world.agent, world.op_id("renamed"), same_as=world.op_id("first"), by="ann", evidence="the same order"
        )
        assert world.charge(session, "renamed")["order"] == world.key("first")
    assert (world.hits("first"), world.hits("new"), world.hits("renamed")) == (1, 1, 0)


def test_what_waits_is_seen_elsewhere(world: World, ledger: Ledger) -> None:
    """A held call is left in the log once: an operator sees what was asked for, and what it may be the same as."""
    elsewhere = world.open()
    with gone_back(world, ledger, "first") as session:
        assert elsewhere.held(world.agent) == []
        held(world, session, "second")
        until(lambda: elsewhere.held(world.agent))
        before = session.seq
        held(world, session, "second")
        assert session.seq == before
        [waiting] = elsewhere.held(world.agent)
        assert (waiting.op_id, waiting.tool) == (world.op_id("second"), "billing.charge")
        assert (waiting.branch_id, waiting.session_id) == ("main", session.session_id)
        assert waiting.candidates == (world.op_id("first"),)
        assert world.key("second") in waiting.arguments
        assert waiting.to_dict()["candidates"] == [world.op_id("first")]
        elsewhere.declare(world.agent, waiting.op_id, by="ann", evidence="another order")
        assert elsewhere.held(world.agent) == []
        session.checkpoint("goes on")
    with pytest.raises(NotFoundError):
        elsewhere.held(world.key("nobody"))


def test_what_waits_is_bounded(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls are held, the log keeps a bounded number of them; the others are held all the same."""
    monkeypatch.setattr(rules, "MOST_HELD", 2)
    with gone_back(world, ledger, "first") as session:
        for number in range(4):
            held(world, session, f"n{number}")
    assert len(ledger.held(world.agent)) == 2


def race(world: World, op_id: str, *said: tuple[Ledger, str | None, str]) -> list[AlreadyExistsError]:
    """Declare one operation by several at once; the errors of those who were told that another was first."""
    errors: list[AlreadyExistsError] = []
    begin = threading.Barrier(len(said))

    def say(ledger: Ledger, same_as: str | None, by: str) -> None:
        begin.wait()
        try:
            ledger.declare(world.agent, op_id, same_as=same_as, by=by, evidence="seen")
        except AlreadyExistsError as error:
            errors.append(error)

    threads = [threading.Thread(target=say, args=one) for one in said]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_first_declaration_counts(world: World, ledger: Ledger) -> None:
    """Of two declarations at once exactly one counts, for all; whoever was second is told, and runs by the first."""
    one, other = world.open(), world.open()
    with gone_back(world, ledger, "first") as session:
        for name in ("x0", "x1", "x2", "x3"):
            op_id = world.op_id(name)
            held(world, session, name)
            [second] = race(world, op_id, (one, None, "ann"), (other, world.op_id("first"), "bob"))
            counts = ledger.agent(world.agent).agent.declarations[op_id]
            assert f"by {counts.by}" in str(second)
            world.charge(session, name)
            assert world.hits(name) == (1 if counts.declared_as == "new" else 0)
            opposite = None if counts.declared_as == "same" else world.op_id("first")
            with pytest.raises(AlreadyExistsError):
                ledger.declare(world.agent, op_id, same_as=opposite, by="cid", evidence="late")
            ledger.declare(world.agent, op_id, same_as=counts.other_op_id or None, by="cid", evidence="agrees")


def test_word_of_a_session_that_is_over(world: World, ledger: Ledger) -> None:
    """A superseded session that has not heard of it declares nothing: its word does not count, and it is told."""
    old = gone_back(world, ledger, "first")
    held(world, old, "second")
    with world.open().session(world.agent) as new:
        with pytest.raises(FencedError):
            old.declare_new(world.op_id("second"))
        held(world, new, "second")
    assert ledger.agent(world.agent).agent.declarations == {}


def compensate(world: World, ledger: Ledger, name: str) -> None:
    operation = world.status(world.op_id(name), Status.COMMITTED)
    ledger.resolve(world.op_id(name), outcome="compensated", version=operation.version, by="ann", evidence="refunded")


def test_what_was_undone_absorbs_nothing(world: World, ledger: Ledger) -> None:
    """A crossed effect whose round is over absorbs nothing, and holds nothing: asked for again it runs anew."""
    with gone_back(world, ledger, "undone", "stands") as session:
        held(world, session, "other")
        compensate(world, ledger, "undone")
        assert held(world, session, "other").candidates == [world.op_id("stands")]
        with pytest.raises(InvalidArgumentError) as caught:
            session.declare_same(world.op_id("other"), as_=world.op_id("undone"))
        assert caught.value.field == "same_as"
        world.charge(session, "undone")
        assert world.hits("undone") == 2
        assert held(world, session, "other").candidates == [world.op_id("stands")]  # the new round was not crossed
        compensate(world, ledger, "stands")
        world.charge(session, "other")
        assert (world.hits("other"), world.hits("stands")) == (1, 1)
        assert ledger.held(world.agent) == []


def test_declared_the_same_and_then_undone(world: World, ledger: Ledger) -> None:
    """The two names stay one effect: after it was undone, asking by the other name does it once, in the next round."""
    with gone_back(world, ledger, "first") as session:
        held(world, session, "renamed")
        session.declare_same(world.op_id("renamed"), as_=world.op_id("first"))
        compensate(world, ledger, "first")
        world.charge(session, "renamed")
        world.charge(session, "first")
        assert world.hits("first") + world.hits("renamed") == 2
    assert world.status(world.op_id("first"), Status.COMMITTED).round == 2


@pytest.mark.parametrize("by", ["session", "operator"])
def test_declared_the_same_is_of_what_was_asked_for(world: World, ledger: Ledger, by: str) -> None:
    """Another amount under the name that was declared is a conflict that names both, for everybody, also in the next round."""

    def conflict(session: AgentSession, cents: int) -> None:
        with pytest.raises(OperationConflictError) as caught:
            world.charge(session, "renamed", cents=cents)
        assert caught.value.op_id == world.op_id("renamed")
        assert '"cents":50' in caught.value.recorded
        assert f'"cents":{cents}' in caught.value.given
        assert world.op_id("first") in str(caught.value)

    with gone_back(world, ledger, "first") as session:
        held(world, session, "renamed")
        if by == "session":
            session.declare_same(world.op_id("renamed"), as_=world.op_id("first"))
        else:
            until(lambda: ledger.held(world.agent))
            ledger.declare(
                world.agent, world.op_id("renamed"), same_as=world.op_id("first"), by="ann", evidence="the same order"
            )
        conflict(session, 70)
        assert world.charge(session, "renamed", note="reworded")["order"] == world.key("first")
        conflict(session, 999)
    [elsewhere] = world.run(charge("renamed", 70))
    assert (elsewhere["error"], elsewhere["ran"]) == ("OperationConflictError", False)
    compensate(world, ledger, "first")
    with ledger.session(world.agent) as later:
        conflict(later, 70)
    assert (world.hits("first"), world.hits("renamed")) == (1, 0)


def test_declared_the_same_with_a_secret(world: World, ledger: Ledger) -> None:
    """Another secret under the name that was declared is a conflict too, and is not shown."""

    def pay(session: AgentSession, name: str, card: str) -> str:
        attempt = session.attempt(
            "pay", kind=EffectClass.IRREVERSIBLE, key=world.key(name), identity={"card": card}, secret=("card",)
        )
        with attempt:
            if attempt.owned:
                attempt.commit(name)
        return str(attempt.result)

    session = ledger.session(world.agent).open()
    session.checkpoint("c")
    pay(session, "first", "4111-2222")
    with session.rollback("c", policy="gated") as gated:
        with pytest.raises(DivergenceHeldError):
            pay(gated, "renamed", "4111-2222")
        gated.declare_same(world.op_id("renamed", "pay"), as_=world.op_id("first", "pay"))
        assert pay(gated, "renamed", "4111-2222") == "first"
        with pytest.raises(OperationConflictError, match="what is secret differs") as caught:
            pay(gated, "renamed", "5500-6666")
        assert "5500-6666" not in str(caught.value.to_dict())


def test_what_cannot_be_declared(world: World, ledger: Ledger) -> None:
    """Only what is held: nothing of an agent that crossed nothing, nothing crossed, nothing that ran; and by somebody."""
    with ledger.session(world.agent) as session, pytest.raises(InvalidArgumentError):
        session.declare_new(world.op_id("anything"))
    with gone_back(world, ledger, "first") as session:
        session.attempt("mail.send", key=world.key("m"), kind=EffectClass.IRREVERSIBLE).begin().commit()
        world.status(world.op_id("m", "mail.send"), Status.COMMITTED)
        held(world, session, "second")
        wrong: list[tuple[str, dict[str, Any], str]] = [
            (world.op_id("first"), {}, "op_id"),
            (world.op_id("m", "mail.send"), {}, "op_id"),
            (world.op_id("second"), {"same_as": world.op_id("nothing")}, "same_as"),
            (world.op_id("second"), {"same_as": " "}, "same_as"),
            (" ", {}, "op_id"),
            (world.op_id("second"), {"by": " "}, "by"),
            (world.op_id("second"), {"evidence": ""}, "evidence"),
        ]
        for op_id, more, field in wrong:
            with pytest.raises(InvalidArgumentError) as caught:
                ledger.declare(world.agent, op_id, **{"by": "ann", "evidence": "seen", **more})
            assert caught.value.field == field
    assert ledger.agent(world.agent).agent.declarations == {}


def test_nothing_is_declared_in_advance(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody asked for is not held, so it cannot be declared, by a session or an operator; asked for it is held."""
    monkeypatch.setattr(rules, "_UNDER_WAY_S", 0.2)
    with gone_back(world, ledger, "first") as session:
        later = world.op_id("later")
        tries: tuple[Callable[[], None], ...] = (
            lambda: session.declare_new(later),
            lambda: session.declare_same(later, as_=world.op_id("first")),
            lambda: ledger.declare(world.agent, later, by="ann", evidence="a guess"),
            lambda: ledger.declare(world.agent, later, same_as=world.op_id("first"), by="ann", evidence="a guess"),
        )
        for declare in tries:
            with pytest.raises(InvalidArgumentError, match="is not held") as caught:
                declare()
            assert caught.value.field == "op_id"
            assert "fencepost rollback held" in caught.value.next_step
        held(world, session, "later")
        session.declare_new(later)
        world.charge(session, "later")
    assert list(ledger.agent(world.agent).agent.declarations) == [later]


def test_declared_where_no_word_of_it_was_left(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what the log keeps, the session that was refused can declare it; an operator once there is word of it."""
    monkeypatch.setattr(rules, "_UNDER_WAY_S", 0.2)
    monkeypatch.setattr(rules, "MOST_HELD", 1)
    with gone_back(world, ledger, "first") as session:
        for name in ("kept", "second", "third"):
            held(world, session, name)
        until(lambda: ledger.held(world.agent))
        with pytest.raises(InvalidArgumentError, match="is not held"):
            ledger.declare(world.agent, world.op_id("second"), by="ann", evidence="seen")
        session.declare_new(world.op_id("second"))
        world.charge(session, "second")
        ledger.declare(world.agent, world.op_id("kept"), by="ann", evidence="seen")


def test_declared_by_the_next_session(world: World, ledger: Ledger) -> None:
    """What was held in a session that is over is on record: its successor may say what it is."""
    with gone_back(world, ledger, "first") as session:
        held(world, session, "second")
    with ledger.session(world.agent) as successor:
        successor.declare_new(world.op_id("second"))
        world.charge(successor, "second")
    assert world.hits("second") == 1


def test_more_than_a_decision_can_name(world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that could not name every effect that it crosses is refused, never cut short; nobody is fenced."""
    monkeypatch.setattr(guard, "MOST_CROSSED", 2)
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        for name in ("a", "b", "c"):
            world.charge(session, name)
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated")
        assert (verdict.kind, verdict.fenced) == (VerdictKind.REFUSE, False)
        assert [r.kind for r in verdict.reasons] == [ReasonKind.TOO_MANY_EFFECTS]
        world.charge(session, "goes on")


def test_the_same_for_asyncio(world: World) -> None:
    """Held, seen, declared by the session and by an operator: the awaited calls do the same."""

    async def work() -> None:
        async with AsyncLedger.open(world.url) as ledger:
            session = await ledger.session(world.agent).open()
            await session.checkpoint("c")

            async def pay(name: str) -> bool:
                @session.effect("pay", kind=EffectClass.IRREVERSIBLE, identity=("order",))
                async def run(order: str) -> str:
                    world.hit(name)
                    return order

                return await run(world.key(name)) == world.key(name)

            def op_id(name: str) -> str:
                return session.attempt("pay", kind=EffectClass.IRREVERSIBLE, identity={"order": world.key(name)}).op_id

            await pay("first")
            session = await session.rollback("c", policy="gated", by="ann", evidence="the check failed")
            for name in ("new", "same", "third"):
                with pytest.raises(DivergenceHeldError):
                    await pay(name)
            await session.declare_new(op_id("new"), by="ann", evidence="seen")
            await session.declare_same(op_id("same"), as_=op_id("first"))
            await ledger.declare(world.agent, op_id("third"), by="ann", evidence="seen")
            assert [await pay(name) for name in ("new", "same", "third")] == [True, False, True]
            assert await ledger.held(world.agent) == []
            await session.close()

    asyncio.run(work())
    assert [world.hits(name) for name in ("first", "new", "same", "third")] == [1, 1, 0, 1]
