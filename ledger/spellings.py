"""How a text may spell a value: escaped for URLs, JSON, or HTML, in base64 or hexadecimal, its digits in groups.

    - each character by itself, behind backslashes, percent-encoded in either case (also twice), as an HTML
      entity, or as an escape of JSON or Python; a space also as `+`
    - base64 of what contains it, at any of the three places in which it may begin (`user:` + x, too)
    - its bytes in hexadecimal, with or without what parts them
    - what holds at least 8 digits, and otherwise only letters: in groups by spaces, dashes, and the like

Values of less than 6 characters are spelled so by chance; of more than 200 only spellings that are exact in all
their parts are looked for, which takes no longer than the text is. What was compressed, encrypted, or translated is not found.

Source: decision record 0009.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

SHORTEST = 6
_LONGEST = 200
_FEWEST_DIGITS = 8
_PART = r"[\s.,/_\u00a0\u2010-\u2015-]"
_PARTED = rf"(?:{_PART}|%20|%2[Dd]|\+|&nbsp;){{0,2}}"
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_%")
_LOWER = {code: code + 32 for code in range(ord("A"), ord("F") + 1)}
_STANDARD = {ord("-"): "+", ord("_"): "/"}
_NAMED = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos", "\u00a0": "nbsp"}
_ESCAPED = {"\n": "n", "\t": "t", "\r": "r"}


class Spellings:
    """Where a text spells one of some values; no `repr` shows them."""

    def __init__(self, texts: Iterable[str], blobs: Iterable[bytes] = ()) -> None:
        texts = [text for text in texts if len(text) >= SHORTEST]
        data = [text.encode(errors="surrogatepass") for text in texts]
        data += [blob for blob in blobs if len(blob) >= SHORTEST]
        short, small = [t for t in texts if len(t) <= _LONGEST], [d for d in data if len(d) <= _LONGEST]
        self._plain = _any([*map(_spelled, short), *map(_grouped, short), *map(_hexadecimal, small)])
        self._in_base64 = _any(_lenient(core) for blob in small for core in _cores(blob))
        self._long = [form for text in texts if len(text) > _LONGEST for form in _exact(text)]
        self._long_hex = [blob.hex() for blob in data if len(blob) > _LONGEST]
        self._long_cores = [core for blob in data if len(blob) > _LONGEST for core in _cores(blob)]
        self.exact = tuple(form for text in texts for form in _exact(text)) + tuple(b.hex() for b in data)
        """Of each value the plainest ones, of which a text may hold the beginning."""

    def spans(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each; of base64 all that hangs together, since its neighbours hold the value's ends."""
        found = [match.span() for match in self._plain.finditer(text)] if self._plain else []
        found += _places(text, self._long) + _places(text.translate(_LOWER), self._long_hex)
        cores = [match.span() for match in self._in_base64.finditer(text)] if self._in_base64 else []
        cores += _places(text.translate(_STANDARD), self._long_cores)
        for start, end in cores:
            while start > 0 and text[start - 1] in _BASE64:
                start -= 1  # noqa: PLW2901 (the place grows)
            while end < len(text) and text[end] in _BASE64:
                end += 1  # noqa: PLW2901
            found.append((start, end))
        return sorted(found)

    def replaced(self, text: str, by: str) -> str:
        """The text with something else in their place."""
        kept, at = [], 0
        for start, end in self.spans(text):
            if start >= at:
                kept += [text[at:start], by]
            at = max(at, end)
        return "".join([*kept, text[at:]]) if at else text


def _any(patterns: Iterable[str]) -> re.Pattern[str] | None:
    known = sorted({pattern for pattern in patterns if pattern}, key=lambda pattern: (-len(pattern), pattern))
    return re.compile("|".join(known)) if known else None


def _places(text: str, forms: Iterable[str]) -> list[tuple[int, int]]:
    found = []
    for form in forms:
        at = text.find(form)
        while at >= 0:
            found.append((at, at + len(form)))
            at = text.find(form, at + len(form))
    return found


def _exact(text: str) -> Iterator[str]:
    yield from (quote(text, safe=""), quote(text), quote_plus(text), html.escape(text))
    yield base64.b64encode(text.encode()).decode().rstrip("=")


def _spelled(text: str) -> str:
    text = re.sub(r"\\+", lambda _: "\\", text)  # how many there are depends on how often it was quoted
    return "".join(map(_character, text))


def _character(character: str) -> str:
    encoded = character.encode(errors="surrogatepass")
    if character == "\\":
        return r"(?:\\{1,64}|(?:%(?:25)*5[Cc]){1,64}|&#92;)"
    ways = [rf"\\{{0,4}}{re.escape(character)}"]
    ways.append("(?i:" + "".join(f"%(?:25)*{byte:02x}" for byte in encoded) + ")")
    ways.append(rf"(?i:&#(?:0*{ord(character)}|x0*{ord(character):x});)")
    if not character.isalnum() or not character.isascii():
        units = character.encode("utf-16-be", errors="surrogatepass")
        ways.append(
            "(?i:" + "".join(rf"\\{{1,8}}u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + ")"
        )
        ways.append("(?i:" + "".join(rf"\\{{1,8}}x{byte:02x}" for byte in encoded) + ")")
    if ord(character) > 0xFFFF:  # noqa: PLR2004 (beyond what four digits hold)
        ways.append(rf"(?i:\\{{1,8}}u{ord(character):08x})")
    if len(encoded) > 1 and ord(character) < 0x100:  # noqa: PLR2004 (Latin-1, which Python escapes so)
        ways.append(rf"(?i:\\{{1,8}}x{ord(character):02x})")
    if character == " ":
        ways.append(r"\+")
    if character in _NAMED:
        ways.append(f"&(?:amp;)*{_NAMED[character]};")
    if character in _ESCAPED:
        ways.append(rf"\\{{1,8}}{_ESCAPED[character]}")
    return f"(?:{'|'.join(ways)})"


def _grouped(text: str) -> str:
    """A number of a card or an account, whichever way its digits are put into groups."""
    core = re.sub(_PART, "", text)
    digits = sum(character.isdigit() for character in core)
    if not core.isalnum() or not core.isascii() or digits < _FEWEST_DIGITS:
        return ""
    return _PARTED.join(core)


def _hexadecimal(data: bytes) -> str:
    return "(?i:" + r"(?:[:\s-]|\\x|0x)?".join(f"{byte:02x}" for byte in data) + ")"


def _cores(data: bytes) -> Iterator[str]:
    """The characters of base64 that the value alone decides, for each place in which it may begin."""
    for before in range(3):
        written = base64.b64encode(bytes(before) + data).decode()
        yield written[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _lenient(core: str) -> str:
    return "".join(_OF_BASE64.get(character, character) for character in core)


_OF_BASE64 = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:[/_]|\\/|%2[Ff])"}

NO_SPELLINGS = Spellings(())
