"""What a run leaves behind, as files of lines of JSON, and the same as values for the checker.

sink.jsonl          what happened to the outside world, written by the sink alone
acked.NAME.jsonl    each fact that an agent's publish was acknowledged for
calls.NAME.jsonl    what each call of an agent came to
decisions.NAME.jsonl what the guard said
tap.jsonl           every record of the log, as it came, before any compaction
log.jsonl           every record that is in the log at the end
projection.jsonl    every document that is in Redis at the end
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fencepost.ledger.ports import DocumentKey
from fencepost.ledger.positions import Partition, Position, Topic
from fencepost.ledger.watermarks import Point

Documents = dict[DocumentKey, bytes]


class Hit(NamedTuple):
    """One change of the outside world, or a key that was voided there. `at`: monotonic nanoseconds."""

    do: str
    key: str
    op_id: str = ""
    attempt_id: str = ""
    agent_id: str = ""
    session_id: str = ""
    at: int = 0


class Acked(NamedTuple):
    """A fact whose publish was acknowledged; the offset is None where the log did not tell it."""

    partition: Partition
    key: str
    offset: int | None
    fact: bytes
    at: int = 0


class Called(NamedTuple):
    """What a call came to. `outcome`: ok, fail (certainly nothing was run), unknown, or foreign (an untyped error)."""

    agent_id: str
    op_id: str
    outcome: str
    ran: bool = False
    attempt_id: str = ""
    value: Any = None
    error: str = ""
    took_s: float = 0.0


class Decided(NamedTuple):
    """What the guard said to an agent; `target` is what the checkpoint knows."""

    agent_id: str
    rollback_id: str
    verdict: str
    target: Point
    at: int = 0


class Raw(NamedTuple):
    """One record as it stands in the log."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


@dataclass
class Evidence:
    """Everything that a run left behind."""

    partitions: int
    sink: list[Hit] = field(default_factory=list)
    acked: list[Acked] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    decisions: list[Decided] = field(default_factory=list)
    tap: dict[Partition, list[Raw]] = field(default_factory=dict)
    log: dict[Partition, list[Raw]] = field(default_factory=dict)
    projection: dict[Partition, Documents] = field(default_factory=dict)


# -- writing ---------------------------------------------------------------------------


def text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def raw_line(partition: Partition, raw: Raw) -> bytes:
    place = {"topic": partition.topic.value, "number": partition.number, "offset": raw.offset, "time_ms": raw.time_ms}
    return line({**place, "key": text_of(raw.key), "value": text_of(raw.value)})


def acked_line(acked: Acked) -> bytes:
    place = {"topic": acked.partition.topic.value, "number": acked.partition.number, "offset": acked.offset}
    return line({**place, "key": acked.key, "fact": text_of(acked.fact), "at": acked.at})


def decided_line(decided: Decided) -> bytes:
    target = [*decided.target.epoch, decided.target.seq]
    return line({**decided._asdict(), "target": target})


def write_projection(path: Path, projection: Mapping[Partition, Documents]) -> None:
    with path.open("wb") as out:
        for partition, documents in projection.items():
            place = {"topic": partition.topic.value, "number": partition.number}
            for key, value in documents.items():
                out.write(line({**place, "collection": key.collection, "key": key.key, "value": text_of(value)}))


# -- reading ---------------------------------------------------------------------------


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file; the last one of a process that was killed may be cut."""
    if not path.exists():
        return
    for text in path.read_bytes().splitlines(keepends=True):
        if text.endswith(b"\n"):
            yield json.loads(text)


class Follower:
    """A file that grows: each look gives the whole lines that are new since the last one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The lines that were not given before; half a line waits for its other half."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for text in file:
                if not text.endswith(b"\n"):
                    return
                self._read += len(text)
                yield json.loads(text)


def load(directory: Path, partitions: int) -> Evidence:
    """What the files in a directory say."""
    return Evidence(
        partitions,
        sink=[Hit(**values) for values in lines(directory / "sink.jsonl")],
        acked=[_acked(values) for values in _all(directory, "acked.*.jsonl")],
        calls=[Called(**values) for values in _all(directory, "calls.*.jsonl")],
        decisions=[_decided(values) for values in _all(directory, "decisions.*.jsonl")],
        tap=load_log(directory / "tap.jsonl"),
        log=load_log(directory / "log.jsonl"),
        projection=_projection(lines(directory / "projection.jsonl")),
    )


def load_log(path: Path) -> dict[Partition, list[Raw]]:
    """Records by partition, each once, in order."""
    found: dict[Partition, dict[int, Raw]] = {}
    for values in lines(path):
        raw = Raw(values["offset"], values["time_ms"], bytes_of(values["key"]), bytes_of(values["value"]))
        found.setdefault(_place(values), {})[raw.offset] = raw
    return {place: [records[offset] for offset in sorted(records)] for place, records in found.items()}


def _all(directory: Path, pattern: str) -> Iterator[dict[str, Any]]:
    for path in sorted(directory.glob(pattern)):
        yield from lines(path)


def _place(values: Mapping[str, Any]) -> Partition:
    return Partition(Topic(values["topic"]), values["number"])


def _acked(values: Mapping[str, Any]) -> Acked:
    return Acked(_place(values), values["key"], values["offset"], bytes_of(values["fact"]) or b"", values["at"])


def _decided(values: Mapping[str, Any]) -> Decided:
    generation, offset, seq = values["target"]
    return Decided(**{**values, "target": Point(Position(generation, offset), seq)})


def _projection(found: Iterable[Mapping[str, Any]]) -> dict[Partition, Documents]:
    documents: dict[Partition, Documents] = {}
    for values in found:
        key = DocumentKey(values["collection"], values["key"])
        documents.setdefault(_place(values), {})[key] = bytes_of(values["value"]) or b""
    return documents
