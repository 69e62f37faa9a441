"""The projection is lost or behind: nothing answers wrongly meanwhile, and afterwards everything answers as before."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from conformance.waiting import impatient
from conformance.worlds import Home, World, answer_when_back, charge

from fencepost.ledger import (
    EffectClass,
    FencedError,
    Ledger,
    Limits,
    ReasonKind,
    StaleProjectionError,
    StoreError,
    VerdictKind,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow
SEND: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}


@contextmanager
def opened(home: Home, directory: Path) -> Iterator[World]:
    """A world of this test's own ledger."""
    with Ledger.open(home.url) as ledger, World(home, ledger, directory) as world:
        yield world


def answers(world: World) -> list[Any]:
    """What the ledger says about this world's agent, without ages."""
    ledger = world.ledger
    verdicts = [world.preview(c, policy=p) for c in ("c", "end") for p in ("strict", "gated")]
    return [
        [(v.kind, [r.text for r in v.reasons], [e.op_id for e in v.crossed], dict(v.outlook)) for v in verdicts],
        ledger.watermark(world.agent).mark,
        ledger.watermark(world.agent).open_operations,
        [op.to_dict() for op in ledger.replay_forward(world.agent, since="c")],
        [(c.checkpoint_id, c.mark) for c in ledger.checkpoints(world.agent)],
        [(v.operation.op_id, v.operation.status, v.facts) for v in ledger.operations(world.agent)],
        sorted(ledger.agent(world.agent).agent.branches),
        sorted((item.operation.op_id, item.operation.version) for item in ledger.in_doubt(world.agent)),
    ]


def live_a_little(world: World) -> None:
    """A life with something of everything in it."""
    with world.ledger.session(world.agent) as session:
        world.charge(session, "before")
        session.checkpoint("c")
        session.fork("b", checkpoint="c")
        with world.ledger.session(world.agent, "b") as sibling:
            world.charge(sibling, "sibling")
        world.charge(session, "sibling")
        world.charge(session, "after")
        doubt = session.attempt(key=world.key("doubt"), **SEND).begin()
        assert doubt.owned
        doubt.doubt("no answer")
        session.report_call("shell", kind=EffectClass.IRREVERSIBLE)
        session.checkpoint("end")


def test_same_answers_afterwards(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """Dropped and rebuilt from the log, the projection gives every answer that it gave before."""
    home = fresh_home()
    with opened(home, tmp_path) as world:
        live_a_little(world)
        before = answers(world)
    home.lose_projection()
    home.rebuild()
    with opened(home, tmp_path) as again:
        again.name = world.name
        assert answer_when_back(lambda: answers(again)) == before
        assert again.ledger.verify().ok


def test_nothing_is_decided_meanwhile(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """While the projection is gone, the guard, new sessions and effects are refused; then all is as it was."""
    home = fresh_home()
    with opened(home, tmp_path) as world:
        session = world.ledger.session(world.agent).open()
        session.checkpoint("c")
        world.charge(session, "done")
        home.stop_projector()
        home.lose_projection()
        refused: dict[str, Callable[[], object]] = {
            "guard": lambda: world.ledger.authorize_rollback(world.agent, checkpoint="c"),
            "gated": lambda: world.ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated"),
            "preview": lambda: world.ledger.preview_rollback(world.agent, checkpoint="c"),
            "effect": lambda: world.charge(session, "done", deadline_s=1.0),
            "new effect": lambda: world.charge(session, "new", deadline_s=1.0),
            "session": lambda: world.ledger.session(f"new-{world.agent}").open(),
            "question": lambda: world.ledger.operation(world.op_id("done")),
            "agents": world.ledger.agents,
        }
        for name, ask in refused.items():
            with impatient(world.ledger, apply_s=1.0), pytest.raises(StoreError):
                pytest.fail(f"{name} answered {ask()!r}")
        assert (world.hits("done"), world.hits("new")) == (1, 0)
        home.rebuild()
        verdict = answer_when_back(lambda: world.ledger.authorize_rollback(world.agent, checkpoint="c"))
        assert [r.kind for r in verdict.reasons] == [ReasonKind.EFFECT_NOT_KNOWN]
        assert not verdict.fenced
        world.charge(session, "done")
        world.charge(session, "new")
        assert (world.hits("done"), world.hits("new")) == (1, 1)
        session.close()


def test_new_processes_are_refused_meanwhile(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """A process that starts while the projection is gone does not take its emptiness for a ledger without effects."""
    home = fresh_home()
    with opened(home, tmp_path) as world:
        world.run({"do": "checkpoint", "id": "c"}, charge("done"))
    home.stop_projector()
    home.lose_projection()
    with pytest.raises(StoreError) as caught, Ledger.open(home.url, limits=Limits(apply_s=1.0)) as early:
        pytest.fail(f"it opened: {early.agents()}")
    assert isinstance(caught.value, StaleProjectionError)
    home.rebuild()
    with opened(home, tmp_path) as again:
        again.name = world.name
        verdict = answer_when_back(lambda: again.ledger.authorize_rollback(again.agent, checkpoint="c"))
        assert verdict.kind is VerdictKind.REFUSE
        [answer] = again.run(charge("done"))
        assert (answer["ran"], again.hits("done")) == (False, 1)


def test_fences_outlive_the_projection(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """A session that was fenced before the loss is fenced after it; its intents are rejected as before."""
    home = fresh_home()
    with opened(home, tmp_path) as world:
        zombie = world.ledger.session(world.agent).open()
        world.charge(zombie, "before")
        with world.ledger.session(world.agent) as successor:
            home.lose_projection()
            home.rebuild()
            answer_when_back(lambda: world.charge(successor, "after"))
            with pytest.raises(FencedError):
                world.charge(zombie, "zombie")
        assert [world.hits(name) for name in ("before", "after", "zombie")] == [1, 1, 0]


def test_in_doubt_outlives_the_projection(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """What was in doubt is in doubt afterwards, with the same version, and can be settled by it."""
    home = fresh_home()
    with opened(home, tmp_path) as world:
        world.run(charge("doubt", raise_at="after effect", error="TimeoutError"))
        [before] = world.ledger.in_doubt(world.agent)
    home.lose_projection()
    home.rebuild()
    with opened(home, tmp_path) as again:
        [item] = answer_when_back(lambda: again.ledger.in_doubt(world.agent))
        assert item.operation.version == before.operation.version
        settled = again.ledger.resolve(
            item.operation.op_id, outcome="committed", version=before.operation.version, by="ann", evidence="seen"
        )
        assert settled.status is Status.COMMITTED


def test_projection_is_lost_again_and_again(fresh_home: Callable[[], Home], tmp_path: Path) -> None:
    """Losing it in the middle of a busy run costs time only: each effect happens once, and the books are right."""
    home = fresh_home()
    with opened(home, tmp_path) as world, world.ledger.session(world.agent) as session:
        for number in range(12):
            answer_when_back(lambda n=number: world.charge(session, f"e{n}"))  # type: ignore[misc]
            if number % 4 == 1:
                home.lose_projection()
                home.rebuild()
        for number in range(12):
            answer_when_back(lambda n=number: world.charge(session, f"e{n}"))  # type: ignore[misc]
        assert [world.hits(f"e{n}") for n in range(12)] == [1] * 12
        session.checkpoint("c")
        assert world.ledger.preview_rollback(world.agent, checkpoint="c").authorised
        assert world.ledger.verify().ok
