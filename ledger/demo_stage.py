"""Where the demo plays: a directory, a store, and on Kafka two projectors."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidArgumentError
from .setup import initialise
from .stores import open_store

PROJECTORS = 2
PARTITIONS = 4
"""Of each topic: few, since every restored agent is fenced in all of them."""
_STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Attributes: `prefix` makes agents and operations of this run its own in a ledger that has others."""

    directory: Path
    url: str
    prefix: str


@contextmanager
def set_up(*, store: str, url: str | None, keep: bool) -> Iterator[Stage]:
    """Everything that the demo needs; taken down at the end (`keep`: but the directory stays).

    Raises InvalidArgumentError: the URL does not fit the store. StoreError: it cannot be initialised.
    """
    _require_fitting(store, url)
    directory = Path(tempfile.mkdtemp(prefix="fencepost-demo-"))
    prefix = f"airline-{secrets.token_hex(3)}" if url else "airline"
    try:
        if store == "embedded":
            yield Stage(directory, url or f"sqlite://{directory}/ledger.db", prefix)
        else:
            with _projected(_development(url or ""), directory) as ready:
                yield Stage(directory, ready, prefix)
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def _require_fitting(store: str, url: str | None) -> None:
    schemes = {"embedded": "sqlite:", "kafka": "kafka:"}
    if store not in schemes:
        raise InvalidArgumentError(
            f"store: {store!r} is not a store.", next_step="Choose embedded or kafka.", field="store"
        )
    if (url is None and store == "kafka") or (url is not None and not url.startswith(schemes[store])):
        raise InvalidArgumentError(
            f"url: the store {store} needs a URL that begins with {schemes[store]}",
            next_step="`make demo STORE=kafka` starts the services and passes one.",
            field="url",
        )


def _development(url: str) -> str:
    """The demo's topics are to be thrown away: one copy of each record is enough for them."""
    return url if "development=" in url else f"{url}&development=1"


@contextmanager
def _projected(url: str, directory: Path) -> Iterator[str]:
    asyncio.run(_initialise(url))
    with ExitStack() as stack:
        for number in range(PROJECTORS):
            stack.enter_context(_projector(url, directory / f"projector-{number}.log"))
        yield url


async def _initialise(url: str) -> None:
    store = open_store(url)
    try:
        await initialise(store, partitions=PARTITIONS, development=True)
    finally:
        await store.close()


@contextmanager
def _projector(url: str, log: Path) -> Iterator[None]:
    """A projector, as `fencepost projector run` starts it."""
    start = "from fencepost.ledger.cli import main; main()"
    command = [sys.executable, "-c", start, "projector", "run", "--url", url]
    with log.open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)  # noqa: S603 (this package's own command)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
