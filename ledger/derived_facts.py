"""Facts that the projector adds, and what it reads out of a history: pure, and the same bytes whoever does it."""

from __future__ import annotations

from . import losers
from .facts import EffectFact, EffectKind, decode_effect, encode_effect
from .history import History, merge
from .losers import Number


def numbers_in(facts: History) -> set[Number]:
    """The numbers of an operation's facts, those in its summary included."""
    found: set[Number] = set()
    for _, data in facts:
        if losers.is_summary(data):
            found |= losers.numbers(data)
        elif (fact := decode_effect(data)).seq > 0:
            found.add(losers.number_of(fact))
    return found


def agree(left: History, right: History) -> bool:
    """Whether two histories say the same, one of them perhaps with some of it in a summary."""
    summaries = [[item for item in facts if losers.is_summary(item.fact)] for facts in (left, right)]
    known = [numbers_in(facts) for facts in (left, right)]
    told = [{n for item in some for n in losers.numbers(item.fact)} for some in summaries]
    if not (told[0] <= known[1] and told[1] <= known[0]):
        return False
    return merge(left, summaries[1]) == merge(right, summaries[0])


def agents_in(data: bytes) -> set[str]:
    """The agents that wrote an effect fact, or the facts that a summary stands for."""
    if losers.is_summary(data):
        return {number.agent_id for number in losers.numbers(data)}
    agent_id = decode_effect(data).agent_id
    return {agent_id} if agent_id else set()


def highest_fence(facts: History) -> History:
    """Of a fence's history only the fact with the highest epoch (the earliest such)."""
    if not facts:
        return ()
    best = max(facts, key=lambda item: (decode_effect(item.fact).epoch, [-p for p in item.position]))
    return (best,)


def rejection(intent: EffectFact) -> bytes:
    """The verdict on a fenced intent: the same bytes whoever writes it, whenever."""
    return encode_effect(
        EffectFact(
            kind=EffectKind.REJECTED,
            op_id=intent.op_id,
            attempt_id=intent.attempt_id,
            agent_id=intent.agent_id,
            branch_id=intent.branch_id,
            session_id=intent.session_id,
            epoch=intent.epoch,
            round=intent.round,
            reason="a fence of its branch stands before it",
        )
    )
