"""Arguments that are declared secret: what stands for them, and where their values are looked for."""

from __future__ import annotations

import base64
import datetime as dt
import html
import json
import re
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.ledger.calls import EffectOptions, Tool
from fencepost.ledger.errors import InvalidArgumentError
from fencepost.ledger.facts import EffectClass, EffectFact, EffectKind, ResultForm
from fencepost.ledger.secret_values import HIDDEN, MARK, NO_SECRETS, secrets_of, stretched

CARD = "4111-1111/1111 1111"
OPTIONS = EffectOptions(tool="bank.pay", kind=EffectClass.IRREVERSIBLE, secret=("card",))


def pay(order: str, card: str, note: str = "") -> None:
    del order, card, note


def tool(**values: Any) -> Tool:
    return Tool(**{"function": pay, "options": OPTIONS, "content": ("note",), **values})


def bound(order: str, card: Any, *, of: Tool | None = None, **more: Any) -> Any:
    return (of or tool()).bind((order, card), more, scope="ticket-7", occurrence=1)


def test_another_secret_is_another_operation_and_neither_is_shown() -> None:
    """In identity a secret tells operations apart; the recorded arguments have the same mark for every value."""
    one, same, other = bound("A1", CARD), bound("A1", CARD, note="x"), bound("A1", "5500")
    assert one.op_id == same.op_id != other.op_id
    assert one.identity_digest == same.identity_digest != other.identity_digest
    assert json.loads(one.arguments)["card"] == json.loads(other.arguments)["card"] == MARK
    assert "4111" not in f"{one} {one!r} {one.op_id} {one.arguments}"


def test_what_stands_for_a_secret_is_the_same_everywhere() -> None:
    """It depends on the tool, the argument's name and the value, and on nothing of the host, ledger, or time."""
    assert (
        stretched(CARD, tool="bank.pay", name="card")
        == "ac1e41e8556b85bde442cb97f9d5245a8c26b645048b23b761d9188e4e9c74a9"
    )
    different = {stretched(CARD, tool=t, name=n) for t in ("bank.pay", "bank.pay2") for n in ("card", "pin")}
    assert len(different) == 4


def test_content_that_is_secret_leaves_no_trace() -> None:
    """A secret that does not tell operations apart is in no digest either."""
    options = EffectOptions(tool="mail.send", kind=EffectClass.IRREVERSIBLE, secret=("note",))
    one, other = (bound("A1", "c", of=tool(options=options), note=note) for note in ("one", "another"))
    assert (one.op_id, one.content_digest, one.arguments) == (other.op_id, other.content_digest, other.arguments)


def test_secret_that_is_no_part_of_the_operation() -> None:
    """It is in nothing that is recorded, and is looked for all the same."""
    by_order = tool(identity=("order",))
    call = bound("A1", CARD, of=by_order)
    assert call.op_id == bound("A1", "5500", of=by_order).op_id
    assert CARD not in call.secrets.hidden(f"declined: {CARD}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"card {CARD} declined", f"card {HIDDEN} declined"),
        ("card 4111-1111%2F1111%201111 declined", f"card {HIDDEN} declined"),
        ("cut off: 4111-1111/11", f"cut off: {HIDDEN}"),
        ("nothing of the kind", "nothing of the kind"),
        ("4111", HIDDEN),
    ],
)
def test_secrets_are_taken_out_of_texts(text: str, expected: str) -> None:
    """Plainly, quoted for a URL, and where the text was cut in the middle of it."""
    assert secrets_of({"card": CARD}, ["card"]).hidden(text) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"number": CARD, "cvv": 123}, "cvv=123"),
        ([CARD, "hunter2"], "password hunter2!"),
        (b"\x00\xffkey", "00ff6b6579"),
        ('quo"te', json.dumps({"password": 'quo"te'})),
        ("é\n", repr("é\n")),
        (dt.date(1970, 1, 31), "born 1970-01-31"),
        (12345678901234567890, "12345678901234567890"),
    ],
)
def test_secrets_of_any_form_are_found(value: Any, text: str) -> None:
    """Each part of a nested value, bytes, and what JSON and Python make of text."""
    assert HIDDEN in secrets_of({"x": value}, ["x"]).hidden(text)


def test_names_and_truth_are_no_secrets() -> None:
    """The structure of a secret value, and whether something is true, would hide half of every text."""
    found = secrets_of({"x": {"number": "77001", "default": True, "none": None}}, ["x"])
    assert found.texts == ("77001",)


