"""Facts hold, read, and write only what they were told, and nothing of what they say depends on that."""

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from avro_values import VALUES
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost import schemas
from fencepost.ledger import facts
from fencepost.ledger.facts import AgentFact, AgentKind, Crossed, Dropped, EffectFact, EffectKind, Obligation
from fencepost.ledger.positions import Position
from fencepost.schemas import SINGLE_OBJECT, DecodeError, EncodeError, catalogue
from fencepost.schemas.catalogue import Version
from fencepost.schemas.formats import Format, load_format

RELAXED = settings(deadline=None, max_examples=200)
HEADER_BYTES = 10
NAMES = catalogue.NAMES
TOLD = {name: SINGLE_OBJECT.told_reader(name, {}) for name in NAMES}
ENCODE: dict[type, Callable[[Any], bytes]] = {EffectFact: facts.encode_effect, AgentFact: facts.encode_agent}
DECODE: dict[type, Callable[[bytes], Any]] = {EffectFact: facts.decode_effect, AgentFact: facts.decode_agent}
ANEW: dict[type, Callable[[bytes], Any]] = {EffectFact: facts._decode_effect, AgentFact: facts._decode_agent}


class Stranger(StrEnum):
    """Members of another enum, that are text like any other."""

    COMMITTED = "COMMITTED"
    JSON = "JSON"
    INVENTED = "INVENTED"


class Number(int):
    """An integer of a class of its own."""


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
STRANGE: dict[type, st.SearchStrategy[Any]] = {
    str: st.sampled_from(Stranger),
    int: st.integers(-100, 100).map(Number),
    float: st.integers(-5, 5),
}


