"""Reads records that are in their usual form without a library: nearly all are, and a log is read fact by fact.

The text of one function is made for a schema: it goes through the bytes once and keeps what is not at its default, each
field's value as its caller wants it. It decides nothing about bytes in any other form, and refuses none: those are for
whoever checks them (`bounds.py`), reads them with the library, and says what is wrong with them.

Usual are texts and bytes below 8 KiB, lists in one block, and maps that are empty.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct, error
from typing import Any, TypeAlias

from .bounds import Limits, Schema

__all__ = ["StandIns", "Usual", "compile_usual", "stood_in"]

Usual: TypeAlias = Callable[[bytes, int], dict[str, Any] | None]
"""The encoding and where its body starts → the told fields; None if it is not in the usual form."""

StandIns: TypeAlias = Mapping[str, Callable[..., Any]]
"""Name of a field → what makes its value: of an enum's symbol, or of a record's fields in their order; of a list's items, one by one."""

_CONTINUES = 0x80
_BITS, _LAST_SHIFT = 64, 63  # of the longest number, and of its tenth byte
_OPTIONAL = 2  # branches of a union: null and one more


def compile_usual(schema: Schema, defaults: Sequence[bytes], limits: Limits, stand_ins: StandIns) -> Usual:
    """A reader of bodies of this schema that are in the usual form.

    Args:
        schema: A record's.
        defaults: The encoding of each field's default, in the order of the fields.
        limits: What a body may take.
        stand_ins: For enums and records that are fields, and for the records in lists; a list is given as a tuple.

    Returns:
        A function that gives what the library would read, without fields that are at their default, or None. What it
        takes, ``compile_bounds`` takes as well.
    """
    lines = _Lines(stand_ins)
    for field, default in zip(schema["fields"], defaults, strict=True):
        lines.field(field, default)
    text = [
        "def read(data, pos):",
        "    size = len(data)",
        f"    if size > {limits.max_bytes}: return None",
        f"    left, told = {limits.max_items}, {{}}",
        "    try:",
        *(f"        {line}" for line in lines.text),
        "    except unusual:",
        "        return None",
        "    return told if pos == size else None",  # lengths are followed past the end: here it shows
    ]
    exec("\n".join(text), lines.outside)  # noqa: S102 - the text is made above, of names and numbers of our own schemas
    read: Usual = lines.outside["read"]
    return read


class _Lines:
    """The text that reads one field after the other; `pos` is the place in `data`.

    What reads a value finds its first byte in `raw` and `pos` behind it, but for numbers of a fixed width.
    """

    def __init__(self, stand_ins: StandIns) -> None:
        self.text: list[str] = []
        self.outside: dict[str, Any] = {
            "more": _more,
            "double": Struct("<d").unpack_from,
            "unusual": (IndexError, UnicodeDecodeError, error),
        }
        self._stand_ins = stand_ins

    def field(self, field: Mapping[str, Any], default: bytes) -> None:
        """Read a field, unless it is at its default."""
        lines = self._value(field["type"], f"told[{field['name']!r}]", field["name"])
        if len(default) == 1:
            self.text += [*_FIRST_BYTE, f"if raw != {default[0]}:" if default[0] else "if raw:", *_indented(lines)]
        else:
            first = [] if field["type"] in _FIXED else _FIRST_BYTE
            self.text += [f"if data.startswith({default!r}, pos):", f"    pos += {len(default)}", "else:"]
            self.text += _indented([*first, *lines])

    def _value(self, schema: Schema, target: str, name: str) -> list[str]:
        """Lines that read a value of the field `name` into `target`."""
        kind = schema["type"] if isinstance(schema, Mapping) else "union" if isinstance(schema, list) else schema
        match kind:
            case "enum":
                return self._enum(schema, target, name)
            case "union" if schema[0] == "null" and len(schema) == _OPTIONAL:
                return ["if raw != 2: return None", *_next(schema[1], target)]
            case "record":
                return self._record(schema, target, name)
            case "array":
                return self._array(schema["items"], target, name)
        return _plain(kind, target)

    def _enum(self, schema: Mapping[str, Any], target: str, name: str) -> list[str]:
        make = self._stand_ins.get(name, str)
        self.outside[f"symbols_{name}"] = [make(symbol) for symbol in schema["symbols"]]
        return ["if raw & 1: return None", f"{target} = symbols_{name}[raw >> 1]"]

    def _record(self, schema: Mapping[str, Any], target: str, name: str) -> list[str]:
        names = [field["name"] for field in schema["fields"]]
        if not names or schema["fields"][0]["type"] in _FIXED:
            return ["return None"]
        lines = [line for field in schema["fields"] for line in _next(field["type"], f"part_{field['name']}")]
        lines = lines[len(_FIRST_BYTE) :]  # it was read
        if name not in self._stand_ins:
            return [*lines, f"{target} = {{{', '.join(f'{part!r}: part_{part}' for part in names)}}}"]
        self.outside[f"make_{name}"] = self._stand_ins[name]
        return [*lines, f"{target} = make_{name}({', '.join(f'part_{part}' for part in names)})"]

    def _array(self, items: Schema, target: str, name: str) -> list[str]:
        item = [*_FIRST_BYTE, *self._record(items, "item", name)] if _is_record(items) else _next(items, "item")
        return [
            *_LENGTH,  # how many there are
            "left -= raw >> 1",
            "if left < 0: return None",
            "items = []",
            "for _ in range(raw >> 1):",
            *_indented(item),
            "    items.append(item)",
            "if data[pos]: return None",
            "pos += 1",
            f"{target} = tuple(items)",
        ]


