"""What the broker must guarantee, and how a topic's settings compare with it: pure (DESIGN section 3.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ledger.ports import Check

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_MS = 24 * 3600 * 1000
REPLICAS = 3
MIN_IN_SYNC = 2
MAX_MESSAGE_BYTES = 2 << 20
"""Whatever the codec can write fits, with its key and the batch around it."""

LAG = "min.compaction.lag.ms"
COMPARED = (
    "cleanup.policy",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    LAG,
    "min.insync.replicas",
    "max.message.bytes",
)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a broker says of a topic.

    Attributes:
        name: of the topic.
        topic_id: changes when it is deleted and made anew.
        partitions: how many.
        replicas: of the partition that has the fewest.
        settings: the effective configuration.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


def wanted_settings(*, development: bool, min_compaction_lag_ms: int) -> dict[str, str]:
    """The configuration to create a topic with."""
    return {
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        LAG: str(min_compaction_lag_ms),
        "min.insync.replicas": "1" if development else str(MIN_IN_SYNC),
        "max.message.bytes": str(MAX_MESSAGE_BYTES),
    }


def setting_checks(facts: TopicFacts, *, development: bool) -> list[Check]:
    """Each setting that a promise rests on, with its value and the wanted one.

    With `development` fewer copies and a shorter lag are warnings; what decides about histories, and whether an outcome
    fits, is refused always.
    """
    weaker = "warn" if development else "refuse"
    found = {name: facts.settings.get(name, "not set") for name in COMPARED}

    def at_least(name: str, minimum: int, severity: str) -> Check:
        value = found[name]
        return Check(f"{facts.name}: {name}", _number(value) >= minimum, value, f"at least {minimum}", severity)

    def exactly(name: str, wanted: str) -> Check:
        return Check(f"{facts.name}: {name}", found[name] == wanted, found[name], f"exactly {wanted}")

    copies = str(facts.replicas)
    return [
        exactly("cleanup.policy", "compact"),
        exactly("message.timestamp.type", "LogAppendTime"),
        exactly("unclean.leader.election.enable", "false"),
        at_least(LAG, DAY_MS, weaker),
        Check(f"{facts.name}: replicas", facts.replicas >= REPLICAS, copies, f"at least {REPLICAS}", weaker),
        at_least("min.insync.replicas", MIN_IN_SYNC, weaker),
        at_least("max.message.bytes", MAX_MESSAGE_BYTES, "refuse"),
    ]


def identity_checks(facts: TopicFacts, recorded: Mapping[str, str], known_id: str = "") -> list[Check]:
    """Whether it is the topic that the ledger began with, with as many partitions.

    Args:
        facts: of the topic.
        recorded: `identity` of it as it was first seen; empty when that is not known.
        known_id: the topic id from elsewhere, or "".
    """
    ids = dict.fromkeys(filter(None, (recorded.get("topic_id", ""), known_id)))
    checks = [Check(f"{facts.name}: topic id", facts.topic_id == wanted, facts.topic_id, wanted) for wanted in ids]
    if count := recorded.get("partitions"):
        same = str(facts.partitions) == count
        checks.append(Check(f"{facts.name}: partitions", same, str(facts.partitions), f"exactly {count}"))
    return checks


def _number(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        return -1
