"""Brings values into the one form in which they are written: complete, checked, and in a fixed order.

The Avro library would write a float into an integer field, or a map in whatever order it was built. Equal values must
give equal bytes here, because facts are compared and copied as bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from .bounds import Schema

__all__ = ["MismatchError", "Shape", "compile_shape", "expected", "is_mapping", "typed_default"]

Shape: TypeAlias = Callable[[Any], Any]

_OPTIONAL = 2  # branches of a union: null and one more
_EXACT: dict[str, type] = {"string": str, "bytes": bytes, "boolean": bool, "float": float, "double": float}


FieldShape: TypeAlias = tuple[str, type | None, Shape]
"""How a field's value is brought into its shape: the field's name; the type of values that are in it already, if there is
one; the function that gives any other value in it."""


class MismatchError(Exception):
    """The value does not fit; the message starts with the path to the field."""


def compile_shape(schema: Schema) -> Shape:  # noqa: PLR0911 - one return per Avro type
    """A function from a value to the equal value that is written for one schema.

    Returns:
        A function that fills missing fields with their defaults, sorts maps by key, writes an enum symbol that it does
        not know as the enum's default, and raises MismatchError for a wrong type, range or field name.
    """
    if isinstance(schema, list):
        return _union(schema)
    if not isinstance(schema, Mapping):
        return _PRIMITIVES[schema]
    match schema["type"]:
        case "record":
            return _record(schema)
        case "array":
            return _array(compile_shape(schema["items"]))
        case "map":
            return _map(compile_shape(schema["values"]))
        case "enum":
            return _enum(schema)
        case "fixed":
            return _fixed(schema["size"])
        case inner:
            return compile_shape(inner)


def field_shape(field: Mapping[str, Any]) -> FieldShape:
    """How a field's value is brought into its shape."""
    schema = field["type"]
    if isinstance(schema, list) and schema[0] == "null" and len(schema) == _OPTIONAL:
        schema = schema[1]
    exact = _EXACT.get(schema) if isinstance(schema, str) else None
    return field["name"], exact, compile_shape(field["type"])


def shaped(values: Mapping[str, Any], shapes: Sequence[FieldShape]) -> dict[str, Any]:
    """The values of some fields in their shapes. Raises MismatchError, with the field's name."""
    try:
        return {n: found if type(found := values[n]) is exact else part(found) for n, exact, part in shapes}
    except MismatchError:
        for name, _, part in shapes:  # seldom: a comprehension keeps its variables to itself
            try:
                part(values[name])
            except MismatchError as error:
                raise MismatchError(f"{name}: {error}") from None
        raise


def typed_default(schema: Schema, default: Any) -> Any:  # noqa: PLR0911 - any Avro value, a return per type
    """The value that a field's ``default`` in a schema file stands for.

    JSON has no bytes, so the file has a string of code points below 256 in their place; a record's default may leave out
    fields that have defaults of their own; a union's default belongs to its first branch.
    """
    if isinstance(schema, list):
        return typed_default(schema[0], default)
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    match kind:
        case "bytes" | "fixed":
            return default.encode("latin-1")
        case "float" | "double":
            return float(default)
        case "array":
            return [typed_default(schema["items"], item) for item in default]
        case "map":
            return {key: typed_default(schema["values"], default[key]) for key in sorted(default)}
        case "record":
            return {
                field["name"]: typed_default(field["type"], default.get(field["name"], field.get("default")))
                for field in schema["fields"]
            }
        case _:
            return default


def _record(schema: Mapping[str, Any]) -> Shape:
    shapes = {field["name"]: field_shape(field) for field in schema["fields"]}
    defaults = {field["name"]: typed_default(field["type"], field["default"]) for field in schema["fields"]}
    names, every = shapes.keys(), tuple(shapes.values())

    def shape(value: Any) -> dict[str, Any]:
        if not is_mapping(value):
            raise MismatchError(expected("a mapping", value))
        if value.keys() == names:
            return shaped(value, every)
        if unknown := value.keys() - names:
            raise MismatchError(f"no such field: {', '.join(sorted(map(str, unknown)))}")
        return {**defaults, **shaped(value, [shapes[name] for name in value])}

    return shape


def _union(branches: Sequence[Schema]) -> Shape:
    shapes = tuple(compile_shape(branch) for branch in branches)

    def shape(value: Any) -> Any:
        for part in shapes:
            try:
                return part(value)
            except MismatchError:
                continue
        raise MismatchError(expected(f"one of {list(branches)}", value))

    def optional(value: Any) -> Any:
        return None if value is None else shapes[1](value)

    return optional if branches[0] == "null" and len(branches) == _OPTIONAL else shape


def _array(item: Shape) -> Shape:
    def shape(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise MismatchError(expected("a list", value))
        return [item(part) for part in value]

    return shape


def _map(item: Shape) -> Shape:
    def shape(value: Any) -> dict[str, Any]:
        if not is_mapping(value):
            raise MismatchError(expected("a mapping", value))
        return {key: item(value[key]) for key in sorted(map(_string, value))}

    return shape


def _enum(schema: Mapping[str, Any]) -> Shape:
    symbols = {symbol: symbol for symbol in schema["symbols"]}  # gives back plain text for a StrEnum's member
    fallback = schema["default"]

    def shape(value: Any) -> str:
        if not isinstance(value, str):
            raise MismatchError(expected("an enum symbol", value))
        found: str = symbols.get(value, fallback)
        return found

    return shape


def _fixed(size: int) -> Shape:
    def shape(value: Any) -> bytes:
        if len(_bytes(value)) != size:
            raise MismatchError(f"expected {size} bytes, got {len(value)}")
        return bytes(value)

    return shape


def _integer(bits: int) -> Shape:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def shape(value: Any) -> int:
        if type(value) is not int and (not isinstance(value, int) or isinstance(value, bool)):
            raise MismatchError(expected("an integer", value))
        if not low <= value <= high:
            raise MismatchError(f"does not fit into {bits} bits")
        return value

    return shape


def _float(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MismatchError(expected("a number", value))
    try:
        return float(value)
    except OverflowError:
        raise MismatchError("is too large for a float") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise MismatchError(expected("text", value))
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise MismatchError(expected("bytes", value))
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise MismatchError(expected("true or false", value))
    return value


def _null(value: Any) -> None:
    if value is not None:
        raise MismatchError(expected("null", value))


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a mapping; a dict is one without asking its class."""
    return type(value) is dict or isinstance(value, Mapping)


def expected(wanted: str, value: object) -> str:
    """What a mismatch says."""
    return f"expected {wanted}, got {type(value).__name__}"


_PRIMITIVES: dict[str, Shape] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer(32),
    "long": _integer(64),
    "float": _float,
    "double": _float,
    "string": _string,
    "bytes": _bytes,
}
