"""The schemas that were ever published: what a reader accepts, and what a writer writes.

``history/<name>.v<number>.avsc`` is one published version and never changes. ``<name>.avsc`` is the present one, equal to
the newest version. Bytes that name any other schema are refused, so every reader is upgraded before any writer is: an
older reader would set aside what a newer writer wrote.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .bounds import Schema
from .errors import SchemaError

__all__ = ["NAMES", "Version", "canonical_form", "current", "fingerprint", "history"]

NAMES = ("record", "effect_fact", "agent_fact")

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Version:
    """One schema as published: its number (0 for the present file), its JSON, and the fingerprint that names it."""

    number: int
    schema: Schema
    fingerprint: bytes


@cache
def current(name: str) -> Version:
    """The schema that is written, and into which everything is read.

    Args:
        name: One of ``NAMES``.
    """
    return _load(_FOLDER / f"{name}.avsc", 0)


@cache
def history(name: str) -> tuple[Version, ...]:
    """Every published version, oldest first.

    Args:
        name: One of ``NAMES``.

    Raises:
        SchemaError: Files are missing: the numbers do not run from 1.
    """
    numbered = {int(path.name.split(".")[1][1:]): path for path in (_FOLDER / "history").glob(f"{name}.v*.avsc")}
    if sorted(numbered) != list(range(1, len(numbered) + 1)) or not numbered:
        raise SchemaError(name, f"the published versions must be numbered from 1, found {sorted(numbered)}")
    return tuple(_load(numbered[number], number) for number in sorted(numbered))


def canonical_form(schema: Schema) -> str:
    """The schema's Parsing Canonical Form: what decides how bytes are read, without documentation and defaults.

    Source: Avro specification, "Parsing Canonical Form for Schemas".
    """
    from fastavro.schema import to_parsing_canonical_form  # noqa: PLC0415 - importing it costs tens of milliseconds

    return str(to_parsing_canonical_form(schema))


def fingerprint(schema: Schema) -> bytes:
    """The CRC-64-AVRO fingerprint of the canonical form: 8 bytes, little-endian, as a single-object header has it.

    Source: Avro specification, "Schema Fingerprints" and "Single-object encoding".
    """
    from fastavro.schema import fingerprint as hexadecimal  # noqa: PLC0415 - see canonical_form

    return bytes.fromhex(hexadecimal(canonical_form(schema), "CRC-64-AVRO"))


def _load(path: Path, number: int) -> Version:
    schema = json.loads(path.read_text(encoding="utf-8"))
    return Version(number, schema, fingerprint(schema))
