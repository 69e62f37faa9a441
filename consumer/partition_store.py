"""A projector's hold on one partition's projection in Redis: claimed, proved with every call, lost without harm."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from . import scripts
from .redis_client import execute, translated
from .scripts import Answer, Claimed, Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..ledger.ports import DocumentKey, Header, Step
    from .keys import PartitionKeys
    from .redis_client import SyncClient
    from .scripts import Call, Reply

_PAGE = 500


class MovedError(Exception):
    """The projection in Redis is not where its owner left it. Never leaves the projector.

    Args:
        answer: which check failed and what was found.
        epoch: the owner's.
    """

    def __init__(self, answer: Answer, epoch: str) -> None:
        super().__init__(f"{answer.outcome}: found {answer.found!r}")
        self.answer = answer
        self.epoch = epoch

    @property
    def superseded(self) -> bool:
        """Whether a later claim exists; a lower number means that the store itself went back in time."""
        if self.answer.outcome != "epoch":
            return False
        return scripts.epoch_number(self.answer.found) >= scripts.epoch_number(self.epoch)


class PartitionStore:
    """One partition's projection as its owner sees it. Every method raises StoreUnavailableError."""

    def __init__(self, client: SyncClient, url: str, keys: PartitionKeys) -> None:
        self._client = client
        self._url = url
        self._keys = keys
        self._epoch = ""
        self._header: Header | None = None

    def claim(self) -> Claimed:
        """Take the partition; what earlier owners still try is refused from now on. A damaged projection is as good as lost."""
        claimed = Claimed.of(self._run(scripts.claim(self._keys, secrets.token_hex(8))))
        self._epoch = claimed.epoch
        self._header = claimed.header
        return claimed

    def drop(self) -> None:
        """Delete the header: from now on nobody believes the documents. Raises MovedError."""
        self._prove(scripts.clear(self._keys, self._epoch, ()))

    def begin(self, header: Header) -> None:
        """Delete what is left of the former projection, some collections a call, and begin a new one.

        Raises MovedError.
        """
        self.drop()
        while names := self._some_collections():
            self._prove(scripts.clear(self._keys, self._epoch, names))
        self._prove(scripts.begin(self._keys, self._epoch, header))
        self._header = header

    def apply(self, step: Step, leader_epoch: int) -> None:
        """Write a step, all or nothing. Raises MovedError."""
        self._prove(scripts.apply(self._keys, self._owner(), step, leader_epoch))
        self._header = step.header

    def heartbeat(self, *, touch: bool, halted: str = "") -> None:
        """Look whether everything is as it was left, and say so (touch) or why it stopped. Raises MovedError."""
        self._prove(scripts.heartbeat(self._keys, self._owner(), touch=touch, halted=halted))

    def documents(self, wanted: Iterable[DocumentKey]) -> dict[DocumentKey, bytes | None]:
        """The documents, None for those that do not exist. Raises MovedError when they are another projection's."""
        call, order = scripts.read(self._keys, wanted)
        snapshot = scripts.read_snapshot(self._run(call), order)
        self._expect(snapshot.header)
        return {key: snapshot.documents.get(key) for key in order}

    def collection(self, name: str) -> Iterator[dict[DocumentKey, bytes]]:
        """A collection in pages; nobody else changes it while the partition is held. Raises MovedError."""
        cursor = ""
        while True:
            reply = self._run(scripts.page(self._keys, name, cursor=cursor, count=_PAGE))
            snapshot, cursor = scripts.page_snapshot(reply, name)
            self._expect(snapshot.header)
            yield dict(snapshot.documents)
            if not cursor:
                return

    def _owner(self) -> Owner:
        header = self._header
        if header is None:
            raise RuntimeError("The partition was not claimed. Claim it before anything else is done with it.")
        return Owner(self._epoch, header.incarnation, header.applied_offset)

    def _expect(self, found: Header) -> None:
        """What was read must be what this owner wrote last; else it would fold on from somebody else's state."""
        owner = self._owner()
        if found.incarnation != owner.incarnation:
            outcome = "incarnation" if found.incarnation else "damaged" if found.halted else "lost"
            raise MovedError(Answer(outcome, found.incarnation or found.halted), self._epoch)
        if found.applied_offset != owner.applied_offset:
            raise MovedError(Answer("offset", str(found.applied_offset)), self._epoch)

    def _prove(self, call: Call) -> None:
        answer = Answer.of(self._run(call))
        if not answer.done:
            raise MovedError(answer, self._epoch)

    def _some_collections(self) -> list[str]:
        """Either of the two that name them may be lost."""
        with translated(self._url):
            found: Reply = self._client.srandmember(self._keys.collections, _PAGE)
            found = found or self._client.hrandfield(self._keys.counts, _PAGE)
        return [name.decode() for name in found or ()]

    def _run(self, call: Call) -> Reply:
        with translated(self._url):
            return execute(self._client, call)
