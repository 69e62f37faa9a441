"""What a compaction of a context must satisfy before it is recorded: its drop manifest, its size, its token."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from .contexts import Context
from .errors import CompactionRefusedError, InvalidArgumentError, RecordTooLargeError, WatermarkMangledError
from .facts import Dropped
from .identity import check_id
from .watermarks import Point, Watermark

DroppedItem = Dropped | str | tuple[str, str | bytes]
"""A reference; or with the dropped text itself, of which the SHA-256 is kept; or with a digest, as a `Dropped`."""

MAX_DROPPED, MAX_DROPPED_BYTES = 4_000, 200_000
MAX_KEPT, MAX_KEPT_BYTES = 2_000, 100_000
"""Of one compaction. The log may hold the same fact more than once, and one record must take them all."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_EACH_BYTES = 4  # lengths beside each text


def drop_manifest(dropped: Iterable[DroppedItem], field: str = "dropped") -> tuple[Dropped, ...]:
    """The references that a compaction dropped, each once, with the SHA-256 of its text where that is known.

    Raises InvalidArgumentError naming `field`.
    """
    if isinstance(dropped, (str, bytes, Dropped)) or not isinstance(dropped, Iterable):
        raise _unusable(field, dropped)
    found: dict[str, Dropped] = {}
    for item in dropped:
        entry = _entry(item, field)
        before = found.setdefault(entry.reference, entry)
        if before.digest and entry.digest and before.digest != entry.digest:
            raise InvalidArgumentError(
                f"{field}: {entry.reference!r} is named twice, with different texts.",
                next_step="Give each text a reference of its own.",
                field=field,
            )
        found[entry.reference] = before if before.digest else entry
    return tuple(found.values())


def _entry(item: object, field: str) -> Dropped:
    match item:
        case str():
            return Dropped(check_id(field, item))
        case Dropped(reference, digest):
            return Dropped(check_id(field, reference), check_digest(digest, field) if digest != "" else "")
        case (reference, str() | bytes() as text):
            return Dropped(check_id(field, reference), text_digest(text, field))
    raise _unusable(field, item)


def check_digest(value: object, field: str) -> str:
    """`value` if it is a SHA-256 in hexadecimal. Raises InvalidArgumentError naming `field`."""
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value
    raise InvalidArgumentError(
        f"{field}: {value!r:.80} is not a SHA-256 in hexadecimal (64 lower-case digits).",
        next_step="Pass `hashlib.sha256(text.encode()).hexdigest()`.",
        field=field,
    )


def text_digest(text: str | bytes, field: str = "text") -> str:
    """The SHA-256 of a text. Raises InvalidArgumentError for text that is not Unicode."""
    try:
        data = text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{field}: holds half a surrogate pair at character {error.start}.",
            next_step="Pass text that can be encoded as UTF-8, or bytes.",
            field=field,
        ) from error
    return hashlib.sha256(data).hexdigest()


def _unusable(field: str, item: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{field}: {item!r:.80} is no reference.",
        next_step="Pass a list of references, of (reference, text), or of Dropped values.",
        field=field,
    )


def require_room(dropped: Sequence[Dropped], kept: Sequence[str]) -> None:
    """Raises RecordTooLargeError, naming the field, for more than one compaction can record."""
    size = sum(len(d.reference.encode()) + len(d.digest) + 2 * _EACH_BYTES for d in dropped)
    if len(dropped) > MAX_DROPPED or size > MAX_DROPPED_BYTES:
        raise _no_room("dropped", "references", len(dropped), MAX_DROPPED, size, MAX_DROPPED_BYTES)  # fmt: skip
    size = sum(len(op_id.encode()) + _EACH_BYTES for op_id in kept)
    if len(kept) > MAX_KEPT or size > MAX_KEPT_BYTES:
        raise _no_room("kept", "operations that the summary names", len(kept), MAX_KEPT, size, MAX_KEPT_BYTES)


def _no_room(field: str, what: str, count: int, most: int, size: int, limit: int) -> RecordTooLargeError:  # noqa: PLR0917
    ways = {
        "dropped": "Compact in smaller steps, or name what belongs together by one reference.",
        "kept": "Let the summary name fewer operations; the ledger has the others for a reconciliation.",
    }
    return RecordTooLargeError(
        f"{field}: {count} {what}, {size} bytes; one compaction records at most {most}, and {limit} bytes.",
        next_step=ways[field],
        field=field,
        size_bytes=size,
        limit_bytes=limit,
    )


# -- the token -------------------------------------------------------------------------


def require_token(context: Context, point: Point, summary: str, ledger_id: str) -> Watermark:
    """The watermark whose token the summary holds: the newest one on the path of `point`.

    It must not be older than the newest checkpoint's, or former compaction's, on that path.

    Raises CompactionRefusedError: `problem` says what is wrong ("absent", "mangled", "foreign":
    another ledger's, agent's, or path's, "outdated"), `token` is one to embed.
    """
    agent, path = context.agent, context.agent.path(point)
    required = newest_mark(context, point)
    here = Watermark(ledger_id, agent.agent_id, agent.branch_of(point), *point)
    embed = (required or here).token
    found = Watermark.find_all(summary)
    mine = [m for m in found if (m.ledger_id, m.agent_id) == (ledger_id, agent.agent_id)]
    on_path = [m for m in mine if m.seq <= path.get(m.epoch, -1)]
    if not on_path:
        raise _refused("foreign" if mine else _lost(summary, found, agent.agent_id, ledger_id), embed)
    newest = max(on_path, key=lambda mark: mark.point)
    if required is not None and newest.point < required.point:
        raise _refused("outdated", embed)
    return newest


def newest_mark(context: Context, point: Point) -> Watermark | None:
    """The newest watermark of a checkpoint or a compaction on the path of a point."""
    path = context.agent.path(point)
    marks = [*(c.mark for c in context.checkpoints.values()), *(c.mark for c in context.compactions_at(point))]
    on_path = (mark for mark in marks if mark is not None and mark.seq <= path.get(mark.epoch, -1))
    return max(on_path, key=lambda mark: mark.point, default=None)


def _lost(summary: str, found: Sequence[Watermark], agent_id: str, ledger_id: str) -> str:
    try:
        Watermark.find(summary, agent_id=agent_id, ledger_id=ledger_id)
    except WatermarkMangledError:
        return "mangled"
    return "foreign" if found else "absent"


_PROBLEMS = {
    "absent": "the summary has lost the watermark's token",
    "mangled": "the summary holds a damaged token",
    "foreign": "the token in the summary is of another ledger or agent, or not on this session's path",
    "outdated": "the token in the summary is older than the newest checkpoint's or compaction's",
}


def _refused(problem: str, token: str) -> CompactionRefusedError:
    return CompactionRefusedError(
        f"the compaction is refused: {_PROBLEMS[problem]}. Nothing was recorded.",
        next_step=f"Embed {token} in the summary, letter by letter, and record that one.",
        problem=problem,
        token=token,
    )
