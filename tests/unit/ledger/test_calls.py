"""From arguments to an operation: which of them make it what it is, and which may be reworded."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.ledger.calls import EffectOptions, Tool
from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.facts import EffectClass
from fencepost.ledger.identity import canonical, digest
from fencepost.ledger.tool_words import EffectNotExecuted

OPTIONS = EffectOptions(tool="bank.pay", kind=EffectClass.IRREVERSIBLE)


def pay(account: str, amount: int, note: str = "", *, key: str = "") -> dict[str, Any]:
    return {"account": account, "amount": amount, "note": note, "key": key}


def tool(**values: Any) -> Tool:
    return Tool(**{"function": pay, "options": OPTIONS, "content": ("note",), "key_argument": "key", **values})


def bound(*args: Any, scope: str = "ticket-7", occurrence: int = 1, of: Tool | None = None, **kwargs: Any) -> Any:
    return (of or tool()).bind(args, kwargs, scope=scope, occurrence=occurrence)


def test_the_same_call_however_it_is_written() -> None:
    """Positions, keywords and defaults are one; the id does not depend on them."""
    assert bound("a", 50).op_id == bound(amount=50, account="a", note="").op_id
    assert bound("a", 50).identity_digest == digest(canonical({"account": "a", "amount": 50}))


def test_content_may_be_reworded_and_identity_may_not() -> None:
    """One operation with another wording; another amount is another operation."""
    one, reworded, other = bound("a", 50, "thanks"), bound("a", 50, "many thanks"), bound("a", 70, "thanks")
    assert (one.op_id, one.identity_digest) == (reworded.op_id, reworded.identity_digest)
    assert one.content_digest != reworded.content_digest
    assert one.op_id != other.op_id


def test_under_a_business_key_another_amount_is_the_same_operation_with_another_identity() -> None:
    """So that the ledger can tell the conflict."""
    keyed = tool(key=lambda account, **_: f"invoice-{account}")
    one, other = bound("a", 50, of=keyed), bound("a", 70, of=keyed)
    assert one.op_id == other.op_id == "bank.pay:invoice-a"
    assert one.identity_digest != other.identity_digest


def test_only_the_declared_arguments_identify() -> None:
    """And what the model supplied as a key never does; it is kept as evidence."""
    by_account = tool(identity=("account",))
    assert bound("a", 50, of=by_account).op_id == bound("a", 70, of=by_account).op_id
    one, other = bound("a", 50, key="made-up-1"), bound("a", 50, key="made-up-2")
    assert (one.op_id, one.supplied_key, other.supplied_key) == (other.op_id, "made-up-1", "made-up-2")
    assert b"made-up" not in one.arguments


def test_our_key_takes_the_place_of_the_models() -> None:
    """In the arguments that the tool is run with."""
    args, kwargs = tool().arguments(("a", 50), {"key": "made-up"}, "ours")
    assert pay(*args, **kwargs) == {"account": "a", "amount": 50, "note": "", "key": "ours"}
    assert tool(key_argument="").arguments(("a",), {"amount": 5}, "ours") == (("a",), {"amount": 5})


def test_scope_and_occurrence_tell_wanted_repeats_apart() -> None:
    """The tool's own scope comes before the session's."""
    ids = {bound("a", 50).op_id, bound("a", 50, scope="ticket-8").op_id, bound("a", 50, occurrence=2).op_id}
    assert len(ids) == 3
    scoped = tool(scope=lambda account, **_: f"of-{account}")
    assert bound("a", 50, of=scoped).op_id == bound("a", 50, of=scoped, scope="elsewhere").op_id


def test_resources_and_cascades_are_filled_from_the_arguments() -> None:
    """By parameter name."""
    named = tool(resource="account/{account}", cascades=("mail/{account}", "audit"))
    call = bound("a", 50, of=named)
    assert (call.resource, call.cascades) == ("account/a", ("mail/a", "audit"))
    with pytest.raises(InvalidArgumentError, match="no argument of the tool") as caught:
        bound("a", 50, of=tool(resource="{missing}"))
    assert caught.value.field == "resource"


@pytest.mark.parametrize("names", [{"identity": ("acount",)}, {"content": ("text",)}, {"key_argument": "idem"}])
def test_parameters_that_the_tool_does_not_have_are_refused_at_once(names: dict[str, Any]) -> None:
    """A misspelled identity argument would make all calls one."""
    with pytest.raises(InvalidArgumentError, match="has no parameter"):
        tool(**names)


def untold() -> None:
    """It says nothing of use about its parameters."""


def test_what_tells_no_parameters_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some of what is built in: nobody could say what a call of it is about."""
    monkeypatch.setattr(untold, "__signature__", "none", raising=False)
    with pytest.raises(InvalidArgumentError, match="does not tell its parameters") as caught:
        Tool(function=untold, options=OPTIONS)
    assert caught.value.field == "function"


