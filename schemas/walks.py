"""Walks: functions that follow a schema through the bytes of a value, and only count.

A walk gives the position after the value. Skipped lengths may step past the end: the next read, or whoever compares the
end with the size, notices. So not every step compares with the end. An IndexError says that the bytes are cut off.

Most values are records, and calls cost most: so the walk of a record is written out as one function's text, with the
usual form of each field (a number of one byte, a short text, nothing) in line, and a call for any other form.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["PRIMITIVES", "OutOfBoundsError", "Schema", "Walk", "compile_walk"]

Schema: TypeAlias = Any  # the JSON of an Avro schema: a name, a union's list, or an object

Walk: TypeAlias = Callable[[bytes, int, list[int]], int]  # bytes, position, [items left] → next position

_FIXED_WIDTHS = {"null": 0, "float": 4, "double": 8}
_MAX_NUMBER_BYTES = 10
_CONTINUES = 0x80  # the bit that says that a number has another byte
_OPTIONAL = 2  # branches of a union: null and one more


class OutOfBoundsError(Exception):
    """Why the walk stopped; becomes a DecodeError that also says where."""


def compile_walk(schema: Schema) -> Walk:  # noqa: PLR0911 - one return per Avro type
    """A walk over the bytes of one value; the schema must be bounded (see ``bounds.require_bounded``)."""
    if isinstance(schema, list):
        return _union([compile_walk(branch) for branch in schema])
    if not isinstance(schema, Mapping):
        return PRIMITIVES[schema]
    match schema["type"]:
        case "record":
            return _record([field["type"] for field in schema["fields"]])
        case "array":
            return _blocks(compile_walk(schema["items"]), keyed=False)
        case "map":
            return _blocks(compile_walk(schema["values"]), keyed=True)
        case "enum":
            return _enum(len(schema["symbols"]))
        case "fixed":
            return _skip(schema["size"])
        case inner:
            return compile_walk(inner)


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
    raise OutOfBoundsError(f"a number before byte {pos} has more than 64 bits")


def _length_prefixed(data: bytes, pos: int, _items: list[int]) -> int:
    raw, pos = _varint(data, pos)
    if raw & 1:
        raise OutOfBoundsError(f"negative length before byte {pos}")
    return pos + (raw >> 1)


def _long(data: bytes, pos: int, _items: list[int]) -> int:
    for end in range(pos, pos + _MAX_NUMBER_BYTES - 1):  # so many bytes cannot have more than 64 bits
        if data[end] < _CONTINUES:
            return end + 1
    return _varint(data, pos)[1]


def _int(data: bytes, pos: int, _items: list[int]) -> int:
    if data[pos] < _CONTINUES:
        return pos + 1
    raw, pos = _varint(data, pos)
    if raw >> 32:
        raise OutOfBoundsError(f"a number before byte {pos} has more than 32 bits")
    return pos


def _boolean(data: bytes, pos: int, _items: list[int]) -> int:
    if data[pos] > 1:
        raise OutOfBoundsError(f"byte {pos} is no boolean")
    return pos + 1


def _skip(width: int) -> Walk:
    def walk(_data: bytes, pos: int, _items: list[int]) -> int:
        return pos + width

    return walk


def _enum(count: int) -> Walk:
    def walk(data: bytes, pos: int, _items: list[int]) -> int:
        raw, pos = (data[pos], pos + 1) if data[pos] < _CONTINUES else _varint(data, pos)
        if raw & 1 or raw >> 1 >= count:
            raise OutOfBoundsError(f"no such enum symbol before byte {pos}")
        return pos

    return walk


def _union(branches: Sequence[Walk]) -> Walk:
    count = len(branches)

    def walk(data: bytes, pos: int, items: list[int]) -> int:
        raw, pos = (data[pos], pos + 1) if data[pos] < _CONTINUES else _varint(data, pos)
        if raw & 1 or raw >> 1 >= count:
            raise OutOfBoundsError(f"no such union branch before byte {pos}")
        return branches[raw >> 1](data, pos, items)

    return walk


def _record(fields: Sequence[Schema]) -> Walk:
    outside: dict[str, Any] = {}
    lines = [line for field in fields for line in _step(field, outside)]
    walk: Walk = _function("walk(data, pos, items)", [*lines, "return pos"], outside)
    return walk


def _step(schema: Schema, outside: dict[str, Any]) -> list[str]:
    """The lines that move `pos` over a value: its usual form in line, any other by a call of its walk."""
    kind = _kind(schema)
    if kind == "record":
        return [line for field in schema["fields"] for line in _step(field["type"], outside)]
    if kind in _FIXED_WIDTHS or kind == "fixed":
        width = schema["size"] if kind == "fixed" else _FIXED_WIDTHS[kind]
        return [f"pos += {width}"] if width else []
    return ["raw = data[pos]", *_usual(kind, schema, outside), "else:", f"    {_call(schema, outside)}"]


def _usual(kind: str, schema: Schema, outside: dict[str, Any]) -> list[str]:  # noqa: PLR0911 - one return per kind
    """The usual form of a value of this kind; its first byte is in `raw`."""
    match kind:
        case "union" if schema[0] == "null" and len(schema) == _OPTIONAL:
            return [
                "if not raw:",
                "    pos += 1",
                "elif raw == 2:",
                "    pos += 1",
                *_indented(_step(schema[1], outside)),
            ]
        case "string" | "bytes":
            return [
                "if raw < 128 and not raw & 1:",
                "    pos += 1 + (raw >> 1)",
                "elif not raw & 1 and data[pos + 1] < 128:",  # the length takes two bytes
                "    pos += 2 + (raw - 128 >> 1) + (data[pos + 1] << 6)",
            ]
        case "enum":
            return [f"if raw < {min(2 * len(schema['symbols']), _CONTINUES)} and not raw & 1:", "    pos += 1"]
        case "int" | "long":
            return ["if raw < 128:", "    pos += 1", "elif data[pos + 1] < 128:", "    pos += 2"]
        case "boolean":
            return ["if raw < 2:", "    pos += 1"]
        case "array" | "map":
            return ["if not raw:", "    pos += 1"]
    return ["if False:", "    pass"]


def _kind(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"] if isinstance(schema, Mapping) else schema)


def _call(schema: Schema, outside: dict[str, Any]) -> str:
    name = f"walk_{len(outside)}"
    outside[name] = compile_walk(schema)
    return f"pos = {name}(data, pos, items)"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _function(signature: str, lines: Sequence[str], outside: dict[str, Any]) -> Any:
    text = "\n".join([f"def {signature}:", *_indented(lines)])
    exec(text, outside)  # noqa: S102 - the text is made above, of numbers and names of our own
    return outside["walk"]


def _blocks(item: Walk, *, keyed: bool) -> Walk:
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
                    raise OutOfBoundsError(f"negative block size before byte {pos}")
                end = pos + (raw >> 1)
            items[0] -= count
            if items[0] < 0:
                raise OutOfBoundsError(f"more items than the limit before byte {pos}")
            for _ in range(count):
                if keyed:
                    pos = _length_prefixed(data, pos, items)
                pos = item(data, pos, items)
            if end is not None and pos != end:
                raise OutOfBoundsError(f"block size does not match the block before byte {pos}")

    return walk


PRIMITIVES: dict[str, Walk] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "string": _length_prefixed,
    "bytes": _length_prefixed,
    **{name: _skip(width) for name, width in _FIXED_WIDTHS.items()},
}
