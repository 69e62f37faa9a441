"""From a message of the log to a log entry: the one place where bytes become records.

Used by the projector and by the log reader, so both see the same log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..ledger import history, log_keys
from ..ledger.positions import Partition, Topic
from ..schemas import DecodeError

if TYPE_CHECKING:
    from ..ledger.history import LogEntry
    from ..schemas import Codec

PartitionOf = Callable[[str], int]
"""The one partitioner of a topic, for keys as text."""
_REGISTRY_MARKER = b"\x00"
_LEDGER_PARTITION = 0


class RawMessage(NamedTuple):
    """A message as the log gave it."""

    partition: Partition
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


def entry_from_message(raw: RawMessage, partition_of: PartitionOf, codec: Codec | None = None) -> LogEntry:
    """The log entry in `raw`; what is wrong with it is part of the answer.

    Args:
        raw: the message.
        partition_of: the one partitioner, for text, with the topic's count of partitions.
        codec: reads values in a schema registry's wire format; None when no registry is configured.

    Raises:
        RegistryUnavailableError: the registry could not be asked; the bytes may be good, try again.
    """
    entry = _decoded(raw, codec)
    if entry.key is None:
        return entry
    wanted = expected_partition(raw.partition.topic, entry.key, partition_of)
    if wanted in {None, raw.partition.number}:
        return entry
    problem = f"the key belongs to partition {wanted}: its writer used another partitioner or partition count"
    return replace(entry, record=None, stray=True, problem="; ".join(filter(None, (entry.problem, problem))))


def expected_partition(topic: Topic, key: str, partition_of: PartitionOf) -> int | None:
    """The partition in which `key` must stand; None for a key of an unknown form."""
    if topic is Topic.EFFECTS or log_keys.is_horizon(key):
        return partition_of(key)
    if key == log_keys.LEDGER:
        return _LEDGER_PARTITION
    owner = log_keys.agent_of(key)
    return partition_of(owner[1]) if owner else None


def _decoded(raw: RawMessage, codec: Codec | None) -> LogEntry:
    framed = codec is not None and raw.value is not None and raw.value[:1] == _REGISTRY_MARKER
    value = b"" if framed else raw.value
    entry = history.read_entry(raw.partition, raw.offset, raw.time_ms, key=raw.key, value=value)
    if codec is None or raw.value is None or not framed or entry.key is None:
        return entry
    try:
        record = history.from_values(codec.decode_record(raw.value))
    except DecodeError as error:
        return replace(entry, problem=f"undecodable: {error}")
    if record.key != entry.key:
        return replace(entry, problem=f"the record names another key ({record.key!r}) than the log key")
    return replace(entry, record=record, problem="")
