"""Clients of the projection store: the only module that makes them, and translates their errors.

A client repeats a call once or twice by itself; so every script gives the same answer to the same call (`scripts.py`).
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from ..ledger import client_properties
from ..ledger.errors import GuaranteeError, StoreUnavailableError
from ..ledger.ports import Check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio.connection import AbstractConnection

    from .scripts import Call

AsyncClient = redis.asyncio.Redis | redis.asyncio.cluster.RedisCluster
SyncClient = redis.Redis | RedisCluster

OLDEST = (6, 2)
"""The oldest Redis that is supported."""
_CLUSTER = "redis+cluster://"
_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 2.0
_RETRIES = 2
_BACKOFF = ExponentialBackoff(cap=0.25, base=0.02)


def is_cluster(url: str) -> bool:
    """Whether the URL names a Redis Cluster."""
    return url.startswith(_CLUSTER)


def _options(url: str) -> tuple[str, dict[str, Any]]:
    url = client_properties.expanded(url, in_url=True)
    plain = f"redis://{url.removeprefix(_CLUSTER)}" if is_cluster(url) else url
    return plain, {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _CONNECT_TIMEOUT_S}


def connect(url: str) -> SyncClient:
    """A synchronous client, for the projector; connects at the first call."""
    plain, options = _options(url)
    retry = Retry(_BACKOFF, 1)  # the projector has a loop of its own; one repeat mends a connection that went stale
    with translated(url):
        if is_cluster(url):
            return RedisCluster.from_url(plain, retry=retry, **options)
        return redis.Redis.from_url(plain, retry=retry, **options)


def connect_async(url: str) -> AsyncClient:
    """An asyncio client, for readers; connects at the first call."""
    if is_cluster(url):
        return connect_cluster(url)
    plain, options = _options(url)
    return redis.asyncio.Redis.from_url(plain, retry=AsyncRetry(_BACKOFF, _RETRIES), **options)


def connect_cluster(url: str) -> redis.asyncio.cluster.RedisCluster:
    """An asyncio client of a cluster; connects at the first call."""
    plain, options = _options(url)
    return redis.asyncio.cluster.RedisCluster.from_url(plain, retry=AsyncRetry(_BACKOFF, _RETRIES), **options)


async def connected(url: str, host: str = "", port: int = 0) -> AbstractConnection:
    """A connection after its handshake, for one user, that announces what it has subscribed to beside its answers.

    Args:
        url: of the store.
        host: any node of a cluster: a message is announced on all.
        port: of that node.

    Raises RedisError, OSError.
    """
    plain, options = _options(url)
    options |= {"protocol": 3, "retry": AsyncRetry(_BACKOFF, 0)}
    options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    if host:
        options |= {"host": host, "port": port}
    pool: Any = ConnectionPool.from_url(plain, **options)  # only it reads the URL; its own type says nothing
    connection: Any = pool.make_connection()
    await connection.connect()
    made: AbstractConnection = connection
    return made


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn every error of the client into StoreUnavailableError."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise unavailable(url, error) from error


def unavailable(url: str, error: Exception) -> StoreUnavailableError:
    """The error to raise for a client's error; names the host and no password."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or 6379}"
    return StoreUnavailableError(
        f"The projection store at {where} does not answer as it should: {type(error).__name__}: {error}.",
        next_step="Check that Redis runs and can be reached, then try again; nothing is lost.",
        store=where,
    )


def execute(client: SyncClient, call: Call) -> Any:
    """Run a script; load it first where the server does not have it."""
    words = (*call.keys, *call.args)
    try:
        return client.evalsha(call.script.sha, len(call.keys), *words)
    except NoScriptError:
        return client.eval(call.script.text, len(call.keys), *words)


def eviction_checks(memory: dict[str, Any]) -> list[Check]:
    """Whether a Redis could drop a part of the projection silently.

    Args:
        memory: the answer to INFO MEMORY; by node for a cluster.
    """
    if "maxmemory_policy" not in memory:
        return [check for node in memory.values() for check in eviction_checks(node)]
    limited = int(memory.get("maxmemory", 0)) > 0
    policy = str(memory["maxmemory_policy"])
    found = policy if limited else f"{policy} (no maxmemory: nothing is evicted)"
    return [Check("Redis maxmemory-policy", policy == "noeviction" or not limited, found, "noeviction")]


def version_checks(server: dict[str, Any]) -> list[Check]:
    """Whether a Redis knows the commands that the scripts use.

    Args:
        server: the answer to INFO SERVER; by node for a cluster.

    Source: HRANDFIELD is there from Redis 6.2 on.
    """
    if "redis_version" not in server:
        return [check for node in server.values() for check in version_checks(node)]
    found = str(server["redis_version"])
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    return [Check("Redis version", numbers >= OLDEST, found, f"at least {'.'.join(map(str, OLDEST))}")]


def refuse_eviction(memory: dict[str, Any]) -> None:
    """Raise GuaranteeError when `eviction_checks` finds one that fails."""
    failed = [check for check in eviction_checks(memory) if not check.ok]
    if failed:
        raise GuaranteeError(
            f"Redis evicts keys (maxmemory-policy is {failed[0].found}); a lost part of the projection would look like "
            "operations that never were.",
            next_step="Set maxmemory-policy to noeviction.",
            checks=failed,
        )
