"""The scripts' own promises: fenced, conditional, all or nothing, and the same when a client repeats them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from fencepost.consumer import scripts
from fencepost.consumer.keys import PartitionKeys
from fencepost.consumer.partition_store import MovedError, PartitionStore
from fencepost.consumer.redis_client import execute
from fencepost.consumer.scripts import Answer, Claimed, Owner
from fencepost.ledger.ports import DocumentKey, Header, Step
from fencepost.ledger.positions import Partition, Topic

HEADER = Header(incarnation="one", generation=2, judge_from=5, settled_offset=5, settled_time_ms=9, horizon=7)
OP = DocumentKey("ops", "op")


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def keys() -> PartitionKeys:
    return PartitionKeys(f"s{secrets.token_hex(4)}", Partition(Topic.AGENTS, 1))


def everything(client: redis.Redis, keys: PartitionKeys) -> dict[str, object]:
    """All that is stored of the partition, except for the clock's marks."""
    found: dict[str, object] = {}
    matching: Any = client.keys(f"{keys.tag}*")
    for name in (key.decode() for key in matching):
        kind = client.type(name)
        if kind == b"hash":
            found[name] = {k: v for k, v in client.hgetall(name).items() if k != b"seen_ms"}
        else:
            found[name] = client.smembers(name) if kind == b"set" else client.get(name)
    return found


def begun(client: redis.Redis, keys: PartitionKeys) -> PartitionStore:
    store = PartitionStore(client, "redis://x", keys)
    store.claim()
    store.begin(HEADER)
    return store


def test_a_claim_is_repeatable(client: redis.Redis, keys: PartitionKeys) -> None:
    """The same claim twice is one claim; the next has a higher number."""
    first = Claimed.of(execute(client, scripts.claim(keys, "a")))
    again = Claimed.of(execute(client, scripts.claim(keys, "a")))
    second = Claimed.of(execute(client, scripts.claim(keys, "b")))
    assert (first.epoch, again.epoch, second.epoch) == ("1:a", "1:a", "2:b")
    assert first.header.incarnation == ""
    assert first.leader_epoch == -1


def test_a_header_comes_back(client: redis.Redis, keys: PartitionKeys) -> None:
    """A claim finds exactly the header and the leader epoch that were applied last."""
    store = begun(client, keys)
    header = replace(HEADER, applied_offset=2**60, opened=True, settled_offset=2**59)
    store.apply(Step(header), 17)
    claimed = store.claim()
    assert replace(claimed.header, seen_ms=0, now_ms=0) == header
    assert claimed.leader_epoch == 17


def test_apply_is_repeatable(client: redis.Redis, keys: PartitionKeys) -> None:
    """A client that lost the reply repeats the call: it is done, and done once."""
    begun(client, keys)
    epoch = Claimed.of(execute(client, scripts.claim(keys, "c"))).epoch
    call = scripts.apply(keys, Owner(epoch, "one", 0), Step(replace(HEADER, applied_offset=4), {OP: b"1"}), 0)
    assert Answer.of(execute(client, call)) == Answer("ok", "4")
    before = everything(client, keys)
    assert Answer.of(execute(client, call)) == Answer("already", "4")
    assert everything(client, keys) == before


@pytest.mark.parametrize(
    ("owner", "outcome"),
    [
        (Owner("1:other", "one", 0), "epoch"),
        (Owner("", "two", 0), "incarnation"),
        (Owner("", "one", 1), "offset"),
        (Owner("", "one", -1), "offset"),
    ],
)
def test_apply_elsewhere_changes_nothing(client: redis.Redis, keys: PartitionKeys, owner: Owner, outcome: str) -> None:
    """With another epoch, projection or position than the stored ones nothing at all is written."""
    begun(client, keys)
    own = Claimed.of(execute(client, scripts.claim(keys, "c"))).epoch
    before = everything(client, keys)
    owner = owner._replace(epoch=owner.epoch or own)
    step = Step(
        replace(HEADER, incarnation=owner.incarnation, applied_offset=9), {OP: b"1", DocumentKey("x", "y"): b"2"}
    )
    assert Answer.of(execute(client, scripts.apply(keys, owner, step, 0))).outcome == outcome
    assert Answer.of(execute(client, scripts.heartbeat(keys, owner, touch=True, halted="no"))).outcome == outcome
    assert everything(client, keys) == before


