"""What text tools do around a token is undone; what a summary does to it is seen; ordinary text has no trace."""

from __future__ import annotations

import html
import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from fencepost.ledger.errors import WatermarkMangledError
from fencepost.ledger.positions import Position
from fencepost.ledger.watermarks import Watermark, _checksum

if TYPE_CHECKING:
    from collections.abc import Callable

LEDGER = "5b1c9e5e-0f3a-4c1d-9d8e-2a7b6c5d4e3f"
MARK = Watermark(LEDGER, "agent_7/é~x.y", "main", Position(0, 41), 17)
OTHER = Watermark(LEDGER, "sub-agent-1", "main", Position(0, 77), 3)
TOKEN = MARK.token
BODY, CHECKSUM = TOKEN[2:-2].rsplit(":", 1)


def answer(text: str, **wanted: str) -> Watermark | str:
    """The mark, "absent", or "mangled"."""
    try:
        return Watermark.find(text, **wanted) or "absent"
    except WatermarkMangledError:
        return "mangled"


def in_json(text: str, times: int = 1) -> str:
    for _ in range(times):
        text = json.dumps(text)
    return text


def every(characters: str, spelling: Callable[[str], str]) -> str:
    return "".join(spelling(c) if c in characters else c for c in TOKEN)


HARMLESS = {
    "verbatim": TOKEN,
    "in prose": f"The run went well (see {TOKEN}), then stopped.",
    "nested": f"Summary: [earlier summary: [[notes]] (summary of: {TOKEN}.)]",
    "single quotes": f"'{TOKEN}'",
    "curly quotes": f"\u201c{TOKEN}\u201d \u00ab{TOKEN}\u00bb",
    "code span": f"`{TOKEN}`",
    "code fence": f"```text\n{TOKEN}\n```",
    "link text": f"[{TOKEN}](https://example.org/a_b)",
    "link target": f"[the point](<{TOKEN}>)",
    "table cell": f"| mark | {TOKEN} |\n|---|---|",
    "bold": f"**{TOKEN}**",
    "italic": f"_{TOKEN}_ *{TOKEN}*",
    "Markdown brackets escaped": every("[]", lambda c: "\\" + c),
    "Markdown all escaped": every("[]_.-~:%", lambda c: "\\" + c),
    "Markdown escaped, then JSON": in_json(every("[]_.-~", lambda c: "\\" + c)),
    "JSON": in_json(f"say:\n\t{TOKEN}"),
    "JSON, four times": in_json(f'"{TOKEN[:50]}\n{TOKEN[50:]}"', 4),
    "JSON, all escaped": "".join(f"\\u{ord(c):04x}" for c in TOKEN),
    "JSON, all escaped twice": "".join(f"\\u005cu{ord(c):04X}" for c in TOKEN),
    "JSON slashes": in_json(TOKEN[:40] + "\n// " + TOKEN[40:]).replace("/", "\\/"),
    "hexadecimal escapes": every("[]:", lambda c: f"\\x{ord(c):02x}"),
    "HTML numbers": every("[]:%", lambda c: f"&#{ord(c)};"),
    "HTML padded numbers": every("[]", lambda c: f"&#000{ord(c)};"),
    "HTML hexadecimal": every("[]_~", lambda c: f"&#X{ord(c):x};"),
    "HTML names": TOKEN.replace("[", "&lbrack;")
    .replace("]", "&rsqb;")
    .replace("_", "&lowbar;")
    .replace(":", "&colon;"),
    "HTML names of others": TOKEN[:20] + "&nbsp;&shy;&zwnj;" + TOKEN[20:],
    "HTML five times": every("[]", lambda c: "&amp;amp;amp;amp;#" + str(ord(c)) + ";"),
    "HTML in JSON": in_json(html.escape(f"<b>{TOKEN}</b>").replace("[", "&#91;")).replace("&", "\\u0026"),
    "JSON in HTML": html.escape(in_json(TOKEN[:30] + "\n" + TOKEN[30:])).replace("\\", "&#92;"),
    "HTML escaped, then Markdown": every("[]", lambda c: f"&\\#{ord(c)};"),
    "line break tags": TOKEN[:20] + "<br/>" + TOKEN[20:70] + '</p><p class="x">' + TOKEN[70:],
    "escaped tags": TOKEN[:20] + "&lt;br&gt;" + TOKEN[20:],
    "zero width": "\u200b".join(TOKEN),
    "other invisible": "\ufeff" + TOKEN[:9] + "\u00ad\u2060\u200d" + TOKEN[9:60] + "\u00a0\u202f" + TOKEN[60:],
    "spaces": TOKEN.replace(":", ": "),
    "colours": "\x1b[1;31m" + TOKEN[:40] + "\x1b[0m\n\x1b[31m" + TOKEN[40:] + "\x1b[0m",
    "non-breaking hyphens": TOKEN.replace("-", "\u2011"),
    "shell continuation": TOKEN[:40] + " \\\n    " + TOKEN[40:],
    "string concatenation": f'"{TOKEN[:40]}"\n    + "{TOKEN[40:]}"',
    "wrapped by hyphens": "\n".join(textwrap.wrap(TOKEN, 14)),
    "hyphens of both kinds": TOKEN.replace("5e-0f", "5e-\n0f").replace("main", "ma-\n- in").replace("4c1d", "4c-\n1d"),
    "near a damaged copy": f"{TOKEN[:50]}... {TOKEN} [[fencepost:w1:{CHECKSUM}]]",
    "behind half an escape": f"\\u005{TOKEN}\\x5{TOKEN}&#9{TOKEN}\\{TOKEN}<b {TOKEN}>\x1b{TOKEN}[{TOKEN}] [[f {TOKEN}",
}
BREAKS = {
    "newline": "\n",
    "carriage return": "\r\n",
    "indented": "\n      ",
    "trailing spaces": "  \n",
    "quoted": "\n> ",
    "quoted twice": "\n> > ",
    "hash": "\n# ",
    "slashes": "\n    // ",
    "starred": "\n * ",
    "bullet": "\n* ",
    "barred": " |\n| ",
    "numbered sign": "\n//! ",
    "dashed list": "\n- ",
    "quoted list": "\n> - ",
    "SQL": "\n-- ",
    "hyphenated": "-\n",
    "hyphenated list": "-\n  - ",
    "line separator": "\u2028",
    "JSON newline": "\\n",
    "JSON hyphenated": "-\\r\\n- ",
    "JSON tab": "\\n\\t> ",
}
MANGLED = {
    "ellipsis": TOKEN[:40] + "…" + TOKEN[60:],
    "three dots": TOKEN[:40] + "...]]",
    "only the prefix": "[[fencepost:w1:…]]",
    "only the checksum": f"[[…{CHECKSUM}]]",
    "only number and checksum": f"[[...17:{CHECKSUM}]]",
    "ends elided": f"…:{TOKEN.rsplit(':', 4)[1]}:0.41:17:{CHECKSUM}]]",
    "digit changed": TOKEN.replace(":17:", ":11:"),
    "upper case": TOKEN.upper(),
    "lower case": TOKEN.lower(),
    "title": TOKEN.title(),
    "ledger lost": TOKEN.replace(LEDGER + ":", ""),
    "branch lost": TOKEN.replace("main:", ""),
    "epoch lost": TOKEN.replace("0.41:", ""),
    "checksum lost": f"[[{BODY}]]",
    "checksum emptied": f"[[{BODY}:]]",
    "brackets lost": TOKEN[2:-2],
    "one bracket lost": TOKEN[1:],
    "beginning only": TOKEN[:25],
    "bare beginning": "[[fence",
    "end only": TOKEN[-20:],
    "end without brackets": TOKEN[-20:-2],
    "translated": TOKEN.replace("fencepost", "Zaunpfahl"),
    "translated, end cut": TOKEN.replace("fencepost", "围栏")[:-6],
    "reworded": f"the token fencepost/w1 {LEDGER} agent 7 main 0.41 17 {CHECKSUM}",
    "reworded in brackets": "[[fencepost token omitted]]",
    "respelled": "Fence post: w1 of agent 7",
    "another version": TOKEN.replace(":w1:", ":w2:"),
    "percent-quoted": TOKEN.replace(":", "%3A").replace("[", "%5B").replace("]", "%5D"),
    "percent resolved": TOKEN.replace("%C3%A9", "é"),
    "quoted otherwise": TOKEN.replace("%C3%A9", "%c3%a9"),
    "wrapped damage": "\n> ".join(TOKEN.replace(":17:", ":18:")[i : i + 7] for i in range(0, len(TOKEN), 7)),
    "hidden damage": "".join(f"\\u{ord(c):04x}" for c in TOKEN.replace(":17:", ":18:")),
    "hyphenated damage": TOKEN.replace("main", "man").replace("fencepost", "fence-\npost"),
    "spaced brackets": "[ [\nfencepost w1",
    "huge number": TOKEN.replace(":17:", f":{'9' * 5000}:"),
    "not one character": TOKEN.replace(LEDGER, "\ud800"),
}
ABSENT = [
    "",
    "Fencepost is a ledger; the fencepost error, fence posts and fenceposts are something else.",
    "A watermark (the low-water mark) of fencepost w1, fencepost v1.2.3, Fencepost 12.30",
    "2001:db8::1 [::ffff:192.0.2.128]:80 fe80::1%eth0 2001:0db8:85a3:0000:0000:8a2e:0370:7334",
    "at 12.30:45, 2026-11-30T12:30:45.123456, 10:20:30:40",
    "d41d8cd98f00b204e9800998ecf8427e abcdef0123 sha256:abcdef0123 1.5 20 1234567890",
    "fencepost w1 was tagged v1.2 at abcdef0123",
    "[[wiki links]] [[fence posts]] [[Fence post repair|how to]] [[fenceposts]] [[]] [[f]] [[Offence]] [[a]:[b]]",
    "[[abcdef0123]] [[2026113012]] [[note 12.30:45]]",
    "build a fence: post w1 in the ground; fences: posts: w1",
    "&#x110000; &#99999999999; \\ud800 \\u12 \\x &bogus; &#; \ud800 \\",
]


