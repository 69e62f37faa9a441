"""Finding operations and facts in a text, letter by letter."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from fencepost.ledger.summaries import holds, holds_of, named, spellings

IDS = {"pay:1", "pay:10", "pay:1#2", "mail:ann@x.org", "mail:a b", "mail:a", "rëd:ü", 'odd:"q"', "pay:1.5"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("paid pay:1, and (pay:10).", {"pay:1", "pay:10"}),
        ("pay:1", {"pay:1"}),
        ("pay:100 pay:12 repay:1 re-pay:1 x/pay:1 pay:1/x pay:1_ _pay:1", set()),
        ("pay:1.5 was, and pay:1. was not pay:1...", {"pay:1.5", "pay:1"}),
        ("pay:1#2;pay:10=done", {"pay:1#2", "pay:10"}),
        ("op=pay:1,pay:10&pay:1#2", {"pay:1", "pay:10", "pay:1#2"}),
        ("`pay:1` **pay:10** [pay:1#2](x) “mail:a”", {"pay:1", "pay:10", "pay:1#2", "mail:a"}),
        ("- mail:a b\n- other", {"mail:a b"}),
        ("mail:ann@x.org.uk and mail:ann@x.orgs", set()),
        ("to mail:ann@x.org: sent", {"mail:ann@x.org"}),
        ("Pay:1 PAY:10", set()),
        ("pay 1, pay : 1, pay-1", set()),
        (
            json.dumps({"done": ["rëd:ü", 'odd:"q"'], "text": "line\npay:1\tpay:10"}),
            {"rëd:ü", 'odd:"q"', "pay:1", "pay:10"},
        ),
        (json.dumps("line\npay:1\nmore"), {"pay:1"}),
        (r"C:\npay:1 \\npay:1 xnpay:1", {"pay:1"}),
        ("", set()),
    ],
)
def test_operations_that_a_text_names(text: str, found: set[str]) -> None:
    """Whole ids only: not within another word, number, address, or a longer id."""
    assert named(text, IDS) == found


def test_nothing_is_named_where_nothing_is_looked_for() -> None:
    """No ids, and an empty id."""
    assert named("pay:1", []) == named("pay:1", [""]) == set()


def test_ids_of_punctuation_alone_are_found() -> None:
    """An id may be anything that can be printed."""
    assert named("see #5 and §§ or (x)", {"#5", "§§", "(x)"}) == {"#5", "§§", "(x)"}
    assert named("see a#5 and §§y", {"#5", "§§"}) == set()


def test_looking_is_fast_whatever_is_looked_for() -> None:
    """Ten thousand operations in a text of a megabyte: well below what looking for each one would take."""
    ids = [f"billing.charge:order-{number:06}" for number in range(10_000)]
    text = " ".join(f"{name} was done as it had been asked for, in the usual way; nothing else." for name in ids[::2])
    started = time.thread_time()
    assert named(text, ids) == set(ids[::2])
    assert named("billing.charge:order-" * 50_000, ids) == set()
    assert time.thread_time() - started < 5


@pytest.mark.parametrize(
    ("text", "fact", "there"),
    [
        ("we paid 50 today", "paid 50", True),
        ("we paid 500 today", "paid 50", False),
        ("we paid 50.25", "paid 50", False),
        ("we paid 50. Then", "paid 50", True),
        ("1,050 in all", "050 in all", False),
        ("-50 in all", "50 in all", False),
        ("a minus - 50 in all", "50 in all", True),
        ("prepaid 50", "paid 50", False),
        ("we Paid 50", "paid 50", False),
        ("fifty were paid", "paid 50", False),
        ('x{"a":1}y', '{"a":1}', True),
        (json.dumps({"m": '{"a":1}\nnext'}), '{"a":1}\nnext', True),
        (json.dumps({"m": "grün"}), "grün", True),
        ("anything", "", False),
    ],
)
def test_facts_that_a_text_holds(text: str, fact: str, there: bool) -> None:
    """Word for word; a fact within a longer number or word is another one, a reworded one is none."""
    assert holds(text, fact) is there


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("pay:1 gave 7", True),
        (f"pay:1 {'and so on ' * 30} gave 7", False),
        ("7 came from pay:1", False),
        ("pay:10 gave 7", False),
        ("pay:1 gave 77", False),
        ('{"pay:1":7}', True),
    ],
)
def test_a_short_fact_counts_only_behind_its_name(text: str, there: bool) -> None:
    """A 7 stands in many texts by chance."""
    assert holds_of(text, "pay:1", ["7"]) is there
    assert holds_of(text, "pay:1", []) is False


def test_a_long_fact_counts_anywhere() -> None:
    """It does not stand there by chance."""
    assert holds_of("the receipt is R-2026-11", "pay:1", ["x", "R-2026-11"])


@pytest.mark.parametrize("value", [{"id": "ü-1", "n": [1, 2.5, None, True]}, ["a"], 7, "text", "grün\n"])
def test_spellings_of_a_result(value: Any) -> None:
    """As JSON in the usual spellings, and a text as it is."""
    found = spellings(value)
    assert all(json.loads(form) == value for form in found if form != value)
    assert {json.dumps(value), json.dumps(value, ensure_ascii=False, separators=(",", ":"))} <= set(found)
    assert (value in found) is isinstance(value, str)
