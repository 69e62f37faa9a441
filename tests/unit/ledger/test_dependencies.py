"""What the next turn depends on: present word for word, recovered by its digest, or missing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from unit.ledger.guard_kit import seen
from unit.ledger.kit import OP, committed, effect, failed, intended

from fencepost.ledger.compaction_rules import drop_manifest
from fencepost.ledger.dependencies import (
    MAX_DEPENDENCIES,
    Presence,
    Sources,
    dependencies,
    dropped_by_name,
    look,
    newest_digests,
)
from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.facts import Dropped, EffectClass, EffectFact, ResultForm
from fencepost.ledger.guard import SeenOperation

RESULT = {"receipt": "ü-7", "cents": 500}


def sha(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def done(value: Any = RESULT, form: ResultForm = ResultForm.JSON, **values: Any) -> SeenOperation:
    result = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() if form is ResultForm.JSON else None
    return seen(intended("a"), committed("a", result=result, result_form=form, **values))


def asked(
    reference: str | tuple[str, str], text: str = "", *, operation: SeenOperation | None = None, **sources: Any
) -> Presence:
    usual: dict[str, Any] = {"digests": {}, "held": {}, "operations": {OP: operation} if operation else {}}
    return look(dependencies([reference]), Sources(text, **{**usual, **sources}))


@pytest.mark.parametrize(
    "text",
    [
        '{"receipt":"ü-7","cents":500}',
        'paid: {"receipt": "ü-7", "cents": 500}.',
        'paid: {"receipt": "\\u00fc-7", "cents": 500}.',
        json.dumps({"messages": ['{"receipt":"ü-7","cents":500}']}),
        json.dumps(RESULT, indent=2, ensure_ascii=False),
    ],
)
def test_a_result_is_present_in_any_spelling_of_json(text: str) -> None:
    """It is the same value, letter by letter."""
    assert asked(OP, text, operation=done()) == Presence()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "receipt ü-7 over 500 cents",
        '{"receipt":"ü-7","cents":501}',
        '{"cents":500,"receipt":"ü-7"}',
        f"{OP} is done",
    ],
)
def test_a_result_that_is_reworded_is_not_present(text: str) -> None:
    """It comes back from the ledger."""
    assert asked(OP, text, operation=done()) == Presence([OP], {OP: RESULT}, {})


def test_a_result_that_is_a_text_is_present_as_it_is() -> None:
    """Not only as JSON."""
    assert asked(OP, "it said: booked under 77-B, thanks", operation=done("booked under 77-B")) == Presence()
    assert asked(OP, "it said: booked under 77-BC", operation=done("booked under 77-B")).absent == [OP]
    assert asked(OP, f"{OP} gave 7", operation=done(7)) == Presence()
    assert asked(OP, "7 of them", operation=done(7)) == Presence([OP], {OP: 7}, {})


def test_no_result_is_present_where_the_operation_is_named() -> None:
    """There is nothing else to be present."""
    nothing = done(form=ResultForm.NONE)
    assert asked(OP, f"{OP} is done", operation=nothing) == Presence()
    assert asked(OP, "it is done", operation=nothing) == Presence([OP], {OP: None}, {})
    assert asked((OP, sha("None")), "", operation=nothing).recovered == {OP: None}
    assert asked((OP, sha("other")), "", operation=nothing).recovered == {}


@pytest.mark.parametrize(
    ("dropped", "recovered"),
    [(json.dumps(RESULT), True), (repr(RESULT), True), ("a receipt of 500 cents", False)],
)
def test_a_recorded_result_is_believed_by_the_digest_of_what_was_dropped(dropped: str, recovered: bool) -> None:
    """The drop manifest says which text the context had; the ledger's result is that one, or another."""
    for presence in (
        asked(OP, "", operation=done(), digests={OP: sha(dropped)}),
        asked((OP, sha(dropped)), "", operation=done(), digests={OP: sha("older")}),
    ):
        assert presence.recovered == ({OP: RESULT} if recovered else {})
        assert bool(presence.missing) is not recovered
        if not recovered:
            assert "is not the text with the digest" in presence.missing[OP]


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (seen(intended("a")), "it is owned: settle it first"),
        (seen(intended("a"), owner_ended=True), "it is in doubt: settle it first"),
        (seen(intended("a"), effect("IN_DOUBT", "a")), "it is in doubt: settle it first"),
        (seen(intended("a"), failed("a")), "it is not done"),
        (seen(intended("a"), committed("a"), effect("COMPENSATED", "u")), "it was undone"),
        (seen(intended("a"), committed("a"), unsafe="torn"), "its record cannot be trusted: settle it first"),
        (done(form=ResultForm.NOT_ENCODABLE), "its result is not in the ledger (NOT_ENCODABLE)"),
        (done(form=ResultForm.TOO_LARGE, result_digest=sha("x" * 99)), "its result is not in the ledger (TOO_LARGE)"),
    ],
)
def test_what_has_no_result_in_the_ledger_is_missing(operation: SeenOperation, why: str) -> None:
    """And it is said why, with what stands in the way of its text."""
    presence = asked(OP, f"{OP} is done", operation=operation)
    assert (presence.absent, presence.recovered) == ([OP], {})
    assert presence.missing[OP].startswith(f"{why}; ")


