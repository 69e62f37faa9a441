"""What can be asked of a ledger, each answer with its age: watermarks, operations, branches, replay forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, charge, until

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    Watermark,
    WatermarkMangledError,
)
from fencepost.ledger.facts import ResultForm
from fencepost.ledger.operations import AttemptState, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencepost.ledger import AgentSession

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


def send(session: AgentSession, key: str, result: Any = None) -> str:
    with session.attempt(key=key, **SEND) as attempt:
        if attempt.owned:
            attempt.commit(result)
    return attempt.op_id


def test_watermark_and_open_questions(world: World, ledger: Ledger) -> None:
    """A branch's low-water mark, its highest number, its open operations, whether its session lives, and the age."""
    with ledger.session(world.agent) as session:
        world.status(send(session, world.key("done")), Status.COMMITTED)
        attempt = session.attempt(key=world.key("open"), **SEND).begin()
        assert attempt.owned
        found = ledger.watermark(world.agent)
        assert found.mark.point == (session.epoch, 3)
        assert (found.highest_seq, found.session_id) == (3, session.session_id)
        assert (found.live, found.sealed) == (True, False)
        assert found.open_operations == (attempt.op_id,)
        assert 0 <= found.age_s < 60
        told = found.to_dict()
        assert told["token"] == found.mark.token
        attempt.commit()
    world.status(attempt.op_id, Status.COMMITTED)
    closed = ledger.watermark(world.agent)
    assert (closed.live, closed.sealed, closed.open_operations) == (False, True, ())
    assert [w.session_id for w in ledger.watermarks(world.agent)] == [session.session_id]


def test_agents_branches_and_checkpoints(world: World, ledger: Ledger) -> None:
    """Agents are listed, with branches, where they were forked, sessions, and checkpoints in their order."""
    with ledger.session(world.agent) as session:
        session.checkpoint("one", state_digest="sha256:1")
        session.fork("plan-b", checkpoint="one")
        session.checkpoint("two")
    assert world.agent in ledger.agents()
    view = ledger.agent(world.agent)
    branch = view.agent.branches["plan-b"]
    assert (branch.parent_branch_id, branch.fork_checkpoint) == ("main", "one")
    first, second = ledger.checkpoints(world.agent)
    assert (first.checkpoint_id, second.checkpoint_id) == ("one", "two")
    assert (first.fact.state_digest, first.fact.generation) == ("sha256:1", 0)
    assert branch.origin == (first.mark.point if first.mark else None)


def test_unknown_names(world: World, ledger: Ledger) -> None:
    """What is not in the ledger is not found, with the field's name: never an empty answer."""
    ledger.session(world.agent).open().close()
    questions: dict[str, Callable[[], object]] = {
        "agent": lambda: ledger.agent(world.key("nobody")),
        "branch": lambda: ledger.watermark(world.agent, "nowhere"),
        "op_id": lambda: ledger.operation(world.key("nothing")),
        "checkpoint": lambda: ledger.fork(world.agent, "b", checkpoint="never"),
        "since": lambda: ledger.replay_forward(world.agent, since="never"),
    }
    for field, ask in questions.items():
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert caught.value.field == field


def test_replay_forward_is_ordered_and_complete(world: World, ledger: Ledger) -> None:
    """What a checkpoint does not know, in order, with recorded results and their form; what failed is left out."""
    with ledger.session(world.agent) as session:
        send(session, world.key("known"), "known")
        mark = session.checkpoint("c")
        op_ids = [send(session, world.key(f"n{n}"), {"n": n}) for n in (3, 1, 2)]
        session.attempt(key=world.key("failed"), **SEND).begin().fail("no")
        op_ids.append(send(session, world.key("large"), "x" * 300_000))
        doubt = session.attempt(key=world.key("doubt"), **SEND).begin()
        assert doubt.owned
        doubt.doubt("no answer")
    world.status(doubt.op_id, Status.IN_DOUBT)
    for op_id in op_ids:
        world.status(op_id, Status.COMMITTED)
    for since in ("c", mark, mark.token, f"a summary {mark.token} of it"):
        replayed = ledger.replay_forward(world.agent, since=since)
        assert [op.op_id for op in replayed] == [*op_ids, doubt.op_id]
        assert [op.result for op in replayed[:3]] == [{"n": 3}, {"n": 1}, {"n": 2}]
        assert (replayed[3].result, replayed[3].result_form) == (None, ResultForm.TOO_LARGE)
        assert [op.status for op in replayed] == ["committed"] * 4 + ["in doubt"]
        assert [op.seq for op in replayed] == sorted(op.seq for op in replayed)
        assert all(op.own and op.tool == "mail.send" and op.branch_id == "main" for op in replayed)
    with pytest.raises(WatermarkMangledError):
        ledger.replay_forward(world.agent, since=mark.token[:-4] + "]]")


