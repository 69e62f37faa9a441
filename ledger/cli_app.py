"""What a command works with: the global options, the output, and the ledger that is opened for it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .cli_output import Output
from .errors import StoreError

if TYPE_CHECKING:
    from .facade import Ledger
    from .ports import Store
    from .urls import StoreUrl

T = TypeVar("T")
_PASSWORD = re.compile(r"((?::|%3a)(?://|%2f%2f)[^:/@?&\s]*?(?::|%3a))[^@/?&\s]+?(@|%40)", re.IGNORECASE)


@dataclass(slots=True)
class App:
    """The global options of one run. The facade is imported when a ledger is opened, not before.

    Attributes:
        url: as given with `--url`; None for the configured one.
    """

    url: str | None = None
    as_json: bool = False
    quiet: bool = False
    debug: bool = False
    _out: Output | None = field(default=None, repr=False)

    @property
    def out(self) -> Output:
        """Where data and notes go; made after all options are read."""
        if self._out is None:
            self._out = Output(as_json=self.as_json, quiet=self.quiet)
        return self._out

    def location(self) -> StoreUrl:
        """The ledger's URL in its parts. Raises InvalidArgumentError."""
        from . import stores, urls  # noqa: PLC0415 - takes its time

        return urls.parse(stores.store_url(self.url))

    def shown_url(self) -> str:
        """The URL for people and logs: passwords are left out."""
        return _PASSWORD.sub(r"\1***\2", self.location().text)

    def require_existing(self) -> None:
        """Raise StoreError unless the ledger's file exists; opening it in code would create it."""
        from .embedded_place import size_of  # noqa: PLC0415 - takes its time

        location = self.location()
        if location.scheme == "sqlite" and not size_of(Path(location.path)):
            raise StoreError(
                f"no ledger at {location.path}.",
                next_step="Run `fencepost init`, or open one in code.",
                path=location.path,
            )

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """The ledger, opened; never created. Raises StoreError."""
        self.require_existing()
        from .facade import Ledger  # noqa: PLC0415 - takes its time

        with Ledger.open(self.url) as ledger:
            yield ledger

    def on_store(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """What `work` gives with the store, which needs no projector and may not be initialised."""
        import asyncio  # noqa: PLC0415 - takes its time

        from .stores import open_store  # noqa: PLC0415 - takes its time

        async def run() -> T:
            store = open_store(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())
