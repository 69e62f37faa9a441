"""The same on Redis Cluster: every script keeps to one slot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import redis
from projection_kit import committed, drop, effect, make_rig, projector

from fencepost.consumer.reader import open_projection
from fencepost.consumer.topics import open_admin
from fencepost.deploy.processes import free_ports, wait_until
from fencepost.ledger.facts import EffectKind
from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Topic
from fencepost.ledger.projection import OPS

if TYPE_CHECKING:
    from services import StartRedis


@pytest.fixture
def cluster(private_redis: StartRedis) -> str:
    server = private_redis(cluster_enabled="yes", cluster_port=str(free_ports(1)[0]))
    assert server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == "+OK"

    def ready() -> bool:
        with redis.Redis.from_url(server.url) as client:
            return bool(client.cluster("INFO")["cluster_state"] == "ok")

    assert wait_until(ready, 20)
    return f"redis+cluster://127.0.0.1:{server.port}"


def test_everything_on_a_cluster(kafka_bootstrap: str, cluster: str) -> None:
    """Projecting, waiting, reading, beating, rebuilding, finding damage and checking work on a cluster."""
    rig = make_rig(kafka_bootstrap, cluster)
    place = rig.partition_of(Topic.EFFECTS, "op")

    async def read(beyond: int) -> None:
        projection = open_projection(rig.url)
        try:
            async with asyncio.timeout(20):
                while (await projection.advanced(place, beyond, timeout_s=20)).applied_offset <= beyond:
                    pass  # it was begun, or opened: the wait ends early
            snapshot = await projection.read(place, [DocumentKey(OPS, "op")])
            assert DocumentKey(OPS, "op") in snapshot.documents
            await projection.beat(["s1", "s2", "s3"])
            assert set(await projection.beats(["s1", "s2", "s3", "s4"])) == {"s1", "s2", "s3"}
        finally:
            await projection.close()

    with projector(rig.url):
        committed("op", rig)
        offset = rig.write(Topic.EFFECTS, "op", effect(EffectKind.INTENDED, "op", "loser"))
        asyncio.run(read(offset))
        rig.check()
        drop(rig, place)
        assert wait_until(lambda: rig.headers()[place].opened, 20)
        rig.check()
        former = rig.headers()[place].incarnation
        with rig.redis() as client:
            client.delete(rig.keys(place).collection(OPS))
        assert wait_until(lambda: rig.headers()[place].incarnation not in {"", former}, 20)
        rig.check()
        amiss = [c for c in asyncio.run(open_admin(rig.url).check()) if not c.ok and c.severity == "refuse"]
        assert not amiss
