"""The calls to the projection's Lua scripts: their keys and arguments in order, and what they answer.

Every script touches the keys of one partition only, gets them as KEYS, and may be repeated by a client that lost the
reply: the second run changes nothing that the first has not. Where the names of the collections stand in Redis alone
(`claim`, `heartbeat`), the script gets what their keys begin with: they share the hash tag, and so the slot.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..ledger.ports import DocumentKey, Header, Snapshot
from . import announcing
from .headers import header_of, leader_epoch_of, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..ledger.ports import Step
    from .keys import PartitionKeys

Reply = Any
"""A client's reply: nested lists of bytes, in the shape that the script's own comment gives."""

_Value = TypeVar("_Value")
_SHARED = {
    "apply": ("whole", "check"),
    "begin": ("check",),
    "claim": ("whole",),
    "heartbeat": ("whole", "check"),
    "page": ("whole",),
    "read": ("whole",),
    "scan": ("whole",),
}


class Script(NamedTuple):
    """A script's text and the digest by which a server that has seen it runs it."""

    text: str
    sha: str


class Call(NamedTuple):
    """One call of a script."""

    script: Script
    keys: Sequence[str]
    args: Sequence[str | bytes]


class Owner(NamedTuple):
    """What an owner proves with every call: its epoch, and the projection and position that it left."""

    epoch: str
    incarnation: str
    applied_offset: int

    def words(self) -> list[str]:
        """As the scripts take it."""
        return [self.epoch, self.incarnation, str(self.applied_offset)]


class Answer(NamedTuple):
    """What a script of an owner answered.

    Attributes:
        outcome: "ok", "already" (a repeat; as good), or what failed: "lost" (the projection or the epoch is gone),
            "damaged" (a part of it is gone), "epoch" (another owner), "incarnation" (another projection), "offset" (another position), "dirty".
        found: what was found instead.
    """

    outcome: str
    found: str

    @property
    def done(self) -> bool:
        """Whether the call took effect, now or in an earlier run."""
        return self.outcome in {"ok", "already"}

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        """The answer in a reply."""
        return cls(reply[0].decode(), reply[1].decode())


class Claimed(NamedTuple):
    """What a claim found: the new epoch, the header, and gaps accepted below.

    Without a projection the header's incarnation is "", and so for a damaged one, whose `halted` says what is lost.
    """

    epoch: str
    header: Header
    leader_epoch: int
    accepted: int

    @classmethod
    def of(cls, reply: Reply) -> Claimed:
        """The claim in a reply."""
        epoch, words, accepted = reply
        return cls(epoch.decode(), header_of(words), leader_epoch_of(words), int(accepted or b"0"))


@cache
def script(name: str) -> Script:
    """The script in `<name>.lua`."""
    folder = Path(__file__).parent
    text = "".join((folder / f"{part}.lua").read_text() for part in (*_SHARED.get(name, ()), name))
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def epoch_number(epoch: str) -> int:
    """The part of an epoch that grows with every claim; 0 when there is none."""
    return int(epoch.partition(":")[0] or 0)


# -- the owner's calls ---------------------------------------------------------------------


def claim(keys: PartitionKeys, token: str) -> Call:
    """Take the partition. `token` must be new for each claim."""
    return Call(script("claim"), (keys.epoch, keys.header, keys.accepted, keys.counts, keys.documents), (token,))


def apply(keys: PartitionKeys, owner: Owner, step: Step, leader_epoch: int) -> Call:
    """Write a step, all or nothing, if everything is as the owner left it."""
    header = words_of(step.header, leader_epoch)
    args: list[str | bytes] = [*owner.words(), str(step.header.applied_offset), keys.channel, str(len(header)), *header]
    hashes = []
    for name, writes in _by_collection(step.writes).items():
        sets: list[str | bytes] = [w for key, value in writes.items() if value is not None for w in (key, value)]
        deletes = [key for key, value in writes.items() if value is None]
        hashes.append(keys.collection(name))
        args += [name, str(len(sets)), *sets, str(len(deletes)), *deletes]
    args.append(announcing.told(step))
    return Call(script("apply"), (keys.header, keys.epoch, keys.collections, keys.counts, *hashes), args)


