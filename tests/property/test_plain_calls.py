"""Binding arguments the short way gives what binding them in general gives, or leaves it to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.ledger.calls import Call, EffectOptions, Tool
from fencepost.ledger.facts import EffectClass


class Word(StrEnum):
    """A text that is more than a text."""

    A = "a"


def two(order: Any, amount: Any) -> None:
    """Nothing special."""


def with_defaults(order: Any, amount: Any = 12.5, *, note: Any = None) -> None:
    """Some need not be given."""


def by_place(order: Any, /, amount: Any = 1) -> None:
    """One must not be named."""


def with_more(order: Any, *amounts: Any, **words: Any) -> None:
    """Any number of them."""


def without() -> None:
    """None at all."""


def changing(order: Any, trace_id: Any) -> None:
    """One changes with each run."""


PAY = EffectOptions(tool="bank.pay", kind=EffectClass.IRREVERSIBLE, deadline_s=3.0, longest_run_s=2.0)
TOOLS = [
    *(Tool(function=f, options=PAY) for f in (two, with_defaults, by_place, with_more, without)),
    Tool(function=two, options=PAY, identity=("order",)),
    Tool(function=two, options=PAY, content=("amount",)),
    Tool(function=two, options=PAY, scope="ticket-7"),
    Tool(function=two, options=PAY, resource="order/{order}"),
    Tool(function=two, options=PAY, key=lambda order, amount: f"{order}-{amount}"),
    Tool(function=two, options=replace(PAY, secret=("amount",))),
    Tool(function=changing, options=replace(PAY, stable_ids=("trace_id",))),
    Tool(function=changing, options=EffectOptions(tool="bank.look", kind=EffectClass.READ)),
    Tool(function=two, options=replace(PAY, kind=EffectClass.IDEMPOTENT, order_safe=True, longest_run_s=None)),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(Word.A)
VALUES = (
    SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from(["a", "run_id"]), SCALARS, max_size=2)
)
NAMES = st.sampled_from(["order", "amount", "note", "trace_id", "words"])


@given(
    st.sampled_from(TOOLS), st.lists(VALUES, max_size=3), st.dictionaries(NAMES, VALUES, max_size=3),
    st.sampled_from(["run", "s" * 200, "", " ", "a\nb", "x" * 251]), st.sampled_from([1, 2, 0, True, 1.0]),
)  # fmt: skip
@example(TOOLS[0], ["A1", 12.5], {}, "run", 1)
@example(TOOLS[0], ["A1", {"run_id": 1}], {}, "run", 1)
@example(TOOLS[1], ["A1"], {"note": "x"}, "run", 1)
@example(TOOLS[1], [2**70], {"amount": -0.0}, "run", 1)
@example(TOOLS[2], [], {"order": 1}, "run", 1)
@example(TOOLS[5], ["A1", "\ud800"], {}, "run", 1)
def test_the_short_way_is_the_general_way(
    tool: Tool, args: list[Any], kwargs: dict[str, Any], scope: str, occurrence: Any
) -> None:
    """The same call, field by field and byte by byte, or the same error."""
    general = replace(tool)
    general.__dict__["_plainly"] = None
    assert _bound(tool, args, kwargs, scope, occurrence) == _bound(general, args, kwargs, scope, occurrence)


def _bound(tool: Tool, args: list[Any], kwargs: dict[str, Any], scope: str, occurrence: Any) -> object:
    try:
        call = tool.bind(tuple(args), kwargs, scope=scope, occurrence=occurrence)
    except Exception as error:  # noqa: BLE001 - it is what is compared
        return type(error), str(error)
    return call, call.secrets


@pytest.mark.parametrize(
    ("function", "args", "plain"), [(two, ("A1", 1), True), (two, ("A1", [1]), False), (with_more, ("A1",), False)]
)
def test_which_calls_go_the_short_way(
    function: Callable[..., Any], args: tuple[Any, ...], *, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose values are scalars, of functions that take what they name."""
    went: list[str] = []
    real = Tool._plain_call

    def noted(self: Tool, values: Any, scope: str) -> Call:
        went.append(scope)
        return real(self, values, scope)

    monkeypatch.setattr(Tool, "_plain_call", noted)
    Tool(function=function, options=PAY).bind(args, {}, scope="run", occurrence=1)
    assert went == (["run"] if plain else [])
