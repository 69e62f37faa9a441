"""The library `eventsourcing` on SQLite: an aggregate an operation, saved when claimed and when committed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from bench import frame

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings


@cache
def operation_class() -> Any:
    """The aggregate; the library knows a class by its name, so there is one."""
    domain: Any = import_module("eventsourcing.domain")

    class Operation(domain.Aggregate):  # type: ignore[misc] # an untyped base, only known when it runs
        @domain.event("Claimed")  # type: ignore[untyped-decorator]
        def __init__(self, key: str) -> None:
            self.key = key
            self.result = ""

        @staticmethod
        def create_id(key: str) -> UUID:
            return uuid5(NAMESPACE_URL, key)

        @domain.event("Committed")  # type: ignore[untyped-decorator]
        def commit(self, result: str) -> None:
            self.result = result

    return Operation


def aggregates(settings: Settings, agents: int) -> Iterator[Measure]:
    application: Any = import_module("eventsourcing.application")
    operations = operation_class()
    with frame.directory(settings) as directory:
        environment = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": f"{directory}/events.db",
                       "SQLITE_LOCK_TIMEOUT": "60"}  # fmt: skip
        with application.Application(env=environment) as store:

            def effect(key: str) -> None:
                operation = operations(key=key)
                store.save(operation)
                operation.commit(result='{"paid":1}')
                store.save(operation)

            def one_round(number: int) -> Round:
                each = frame.each_of(settings, agents, number)
                return frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings))

            yield one_round


def rows() -> list[Row]:
    what = "eventsourcing on SQLite"
    return [
        frame.effects_row("baseline.eventsourcing", what, agents, partial(aggregates, agents=agents))
        for agents in frame.AGENTS
    ]


if __name__ == "__main__":
    frame.main(rows(), problem=frame.need("eventsourcing"))
