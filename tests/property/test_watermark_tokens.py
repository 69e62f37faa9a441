"""Whatever harmless is done to a text, its token comes back; no damage makes a token another one."""

import functools
import html
import json
import re
from collections.abc import Callable

from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from fencepost.ledger.errors import WatermarkMangledError
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark

RELAXED = settings(deadline=None, max_examples=150)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~%:-[]"
Change = Callable[[str], str]

printable = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=12)
numbers = st.one_of(st.integers(0, 99), st.integers(0, 2**63 - 1))
marks = st.builds(
    Watermark,
    st.one_of(st.uuids().map(str), printable),
    printable,
    printable,
    st.builds(Position, st.integers(0, 3), numbers),
    numbers,
)
noise = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from("[]\\&#;<>\"'`*_-\n u5bnx0fence"), max_size=20),
    st.sampled_from(
        ["\n- ", "[[", "]]", "[a](b) ", "&amp", "\\u005", "<br ", "\x1b", "\x1b[", "- [ ] ", "[[fence posts]] "]
    ),
)

# A wrapper that knows nothing of Markdown or JSON still breaks no escape in two.
ATOMS = re.compile(
    r"\\*(?:&|\\u0026)[^&;\s]{0,40};(?:[a-zA-Z#\\][^&;\s]{0,10};)*"  # entities, also escaped ones
    r"|\\+(?:u[0-9a-f]{4}|x[0-9a-f]{2}|[a-z])?|.",
    re.DOTALL,
)
BREAKS = [
    "\n",
    "\r\n",
    "\n   ",
    "\n> ",
    "\n# ",
    "\n    // ",
    "\n * ",
    " |\n| ",
    "\n- ",
    "\n> - ",
    "-\n",
    "-\n  - ",
]
INVISIBLE = ["\u200b", "\u00ad", "\ufeff", "\u00a0", "\u2060", " ", "\t"]


def insert(text: str, pieces: list[tuple[float, str]]) -> str:
    """The text with each piece between two atoms, at a place from 0 (its start) to 1 (its end)."""
    atoms = ATOMS.findall(text)
    for place, piece in pieces:
        atoms.insert(round(place * len(atoms)), piece)
    return "".join(atoms)


def inserting(pieces: list[str], count: int) -> st.SearchStrategy[Change]:
    placed = st.tuples(st.floats(0, 1), st.sampled_from(pieces))
    return st.lists(placed, min_size=1, max_size=count).map(lambda chosen: functools.partial(insert, pieces=chosen))


def spelt(characters: str, spelling: str) -> Change:
    """Every one of these characters written as an escape."""
    return lambda text: "".join(spelling.format(ord(c), c=c) if c in characters else c for c in text)


def surround(text: str, before: str, after: str) -> str:
    return f"{before}{text}{after}"


escapes: st.SearchStrategy[Change] = st.sampled_from([
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: json.dumps(json.dumps(text)),
    lambda text: json.dumps(text).replace("/", "\\/"),
    html.escape,
    spelt("[]\\`*_{}()#+-.!~|<>&", "\\{c}"),
    spelt("[]", "\\{c}"),
    spelt("[]_", "&#{0};"),
    spelt("[]:%~.", "&#x{0:x};"),
    spelt("&[]<>", "\\u{0:04x}"),
])  # fmt: skip
wrappings = st.sampled_from(
    ["({})", "`{}`", "```\n{}\n```", "**{}**", "[{}](http://x/_y)", "| {} |", "> {}", "“{}”", "<b>{}</b>"]
)
surroundings: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda before, after: functools.partial(surround, before=before, after=after), noise, noise),
    wrappings.map(lambda form: lambda text: form.replace("{}", text)),
)
changes: st.SearchStrategy[list[Change]] = st.lists(
    st.one_of(escapes, surroundings, inserting(INVISIBLE, 4)), max_size=5
)
"""Any number of these in any order; lines are broken at most twice, for hyphens there are read in either way."""


@st.composite
def harmless(draw: st.DrawFn) -> Change:
    steps = draw(changes)
    for _ in range(draw(st.integers(0, 2))):
        steps.insert(draw(st.integers(0, len(steps))), draw(inserting(BREAKS, 3)))

    def change(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return change


def answer(text: str, **wanted: str) -> Watermark | str:
    note(f"{wanted} in {text!r}")
    try:
        return Watermark.find(text, **wanted) or "absent"
    except WatermarkMangledError:
        return "mangled"


def damaged(token: str, index: int, to: str) -> str:
    return token[: index % len(token)] + to + token[index % len(token) + 1 :]


damages = st.tuples(st.integers(0, 500), st.one_of(st.just(""), st.sampled_from(ALPHABET)))


@RELAXED
@given(mark=marks, change=harmless(), further=harmless())
def test_a_token_survives_whatever_is_harmless(mark: Watermark, change: Change, further: Change) -> None:
    """Found, equal, by every way of asking."""
    text = change(mark.token)
    assert answer(text) == mark
    assert answer(text, agent_id=mark.agent_id, ledger_id=mark.ledger_id) == mark
    assert Watermark.find_all(text) == (mark,)
    assert answer(text, agent_id=mark.agent_id + "x") == "absent"
    twice = change(mark.token) + further(mark.token)
    assert set(Watermark.find_all(twice)) == {mark}


@RELAXED
@given(mark=marks, damage=damages, change=harmless())
def test_damage_to_one_character_is_seen(mark: Watermark, damage: tuple[int, str], change: Change) -> None:
    """Mangled: not absent, and never another watermark; beside an intact copy, that copy."""
    broken = damaged(mark.token, *damage)
    assume(broken != mark.token)
    text = change(f"see {broken}, it says")
    assert answer(text) == "mangled"
    assert answer(text, agent_id=mark.agent_id) == "mangled"
    assert answer(text, agent_id=mark.agent_id, ledger_id=mark.ledger_id) == "mangled"
    for both in (f"{text} {mark.token}", f"{mark.token} {text}"):
        assert answer(both) == mark


@RELAXED
@given(mark=marks, other=marks, damage=damages, change=harmless())
def test_another_agents_tokens_are_passed_over(
    mark: Watermark, other: Watermark, damage: tuple[int, str], change: Change
) -> None:
    """Whether it is intact or not, one's own is found; and where it is damaged, the other's does not stand in for it."""
    assume(mark.agent_id.casefold() != other.agent_id.casefold())
    theirs = change(f"({other.token})")
    assert answer(f"{theirs} {mark.token}", agent_id=mark.agent_id) == mark
    assert answer(theirs, agent_id=mark.agent_id) == "absent"
    broken = damaged(mark.token, *damage)
    assume(broken != mark.token)
    assert answer(f"{theirs} and {broken}", agent_id=mark.agent_id) == "mangled"


@RELAXED
@given(st.lists(noise, max_size=8).map("".join), harmless())
def test_looking_raises_nothing_else(text: str, change: Change) -> None:
    """Any text has an answer, and none that is made of other than tokens holds one."""
    assert answer(change(text)) in {"absent", "mangled"}
    assert Watermark.find_all(change(text)) == ()
