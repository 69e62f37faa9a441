"""What can be decorated, and what a call is named by: nothing is recorded before it has run, or as another call."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fencepost.ledger import EffectClass, InvalidArgumentError, Outcome
from fencepost.ledger.calls import EffectOptions, Tool
from fencepost.ledger.resolutions import ProbeAnswer


def tool(function: Any, **values: Any) -> Tool:
    return Tool(function=function, options=EffectOptions(tool="pay", kind=EffectClass.IRREVERSIBLE), **values)


def op_id(described: Tool, *args: Any, **kwargs: Any) -> str:
    return described.bind(args, kwargs, scope="s", occurrence=1).op_id


class Mail:
    async def __call__(self, to: str) -> str:
        return to


class Account:
    def charge(self, cents: int) -> int:
        return cents


def generates(x: int) -> Iterator[int]:
    yield x


async def generates_later(x: int) -> AsyncIterator[int]:
    yield x


@pytest.mark.parametrize("function", [generates, generates_later, functools.partial(generates, 1)])
def test_generators_are_refused(function: Any) -> None:
    """Their effect happens after the call returned: it would be committed before it ran."""
    with pytest.raises(InvalidArgumentError, match="function: pay is a generator"):
        tool(function)


def test_what_is_awaited_is_known() -> None:
    """A callable object with an asynchronous call is is_awaited before it is committed."""

    async def later(x: int) -> int:
        return x

    assert tool(later).is_awaited
    assert tool(Mail()).is_awaited
    assert tool(functools.partial(later, 1)).is_awaited
    assert not tool(lambda x: x).is_awaited


def test_a_method_must_say_which_object() -> None:
    """Two objects would share one operation."""
    with pytest.raises(InvalidArgumentError, match="identity: pay is a method"):
        tool(Account.charge)
    assert tool(Account.charge, key=lambda cents, **_: f"alice:{cents}").key is not None


def test_a_plain_argument_named_self_counts() -> None:
    """Only the first parameter can be an instance."""

    def pay(order: str, self: int) -> None: ...

    described = tool(pay)
    assert op_id(described, "A", 1) != op_id(described, "A", 2)


def test_a_keyword_and_a_positional_of_the_same_name_are_told_apart() -> None:
    """`pay("A", order="x")` and `pay("B", order="x")` are two operations."""

    def pay(order: str, /, **meta: str) -> None: ...

    described = tool(pay)
    assert op_id(described, "A", order="x") != op_id(described, "B", order="x")
    assert op_id(described, "A", order="x") != op_id(described, "A", order="y")


def test_an_identity_that_the_call_lacks_is_refused() -> None:
    """A mistyped name would make one operation of all calls."""

    def pay(order: str, **more: str) -> None: ...

    with pytest.raises(InvalidArgumentError, match="identity: this call of pay has no argument ordr"):
        op_id(tool(pay, identity=("ordr",)), "A")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "key"),
        ({"content": {"a": 1}}, "key"),
        ({"identity": [1]}, "identity"),
        ({"identity": "abc"}, "identity"),
        ({"identity": {}, "content": 5}, "content"),
    ],
)
def test_an_attempt_is_named_by_a_key_or_an_identity(values: dict[str, Any], field: str) -> None:
    """Anything else is refused with the field's name."""
    options = EffectOptions(tool="pay", kind=EffectClass.IRREVERSIBLE)
    with pytest.raises(InvalidArgumentError, match=f"{field}: ") as raised:
        options.call(scope="s", **values)
    assert raised.value.field == field


@pytest.mark.parametrize("name", ["deadline_s", "wait_s", "longest_run_s"])
@pytest.mark.parametrize("value", ["3", -1, True, float("nan")])
def test_times_are_numbers_of_seconds(name: str, value: Any) -> None:
    """Text, negative and not-a-number are refused with the field's name."""
    with pytest.raises(InvalidArgumentError, match=f"{name}: "):
        EffectOptions(tool="pay", kind=EffectClass.IRREVERSIBLE, **{name: value})


@pytest.mark.parametrize("name", ["deadline_s", "wait_s"])
def test_a_deadline_must_be_there(name: str) -> None:
    """None is no number."""
    values: dict[str, Any] = {name: None}
    with pytest.raises(InvalidArgumentError, match=f"{name}: "):
        EffectOptions(tool="pay", kind=EffectClass.IRREVERSIBLE, **values)


@pytest.mark.parametrize(("given", "known"), [("committed", Outcome.COMMITTED), (Outcome.ABSENT, Outcome.ABSENT)])
def test_a_probe_may_answer_by_name(given: Any, known: Outcome) -> None:
    """An outcome, or its name in any case."""
    assert ProbeAnswer(given).outcome is known


@pytest.mark.parametrize("given", ["maybe", "COMPENSATED", None])
def test_a_probe_answers_nothing_else(given: Any) -> None:
    """Told when the answer is made, before anything is recorded."""
    with pytest.raises(InvalidArgumentError, match="outcome: "):
        ProbeAnswer(given)
