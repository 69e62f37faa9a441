"""In flight and in doubt are different answers; what is in doubt is settled by a probe or an operator, with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World, charge, until

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    Outcome,
    ProbeAnswer,
    RefusedError,
    VersionMovedError,
    resolutions,
)
from fencepost.ledger.operations import Operation, Status

if TYPE_CHECKING:
    from fencepost.ledger import AgentSession, OpenOperation

SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


def doubtful(session: AgentSession, world: World, name: str = "doubt", **options: Any) -> str:
    """An operation that was left in doubt; its op_id."""
    attempt = session.attempt(key=world.key(name), **SEND, **options).begin()
    assert attempt.owned
    attempt.doubt("no answer")
    world.status(attempt.op_id, Status.IN_DOUBT)
    return attempt.op_id


def the(ledger: Ledger, agent: str) -> OpenOperation:
    [item] = ledger.in_doubt(agent)
    return item


def test_in_flight_is_not_in_doubt(world: World, ledger: Ledger) -> None:
    """An open operation of a living session is in flight and needs nobody; in doubt it is listed, oldest first."""
    with ledger.session(world.agent) as session:
        attempt = session.attempt(key=world.key("flight"), **SEND).begin()
        assert attempt.owned
        assert ledger.in_doubt(world.agent) == []
        [item] = ledger.open_operations(world.agent)
        assert (item.state, item.operation.status) == ("in flight", Status.OWNED)
        attempt.doubt("no answer")
        world.status(attempt.op_id, Status.IN_DOUBT)
        later = doubtful(session, world, "later")
        assert [i.operation.op_id for i in ledger.in_doubt(world.agent)] == [attempt.op_id, later]
        told = ledger.in_doubt(world.agent)[0].to_dict()
        assert told["state"] == "in doubt"
        assert told["idempotency_key"] == attempt.idempotency_key
        assert told["version"]
    with pytest.raises(NotFoundError):
        ledger.in_doubt(world.key("nobody"))


def test_operator_is_bound_to_the_version_seen(world: World, ledger: Ledger) -> None:
    """A resolution of a version that has moved is refused and changes nothing; one of the present version settles."""
    with ledger.session(world.agent) as session:
        attempt = session.attempt(key=world.key("moves"), **SEND).begin()
        assert attempt.owned
        seen = ledger.operation(attempt.op_id).operation.version
        attempt.doubt("no answer")
    now = world.status(attempt.op_id, Status.IN_DOUBT).version
    with pytest.raises(VersionMovedError) as caught:
        ledger.resolve(attempt.op_id, outcome="committed", version=seen, by="ann", evidence="saw it")
    assert (caught.value.seen, caught.value.current) == (seen, now)
    assert ledger.operation(attempt.op_id).operation.status is Status.IN_DOUBT
    settled = ledger.resolve(
        attempt.op_id, outcome="committed", version=now, by="ann", evidence="saw it", result={"id": 1}
    )
    assert (settled.status, settled.resolutions[-1].fact.by) == (Status.COMMITTED, "ann")
    with ledger.session(world.agent) as session:
        again = session.attempt(key=world.key("moves"), **SEND).begin()
        assert (again.owned, again.result) == (False, {"id": 1})


def test_two_operators(world: World, ledger: Ledger) -> None:
    """Of two operators who looked at the same version the first in the log decides; the other is told."""
    with ledger.session(world.agent) as session:
        op_id = doubtful(session, world)
    version = the(ledger, world.agent).operation.version
    ledger.resolve(op_id, outcome="committed", version=version, by="ann", evidence="saw it")
    with pytest.raises((VersionMovedError, InvalidArgumentError)):
        ledger.resolve(op_id, outcome="absent", version=version, by="bob", evidence="no", accept_risk=True)
    assert ledger.operation(op_id).operation.status is Status.COMMITTED


def test_absent_is_not_known_while_it_could_still_happen(
    world: World, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ABSENT is refused until deadline and longest run have passed, or for ever if none is declared; by name it goes."""
    monkeypatch.setattr(resolutions, "CLOCK_SKEW_S", 0.0)  # one clock here
    with ledger.session(world.agent) as session:
        unbounded = doubtful(session, world, "unbounded")
        bounded = doubtful(session, world, "bounded", deadline_s=3600, longest_run_s=0)
        past = doubtful(session, world, "past", deadline_s=2.0, longest_run_s=0)
    versions = {i.operation.op_id: i.operation.version for i in ledger.in_doubt(world.agent)}
    for op_id in (unbounded, bounded):
        with pytest.raises(RefusedError) as caught:
            ledger.resolve(op_id, outcome="absent", version=versions[op_id], by="ann", evidence="not there")
        assert caught.value.field == "outcome"
        assert ledger.operation(op_id).operation.status is Status.IN_DOUBT
    freed = None
    while freed is None:
        try:
            freed = ledger.resolve(past, outcome="absent", version=versions[past], by="ann", evidence="not there")
        except RefusedError:  # its time is not over yet
            continue
    assert freed.status is Status.FREE
    risky = ledger.resolve(
        unbounded, outcome="absent", version=versions[unbounded], by="ann", evidence="sure", accept_risk=True
    )
    assert risky.status is Status.FREE
    assert risky.resolutions[-1].fact.risk_accepted
    with ledger.session(world.agent) as session:
        assert session.attempt(key=world.key("unbounded"), **SEND).begin().owned


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (ProbeAnswer(Outcome.COMMITTED, result={"id": 9}, evidence="found"), Status.COMMITTED),
        (ProbeAnswer(Outcome.ABSENT, voided=True, evidence="voided"), Status.FREE),
        (ProbeAnswer(Outcome.ABSENT, evidence="not found"), Status.IN_DOUBT),
        (ProbeAnswer(Outcome.UNKNOWN), Status.IN_DOUBT),
    ],
)
def test_probe(world: World, ledger: Ledger, answer: ProbeAnswer, status: Status) -> None:
    """A probe settles what it knows. ABSENT counts only if the key was voided at the provider, else it is unknown."""
    tool = world.key("tool")
    asked: list[str] = []

    @ledger.probe(tool)
    def probe(operation: Operation) -> ProbeAnswer:
        asked.append(operation.idempotency_key)
        return answer

    with ledger.session(world.agent) as session:
        attempt = session.attempt(tool, key="k", kind=EffectClass.IRREVERSIBLE).begin()
        assert attempt.owned
        attempt.doubt("no answer")
    world.status(attempt.op_id, Status.IN_DOUBT)
    given, operation = ledger.run_probe(attempt.op_id)
    assert asked == [attempt.idempotency_key]
    assert operation.status is status
    assert ledger.operation(attempt.op_id).operation.status is status
    assert (given.outcome is Outcome.UNKNOWN) is (status is Status.IN_DOUBT)


