"""The matrix: one tool, one outside world, real processes and real kills. One hit is right, two are a duplicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import Home, World, answer_when_back, charge, let_time_pass, never_suggests_a_retry

from fencepost.ledger import Ledger, OperationInDoubtError
from fencepost.ledger.operations import AttemptState, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def in_doubt(answer: dict[str, Any]) -> bool:
    """Whether the answer is the right one for an operation that nobody can say anything about."""
    assert answer["error"] == "OperationInDoubtError", answer
    assert not answer["ran"]
    assert not answer["retryable"]
    return never_suggests_a_retry(answer["message"])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after effect", "before COMMITTED"])
def test_a_killed_after_the_effect(world: World, ledger: Ledger, point: str) -> None:
    """A: killed between the effect and its record, restarted at once and after 3 s: one hit, in doubt, no retry."""
    world.worker(charge("A", die=point), armed=True).dies()
    [at_once] = world.run(charge("A"))
    assert in_doubt(at_once)
    let_time_pass(3)
    [later] = world.run(charge("A"))
    assert in_doubt(later)
    assert world.hits("A") == 1
    assert [item.operation.op_id for item in ledger.in_doubt(world.agent)] == [world.op_id("A")]


def test_a_killed_and_asked_for_by_another_agent(world: World, ledger: Ledger) -> None:
    """A: another agent that wants the same does not run it either, before and after the dead one is fenced."""
    world.worker(charge("A"), charge("A2", die="after effect")).dies()
    patient: dict[str, Any] = {"options": {"wait_s": 0.3}}
    [before] = world.run(charge("A2", **patient), agent=f"other-{world.agent}")
    assert before["error"] in {"OperationInFlightError", "OperationInDoubtError"}
    assert not before["ran"]
    ledger.session(world.agent).open().close()
    [after] = world.run(charge("A2", **patient), agent=f"other-{world.agent}")
    assert in_doubt(after)
    assert (world.hits("A"), world.hits("A2")) == (1, 1)


def test_b_two_processes_race(world: World, ledger: Ledger) -> None:
    """B: the loser is told that the owner lives and changes nothing of the owner's record; the owner's commit counts."""
    winner = world.worker(charge("B", hold="after effect", name="winner"))
    winner.wait_held("winner")
    before = ledger.operation(world.op_id("B"))
    [loser] = world.run(charge("B", options={"wait_s": 0.5}), branch="main", agent=f"rival-{world.agent}")
    assert loser["error"] == "OperationInFlightError"
    assert "lives" in loser["message"]
    assert not loser["ran"]
    after = ledger.operation(world.op_id("B"))
    assert after.facts == before.facts
    assert after.operation.version == before.operation.version
    winner.release("winner")
    [won] = winner.finish()
    assert won["error"] == ""
    assert world.hits("B") == 1
    world.status(world.op_id("B"), Status.COMMITTED)


@pytest.mark.slow
def test_b_many_processes_race(world: World, ledger: Ledger) -> None:
    """B: four agents begin at the same time: one runs it, and all get its result."""
    racers = [
        world.worker({"do": "hold", "name": f"racer{n}"}, charge("race", note=f"from {n}"), agent=f"{world.agent}-{n}")
        for n in range(4)
    ]
    for number, racer in enumerate(racers):
        racer.wait_held(f"racer{number}")
    for number, racer in enumerate(racers):
        racer.release(f"racer{number}")
    answers = [racer.finish()[1] for racer in racers]
    assert [answer["error"] for answer in answers] == [""] * 4
    assert sum(answer["ran"] for answer in answers) == 1
    assert len({answer["value"]["pid"] for answer in answers}) == 1
    assert world.hits("race") == 1
    operation = world.status(world.op_id("race"), Status.COMMITTED)
    assert operation.anomalies == []
    assert [a.state for a in operation.attempts.values()].count(AttemptState.COMMITTED) == 1


def test_c_reworded(world: World) -> None:
    """C: another wording of a content argument is the same operation; the recorded result comes back."""
    first, second = world.run(charge("C", note="for the shoes"), charge("C", note="payment of the shoes"))
    [third] = world.run(charge("C", note="shoes!"))
    assert first["ran"]
    assert [second["ran"], third["ran"]] == [False, False]
    assert first["value"] == second["value"] == third["value"]
    assert world.hits("C") == 1


def test_c_wording_of_a_rival_is_kept(world: World, ledger: Ledger) -> None:
    """C: the wording of an attempt that lost is kept as a variant of the operation."""
    step = charge("C2", note="late", hold="before INTENDED", name="late")
    late = world.worker(step, armed=True, agent=f"late-{world.agent}")
    late.wait_held("late")
    world.run(charge("C2", note="first"))
    late.release("late")
    [lost] = late.finish()
    assert (lost["ran"], lost["error"], lost["value"]["note"]) == (False, "", "first")
    assert len(ledger.operation(world.op_id("C2")).operation.variants) == 2
    assert world.hits("C2") == 1


def test_c_wording_of_an_absorbed_call_is_kept(world: World) -> None:
    """C: the wording of a call that came after the commit is kept as a variant of the operation as well."""
    world.run(charge("C3", note="first"))
    world.run(charge("C3", note="reworded"), agent=f"other-{world.agent}")
    assert world.hits("C3") == 1
    assert len(world.status(world.op_id("C3"), Status.COMMITTED).variants) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_d_another_amount(world: World, *, restarted: bool) -> None:
    """D: 70 instead of 50 under one op is an error that names both, never a silent replay of 50."""
    if restarted:
        world.run(charge("D", 50))
        [changed] = world.run(charge("D", 70))
    else:
        _, changed = world.run(charge("D", 50), charge("D", 70))
    assert changed["error"] == "OperationConflictError"
    assert '"cents":50' in changed["details"]["recorded"]
    assert '"cents":70' in changed["details"]["given"]
    assert "50" in changed["message"]
    assert "70" in changed["message"]
    assert not changed["ran"]
    assert world.hits("D") == 1


def test_e_timeout_after_the_effect(world: World, ledger: Ledger) -> None:
    """E: the effect lands and the call raises a time-out: in doubt, not failed; asked for again it does not run."""
    timeout = charge("E", raise_at="after effect", error="TimeoutError")
    first, second = world.run(timeout, charge("E"))
    assert first["error"] == "TimeoutError"
    assert in_doubt(second)
    [third] = world.run(charge("E"))
    assert in_doubt(third)
    assert world.hits("E") == 1
    operation = world.status(world.op_id("E"), Status.IN_DOUBT)
    assert "TimeoutError" in (operation.owner.outcome.reason if operation.owner and operation.owner.outcome else "")


def test_f_sibling_run_and_thread(world: World, ledger: Ledger) -> None:
    """F: a sibling branch, a new run, another agent with the same business key: one hit, the same result for all."""
    [first, _] = world.run(charge("F"), {"do": "checkpoint", "id": "start"})
    ledger.fork(world.agent, "plan-b", checkpoint="start")
    [sibling] = world.run(charge("F"), branch="plan-b")
    [new_run] = world.run(charge("F"))
    [thread] = world.run(charge("F"), agent=f"thread-{world.agent}")
    assert first["ran"]
    assert [a["ran"] for a in (sibling, new_run, thread)] == [False] * 3
    assert all(a["value"] == first["value"] for a in (sibling, new_run, thread))
    assert world.hits("F") == 1


def test_f_derived_id_ignores_branch_and_run(world: World, ledger: Ledger) -> None:
    """F: without a business key the unit of work (scope) makes siblings and new runs name the same operation."""
    op_ids = set()
    for agent, branch in [(world.agent, "main"), (world.agent, "b"), (f"other-{world.agent}", "main")]:
        with ledger.session(agent, branch, scope=world.key("ticket")) as session:
            attempt = session.attempt("mail.send", kind="IRREVERSIBLE", identity={"to": "ann"})  # type: ignore[arg-type]
            op_ids.add(attempt.op_id)
    assert len(op_ids) == 1


@pytest.mark.slow
def test_g_projection_is_lost_between_two_calls(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """G: the projection store loses all its data between two calls: one hit, and the same answer once it is back."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path) as world:
        [first] = world.run(charge("G"))
        home.lose_projection()
        home.rebuild()
        [second] = world.run(charge("G"))
        assert (first["ran"], second["ran"]) == (True, False)
        assert second["value"] == first["value"]
        assert world.hits("G") == 1


