"""From a URL to a store. Adapters are found by entry point, so the core imports none of them."""

from __future__ import annotations

import asyncio
import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import quote

from . import urls
from .embedded import default_path
from .errors import GuaranteeError, InvalidArgumentError, StoreUnavailableError
from .ports import Check, Log, LogReader, Projection, Store, StraightLog, Terms
from .positions import Topic

_log = logging.getLogger("fencepost.store")


class LogFacts(Protocol):
    """What brokers say of a ledger's topics."""

    @property
    def topic_ids(self) -> Mapping[Topic, str]:
        """The id of each."""
        ...

    @property
    def partitions(self) -> Mapping[Topic, int]:
        """The partition count of each."""
        ...

    @property
    def min_compaction_lag_ms(self) -> int:
        """The shorter of the two lags."""
        ...


class Admin(Protocol):
    """Administration of a store that is made of two services."""

    async def initialise(
        self, *, partitions: int | None, development: bool, min_compaction_lag_ms: int | None = None
    ) -> None:
        """Create what is missing."""
        ...

    async def check(self) -> Sequence[Check]:
        """Every guarantee, looked at now."""
        ...

    async def guarantees(self) -> Sequence[Check]:
        """Those of the settings alone."""
        ...

    async def facts(self) -> LogFacts:
        """Which topics these are."""
        ...


def store_url(given: str | None = None) -> str:
    """The URL to use: argument > FENCEPOST_URL > fencepost.toml > the user's state directory.

    Raises InvalidArgumentError for one that is given and blank: it must not become another ledger.
    """
    sources: tuple[tuple[str, object], ...] = (("url", given), ("FENCEPOST_URL", os.environ.get("FENCEPOST_URL")))
    for source, url in sources:
        if url is None:
            continue
        if not isinstance(url, str) or not url.strip():
            raise InvalidArgumentError(
                f"url: {source} is given, and {'is blank' if isinstance(url, str) else 'is no text'}.",
                next_step="Name the ledger, or leave it out (`unset FENCEPOST_URL`) for the one of fencepost.toml or "
                "of the user's state directory.",
                field="url",
            )
        return url
    config = Path("fencepost.toml")
    if config.is_file():
        try:
            configured = tomllib.loads(config.read_text()).get("url")
        except tomllib.TOMLDecodeError as error:
            raise InvalidArgumentError(
                f"url: {config.resolve()} is not valid TOML ({error}).",
                next_step='Write one line: url = "sqlite:///…" or "kafka://…".',
                field="url",
            ) from error
        if configured is not None:
            if isinstance(configured, str) and configured.strip():
                return configured
            raise InvalidArgumentError(
                f"url: {config.resolve()} names no ledger.",
                next_step='Write one line: url = "sqlite:///…" or "kafka://…", or leave it out.',
                field="url",
            )
    return f"sqlite://{quote(str(default_path()))}"


def open_store(url: str | None = None) -> Store:
    """The store behind a URL; nothing is contacted yet where that can be avoided.

    Raises InvalidArgumentError for what is not a store URL.
    """
    parsed = urls.parse(store_url(url))
    if parsed.scheme == "sqlite":
        return cast(Store, _load("fencepost.stores", "sqlite")(parsed))
    return ComposedStore(parsed)


def _load(group: str, name: str) -> Any:
    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise InvalidArgumentError(
        f"url: no adapter named {name!r} is installed ({group}).",
        next_step="Install fencepost completely: `pip install fencepost`.",
        field="url",
    )


class ComposedStore:
    """A log of one service and a projection of another, behind one URL."""

    def __init__(self, parsed: urls.StoreUrl) -> None:
        self.url = parsed.text
        self._parsed = parsed
        self._log: Log | None = None
        self._projection: Projection | None = None
        self.at_once = None  # a projector applies what is appended

    @property
    def log(self) -> Log:
        """The log, opened at its first use."""
        if self._log is None:
            self._log = cast(Log, _load("fencepost.logs", "kafka")(self._parsed))
        return self._log

    @property
    def straight(self) -> StraightLog:
        """The same log, to be written to from any thread or loop."""
        return cast(StraightLog, self.log)

    @property
    def projection(self) -> Projection:
        """The projection, opened at its first use."""
        if self._projection is None:
            self._projection = cast(Projection, _load("fencepost.projections", "redis")(self._parsed))
        return self._projection

    @property
    def admin(self) -> Admin:
        """The administration of both services."""
        return cast(Admin, _load("fencepost.admins", "kafka")(self._parsed))

    def reader(self) -> LogReader:
        """A reader of the log; the caller closes it."""
        return cast(LogReader, _load("fencepost.readers", "kafka")(self._parsed))

    async def initialise(self, *, partitions: int | None, development: bool, generation: int = 0) -> None:
        """Create the topics, if they do not exist.

        Raises InvalidArgumentError when the URL names another generation.
        """
        if generation != self._parsed.generation:
            raise InvalidArgumentError(
                f"url: it names log generation {self._parsed.generation}, wanted is {generation}.",
                next_step=f"Put generation={generation} into the URL.",
                field="url",
            )
        await self.admin.initialise(partitions=partitions, development=development or self._parsed.development)

    async def generation(self) -> int:
        """The log generation that the URL names."""
        return self._parsed.generation

    async def terms(self) -> Terms:
        """What the topics give. Raises GuaranteeError naming each setting that breaks a promise."""
        admin = self.admin
        weak = require_guarantees(await admin.guarantees())
        if weak:
            told = "; ".join(f"{check.name} is {check.found}, not {check.wanted}" for check in weak)
            _log.warning("development profile, not for money: %s", told)
        facts = await admin.facts()
        topics = [f"{t.value}={facts.topic_ids[t]}/{facts.partitions[t]}" for t in Topic]
        return Terms(";".join([*topics, "murmur2_random"]), facts.min_compaction_lag_ms / 1000)

    async def check(self) -> Sequence[Check]:
        """Every guarantee of the log's and the projection's settings."""
        return await self.admin.check()

    async def close(self) -> None:
        """Close what was opened."""
        parts = [part for part in (self._log, self._projection) if part is not None]
        await asyncio.gather(*(part.close() for part in parts))


def require_guarantees(checks: Sequence[Check]) -> list[Check]:
    """The warnings among `checks`.

    Raises:
        StoreUnavailableError: nothing is wrong but that one of the services does not answer; trying again is safe.
        GuaranteeError: names each setting that breaks a promise.
    """
    broken = [c for c in checks if not c.ok and c.severity == "refuse"]
    if broken and all(c.name.endswith(" answers") for c in broken):
        raise StoreUnavailableError(broken[0].found, next_step="Then open the ledger again.")
    if broken:
        listed = "; ".join(said(c) for c in broken)
        missing = any(c.name.endswith(": exists") for c in broken)
        raise GuaranteeError(
            f"the store does not give what the ledger promises: {listed}.",
            next_step="Create the topics with `fencepost init`."
            if missing
            else "Correct the settings, then look again with `fencepost doctor`.",
            checks=[c._asdict() for c in broken],
        )
    return [c for c in checks if not c.ok]


def said(check: Check) -> str:
    """What a check that failed found, and what is wanted, as a part of a sentence."""
    if check.found.endswith("."):  # an error's own words
        return f"{check.name}: {check.found} {check.wanted}".removesuffix(".")
    return f"{check.name} is {check.found}, must be {check.wanted}"
