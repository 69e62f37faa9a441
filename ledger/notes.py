"""What a projection notes about a record that was set aside: how it is read, the same for everybody."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..schemas.errors import DecodeError
from .positions import Position


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a record that was set aside.

    Attributes:
        key: the record's log key; None when that is missing or not text.
        partition: as the note names it; "" when it does not.
    """

    position: Position
    key: str | None
    problem: str
    partition: str = ""
    time_ms: int = 0
    stray: bool = False


def read_note(data: bytes, generation: int) -> Note:
    """The note in a document; `generation` where it does not say one.

    Raises DecodeError for anything else: somebody else has written there.
    """
    try:
        said: Any = json.loads(data)
        position = Position(int(said.get("generation", generation)), int(said["offset"]))
        key, problem = said["key"], str(said["problem"])
        rest = str(said.get("partition", "")), int(said.get("time_ms", 0)), bool(said.get("stray", False))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError("a note about a record that was set aside", f"it is damaged: {error!r}") from error
    if not (key is None or isinstance(key, str)):
        raise DecodeError("a note about a record that was set aside", "it is damaged: its key is no text")
    return Note(position, key, problem, *rest)
