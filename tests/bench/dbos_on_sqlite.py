"""DBOS on SQLite: an effect is a workflow with one step, under a workflow id that is the operation's key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from bench import frame

from fencepost.ledger.bench_rows import Measure, Round, Row, Settings


def workflows(settings: Settings, agents: int) -> Iterator[Measure]:
    dbos: Any = import_module("dbos")
    with frame.directory(settings) as directory:
        logging.getLogger("dbos").setLevel(logging.ERROR)
        config = {"name": "bench", "system_database_url": f"sqlite:///{directory}/dbos.sqlite", "run_admin_server": False,
                  "log_level": "ERROR", "conductor_key": None}  # fmt: skip
        dbos.DBOS(config=config)

        def step(key: str) -> dict[str, str]:
            return {"paid": key}

        stepped = dbos.DBOS.step()(step)

        def workflow(key: str) -> Any:
            return stepped(key)

        started = dbos.DBOS.workflow()(workflow)
        dbos.DBOS.launch()

        def effect(key: str) -> None:
            with dbos.SetWorkflowID(key):
                assert started(key) == {"paid": key}

        def one_round(number: int) -> Round:
            each = frame.each_of(settings, agents, number)
            return frame.in_threads(effect, agents, each, f"r{number}", frame.meter(settings))

        try:
            yield one_round
        finally:
            dbos.DBOS.destroy(destroy_registry=True)


def rows() -> list[Row]:
    return [
        frame.effects_row("baseline.dbos", "DBOS on SQLite", agents, partial(workflows, agents=agents))
        for agents in frame.AGENTS
    ]


if __name__ == "__main__":
    frame.main(rows(), problem=frame.need("dbos"))
