"""Values that somebody overwrites in Redis: every question is answered or refused by name, and the projector goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from conformance.homes import Home, new_home
from conformance.waiting import until
from conformance.worlds import World

from fencepost.consumer.keys import PartitionKeys
from fencepost.ledger import EffectClass, FencepostError, Ledger, urls
from fencepost.ledger.positions import Partition, Topic

pytestmark = [pytest.mark.kafka, pytest.mark.redis]
GARBAGE = {"empty": b"", "json": b"{}", "frame": b"\xc3\x01" + bytes(30)}


@pytest.fixture(scope="module")
def home(kafka_bootstrap: str, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = new_home("kafka", tmp_path_factory.mktemp("home"), (kafka_bootstrap, redis_url))
    yield made
    made.stop_projector()


@pytest.fixture(scope="module")
def world(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A ledger in which there is something of everything."""
    with Ledger.open(home.url) as ledger, World(home, ledger, tmp_path_factory.mktemp("world")) as world:
        with ledger.session(world.agent) as session:
            world.charge(session, "known")
            session.checkpoint("c")
            world.charge(session, "beyond")
            ledger.preview_rollback(world.agent, checkpoint="c")
            session.fork("side", checkpoint="c")
        with ledger.session(world.agent) as session:
            session.attempt("mail", key="doubt", kind=EffectClass.IRREVERSIBLE).begin().doubt("who knows")
        ledger.authorize_rollback(world.agent, checkpoint="c")
        place = Partition(Topic.EFFECTS, ledger._engine.view.effects_partition(world.op_id("known")).number)
        home.poison(place, b"poisoned", b"poison")
        until(lambda: len(ledger.quarantine()) == 1)
        yield world


def documents(world: World) -> Iterator[tuple[str, bytes, bytes]]:
    """(hash, field, value) of one document of each collection of each partition."""
    url = urls.parse(world.url)
    with redis.Redis.from_url(url.projection) as client:
        for topic in Topic:
            for number in range(world.ledger._engine.store.log.partitions(topic)):
                keys = PartitionKeys(url.prefix, Partition(topic, number))
                for name in sorted(client.smembers(keys.collections)):
                    collection = keys.collection(name.decode())
                    for field, value in list(client.hgetall(collection).items())[:1]:
                        yield collection, field, value


def questions(world: World) -> dict[str, Callable[[], Any]]:
    ledger, agent, op_id = world.ledger, world.agent, world.op_id("known")
    return {
        "operation": lambda: ledger.operation(op_id),
        "operations": lambda: ledger.operations(agent),
        "agent": lambda: ledger.agent(agent),
        "agents": ledger.agents,
        "watermark": lambda: ledger.watermark(agent),
        "in doubt": lambda: ledger.in_doubt(agent),
        "preview": lambda: ledger.preview_rollback(agent, checkpoint="c"),
        "replay": lambda: ledger.replay_forward(agent, since="start"),
        "quarantine": ledger.quarantine,
        "verify": ledger.verify,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", GARBAGE)
def test_whatever_is_written_over_a_value(world: World, name: str) -> None:
    """No question ends in an error that is not ours; verify finds each; with the values back, all is as it was."""
    url = urls.parse(world.url)
    wrong, unseen = [], []
    before = world.ledger.verify().findings
    with redis.Redis.from_url(url.projection) as client:
        for collection, field, value in documents(world):
            if value == GARBAGE[name]:
                continue
            client.hset(collection, field, GARBAGE[name])
            try:
                for asked, ask in questions(world).items():
                    try:
                        answer = ask()
                    except FencepostError:
                        continue
                    except Exception as error:  # noqa: BLE001 (that is what is looked for)
                        wrong.append((collection, field, asked, repr(error)))
                        continue
                    if asked == "verify" and answer.findings == before:
                        unseen.append((collection, field))
            finally:
                client.hset(collection, field, value)
    assert (wrong, unseen) == ([], [])
    assert world.ledger.verify().findings == before
