"""A partition's header as a Redis hash: every number stays a string of digits, since Lua's numbers are doubles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.ports import Header

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NUMBERS = (
    "generation",
    "applied_offset",
    "settled_offset",
    "settled_time_ms",
    "judge_from",
    "horizon",
    "seen_ms",
)
_LEADER_EPOCH = "leader_epoch"
_NUMBER_FIELDS = tuple((name, name.encode()) for name in _NUMBERS)
_ALWAYS = frozenset(name.encode() for name in ("incarnation", "opened", "halted", "counted", _LEADER_EPOCH, *_NUMBERS))
NO_LEADER_EPOCH = -1


def pairs(words: Sequence[bytes]) -> dict[str, bytes]:
    """The fields and values of a flat reply."""
    return {words[i].decode(): words[i + 1] for i in range(0, len(words), 2)}


def header_of(words: Sequence[bytes], time: Sequence[bytes] = ()) -> Header:
    """The header in a flat reply; of a projection that is not there or is damaged, one that is not opened.

    That of a damaged one has no incarnation, as if it were lost, and says in `halted` what is amiss.

    Args:
        words: field, value, …; empty when there is no projection.
        time: the store's clock as TIME gives it: seconds and microseconds.
    """
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000 if time else 0
    if not words:
        return Header(now_ms=now_ms)
    stored = dict(zip(words[::2], words[1::2], strict=True))
    if damage := _damage(stored):
        why = f"its copy in Redis is damaged ({damage}); a running projector builds it anew"
        return Header(now_ms=now_ms, halted=why)
    return Header(
        incarnation=stored[b"incarnation"].decode(),
        opened=stored[b"opened"] == b"1",
        halted=stored[b"halted"].decode(),
        now_ms=now_ms,
        **{name: int(stored[field]) for name, field in _NUMBER_FIELDS},
    )


def _damage(stored: Mapping[bytes, bytes]) -> str:
    """What a script found to be lost, or which fields are missing here; "" when nothing is."""
    if b"damaged" in stored:
        return stored[b"damaged"].decode()
    if stored.keys() >= _ALWAYS:
        return ""
    return f"its header has no {', '.join(sorted(field.decode() for field in _ALWAYS - stored.keys()))}"


def leader_epoch_of(words: Sequence[bytes]) -> int:
    """The leader epoch of the record before the applied offset; -1 when none is known."""
    return int(pairs(words).get(_LEADER_EPOCH, NO_LEADER_EPOCH))


def words_of(header: Header, leader_epoch: int) -> list[str]:
    """What to write of a header; `seen_ms` and `counted` are left to the scripts."""
    fields: Mapping[str, object] = {
        "incarnation": header.incarnation,
        "opened": int(header.opened),
        "halted": header.halted,
        _LEADER_EPOCH: leader_epoch,
        **{name: getattr(header, name) for name in _NUMBERS if name != "seen_ms"},
    }
    return [word for name, value in fields.items() for word in (name, str(value))]