_FIXED = ("double",)
_FIRST_BYTE = ["raw = data[pos]", "pos += 1"]
_LENGTH = [  # twice as much, in one byte or two
    f"if raw & {_CONTINUES | 1}:",
    f"    if raw & 1 or data[pos] >= {_CONTINUES}: return None",
    f"    raw += (data[pos] << 7) - {_CONTINUES}",
    "    pos += 1",
]


def _next(schema: Schema, target: str) -> list[str]:
    """Lines that read the next value, of a primitive type."""
    return [*([] if schema in _FIXED else _FIRST_BYTE), *_plain(schema, target)]


def _plain(schema: Schema, target: str) -> list[str]:
    """Lines that read a value of a primitive type; any other has no usual form here."""
    match schema:
        case "string" | "bytes":
            decoded = ".decode()" if schema == "string" else ""
            return [*_LENGTH, "end = pos + (raw >> 1)", f"{target} = data[pos:end]{decoded}", "pos = end"]
        case "int" | "long":
            fits = ["    if raw >> 32: return None"] if schema == "int" else []
            more = [f"if raw >= {_CONTINUES}:", "    raw, pos = more(data, pos, raw)"]
            return [*more, *fits, f"{target} = (raw >> 1) ^ -(raw & 1)"]
        case "double":
            return [f"{target} = double(data, pos)[0]", "pos += 8"]
        case "boolean":
            return ["if raw > 1: return None", f"{target} = raw == 1"]
    return ["return None"]


def stood_in(values: dict[str, Any], schema: Schema, stand_ins: StandIns) -> dict[str, Any]:
    """The same values as a reader of the usual form gives them, of a record that was read in another way."""
    for field in schema["fields"]:
        name, kind = field["name"], field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "array":
            make = _maker(kind["items"], stand_ins.get(name))
            values[name] = tuple(map(make, values[name])) if make else tuple(values[name])
        elif isinstance(kind, Mapping) and (make := _maker(kind, stand_ins.get(name))):
            values[name] = make(values[name])
    return values


def _maker(schema: Schema, make: Callable[..., Any] | None) -> Callable[[Any], Any] | None:
    """What makes a value of a field or item with this schema."""
    if make is None or not _is_record(schema):
        return make
    names = [field["name"] for field in schema["fields"]]
    return lambda values: make(*(values[name] for name in names))


def _is_record(schema: Schema) -> bool:
    return isinstance(schema, Mapping) and schema["type"] == "record"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _more(data: bytes, pos: int, first: int) -> tuple[int, int]:
    """A number of more than one byte, still zigzag, and the position after it. Raises IndexError for an unusual one."""
    raw, shift = first - _CONTINUES, 7
    while shift <= _LAST_SHIFT:
        byte = data[pos]
        pos += 1
        if byte < _CONTINUES and not (raw := raw | byte << shift) >> _BITS:
            return raw, pos
        raw |= (byte & _CONTINUES - 1) << shift
        shift += 7
    raise IndexError
