"""Names of operations: the same call has the same id everywhere, another call has another."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import threading
import uuid
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.identity import (
    MAX_ID_CHARS,
    canonical,
    check_id,
    check_op_id,
    derived_op_id,
    digest,
    keyed_op_id,
)

names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-(2.0**52), 2.0**52) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@dataclasses.dataclass
class Money:
    amount: Any
    currency: str = "EUR"


class Colour(enum.Enum):
    RED = "red"


class Model:
    def model_dump(self, mode: str) -> dict[str, str]:
        return {"mode": mode}


# -- canonical forms -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"b": 1, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        ({"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\x80": 6, "ö": 7}, None),
        (333333333.33333329, "333333333.3333333"),
        (1e30, "1e+30"),
        (4.50, "4.5"),
        (2e-3, "0.002"),
        (1e-27, "1e-27"),
        (-0.0, "0"),
        (5.0, "5"),
        ('\u20ac$\n"\\/', '"€$\\n\\"\\\\/"'),
        (2**53 - 1, "9007199254740991"),
        (2**53, '{"$int":"9007199254740992"}'),
        (-(2**70), '{"$int":"-1180591620717411303424"}'),
        ((1, 2), "[1,2]"),
        ({3, 1, 2}, '{"$set":[1,2,3]}'),
        (Decimal("50.00"), '{"$decimal":"5E+1"}'),
        (Decimal("50.10"), '{"$decimal":"50.1"}'),
        (Decimal("-0.0"), '{"$decimal":"0"}'),
        (dt.date(2030, 1, 2), '{"$time":"2030-01-02"}'),
        (b"\x00\xff", '{"$bytes":"AP8="}'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Colour.RED, '"red"'),
        (Money(5), '{"amount":5,"currency":"EUR"}'),
        (Model(), '{"mode":"json"}'),
    ],
)
def test_canonical_forms(value: Any, form: str | None) -> None:
    """RFC 8785: keys in order of their UTF-16, shortest numbers, minimal escapes; tags for what JSON lacks."""
    if form is None:
        expected = ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]
        assert list(json.loads(canonical(value))) == expected
    else:
        assert canonical(value).decode() == form


@given(plain)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    """What is read back is equal, but for tagged integers, and is canonical already."""
    once = canonical(value)
    assert canonical(json.loads(once)) == once


@given(st.dictionaries(names, plain, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_arguments_makes_no_difference(arguments: dict[str, Any], chance: Any) -> None:
    """Neither in the form nor in the id."""
    items = list(arguments.items())
    chance.shuffle(items)
    assert canonical(dict(items)) == canonical(arguments)
    ids = {derived_op_id(scope="s", tool="t", identity=a) for a in (arguments, dict(items))}
    assert len(ids) == 1


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_one_exactly_if_they_are_equal(one: Decimal, other: Decimal) -> None:
    """With all their digits, in whatever decimal context the caller happens to run."""
    assert (canonical(one) == canonical(other)) is (one == other)
    with localcontext() as context:
        context.prec, context.capitals = 1, 0
        assert canonical(one) == json.dumps(json.loads(canonical(one)), separators=(",", ":")).encode()
        told = canonical(one)
    assert told == canonical(one)


def test_decimals_keep_more_digits_than_the_default_context_has() -> None:
    """28 digits are what arithmetic keeps; an amount is what it is."""
    assert canonical(Decimal("1." + "0" * 40 + "1")) != canonical(Decimal(1))


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), Decimal("NaN"), Decimal("sNaN"), Decimal("-Infinity"), object(), {1: 2},
        {"a": {None: 1}}, Money(threading.Lock()), "\ud800", {"\ud800": 1}, {"\ud800"}, Money, 10**5000,
    ],
    ids=lambda value: f"{value!r:.20}" if not isinstance(value, int) else "enormous",
)  # fmt: skip
def test_what_has_no_canonical_form_is_refused_by_name(value: Any) -> None:
    """Never a guess, never another library's error."""
    with pytest.raises(InvalidArgumentError) as caught:
        canonical(value, field="identity")
    assert caught.value.field == "identity"
    assert str(caught.value).startswith("identity: ")


def test_what_contains_itself_is_refused() -> None:
    """At any depth."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgumentError, match="no canonical JSON form"):
        canonical(loop)


# -- op ids --------------------------------------------------------------------------------

calls = st.fixed_dictionaries(
    {
        "scope": names,
        "tool": names,
        "identity": st.dictionaries(names, plain, max_size=3),
        "occurrence": st.integers(1, 3),
    }
)


@given(calls, calls)
def test_derived_ids_are_one_exactly_if_the_calls_are(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Scope, tool, canonical identity and occurrence are all that counts."""
    parts = [(c["scope"], c["tool"], canonical(c["identity"]), c["occurrence"]) for c in (one, other)]
    assert (derived_op_id(**one) == derived_op_id(**other)) is (parts[0] == parts[1])


keys = st.text("ab#12:", min_size=1, max_size=5)


@given(keys, st.integers(1, 12), keys, st.integers(1, 12))
def test_keyed_ids_are_one_exactly_if_key_and_occurrence_are(key: str, n: int, other: str, m: int) -> None:
    """Also for keys that look as if they said an occurrence."""
    same = keyed_op_id(tool="t", key=key, occurrence=n) == keyed_op_id(tool="t", key=other, occurrence=m)
    assert same is ((key, n) == (other, m))


def test_ids_are_readable() -> None:
    """Tool and scope, or tool and key, can be read in them; a first occurrence says nothing of itself."""
    derived = derived_op_id(scope="ticket-7" + "x" * 300, tool="mail.send", identity={"to": "a"})
    assert derived.startswith("mail.send:ticket-7")
    assert len(check_op_id(derived)) < 200
    assert derived_op_id(scope="s", tool="t", identity={}, occurrence=2).endswith("#2")
    assert keyed_op_id(tool="t", key="k") == "t:k"
    assert keyed_op_id(tool="t", key="k", occurrence=2) == "t:k#2"
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# -- ids that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "blank"), ("   ", "blank"), ("\n", "blank"), (None, "text"), (7, "text"), (b"x", "text"),
        ("x" * (MAX_ID_CHARS + 1), "at most 512"), ("a\nb", "printable"), ("a\x00", "printable"),
        ("a\u200b", "printable"), ("a\ud800", "printable"), (" a", "white space"), ("a ", "white space"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["agent_id", "scope", "checkpoint"])
def test_unusable_ids_are_refused_with_the_fields_name(value: object, problem: str, field: str) -> None:
    """Blank, null, oversized, not printable: each is told which field and why."""
    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        check_id(field, value)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    with pytest.raises(InvalidArgumentError):
        check_op_id(value)


@pytest.mark.parametrize("value", ["a", "x" * MAX_ID_CHARS, "with space", "ä/€:😀", "a~b"])
def test_usable_ids_come_back_unchanged(value: str) -> None:
    """What is allowed is not normalised: the id is what the user wrote."""
    assert check_id("field", value) is value
    assert check_op_id(value) is value


def test_an_operation_may_not_begin_like_the_ledgers_own_keys() -> None:
    """A leading tilde is reserved."""
    with pytest.raises(InvalidArgumentError, match="reserved") as caught:
        check_op_id("~fence/x", "key")
    assert caught.value.field == "key"
