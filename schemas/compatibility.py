"""Whether one schema may follow another: what either version writes, the other can read, without losing its meaning.

Avro would let a reader widen an int or fall back to a default; the narrower version could then not read what the wider
one wrote. Two-way compatibility leaves four changes: add a field, drop a field (both with a default), append a symbol to
an enum that has a default, and edit documentation.

Source: Avro specification, "Schema Resolution"; each rule below is that section applied in both directions.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from .bounds import Limits, Schema, require_bounded
from .errors import SchemaError
from .shape import MismatchError, compile_shape, typed_default

__all__ = ["flaws", "incompatibilities"]

_KNOWN_KEYS = {
    "record": {"type", "name", "namespace", "doc", "fields"},
    "enum": {"type", "name", "namespace", "doc", "symbols", "default"},
    "fixed": {"type", "name", "namespace", "doc", "size"},
    "array": {"type", "items"},
    "map": {"type", "values"},
    "field": {"name", "type", "doc", "default"},
}


def flaws(schema: Schema) -> list[str]:
    """Why a schema may not be published, whatever came before it.

    Returns:
        One line for each flaw, starting with its path: a field without a default or with one that is not of its type, an
        enum without a default symbol, a union that does not start with null, an alias or a logical type, a type that is
        named instead of written out (so nothing recurses).
    """
    try:
        require_bounded(schema, "schema", Limits())
    except SchemaError as error:
        return [error.reason]
    return list(_flaws(schema, ""))


def incompatibilities(older: Schema, newer: Schema) -> list[str]:
    """Why one of two schemas cannot read what the other writes, or would read it as something else.

    Args:
        older: The version that came first.
        newer: The version that is to follow; neither may have ``flaws``.

    Returns:
        One line for each difference, starting with its path. Empty: fully compatible.
    """
    return list(_differences(older, newer, "", ("", "")))


def _flaws(schema: Schema, path: str) -> Iterator[str]:
    if isinstance(schema, list):
        if schema[:1] != ["null"]:
            yield f"{path}: a union must start with null"
        for branch in schema:
            yield from _flaws(branch, path)
        return
    if not isinstance(schema, Mapping):
        return
    kind = schema["type"]
    yield from _unknown_keys(schema, kind, path)
    if kind == "record":
        seen: set[str] = set()
        for field in schema["fields"]:
            inner = f"{path}/{field['name']}"
            if field["name"] in seen:
                yield f"{inner}: a field of this name stands before"
            seen.add(field["name"])
            yield from _field_flaws(field, inner)
    elif kind == "enum" and schema.get("default") not in schema["symbols"]:
        yield f"{path}: an enum needs a default among its symbols"
    elif kind in {"array", "map"}:
        yield from _flaws(_inner(schema), f"{path}[]")


def _field_flaws(field: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _unknown_keys(field, "field", path)
    before = list(_flaws(field["type"], path))
    yield from before
    if "default" not in field:
        yield f"{path}: a field needs a default"
    elif not before and not _default_fits(field["type"], field["default"]):
        yield f"{path}: the default is not of the field's type"


def _unknown_keys(schema: Mapping[str, Any], kind: str, path: str) -> Iterator[str]:
    for key in sorted(schema.keys() - _KNOWN_KEYS.get(kind, {"type"})):
        yield f"{path}: {key} is not allowed here"


def _default_fits(schema: Schema, default: object) -> bool:
    first = schema[0] if isinstance(schema, list) else schema
    if isinstance(first, Mapping) and first["type"] == "enum":
        return default in first["symbols"]
    try:
        compile_shape(first)(typed_default(first, default))
    except (MismatchError, AttributeError, TypeError, ValueError, KeyError):
        return False
    return True


def _differences(older: Schema, newer: Schema, path: str, spaces: tuple[str, str]) -> Iterator[str]:
    kinds = _kind(older), _kind(newer)
    if kinds[0] != kinds[1]:
        yield f"{path}: {kinds[0]} became {kinds[1]}"
    elif kinds[0] == "union":
        if len(older) != len(newer):
            yield f"{path}: the union has {len(newer)} branches instead of {len(older)}"
        for branches in zip(older, newer, strict=False):
            yield from _differences(*branches, path, spaces)
    elif kinds[0] in {"array", "map"}:
        yield from _differences(_inner(older), _inner(newer), f"{path}[]", spaces)
    elif kinds[0] in {"record", "enum", "fixed"}:
        names = _full_name(older, spaces[0]), _full_name(newer, spaces[1])
        if names[0] != names[1]:
            yield f"{path}: {names[0]} became {names[1]}"
        inner_spaces = names[0].rpartition(".")[0], names[1].rpartition(".")[0]
        yield from _named_differences(older, newer, path, inner_spaces)


def _named_differences(older: Schema, newer: Schema, path: str, spaces: tuple[str, str]) -> Iterator[str]:
    if older["type"] == "fixed" and older["size"] != newer["size"]:
        yield f"{path}: size {older['size']} became {newer['size']}"
    if older["type"] == "enum":
        if newer["symbols"][: len(older["symbols"])] != older["symbols"]:
            yield f"{path}: symbols may only be appended"
        if older.get("default") != newer.get("default"):
            yield f"{path}: the default symbol changed"
    if older["type"] == "record":
        after = {field["name"]: field for field in newer["fields"]}
        for field in older["fields"]:
            if match := after.get(field["name"]):
                inner = f"{path}/{field['name']}"
                yield from _differences(field["type"], match["type"], inner, spaces)
                if _default(field) != _default(match):
                    yield f"{inner}: the default changed"
        yield from _without_default(older, newer, path)


def _without_default(older: Schema, newer: Schema, path: str) -> Iterator[str]:
    names = [{field["name"] for field in schema["fields"]} for schema in (older, newer)]
    for field in (*older["fields"], *newer["fields"]):
        if field["name"] in names[0] ^ names[1] and "default" not in field:
            yield f"{path}/{field['name']}: a field without a default came or went"


def _kind(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return _kind(schema["type"]) if isinstance(schema, Mapping) else str(schema)


def _inner(schema: Mapping[str, Any]) -> Schema:
    return schema["items"] if schema["type"] == "array" else schema["values"]


def _full_name(schema: Mapping[str, Any], enclosing: str) -> str:
    name: str = schema["name"]
    space = schema.get("namespace", enclosing)
    return name if "." in name or not space else f"{space}.{name}"


def _default(field: Mapping[str, Any]) -> str:
    return repr(field.get("default", "no default"))
