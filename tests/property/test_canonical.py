"""The canonical form is RFC 8785's, whichever way it is written."""

from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.identity import canonical

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ATOMS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | FLOATS | st.text()
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)


@given(VALUES)
@example({"\U0001f600": 1, "\uffff": 2})  # by UTF-16 the first sorts before the second
@example({"a": '\x7f\u2028\x1f\x00\b\f\n\r\t"\\/é\U0001f600'})
@example({"B": 1, "a": [True, False, None, (), {}, 0, -1, ""], "A": {"b": 1, "a": 2}})
@example([1, True, 0, False])
@example([12.5, -0.1, 1e-4, 9.999e-5, 1e-7, 0.1 + 0.2, 2**53 - 1.5, 2.0**53, 1e21, 1e22, 5e-324, 0.0, -0.0, 12.0])
def test_the_form_of_plain_values_is_that_of_the_standard(value: Any) -> None:
    """What the standard library writes for us is what RFC 8785 says, byte for byte."""
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_half_a_character_has_no_form(text: str) -> None:
    """Neither as a value nor as a name, on its own or deep within."""
    for value in (text, [text], {"a": {"b": text}}, {text: 1}):
        with pytest.raises(InvalidArgumentError, match="no canonical JSON form"):
            canonical(value)


def test_an_endless_value_has_no_form() -> None:
    """A list that holds itself is refused and does not end the process."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArgumentError):
        canonical(endless)