@pytest.mark.slow
def test_g_projection_is_lost_under_a_living_session(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """G: the same while a session goes on: its next call is refused or absorbed, and never runs a second time."""
    home = fresh_home()
    with (
        Ledger.open(home.url) as ledger,
        World(home, ledger, tmp_path) as world,
        ledger.session(world.agent) as session,
    ):
        world.charge(session, "G")
        home.lose_projection()
        home.rebuild()
        assert answer_when_back(lambda: world.charge(session, "G")) == {"order": world.key("G"), "cents": 50}
        assert world.hits("G") == 1
        world.charge(session, "G2")
        assert world.hits("G2") == 1


@pytest.mark.slow
def test_k_effect_outlives_its_deadline(world: World, ledger: Ledger) -> None:
    """K: an effect that runs longer than its deadline is not run by anybody else; its late commit counts."""
    slow = world.worker(charge("K", hold="after effect", name="slow", options={"deadline_s": 0.5}))
    slow.wait_held("slow")
    let_time_pass(1)
    [other] = world.run(charge("K", options={"wait_s": 0.2, "deadline_s": 0.5}), agent=f"other-{world.agent}")
    assert other["error"] == "OperationInFlightError"
    slow.release("slow")
    [late] = slow.finish()
    assert late["error"] == ""
    assert world.hits("K") == 1
    assert world.status(world.op_id("K"), Status.COMMITTED).anomalies == []


def test_k_owner_is_gone_and_the_deadline_passed(world: World, ledger: Ledger) -> None:
    """K: a deadline that passed is no permit to run: with the owner dead the operation is in doubt, not free."""
    world.worker(charge("K2", die="after effect", options={"deadline_s": 0.2, "longest_run_s": 0.1})).dies()
    let_time_pass(0.5)
    with ledger.session(world.agent) as session, pytest.raises(OperationInDoubtError):
        world.charge(session, "K2")
    assert world.hits("K2") == 1


def test_l_plan_carried_out_twice(world: World, ledger: Ledger) -> None:
    """L: a plan that is carried out twice, and planned anew with the same business keys, commits each effect once."""
    plan = [charge("L1", note="first"), charge("L2", 70)]
    world.run(*plan, *plan)
    world.run(charge("L1", note="planned anew"), charge("L2", 70), agent=f"planner-{world.agent}")
    assert (world.hits("L1"), world.hits("L2")) == (1, 1)
    for name in ("L1", "L2"):
        operation = world.status(world.op_id(name), Status.COMMITTED)
        states = [attempt.state for attempt in operation.attempts.values()]
        assert states.count(AttemptState.COMMITTED) == 1
        assert set(states) <= {AttemptState.COMMITTED, AttemptState.LOST}  # another wording is kept, and owns nothing
