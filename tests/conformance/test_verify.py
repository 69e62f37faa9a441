"""Verify, on every store: while the ledger is being written, and for each thing that can be wrong."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from conformance.waiting import until
from conformance.worlds import World

from fencepost.ledger import EffectClass, Ledger, log_keys
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition
from fencepost.ledger.verification import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.homes import Home


def about(ledger: Ledger, *names: str) -> list[Finding]:
    found = ledger.verify().findings
    return [f for f in found if any(name in f.where or name in f.text for name in names)]


def test_a_ledger_that_is_being_written_is_verified(fresh_home: Callable[[], Home]) -> None:
    """Agents go on all the time: no difference is made up, none of them waits, and it comes to an end."""
    home, stop = fresh_home(), threading.Event()
    written: list[int] = [0, 0]
    failures: list[BaseException] = []

    def act(number: int) -> None:
        try:
            with Ledger.open(home.url) as own, own.session(f"agent-{number}") as session:
                while not stop.is_set():
                    key = f"{number}-{written[number]}"
                    with session.attempt("mail.send", key=key, kind=EffectClass.IRREVERSIBLE) as attempt:
                        attempt.commit({"sent": key})
                    written[number] += 1
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    agents = [threading.Thread(target=act, args=(number,)) for number in range(2)]
    for agent in agents:
        agent.start()
    try:
        with Ledger.open(home.url) as ledger:
            until(lambda: min(written) >= 5 or failures)
            for _ in range(3):
                before = sum(written)
                report = ledger.verify()
                assert [f for f in report.findings if f.grave] == []
                assert report.counts["operations"] >= before - 2
                until(lambda before=before: sum(written) > before or failures)
    finally:
        stop.set()
        for agent in agents:
            agent.join(60)
    assert failures == []
    with Ledger.open(home.url) as ledger:
        report = ledger.verify()
    assert (report.ok, report.findings) == (True, [])
    assert report.counts["operations"] == sum(written)
    assert sum(report.applied.values()) >= report.counts["records"] > 0


def test_a_number_that_a_closed_session_never_wrote_is_named(world: World, ledger: Ledger) -> None:
    """The close seals the last number: what is missing below breaks a promise, whatever is missing."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        sequence = session.state.sequence
        skipped = [sequence.take() for _ in range(3)]
        world.charge(session, "b")
        skipped.append(sequence.take())
    [finding] = about(ledger, session.session_id)
    assert (finding.kind, finding.grave) == ("sequence", True)
    assert f"{skipped[0]}-{skipped[2]}, {skipped[3]} are not in the log" in finding.text


def test_a_number_that_a_fenced_session_has_not_written_may_still_arrive(world: World, ledger: Ledger) -> None:
    """It is named, with why the session ended, and breaks no promise."""
    old = ledger.session(world.agent).open()
    skipped = old.state.sequence.take()
    world.charge(old, "a")
    with ledger.session(world.agent):
        pass
    [finding] = about(ledger, old.session_id)
    assert (finding.kind, finding.grave) == ("unaccounted", False)
    assert "took over" in finding.text
    assert f"{skipped} have not arrived" in finding.text


def test_a_number_that_was_certainly_never_written_is_told(world: World, ledger: Ledger) -> None:
    """Given out, refused by the log, and voided by the session: accounted for, and named."""
    with ledger.session(world.agent) as session:
        number, last = session.state.sequence.take(), session.state.sequence.take()
        session.state.sequence.void(number)
        session.state.sequence.void(last)
        world.charge(session, "a")
    [finding] = about(ledger, session.session_id)
    assert (finding.kind, finding.grave) == ("never written", False)
    assert finding.text == f"{number} were given out and never written: the session has given them up"


def test_a_fact_behind_the_close_is_found(world: World, ledger: Ledger) -> None:
    """Whoever writes with the number of a sealed session is not that session."""
    with ledger.session(world.agent) as session:
        world.charge(session, "a")
        state = session.state
    op_id = world.op_id("late")
    fact = EffectFact(
        kind=EffectKind.INTENDED, op_id=op_id, attempt_id="late", agent_id=world.agent, branch_id="main",
        session_id=session.session_id, epoch=state.epoch, seq=500, tool="billing.charge",
        effect_class=EffectClass.READ,
    )  # fmt: skip
    engine = ledger._engine
    partition = engine.view.effects_partition(op_id)
    ledger._call(engine.publish(partition, Record(op_id, (), encode_effect(fact))))
    until(lambda: any("500 were written as well" in f.text for f in about(ledger, session.session_id)))
    assert any(f.kind == "sequence" and f.grave for f in about(ledger, session.session_id))


