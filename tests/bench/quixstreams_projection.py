"""quixstreams doing the same projection: its state store folds, a function writes each operation's state to Redis.

It wants an older client of Kafka than the ledger, so it runs in an environment of its own: see `requirements-quixstreams.txt`.
Called with a topic it projects; called as the other baselines are, it fills the topic and starts itself there.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def project(bootstrap: str, redis_url: str, topic_name: str, events: int) -> float:
    """Project so many events; the seconds from the first one."""
    fastavro: Any = import_module("fastavro")
    quixstreams: Any = import_module("quixstreams")
    redis: Any = import_module("redis")
    schema = import_module("bench.raw_schema").SCHEMA
    application = quixstreams.Application(
        broker_address=bootstrap, consumer_group=f"quix-{os.getpid()}", auto_offset_reset="earliest",
        state_dir=f"/tmp/quix-{os.getpid()}", loglevel="ERROR", commit_interval=1.0,
    )  # fmt: skip
    topic = application.topic(topic_name, value_deserializer="bytes", key_deserializer="bytes")
    client = redis.Redis.from_url(redis_url)
    began, changed = [0.0], {}

    def fold(value: bytes, state: Any) -> None:
        began[0] = began[0] or time.perf_counter()
        event = fastavro.schemaless_reader(io.BytesIO(value), schema, None)
        state.set("state", event["kind"])
        changed[event["op_id"]] = event["kind"]
        if len(changed) >= 500:
            client.hset(f"{topic_name}:quix", mapping=changed)
            changed.clear()

    frame = application.dataframe(topic)
    frame.update(fold, stateful=True)
    application.run(count=events, timeout=60)
    if changed:
        client.hset(f"{topic_name}:quix", mapping=changed)
    ended = time.perf_counter()
    client.delete(f"{topic_name}:quix")
    return ended - began[0]


def measured() -> None:
    """The row, as the other baselines print it."""
    from bench import frame, raw_chain  # noqa: PLC0415 - not in the other environment

    from fencepost.ledger.bench_rows import Measure, Round, Row, Settings  # noqa: PLC0415 - likewise

    python = Path(os.environ.get("FENCEPOST_BENCH_QUIX_PYTHON", HERE.parents[1] / ".venv-quix" / "bin" / "python"))
    problem = "" if python.exists() else f"not installed: quixstreams (no {python}; see requirements-quixstreams.txt)"

    from collections.abc import Iterator  # noqa: PLC0415 - likewise
    from contextlib import contextmanager  # noqa: PLC0415 - likewise

    @contextmanager
    def prepare(settings: Settings) -> Iterator[Measure]:
        events = raw_chain.size(settings)["events"] // 2 * 2
        topic = raw_chain.filled_topic(settings, events)

        def one_round(number: int) -> Round:
            del number
            command = [
                str(python),
                "-m",
                "bench.quixstreams_projection",
                frame.bootstrap(settings),
                frame.redis_url(settings),
                topic,
                str(events),
            ]
            watch = frame.meter(settings)
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return Round(events, max(float(done.stdout.split()[-1]), 1e-9), (), watch.spent())

        yield one_round

    row = Row(
        "baseline.quixstreams",
        frame.BASELINE,
        "quixstreams with its state, the same projection",
        raw_chain.size,
        prepare,
    )
    frame.main([row], problem=problem, needs_services=True)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[4].isdigit():
        bootstrap, redis_url, topic, events = sys.argv[1:]
        print(project(bootstrap, redis_url, topic, int(events)))
    else:
        measured()
