"""Former versions are resolved to the present schema."""

from typing import Any

import pytest

from fencepost.schemas import Limits, SchemaError, UnknownSchemaError
from fencepost.schemas.catalogue import Version, fingerprint
from fencepost.schemas.compatibility import flaws, incompatibilities
from fencepost.schemas.formats import Format


def schema(items: list[dict[str, Any]], symbols: list[str], *more: dict[str, Any]) -> dict[str, Any]:
    inner = {"type": "record", "name": "Item", "fields": items}
    return {
        "type": "record", "name": "R", "namespace": "n", "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": symbols, "default": "U"}, "default": "U"},
            {"name": "items", "type": {"type": "array", "items": inner}, "default": []},
            *more,
        ],
    }  # fmt: skip


X = {"name": "x", "type": "long", "default": 0}
Y = {"name": "y", "type": "bytes", "default": "\u00ff"}
GONE = {"name": "gone", "type": "string", "default": "was here"}
RAW = {"name": "raw", "type": "bytes", "default": "\u0000\u00e9"}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["a"]}
POINT = {
    "name": "point", "default": {"b": "\u00fe"},
    "type": {"type": "record", "name": "P", "fields": [Y | {"name": "b"}, X | {"default": 7}]},
}  # fmt: skip

OLD = schema([X], ["U", "A"], GONE)
NEW = schema([X, Y], ["U", "A", "B"], RAW, TAGS, POINT)


def version(number: int, json: dict[str, Any]) -> Version:
    return Version(number, json, fingerprint(json))


OLD_VERSION, NEW_VERSION = version(1, OLD), version(2, NEW)
OLD_FORMAT = Format(OLD_VERSION, [OLD_VERSION, NEW_VERSION], Limits())
NEW_FORMAT = Format(NEW_VERSION, [OLD_VERSION, NEW_VERSION], Limits())


def test_the_two_versions_are_a_legal_evolution() -> None:
    """The examples of this file are what the compatibility rules allow."""
    assert flaws(OLD) == flaws(NEW) == incompatibilities(OLD, NEW) == []


def test_fields_added_since_take_their_defaults() -> None:
    """What an older version wrote comes back with today's fields; bytes as bytes, records inside arrays too."""
    data = OLD_FORMAT.write(b"", {"kind": "A", "items": [{"x": 5}], "gone": "z"})
    assert NEW_FORMAT.read(data, 0, OLD_VERSION.fingerprint) == {
        "kind": "A",
        "items": [{"x": 5, "y": b"\xff"}],
        "raw": b"\x00\xe9",
        "tags": ["a"],
        "point": {"b": b"\xfe", "x": 7},
    }


def test_missing_fields_are_written_as_they_would_be_read() -> None:
    """A default that is filled in on writing is the one that is filled in on reading."""
    data = NEW_FORMAT.write(b"", {"items": [{}]})
    assert NEW_FORMAT.read(data, 0, NEW_VERSION.fingerprint) == {
        "kind": "U",
        "items": [{"x": 0, "y": b"\xff"}],
        "raw": b"\x00\xe9",
        "tags": ["a"],
        "point": {"b": b"\xfe", "x": 7},
    }


def test_an_older_version_reads_what_a_newer_one_wrote() -> None:
    """The other direction: new fields are dropped, a new symbol becomes the default, a dropped field its default."""
    data = NEW_FORMAT.write(b"", {"kind": "B", "items": [{"x": 1, "y": b"q"}], "raw": b"r"})
    assert OLD_FORMAT.read(data, 0, NEW_VERSION.fingerprint) == {"kind": "U", "items": [{"x": 1}], "gone": "was here"}


def test_a_caller_may_change_what_he_decoded() -> None:
    """Defaults that were filled in are fresh: changing one result does not change the next."""
    data = OLD_FORMAT.write(b"", {})
    for _ in range(2):
        values = NEW_FORMAT.read(data, 0, OLD_VERSION.fingerprint)
        assert values["tags"] == ["a"]
        values["tags"].append("b")
        values["point"]["x"] = 99


def test_a_version_that_was_not_published_is_refused() -> None:
    """A fingerprint outside the catalogue is an error of its own, which names it."""
    lonely = Format(OLD_VERSION, [OLD_VERSION], Limits())
    with pytest.raises(UnknownSchemaError) as caught:
        lonely.read(NEW_FORMAT.write(b"", {}), 0, NEW_VERSION.fingerprint)
    assert caught.value.schema_ref == NEW_VERSION.fingerprint.hex()


@pytest.mark.parametrize(
    "field",
    [
        {"name": "r", "type": ["null", "n.R"], "default": None},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "e", "type": {"type": "enum", "name": "K", "symbols": ["U"], "default": "U"}, "default": "U"},
    ],
    ids=["recursive", "logical", "duplicate name"],
)
def test_unusable_schemas_are_refused_when_they_are_loaded(field: dict[str, Any]) -> None:
    """A recursive schema, or one that is not valid Avro, is never accepted, not even as a writer's."""
    bad = schema([X], ["U"], field)
    with pytest.raises(SchemaError):
        Format(OLD_VERSION, [Version(2, bad, b"12345678")], Limits())