def test_a_commit_without_an_owner_is_found(world: World, ledger: Ledger) -> None:
    """Two attempts say that they did it: the operation is named."""
    with ledger.session(world.agent) as session:
        world.charge(session, "twice")
    op_id = world.op_id("twice")
    view = ledger.operation(op_id)
    assert view.operation.first is not None
    fact = EffectFact(
        kind=EffectKind.COMMITTED, op_id=op_id, attempt_id="another", agent_id="somebody", tool="billing.charge",
        effect_class=EffectClass.IRREVERSIBLE, identity_digest=view.operation.first.identity_digest,
    )  # fmt: skip
    ledger._call(ledger._engine.publish_effect(fact, view.facts))
    until(lambda: about(ledger, op_id))
    [finding] = about(ledger, op_id)
    assert (finding.kind, finding.grave) == ("owner", True)


@pytest.mark.parametrize("damage", ["missing", "changed", "extra"])
def test_a_document_that_is_not_what_the_log_says_is_named(fresh_home: Callable[[], Home], damage: str) -> None:
    """Missing, changed, or made up: each is a finding of its own, and the others are none."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger:
        with ledger.session("agent") as session:
            for number in range(5):
                with session.attempt("mail.send", key=str(number), kind=EffectClass.IRREVERSIBLE) as attempt:
                    attempt.commit(number)
        key, place = "mail.send:3", ledger._engine.view.effects_partition
        if damage == "extra":  # beside documents that are there
            made_up = (f"mail.send:made-up-{number}" for number in range(1000))
            key = next(name for name in made_up if place(name) == place(key))
        home.tamper("ops", key, damage)
        report = ledger.verify()
        assert not report.ok
        wanted = {"missing": "not in the projection", "changed": "differs", "extra": "not in the log"}[damage]
        assert [wanted in f.text for f in report.findings if f.kind == "projection"] == [True]


def test_a_note_of_what_is_open_unsafe_or_set_aside_is_compared_too(fresh_home: Callable[[], Home]) -> None:
    """In operations' partitions and in agents': missing, changed, or made up, each is named, and nothing else is."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger:
        place = ledger._engine.view.effects_partition
        one = place("p:1")  # all in one partition: a collection that nothing is left of is noticed as lost
        names = (str(number) for number in range(1000) if place(f"mail.send:{number}") == one)
        doubts, done = [next(names), next(names)], [next(names), next(names)]
        bad_op = next(f"p:{number}" for number in range(2, 1000) if place(f"p:{number}") == one)
        agents = ledger._engine.view.agents_partition("agent")
        with ledger.session("agent") as session:
            for key in doubts:
                session.attempt("mail.send", key=key, kind=EffectClass.IRREVERSIBLE).begin().doubt("no answer")
            for key in done:
                with session.attempt("mail.send", key=key, kind=EffectClass.IRREVERSIBLE) as attempt:
                    attempt.commit(1)
    checkpoints = [log_keys.checkpoint("agent", f"c{number}") for number in range(2)]
    bad = {key: (place(key), home.poison(place(key), key.encode(), b"rubbish")) for key in ("p:1", bad_op)}
    bad |= {key: (agents, home.poison(agents, key.encode(), b"rubbish")) for key in checkpoints}
    with Ledger.open(home.url) as ledger:
        report = ledger.verify()
        assert [f for f in report.findings if f.kind == "projection"] == []
        assert {f.where for f in report.findings if f.kind == "set aside"} == set(bad)
        damages: list[tuple[str, str, str, Partition | None]] = [
            ("open", f"mail.send:{doubts[0]}", "missing", None),
            ("open", f"mail.send:{doubts[1]}", "changed", None),
            ("open", f"mail.send:{done[0]}", "extra", None),
            ("unsafe", "p:1", "missing", None),
            ("unsafe", bad_op, "changed", None),
            ("unsafe", f"mail.send:{done[1]}", "extra", None),
            ("unsafe", checkpoints[0], "missing", agents),
            ("unsafe", checkpoints[1], "changed", agents),
            ("set-aside", str(bad["p:1"][1]), "missing", bad["p:1"][0]),
            ("set-aside", str(bad[bad_op][1]), "changed", bad[bad_op][0]),
            ("set-aside", "9999", "extra", agents),
        ]
        for collection, key, damage, partition in damages:
            home.tamper(collection, key, damage, partition)
        report = ledger.verify()
    texts = {"missing": "is in the log and not in the projection", "changed": "differs from what the log says"}
    wanted = {
        f"{c}: {key!r} {texts.get(damage, 'is in the projection and not in the log')}" for c, key, damage, _ in damages
    }
    assert {f.text for f in report.findings if f.kind == "projection"} == wanted
    assert not report.ok
