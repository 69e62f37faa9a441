"""Bodies that would make a decoder allocate, recurse or loop are refused before it sees them."""

import time
import tracemalloc
from typing import Any

import pytest

from fencepost import schemas
from fencepost.schemas import DecodeError, Limits, SchemaError
from fencepost.schemas.bounds import compile_bounds


def number(value: int) -> bytes:
    """A zigzag variable-length number."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def check(schema: Any, body: bytes, limits: Limits | None = None) -> None:
    compile_bounds(schema, "X", limits or Limits())(body, 0)


NULLS = {"type": "record", "name": "R", "fields": [{"name": "a", "type": array("null"), "default": []}]}

BOMBS = {
    "twenty million nulls in six bytes": (NULLS, number(20_000_000) + b"\x00", "more items"),
    "two thousand million nulls": (NULLS, number(2_000_000_000) + b"\x00", "more items"),
    "2**63 nulls, as a negative count": (NULLS, number(-(1 << 63)) + number(0) + b"\x00", "more items"),
    "nulls in many arrays": (
        array(array("null")),
        number(999) + (number(9_999) + b"\x00") * 999 + b"\x00",
        "more items",
    ),
    "empty records": (array({"type": "record", "name": "E", "fields": []}), number(1 << 40) + b"\x00", "more items"),
    "zero-width fixed": (array({"type": "fixed", "name": "F", "size": 0}), number(1 << 40) + b"\x00", "more items"),
    "a terabyte of bytes": ("bytes", number(1 << 40), "truncated"),
    "2**62 bytes of text": ("string", number(1 << 62), "truncated"),
    "bytes of negative length": ("bytes", number(-5), "negative length"),
    "a map key of negative length": ({"type": "map", "values": "int"}, number(1) + number(-1), "negative length"),
    "more strings than bytes": (array("string"), number(10_000) + b"\x00" * 50, "truncated"),
    "negative block size": (array("int"), number(-1) + number(-1) + b"\x00\x00", "negative block size"),
    "block size too large": (array("int"), number(-1) + number(2) + b"\x00\x00", "block size does not match"),
    "block size too small": (array("int"), number(-2) + number(1) + b"\x00\x00\x00", "block size does not match"),
    "number without end": ("long", b"\x80" * 11, "more than 64 bits"),
    "number of 65 bits": ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
    "number cut off": ("long", b"\x80\x80", "truncated"),
    "int of 33 bits": ("int", number(1 << 31), "more than 32 bits"),
    "boolean two": ("boolean", b"\x02", "no boolean"),
    "enum symbol beyond the last": ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1), "no such enum symbol"),
    "enum symbol from the end": ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1), "no such enum symbol"),
    "union branch beyond the last": (["null", "int"], number(2), "no such union branch"),
    "union branch from the end": (["null", "int"], number(-1), "no such union branch"),
    "double cut off": ("double", b"\x00" * 7, "truncated"),
    "nothing": ("int", b"", "truncated"),
    "something after the end": ("int", b"\x00\x00", "1 bytes follow"),
    "an array after its end, with a zero in two bytes": (array("boolean"), b"\x80\x00\x00", "1 bytes follow"),
    "too many bytes": ("bytes", number(1 << 20) + bytes(1 << 20), "more than the limit"),
}


@pytest.mark.parametrize(("schema", "body", "reason"), BOMBS.values(), ids=BOMBS.keys())
def test_crafted_bodies_are_refused_at_no_cost(schema: Any, body: bytes, reason: str) -> None:
    """Each bomb is refused in well under a second, within a quarter of a megabyte."""
    checked = compile_bounds(schema, "X", Limits())
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(DecodeError, match=reason):
            checked(body, 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (NULLS, number(10_000) + b"\x00"),
        (NULLS, number(-10_000) + number(0) + b"\x00"),
        (array("null"), number(5_000) + number(5_000) + b"\x00"),
        ("long", number(-(1 << 63))),
        ("long", b"\x80\x00"),
        (array("boolean"), b"\x80\x00"),  # a zero in two bytes ends an array as well
        ("int", number(-(1 << 31))),
        ("null", b""),
        (["null", "float"], number(1) + bytes(4)),
        ({"type": "map", "values": "boolean"}, number(-1) + number(3) + b"\x02k\x01\x00"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc"),
        ({"type": "string"}, b"\x02a"),
    ],
)
def test_bodies_at_the_limit_pass(schema: Any, body: bytes) -> None:
    """The limits are inclusive, and every legal form of the encoding passes."""
    check(schema, body)


@pytest.mark.parametrize("count", [10_001, 1 << 31, 1 << 62])
def test_a_record_of_the_log_with_a_forged_count_is_refused(count: int) -> None:
    """The published schemas are covered: a forged history count in a record never reaches the decoder."""
    empty = schemas.encode_record({})
    with pytest.raises(DecodeError, match="more items"):
        schemas.decode_record(empty[:11] + number(count) + empty[11:])


def nested(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = array(schema)
    return schema


def test_nesting_is_bounded_by_the_schema() -> None:
    """A schema nests no deeper than the limit, so neither do the values, nor the walk."""
    check(nested(15), b"\x02" * 15 + b"\x00" * 16)
    with pytest.raises(SchemaError, match="deeper than 16"):
        compile_bounds(nested(16), "X", Limits())
    with pytest.raises(SchemaError, match="deeper than 16"):
        compile_bounds(nested(500), "X", Limits())
    with pytest.raises(SchemaError, match="deeper than 1"):
        compile_bounds(nested(1), "X", Limits(max_depth=1))


def test_recursive_schemas_are_refused() -> None:
    """A schema that refers to itself could nest 200 000 deep in as many bytes; it is never made into a walk."""
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"], "default": None}]}
    with pytest.raises(SchemaError, match="'N' is not a primitive"):
        compile_bounds(node, "X", Limits())
