"""One schema made ready for use: values to bodies, bodies of any published version to values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

from .bounds import Limits, Schema, compile_bounds, require_bounded
from .catalogue import Version, current, history
from .errors import DecodeError, EncodeError, SchemaError, UnknownSchemaError
from .readers import StandIns, Usual, compile_usual, stood_in
from .shape import MismatchError, compile_shape, expected, is_mapping, typed_default
from .writers import Writer, compile_writer

__all__ = ["Format", "load_format"]

_MOST_WRITERS = 500
"""For so many sets of told fields; a ledger has a few dozen. Values that tell another set are written by the library."""


@dataclass(frozen=True, slots=True)
class _Writer:
    """How to read what one published version wrote; ``target`` is None if that version is the present one."""

    check: Callable[[bytes, int], None]
    source: Schema
    target: Schema | None


class Format:
    """Reads and writes the bodies of one schema; the header in front belongs to the codec.

    Args:
        present: The schema to write, and to read into.
        published: Every version whose bytes are to be read; the present one always is.
        limits: What one encoding may take.

    Raises:
        SchemaError: A schema file is unusable.
    """

    def __init__(self, present: Version, published: Sequence[Version], limits: Limits) -> None:
        from fastavro import schemaless_reader, schemaless_writer  # noqa: PLC0415 - tens of milliseconds

        self.what: str = present.schema["name"]
        self.schema: Schema = present.schema
        self.fingerprint = present.fingerprint
        self._read_body: Callable[..., dict[str, Any]] = schemaless_reader  # type: ignore[assignment] # all are records
        self._write_body = schemaless_writer
        self._limits = limits
        self._certain_bytes = min(limits.max_bytes, limits.max_items)  # an item has a byte: below, no limit is reached
        self._target = _parsed(present.schema, self.what)
        self._shape = compile_shape(present.schema)
        self._told_writers: dict[tuple[str, ...], Writer] = {}
        self._writers = {
            version.fingerprint: _Writer(
                check=compile_bounds(version.schema, self.what, limits),
                source=_parsed(version.schema, self.what),
                target=None if version.fingerprint == present.fingerprint else self._target,
            )
            for version in (*published, present)
        }
        self._check = self._writers[present.fingerprint].check

    def write(self, header: bytes, values: Mapping[str, Any]) -> bytes:
        """The header, followed by the values' body.

        Guarantees: equal values give equal bytes; ``read`` accepts what this gives back.

        Raises:
            EncodeError: A value does not fit its field, no field has that name, or the limits are exceeded.
        """
        if not is_mapping(values):
            raise EncodeError(self.what, expected("a mapping", values))
        writer = self._writer(tuple(values))
        data = writer(header, values) if writer else None
        if data is None:
            data = self._write_shaped(header, values)
        if len(data) > self._certain_bytes:
            try:
                self._check(data, len(header))
            except DecodeError as error:
                raise EncodeError(self.what, error.reason) from None
        return data

    def _writer(self, names: tuple[str, ...]) -> Writer | None:
        """Writes values with these names, as far as they need no shaping."""
        found = self._told_writers.get(names)
        if found is None and len(self._told_writers) < _MOST_WRITERS and self._names.issuperset(names):
            found = compile_writer(self.schema, names, self._defaults)
            self._told_writers[names] = found
        return found

    def _write_shaped(self, header: bytes, values: Mapping[str, Any]) -> bytes:
        out = BytesIO()
        out.write(header)
        try:
            self._write_body(out, self._target, self._shape(values))
        except MismatchError as error:
            raise EncodeError(self.what, str(error)) from None
        except UnicodeEncodeError as error:
            raise EncodeError(self.what, f"text with a lone surrogate: {error.object[:40]!r}") from None
        return out.getvalue()

    def read(self, data: bytes, start: int, fingerprint: bytes) -> dict[str, Any]:
        """The values in a body, with the fields of the present schema.

        Args:
            data: The whole encoding.
            start: Where the body starts.
            fingerprint: The writer's schema.

        Raises:
            UnknownSchemaError: No published version has this fingerprint.
            DecodeError: The body is not a complete value within the limits.
        """
        writer = self._writers.get(fingerprint)
        if writer is None:
            raise UnknownSchemaError(self.what, f"schema {fingerprint.hex()} was never published", fingerprint.hex())
        writer.check(data, start)
        body = BytesIO(data)
        body.seek(start)
        try:
            if writer.target is None:
                return self._read_body(body, writer.source)
            return {key: _detached(part) for key, part in self._read_body(body, writer.source, writer.target).items()}
        except UnicodeDecodeError as error:
            raise DecodeError(self.what, f"text is not UTF-8: {error.reason}") from None

    def usual_reader(self, stand_ins: StandIns) -> Usual:
        """A reader of bodies of the present schema in their usual form; see ``readers.compile_usual``."""
        return compile_usual(self.schema, self._defaults, self._limits, stand_ins)

    def stood_in(self, values: dict[str, Any], stand_ins: StandIns) -> dict[str, Any]:
        """Values that were read in full, as that reader gives them."""
        return stood_in(values, self.schema, stand_ins)

    def knows(self, fingerprint: bytes) -> bool:
        """Whether a published version has this fingerprint."""
        return fingerprint in self._writers

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(field["name"] for field in self.schema["fields"])

    @cached_property
    def _defaults(self) -> Sequence[bytes]:
        """The encoding of each field's default, in the order of the fields."""
        return [self._encoded_default(field) for field in self.schema["fields"]]

    def _encoded_default(self, field: Mapping[str, Any]) -> bytes:
        out = BytesIO()
        alone = _parsed({**self.schema, "fields": [field]}, self.what)
        self._write_body(out, alone, {field["name"]: typed_default(field["type"], field["default"])})
        return out.getvalue()


def load_format(name: str, limits: Limits) -> Format:
    """The committed schema of one name, with its published versions.

    Args:
        name: One of ``catalogue.NAMES``.
        limits: See ``Format``.

    Raises:
        SchemaError: A schema file is missing or unusable.
    """
    return Format(current(name), history(name), limits)


def _parsed(schema: Schema, what: str) -> Schema:
    """The schema as the Avro library wants it, with defaults as values.

    The library hands out a default as the file has it: a string where a bytes field is missing.
    """
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema  # noqa: PLC0415 - see Format

    require_bounded(schema, what, Limits())
    try:
        parsed = parse_schema(schema)
    except (SchemaParseException, UnknownType) as error:
        raise SchemaError(what, f"not a valid schema: {error}") from error
    _type_defaults(parsed)
    return parsed


def _type_defaults(schema: Schema) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _type_defaults(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            _type_defaults(field["type"])
            if "default" in field:
                field["default"] = typed_default(field["type"], field["default"])
        _type_defaults(schema.get("items"))
        _type_defaults(schema.get("values"))


def _detached(value: Any) -> Any:
    """A copy of the containers: a default that was filled in belongs to the schema, and the caller may change his."""
    if isinstance(value, dict):
        return {key: _detached(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_detached(part) for part in value]
    return value
