"""Values to bytes and back, by example."""

import pickle
from enum import StrEnum
from typing import Any

import pytest

from fencepost import schemas
from fencepost.schemas import (
    SINGLE_OBJECT,
    Codec,
    DecodeError,
    EncodeError,
    Limits,
    RegistryUnavailableError,
    SchemaError,
    SingleObjectCodec,
    UnknownSchemaError,
    catalogue,
)

INTENT = {
    "kind": "INTENDED", "op_id": "op", "epoch": {"generation": 1, "offset": 9}, "arguments": b"{}",
    "cascades": ["a", "b"], "extensions": {"k": b"v"},
}  # fmt: skip


def test_the_encoding_is_the_one_that_the_specification_describes() -> None:
    """Bytes put together by hand from the specification: marker, fingerprint, then field after field."""
    body = b"".join((
        b"\x02k",            # key: one byte long
        b"\x02",             # history: a block of one item
        b"\x02", b"\xac\x02", b"\x04\x00\xff",  # generation 1, offset 150, two bytes
        b"\x00",             # end of the history
        b"\x02\x00",         # fact: second branch, no bytes
        b"\x04\xc3\xa9",     # writer: é, two bytes of UTF-8
        b"\x04", b"\x02a\x00", b"\x02b\x02\x01", b"\x00",  # extensions: two entries, sorted, end
    ))  # fmt: skip
    values = {
        "key": "k", "history": [{"generation": 1, "offset": 150, "fact": b"\x00\xff"}], "fact": b"", "writer": "é",
        "extensions": {"b": b"\x01", "a": b""},
    }  # fmt: skip
    data = b"\xc3\x01" + catalogue.fingerprint(catalogue.current("record").schema) + body
    assert schemas.encode_record(values) == data
    assert schemas.decode_record(data) == values


def test_blocks_with_a_size_are_read_as_well() -> None:
    """Other writers may announce a block's size in bytes, behind a negative count, and use several blocks."""
    head = schemas.encode_record({})[:10]
    assert schemas.decode_record(head + b"\x00\x00\x00\x00" + b"\x01\x06\x02a\x00" + b"\x02\x02b\x00" + b"\x00") == {
        "key": "", "history": [], "fact": None, "writer": "", "extensions": {"a": b"", "b": b""},
    }  # fmt: skip


def test_equal_values_give_equal_bytes() -> None:
    """Neither the order of keys, nor a default written out, nor a tuple for a list, nor a StrEnum changes the bytes."""

    class Kind(StrEnum):
        INTENDED = "INTENDED"

    full = schemas.decode_effect_fact(schemas.encode_effect_fact(INTENT))
    variants: list[dict[str, Any]] = [
        dict(reversed(INTENT.items())),
        full,
        INTENT | {"kind": Kind.INTENDED, "cascades": ("a", "b"), "deadline_s": 0},
    ]
    assert {schemas.encode_effect_fact(values) for values in variants} == {schemas.encode_effect_fact(INTENT)}
    there = schemas.encode_record({"extensions": {"a": b"1", "b": b"2", "é": b"", "z": b""}})
    assert schemas.encode_record({"extensions": {"z": b"", "é": b"", "b": b"2", "a": b"1"}}) == there


def test_an_unknown_symbol_is_written_as_unknown() -> None:
    """A kind that the schema lacks is kept as UNKNOWN, which makes its operation unsafe, and never as another kind."""
    assert schemas.decode_effect_fact(schemas.encode_effect_fact({"kind": "INVENTED"}))["kind"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"knd": "INTENDED"}, "no such field: knd"),
        ({"op_id": None}, "op_id: expected text, got NoneType"),
        ({"op_id": b"x"}, "op_id: expected text, got bytes"),
        ({"op_id": "\ud800"}, "surrogate"),
        ({"arguments": "{}"}, "arguments: expected bytes, got str"),
        ({"round": 1 << 31}, "round: does not fit into 32 bits"),
        ({"round": 1.0}, "round: expected an integer, got float"),
        ({"round": True}, "round: expected an integer, got bool"),
        ({"seq": 1 << 63}, "seq: does not fit into 64 bits"),
        ({"epoch": {"offset": "1"}}, "epoch: offset: expected an integer, got str"),
        ({"epoch": 1}, "epoch: expected a mapping, got int"),
        ({"deadline_s": "1"}, "deadline_s: expected a number, got str"),
        ({"deadline_s": 10**400}, "deadline_s: is too large for a float"),
        ({"order_safe": 1}, "order_safe: expected true or false, got int"),
        ({"cascades": "ab"}, "cascades: expected a list, got str"),
        ({"extensions": {"a": None}}, "extensions: expected bytes, got NoneType"),
        ({"extensions": {1: b"", "a": b""}}, "extensions: expected text, got int"),
        ({"extensions": []}, "extensions: expected a mapping, got list"),
        ({"kind": 1}, "kind: expected an enum symbol, got int"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], path: str) -> None:
    """Nothing is coerced: a wrong type, range or name is an error that names the field."""
    with pytest.raises(EncodeError, match=path):
        schemas.encode_effect_fact(values)


