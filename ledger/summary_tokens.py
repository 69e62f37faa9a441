"""Which compaction a restored summary is of, by the watermark token that it carries. Pure.

A compaction records the token that its summary holds, so a summary says by itself which one it is of. It
is of the checkpoint's generation only if the newest token of this agent in it is not older than that
compaction's, and is known to the checkpoint. First that holds:

    its only token is damaged            WATERMARK_UNREADABLE
    it has only tokens of others         SUMMARY_FOREIGN
    it has none                          SUMMARY_WITHOUT_TOKEN
    older than the compaction's token    SUMMARY_OLDER
    not known to the checkpoint, and that of another compaction that counts: SUMMARY_NEWER if its generation
    is a later one, else SUMMARY_OF_ANOTHER_GENERATION; the mismatch itself is told by `resumption.py`

Two compactions between which nothing was written may carry one token: those are told apart by the digests
of their summaries only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .contexts import Compaction
from .errors import WatermarkMangledError
from .positions import Position
from .verdicts import Reason, ReasonKind
from .watermarks import Watermark


def token_reason(
    summary: str, compaction: Compaction, every: Iterable[Compaction], path: Mapping[Position, int]
) -> Reason | None:
    """Why the summary is not shown to be this compaction's; None if it is.

    Args:
        compaction: the checkpoint's: the newest one on its path.
        every: the agent's compactions that count, oldest first.
        path: what the checkpoint knows: epoch → highest sequence number.
    """
    wanted = compaction.mark
    if wanted is None:  # nothing to compare with
        return None
    try:
        newest = Watermark.find(summary, agent_id=wanted.agent_id, ledger_id=wanted.ledger_id)
    except WatermarkMangledError:
        return _told(ReasonKind.WATERMARK_UNREADABLE, "the restored summary holds a damaged watermark token", wanted)
    if newest is None:
        return _without(summary, wanted)
    known = newest.seq <= path.get(newest.epoch, -1)
    if known and wanted.point <= newest.point:
        return None
    others = [c for c in every if c is not compaction and c.mark is not None and c.mark.point == newest.point]
    return _another(newest, compaction, wanted, others[-1] if others else None, known=known)


def _another(
    found: Watermark, compaction: Compaction, wanted: Watermark, other: Compaction | None, *, known: bool
) -> Reason | None:
    """The token is older than the compaction's, or the checkpoint does not know it; `other` is whose it is."""
    here = f"the restored summary carries the watermark {found.epoch}/{found.seq}"
    whose = f", that of generation {other.generation} of branch {other.branch_id}" if other else ""
    if known:
        text = f"{here}{whose}, which is older than that of generation {compaction.generation}"
        return _told(ReasonKind.SUMMARY_OLDER, text, wanted)
    if other is None:
        return None
    later = other.generation > compaction.generation
    kind = ReasonKind.SUMMARY_NEWER if later else ReasonKind.SUMMARY_OF_ANOTHER_GENERATION
    return _told(kind, f"{here}{whose}, not that of generation {compaction.generation}", wanted)


def _without(summary: str, wanted: Watermark) -> Reason:
    if found := Watermark.find_all(summary):
        other = found[-1]
        what = f"only tokens of others, among them agent {other.agent_id} of ledger {other.ledger_id}"
        return _told(ReasonKind.SUMMARY_FOREIGN, f"the restored summary carries {what}", wanted)
    text = "the restored summary carries no watermark token, so nothing shows which compaction it is of"
    return _told(ReasonKind.SUMMARY_WITHOUT_TOKEN, text, wanted)


def _told(kind: ReasonKind, text: str, wanted: Watermark) -> Reason:
    return Reason(kind, f"{text}: restore the summary that holds {wanted.token}, or learn what is told here first")
