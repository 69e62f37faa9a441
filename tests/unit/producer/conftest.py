"""Mock brokers with a ledger's topics, and logs on them that are closed afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from unit.producer.mock_kafka import MockKafka, OpenLog

from fencepost.ledger import urls
from fencepost.producer.settings import Settings
from fencepost.producer.store import KafkaLog, open_log

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def mock() -> Iterator[MockKafka]:
    """One mock broker with the topics of the ledger "unit", four partitions each."""
    brokers = MockKafka()
    brokers.create("unit.effects")
    brokers.create("unit.agents")
    yield brokers
    brokers.close()


@pytest.fixture
def opened(mock: MockKafka) -> Iterator[OpenLog]:
    logs: list[KafkaLog] = []

    def start(settings: Settings | None = None) -> KafkaLog:
        url = urls.parse(f"kafka://{mock.bootstrap}/unit?projection=redis://127.0.0.1/0")
        logs.append(open_log(url, settings=settings or Settings(close_timeout_s=1.0)))
        return logs[-1]

    yield start

    async def close() -> None:
        for log in logs:
            await log.close()

    asyncio.run(close())
