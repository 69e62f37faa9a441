"""Losing a part of a partition's projection: it is as good as lost for everybody, and begun anew."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from fencepost.consumer import scripts
from fencepost.consumer.keys import PartitionKeys
from fencepost.consumer.partition_store import MovedError, PartitionStore
from fencepost.consumer.reader import open_projection
from fencepost.ledger import urls
from fencepost.ledger.ports import DocumentKey, Header, Snapshot, Step
from fencepost.ledger.positions import Partition, Topic

PLACE = Partition(Topic.EFFECTS, 0)
HEADER = Header(incarnation="one", horizon=1, opened=True)
DOCUMENTS: dict[DocumentKey, bytes | None] = {
    DocumentKey(name, f"{name}{n}"): b"x" for name in ("ops", "fences", "open") for n in range(5)
}
Damage = Callable[[redis.Redis, PartitionKeys], object]
DAMAGES: dict[str, Damage] = {
    "ops": lambda r, k: r.delete(k.collection("ops")),
    "some ops": lambda r, k: r.hdel(k.collection("ops"), "ops1", "ops2"),
    "fences": lambda r, k: r.delete(k.collection("fences")),
    "counts": lambda r, k: r.delete(k.counts),
    "a count": lambda r, k: r.hdel(k.counts, "ops"),
    "a count and its collection": lambda r, k: (r.hdel(k.counts, "ops"), r.delete(k.collection("ops"))),
    "all but the header": lambda r, k: r.delete(
        k.counts, k.collections, *(k.collection(c) for c in ("ops", "fences", "open"))
    ),
    "ops, counts and collections": lambda r, k: r.delete(k.counts, k.collections, k.collection("ops")),
    "ops and collections": lambda r, k: r.delete(k.collections, k.collection("ops")),
    "the position": lambda r, k: r.hdel(k.header, "applied_offset"),
    "the horizon": lambda r, k: r.hdel(k.header, "horizon", "opened"),
    "the former layout": lambda r, k: (r.delete(k.counts), r.hdel(k.header, "counted")),
}
SEEN_BY_READERS_OF_OPS = [name for name in DAMAGES if name != "fences"]


@pytest.fixture
def prefix() -> str:
    return f"d{secrets.token_hex(4)}"


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def keys(prefix: str) -> PartitionKeys:
    return PartitionKeys(prefix, PLACE)


def filled(client: redis.Redis, keys: PartitionKeys) -> PartitionStore:
    store = PartitionStore(client, "redis://x", keys)
    store.claim()
    store.begin(HEADER)
    store.apply(Step(replace(HEADER, applied_offset=1), DOCUMENTS), 0)
    return store


@pytest.mark.parametrize("name", DAMAGES)
def test_a_claim_believes_nothing_that_is_damaged(client: redis.Redis, keys: PartitionKeys, name: str) -> None:
    """After a restart any loss is that of the header; what is built anew has nothing of the former."""
    filled(client, keys)
    DAMAGES[name](client, keys)
    store = PartitionStore(client, "redis://x", keys)
    found = store.claim().header
    assert (found.incarnation, found.opened) == ("", False)
    assert "damaged" in found.halted
    fresh = replace(HEADER, incarnation="two")
    store.begin(fresh)
    assert all(value is None for value in store.documents(DOCUMENTS).values())
    some = dict(list(DOCUMENTS.items())[::2])
    store.apply(Step(replace(fresh, applied_offset=1), some), 0)
    assert {k: v for k, v in store.documents(DOCUMENTS).items() if v is not None} == some
    found = store.claim().header
    assert (found.incarnation, found.halted) == ("two", "")
    for collection in ("ops", "fences", "open"):
        wanted = {k for k in some if k.collection == collection}
        assert {key for page in store.collection(collection) for key in page} == wanted


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("call", ["apply", "heartbeat", "documents", "collection"])
def test_its_owner_notices(client: redis.Redis, keys: PartitionKeys, name: str, call: str) -> None:
    """Nothing is folded onto a damaged projection, and its owner lets go of it, even if it only looks."""
    store = filled(client, keys)
    DAMAGES[name](client, keys)
    step = Step(replace(HEADER, applied_offset=2), {DocumentKey("ops", "ops2"): b"y", DocumentKey("fences", "f"): b"y"})
    calls: dict[str, Callable[[], object]] = {
        "apply": lambda: store.apply(step, 0),
        "heartbeat": lambda: store.heartbeat(touch=True),
        "documents": lambda: store.documents(DOCUMENTS),
        "collection": lambda: [list(store.collection(c)) for c in ("ops", "fences")],
    }
    with pytest.raises(MovedError) as caught:
        calls[call]()
    assert not caught.value.superseded
    assert client.hget(keys.collection("fences"), "f") is None
    assert store.claim().header.incarnation == ""


def snapshots(redis_url: str, prefix: str) -> list[Snapshot]:
    async def work() -> list[Snapshot]:
        projection = open_projection(urls.parse(f"kafka://127.0.0.1:1/{prefix}?projection={redis_url}"))
        try:
            keys = [DocumentKey("ops", "ops1"), DocumentKey("unheard", "of"), DocumentKey("ops", "ops3")]
            read, scanned = await projection.read(PLACE, keys), await projection.scan(PLACE, "ops")
            page, cursor = await projection.page(PLACE, "ops")
            assert cursor == ""
            return [read, scanned, page]
        finally:
            await projection.close()

    return asyncio.run(work())


@pytest.mark.parametrize("name", SEEN_BY_READERS_OF_OPS)
def test_readers_believe_nothing_that_is_damaged(
    client: redis.Redis, keys: PartitionKeys, redis_url: str, prefix: str, name: str
) -> None:
    """Whoever meets the damage gets a header that is not open and says why, and no documents; so does the owner."""
    store = filled(client, keys)
    assert [len(s.documents) for s in snapshots(redis_url, prefix)] == [2, 5, 5]
    DAMAGES[name](client, keys)
    for snapshot in snapshots(redis_url, prefix):
        assert (snapshot.header.opened, snapshot.header.incarnation, dict(snapshot.documents)) == (False, "", {})
        assert "damaged" in snapshot.header.halted
    with pytest.raises(MovedError):
        store.heartbeat(touch=True)


def test_damage_is_not_forgotten(client: redis.Redis, keys: PartitionKeys, redis_url: str, prefix: str) -> None:
    """Once met, the damage stands in the header: fields that are written back by hand do not undo it."""
    filled(client, keys)
    client.hdel(keys.collection("ops"), "ops1")
    assert not snapshots(redis_url, prefix)[0].header.opened
    client.hset(keys.collection("ops"), "ops1", b"x")
    assert not snapshots(redis_url, prefix)[0].header.opened


def test_other_collections_are_read_meanwhile(client: redis.Redis, keys: PartitionKeys) -> None:
    """What nobody has met yet costs nothing: only what is touched is compared."""
    store = filled(client, keys)
    client.delete(keys.collection("fences"))
    assert store.documents([DocumentKey("ops", "ops1")]) == {DocumentKey("ops", "ops1"): b"x"}


def test_counts_follow_what_is_written(client: redis.Redis, keys: PartitionKeys) -> None:
    """Written, written again, deleted, emptied: the counts are those of the hashes, and a repeat changes none."""
    store = filled(client, keys)
    writes: dict[DocumentKey, bytes | None] = {DocumentKey("open", f"open{n}"): None for n in range(5)}
    writes |= {DocumentKey("ops", "ops1"): b"y", DocumentKey("ops", "new"): b"y", DocumentKey("debts", "no"): None}
    store.apply(Step(replace(HEADER, applied_offset=2), writes), 0)
    assert client.hgetall(keys.counts) == {b"ops": b"6", b"fences": b"5", b"open": b"0", b"debts": b"0"}
    assert client.hget(keys.header, "counted") == b"4"
    assert store.claim().header.applied_offset == 2
    store.heartbeat(touch=True)
    store.drop()
    store.begin(replace(HEADER, incarnation="two"))
    assert not client.exists(keys.counts)


def test_an_operator_drops_a_damaged_projection(client: redis.Redis, keys: PartitionKeys) -> None:
    """Dropping is as good a way out as any, and leaves nothing."""
    store = filled(client, keys)
    client.delete(keys.collection("ops"))
    call = scripts.drop(keys, accept_below=None)
    client.eval(call.script.text, len(call.keys), *call.keys, *call.args)
    assert store.claim().header == replace(Header(), now_ms=0)
    store.begin(replace(HEADER, incarnation="two"))
    assert not client.exists(keys.collection("fences"), keys.counts, keys.collections)
