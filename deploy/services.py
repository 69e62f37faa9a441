"""Where Kafka and Redis come from: the one rule for local use and tests, and the servers themselves.

The first that holds: an address or a source that is named, a local start, Docker, else nothing, with all the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .kafka_cluster import KafkaCluster
from .kafka_jars import install_jars, kafka_version, local_kafka_problem
from .processes import ServiceError
from .redis_server import RedisServer, redis_problem

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Choice",
    "KafkaCluster",
    "RedisServer",
    "ServiceError",
    "choose",
    "install_jars",
    "kafka_version",
    "local_kafka_problem",
    "redis_problem",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a service comes from.

    Attributes:
        source: "external" (somebody runs it), "local" (started here), "docker", or "none".
        detail: the address of an external one, the reasons for "none", else empty.
    """

    source: Literal["external", "local", "docker", "none"]
    detail: str = ""

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.source} ({self.detail})" if self.detail else self.source


def choose(
    wanted: str | None, *, local_problem: Callable[[], str | None], docker_problem: Callable[[], str | None]
) -> Choice:
    """Return where a service comes from.

    Args:
        wanted: an address, "local", "docker", or nothing to take the first that works. What is named is never replaced.
        local_problem: why it cannot be started here, or None.
        docker_problem: why Docker cannot be used, or None. Asked only when it matters.
    """
    if wanted and wanted not in {"local", "docker"}:
        return Choice("external", wanted)
    reasons = []
    if wanted != "docker":
        if (problem := local_problem()) is None:
            return Choice("local")
        reasons.append(problem)
    if wanted != "local":
        if (problem := docker_problem()) is None:
            return Choice("docker")
        reasons.append(problem)
    return Choice("none", "; ".join(reasons))