def field_values(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    """Values of a field: its default too, and what is written as a value of it without being of its type."""
    default = {"EffectKind": EffectKind.UNKNOWN, "AgentKind": AgentKind.UNKNOWN}.get(str(field.type), field.default)
    if field.name == "epoch":
        return st.builds(Position, st.integers(0, 3) | st.just(Number(2)), st.integers(-1, 1 << 40))
    if default is None:
        return st.none() | st.binary(max_size=200)
    if isinstance(default, StrEnum):
        return st.sampled_from(type(default)) | st.sampled_from(type(default)).map(str) | st.sampled_from(Stranger)
    if isinstance(default, tuple):
        items = {
            "voided": st.integers(0, 99),
            "crossed": st.builds(Crossed, TEXTS, TEXTS, st.integers(0, 9)),
            "dropped": st.builds(Dropped, TEXTS, TEXTS),
            "obligations": st.builds(Obligation, TEXTS, TEXTS, TEXTS),
        }.get(field.name, TEXTS | st.sampled_from(Stranger))
        return st.lists(items, max_size=3) | st.lists(items, max_size=3).map(tuple)
    kind = type(default)
    usual: dict[type, st.SearchStrategy[Any]] = {
        str: TEXTS, bool: st.booleans(), int: st.integers(-(1 << 31), (1 << 31) - 1), float: st.floats(allow_nan=False),
    }  # fmt: skip
    return usual[kind] | st.just(default) | STRANGE.get(kind, st.nothing())


def facts_of(cls: type) -> st.SearchStrategy[Any]:
    values = {field.name: field_values(field) for field in dataclasses.fields(cls)}
    kind = values.pop("kind")
    return st.fixed_dictionaries({"kind": kind}, optional=values).map(lambda told: cls(**told))


FACTS = facts_of(EffectFact) | facts_of(AgentFact)


def normal(fact: Any) -> Any:
    """The same with every value of its field's own type, made without the codec."""
    values = {}
    for field in dataclasses.fields(fact):
        value = getattr(fact, field.name)
        enum: Any = {"EffectKind": EffectKind, "AgentKind": AgentKind}.get(str(field.type), type(field.default))
        if isinstance(value, Position):
            value = Position(int(value.generation), int(value.offset))
        elif issubclass(enum, StrEnum):
            value = enum(str(value)) if str(value) in list(enum) else enum["UNKNOWN"]
        elif isinstance(value, (list, tuple)):
            value = tuple(str(item) if isinstance(item, str) else item for item in value)
        elif value is not None and field.default is not None:
            value = enum(value)
        values[field.name] = value
    return type(fact)(**values)


def written(value: Any) -> str:
    """A value with the types of everything in it."""
    if dataclasses.is_dataclass(value):
        return f"{type(value)}({[(f.name, written(getattr(value, f.name))) for f in dataclasses.fields(value)]})"
    if isinstance(value, tuple):
        return f"{type(value)}({[written(part) for part in value]})"
    return f"{type(value)}{value!r}"


@RELAXED
@given(FACTS)
def test_a_fact_comes_back_as_it_is_meant(fact: Any) -> None:
    """What is decoded after it was encoded is the fact, in value and in every type, whatever it was given in its place."""
    data = ENCODE[type(fact)](fact)
    assert written(DECODE[type(fact)](data)) == written(normal(fact))
    assert written(ANEW[type(fact)](data)) == written(normal(fact))


@pytest.mark.parametrize("member", [*EffectKind, *AgentKind])
def test_every_kind_comes_back(member: Any) -> None:
    """Each kind stands in the schema: none is written as UNKNOWN, and none is lost when it is at its default."""
    cls = EffectFact if isinstance(member, EffectKind) else AgentFact
    data = ENCODE[cls](cls(kind=member))
    assert DECODE[cls](data).kind is ANEW[cls](data).kind is member


@RELAXED
@given(FACTS)
def test_what_is_told_does_not_change_the_bytes(fact: Any) -> None:
    """A default that was given, and one that was not, are the same fact: equal, of the same bytes, of the same hash."""
    every = {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
    full = type(fact)(**{name: _another(value) for name, value in every.items()})
    assert full == fact
    assert ENCODE[type(fact)](full) == ENCODE[type(fact)](fact)
    assert vars(dataclasses.replace(fact)) == vars(fact) or dataclasses.replace(fact) == fact


def _another(value: Any) -> Any:
    """An equal value that is another object, where there is one."""
    return float(str(value)) if type(value) is float else value


@RELAXED
@given(st.sampled_from(NAMES), st.data())
def test_what_is_left_out_is_at_its_default(name: str, data: st.DataObject) -> None:
    """Reading what is told, and reading everything, accept the same bytes, and say the same of them."""
    empty: bytes = getattr(schemas, f"encode_{name}")({})
    defaults = getattr(schemas, f"decode_{name}")(empty)
    body = data.draw(st.one_of(st.binary(max_size=120), st.just(empty[HEADER_BYTES:])))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(0, 6)) if damaged else 0):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place : place + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=4))
        if not damaged:
            break
    encoded = empty[:HEADER_BYTES] + bytes(damaged)
    whole = outcome(getattr(schemas, f"decode_{name}"), encoded)
    found = outcome(TOLD[name], encoded)
    assert repr({**defaults, **with_lists(found)} if isinstance(found, dict) else found) == repr(whole)


def with_lists(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@RELAXED
@given(st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_what_is_written_is_read_in_the_usual_form(case: tuple[str, dict[str, Any]]) -> None:
    """Without a filled map, what the codec writes is read without the library, and says the same."""
    name, values = case
    values.pop("extensions", None)
    form = load_format(name, schemas.Limits())
    data = form.write(b"", values)
    found = form.usual_reader({})(data, 0)
    assert found is not None
    empty = form.read(form.write(b"", {}), 0, form.fingerprint)
    assert repr({**empty, **with_lists(found)}) == repr(form.read(data, 0, form.fingerprint))


@RELAXED
@given(st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), VALUES[name], st.data())))
def test_both_ways_to_write_give_the_same_bytes(case: tuple[str, dict[str, Any], st.DataObject]) -> None:
    """Values that are written as they are give what the library writes of their shape, or are left to it."""
    name, values, data = case
    for field in data.draw(st.lists(st.sampled_from(sorted(values)), max_size=2)) if values else ():
        values[field] = data.draw(st.sampled_from(ODD))
    form = load_format(name, schemas.Limits())
    writer = form._writer(tuple(values))
    assert writer is not None
    written = writer(b"", values)
    if written is not None:
        assert written == form._write_shaped(b"", values)


