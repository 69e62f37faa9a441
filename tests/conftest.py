"""What every test gets: the services' fixtures, their markers, and the choice of services in the header."""

from __future__ import annotations

from collections.abc import Generator

import examples
import pytest
import services
from services import (  # noqa: F401  fixtures are found by name
    kafka3,
    kafka3_cluster,
    kafka_bootstrap,
    private_kafka,
    private_redis,
    redis_url,
)

examples.load_profile()


def pytest_report_header() -> list[str]:
    return services.report_header()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return services.whole((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return services.whole((yield))


@pytest.hookimpl(tryfirst=True)  # before -m selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    services.add_markers(items)
    items.sort(key=_turn)
    if times := examples.times():
        examples.multiply(items, times)


def _turn(item: pytest.Item) -> int:
    """Files of few tests that wait long come first: whoever runs several files at a time ends with short ones."""
    places = item.path.parts
    return next((turn for turn, place in enumerate(_LONGEST_FIRST) if place in places), len(_LONGEST_FIRST))


_LONGEST_FIRST = ("faults", "load", "integration", "simulation", "conformance")
