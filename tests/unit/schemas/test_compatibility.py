"""The checker finds every change that would make one version unable to read another."""

from typing import Any

import pytest

from fencepost.schemas.compatibility import flaws, incompatibilities

Field = dict[str, Any]


def record(*fields: Field, name: str = "R", namespace: str = "n") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": namespace, "fields": list(fields)}


def field(name: str, kind: Any, default: Any, **more: Any) -> Field:
    return {"name": name, "type": kind, "default": default, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), "default": symbols[0], **more}


BASE = record(
    field("a", "int", 0),
    field("e", enum("U", "X"), "U"),
    field("u", ["null", "bytes"], None),
    field("l", {"type": "array", "items": record(field("x", "string", ""), name="I")}, []),
    field("m", {"type": "map", "values": "long"}, {}),
    field("f", {"type": "fixed", "name": "F", "size": 2}, "\u0000\u00ff"),
)


def changed(index: int, **more: Any) -> dict[str, Any]:
    fields = [dict(part) for part in BASE["fields"]]
    fields[index] |= more
    return record(*fields)


COMPATIBLE = {
    "itself": BASE,
    "a field added": record(*BASE["fields"], field("new", "bytes", "\u00ff")),
    "a field dropped": record(*BASE["fields"][1:]),
    "fields reordered": record(*reversed(BASE["fields"])),
    "a symbol appended": changed(1, type=enum("U", "X", "Y")),
    "documentation": changed(0, doc="new words"),
    "a field added inside an array's record": changed(
        3, type={"type": "array", "items": record(field("x", "string", ""), field("y", "long", -1), name="I")}
    ),
    "a name written out in full": {**BASE, "name": "n.R"},
}

INCOMPATIBLE = {
    "int to long (only one way)": (changed(0, type="long"), "/a: int became long"),
    "int to string": (changed(0, type="string", default=""), "/a: int became string"),
    "default changed": (changed(0, default=1), "/a: the default changed"),
    "symbol removed": (changed(1, type=enum("U")), "/e: symbols may only be appended"),
    "symbols reordered": (changed(1, type=enum("U", "Y", "X")), "/e: symbols may only be appended"),
    "default symbol changed": (changed(1, type=enum("U", "X") | {"default": "X"}), "/e: the default symbol changed"),
    "union grown": (changed(2, type=["null", "bytes", "long"]), "/u: the union has 3 branches"),
    "union shrunk": (changed(2, type=["null"]), "/u: the union has 1 branches"),
    "union branch replaced": (changed(2, type=["null", "string"]), "/u: bytes became string"),
    "union made plain": (changed(2, type="bytes", default=""), "/u: union became bytes"),
    "plain made union": (changed(0, type=["null", "int"], default=None), "/a: int became union"),
    "array to map": (changed(3, type={"type": "map", "values": "string"}, default={}), "/l: array became map"),
    "map's values": (changed(4, type={"type": "map", "values": "double"}), "/m[]: long became double"),
    "fixed resized": (changed(5, type={"type": "fixed", "name": "F", "size": 3}), "/f: size 2 became 3"),
    "fixed renamed": (changed(5, type={"type": "fixed", "name": "G", "size": 2}), "/f: n.F became n.G"),
    "inner type": (
        changed(3, type={"type": "array", "items": record(field("x", "bytes", ""), name="I")}),
        "/l[]/x: string became bytes",
    ),
    "renamed": ({**BASE, "name": "S"}, ": n.R became n.S"),
    "moved to another namespace": ({**BASE, "namespace": "o"}, ": n.R became o.R"),
    "added without default": (
        record(*BASE["fields"], {"name": "z", "type": "int"}),
        "/z: a field without a default came or went",
    ),
}

FLAWED = {
    "no default": (record({"name": "a", "type": "int"}), "/a: a field needs a default"),
    "default of another type": (record(field("a", "int", "0")), "/a: the default is not of the field's type"),
    "default out of range": (record(field("a", "int", 1 << 31)), "/a: the default is not of the field's type"),
    "bytes default beyond latin-1": (record(field("a", "bytes", "\u0100")), "/a: the default is not of the"),
    "bytes default a number": (record(field("a", "bytes", 0)), "/a: the default is not of the field's type"),
    "default of a later branch": (record(field("a", ["null", "int"], 0)), "/a: the default is not of the field's"),
    "array default": (record(field("a", {"type": "array", "items": "int"}, ["x"])), "/a: the default is not of"),
    "unknown default symbol": (record(field("a", enum("U"), "Z")), "/a: the default is not of the field's type"),
    "enum without default": (
        record(field("a", {"type": "enum", "name": "E", "symbols": ["U"]}, "U")),
        "/a: an enum needs a default among its symbols",
    ),
    "null not first": (record(field("a", ["bytes", "null"], "")), "/a: a union must start with null"),
    "alias of a field": (record(field("a", "int", 0, aliases=["b"])), "/a: aliases is not allowed here"),
    "alias of a type": ({**record(), "aliases": ["S"]}, ": aliases is not allowed here"),
    "logical type": (record(field("a", {"type": "long", "logicalType": "timestamp-millis"}, 0)), "logical types"),
    "recursion": (record(field("a", ["null", "R"], None)), "type 'R' is not a primitive"),
    "recursion by full name": (record(field("a", {"type": "array", "items": "n.R"}, [])), "type 'n.R' is not"),
    "a type in a type": (record(field("a", {"type": {"type": "int"}}, 0)), "a type that is dict"),
    "a field twice": (record(field("a", "int", 0), field("a", "int", 0)), "/a: a field of this name stands before"),
    "no such type": (record(field("a", "uuid", "")), "type 'uuid' is not a primitive"),
}


@pytest.mark.parametrize("newer", COMPATIBLE.values(), ids=COMPATIBLE.keys())
def test_compatible_changes_pass(newer: dict[str, Any]) -> None:
    """The allowed changes are found compatible."""
    assert flaws(newer) == []
    assert incompatibilities(BASE, newer) == []


@pytest.mark.parametrize(("newer", "expected"), INCOMPATIBLE.values(), ids=INCOMPATIBLE.keys())
def test_incompatible_changes_are_flagged(newer: dict[str, Any], expected: str) -> None:
    """Each change that a reader of one side could not cope with is named, with its path."""
    found = incompatibilities(BASE, newer)
    assert any(line.startswith(expected) for line in found), found


@pytest.mark.parametrize(("schema", "expected"), FLAWED.values(), ids=FLAWED.keys())
def test_schemas_that_must_not_be_published_are_flagged(schema: dict[str, Any], expected: str) -> None:
    """What can never evolve, or would be decoded without bounds, is named before anything is written with it."""
    found = flaws(schema)
    assert any(line.startswith(expected) for line in found), found


def test_the_base_of_these_examples_has_no_flaw() -> None:
    """The examples differ from a good schema in one thing each."""
    assert flaws(BASE) == []