ODD: list[Any] = [
    None, True, 0, 1, -1, 1 << 31, 1 << 63, -(1 << 63), 0.5, 2, "", "text", "\ud800", "é" * 5000, b"", b"x" * 9000, [], (),
    [None], ["a", 1], [b"a"], {}, {"generation": 1}, {"generation": 1, "offset": 2}, {"a": b"b"}, {"a": 1},
    [{"generation": 1, "offset": -3, "fact": b"f"}], [{"generation": 1 << 40, "offset": 1, "fact": b""}], Stranger.JSON,
    Number(3), Stranger.INVENTED, {"generation": True, "offset": 1}, "INTENDED", [{"op_id": "a", "tool": "b"}],
]  # fmt: skip


def outcome(decode: Callable[[bytes], Any], data: bytes) -> Any:
    """The value, or the text of the refusal."""
    try:
        return decode(data)
    except DecodeError as error:
        return str(error)


def test_a_default_in_an_unusual_encoding_is_read() -> None:
    """A zero in two bytes is a zero, and an empty array may be a sized block of none."""
    empty = schemas.encode_effect_fact({})
    body = empty[HEADER_BYTES:]
    assert body[:2] == b"\x00\x00"
    long_zero = empty[:HEADER_BYTES] + b"\x80\x00" + body[1:]
    assert schemas.decode_effect_fact(long_zero) == schemas.decode_effect_fact(empty)
    assert {**TOLD["effect_fact"](empty), **with_lists(TOLD["effect_fact"](long_zero))} == schemas.decode_effect_fact(
        empty
    )


def test_numbers_at_their_bounds() -> None:
    """Numbers that need every byte that they may have come back; one byte more is refused, however it is read."""
    for offset in (-(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62) - 1, 1 << 61, 8191, 8192, -1, -64, -65):
        for generation in (-(1 << 31), (1 << 31) - 1, 64, 1 << 30):
            data = schemas.encode_effect_fact({"epoch": {"generation": generation, "offset": offset}})
            assert TOLD["effect_fact"](data)["epoch"] == {"generation": generation, "offset": offset}


FLAGS = {
    "type": "record", "name": "R",
    "fields": [{"name": f"f{number}", "type": "string", "default": ""} for number in range(12)],
}  # fmt: skip


def test_more_layouts_than_are_remembered() -> None:
    """The set of told fields may be any: when too many were seen, the whole schema is used, to the same effect."""
    present = Version(1, FLAGS, catalogue.fingerprint(FLAGS))
    form = Format(present, [present], schemas.Limits())
    usual = form.usual_reader({})
    for told in range(1 << 12):
        values = {f"f{number}": "x" for number in range(12) if told >> number & 1}
        data = form.write(b"", values)
        whole = {f"f{number}": values.get(f"f{number}", "") for number in range(12)}
        assert form.read(data, 0, present.fingerprint) == whole
        assert {**dict.fromkeys(whole, ""), **(usual(data, 0) or {})} == whole
    with pytest.raises(EncodeError, match="no such field: g"):
        form.write(b"", {"g": ""})


def test_a_fact_is_frozen_and_its_fields_are_known() -> None:
    """As with any frozen dataclass: no field is set later, none is missing, none invented; it says so by itself."""
    fact = EffectFact(kind=EffectKind.INTENDED, op_id="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        fact.op_id = "b"  # type: ignore[misc]
    with pytest.raises(TypeError, match="kind"):
        EffectFact(op_id="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="opid"):
        EffectFact(kind=EffectKind.INTENDED, opid="a")  # type: ignore[call-arg]
    assert "op_id='a'" in repr(fact)
    assert "round=1" in repr(fact)
    assert dataclasses.replace(fact, round=2) != fact == dataclasses.replace(fact)
    assert hash(dataclasses.replace(fact)) == hash(fact)
