"""Proves that an Avro body is safe to decode, before anything is allocated for it.

Six bytes can ask a decoder for two thousand million nulls, or for a string of a terabyte. The walkers here follow the
writer's schema through the bytes and only count: no value is built. Skipped lengths may step past the end; the next read
or the final comparison notices, so not every step compares with the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import DecodeError, SchemaError

__all__ = ["Limits", "compile_bounds", "require_bounded"]

Schema: TypeAlias = Any  # the JSON of an Avro schema: a name, a union's list, or an object

_Walk: TypeAlias = Callable[[bytes, int, list[int]], int]  # bytes, position, [items left] → next position
_FIXED_WIDTHS = {"null": 0, "float": 4, "double": 8}
_MAX_NUMBER_BYTES = 10
_CONTINUES = 0x80  # the bit that says that a number has another byte


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


class _OutOfBoundsError(Exception):
    """Why the walk stopped; becomes a DecodeError that also says where."""


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
    walk = _compile(schema)
    max_bytes, max_items = limits.max_bytes, limits.max_items

    def check(data: bytes, start: int) -> None:
        size = len(data)
        if size > max_bytes:
            raise DecodeError(what, f"{size} bytes are more than the limit of {max_bytes}")
        try:
            end = walk(data, start, [max_items])
        except IndexError:
            raise DecodeError(what, f"truncated after {size} bytes") from None
        except _OutOfBoundsError as stop:
            raise DecodeError(what, str(stop)) from None
        if end > size:
            raise DecodeError(what, f"truncated: {end} bytes announced, {size} present")
        if end < size:
            raise DecodeError(what, f"{size - end} bytes follow the end of the value")

    return check


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
        if schema not in _PRIMITIVES:
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


def _compile(schema: Schema) -> _Walk:  # noqa: PLR0911 - one return per Avro type
    if isinstance(schema, list):
        return _union([_compile(branch) for branch in schema])
    if not isinstance(schema, Mapping):
        return _PRIMITIVES[schema]
    match schema["type"]:
        case "record":
            return _record([_compile(field["type"]) for field in schema["fields"]])
        case "array":
            return _blocks(_compile(schema["items"]), keyed=False)
        case "map":
            return _blocks(_compile(schema["values"]), keyed=True)
        case "enum":
            return _enum(len(schema["symbols"]))
        case "fixed":
            return _skip(schema["size"])
        case inner:
            return _compile(inner)


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """The next variable-length number, still zigzag, and the position after it; ten bytes and 64 bits at most."""
    raw = shift = 0
    for byte in data[pos : pos + _MAX_NUMBER_BYTES]:
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < _CONTINUES and not raw >> 64:
            return raw, pos
        shift += 7
    if shift < _MAX_NUMBER_BYTES * 7:
        raise IndexError  # cut off
    raise _OutOfBoundsError(f"a number before byte {pos} has more than 64 bits")


def _length_prefixed(data: bytes, pos: int, _items: list[int]) -> int:
    raw, pos = _varint(data, pos)
    if raw & 1:
        raise _OutOfBoundsError(f"negative length before byte {pos}")
    return pos + (raw >> 1)


def _long(data: bytes, pos: int, _items: list[int]) -> int:
    return pos + 1 if data[pos] < _CONTINUES else _varint(data, pos)[1]


def _int(data: bytes, pos: int, _items: list[int]) -> int:
    if data[pos] < _CONTINUES:
        return pos + 1
    raw, pos = _varint(data, pos)
    if raw >> 32:
        raise _OutOfBoundsError(f"a number before byte {pos} has more than 32 bits")
    return pos


def _boolean(data: bytes, pos: int, _items: list[int]) -> int:
    if data[pos] > 1:
        raise _OutOfBoundsError(f"byte {pos} is no boolean")
    return pos + 1


def _skip(width: int) -> _Walk:
    def walk(_data: bytes, pos: int, _items: list[int]) -> int:
        return pos + width

    return walk


def _enum(count: int) -> _Walk:
    def walk(data: bytes, pos: int, _items: list[int]) -> int:
        raw, pos = (data[pos], pos + 1) if data[pos] < _CONTINUES else _varint(data, pos)
        if raw & 1 or raw >> 1 >= count:
            raise _OutOfBoundsError(f"no such enum symbol before byte {pos}")
        return pos

    return walk


def _union(branches: Sequence[_Walk]) -> _Walk:
    count = len(branches)

    def walk(data: bytes, pos: int, items: list[int]) -> int:
        raw, pos = (data[pos], pos + 1) if data[pos] < _CONTINUES else _varint(data, pos)
        if raw & 1 or raw >> 1 >= count:
            raise _OutOfBoundsError(f"no such union branch before byte {pos}")
        return branches[raw >> 1](data, pos, items)

    return walk


def _record(fields: Sequence[_Walk]) -> _Walk:
    steps = tuple(None if field is _length_prefixed else field for field in fields)

    def walk(data: bytes, pos: int, items: list[int]) -> int:
        for step in steps:
            if step is not None:
                pos = step(data, pos, items)
                continue
            raw = data[pos]  # a string or bytes, as most fields are: written out here because calls cost most
            if raw < _CONTINUES and not raw & 1:
                pos += 1 + (raw >> 1)
            else:
                pos = _length_prefixed(data, pos, items)
        return pos

    return walk


def _blocks(item: _Walk, *, keyed: bool) -> _Walk:
    def walk(data: bytes, pos: int, items: list[int]) -> int:
        while True:  # each turn takes at least one item from the budget
            raw, pos = (data[pos], pos + 1) if data[pos] < _CONTINUES else _varint(data, pos)
            if not raw:
                return pos
            count, end = raw >> 1, None
            if raw & 1:  # a negative count announces the block's size in bytes
                count += 1
                raw, pos = _varint(data, pos)
                if raw & 1:
                    raise _OutOfBoundsError(f"negative block size before byte {pos}")
                end = pos + (raw >> 1)
            items[0] -= count
            if items[0] < 0:
                raise _OutOfBoundsError(f"more items than the limit before byte {pos}")
            for _ in range(count):
                if keyed:
                    pos = _length_prefixed(data, pos, items)
                pos = item(data, pos, items)
            if end is not None and pos != end:
                raise _OutOfBoundsError(f"block size does not match the block before byte {pos}")

    return walk


_PRIMITIVES: dict[str, _Walk] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "string": _length_prefixed,
    "bytes": _length_prefixed,
    **{name: _skip(width) for name, width in _FIXED_WIDTHS.items()},
}