@pytest.mark.parametrize("how", HARMLESS)
def test_a_token_is_found_whatever_was_done_around_it(how: str) -> None:
    """Its characters are all there, in order; the checksum says so."""
    assert answer(HARMLESS[how]) == MARK
    assert answer(in_json(HARMLESS[how])) == MARK
    assert set(Watermark.find_all(HARMLESS[how])) == {MARK}


@pytest.mark.parametrize("how", BREAKS)
def test_a_token_is_found_wherever_a_line_was_broken(how: str) -> None:
    """Between any two of its characters, with whatever prefix the next line has; twice, too."""
    for index in range(1, len(TOKEN)):
        wrapped = TOKEN[:index] + BREAKS[how] + TOKEN[index:]
        assert answer(f"- {wrapped}") == MARK, wrapped
        further = TOKEN[: index // 2] + BREAKS[how] + TOKEN[index // 2 : index] + BREAKS[how] + TOKEN[index:]
        assert answer(further) == MARK, further


@pytest.mark.parametrize("width", range(3, 9))
@pytest.mark.parametrize("break_", ["\n- ", "-\n", "-\n- "])
def test_a_token_is_found_in_a_list_of_its_pieces(width: int, break_: str) -> None:
    """More hyphens than are tried one by one; some of the token's own stand at the end or the start of a line."""
    for first in range(width):
        starts = [0, *range(first or width, len(TOKEN), width)]
        pieces = [TOKEN[start:end] for start, end in zip(starts, [*starts[1:], len(TOKEN)], strict=True)]
        assert answer(break_.join(pieces)) == MARK


@pytest.mark.parametrize("width", range(2, 140, 3))
def test_a_token_is_found_in_a_column_of_any_width(width: int) -> None:
    """As `textwrap` breaks it, which is also behind the token's own hyphens."""
    text = textwrap.fill(f"The agent stopped at {TOKEN} and left.", width, subsequent_indent="> "[: width - 1])
    assert answer(text) == MARK


@pytest.mark.parametrize("how", MANGLED)
def test_what_is_left_of_a_token_is_mangled(how: str) -> None:
    """Never absent: something had to be kept and was not. Nobody's agent can be read in it, or ours."""
    for text in (MANGLED[how], f"He wrote: «{MANGLED[how]}», then left.", f"> {MANGLED[how]}\n"):
        assert answer(text) == "mangled"
        assert answer(text, agent_id=MARK.agent_id) == "mangled"
        assert answer(text, agent_id=MARK.agent_id, ledger_id=LEDGER) == "mangled"
        assert Watermark.find_all(text) == ()


@pytest.mark.parametrize("text", ABSENT)
def test_ordinary_text_has_no_trace(text: str) -> None:
    """Nothing was lost: also quoted, escaped, and beside other such text."""
    for variant in (text, in_json(text), html.escape(text), "\n> ".join(text.split(" ")), "\n".join(ABSENT)):
        assert answer(variant) == "absent"
        assert answer(variant, agent_id=MARK.agent_id) == "absent"


def test_only_the_tokens_of_the_agent_count() -> None:
    """Those of others are not found; damaged, they are no trace as long as they say whose they are."""
    both = f"{OTHER.token} said the sub-agent of {MARK.token}"
    assert answer(both, agent_id=MARK.agent_id) == MARK
    assert answer(both, agent_id=OTHER.agent_id) == OTHER
    assert answer(both, agent_id="a third") == "absent"
    assert answer(both, ledger_id=LEDGER) == OTHER  # the newest by point
    assert answer(both, ledger_id="another") == "absent"
    for damaged in (
        OTHER.token.replace(":3:", ":4:"),
        "\n- ".join((OTHER.token[:60], OTHER.token[60:-3] + "0]]")),
        OTHER.token[:80],
        OTHER.token[2:-2],
        OTHER.token.replace("main", "…"),
    ):
        assert answer(damaged) == "mangled"
        assert answer(damaged, agent_id=OTHER.agent_id) == "mangled"
        assert answer(f"{damaged} and", agent_id=MARK.agent_id) == "absent", damaged
        assert answer(f"{damaged} {MARK.token}", agent_id=MARK.agent_id) == MARK
        assert answer(f"{damaged} {TOKEN[:30]}", agent_id=MARK.agent_id) == "mangled"
    assert (
        answer(f"[{OTHER.token}[fence", agent_id=MARK.agent_id) == "absent"
    )  # these two brackets were never neighbours
    assert answer(OTHER.token, agent_id="subagent1") == "absent"
    assert answer(OTHER.token[-25:], agent_id=MARK.agent_id) == "mangled"  # whose was it?
    assert answer(OTHER.token.replace("sub-agent-1", "sub…"), agent_id=MARK.agent_id) == "mangled"
    assert answer(OTHER.token.replace(f"{LEDGER}:", "")[:32], agent_id=OTHER.agent_id) == "mangled"


@pytest.mark.parametrize("body", [BODY.replace("%2F", "%2f"), BODY.replace(":17", ":017"), BODY + "9" * 5000])
def test_only_one_spelling_of_a_token_is_intact(body: str) -> None:
    """Another one is nothing that was ever printed, though its checksum be right."""
    assert answer(f"[[{body}:{_checksum(body)}]]") == "mangled"


@pytest.mark.parametrize("name", ["agent_7/é~x.z", "agent_7", "agent", "Agent_7/É~X.Y", "other"])
def test_damage_in_the_name_does_not_make_a_token_anothers(name: str) -> None:
    """With the right name the checksum fits: it was ours."""
    renamed = Watermark(LEDGER, name, "main", Position(0, 41), 17).token[:-12] + CHECKSUM + "]]"
    assert answer(renamed, agent_id=MARK.agent_id) == "mangled"
    assert answer(f"{renamed[:70]}\n> {renamed[70:]}", agent_id=MARK.agent_id, ledger_id=LEDGER) == "mangled"
    assert answer(TOKEN.replace(LEDGER, LEDGER[:-1] + "0"), ledger_id=LEDGER) == "mangled"


@pytest.mark.parametrize("break_", ["\n", "-\n", "\n- "])
def test_a_wrapped_name_is_still_the_agents_own(break_: str) -> None:
    """Damaged elsewhere, and with a line broken within the name or the prefix."""
    token = OTHER.token.replace(":3:", ":4:")
    for index in range(2, token.index(":main")):
        wrapped = token[:index] + break_ + token[index:]
        assert answer(wrapped, agent_id=OTHER.agent_id) == "mangled", wrapped
        assert answer(wrapped, agent_id=OTHER.agent_id, ledger_id=LEDGER) == "mangled", wrapped


def test_a_token_in_a_name_is_no_token() -> None:
    """An agent cannot give another's watermark by its own name."""
    nested = Watermark(LEDGER, OTHER.token, TOKEN, Position(0, 1), 1)
    for text in (nested.token, in_json(nested.token), html.escape(nested.token)):
        assert Watermark.find_all(text) == (nested,)
        assert answer(text, agent_id=OTHER.agent_id) == "absent"
    assert answer(nested.token.replace("0.1", "0.2")) == "mangled"


def test_all_tokens_come_in_order_of_appearance() -> None:
    """Each as often as it stands there; damaged ones are passed over."""
    newer = Watermark(LEDGER, MARK.agent_id, "side", Position(0, 41), 18)
    text = f"{newer.token}, {in_json(TOKEN)}, {TOKEN[:-1]}, {OTHER.token[:30]}\n{OTHER.token[30:]} {newer.token}"
    assert Watermark.find_all(text) == (newer, MARK, OTHER, newer)
    assert Watermark.find_all("") == ()
    assert Watermark.find(text, agent_id=MARK.agent_id) == newer


def test_damage_in_a_name_is_seen_whichever_hyphens_are_the_lines() -> None:
    """One hyphen at a line's end is the token's, another the line's: with the right name the checksum fits in that reading."""
    token = Watermark("a9d30ff4-6936-45e0-9ac9-22a16b43db60", "agent", "main", Position(3, 63), 2034).token
    text = token.replace("9ac9-", "9ac9-\n").replace("2034", "20-\n34").replace("agent", "agont")
    with pytest.raises(WatermarkMangledError):
        Watermark.find(text, agent_id="agent")
    assert Watermark.find(text, agent_id="somebody") is None
