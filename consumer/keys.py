"""Names of the projection's Redis keys.

All keys of one partition share a hash tag, so that a cluster keeps them together and one script can change them
atomically. Presence and the ledger's meta hash stand alone: nothing is decided from them together with a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..ledger.projection import LAYOUT

if TYPE_CHECKING:
    from ..ledger.positions import Partition
    from ..ledger.urls import StoreUrl


class PartitionKeys(NamedTuple):
    """The keys of one partition's projection.

    Attributes:
        prefix: of the ledger.
        partition: whose projection it is.
        generation: the log generation; a ledger that moved to other topics has another projection.
    """

    prefix: str
    partition: Partition
    generation: int = 0

    @property
    def tag(self) -> str:
        """What every key of the partition starts with: its hash tag."""
        moved = f".g{self.generation}" if self.generation else ""
        return f"{{{self.prefix}.{self.partition.topic.value}{moved}.l{LAYOUT}.{self.partition.number}}}"

    @property
    def header(self) -> str:
        """A hash: what the projection says of itself; written together with the documents."""
        return f"{self.tag}:header"

    @property
    def epoch(self) -> str:
        """A string: which projector owns the partition. Outlives the projection."""
        return f"{self.tag}:epoch"

    @property
    def collections(self) -> str:
        """A set: the names of all collections that were ever written."""
        return f"{self.tag}:collections"

    @property
    def counts(self) -> str:
        """A hash: how many documents each collection has; written together with them."""
        return f"{self.tag}:counts"

    @property
    def accepted(self) -> str:
        """A string: below this offset an operator accepted gaps. Outlives the projection."""
        return f"{self.tag}:accepted"

    @property
    def channel(self) -> str:
        """Where each change of the header is announced (`announcing.py`)."""
        return f"{self.tag}:applied"

    @property
    def documents(self) -> str:
        """What the key of every collection begins with."""
        return f"{self.tag}:doc:"

    def collection(self, name: str) -> str:
        """A hash: the documents of one collection by their keys."""
        return f"{self.documents}{name}"


def beat(prefix: str, session_id: str) -> str:
    """The presence of one session; expires."""
    return f"{prefix}:beat:{session_id}"


def meta(url: StoreUrl) -> str:
    """A hash: which topics this projection was begun with."""
    moved = f":g{url.generation}" if url.generation else ""
    return f"{url.prefix}:meta{moved}"


def partition_keys(url: StoreUrl, partition: Partition) -> PartitionKeys:
    """The keys of one partition of a ledger."""
    return PartitionKeys(url.prefix, partition, url.generation)
