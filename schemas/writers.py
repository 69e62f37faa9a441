"""Writes records whose values have just the types of their fields, without a library: nearly all have.

The text of one function is made for each set of told fields; what is between them is at its default, and always the same
bytes. Values of any other type or range it leaves to whoever brings them into their shape first (`shape.py`), or says
what is wrong with them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import Any, TypeAlias

from .bounds import Schema

__all__ = ["Writer", "compile_writer"]

Writer: TypeAlias = Callable[[bytes, Mapping[str, Any]], bytes | None]
"""A header, and the values of the told fields → the encoding; None if a value is not just what its field wants."""

_TABLE = 8192  # so many numbers take two bytes at most
_OPTIONAL = 2  # branches of a union: null and one more
_TYPES = {"string": "str", "bytes": "bytes", "int": "int", "long": "int", "double": "float", "boolean": "bool"}


def _varint(raw: int) -> bytes:
    out = bytearray()
    while raw > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


@cache
def _numbers() -> list[bytes]:
    """The encodings of the numbers from 0; made when wanted, it takes milliseconds."""
    return [_varint(number << 1) for number in range(_TABLE)]


def _long(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _int(value: int) -> bytes:
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError
    return _long(value)


def compile_writer(schema: Schema, told: Collection[str], defaults: Sequence[bytes]) -> Writer:
    """A writer of records of which these fields are told.

    Args:
        schema: A record's.
        told: Names of its fields.
        defaults: The encoding of each field's default, in the order of the fields.

    Returns:
        A function that gives what the library would write for values in their shape, or None.
    """
    outside: dict[str, Any] = {
        "numbers": _numbers(), "long": _long, "int_": _int, "double": Struct("<d").pack,
        "unusual": (KeyError, TypeError, OverflowError, UnicodeEncodeError),
    }  # fmt: skip
    lines: list[str] = []
    parts, run = ["header"], b""
    for number, (field, default) in enumerate(zip(schema["fields"], defaults, strict=True)):
        if field["name"] not in told:
            run += default
            continue
        lines.append(f"v = values[{field['name']!r}]")
        body, pieces = _field(field, f"v{number}", outside)
        lines += body
        parts += [*([repr(run)] if run else []), *pieces]
        run = b""
    text = [
        "def write(header, values):",
        "    try:",
        *(f"        {line}" for line in lines or ["pass"]),
        "    except unusual:",
        "        return None",
        f"    return b''.join(({', '.join([*parts, repr(run)])}))",
    ]
    exec("\n".join(text), outside)  # noqa: S102 - the text is made above, of names and numbers of our own schemas
    write: Writer = outside["write"]
    return write


def _field(  # noqa: PLR0911 - one return per Avro type
    field: Mapping[str, Any], name: str, outside: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Lines that look at the value `v`, and what is written of it; names made of `name` are free."""
    schema = field["type"]
    kind = schema["type"] if isinstance(schema, Mapping) else "union" if isinstance(schema, list) else schema
    match kind:
        case "enum":
            outside[f"symbols_{name}"] = {symbol: _varint(n << 1) for n, symbol in enumerate(schema["symbols"])}
            return [f"{name} = symbols_{name}[v]"], [name]
        case "union" if schema[0] == "null" and len(schema) == _OPTIONAL:
            lines, pieces = _plain(schema[1], name)
            joined = f"{name} = b''.join((b'\\x02', {', '.join(pieces)}))"
            return ["if v is None:", f"    {name} = b'\\0'", "else:", *_indented([*lines, joined])], [name]
        case "record" if _is_flat(schema):
            return _record(schema, name)
        case "array" if _is_flat(schema["items"]):
            return _array(schema["items"], name)
        case "map":
            return ["if type(v) is not dict or v: return None"], ["b'\\0'"]
        case str() if kind in _TYPES:
            return _plain(kind, name)
    return ["return None"], []


def _is_flat(schema: Schema) -> bool:
    """Whether it is a primitive type, or a record of such."""
    if isinstance(schema, Mapping):
        return schema["type"] == "record" and all(str(field["type"]) in _TYPES for field in schema["fields"])
    return str(schema) in _TYPES


def _plain(kind: str, name: str) -> tuple[list[str], list[str]]:
    """For the value `v` of a primitive type; another type, even one derived from it, is left to others."""
    check = f"if type(v) is not {_TYPES[kind]}: return None"
    match kind:
        case "string" | "bytes":
            value = "v.encode()" if kind == "string" else "v"
            size = f"numbers[len({name})] if len({name}) < {_TABLE} else long(len({name}))"
            return [check, f"{name} = {value}", f"{name}n = {size}"], [f"{name}n", name]
        case "int" | "long":
            more = "int_" if kind == "int" else "long"
            return [check, f"{name} = numbers[v] if 0 <= v < {_TABLE} else {more}(v)"], [name]
        case "double":
            return [check, f"{name} = double(v)"], [name]
    return [check, f"{name} = b'\\1' if v else b'\\0'"], [name]


def _record(schema: Mapping[str, Any], name: str) -> tuple[list[str], list[str]]:
    """For a mapping `v` that has every field, and no other."""
    lines = [f"if type(v) is not dict or len(v) != {len(schema['fields'])}: return None", f"{name} = v"]
    pieces: list[str] = []
    for number, field in enumerate(schema["fields"]):
        body, more = _plain(field["type"], f"{name}_{number}")
        lines += [f"v = {name}[{field['name']!r}]", *body]
        pieces += more
    return lines, pieces


def _array(items: Schema, name: str) -> tuple[list[str], list[str]]:
    """For a list or tuple `v`: one block, and what ends it."""
    body, pieces = _record(items, f"{name}i") if isinstance(items, Mapping) else _plain(items, f"{name}i")
    lines = [
        f"if type(v) is not list and type(v) is not tuple or len(v) >= {_TABLE}: return None",
        f"{name} = [numbers[len(v)]] if v else []",
        "for v in v:",
        *_indented(body),
        f"    {name} += {', '.join(pieces)},",
        f"{name}.append(b'\\0')",
    ]
    return lines, [f"*{name}"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