def heartbeat(keys: PartitionKeys, owner: Owner, *, touch: bool, halted: str = "") -> Call:
    """Look whether all is as the owner left it; say that it has caught up, or why it stopped."""
    args = (*owner.words(), "1" if touch else "0", keys.channel, halted)
    return Call(script("heartbeat"), (keys.header, keys.epoch, keys.counts, keys.documents), args)


def clear(keys: PartitionKeys, epoch: str, names: Sequence[str]) -> Call:
    """Delete the header and these collections."""
    hashes = [keys.collection(name) for name in names]
    return Call(script("clear"), (keys.header, keys.epoch, keys.collections, keys.counts, *hashes), (epoch, *names))


def begin(keys: PartitionKeys, epoch: str, header: Header) -> Call:
    """Write the first header of a new incarnation; everything older must have been cleared."""
    args = (epoch, header.incarnation, keys.channel, *words_of(header, -1))
    return Call(script("begin"), (keys.header, keys.epoch, keys.collections, keys.counts), args)


def drop(keys: PartitionKeys, *, accept_below: int | None) -> Call:
    """Drop the projection, as an operator does; None leaves what gaps are accepted as it is."""
    accepted = "" if accept_below is None else str(accept_below)
    return Call(script("drop"), (keys.header, keys.accepted), (keys.channel, accepted))


# -- everybody's calls ---------------------------------------------------------------------


def read(keys: PartitionKeys, wanted: Iterable[DocumentKey]) -> tuple[Call, list[DocumentKey]]:
    """Read documents; the call and the order in which the documents come."""
    groups = _by_collection(dict.fromkeys(wanted, None))
    args: list[str | bytes] = []
    for name, fields in groups.items():
        args += [name, str(len(fields)), *fields]
    hashes = [keys.collection(name) for name in groups]
    order = [DocumentKey(name, key) for name, fields in groups.items() for key in fields]
    return Call(script("read"), (keys.header, keys.counts, *hashes), args), order


def read_snapshot(reply: Reply, order: Sequence[DocumentKey]) -> Snapshot:
    """The snapshot in a reply to `read`: the documents that exist; none when there is no projection to believe."""
    values = [value for group in reply[2:] for value in group]
    found = {key: value for key, value in zip(order, values, strict=True) if value is not None}
    return _snapshot(reply, found)


def scan(keys: PartitionKeys, collections: Sequence[str]) -> Call:
    """Read whole collections."""
    hashes = (keys.collection(collection) for collection in collections)
    return Call(script("scan"), (keys.header, keys.counts, *hashes), collections)


def scan_snapshot(reply: Reply, collections: Sequence[str]) -> Snapshot:
    """The snapshot in a reply to `scan`."""
    found: dict[DocumentKey, bytes] = {}
    for collection, words in zip(collections, reply[2:], strict=True):
        found |= _documents(collection, words)
    return _snapshot(reply, found)


def page(keys: PartitionKeys, collection: str, *, cursor: str, count: int) -> Call:
    """Read a page of a collection; "" is the first cursor."""
    hashes = (keys.header, keys.counts, keys.collection(collection))
    return Call(script("page"), hashes, (collection, cursor or "0", str(count)))


def page_snapshot(reply: Reply, collection: str) -> tuple[Snapshot, str]:
    """The snapshot in a reply to `page`, and the next cursor, "" at the end."""
    cursor, words = reply[2]
    following: str = cursor.decode()
    snapshot = _snapshot(reply, _documents(collection, words))
    return snapshot, "" if following == "0" else following


def _snapshot(reply: Reply, documents: Mapping[DocumentKey, bytes]) -> Snapshot:
    header = header_of(reply[0], reply[1])
    return Snapshot(header, documents if header.incarnation else {})


def _documents(collection: str, words: Sequence[bytes]) -> dict[DocumentKey, bytes]:
    return {DocumentKey(collection, words[i].decode()): words[i + 1] for i in range(0, len(words), 2)}


def _by_collection(documents: Mapping[DocumentKey, _Value]) -> dict[str, dict[str, _Value]]:
    groups: dict[str, dict[str, _Value]] = {}
    for (name, key), value in documents.items():
        groups.setdefault(name, {})[key] = value
    return groups
