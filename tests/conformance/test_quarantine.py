"""Records that cannot be taken, on every store: everything else goes on, and an operator deals with them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    EffectClass,
    InvalidArgumentError,
    Ledger,
    NotFoundError,
    OperationInDoubtError,
    QuarantinedRecord,
    ReasonKind,
    Standing,
    VersionMovedError,
    history,
    log_keys,
)
from fencepost.ledger.facts import EffectFact, EffectKind, encode_effect
from fencepost.ledger.history import Record
from fencepost.ledger.positions import Partition, Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.homes import Home

RUBBISH = b"\xc3\x01rubbish"
BOMB = b"\xc3\x01" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" * 8
"""Claims to hold a string of 2^62 bytes."""


def foreign(op_id: str) -> bytes:
    """A record whose fact names another operation than its key."""
    fact = EffectFact(kind=EffectKind.INTENDED, op_id="elsewhere", attempt_id="a")
    return history.encode(Record(op_id, (), encode_effect(fact)))


def effects_place(ledger: Ledger, op_id: str) -> Partition:
    return ledger._engine.view.effects_partition(op_id)


def agents_place(ledger: Ledger, agent: str) -> Partition:
    return ledger._engine.view.agents_partition(agent)


def item_at(ledger: Ledger, partition: Partition, offset: int) -> QuarantinedRecord:
    [item] = [i for i in ledger.quarantine() if i.place == f"{partition}:{offset}"]
    return item


def words() -> dict[str, Any]:
    return {"by": "alice", "evidence": "looked at the bytes"}


@pytest.mark.parametrize("value", [RUBBISH, b"", BOMB, "foreign", "oversized"])
def test_an_operations_record_is_released_by_saying_what_became_of_it(
    world: World, ledger: Ledger, value: bytes | str
) -> None:
    """It is refused and listed as unsafe; others go on; the operator's outcome settles it, for good."""
    op_id = world.op_id("poisoned")
    data = {"foreign": foreign(op_id), "oversized": b"\xc3\x01" + bytes(980_000)}.get(str(value), value)
    assert isinstance(data, bytes)
    place = effects_place(ledger, op_id)
    offset = world.home.poison(place, op_id.encode(), data)
    with ledger.session(world.agent) as session:
        with pytest.raises(OperationInDoubtError, match="set aside"):
            world.charge(session, "poisoned")
        world.charge(session, "other")
        item = item_at(ledger, place, offset)
        assert (item.standing, item.record.key, item.record.op_id) == (Standing.UNSAFE, op_id, op_id)
        assert item.record.problem
        assert item.record.time_ms > 0
        details = ledger.quarantined(item.place)
        assert details.raw is not None
        assert (details.raw.key, details.raw.value) == (op_id.encode(), data)
        with pytest.raises(InvalidArgumentError, match="say what became of it"):
            ledger.release_quarantined(item.place, version=item.version, **words())
        with pytest.raises(VersionMovedError):
            ledger.release_quarantined(item.place, version="0.99999", outcome="committed", **words())
        released = ledger.release_quarantined(
            item.place, version=item.version, outcome="committed", result={"id": 7}, **words()
        )
        assert released.standing is Standing.RELEASED
        assert world.charge(session, "poisoned") == {"id": 7}
    assert (world.hits("poisoned"), world.hits("other")) == (0, 1)
    assert released.to_dict()["released_by"] == "alice"
    with pytest.raises(InvalidArgumentError, match="released already"):
        ledger.release_quarantined(item.place, version=item.version, outcome="committed", **words())
    assert item_at(ledger, place, offset).standing is Standing.RELEASED
    assert not [f for f in ledger.verify().findings if f.where == op_id]


def test_an_absent_operation_needs_the_risk_to_be_taken(world: World, ledger: Ledger) -> None:
    """Nobody knows whether the lost record's writer is still under way; with the risk taken by name it can run."""
    op_id = world.op_id("gone")
    place = effects_place(ledger, op_id)
    offset = world.home.poison(place, op_id.encode(), RUBBISH)
    item = item_at(ledger, place, offset)
    with pytest.raises(Exception, match="ABSENT cannot be known"):
        ledger.release_quarantined(item.place, version=item.version, outcome="absent", **words())
    ledger.release_quarantined(item.place, version=item.version, outcome="absent", accept_risk=True, **words())
    with ledger.session(world.agent) as session:
        world.charge(session, "gone")
    assert world.hits("gone") == 1