def test_a_result_too_large_for_the_ledger_is_believed_by_its_recorded_digest() -> None:
    """Whoever holds it can bring it back."""
    large = done(form=ResultForm.TOO_LARGE, result_digest=sha("x" * 99))
    assert asked(OP, "", operation=large, held={OP: "x" * 99}).recovered == {OP: "x" * 99}
    assert asked(OP, "x" * 99, operation=large, held={OP: "x" * 99}) == Presence()
    assert asked(OP, "", operation=large, held={OP: "y"}).recovered == {}


def test_other_references_are_believed_by_a_digest() -> None:
    """The drop manifest's, or the caller's, which counts more; without one nothing can be believed."""
    text = "the customer wants it in blue"
    digests = {"doc": sha(text)}
    assert asked("doc", f"note: {text}.", digests=digests, held={"doc": text}) == Presence()
    assert asked("doc", "", digests=digests, held={"doc": text}) == Presence(["doc"], {"doc": text}, {})
    assert asked(("doc", sha(text)), f"{text}", digests={"doc": sha("old")}, held={"doc": text}) == Presence()
    for presence, why in (
        (asked("doc", text, held={"doc": text}), "no digest of it is known"),
        (asked("doc", text, digests=digests), "nobody holds its text"),
        (
            asked("doc", text, digests=digests, held={"doc": "reworded"}),
            "the text that was found for it is another one",
        ),
        (asked("doc", text, digests=digests, held={"doc": "\ud800"}), "the text that was found for it is another one"),
        (asked("doc", text, digests=digests, unanswered={"doc": "the resolver failed"}), "the resolver failed"),
    ):
        assert (presence.absent, presence.recovered) == (["doc"], {})
        assert why in presence.missing["doc"]


def test_bytes_are_texts_where_they_can_be() -> None:
    """Others come back as they are, and are present in no text."""
    assert asked("doc", "grün, is it?", digests={"doc": sha("grün")}, held={"doc": "grün".encode()}).absent == ["doc"]
    assert asked("doc", "it is doc: grün", digests={"doc": sha("grün")}, held={"doc": "grün".encode()}) == Presence()
    assert asked("doc", "", digests={"doc": sha(b"\xff")}, held={"doc": b"\xff"}).recovered == {"doc": b"\xff"}


def test_the_newest_digest_counts() -> None:
    """One that a later manifest does not name stays what it was."""
    older, newer = drop_manifest([("a", "1"), ("b", "1")]), drop_manifest([("a", "2"), "b"])
    assert newest_digests([older, newer]) == {"a": sha("2"), "b": sha("1")}


def test_dependencies_are_named_once() -> None:
    """With the digest that is named, wherever it is."""
    digest = sha("x")
    given: list[Any] = ["a", ("a", digest), ("b", ""), Dropped("c", digest), "c"]
    assert dependencies(given) == (Dropped("a", digest), Dropped("b"), Dropped("c", digest))


