"""Proves that an Avro body is safe to decode, before anything is allocated for it.

Six bytes can ask a decoder for two thousand million nulls, or for a string of a terabyte. The walks (`walks.py`) follow
the writer's schema through the bytes and only count: no value is built.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .errors import DecodeError, SchemaError
from .walks import PRIMITIVES, OutOfBoundsError, Schema, compile_walk

__all__ = ["Limits", "Schema", "compile_bounds", "require_bounded"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one encoded value may take at most; all inclusive.

    Args:
        max_bytes: Length of the whole encoding, its header included.
        max_items: Array items and map entries, summed over the whole value.
        max_depth: Nesting of types in a writer's schema (schemas do not recurse, so a value nests no deeper).
    """

    max_bytes: int = 1 << 20
    max_items: int = 10_000
    max_depth: int = 16


def compile_bounds(schema: Schema, what: str, limits: Limits) -> Callable[[bytes, int], None]:
    """A check of bodies that were written with one schema.

    Args:
        schema: The writer's schema, as JSON; see ``require_bounded``.
        what: Name of the value for error messages.
        limits: What a body may take.

    Returns:
        A function of the encoding and the position at which its body starts. It raises DecodeError unless the body is
        complete, ends with the encoding, and stays within the limits.
    """
    require_bounded(schema, what, limits)
    walk, max_items = cache(lambda: compile_walk(schema)), limits.max_items  # when wanted: it takes milliseconds

    def check(data: bytes, start: int) -> None:
        size = _allowed(len(data), what, limits)
        try:
            end = walk()(data, start, [max_items])
        except (IndexError, OutOfBoundsError) as stop:
            raise _refusal(what, size, stop) from None
        if end != size:
            raise _misfit(what, size, end)

    return check


def _allowed(size: int, what: str, limits: Limits) -> int:
    if size > limits.max_bytes:
        raise DecodeError(what, f"{size} bytes are more than the limit of {limits.max_bytes}")
    return size


def _refusal(what: str, size: int, stop: Exception) -> DecodeError:
    return DecodeError(what, f"truncated after {size} bytes" if isinstance(stop, IndexError) else str(stop))


def _misfit(what: str, size: int, end: int) -> DecodeError:
    if end > size:
        return DecodeError(what, f"truncated: {end} bytes announced, {size} present")
    return DecodeError(what, f"{size - end} bytes follow the end of the value")


def require_bounded(schema: Schema, what: str, limits: Limits, _depth: int = 1) -> None:
    """Refuses a schema whose values could nest without end, or that a decoder would interpret beyond plain Avro.

    Raises:
        SchemaError: The schema refers to a type by name (which is the only way to recurse), nests deeper than the
            limit, uses a logical type, or a type that Avro does not have.
    """
    if _depth > limits.max_depth:
        raise SchemaError(what, f"types nest deeper than {limits.max_depth}")
    for part in _parts(schema, what):
        require_bounded(part, what, limits, _depth + 1)


def _parts(schema: Schema, what: str) -> Sequence[Schema]:  # noqa: PLR0911 - one return per Avro type
    """The types directly inside a type."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, Mapping):
        if schema not in PRIMITIVES:
            raise SchemaError(
                what, f"type {schema!r} is not a primitive; named types are written out where they are used"
            )
        return ()
    if "logicalType" in schema:
        raise SchemaError(what, "logical types are not used here: they make decoding depend on the library")
    match schema.get("type"):
        case "record":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
        case "enum" | "fixed":
            return ()
        case str() as inner:
            return [inner]
        case other:
            raise SchemaError(what, f"a type that is {type(other).__name__} instead of a name")