def fact(**values: Any) -> EffectFact:
    return EffectFact(kind=EffectKind.COMMITTED, result_form=ResultForm.JSON, **values)


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ({"id": "r-1"}, True),
        ({"id": f"r-{CARD}"}, False),
        ({"seen": {CARD: 1}}, False),
        ([[CARD]], False),
        (None, True),
    ],
)
def test_result_that_holds_a_secret_is_not_kept(result: Any, *, kept: bool) -> None:
    """It is a commit without a result, which says why; not even its digest stays."""
    data = None if result is None else json.dumps(result).encode()
    given = fact(result=data, result_digest="d")
    found = secrets_of({"card": CARD}, ["card"]).kept_out(given)
    assert (found == given) is kept
    assert kept or (found.result, found.result_form, found.result_digest) == (None, ResultForm.NOT_ENCODABLE, "")


def test_short_secrets_are_taken_out_of_texts_and_looked_for_as_words_in_results() -> None:
    """Three digits occur in any number by chance: a result is given up only for the whole word."""
    found = secrets_of({"cvv": "123"}, ["cvv"])
    assert found.hidden("code 91234") == f"code 9{HIDDEN}4"
    assert found.kept_out(fact(result=b'{"id":"91234"}')).result is not None
    assert found.kept_out(fact(result=b'{"cvv":123}')).result is None


def test_way_back_that_holds_a_secret_is_not_sealed() -> None:
    """The effect is a commit without one; the round's number is no secret, whatever the secret is."""
    found = secrets_of({"pin": "123"}, ["pin"])
    given = fact(manifest=b'{"action":{"payload":{"pin":"123"}},"round":123}', manifest_digest="d")
    assert (found.kept_out(given).manifest, found.kept_out(given).manifest_digest) == (None, "")
    assert found.kept_out(fact(manifest=b'{"action":{},"round":123}')).manifest is not None


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"resource": "card:{card}"}, "resource"),
        ({"cascades": ("cache:{card[0]}",)}, "cascades"),
        ({"key_argument": "card"}, "key_argument"),
        ({"options": EffectOptions(tool="t", kind=EffectClass.READ, secret=("crad",))}, "secret"),
    ],
)
def test_declarations_that_would_show_a_secret(values: dict[str, Any], field: str) -> None:
    """Refused when the tool is declared, a misspelt name too."""
    with pytest.raises(InvalidArgumentError) as caught:
        tool(**values)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"key": lambda card, **_: card}, "key"),
        ({"key": lambda order, card, **_: f"{order}-{card[-4:]}x{card}"}, "key"),
        ({"scope": lambda card, **_: f"card {card}"}, "scope"),
    ],
)
def test_names_are_never_made_from_a_secret(values: dict[str, Any], field: str) -> None:
    """What makes a key or a scope does not get the value, and what it makes of the mark is refused."""
    with pytest.raises(InvalidArgumentError) as caught:
        bound("A1", CARD, of=tool(**values))
    assert caught.value.field == field
    assert "4111" not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    "values", [{"key": f"k-{CARD}"}, {"key": "k", "resource": CARD}, {"key": "k", "cascades": [CARD]}]
)
def test_names_that_are_given_are_looked_through(values: dict[str, Any]) -> None:
    """An attempt's key, resource, and cascades come from the caller."""
    with pytest.raises(InvalidArgumentError) as caught:
        OPTIONS.call(scope="s", identity={"card": CARD}, **values)
    assert "4111" not in str(caught.value.to_dict())


def test_secret_without_a_canonical_form_is_not_shown() -> None:
    """The error names the argument, and neither it nor its causes the value."""
    with pytest.raises(InvalidArgumentError) as caught:
        bound("A1", object())
    assert (caught.value.field, caught.value.__cause__) == ("card", None)
    assert "object at" not in str(caught.value)


def test_misspelt_secret_of_an_attempt() -> None:
    """Nothing is called, so that nothing is written down by mistake."""
    with pytest.raises(InvalidArgumentError) as caught:
        OPTIONS.call(scope="s", key="k", identity={"crad": CARD})
    assert caught.value.field == "secret"


def test_a_call_without_secrets_is_as_it_was() -> None:
    """Nothing is looked for where nothing is declared."""
    given = fact(result=b'{"a":1}', error="text", manifest=b"{}")
    assert NO_SECRETS.kept_out(given) is given
    assert secrets_of({"a": 1}, []) is NO_SECRETS


@settings(max_examples=200)
@given(st.text(min_size=1), st.text(), st.text())
def test_no_text_keeps_a_secret(secret: str, before: str, after: str) -> None:
    """Wherever it stands in a text, nothing of it is left but by chance of its own letters in what hides it."""
    found = secrets_of({"x": secret}, ["x"])
    cleared = found.hidden(f"{before}{secret}{after}").replace(HIDDEN, "")
    assert secret not in cleared or secret in HIDDEN