@pytest.mark.parametrize(
    "wrong",
    ["doc", [""], [7], [("doc", "its text")], [("doc", 7)], [Dropped("doc", "abc")], ["d"] * 0 + ["a\nb"], b"doc"],
)
def test_wrong_dependencies_are_refused(wrong: Any) -> None:
    """With the field's name."""
    with pytest.raises(InvalidArgumentError) as caught:
        dependencies(wrong)
    assert caught.value.field == "depends_on"


def test_dependencies_are_bounded() -> None:
    """As many as can be looked at."""
    assert len(dependencies([f"d{n}" for n in range(MAX_DEPENDENCIES)])) == MAX_DEPENDENCIES
    with pytest.raises(InvalidArgumentError):
        dependencies([f"d{n}" for n in range(MAX_DEPENDENCIES + 1)])


def test_facts_of_kinds_that_are_not_read_leave_an_operation_untrusted() -> None:
    """An unsafe operation's result is not believed."""
    odd: EffectFact = effect("UNKNOWN", "z")
    presence = asked(OP, "", operation=seen(intended("a"), committed("a"), odd))
    assert "cannot be trusted" in presence.missing[OP]


# -- several results of one operation --------------------------------------------------

LARGE: dict[str, Any] = {"result_form": ResultForm.TOO_LARGE, "result_digest": sha('"very long"')}


def read_twice(**second: Any) -> SeenOperation:
    """A read that gave another result to the second who asked."""
    read: dict[str, Any] = {"effect_class": EffectClass.READ}
    first = committed("a", result=b'"the first"', result_form=ResultForm.JSON, **read)
    values: dict[str, Any] = {"result": b'"the second"', "result_form": ResultForm.JSON, **second}
    return seen(first, committed("b", **values, **read))


def test_several_results_are_told_apart_by_digest_only() -> None:
    """All of them are meant where none is named; what settled the operation is no better than what was read later."""
    operation = read_twice()
    assert asked(OP, "the first, the second", operation=operation) == Presence()
    for text in ("", "the first", "the second"):
        told = asked(OP, text, operation=operation)
        assert (told.absent, told.recovered, list(told.missing)) == ([OP], {}, [OP])
        assert "it gave 2 results" in told.missing[OP]
    for result in ("the first", "the second"):
        assert asked((OP, sha(json.dumps(result))), operation=operation).recovered == {OP: result}
        assert asked((OP, sha(result)), result, operation=operation) == Presence()
    other = asked((OP, sha("another")), operation=operation)
    assert other.missing[OP].startswith("its recorded result is not the text with the digest that is named")
    assert asked(OP, "the first", operation=read_twice(result=b'"the first"')) == Presence()


def test_a_later_result_that_is_not_in_the_ledger_is_another_one() -> None:
    """Too large, or nothing at all: the one that is there must not be taken for it."""
    for second in ({"result": None, **LARGE}, {"result": None, "result_form": ResultForm.NONE}):
        told = asked(OP, f"{OP} gave the first", operation=read_twice(**second))
        assert list(told.missing) == [OP]
    large = read_twice(result=None, **LARGE)
    assert asked((OP, LARGE["result_digest"]), operation=large, held={OP: '"very long"'}).recovered == {
        OP: '"very long"'
    }


def test_a_late_commit_with_another_result() -> None:
    """An anomaly: each of the two callers has his own."""
    second = committed("b", result=b'"the second"', result_form=ResultForm.JSON)
    first = committed("a", result=b'"the first"', result_form=ResultForm.JSON)
    operation = seen(intended("a"), intended("b"), first, second)
    assert list(asked(OP, "the first", operation=operation).missing) == [OP]


def test_what_was_dropped_last_by_name_alone() -> None:
    """It may have been any of several results; where there is one, the older digest still says which text it was."""
    manifests = [[Dropped(OP, sha('"the first"'))], [Dropped(OP), Dropped("doc")], [Dropped("doc", sha("doc"))]]
    assert dropped_by_name(manifests) == {OP}
    sources: dict[str, Any] = {"digests": newest_digests(manifests), "by_name": dropped_by_name(manifests)}
    assert list(asked(OP, operation=read_twice(), **sources).missing) == [OP]
    assert asked(OP, operation=done("the first"), **sources).recovered == {OP: "the first"}
