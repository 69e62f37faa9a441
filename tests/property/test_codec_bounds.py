"""The bounds check and the decoder agree about every schema, not only about the published ones."""

from io import BytesIO
from typing import Any

import fastavro
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fencepost.schemas import DecodeError, Limits
from fencepost.schemas.bounds import compile_bounds

LIMITS = Limits(max_bytes=2_000, max_items=200, max_depth=12)
RELAXED = settings(deadline=None, max_examples=300)
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Any schema without recursion."""
    names = iter(range(10_000))

    def build(depth: int) -> Any:
        kind = draw(
            st.sampled_from(PRIMITIVES if depth > 3 else (*PRIMITIVES, "array", "map", "record", "union", "enum"))
        )
        match kind:
            case "array":
                return {"type": "array", "items": build(depth + 1)}
            case "map":
                return {"type": "map", "values": build(depth + 1)}
            case "record":
                fields = [{"name": f"f{n}", "type": build(depth + 1)} for n in range(draw(st.integers(0, 4)))]
                return {"type": "record", "name": f"R{next(names)}", "fields": fields}
            case "union":
                return ["null", draw(st.sampled_from(PRIMITIVES[1:]))]
            case "enum":
                return {
                    "type": "enum",
                    "name": f"E{next(names)}",
                    "symbols": ["A", "B", "C"][: draw(st.integers(1, 3))],
                }
        return kind

    return build(0)


def accepted(schema: Any, body: bytes) -> bool:
    """Whether the check lets the body pass; then the decoder must take all of it."""
    try:
        compile_bounds(schema, "X", LIMITS)(body, 0)
    except DecodeError:
        return False
    stream = BytesIO(body)
    try:
        fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
    except UnicodeDecodeError:
        return True
    assert stream.tell() == len(body)
    return True


@RELAXED
@given(schemas(), st.binary(max_size=60))
def test_what_passes_is_decoded_to_its_end(schema: Any, body: bytes) -> None:
    """Whatever the check accepts, the decoder reads without an error (but for text), up to the last byte."""
    accepted(schema, body)


@RELAXED
@given(schemas(), st.data())
def test_what_the_library_writes_passes(schema: Any, data: st.DataObject) -> None:
    """No good encoding is refused; damage to it never gets past the check into trouble."""
    value = data.draw(values_of(schema))
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    body = stream.getvalue()
    assume(len(body) < LIMITS.max_bytes)
    assert accepted(schema, body)
    assert not accepted(schema, body + b"\x00")
    damaged = bytearray(body)
    if damaged:
        damaged[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        accepted(schema, bytes(damaged))


def values_of(schema: Any) -> st.SearchStrategy[Any]:  # noqa: C901, PLR0911 - one return per Avro type
    """Values that the library writes for a schema."""
    if isinstance(schema, list):
        return st.one_of(*map(values_of, schema))
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind:
        case "record":
            return st.fixed_dictionaries({part["name"]: values_of(part["type"]) for part in schema["fields"]})
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "array":
            return st.lists(values_of(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=5), values_of(schema["values"]), max_size=3)
        case "int" | "long":
            bits = 31 if kind == "int" else 63
            return st.integers(-(1 << bits), (1 << bits) - 1)
        case "float" | "double":
            return st.floats(width=32)
        case "string":
            return st.text(max_size=10)
        case "bytes":
            return st.binary(max_size=10)
        case "boolean":
            return st.booleans()
    return st.none()