def test_a_name_that_is_misspelt_is_not_answered_as_if_it_had_done_nothing(world: World, ledger: Ledger) -> None:
    """Whoever asks for an agent or a branch that is none is told; one that has done nothing is answered with nothing."""
    nobody = f"{world.agent}-nobody"
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.fork("b", checkpoint="c")
        for ask, field in (
            (lambda: ledger.replay_forward(world.agent, since="c", branch="mian"), "branch"),
            (lambda: ledger.replay_forward(nobody, since="c"), "agent"),
            (lambda: ledger.operations(nobody), "agent"),
            (lambda: ledger.operations(nobody, limit=1, status="free"), "agent"),
            (lambda: list(ledger.each_operation(nobody)), "agent"),
            (lambda: ledger.in_doubt(nobody), "agent"),
            (lambda: ledger.open_operations(nobody), "agent"),
        ):
            with pytest.raises(NotFoundError) as caught:
                ask()
            assert caught.value.field == field
        for blank in (
            lambda: ledger.operations(""),
            lambda: ledger.in_doubt(" "),
            lambda: list(ledger.each_operation("")),
        ):
            with pytest.raises(InvalidArgumentError, match=r"^agent: must not be blank"):
                blank()
        assert ledger.replay_forward(world.agent, since="c", branch="b") == []
        assert ledger.operations(world.agent) == []
        assert list(ledger.each_operation(world.agent)) == []
        assert ledger.in_doubt(world.agent) == ledger.open_operations(world.agent) == []


def test_replay_runs_nothing(world: World, ledger: Ledger) -> None:
    """Replaying forward changes nothing outside and nothing in the ledger, unless a session takes it over."""
    with ledger.session(world.agent) as session:
        mark = session.checkpoint("c")
        world.charge(session, "effect")
        before = ledger.watermark(world.agent).highest_seq
        ledger.replay_forward(world.agent, since=mark)
        ledger.replay_forward(world.agent, since=mark)
        assert ledger.watermark(world.agent).highest_seq == before
    assert world.hits("effect") == 1


def test_replay_of_another_branch(world: World, ledger: Ledger) -> None:
    """Effects of a sibling branch are replayed as well, and say on which branch they were done."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
        session.fork("b", checkpoint="c")
        with ledger.session(world.agent, "b") as sibling:
            send(sibling, world.key("there"), 1)
        send(session, world.key("here"), 2)

        def replayed() -> dict[str, object]:
            return {op.branch_id: op.result for op in ledger.replay_forward(world.agent, since="c")}

        until(lambda: replayed() == {"b": 1, "main": 2})
        assert [op.result for op in ledger.replay_forward(world.agent, since="c", branch="b")] == [1]


def test_operations_are_told_with_every_attempt(world: World, ledger: Ledger) -> None:
    """One operation with all its facts and positions; an agent's operations by name."""
    with ledger.session(world.agent) as session:
        session.attempt(key=world.key("o"), **SEND).begin().fail("no stamp")
        op_id = send(session, world.key("o"), 5)
        other = send(session, world.key("a"))
    for one in (op_id, other):
        world.status(one, Status.COMMITTED)
    view = ledger.operation(op_id)
    assert [a.state for a in view.operation.attempts.values()] == [AttemptState.FAILED, AttemptState.COMMITTED]
    assert [a.outcome.error for a in view.operation.attempts.values() if a.outcome] == ["no stamp", ""]
    positions = [position for position, _ in view.facts]
    assert len(positions) == 4
    assert positions == sorted(positions)
    assert view.header.now_ms > 0
    assert [v.operation.op_id for v in ledger.operations(world.agent)] == [other, op_id]
    assert {v.operation.status for v in ledger.operations(world.agent)} == {Status.COMMITTED}


@pytest.mark.slow
def test_losers_are_kept_as_evidence(world: World, ledger: Ledger) -> None:
    """First commit wins; a sibling that began at the same time gets that result, and its attempt stays to be seen."""
    loser = world.worker(charge("dup", hold="before INTENDED", name="loser"), armed=True, agent=f"l-{world.agent}")
    loser.wait_held("loser")
    [won] = world.run(charge("dup"))
    loser.release("loser")
    [lost] = loser.finish()
    assert (won["ran"], lost["ran"], lost["value"]) == (True, False, won["value"])
    operation = world.status(world.op_id("dup"), Status.COMMITTED)
    states = {a.intent.agent_id: a.state for a in operation.attempts.values()}
    assert states == {world.agent: AttemptState.COMMITTED, f"l-{world.agent}": AttemptState.LOST}


@pytest.mark.slow
def test_losers_learn_what_became_of_the_winner(world: World, ledger: Ledger) -> None:
    """A rival that waits gets what the winner got: a result; or, after a failure, the operation for itself."""
    endings: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"raise_at": "before effect", "error": "EffectNotExecuted"}, True),
    ]
    for ending, ran in endings:
        name = f"wait-{ran}"
        step = charge(name, hold="before effect", name=name, **ending)
        winner = world.worker(step)
        winner.wait_held(name)
        rival = world.worker(charge(name), agent=f"rival-{world.agent}")
        winner.release(name)
        winner.finish()
        [answer] = rival.finish()
        assert (answer["error"], answer["ran"]) == ("", ran)
        assert world.hits(name) == 1


def test_verify(world: World, ledger: Ledger) -> None:
    """The projection is what the log says, every number of this agent is accounted for, every commit has an owner."""
    with ledger.session(world.agent) as session:
        send(session, world.key("a"))
        session.checkpoint("c")
    report = ledger.verify()
    mine = {world.agent, session.session_id, world.op_id("a", "mail.send")}
    assert [f for f in report.findings if f.where in mine or f.kind == "projection"] == []
    assert report.counts["records"] > 0


def test_token_in_plain_data(world: World, ledger: Ledger) -> None:
    """A watermark can be kept as plain data and found again."""
    with ledger.session(world.agent) as session:
        mark = session.checkpoint("c")
    assert Watermark.parse(str(mark.to_dict())) == mark
