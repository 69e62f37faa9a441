"""Names of operations: the same on every branch, in every try, on every host; different for whatever is meant to happen twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.ledger import AgentSession, EffectClass, InvalidArgumentError
from fencepost.ledger.calls import EffectOptions, Tool
from fencepost.ledger.identity import canonical
from fencepost.ledger.positions import Position
from fencepost.ledger.session_faces import Opening
from fencepost.ledger.sessions import SessionState
from fencepost.ledger.watermarks import Point

names = st.text("abcxyz_", min_size=1, max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
identities = st.dictionaries(names, values, min_size=1, max_size=4)
places = st.fixed_dictionaries(
    {
        "agent": names,
        "branch": names,
        "session": names,
        "epoch": st.builds(Position, st.integers(0, 3), st.integers(0, 10**6)),
        "seq": st.integers(0, 10**6),
    }
)


def session_at(place: dict[str, Any], scope: str) -> AgentSession:
    """A session of this agent, branch, epoch, and number of facts; it is connected to nothing."""
    state = SessionState(
        cast(Any, None), place["agent"], place["branch"], place["session"], place["epoch"],
        Point(place["epoch"], 0), str(place["epoch"]), scope,
    )  # fmt: skip
    state.sequence.last = place["seq"]
    return AgentSession(cast(Any, None), cast(Any, None), Opening(place["agent"], place["branch"])).adopt(state)


def op_id(session: AgentSession, identity: dict[str, Any], **options: Any) -> str:
    return session.attempt("bank.pay", kind=EffectClass.IRREVERSIBLE, identity=identity, **options).op_id


words = st.fixed_dictionaries(
    {"content": st.fixed_dictionaries({"note": st.text(max_size=9)}), "supplied_key": st.text(max_size=9)}
)
calls = st.fixed_dictionaries({"identity": identities, "occurrence": st.integers(1, 3)})


@given(places, places, identities, st.randoms(), words)
def test_one_name_wherever_and_however_it_is_asked_for(
    here: dict[str, Any], there: dict[str, Any], identity: dict[str, Any], chance: Any, said: dict[str, Any]
) -> None:
    """Agent, branch, session, epoch, number, order of arguments, wording, and the model's own key make no difference."""
    shuffled = list(identity.items())
    chance.shuffle(shuffled)
    one = op_id(session_at(here, "ticket-7"), identity)
    assert one == op_id(session_at(there, "ticket-7"), dict(shuffled), **said)


@given(places, names, calls, names, calls)
def test_two_intentions_have_two_names(
    place: dict[str, Any], scope: str, one: dict[str, Any], elsewhere: str, other: dict[str, Any]
) -> None:
    """Other identity arguments, another wanted repeat, another unit of work: another operation, and only then."""
    first, second = op_id(session_at(place, scope), **one), op_id(session_at(place, elsewhere), **other)
    meant = [(canonical(c["identity"]), c["occurrence"], s) for c, s in ((one, scope), (other, elsewhere))]
    assert (first == second) is (meant[0] == meant[1])


@given(places, places, names, identities)
def test_a_business_key_wins(here: dict[str, Any], there: dict[str, Any], key: str, identity: dict[str, Any]) -> None:
    """With a key neither the unit of work nor the arguments are part of the name; the tool is."""
    one = op_id(session_at(here, "ticket-7"), identity, key=key)
    assert one == op_id(session_at(there, "ticket-8"), {}, key=key) == f"bank.pay:{key}"


@given(places, identities)
def test_decorated_or_not(place: dict[str, Any], identity: dict[str, Any]) -> None:
    """A decorated function has the name that a plain attempt with the same arguments has."""
    session = session_at(place, "ticket-7")

    @session.effect("bank.pay", kind=EffectClass.IRREVERSIBLE)
    def pay(**arguments: Any) -> None:
        del arguments

    assert pay.op_id(**identity) == op_id(session, identity)
    assert pay.op_id(**dict(reversed(identity.items()))) == op_id(session, identity)


PROGRAM = """
import json, sys
from fencepost.ledger.calls import EffectOptions
from fencepost.ledger.facts import EffectClass
options = EffectOptions(tool="bank.pay", kind=EffectClass.IRREVERSIBLE, secret=("card",))
identity = {"to": {"b", "a", "c"}, "cents": 5.0, "big": 2**70, "card": "4111", "when": __import__("datetime").date(2026, 3, 1)}
print(options.call(scope="ticket-7", identity=identity).op_id)
"""


