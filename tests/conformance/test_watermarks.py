"""Watermarks: what they survive, which are refused, and where a session stands that resumes from one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from conformance.worlds import Home, World, charge

from fencepost.ledger import (
    AlreadyExistsError,
    Ledger,
    ReasonKind,
    RefusedError,
    VerdictKind,
    Watermark,
    WatermarkMangledError,
)
from fencepost.ledger.positions import Position

if TYPE_CHECKING:
    from collections.abc import Callable


def reasons(verdict: object) -> list[ReasonKind]:
    return [reason.kind for reason in verdict.reasons]  # type: ignore[attr-defined]


def test_token_survives_nested_summaries(world: World, ledger: Ledger) -> None:
    """The token is found in a summary of a summary, and of several the newest counts."""
    with ledger.session(world.agent) as session:
        old = session.checkpoint("old")
        world.charge(session, "effect")
        new = session.checkpoint("new")
    text = f"Summary: (earlier: {old.token}) ... then we charged. {new.token} To do: mail."
    assert Watermark.find(f"Summary of a summary: {text}") == new
    assert new.point > old.point


def test_watermark_is_monotonic(world: World, ledger: Ledger) -> None:
    """A watermark never goes back: not by effects, checkpoints, absorbed results, nor by later sessions."""
    marks: list[Watermark] = []
    for _ in range(2):
        with ledger.session(world.agent) as session:
            for name in ("one", "two"):
                world.charge(session, name)
                marks.append(session.checkpoint(f"c{len(marks)}"))
                marks.append(ledger.watermark(world.agent).mark)
    points = [mark.point for mark in marks]
    assert points == sorted(points)
    assert len({mark.epoch for mark in marks}) == 2


def test_watermark_is_not_a_log_offset(world: World, ledger: Ledger) -> None:
    """Later news about an old effect moves no watermark: what a checkpoint knows does not depend on offsets."""
    with ledger.session(world.agent) as session:
        world.charge(session, "known")
        mark = session.checkpoint("c")
        seen = ledger.operation(world.op_id("known")).operation
        ledger.resolve(seen.op_id, outcome="compensated", version=seen.version, by="ann", evidence="paid back")
        assert ledger.watermark(world.agent).mark.seq >= mark.seq
        restored = f"{mark.token} undo:{seen.op_id}:1"  # a state that knows that it was undone since
        assert world.preview("c", restored=restored).kind is VerdictKind.PROCEED


def test_mangled_and_missing_tokens_are_different(world: World, ledger: Ledger) -> None:
    """A token that a summary damaged raises; a text without any has none. Either way the restored state is refused."""
    with ledger.session(world.agent) as session:
        mark = session.checkpoint("c")
        world.charge(session, "effect")
    damaged = mark.token[:-6] + "0000]]"
    with pytest.raises(WatermarkMangledError):
        Watermark.find(f"text {damaged} text")
    assert Watermark.find("no token at all") is None
    for restored in (f"text {damaged}", "no token at all"):
        verdict = ledger.authorize_rollback(world.agent, checkpoint="c", policy="gated", restored=restored)
        assert ReasonKind.WATERMARK_UNREADABLE in reasons(verdict)
        assert not verdict.fenced


def test_lost_watermark_is_no_matter_without_effects(world: World, ledger: Ledger) -> None:
    """An unreadable watermark refuses only when an effect could be repeated: with none after it, it proceeds."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    assert world.preview("c", restored="nothing here").kind is VerdictKind.PROCEED


def test_unregistered_checkpoint(world: World, ledger: Ledger) -> None:
    """A checkpoint that was never registered knows nothing: refused as soon as there is an effect."""
    with ledger.session(world.agent) as session:
        world.charge(session, "effect")
    for policy in ("strict", "gated"):
        verdict = ledger.authorize_rollback(world.agent, checkpoint="never", policy=policy)
        assert ReasonKind.CHECKPOINT_NOT_REGISTERED in reasons(verdict)
        assert not verdict.fenced


def test_state_and_watermark_must_move_together(world: World, ledger: Ledger) -> None:
    """Files of one checkpoint with the conversation of another are refused; with its own token it proceeds."""
    with ledger.session(world.agent) as session:
        files = session.checkpoint("files")
        talk = session.checkpoint("talk")
    mixed = ledger.authorize_rollback(world.agent, checkpoint="files", restored=f"the talk {talk.token}")
    assert reasons(mixed) == [ReasonKind.WATERMARK_MISMATCH]
    assert not mixed.fenced
    assert ledger.authorize_rollback(world.agent, checkpoint="files", restored=f"the talk {files.token}").authorised


@pytest.mark.parametrize("field", ["ledger_id", "agent_id"])
def test_watermark_of_another_ledger_or_agent(world: World, ledger: Ledger, field: str) -> None:
    """A restored state that carries the watermark of another ledger or agent is refused, by the guard and on resume."""
    with ledger.session(world.agent) as session:
        mark = session.checkpoint("c")
    foreign = dataclasses.replace(mark, **{field: "somebody-else"})  # type: ignore[arg-type]
    verdict = ledger.authorize_rollback(world.agent, checkpoint="c", restored=foreign.token)
    assert reasons(verdict) == [ReasonKind.WATERMARK_OF_ANOTHER_LEDGER]
    with pytest.raises(RefusedError) as caught:
        ledger.session(world.agent, resumed_from=foreign).open()
    assert caught.value.reason.kind is ReasonKind.WATERMARK_OF_ANOTHER_LEDGER
    assert not caught.value.retryable


