"""Which checkpoint a restored state is of, by the watermark token that it holds. Pure.

Judged as the guard judges what it is handed as `restored`. First that holds:

    it has no token of this agent, and a damaged one    WATERMARK_UNREADABLE
    it has none of this agent, and others' tokens       WATERMARK_OF_ANOTHER_LEDGER
    it has none                                         no reason: which state it is rests on the caller's word
    its newest is not where the checkpoint stands       WATERMARK_MISMATCH

Others' tokens beside the agent's own say nothing: a state may hold its helpers' states. The guard, which is asked
before something is thrown away, refuses those too where they are newer, and a state without a token.

The token of a summary is judged by `summary_tokens.py`. A state that holds the summary too must hold its
checkpoint's token beside the summary's: an older state may hold the same summary.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import WatermarkMangledError
from .lineage import ROOT, Agent
from .verdicts import Reason, ReasonKind
from .watermarks import Point, Watermark


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a restored state is not the checkpoint's.

    Attributes:
        known: up to where the state is known to reach; ROOT if nothing says so, and all must be learned.
    """

    reason: Reason
    known: Point


def state_flaw(state: str, agent: Agent, ledger_id: str, mark: Watermark | None) -> Flaw | None:
    """Why the state is not shown to be the checkpoint's; None if it is, or if it holds no token.

    Args:
        mark: the checkpoint's; None if it is unreadable, which is told elsewhere.
    """
    try:
        newest = Watermark.find(state, agent_id=agent.agent_id, ledger_id=ledger_id)
    except WatermarkMangledError:
        return _flaw(ReasonKind.WATERMARK_UNREADABLE, "holds a damaged watermark token", mark)
    if newest is None:
        return _foreign(state, mark)
    if mark is None or newest.point == mark.point:
        return None
    what = (
        f"carries the watermark {newest.epoch}/{newest.seq}, the checkpoint was registered at {mark.epoch}/{mark.seq}: "
        "they did not move together"
    )
    known = newest.point if agent.by_epoch(newest.epoch) else ROOT
    return _flaw(ReasonKind.WATERMARK_MISMATCH, what, mark, known)


def _foreign(state: str, mark: Watermark | None) -> Flaw | None:
    if not (found := Watermark.find_all(state)):
        return None
    other = found[-1]
    what = f"carries only tokens of others, among them agent {other.agent_id} of ledger {other.ledger_id}"
    return _flaw(ReasonKind.WATERMARK_OF_ANOTHER_LEDGER, what, mark)


def _flaw(kind: ReasonKind, what: str, mark: Watermark | None, known: Point = ROOT) -> Flaw:
    wanted = f": restore the state that holds {mark.token}, or learn what is told here first" if mark else ""
    return Flaw(Reason(kind, f"the restored state {what}{wanted}"), known)