def test_probe_that_there_is_not(world: World, ledger: Ledger) -> None:
    """Without a registered probe, or for an operation that is not open, the answer is that there is none."""
    with ledger.session(world.agent) as session:
        op_id = doubtful(session, world)
        done = session.attempt(key=world.key("done"), **SEND).begin()
        done.commit()
    world.status(done.op_id, Status.COMMITTED)
    with pytest.raises(NotFoundError) as caught:
        ledger.run_probe(op_id)
    assert caught.value.field == "tool"
    with pytest.raises(NotFoundError, match="is not open"):
        ledger.run_probe(done.op_id)
    with pytest.raises(NotFoundError, match="is not in this ledger"):
        ledger.run_probe(world.op_id("none"))


@pytest.mark.slow
@pytest.mark.parametrize("decided", ["absent", "committed"])
def test_late_result_of_a_decided_operation(world: World, ledger: Ledger, decided: str) -> None:
    """A result that comes after the decision is kept: it settles a freed operation, flagged; else it confirms."""
    late = world.worker(charge("late", hold="after effect", name="late"), close=False)
    late.wait_held("late")
    operation = ledger.operation(world.op_id("late")).operation
    ledger.resolve(
        operation.op_id, outcome=decided, version=operation.version, by="ann", evidence="thought so", accept_risk=True
    )
    late.release("late")
    [answer] = late.finish()
    assert answer["error"] == ""
    after = world.status(world.op_id("late"), Status.COMMITTED)
    assert after.flagged is (decided == "absent")
    assert after.anomalies == []
    assert world.hits("late") == 1