KEY = "sk_live/aB3+xyz#90=="
PERSON = 'né "O\'Hara" & Söhne\n<x>'
BASIC = base64.b64encode(f"user:{KEY}".encode()).decode()


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        *[(KEY, write(KEY)) for write in (quote, quote_plus, html.escape, json.dumps, repr)],
        (KEY, quote(KEY, safe="").lower().replace("ab3", "aB3")),
        (KEY, quote(quote(KEY, safe=""), safe="")),
        (KEY, BASIC),
        (KEY, BASIC.translate(str.maketrans("+/", "-_")).rstrip("=")),
        (KEY, quote(BASIC, safe="")),
        *[(KEY, base64.b64encode(("x" * n + KEY + "y" * m).encode()).decode()) for n in range(4) for m in range(4)],
        (KEY, base64.urlsafe_b64encode(f"??>{KEY}??".encode()).decode()),
        (KEY, base64.b64encode(json.dumps({"key": KEY}).encode()).decode()),
        (KEY, KEY.encode().hex()),
        (KEY, KEY.encode().hex(":").upper()),
        (PERSON, json.dumps(json.dumps({"name": PERSON}))),
        (PERSON, json.dumps({"name": PERSON}, ensure_ascii=False)),
        (PERSON, repr(PERSON.encode())),
        (PERSON, ascii(PERSON)),
        (PERSON, html.escape(PERSON)),
        (PERSON, quote_plus(PERSON)),
        ("a/b\\c d!", json.dumps("a/b\\c d!").replace("/", "\\/")),
        (b"\x00\x01key\xff\xfe", base64.b64encode(b"pw=\x00\x01key\xff\xfe").decode()),
        ([b"\x00\x01key\xff\xfe"], "00:01:6B:65:79:FF:FE"),
        *[("4111111111111111", t) for t in ("4111 1111 1111 1111", "4111-1111-1111-1111", "4111.1111.11111111")],
        *[("4111-1111-1111-1111", t) for t in ("4111111111111111", "4111 1111 1111 1111", "4111+1111+1111+1111")],
        (4111111111111111, "4111%201111%201111%201111"),
        ("DE89370400440532013000", "DE89 3704 0044 0532 0130 00"),
    ],
)
def test_secrets_are_found_in_their_usual_spellings(secret: Any, text: str) -> None:
    """Escaped, in base64 at any place, in hexadecimal, in groups: taken out of texts, and looked for in results and names."""
    found = secrets_of({"x": secret}, ["x"])
    cleared = found.hidden(f"GET /v1?card={text} failed")
    assert text not in cleared
    assert not found.in_text(cleared.replace(HIDDEN, ""))
    assert HIDDEN in cleared
    assert found.kept_out(fact(result=json.dumps({"seen": text}).encode())).result is None
    with pytest.raises(InvalidArgumentError):
        found.require_absent("key", f"k-{text}")


@pytest.mark.parametrize(
    "text", ["sk_live/aB3+xyz", "4111 1111", "user:pass", BASIC[:8], "2026-12-01 05:49:54", "c2stbGl2ZQ=="]
)
def test_what_is_no_secret_stays(text: str) -> None:
    """What resembles one is not taken for it."""
    found = secrets_of({"x": KEY, "y": "4111111111111111"}, ["x", "y"])
    assert found.hidden(f"{text} failed") == f"{text} failed"


@settings(max_examples=300)
@given(st.text(min_size=6, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_no_spelling_keeps_a_secret(secret: str, before: bytes, after: bytes) -> None:
    """Whatever the value, and whatever stands around it."""
    found = secrets_of({"x": secret}, ["x"])
    data = before + secret.encode() + after
    for text in (
        quote(secret), quote_plus(secret), re.sub("%..", lambda m: m[0].lower(), quote(secret)), json.dumps(secret), ascii(secret), data.hex(),
        base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode(), html.escape(secret),
    ):  # fmt: skip
        assert found.in_text(f"<{text}>")
        assert HIDDEN in found.hidden(f"<{text}>")


@pytest.mark.parametrize("secret", ["x" * 50_000, "x" * 200, "\\" * 199, "%" * 199, "4 " * 99, "é" * 200, "a+b/" * 50])
def test_looking_is_bounded(secret: str) -> None:
    """Neither a long secret nor a long text that almost holds it takes long."""
    began = time.process_time()
    found = secrets_of({"x": secret}, ["x"])
    for text in (
        secret[:-1] * (100_000 // len(secret)),
        "\\" * 100_000,
        "%25" * 30_000,
        "4 " * 50_000,
        "QUFB" * 25_000,
    ):
        found.hidden(text)
    assert time.process_time() - began < 5
