"""What the Kafka client is told: bounds that a caller may choose, and rules that nobody may."""

from __future__ import annotations

from dataclasses import dataclass

from ..ledger.errors import InvalidArgumentError

RETRY_BACKOFF_MS = 100
_RETRY_JITTER = 0.2

FIRST_RETRY_AFTER_S = RETRY_BACKOFF_MS / 1000 * (1 - _RETRY_JITTER)
"""The client sends nothing a second time earlier than this after the first (its jitter is 20 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Bounds of one producer.

    Logs with equal settings on the same brokers share one client.

    Attributes:
        message_timeout_s: how long a record that the client has taken may be on its way before its outcome is unknown.
        room_timeout_s: how long a publish waits for room in the client's queue.
        socket_timeout_s: how long a broker that hangs stalls what was sent to it.
        metadata_timeout_s: how long opening waits for the brokers.
        close_timeout_s: how long closing waits for what was published.
        refresh_s: how often the brokers are asked about the topics; also how late a changed partition count is noticed.
        max_queued: records in the client's queue; further ones wait.
        max_queued_kib: the same, by size.
        max_waiting: publishes that wait for room; further ones are refused.
        client_options: more settings of the client, for instance of TLS. Those that a promise rests on are refused.
    """

    message_timeout_s: float = 30.0
    room_timeout_s: float = 10.0
    socket_timeout_s: float = 5.0
    metadata_timeout_s: float = 10.0
    close_timeout_s: float = 10.0
    refresh_s: float = 10.0
    max_queued: int = 10_000
    max_queued_kib: int = 65_536
    max_waiting: int = 100_000
    client_options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        taken = sorted(name for name, _ in self.client_options if name in self._own(""))
        if taken:
            raise InvalidArgumentError(
                f"client_options: {', '.join(taken)} cannot be chosen, a promise rests on it.",
                next_step="Leave it out.",
                field="client_options",
            )

    def client_configuration(self, bootstrap: str) -> dict[str, str | int | float | bool]:
        """The client's configuration for these brokers (comma separated)."""
        return {**dict(self.client_options), **self._own(bootstrap)}

    def _own(self, bootstrap: str) -> dict[str, str | int | float | bool]:
        return {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
            "linger.ms": 0,
            "compression.type": "none",
            "message.timeout.ms": int(self.message_timeout_s * 1000),
            "socket.timeout.ms": int(self.socket_timeout_s * 1000),
            "retry.backoff.ms": RETRY_BACKOFF_MS,  # see FIRST_RETRY_AFTER_S
            "topic.metadata.refresh.interval.ms": int(self.refresh_s * 1000),
            "statistics.interval.ms": int(self.refresh_s * 1000),  # they tell a change of the partition count
            "queue.buffering.max.messages": self.max_queued,
            "queue.buffering.max.kbytes": self.max_queued_kib,
            "batch.size": 262_144,  # a larger record goes alone, so a refusal as too large hits no other
            "message.max.bytes": 1_040_000,  # a full record and its frame; under the broker's default for a batch
        }
