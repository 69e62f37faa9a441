"""A ledger on each store, one a test module, and a world for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conformance.refunding import Refunds
from conformance.worlds import Home, World, new_home

from fencepost.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STORES = ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.redis])]


@pytest.fixture(scope="module", params=STORES)
def store_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def services(store_kind: str, request: pytest.FixtureRequest) -> tuple[str, str] | None:
    """The addresses of Kafka and Redis, where the store needs them."""
    if store_kind == "embedded":
        return None
    return request.getfixturevalue("kafka_bootstrap"), request.getfixturevalue("redis_url")


@pytest.fixture(scope="module")
def home(store_kind: str, services: tuple[str, str] | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A ledger that the tests of a module share; each has names of its own in it."""
    home = new_home(store_kind, tmp_path_factory.mktemp("home"), services)
    yield home
    home.stop_projector()


@pytest.fixture
def fresh_home(store_kind: str, services: tuple[str, str] | None, tmp_path: Path) -> Iterator[Callable[[], Home]]:
    """Makes ledgers that only this test uses, to lose and to compare."""
    made: list[Home] = []

    def make() -> Home:
        directory = tmp_path / f"home-{len(made)}"
        directory.mkdir()
        made.append(new_home(store_kind, directory, services))
        return made[-1]

    yield make
    for one in made:
        one.stop_projector()


@pytest.fixture(scope="module")
def shared_ledger(home: Home) -> Iterator[Ledger]:
    with Ledger.open(home.url) as ledger:
        yield ledger


@pytest.fixture
def world(home: Home, shared_ledger: Ledger, tmp_path: Path) -> Iterator[World]:
    with World(home, shared_ledger, tmp_path) as world:
        yield world


@pytest.fixture
def ledger(world: World) -> Ledger:
    return world.ledger


@pytest.fixture
def refunds(world: World) -> Refunds:
    return Refunds(world)