def test_real_watermark_of_another_ledger(fresh_home: Callable[[], Home]) -> None:
    """The same with two ledgers that exist: a state that was saved under one cannot be resumed under the other."""
    marks = []
    for home in (fresh_home(), fresh_home()):
        with Ledger.open(home.url) as ledger, ledger.session("same") as session:
            marks.append(session.checkpoint("c"))
            for mark in marks[:-1]:
                with pytest.raises(RefusedError):
                    ledger.session("same", resumed_from=mark.token).open()
    assert marks[0].ledger_id != marks[1].ledger_id


@pytest.mark.parametrize("change", [{"seq": 1000}, {"epoch": Position(0, 10**9)}])
def test_watermark_ahead_of_the_ledger(world: World, ledger: Ledger, change: dict[str, object]) -> None:
    """A watermark that knows more than the ledger means that the ledger has lost data: refused, never guessed."""
    with ledger.session(world.agent) as session:
        mark = session.checkpoint("c")
    ahead = dataclasses.replace(mark, **change)  # type: ignore[arg-type]
    with pytest.raises(RefusedError) as caught:
        ledger.session(world.agent, resumed_from=ahead).open()
    assert caught.value.reason.kind is ReasonKind.WATERMARK_AHEAD
    with pytest.raises(RefusedError):
        ledger.replay_forward(world.agent, since=ahead)


def test_mangled_watermark_cannot_be_resumed_from(world: World, ledger: Ledger) -> None:
    """A session does not open on a damaged token, nor on a text without one."""
    with ledger.session(world.agent) as session:
        token = session.checkpoint("c").token
    for text in (token.replace(":w1:", ":w1:x"), "no token"):
        with pytest.raises(WatermarkMangledError):
            ledger.session(world.agent, resumed_from=text).open()


def test_resumed_from_decides_what_is_known(world: World, ledger: Ledger) -> None:
    """A session knows what its watermark knows: effects behind it are replayed forward, and count for the guard."""
    with ledger.session(world.agent) as session:
        world.charge(session, "known")
        mark = session.checkpoint("c")
        world.charge(session, "unknown")
    with ledger.session(world.agent, resumed_from=f"state {mark.token} state") as resumed:
        resumed.checkpoint("without")
        assert [op.op_id for op in resumed.replay_forward()] == [world.op_id("unknown")]
        resumed.checkpoint("with")
        assert resumed.replay_forward() == []
    without = world.preview("without")
    assert [r.effect.op_id for r in without.reasons if r.effect] == [world.op_id("unknown")]
    assert world.preview("with").authorised


def test_closed_predecessor_is_known_completely(world: World, ledger: Ledger) -> None:
    """After a clean close the next session knows everything that the former one did."""
    with ledger.session(world.agent) as session:
        world.charge(session, "effect")
    with ledger.session(world.agent) as later:
        assert later.replay_forward() == []
        later.checkpoint("c")
    assert world.preview("c").authorised


@pytest.mark.slow
def test_crashed_predecessor_is_known_up_to_its_checkpoint(world: World, ledger: Ledger) -> None:
    """The memory of a process that was killed is gone: its successor knows its last checkpoint, and learns the rest."""
    world.worker(charge("known"), {"do": "checkpoint", "id": "c"}, charge("lost"), {"do": "die"}).dies()
    with ledger.session(world.agent) as later:
        later.checkpoint("without")
        [learnt] = later.replay_forward()
        assert (learnt.op_id, learnt.status, learnt.result["order"]) == (
            world.op_id("lost"), "committed", world.key("lost"),
        )  # fmt: skip
        later.checkpoint("with")
        assert world.charge(later, "lost") == learnt.result
    assert not world.preview("without").authorised
    assert world.preview("with").authorised
    assert (world.hits("known"), world.hits("lost")) == (1, 1)


@pytest.mark.slow
def test_crash_without_a_checkpoint(world: World, ledger: Ledger) -> None:
    """Killed before its first checkpoint, a session leaves a successor that knows nothing of it, and learns all."""
    world.worker(charge("lost"), {"do": "die"}).dies()
    with ledger.session(world.agent) as later:
        assert [op.op_id for op in later.replay_forward()] == [world.op_id("lost")]


def test_checkpoint_ids_are_not_used_twice(world: World, ledger: Ledger) -> None:
    """An id names one point: registering it again there is fine, elsewhere it is refused and the first stands."""
    with ledger.session(world.agent) as session:
        first = session.checkpoint("c")
        world.charge(session, "effect")
        with pytest.raises(AlreadyExistsError) as caught:
            session.checkpoint("c")
        assert caught.value.field == "checkpoint"
        assert ledger.agent(world.agent).checkpoints["c"].mark == first
        session.checkpoint("c2")
    [one, two] = ledger.checkpoints(world.agent)
    assert (one.checkpoint_id, two.checkpoint_id) == ("c", "c2")