@pytest.mark.slow
def test_late_result_of_an_operation_that_someone_else_did(world: World, ledger: Ledger) -> None:
    """If somebody took the risk and did it anew, a late commit is an anomaly: kept, listed, and to be acknowledged."""
    late = world.worker(charge("twice", hold="after effect", name="late"), close=False)
    late.wait_held("late")
    operation = ledger.operation(world.op_id("twice")).operation
    ledger.resolve(
        operation.op_id, outcome="absent", version=operation.version, by="ann", evidence="took it", accept_risk=True
    )
    with ledger.session(f"other-{world.agent}") as other:
        world.charge(other, "twice")
    late.release("late")
    late.finish()
    until(lambda: [i.state for i in ledger.in_doubt(world.agent)] == ["anomaly"])
    [item] = ledger.in_doubt(world.agent)
    assert "double" in item.operation.anomalies[0].what
    ledger.resolve(
        operation.op_id, outcome="committed", version=item.operation.version, by="ann", evidence="paid one back"
    )
    assert ledger.in_doubt(world.agent) == []


@pytest.mark.parametrize("outcome", ["compensated", "absent"])
def test_outcome_that_does_not_apply(world: World, ledger: Ledger, outcome: str) -> None:
    """Only a committed effect can be compensated, only an undecided one be absent; unknown words are refused."""
    with ledger.session(world.agent) as session:
        op_id = doubtful(session, world)
        done = session.attempt(key=world.key("done"), **SEND).begin()
        done.commit()
    world.status(done.op_id, Status.COMMITTED)
    target = op_id if outcome == "compensated" else done.op_id
    version = ledger.operation(target).operation.version
    for word in (outcome, "whatever"):
        with pytest.raises(InvalidArgumentError) as caught:
            ledger.resolve(target, outcome=word, version=version, by="ann", evidence="e", accept_risk=True)
        assert caught.value.field == "outcome"
    with pytest.raises(NotFoundError):
        ledger.resolve(world.op_id("never"), outcome="absent", version="", by="ann", evidence="e")


@pytest.mark.slow
def test_effect_that_landed_unconfirmed_can_be_undone(world: World, ledger: Ledger) -> None:
    """Landed, but its process died: once it is resolved it can be compensated, and the next round has another key."""
    world.worker(charge("landed", die="after effect")).dies()
    ledger.session(world.agent).open().close()
    item = the(ledger, world.agent)
    first_key = item.operation.idempotency_key
    version = ledger.resolve(
        item.operation.op_id, outcome="committed", version=item.operation.version, by="ann", evidence="seen"
    ).version
    undone = ledger.resolve(
        item.operation.op_id, outcome="compensated", version=version, by="ann", evidence="paid back"
    )
    assert (undone.status, undone.round) == (Status.FREE, 2)
    assert undone.idempotency_key != first_key
    [answer] = world.run(charge("landed"))
    assert (answer["ran"], world.hits("landed")) == (True, 2)  # asked for anew, after it was undone


@pytest.mark.slow
def test_undone_effect_is_not_done_anew_by_a_stale_sibling(world: World, ledger: Ledger) -> None:
    """A sibling that asked before the effect was undone does not do it again by itself."""
    stale = world.worker(
        charge("undone", hold="before INTENDED", name="stale"), armed=True, agent=f"stale-{world.agent}"
    )
    stale.wait_held("stale")
    with ledger.session(world.agent) as session:
        world.charge(session, "undone")
    operation = world.status(world.op_id("undone"), Status.COMMITTED)
    ledger.resolve(operation.op_id, outcome="compensated", version=operation.version, by="ann", evidence="undone")
    stale.release("stale")
    [answer] = stale.finish()
    assert (answer["error"], answer["ran"]) == ("VersionMovedError", False)
    assert world.hits("undone") == 1