@pytest.mark.parametrize("family", ["session", "checkpoint", "call"])
def test_an_agents_record_makes_the_agent_unsafe_until_somebody_has_looked(
    world: World, ledger: Ledger, family: str
) -> None:
    """Every rollback is refused; the operator's word, about this record alone, makes the agent safe again."""
    with ledger.session(world.agent) as session:
        session.checkpoint("c")
    key = {
        "session": log_keys.session(world.agent, "lost"),
        "checkpoint": log_keys.checkpoint(world.agent, "lost"),
        "call": log_keys.call(world.agent, "lost", 1),
    }[family]
    place = agents_place(ledger, world.agent)

    def unsafe() -> bool:
        kinds = {r.kind for r in ledger.preview_rollback(world.agent, checkpoint="c").reasons}
        assert kinds <= {ReasonKind.AGENT_UNSAFE}
        return bool(kinds)

    assert not unsafe()
    first = item_at(ledger, place, world.home.poison(place, key.encode(), RUBBISH))
    assert first.standing is Standing.UNSAFE
    assert unsafe()
    assert not ledger.authorize_rollback(world.agent, checkpoint="c").authorised
    with pytest.raises(InvalidArgumentError, match="belongs to no operation"):
        ledger.release_quarantined(first.place, version=first.version, outcome="absent", accept_risk=True, **words())
    with pytest.raises(VersionMovedError):
        ledger.release_quarantined(first.place, version="0.99999", **words())
    released = ledger.release_quarantined(first.place, version=first.version, **words())
    assert (released.standing, released.to_dict()["evidence"]) == (Standing.RELEASED, "looked at the bytes")
    assert not unsafe()
    second = item_at(ledger, place, world.home.poison(place, key.encode(), RUBBISH))
    assert unsafe(), "the word about one record is none about another"
    ledger.release_quarantined(second.place, version=second.version, **words())
    assert ledger.authorize_rollback(world.agent, checkpoint="c").authorised
    assert not [f for f in ledger.verify().findings if key in f.where or f.kind == "projection"]


def test_records_that_distrust_nothing_are_reported_until_somebody_has_looked(world: World, ledger: Ledger) -> None:
    """No key, a key that is no text, a key of an unknown form: there is no operation to be unsafe."""
    place = Partition(Topic.EFFECTS, 0)
    keyless = [None] if world.home.embedded else []  # Kafka takes no record without a key for a compacted topic
    for key in (*keyless, b"\xff\xfe", f"~unknown/{world.name}".encode()):
        value = history.encode(Record(key.decode())) if key and key.startswith(b"~") else RUBBISH
        item = item_at(ledger, place, world.home.poison(place, key, value))
        assert item.standing is Standing.REPORTED
        assert ledger.release_quarantined(item.place, version=item.version, **words()).standing is Standing.RELEASED
    with ledger.session(world.agent) as session:
        world.charge(session, "other")
    assert world.hits("other") == 1


def test_a_fence_that_cannot_be_read_is_released_too(fresh_home: Callable[[], Home]) -> None:
    """Its writer waits for it in vain, so nothing rests on it; until somebody has looked nothing can be exported."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger:
        with ledger.session("agent") as session:
            session.checkpoint("c")
        log = ledger._engine.store.log
        key = log_keys.fence("agent", "main", 0, lambda k: log.partition_of(Topic.EFFECTS, k))
        item = item_at(
            ledger, Partition(Topic.EFFECTS, 0), home.poison(Partition(Topic.EFFECTS, 0), key.encode(), b"x")
        )
        assert item.standing is Standing.UNSAFE
        with pytest.raises(Exception, match="unsafe keys"):
            ledger.export(io.StringIO())
        ledger.release_quarantined(item.place, version=item.version, **words())
        out = io.StringIO()
        assert ledger.export(out) > 0
        assert ledger.verify().ok


def test_a_release_outlives_the_projection(fresh_home: Callable[[], Home]) -> None:
    """What stands against an agent, and the operator's word about it, are in the log."""
    home = fresh_home()
    with Ledger.open(home.url) as ledger:
        for agent in ("released", "not"):
            with ledger.session(agent) as session:
                session.checkpoint("c")
            place = agents_place(ledger, agent)
            offset = home.poison(place, log_keys.session(agent, "lost").encode(), RUBBISH)
            item = item_at(ledger, place, offset)
            if agent == "released":
                ledger.release_quarantined(item.place, version=item.version, **words())
    home.stop_projector()
    home.lose_projection()
    home.rebuild()
    with Ledger.open(home.url) as ledger:
        assert ledger.authorize_rollback("released", checkpoint="c").authorised
        assert not ledger.authorize_rollback("not", checkpoint="c").authorised


def test_places_where_nothing_is(ledger: Ledger) -> None:
    """Not written as PARTITION:OFFSET, no such partition, or nothing set aside there: each says so."""
    for place in ("effects", "effects/0", "other/0:1", "effects/0:-1", "effects/0:1 "):
        with pytest.raises(InvalidArgumentError, match="PARTITION:OFFSET"):
            ledger.quarantined(place)
    for place in ("effects/999:1", "effects/0:99999999"):
        with pytest.raises(NotFoundError, match="nothing was set aside"):
            ledger.quarantined(place)


def test_the_wrong_partition_is_reported_and_distrusts_nothing(world: World, ledger: Ledger) -> None:
    """On one partition there is none; on several the key's own history is elsewhere, and untouched."""
    counts = ledger._engine.store.log.partitions(Topic.EFFECTS)
    op_id = world.op_id("astray")
    right = effects_place(ledger, op_id)
    if counts == 1:
        assert right.number == 0
        return
    wrong = Partition(Topic.EFFECTS, (right.number + 1) % counts)
    item = item_at(ledger, wrong, world.home.poison(wrong, op_id.encode(), RUBBISH))
    assert (item.standing, item.record.op_id) == (Standing.REPORTED, "")
    with ledger.session(world.agent) as session:
        with session.attempt("billing.charge", key=world.key("astray"), kind=EffectClass.IRREVERSIBLE) as attempt:
            assert attempt.owned
            attempt.commit(1)
        ledger.release_quarantined(item.place, version=item.version, **words())
