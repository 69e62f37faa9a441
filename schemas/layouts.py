"""Records of which most fields are at their defaults, as facts are: what each field costs is paid for those that are told.

The encoding of a record is that of its fields one after the other, and that of a default is always the same bytes. So for
each set of told fields there is a smaller schema with the same bytes: on writing, a run of other fields is one `fixed`
with their bytes as its default; on reading, the told fields are cut out and are read alone. The Avro library does both.
"""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from .bounds import Schema
from .shape import FieldShape, MismatchError, field_shape, typed_default

__all__ = ["Layouts"]

_MOST = 500
"""So many sets of told fields are remembered. A ledger has a few dozen; others are handled like one that tells all."""


class _Writing(NamedTuple):
    """How values with some names are written: the shape of each value, in the values' order, and the smaller schema."""

    shapes: Sequence[FieldShape]
    schema: Schema


class Layouts:
    """The smaller schemas of one record schema.

    Args:
        schema: A record's, as published.
        parsed: Makes a schema ready for the library.
    """

    def __init__(self, schema: Schema, parsed: Callable[[Schema], Schema]) -> None:
        from fastavro import schemaless_writer  # noqa: PLC0415 - tens of milliseconds

        self._fields: Sequence[Mapping[str, Any]] = schema["fields"]
        self._schema = schema
        self._parsed = parsed
        self._write = schemaless_writer
        self._whole = parsed(schema)
        self._shapes = {field["name"]: field_shape(field) for field in self._fields}
        self.defaults = [self._encoded(field) for field in self._fields]
        self._writing: dict[tuple[str, ...], _Writing] = {}
        self._reading: dict[int, Schema] = {}

    def writing(self, names: tuple[str, ...]) -> _Writing:
        """How to write a value with these fields. Raises MismatchError for a name that is no field's."""
        found = self._writing.get(names)
        if found is None:
            if unknown := set(names) - self._shapes.keys():
                raise MismatchError(f"no such field: {', '.join(sorted(map(str, unknown)))}")
            shapes = [self._shapes[name] for name in names]
            if len(self._writing) >= _MOST:
                return _Writing(shapes, self._whole)
            found = self._writing[names] = _Writing(shapes, self._parsed(self._with_runs(set(names))))
        return found

    def reading(self, told: int) -> Schema | None:
        """The schema of the told fields alone, by the bits of their numbers; None: it is one too many to remember."""
        found = self._reading.get(told)
        if found is None and len(self._reading) < _MOST:
            fields = [field for number, field in enumerate(self._fields) if told >> number & 1]
            found = self._reading[told] = self._parsed({**self._schema, "fields": fields})
        return found

    def _with_runs(self, told: set[str]) -> Schema:
        fields: list[Mapping[str, Any]] = []
        run = b""
        for field, default in zip(self._fields, self.defaults, strict=True):
            if field["name"] in told:
                fields += [*_run(run, len(fields)), field]
                run = b""
            else:
                run += default
        return {**self._schema, "fields": [*fields, *_run(run, len(fields))]}

    def _encoded(self, field: Mapping[str, Any]) -> bytes:
        """The encoding of a field's default."""
        out = BytesIO()
        alone = self._parsed({**self._schema, "fields": [field]})
        self._write(out, alone, {field["name"]: typed_default(field["type"], field["default"])})
        return out.getvalue()


def _run(default: bytes, number: int) -> list[Mapping[str, Any]]:
    if not default:
        return []
    kind = {"type": "fixed", "name": f"runs.Run{number}", "size": len(default)}
    return [{"name": f"_run{number}", "type": kind, "default": default.decode("latin-1")}]
