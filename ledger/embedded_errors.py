"""What an error of the embedded store's client library means to the caller: the one translation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from .errors import FencepostError, OutcomeUnknownError, PublishRefusedError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

DatabaseError = apsw.Error

DAMAGED = (
    "Stop every process that uses it and copy the file together with its -wal and -shm files. If `fencepost projector "
    "rebuild` fails as well, recover the log into a new file with the `.recover` command of the sqlite3 shell; until "
    "then treat every effect as unknown. Do not put an old copy in its place: it does not know what happened since."
)

_MEANINGS: tuple[tuple[tuple[type[apsw.Error], ...], str, str, type[StoreError]], ...] = (
    ((apsw.BusyError, apsw.LockedError), "another process holds the lock", "Try again.", StoreUnavailableError),
    ((apsw.FullError,), "the disk is full", "Free some space, then try again.", PublishRefusedError),
    ((apsw.CorruptError, apsw.NotADBError), "the file is damaged or is no database", DAMAGED, StoreError),
    (
        (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError),
        "the file is read-only",
        "Make it and its directory writable for this user.",
        PublishRefusedError,
    ),
    (
        (apsw.CantOpenError,),
        "the file cannot be opened",
        "Check its directory and permissions.",
        PublishRefusedError,
    ),
    ((apsw.IOError,), "the disk failed", "Check the disk, then try again.", PublishRefusedError),
    ((apsw.Error,), "the database refused", "Run `fencepost doctor`.", PublishRefusedError),
)


def translate(error: DatabaseError, path: Path, *, writing: bool) -> FencepostError:
    """The error to raise `from` one of the client library.

    Args:
        error: raised before a COMMIT, or by a COMMIT that was certainly rolled back.
        path: the file.
        writing: whether something was to be published. It is certainly not written.
    """
    _, what, next_step, kind = next(meaning for meaning in _MEANINGS if isinstance(error, meaning[0]))
    if writing and kind is not StoreUnavailableError:
        kind = PublishRefusedError
    elif not writing and kind is PublishRefusedError:
        kind = StoreUnavailableError
    tail = " Nothing was written." if writing else ""
    return kind(f"{path}: {what} ({error}).{tail}", next_step=next_step)


def unknown_outcome(error: Exception, path: Path) -> OutcomeUnknownError:
    """The error for a COMMIT that failed in a way that may have left it on the disk.

    After a failed sync the kernel may have dropped the data and forgotten that it failed, so
    a second attempt that succeeds proves nothing. Nobody retries it here.
    """
    return OutcomeUnknownError(
        f"{path}: the disk failed while a record was being committed ({error}).",
        next_step="Check the disk; then look at the operation again: publishing the same attempt once more is safe.",
    )


def set_back(path: Path, what: str, *, writing: bool) -> StoreError:
    """The error for a file that is not what this process saw of it before."""
    kind = PublishRefusedError if writing else StoreError
    tail = " Nothing was written." if writing else ""
    return kind(
        f"{path} {what}.{tail}",
        next_step="Find out who did it and put the newest file back, with every process stopped: a ledger must not be "
        "restored together with the agent's state.",
    )


def defect(error: Exception) -> StoreError:
    """The error for an exception that should not have been possible, in a sound file at least."""
    if isinstance(error, UnicodeDecodeError):
        return StoreError(f"The file is damaged: a text in it is none ({error}).", next_step=DAMAGED)
    return PublishRefusedError(
        f"The embedded store failed ({type(error).__name__}: {error}). Nothing was written.",
        next_step="Report it as a defect of Fencepost, with the traceback.",
    )


def may_go_on(error: DatabaseError) -> bool:
    """Whether a connection is as good as before once it has rolled back, even if a COMMIT raised this.

    When the disk was full, the commit frame, which comes last, was not written whole; when the
    file was locked, nothing was written at all.
    """
    return isinstance(error, apsw.FullError | apsw.BusyError)
