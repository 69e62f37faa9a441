"""The record that marks where the log ends when a projection is begun.

The end of a log cannot be asked for safely: a deposed leader answers with an old one. A record that all in-sync replicas
acknowledged stands behind everything that was acknowledged before it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger import log_keys
from ..ledger.facts import AgentFact, AgentKind, EffectFact, EffectKind, encode_agent, encode_effect
from ..ledger.history import Record
from ..ledger.positions import Topic

if TYPE_CHECKING:
    from ..ledger.positions import Partition
    from .entries import PartitionOf


def marker(partition: Partition, partition_of: PartitionOf) -> Record:
    """A marker for this partition, under the key that the partitioner puts there."""
    if partition.topic is Topic.EFFECTS:
        fact = encode_effect(EffectFact(kind=EffectKind.HORIZON))
    else:
        fact = encode_agent(AgentFact(kind=AgentKind.HORIZON))
    return Record(log_keys.horizon(partition.number, partition_of), (), fact, "projector")


class Delivery:
    """What became of one published marker."""

    def __init__(self) -> None:
        self.reported = False
        self.offset: int | None = None
        self.error = ""

    def report(self, offset: int | None, error: str) -> None:
        """Take the delivery report."""
        self.reported, self.offset, self.error = True, offset, error
