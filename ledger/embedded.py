"""The embedded store: log and projection in one SQLite file, for many processes on one machine.

    sqlite:///absolute/path/ledger.db

The file belongs into the user's state directory (`default_path`), not beside the agent's own
state: a ledger that is restored together with what it watches is no ledger.

The parts, all of them loaded by `open_store` only, since the client library takes its time:
    embedded_tables    the tables, and reading and writing their rows
    embedded_errors    what the client's errors mean
    embedded_file      opens the file, refuses what is not ours
    embedded_apply     what one transaction does: append, project, pay debts; rebuild
    embedded_known     what is known of a partition from one transaction to the next
    embedded_threads   threads that own a connection, and how they answer
    embedded_writer    group commit by a thread for many; for one by the caller's own
    embedded_reader    snapshots, and waiting for the projection
    embedded_glance    small reads without a change of threads
    embedded_checks    what the doctor looks at
    embedded_store     the ports
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .embedded_store import EmbeddedStore
    from .urls import StoreUrl


def open_store(url: StoreUrl) -> EmbeddedStore:
    """The store of one file. Touches nothing yet: the file is opened by the first call that needs it.

    Raises:
        InvalidArgumentError: the URL is not one of this store, or its path is relative.
    """
    path = Path(url.path)
    if url.scheme != "sqlite" or not path.is_absolute():
        raise InvalidArgumentError(
            f"url: {url.text!r} does not name a file of the embedded store.",
            next_step="Write it like sqlite:///absolute/path/ledger.db.",
            field="url",
        )
    from .embedded_store import EmbeddedStore  # noqa: PLC0415 - loads the client library

    return EmbeddedStore(url.text, path)


def default_path() -> Path:
    """Where a ledger lives that nobody named a place for: in the user's state directory.

    Source: XDG Base Directory Specification, `XDG_STATE_HOME` (a relative value counts as unset).
    """
    state_home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state_home.is_absolute():
        state_home = Path.home() / ".local" / "state"
    return state_home / "fencepost" / "ledger.db"
