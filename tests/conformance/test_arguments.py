"""Names and values that are refused at the API, with the field's name, before anything is written."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from conformance.worlds import World

from fencepost.ledger import (
    AsyncLedger,
    EffectClass,
    FencedError,
    InvalidArgumentError,
    Ledger,
    Outcome,
    ProbeAnswer,
    UsageError,
    Watermark,
)
from fencepost.ledger.operations import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencepost.ledger import AgentSession

UNUSABLE = ["", "   ", "x" * 600, "bell\x07", "null\x00", "line\nbreak", " edge ", "half \ud800", 7, None]
IRREVERSIBLE = EffectClass.IRREVERSIBLE


@pytest.fixture
def session(world: World, ledger: Ledger) -> Iterator[AgentSession]:
    with ledger.session(world.agent) as session:
        yield session


@pytest.mark.parametrize("value", UNUSABLE)
def test_unusable_ids(session: AgentSession, world: World, ledger: Ledger, value: Any) -> None:
    """Blank, null, oversized and unprintable ids are refused wherever something is made, naming the field."""
    session.checkpoint("c")
    seen = session.attempt("t", key=world.key("k"), kind=IRREVERSIBLE).begin()
    calls: dict[str, Callable[[], object]] = {
        "agent": lambda: ledger.session(value).open(),
        "branch": lambda: ledger.session(world.agent, value).open(),
        "checkpoint": lambda: session.checkpoint(value),
        "tool": lambda: session.attempt(value, key="k", kind=IRREVERSIBLE),
        "op_id": lambda: ledger.operation(value),
        "by": lambda: ledger.resolve(
            seen.op_id, outcome="committed", version=seen.claim.operation.version, by=value, evidence="e"
        ),
    }
    for field, call in calls.items():
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert caught.value.field == field
        assert isinstance(caught.value, ValueError)
        assert not caught.value.retryable
    with pytest.raises(InvalidArgumentError) as forked:
        ledger.fork(world.agent, value, checkpoint="c")
    assert forked.value.field == "branch"
    with pytest.raises(InvalidArgumentError) as reported:
        session.report_call(value, kind=IRREVERSIBLE)
    assert reported.value.field == "tool"
    seen.commit()


@pytest.mark.parametrize("value", [value for value in UNUSABLE if value is not None])
def test_unusable_business_keys(session: AgentSession, value: Any) -> None:
    """A business key is an id as well: an empty one is refused, and is never taken for none."""
    with pytest.raises(InvalidArgumentError) as caught:
        session.attempt("t", key=value, kind=IRREVERSIBLE)
    assert caught.value.field == "key"

    @session.effect("t", kind=IRREVERSIBLE, key=lambda order: order)
    def tool(order: str) -> None:
        raise AssertionError(order)

    with pytest.raises(InvalidArgumentError) as made:
        tool(value)
    assert made.value.field == "key"


def test_missing_business_key(session: AgentSession) -> None:
    """A key function that gives nothing is refused: no operation is named by accident."""

    @session.effect("t", kind=IRREVERSIBLE, key=lambda **_: None)  # type: ignore[arg-type]
    def tool(order: str) -> None:
        raise AssertionError(order)

    with pytest.raises(InvalidArgumentError) as caught:
        tool("x")
    assert caught.value.field == "key"


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), {1: "key is a number"}, "half \ud800", b"x" * 10, {1, 2}]
)
def test_identity_has_a_canonical_form_or_is_refused(session: AgentSession, world: World, value: Any) -> None:
    """Arguments name the operation, so a value either has one canonical form or is refused, naming the field."""
    try:
        first = session.attempt("t", identity={"v": value, "w": world.name}, kind=IRREVERSIBLE).op_id
    except InvalidArgumentError as refused:
        assert refused.field in {"identity", "arguments"}  # noqa: PT017 (either is an answer)
    else:
        assert first == session.attempt("t", identity={"w": world.name, "v": value}, kind=IRREVERSIBLE).op_id


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kind": "SOMETHING"}, "kind"),
        ({"kind": EffectClass.UNKNOWN}, "kind"),
        ({"kind": IRREVERSIBLE, "order_safe": True}, "order_safe"),
        ({"kind": IRREVERSIBLE, "deadline_s": -1}, "deadline_s"),
        ({"kind": IRREVERSIBLE, "wait_s": float("nan")}, "wait_s"),
        ({"kind": IRREVERSIBLE, "longest_run_s": -0.5}, "longest_run_s"),
        *[({"kind": EffectClass.IDEMPOTENT, "order_safe": v}, "order_safe") for v in (1, 0, "false", None, "")],
        *[({"kind": EffectClass.READ, "record": v}, "record") for v in (1, "false", None)],
        ({"kind": IRREVERSIBLE, "scope": 5}, "scope"),
        ({"kind": IRREVERSIBLE, "scope": 0}, "scope"),
        ({"kind": IRREVERSIBLE, "resource": 5}, "resource"),
        ({"kind": IRREVERSIBLE, "supplied_key": 5}, "supplied_key"),
        ({"kind": IRREVERSIBLE, "occurrence": 0}, "occurrence"),
        ({"kind": IRREVERSIBLE, "occurrence": True}, "occurrence"),
        ({"kind": IRREVERSIBLE, "occurrence": 1.5}, "occurrence"),
    ],
)
def test_unusable_options(session: AgentSession, options: dict[str, Any], field: str) -> None:
    """Options that make no sense are refused when the tool is declared or called, naming the option."""
    with pytest.raises(InvalidArgumentError) as caught:
        session.attempt("t", key="k", **options)
    assert caught.value.field == field
    assert str(caught.value).endswith(".")


def test_unusable_declarations(session: AgentSession) -> None:
    """Names of parameters that the function does not have are refused where it is decorated, or called."""
    with pytest.raises(InvalidArgumentError) as caught:

        @session.effect("t", kind=IRREVERSIBLE, identity=("nothing",))
        def one(order: str) -> None:
            del order

    assert caught.value.field == "identity"

    @session.effect("t", kind=IRREVERSIBLE, resource="order:{nothing}")
    def other(order: str) -> None:
        raise AssertionError(order)

    with pytest.raises(InvalidArgumentError) as template:
        other("x")
    assert template.value.field == "resource"


def takes_nothing() -> None: ...


def takes_two(one: object, other: object) -> None: ...


def test_values_of_the_wrong_type(session: AgentSession, world: World, ledger: Ledger) -> None:
    """Whatever a call cannot use is refused naming the field and the way on: never a bare TypeError."""
    session.checkpoint("c")
    wrong: list[Any] = [5, b"state", None, ["state"]]

    def resume(**values: Any) -> object:
        return ledger.resume(world.agent, checkpoint="c", summary_generation=0, **values)

    calls: list[tuple[str, Callable[[Any], object], list[Any]]] = [
        ("restored", lambda v: ledger.authorize_rollback(world.agent, checkpoint="c", restored=v), wrong),
        ("restored", lambda v: ledger.preview_rollback(world.agent, checkpoint="c", restored=v), wrong),
        ("restored", lambda v: session.rollback("c", restored=v), wrong),
        ("depends_on", lambda v: resume(depends_on=v), [5, None, "op", b"op", [5]]),
        ("resolve", lambda v: resume(resolve=v), [5, "text"]),
        ("dropped", lambda v: session.record_compaction(summary="s", dropped=v), [5, None]),
        ("tool", ledger.probe, [5, None, " "]),
        ("function", ledger.probe("t"), [5, None]),
        ("identity", lambda v: session.effect("t", kind=IRREVERSIBLE, identity=v)(len), ["order", 5]),
        ("content", lambda v: session.effect("t", kind=IRREVERSIBLE, content=v)(len), ["note", 5]),
        ("cascades", lambda v: session.effect("t", kind=IRREVERSIBLE, cascades=v)(len), ["inv", 5]),
        ("not_executed", lambda v: session.effect("t", kind=IRREVERSIBLE, not_executed=v), [ValueError, ("x",)]),
        ("order_safe", lambda v: session.report_call("t", kind=v, order_safe=True), [IRREVERSIBLE, EffectClass.READ]),
        ("order_safe", lambda v: session.report_call("t", kind=EffectClass.IDEMPOTENT, order_safe=v), [1, "false", 0]),
        ("order_safe", lambda v: session.effect("t", kind=EffectClass.IDEMPOTENT, order_safe=v), [1, "false", 0]),
        ("record", lambda v: session.effect("t", kind=EffectClass.READ, record=v), [1, "false", None]),
        ("key_argument", lambda v: session.effect("t", kind=IRREVERSIBLE, key_argument=v)(lambda order: order), ["k"]),
        ("secret", lambda v: session.effect("t", kind=IRREVERSIBLE, secret=v)(lambda order: order), [("card",)]),
        ("content", lambda v: session.effect("t", kind=IRREVERSIBLE, content=v)(lambda order: order), [("note",)]),
        ("text", Watermark.find, [5, None, b"state"]),
        ("text", Watermark.find_all, [5, None]),
        ("watermark", Watermark.parse, [5, None]),
        *[
            (name, partial(lambda name, v: ledger.operations(**{name: v}), name), [5])
            for name in ("agent", "tool", "after")
        ],
        ("place", ledger.quarantined, [5, None]),
        ("limit", lambda v: ledger.operations(limit=v), ["x", True, 0, 1.5]),
        ("scope", lambda v: ledger.session(world.agent, scope=v), [5, 0, " "]),
        ("limits", lambda v: Ledger.open(world.url, limits=v), [5, {}, False]),
        ("limits", lambda v: AsyncLedger.open(world.url, limits=v), [5, {}]),
        ("voided", lambda v: ProbeAnswer(Outcome.ABSENT, voided=v), ["false", 1]),
        ("evidence", lambda v: ProbeAnswer(Outcome.ABSENT, evidence=v), [5, None]),
        ("post_state_hash", lambda v: ProbeAnswer(Outcome.COMMITTED, post_state_hash=v), [5, None]),
        ("state_hash", lambda v: ledger.compensator("a", state_hash=v)(lambda *_: 1), [takes_nothing, takes_two]),
        ("function", ledger.compensator("a", state_hash=len), [takes_nothing, takes_two]),
    ]
    before = session.seq
    for field, call, values in calls:
        for value in values:
            with pytest.raises(InvalidArgumentError) as caught:
                call(value)
            assert caught.value.field == field
            assert caught.value.next_step
    assert session.seq == before


def test_what_a_resolution_cannot_take(session: AgentSession, world: World, ledger: Ledger) -> None:
    """A word by hand is refused naming the field, before anything is recorded: what it cannot keep would be lost."""
    session.attempt("t", key=world.key("k"), kind=IRREVERSIBLE).begin().doubt("who knows")
    seen = world.status(world.op_id("k", "t"), Status.IN_DOUBT)
    wrong: list[tuple[str, list[Any]]] = [
        ("result", [dt.date(2026, 1, 1), object(), {1, 2}, "x" * 300_000]),
        ("accept_risk", [1, "false", None]),
        ("post_state_hash", [5, None]),
        ("version", [5, None]),
        ("outcome", ["perhaps", 5, None]),
    ]
    for field, values in wrong:
        for value in values:
            said: dict[str, Any] = {
                "outcome": "committed", "version": seen.version, "by": "ann", "evidence": "e", field: value,
            }  # fmt: skip
            with pytest.raises(InvalidArgumentError) as caught:
                ledger.resolve(seen.op_id, **said)
            assert caught.value.field == field
    assert ledger.operation(seen.op_id).operation.version == seen.version


def test_what_an_attempt_cannot_be_told(session: AgentSession, world: World) -> None:
    """What an attempt is told of its effect is looked at before it counts: then it can be told again."""
    attempt = session.attempt("t", key=world.key("k"), kind=IRREVERSIBLE).begin()
    wrong: list[tuple[str, Callable[[], None]]] = [
        ("why", lambda: attempt.fail(5)),  # type: ignore[arg-type]
        ("key_voided", lambda: attempt.fail("declined", key_voided="false")),  # type: ignore[arg-type]
        ("why", lambda: attempt.doubt(5)),  # type: ignore[arg-type]
        ("reference", lambda: attempt.commit(1, reference=5)),  # type: ignore[arg-type]
        ("post_state_hash", lambda: attempt.commit(1, post_state_hash=5)),  # type: ignore[arg-type]
    ]
    for field, tell in wrong:
        with pytest.raises(InvalidArgumentError) as caught:
            tell()
        assert caught.value.field == field
    attempt.commit(1)
    assert world.status(attempt.op_id, Status.COMMITTED).voids == 0


def test_an_argument_without_a_form_is_named(session: AgentSession) -> None:
    """Of many arguments the error names the one that has no canonical form."""

    @session.effect("t", kind=IRREVERSIBLE, content=("note",))
    def tool(order: str, lines: object, note: object) -> None:
        raise AssertionError(order, lines, note)

    for arguments, field, name in [(("A", [object()], ""), "identity", "lines"), (("A", 1, {2: 3}), "content", "note")]:
        with pytest.raises(InvalidArgumentError) as caught:
            tool(*arguments)
        assert (caught.value.field, caught.value.argument) == (field, name)
        assert name in str(caught.value)


def test_wrong_arguments_are_a_type_error(session: AgentSession) -> None:
    """Arguments that do not fit the function are the function's own TypeError, and nothing is claimed."""

    @session.effect("t", kind=IRREVERSIBLE)
    def tool(order: str) -> None:
        raise AssertionError(order)

    with pytest.raises(TypeError):
        tool()  # type: ignore[call-arg]


def test_unopened_and_closed_sessions_refuse(world: World, ledger: Ledger) -> None:
    """A session that is not open, or not any more, runs nothing."""
    session = ledger.session(world.agent)
    with pytest.raises(FencedError):
        session.checkpoint("c")
    session.open().close()
    with pytest.raises(FencedError):
        world.charge(session, "closed")
    session.close()
    assert world.hits("closed") == 0


def test_current_outside_of_an_effect(session: AgentSession) -> None:
    """`current` exists only while an effect runs."""
    with pytest.raises(UsageError):
        _ = session.current