def test_what_is_too_large_to_read_is_not_written() -> None:
    """A writer cannot leave a record behind that every reader would have to set aside."""
    exact = (1 << 20) - len(schemas.encode_record({"fact": b""})) - 2  # the length takes two bytes more than for none
    assert len(schemas.encode_record({"fact": bytes(exact)})) == 1 << 20
    with pytest.raises(EncodeError, match="more than the limit"):
        schemas.encode_record({"fact": bytes(exact + 1)})
    schemas.decode_effect_fact(schemas.encode_effect_fact({"cascades": [""] * 10_000}))
    with pytest.raises(EncodeError, match="more items"):
        schemas.encode_effect_fact({"cascades": [""] * 9_000, "extensions": {str(n): b"" for n in range(1_001)}})


def test_limits_can_be_chosen() -> None:
    """A codec with other limits refuses earlier or later."""
    small = SingleObjectCodec(Limits(max_bytes=100, max_items=2))
    small.encode_effect_fact({"cascades": ["a", "b"]})
    with pytest.raises(EncodeError):
        small.encode_effect_fact({"cascades": ["a", "b", "c"]})
    with pytest.raises(DecodeError, match="limit of 100"):
        small.decode_effect_fact(schemas.encode_effect_fact({"op_id": "x" * 100}))
    large = SingleObjectCodec(Limits(max_bytes=3 << 20))
    assert large.decode_record(large.encode_record({"fact": bytes(2 << 20)}))["fact"] == bytes(2 << 20)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated in the header: 0 bytes"),
        (b"\xc3", "truncated in the header: 1 bytes"),
        (b"\xc3\x01\x00", "truncated in the header: 3 bytes"),
        (b"\xc3\x02" + bytes(20), "starts with c302"),
        (b"{}" + bytes(20), "starts with 7b7d"),
        (b"\x00\x00", "starts with 0000"),
    ],
)
def test_damaged_headers_are_decode_errors(data: bytes, reason: str) -> None:
    """What does not start with a complete header is not read any further."""
    with pytest.raises(DecodeError, match=reason) as caught:
        schemas.decode_record(data)
    assert caught.value.what == "Record"
    with pytest.raises(DecodeError):
        schemas.peek_fingerprint(data)


def test_a_registry_encoding_without_a_registry_says_what_to_do() -> None:
    """Bytes with a registry's id are unknown, not corrupt, and the message says to configure the registry."""
    with pytest.raises(UnknownSchemaError, match="configure the registry") as caught:
        schemas.decode_record(b"\x00\x00\x00\x01\x02rest")
    assert caught.value.schema_ref == "258"


def test_a_value_of_another_schema_is_unknown() -> None:
    """An agent's fact is not read as an operation's, even if its bytes would fit."""
    data = schemas.encode_agent_fact({})
    with pytest.raises(UnknownSchemaError) as caught:
        schemas.decode_effect_fact(data)
    assert caught.value.schema_ref == schemas.peek_fingerprint(data).hex()


def test_bytes_after_the_end_are_an_error() -> None:
    """A complete value with something behind it is not that value."""
    with pytest.raises(DecodeError, match="1 bytes follow"):
        schemas.decode_record(schemas.encode_record({}) + b"\x00")


def test_text_must_be_utf_8() -> None:
    """Text that is not UTF-8 is an error like any other damage."""
    with pytest.raises(DecodeError, match="not UTF-8"):
        schemas.decode_record(schemas.encode_record({})[:10] + b"\x02\xff\x00\x00\x00\x00")


def test_the_module_functions_are_the_default_codec() -> None:
    """There is one default codec, and it satisfies the interface."""
    codec: Codec = SINGLE_OBJECT
    assert codec.decode_agent_fact(schemas.encode_agent_fact({"pid": 7}))["pid"] == 7
    assert set(schemas.__all__) <= set(dir(schemas))


@pytest.mark.parametrize(
    "error",
    [
        SchemaError("a", "b"),
        EncodeError("a", "b"),
        DecodeError("a", "b"),
        UnknownSchemaError("a", "b", "c"),
        RegistryUnavailableError("a", "b"),
    ],
)
def test_errors_survive_pickling(error: SchemaError) -> None:
    """Every error keeps its class, fields and message across processes, and says what it is as plain values."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error) == error.to_dict()["message"]
    assert error.to_dict()["retryable"] is isinstance(error, RegistryUnavailableError)
    assert str(error).endswith(error.next_step)
