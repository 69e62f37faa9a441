"""Whatever happens to bytes, decoding gives a value or a DecodeError; what is encoded comes back."""

import math
from typing import Any

import pytest
from avro_values import VALUES
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import schemas
from fencepost.schemas import DecodeError, catalogue

RELAXED = settings(deadline=None, max_examples=150)
HEADER_BYTES = 10
CASES = st.sampled_from(catalogue.NAMES).flatmap(lambda name: st.tuples(st.just(name), VALUES[name]))


def encode(name: str, values: dict[str, Any]) -> bytes:
    data: bytes = getattr(schemas, f"encode_{name}")(values)
    return data


def decode(name: str, data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = getattr(schemas, f"decode_{name}")(data)
    return values


def decoded_or_refused(name: str, data: bytes) -> None:
    """A DecodeError, or a value that can be written and read again; any other exception fails the test."""
    try:
        values = decode(name, data)
    except DecodeError:
        return
    again = encode(name, values)
    assert encode(name, decode(name, again)) == again


def equal(left: Any, right: Any) -> bool:
    """Equality under which a NaN equals itself."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


@RELAXED
@given(CASES)
def test_round_trip(case: tuple[str, dict[str, Any]]) -> None:
    """Decoding gives back every value that was written, defaults where none was, and encodes to the same bytes."""
    name, values = case
    data = encode(name, values)
    decoded = decode(name, data)
    assert encode(name, decoded) == data
    defaults = decode(name, encode(name, {}))
    for key, found in decoded.items():
        wanted = values.get(key, defaults[key])
        if isinstance(wanted, dict) and key != "extensions":
            wanted = defaults[key] | wanted
        if key not in {
            "history",
            "crossed",
            "dropped",
            "obligations",
        }:  # their items may miss fields; the bytes above speak for them
            assert equal(found, wanted), key


@RELAXED
@given(CASES, st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_the_bytes(case: tuple[str, dict[str, Any]], random: Any) -> None:
    """Equal values give equal bytes, however their dicts were built."""
    name, values = case

    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    assert encode(name, shuffled(values)) == encode(name, values)


@RELAXED
@given(CASES)
def test_every_truncation_is_refused(case: tuple[str, dict[str, Any]]) -> None:
    """No proper prefix of an encoding is itself one."""
    data = encode(*case)
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            decode(case[0], data[:length])


@RELAXED
@given(CASES, st.data())
def test_flipped_bytes_are_survived(case: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    """A few changed bytes anywhere give another value or a DecodeError."""
    damaged = bytearray(encode(*case))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    decoded_or_refused(case[0], bytes(damaged))


@RELAXED
@given(CASES, st.data())
def test_inserted_and_deleted_bytes_are_survived(case: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    """So do bytes that came in or went missing behind the header."""
    good = encode(*case)
    start = data.draw(st.integers(HEADER_BYTES, len(good)))
    end = data.draw(st.integers(start, len(good)))
    decoded_or_refused(case[0], good[:start] + data.draw(st.binary(max_size=30)) + good[end:])


@RELAXED
@given(st.sampled_from(catalogue.NAMES), st.binary(max_size=300))
def test_any_body_is_survived(name: str, body: bytes) -> None:
    """A good header in front of any bytes at all."""
    decoded_or_refused(name, encode(name, {})[:HEADER_BYTES] + body)


@RELAXED
@given(st.sampled_from(catalogue.NAMES), st.binary(max_size=40))
def test_any_bytes_are_survived(name: str, data: bytes) -> None:
    """Any bytes at all."""
    decoded_or_refused(name, data)


@RELAXED
@given(st.dictionaries(st.sampled_from(["key", "fact", "history", "writer", "extensions", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)))  # fmt: skip
def test_any_values_are_survived(values: dict[str, Any]) -> None:
    """Values of any type are written so that they can be read, or refused as what they are."""
    try:
        data = schemas.encode_record(values)
    except schemas.EncodeError:
        return
    assert schemas.encode_record(schemas.decode_record(data)) == data
