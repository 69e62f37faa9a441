"""Keys, positions and store URLs: each text says one thing and can be read back."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.ledger import log_keys, urls
from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.positions import NOWHERE, Partition, Position, Topic

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
KAFKA = "kafka://host:9092/ledger?projection=redis://host:6379/0"


def spread(partitions: int) -> object:
    return lambda key: zlib.crc32(key.encode()) % partitions


# -- keys ----------------------------------------------------------------------------------


@given(agent=ids, branch=ids, partitions=st.integers(1, 50), data=st.data())
def test_a_fence_key_falls_into_its_partition_and_names_its_branch(
    agent: str, branch: str, partitions: int, data: st.DataObject
) -> None:
    """Every writer finds the same key, and the branch can be read back from it."""
    number = data.draw(st.integers(0, partitions - 1))
    partition_of = spread(partitions)
    key = log_keys.fence(agent, branch, number, partition_of)  # type: ignore[arg-type]
    assert partition_of(key) == number  # type: ignore[operator]
    assert key == log_keys.fence(agent, branch, number, partition_of)  # type: ignore[arg-type]
    assert log_keys.fence_of(key) == (agent, branch)
    assert not log_keys.is_operation(key)
    marker = log_keys.horizon(number, partition_of)  # type: ignore[arg-type]
    assert partition_of(marker) == number  # type: ignore[operator]
    assert log_keys.is_horizon(marker)
    assert log_keys.fence_of(marker) is None


@given(ids, ids, ids, ids)
def test_fence_keys_of_different_branches_differ(agent: str, branch: str, other: str, sibling: str) -> None:
    """Quoting keeps apart what a separator inside a name would mix up."""
    one, two = (log_keys.fence(a, b, 0, lambda _: 0) for a, b in ((agent, branch), (other, sibling)))
    assert (one == two) is ((agent, branch) == (other, sibling))


@given(agent=ids, other=ids, op_id=ids)
def test_keys_of_the_agents_topic_name_their_agent(agent: str, other: str, op_id: str) -> None:
    """The agent decides the partition, so it must be readable from the key alone; no two keys collide."""
    keys = {
        "session": log_keys.session(agent, other),
        "branch": log_keys.branch(agent, other),
        "rollback": log_keys.rollback(agent, other),
        "checkpoint": log_keys.checkpoint(agent, other),
        "absorbed": log_keys.absorbed(agent, other, op_id),
        "call": log_keys.call(agent, other, 7),
    }
    assert len(set(keys.values())) == 6
    for family, key in keys.items():
        assert log_keys.agent_of(key) == (family, agent)
    moved = log_keys.session(other, agent)
    assert (moved == keys["session"]) is (agent == other)


@pytest.mark.parametrize("key", ["", "session", "unknown/a/b", log_keys.LEDGER, "~fence/a/b/0/0"])
def test_other_keys_name_no_agent(key: str) -> None:
    """A key of an unknown family is told, not guessed at."""
    assert (log_keys.agent_of(key) or ("", ""))[1] == ""


@pytest.mark.parametrize("key", ["~fence/", "~fence/a/b/0", "~fence/a/b/0/0/0", "op", ""])
def test_other_keys_are_no_fences(key: str) -> None:
    """Four parts and nothing else."""
    assert log_keys.fence_of(key) is None


def test_a_partitioner_that_never_gets_there_is_an_error() -> None:
    """Instead of an endless search."""
    with pytest.raises(RuntimeError, match="partitioner"):
        log_keys.fence("a", "b", 1, lambda _: 0)
    with pytest.raises(RuntimeError, match="no horizon key"):
        log_keys.horizon(1, lambda _: 0)


@pytest.mark.parametrize(("key", "operation"), [("pay:1", True), ("~fence/x", False), (log_keys.LEDGER, False)])
def test_operations_are_what_does_not_begin_with_a_tilde(key: str, operation: bool) -> None:
    """No op id may."""
    assert log_keys.is_operation(key) is operation


# -- positions -----------------------------------------------------------------------------


@given(st.integers(0, 100), st.integers(-1, 2**62), st.integers(0, 100), st.integers(-1, 2**62))
def test_positions_are_ordered_as_the_log_is(generation: int, offset: int, other: int, another: int) -> None:
    """A former topic's facts come first; printing and parsing give the same position."""
    one, two = Position(generation, offset), Position(other, another)
    assert Position.parse(str(one)) == one
    assert (one < two) is ((generation, offset) < (other, another))
    assert one >= NOWHERE


@pytest.mark.parametrize("text", ["", "1", "a.b", "1.", ".1", "1,2"])
def test_other_texts_are_no_positions(text: str) -> None:
    """ValueError, and never a position that nobody printed."""
    with pytest.raises(ValueError):
        Position.parse(text)


def test_a_partition_is_named_by_topic_and_number() -> None:
    """For messages."""
    assert str(Partition(Topic.EFFECTS, 3)) == "effects/3"


# -- store urls ----------------------------------------------------------------------------


def test_a_file_url() -> None:
    """The path, with what was quoted in it."""
    url = urls.parse("sqlite:///var/lib/a%20b/ledger.db")
    assert (url.scheme, url.path) == ("sqlite", "/var/lib/a b/ledger.db")


def test_a_log_url_with_everything() -> None:
    """Brokers, prefix, projection, registry, the development profile, the generation."""
    projection = "rediss://user:p%2Bw@host:6380/2"
    text = (
        f"kafka://one:9092,two:9092/my.ledger?projection={projection}&registry=http://host:1&development=1&generation=2"
    )
    url = urls.parse(text)
    assert (url.text, url.scheme, url.bootstrap, url.prefix) == (text, "kafka", "one:9092,two:9092", "my.ledger")
    assert (url.registry, url.development, url.generation) == ("http://host:1", True, 2)
    assert url.projection.startswith("rediss://user:p")
    assert [url.topic(t) for t in Topic] == ["my.ledger.effects.g2", "my.ledger.agents.g2"]


def test_the_defaults_of_a_log_url_are_the_strict_ones() -> None:
    """No development profile, no registry, the first generation."""
    url = urls.parse(KAFKA)
    assert (url.development, url.registry, url.generation) == (False, "", 0)
    assert url.topic(Topic.EFFECTS) == "ledger.effects"
    assert not urls.parse(f"{KAFKA}&development=0").development


@pytest.mark.parametrize(
    "text",
    [
        "", "ledger.db", "sqlite://", "sqlite:///", "sqlite://host/x.db", "redis://host", "kafka://host:9092/x",
        "kafka:///x?projection=redis://host", "kafka://host/?projection=redis://host",
        "kafka://host/a b?projection=redis://host", "kafka://host/x?projection=http://host", f"{KAFKA}&unknown=1",
        "kafka://[::1/x?projection=redis://host", "kafka://host/x?projection=redis://[::1", f"{KAFKA}&generation=-1",
        f"kafka://host/{'x' * 200}?projection=redis://host",
    ],
)  # fmt: skip
def test_urls_that_are_none_are_refused_with_an_example(text: str) -> None:
    """Always our own error, naming the field."""
    with pytest.raises(InvalidArgumentError) as caught:
        urls.parse(text)
    assert caught.value.field == "url"
    assert "Write it like" in str(caught.value)