def test_tools_that_take_anything_are_believed() -> None:
    """Whatever they are called with can be named."""

    def anything(**values: Any) -> None:
        del values

    free = Tool(function=anything, options=OPTIONS, identity=("x",))
    assert bound(of=free, x=1, y=2).op_id == bound(of=free, x=1, y=3).op_id


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({"scope": ""}, "scope"), ({"scope": "a\n"}, "scope"), ({"scope": "x" * 251}, "scope"),
        ({"scope": "s", "key": " "}, "key"), ({"scope": "s", "key": "x" * 251}, "key"),
        ({"scope": "s", "occurrence": 0}, "occurrence"), ({"scope": "s", "occurrence": True}, "occurrence"),
        ({"scope": "s", "occurrence": 1.0}, "occurrence"), ({"scope": "s", "identity": {"a": object()}}, "identity"),
        ({"scope": "s", "content": {"a": float("nan")}}, "content"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_with_the_fields_name(call: dict[str, Any], field: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidArgumentError) as caught:
        OPTIONS.call(**{"identity": {}, **call})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"tool": ""}, "tool"), ({"tool": "x" * 201}, "tool"), ({"kind": EffectClass.UNKNOWN}, "kind"),
        ({"order_safe": True}, "order_safe"), ({"deadline_s": -1}, "deadline_s"), ({"wait_s": 10**7}, "wait_s"),
        ({"longest_run_s": float("nan")}, "longest_run_s"),
        ({"not_executed": ValueError}, "not_executed"), ({"not_executed": ("ValueError",)}, "not_executed"),
        ({"not_executed": (int,)}, "not_executed"), ({"not_executed": [ValueError]}, "not_executed"),
        ({"not_executed": (ValueError, KeyError())}, "not_executed"), ({"not_executed": None}, "not_executed"),
        ({"secret": "card"}, "secret"), ({"stable_ids": 5}, "stable_ids"),
    ],
)  # fmt: skip
def test_declarations_that_cannot_be_are_refused_at_once(values: dict[str, Any], field: str) -> None:
    """When the tool is declared, and not at its first call."""
    with pytest.raises(InvalidArgumentError) as caught:
        EffectOptions(**{"tool": "t", "kind": EffectClass.IRREVERSIBLE, **values})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"identity": "account"}, "identity"), ({"identity": 5}, "identity"), ({"identity": (5,)}, "identity"),
        ({"content": "note"}, "content"), ({"content": b"note"}, "content"), ({"cascades": "inv"}, "cascades"),
        ({"cascades": 5}, "cascades"), ({"resource": 5}, "resource"), ({"key_argument": 5}, "key_argument"),
        ({"key": "account"}, "key"), ({"function": 5}, "function"),
        ({"options": EffectOptions(tool="t", kind=EffectClass.IRREVERSIBLE, stable_ids=("zz",))}, "stable_ids"),
        ({"options": EffectOptions(tool="t", kind=EffectClass.IRREVERSIBLE, stable_ids=("zz.uuid",))}, "stable_ids"),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_are_refused_at_once(values: dict[str, Any], field: str) -> None:
    """One name where a list of names is wanted, what is no name at all, and a stable id that is no parameter."""
    with pytest.raises(InvalidArgumentError) as caught:
        tool(**values)
    assert caught.value.field == field


def test_one_cascade_is_no_list_of_cascades() -> None:
    """Of an attempt too, and what was passed is not shown: it may hold a secret."""
    with pytest.raises(InvalidArgumentError) as caught:
        OPTIONS.call(scope="s", identity={"a": 1}, cascades="card-4111")
    assert caught.value.field == "cascades"
    assert "4111" not in str(caught.value)


class _Hostile(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("asked")

    def __subclasscheck__(cls, subclass: type) -> bool:
        raise RuntimeError("asked")


class _Declined(Exception, metaclass=_Hostile):  # noqa: N818 (as `EffectNotExecuted`)
    pass


class _HardDeclined(_Declined):
    pass


def test_asking_about_an_exception_never_fails() -> None:
    """An exception type whose class refuses to be asked is matched as `except` does; the outcome is recorded all the same."""
    declared = object.__new__(EffectOptions)
    object.__setattr__(declared, "not_executed", (_Declined,))
    assert declared.certainly_not(_HardDeclined())
    assert not declared.certainly_not(TimeoutError())


def test_which_exceptions_say_that_nothing_happened() -> None:
    """Only those that were declared, and the one that says so itself."""
    declared = EffectOptions(tool="t", kind=EffectClass.IRREVERSIBLE, not_executed=(ConnectionRefusedError,))
    assert declared.certainly_not(EffectNotExecuted())
    assert declared.certainly_not(ConnectionRefusedError())
    for error in (ConnectionError(), TimeoutError(), KeyboardInterrupt(), RuntimeError()):
        assert not declared.certainly_not(error)