@pytest.mark.parametrize(
    "environment", [{"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C"}]
)
def test_another_process_gives_the_same_name(environment: dict[str, str]) -> None:
    """The order of a set, the time zone, and the locale of a process make no difference, with a secret too."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "bank.pay:ticket-7:4e1f411068580f800273277ebab90b84"


# -- what a framework makes anew with each run ------------------------------------------------

RUN_BOUND = [
    "thread_id",
    "checkpoint_id",
    "tool_call_id",
    "run_id",
    "threadId",
    "toolCallId",
    "tool_use_id",
    "checkpoint_ns",
    "idempotency_key",
    "Idempotency-Key",
    "idempotency_token",
    "request_id",
    "requestID",
    "call_id",
    "callid",
    "message_id",
    "uuid",
    "nonce",
    "attempt",
    "attempt_number",
    "retry",
    "retry_count",
    "timestamp",
    "trace_id",
    "span_id",
    "correlation_id",
]


@pytest.mark.parametrize("name", RUN_BOUND)
def test_ids_of_runs_are_refused_as_identity(name: str) -> None:
    """Declared, taken over by default, or passed: refused before anything runs, unless it is said to be stable."""
    place: dict[str, Any] = {"agent": "a", "branch": "b", "session": "s", "epoch": Position(0, 0), "seq": 0}
    session = session_at(place, "ticket-7")
    with pytest.raises(InvalidArgumentError) as caught:
        op_id(session, {"order": 1, name: "x"})
    assert caught.value.field == "identity"
    assert "stable_ids" in caught.value.next_step
    with pytest.raises(InvalidArgumentError):
        op_id(session, {name: "x"}, key="k")
    stable = op_id(session, {name: "x"}, stable_ids=(name,))
    assert stable != op_id(session, {name: "y"}, stable_ids=(name,))
    assert op_id(session, {"order": 1}, content={name: "x"}) == op_id(session, {"order": 1}, content={name: "y"})


def test_ids_of_runs_are_refused_where_a_tool_is_declared() -> None:
    """By name, or because all arguments are identity when none is named; a read that is not recorded has no name."""

    def cancel(order: str, run_id: str) -> None:
        del order, run_id

    def declared(**values: Any) -> Tool:
        options = EffectOptions(
            tool="t", kind=values.pop("kind", EffectClass.IRREVERSIBLE), **values.pop("options", {})
        )
        return Tool(function=cancel, options=options, **values)

    for values in ({}, {"identity": ("run_id",)}, {"kind": EffectClass.READ, "options": {"record": True}}):
        with pytest.raises(InvalidArgumentError) as caught:
            declared(**cast("dict[str, Any]", values))
        assert caught.value.field == "identity"
    declared(content=("run_id",))
    declared(identity=("order",))
    declared(options={"stable_ids": ("run_id",)})
    declared(kind=EffectClass.READ)


@dataclass
class _Order:
    order: str
    request_id: str


@pytest.mark.parametrize(
    "value",
    [
        {"order": "A1", "request_id": "x"},
        {"lines": [{"sku": 1}, {"sku": 2, "Request-ID": "x"}]},
        {"a": {"b": {"c": ({"requestId": "x"},)}}},
        _Order("A1", "x"),
        [_Order("A1", "x")],
    ],
)
def test_ids_of_runs_are_found_within_identity_arguments(value: Any) -> None:
    """In a mapping, a list, or a dataclass given as identity, by the argument's name and the key's; stable if said."""
    place: dict[str, Any] = {"agent": "a", "branch": "b", "session": "s", "epoch": Position(0, 0), "seq": 0}
    session = session_at(place, "ticket-7")
    with pytest.raises(InvalidArgumentError, match=r"identity: body\.\w+\W?\w+ of bank\.pay") as caught:
        op_id(session, {"body": value})
    assert caught.value.field == "identity"
    named = str(caught.value).removeprefix("identity: ").partition(" ")[0]
    with pytest.raises(InvalidArgumentError):
        op_id(session, {"body": value}, stable_ids=("body",))
    assert op_id(session, {"body": value}, stable_ids=(named,)) != op_id(session, {"body": "y"})
    assert op_id(session, {"order": 1}, content={"body": value}) == op_id(session, {"order": 1})


def test_a_key_that_the_tool_takes_is_no_identity() -> None:
    """Declared as key_argument, an idempotency key is taken out before: two that a model made up are one operation."""

    def cancel(order: str, idempotency_key: str = "") -> None:
        del order, idempotency_key

    options = EffectOptions(tool="t", kind=EffectClass.IRREVERSIBLE)
    tool = Tool(function=cancel, options=options, key_argument="idempotency_key")
    one, other = (tool.bind(("A1", key), {}, scope="s", occurrence=1) for key in ("k1", "k2"))
    assert (one.op_id, one.supplied_key, other.supplied_key) == (other.op_id, "k1", "k2")
    with pytest.raises(InvalidArgumentError):
        Tool(function=cancel, options=options)


def test_ids_are_json() -> None:
    """A name is plain text, fit for a log, a URL, and a shell."""
    place: dict[str, Any] = {"agent": "a", "branch": "b", "session": "s", "epoch": Position(0, 0), "seq": 0}
    found = op_id(session_at(place, "ticket-7"), {"x": "\U0001f600\n"})
    assert json.loads(json.dumps(found)) == found
    assert found.isprintable()
