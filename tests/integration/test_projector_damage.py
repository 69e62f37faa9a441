"""A part of the projection is lost from Redis: nothing is believed until it is built anew, and nothing else is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from projection_kit import Rig, make_rig, projector, workload

from fencepost.consumer.keys import PartitionKeys
from fencepost.consumer.reader import open_projection
from fencepost.deploy.processes import wait_until
from fencepost.ledger.ports import DocumentKey, Snapshot
from fencepost.ledger.positions import Partition, Topic
from fencepost.ledger.projection import FENCES, OPS

OP = "op-3"


def random_keys(client: Any, keys: PartitionKeys) -> None:
    names = sorted(name for name in client.keys(f"{keys.tag}:*") if name != keys.header.encode())
    client.delete(keys.collection(OPS), *random.Random(7).sample(names, len(names) // 2))


def some_ops(client: Any, keys: PartitionKeys) -> None:
    client.hdel(keys.collection(OPS), OP, *client.hkeys(keys.collection(OPS))[:3])


DAMAGES: dict[str, Callable[[Any, PartitionKeys], object]] = {
    "ops": lambda client, keys: client.delete(keys.collection(OPS)),
    "some ops": some_ops,
    "fences": lambda client, keys: client.delete(keys.collection(FENCES)),
    "counts": lambda client, keys: client.delete(keys.counts),
    "random keys": random_keys,
}


@pytest.fixture
def rig(kafka_bootstrap: str, redis_url: str) -> Rig:
    return make_rig(kafka_bootstrap, redis_url)


def read(rig: Rig, place: Partition) -> Snapshot:
    async def work() -> Snapshot:
        projection = open_projection(rig.url)
        try:
            return await projection.read(place, [DocumentKey(OPS, OP), DocumentKey(FENCES, "agent\x1fmain")])
        finally:
            await projection.close()

    return asyncio.run(work())


def damage(rig: Rig, place: Partition, name: str) -> None:
    with rig.redis() as client:
        DAMAGES[name](client, rig.keys(place))


def rebuilt(rig: Rig, place: Partition, former: str) -> bool:
    """Whether it is another projection and open; every answer meanwhile is to be believed or says that it is not."""
    snapshot = read(rig, place)
    assert not snapshot.header.opened or DocumentKey(OPS, OP) in snapshot.documents
    return snapshot.header.opened and snapshot.header.incarnation != former


@pytest.mark.parametrize("name", DAMAGES)
def test_while_it_runs(rig: Rig, name: str) -> None:
    """A running projector finds the damage without any record or reader, and builds the same documents again."""
    place = rig.partition_of(Topic.EFFECTS, OP)
    with projector(rig.url):
        workload(rig, 8)
        rig.check()
        before, former = rig.projected(), rig.headers()
        damage(rig, place, name)
        assert wait_until(lambda: rig.headers()[place].incarnation not in {"", former[place].incarnation}, 20)
        assert wait_until(lambda: rebuilt(rig, place, former[place].incarnation), 30)
        rig.check()
        assert rig.projected() == before
        changed = {p for p, h in rig.headers().items() if h.incarnation != former[p].incarnation}
        assert changed == {place}


@pytest.mark.parametrize("name", DAMAGES)
def test_while_it_is_down(rig: Rig, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A projector that is started on a damaged projection begins anew; a committed operation never looks free."""
    place = rig.partition_of(Topic.EFFECTS, OP)
    with projector(rig.url):
        workload(rig, 8)
        rig.check()
        before, former = rig.projected(), rig.headers()[place].incarnation
    damage(rig, place, name)
    found = read(rig, place)
    assert (found.header.opened, found.header.incarnation, dict(found.documents)) == (False, "", {})
    with projector(rig.url):
        assert wait_until(lambda: rebuilt(rig, place, former), 30)
        rig.check()
        assert rig.projected() == before
    [said] = [r for r in caplog.records if f"{place}: begins a new projection" in r.message and "former" in r.message]
    assert "damaged" in said.message


def test_a_projector_alone_finds_it_at_its_start(rig: Rig) -> None:
    """Also when nobody read what is damaged in the meantime."""
    place = rig.partition_of(Topic.EFFECTS, OP)
    with projector(rig.url):
        workload(rig, 8)
        rig.check()
        before, former = rig.projected(), rig.headers()[place].incarnation
    damage(rig, place, "ops")
    with projector(rig.url):
        assert wait_until(lambda: rebuilt(rig, place, former), 30)
        rig.check()
        assert rig.projected() == before