def test_an_old_owner_changes_nothing(client: redis.Redis, keys: PartitionKeys) -> None:
    """After another claim every call of the former owner is refused, and knows that it was superseded."""
    old = begun(client, keys)
    new = PartitionStore(client, "redis://x", keys)
    new.claim()
    before = everything(client, keys)
    step = Step(replace(HEADER, applied_offset=3), {OP: b"zombie"})
    calls: list[Callable[[], None]] = [
        lambda: old.apply(step, 0),
        lambda: old.heartbeat(touch=True),
        lambda: old.heartbeat(touch=False, halted="no"),
        old.drop,
        lambda: old.begin(replace(HEADER, incarnation="zombie")),
    ]
    for call in calls:
        with pytest.raises(MovedError) as caught:
            call()
        assert caught.value.superseded
    assert everything(client, keys) == before
    new.apply(step, 0)


def test_a_store_that_went_back_is_no_successor(client: redis.Redis, keys: PartitionKeys) -> None:
    """An epoch that is gone or lower tells of an older store, not of another projector."""
    store = begun(client, keys)
    store.claim()
    client.set(keys.epoch, "1:older")
    with pytest.raises(MovedError) as caught:
        store.heartbeat(touch=True)
    assert not caught.value.superseded
    client.delete(keys.epoch)
    with pytest.raises(MovedError) as caught:
        store.heartbeat(touch=True)
    assert caught.value.answer.outcome == "lost"
    assert not caught.value.superseded


def test_large_steps(client: redis.Redis, keys: PartitionKeys) -> None:
    """Thousands of documents go in one step, beyond what Lua can unpack, and are deleted in one."""
    store = begun(client, keys)
    documents = {DocumentKey(c, f"{n}"): bytes([n % 256]) for c in ("ops", "open") for n in range(9001)}
    store.apply(Step(replace(HEADER, applied_offset=1), documents), 0)
    assert store.documents(documents) == documents
    some = dict.fromkeys(list(documents)[:17_000])
    store.apply(Step(replace(HEADER, applied_offset=2), some), 0)
    assert sum(1 for value in store.documents(documents).values() if value is not None) == len(documents) - len(some)


def test_begin_leaves_nothing_of_the_former(client: redis.Redis, keys: PartitionKeys) -> None:
    """A new projection starts empty, however many collections the former had; the epoch and what is accepted stay."""
    store = begun(client, keys)
    documents = {DocumentKey(f"seqs/{n}", "0"): b"x" for n in range(1200)}
    store.apply(Step(replace(HEADER, applied_offset=1), documents), 0)
    execute(client, scripts.drop(keys, accept_below=44))
    claimed = store.claim()
    assert (claimed.header.incarnation, claimed.accepted) == ("", 44)
    store.begin(replace(HEADER, incarnation="two"))
    assert set(everything(client, keys)) == {keys.header, keys.epoch, keys.accepted}
    store.begin(replace(HEADER, incarnation="two"))
    assert store.claim().header.incarnation == "two"


def test_begin_refuses_leftovers(client: redis.Redis, keys: PartitionKeys) -> None:
    """A header is written only when nothing older is left that it would seem to vouch for."""
    store = begun(client, keys)
    store.apply(Step(replace(HEADER, applied_offset=1), {OP: b"1"}), 0)
    epoch = store.claim().epoch
    fresh = replace(HEADER, incarnation="two")
    assert Answer.of(execute(client, scripts.begin(keys, epoch, fresh))) == Answer("dirty", "one")
    store.drop()
    assert Answer.of(execute(client, scripts.begin(keys, epoch, fresh))) == Answer("dirty", "1")


def test_a_halt_is_kept(client: redis.Redis, keys: PartitionKeys) -> None:
    """The reason of a halt stands in the header until the projection is dropped."""
    store = begun(client, keys)
    store.heartbeat(touch=False, halted="records are missing")
    assert store.claim().header.halted == "records are missing"
    execute(client, scripts.drop(keys, accept_below=None))
    assert store.claim().header.halted == ""


def test_reading_from_a_moved_projection(client: redis.Redis, keys: PartitionKeys) -> None:
    """An owner never folds on from documents that are not its own last step's."""
    store = begun(client, keys)
    execute(client, scripts.drop(keys, accept_below=None))
    with pytest.raises(MovedError, match="lost"):
        store.documents([OP])
    other = PartitionStore(client, "redis://x", keys)
    other.claim()
    other.begin(replace(HEADER, incarnation="two"))
    with pytest.raises(MovedError, match="incarnation"):
        list(store.collection("ops"))
    other.apply(Step(replace(HEADER, incarnation="two", applied_offset=5)), 0)
