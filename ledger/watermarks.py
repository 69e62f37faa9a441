"""Watermarks: the point up to which a checkpoint knows what happened, and its token.

The token is made to be embedded verbatim in a summary:

    [[fencepost:w1:LEDGER:AGENT:BRANCH:EPOCH:SEQ:CHECKSUM]]

The ids are percent-quoted: a token consists of `[A-Za-z0-9_.~%:-]` and its brackets. The
checksum covers everything before it, so that a damaged token is told from a missing one.
Looking for one takes time linear in the text's length:

1. Escapes of JSON, HTML and Markdown are resolved, nested ones too. Percent-quotes are
   not: an agent's name may itself look like a token.
2. Between `[[` and `]]`, what no token has is dropped: spaces, line breaks, quote and
   comment prefixes, quotes, invisible characters.
3. A hyphen beside a line break may belong to the token, to hyphenation, or to a list:
   it is read both ways, and the checksum decides.
4. Where no token is intact, the text is searched for what is left of one.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from .argument_checks import check_text
from .errors import WatermarkMangledError
from .positions import Position

_PREFIX = "fencepost:w1:"
_FIELD, _NUMBER, _HASH = r"[A-Za-z0-9_.~%-]++", "[0-9]{1,20}", "[0-9a-f]{10}"
_BODY = re.compile(rf"({_PREFIX}({_FIELD}):({_FIELD}):({_FIELD}):({_NUMBER}\.{_NUMBER}):({_NUMBER})):({_HASH})")
_GAP = r"[^A-Za-z0-9_.~%:\[\]]*+"
_BRACKETED = re.compile(rf"\[{_GAP}\[(?={_GAP}f)([^\[\]]*+)\]{_GAP}\]")
_SHORTEST, _LONGEST = 35, 8_192  # characters between the brackets; ids are at most 200 characters long

# Step 1. Possessive repeats and "not behind another backslash" keep long runs linear.
_ROUNDS = 8
_ENTITY = re.compile(r"(?ai)&(?:amp;)*(?:#0*+([0-9]{1,7})|#x0*+([0-9a-f]{1,6})|([a-z]{2,31}[0-9]{0,2}));")
_ENTITIES = {  # every other name stands for a character that no token has
    "amp": "&", "bsol": "\\", "lt": "<", "gt": ">", "sol": "/", "newline": "\n", "num": "#", "semi": ";",
    "colon": ":", "period": ".", "percnt": "%", "lowbar": "_", "underbar": "_", "hyphen": "-", "dash": "-",
    "lbrack": "[", "lsqb": "[", "rbrack": "]", "rsqb": "]",
}  # fmt: skip
_CODED = re.compile(r"(?i)(?<!\\)\\++(?:u([0-9a-f]{4})|x([0-9a-f]{2}))")
_ESCAPED = re.compile(r"(?<!\\)\\++(?=[!-/:-@\[\]^_`{-~])")
_TAGS = "a|b|br|code|div|em|font|i|kbd|li|mark|p|pre|q|s|span|strong|td|th|tr|tt|u|wbr"
_BREAK = re.compile(rf"(?i)(?<!\\)\\++[nrt]|</?(?:{_TAGS})\b[^<>\[\]:]{{0,200}}>|\x1b\[[0-9;]{{0,20}}[a-z]")

# Steps 2 and 3. A hyphen beside a line break becomes `=` before it and `+` after it, which no token has.
_TYPOGRAPHY = str.maketrans("\r\v\f\x85\u2028\u2029\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "\n" * 6 + "-" * 7)
_DROPPED = bytes(set(range(128)) - set(f"{string.ascii_letters}{string.digits}_.~%:-[]\n".encode()))
_AT_BREAK = re.compile(r"(?<!-)(-*+)\n([-\n]*+)")
_ALL_ALIKE = [
    f"{a}|{b}" for a in ("(?!)", "=(?!=)", "=") for b in ("(?!)", r"(?<!\+)\+", r"\+")
]  # none, one a line, all
_DOUBTS = 10  # hyphens of one token that are read both ways also each by itself
_READINGS = 2_500  # of one text

# Step 4.
_TAIL = r"[0-9]\.[0-9]++:[0-9]++:"  # of an epoch, and a sequence number
_TRACE = re.compile(
    # A token's beginning, but no link to a page about fences: only words, and closed.
    rf"(?i)\[{_GAP}\[{_GAP}fence(?!(?!post(?!s))[^0-9:.…\[\]]{{0,100}}\]\])"
    # Its end, where the beginning was damaged, translated or cut off.
    rf"|{_TAIL}{_HASH}(?![0-9a-f])|:[0-9]++:{_HASH}\]\]"
    rf"|(?:…|(?<!\.)\.{{2,}}+)[0-9a-f:]{{10,60}}+\]\](?<={_HASH}\]\])"
)
_WRAPPED_TRACE = re.compile(rf"(?i)fencepost(:|%3a)w[0-9]|{_TAIL}{_HASH}\]\]|:w[0-9]:([^:\[\]]*+:){{3}}[0-9]*{_TAIL}")
_LOOSE_BEGINNING = re.compile(r"(?i)fence[\s_.-]?post[^a-z0-9\[\]]{0,3}w[0-9]")
_LOOSE_END = re.compile(r"(?i)[0-9]\.[0-9]++[^a-z0-9]{1,3}[0-9]++[^a-z0-9]{1,3}(?=[0-9]*[a-f])[0-9a-f]{10}(?![0-9a-z])")
_BEGUN = re.compile(
    rf"(?:\[\[)?{_PREFIX}({_FIELD}):({_FIELD}):(?![0-9]+\.[0-9]+:)(?:{_FIELD}:[0-9]*{_TAIL}[0-9a-f]{{0,10}})?"
)
_CUT_OUT = "[]"  # in place of what was taken out, so that its neighbours do not become one


class Point(NamedTuple):
    """A place in an agent's life: a session's epoch and a sequence number (inclusive)."""

    epoch: Position
    seq: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """(ledger id, agent, branch, epoch, seq). `seq` is inclusive; 0 knows nothing of the session."""

    ledger_id: str
    agent_id: str
    branch_id: str
    epoch: Position
    seq: int

    @property
    def point(self) -> Point:
        """Where in the agent's life this watermark stands."""
        return Point(self.epoch, self.seq)

    @property
    def token(self) -> str:
        """The printable form, for embedding in text."""
        body = self._body()
        return f"[[{body}:{_checksum(body)}]]"

    def _body(self) -> str:
        ledger, agent, branch = (quote(part, safe="") for part in (self.ledger_id, self.agent_id, self.branch_id))
        return f"{_PREFIX}{ledger}:{agent}:{branch}:{self.epoch}:{self.seq}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "ledger_id": self.ledger_id,
            "agent_id": self.agent_id,
            "branch_id": self.branch_id,
            "epoch": str(self.epoch),
            "seq": self.seq,
            "token": self.token,
        }

    @classmethod
    def parse(cls, token: str) -> Watermark:
        """The watermark of a token. Raises WatermarkMangledError for anything else."""
        found = cls.find(check_text("watermark", token))
        if found is None:
            raise WatermarkMangledError(
                f"watermark: {token!r} holds no token.",
                next_step="Pass the token that `checkpoint()` returned, unchanged.",
                field="watermark",
            )
        return found

    @classmethod
    def find(cls, text: str, *, agent_id: str | None = None, ledger_id: str | None = None) -> Watermark | None:
        """The newest token in a text, however deeply the text was summarised; None if absent.

        Args:
            text: of any length; wrapped, quoted, and escaped as it may be.
            agent_id: only this agent's tokens count; those of others are neither found nor
                mangled. A damaged one counts, unless it names another agent readably.
            ledger_id: the same for the ledger.

        Raises:
            WatermarkMangledError: there are traces of a token, but no intact one. Absent
                and mangled are different answers: a mangled token means that a summary
                has damaged what it had to keep.
        """
        wanted, text = _Wanted(agent_id, ledger_id), _resolved(check_text("text", text))
        intact = list(_intact(text))
        if mine := [mark for mark, _ in intact if wanted.counts(mark)]:
            return max(mine, key=lambda mark: mark.point)
        if _has_trace(wanted.without_others(_without(text, [span for _, span in intact]))):
            raise WatermarkMangledError(
                "watermark: the text holds a damaged token; its checksum or form is wrong.",
                next_step="Restore from a checkpoint whose token is intact, or let an operator reconcile.",
                field="watermark",
            )
        return None

    @classmethod
    def find_all(cls, text: str) -> tuple[Watermark, ...]:
        """Every intact token in a text, of every agent, in order of appearance; damaged ones are passed over."""
        return tuple(mark for mark, _ in _intact(_resolved(check_text("text", text))))


class _Wanted(NamedTuple):
    """Whose tokens count (None: anybody's), and a text without the damaged ones that readably are others'."""

    agent_id: str | None
    ledger_id: str | None

    def counts(self, mark: Watermark) -> bool:
        return self.agent_id in {None, mark.agent_id} and self.ledger_id in {None, mark.ledger_id}

    def without_others(self, text: str) -> str:
        if self == (None, None):
            return text
        left = [_READINGS]  # of all tokens together, beyond the likeliest of each
        return _BEGUN.sub(self._begun, _BRACKETED.sub(lambda match: self._closed(match, left), text))

    def _closed(self, match: re.Match[str], left: list[int]) -> str:
        fields = match[1].split(":")
        readable = len(fields) == _BODY.groups + 1 and [_letters(field) for field in fields[:2]] == ["fencepost", "w1"]
        if not readable or not self._others(fields[2], fields[3]):
            return match[0]
        # Damage in the name itself reads as another's name; with the right name the checksum would fit.
        for count, reading in enumerate(itertools.islice(_readings(match[1]), len(_ALL_ALIKE) + left[0])):
            left[0] -= count >= len(_ALL_ALIKE)
            *body, checksum = reading.split(":")
            body[2] = body[2] if self.ledger_id is None else quote(self.ledger_id, safe="", errors="replace")
            body[3] = body[3] if self.agent_id is None else quote(self.agent_id, safe="", errors="replace")
            if _checksum(":".join(body)) == checksum:
                return f"[[fencepost{_CUT_OUT}"
        return _CUT_OUT

    def _begun(self, match: re.Match[str]) -> str:
        shifted = self.agent_id is not None and not _is_another(match[1], self.agent_id)  # the ledger's field is lost
        return match[0] if shifted or not self._others(match[1], match[2]) else _CUT_OUT

    def _others(self, ledger: str, agent: str) -> bool:
        return _is_another(ledger, self.ledger_id) or _is_another(agent, self.agent_id)


def _is_another(field: str, name: str | None) -> bool:
    """Whether a field readably names another than `name`, in whatever case, quoted or not."""
    spelled = _letters(field)
    if name is None or not spelled or ".." in field or "…" in field:
        return False
    return unquote(spelled).casefold() != name.replace("-", "").casefold() and spelled != _letters(name)


def _letters(text: str) -> str:
    return re.sub(r"[-\n]", "", _squeezed(text)).casefold()  # a hyphen may be a line's


def _resolved(text: str) -> str:
    """Step 1: the text without escapes, entities, tags, and colours."""
    for _ in range(_ROUNDS):
        before = text
        if "&" in text:
            text = _ENTITY.sub(_entity, text)
        if "\\" in text:
            text = _ESCAPED.sub("", _CODED.sub(lambda m: chr(int(m[1] or m[2], 16)), text))
        if text == before:
            break
    return _BREAK.sub("\n", text).replace("\\", "")


def _entity(match: re.Match[str]) -> str:
    decimal, hexadecimal, name = match.groups()
    if name:
        return _ENTITIES.get(name.lower(), "")
    return chr(min(int(decimal) if decimal else int(hexadecimal, 16), sys.maxunicode))


def _intact(text: str) -> Iterator[tuple[Watermark, tuple[int, int]]]:
    """The intact tokens of a resolved text, and where they stand."""
    left = _READINGS  # beyond the first of each: those are together no longer than the text
    for match in _BRACKETED.finditer(text):
        for count, reading in enumerate(itertools.islice(_readings(match[1]), 1 + left)):
            left -= count > 0
            if (mark := _checked(reading)) is not None:
                yield mark, match.span()
                break


def _readings(content: str) -> Iterator[str]:
    """Steps 2 and 3: what may have stood between two brackets, the likeliest first."""
    if len(content) < _SHORTEST:
        return
    squeezed = _AT_BREAK.sub(lambda m: "=" * len(m[1]) + "+" * m[2].count("-"), _squeezed(content))
    if not squeezed.lstrip("=+").startswith("f") or len(squeezed) > _LONGEST:
        return
    first, *others = re.split("[=+]", squeezed)
    for those in _ALL_ALIKE if others else _ALL_ALIKE[:1]:
        yield re.sub(those, "", squeezed).replace("=", "-").replace("+", "-")
    if 0 < len(others) <= _DOUBTS:
        for hyphens in itertools.product(("-", ""), repeat=len(others)):
            yield first + "".join(map("".join, zip(hyphens, others, strict=True)))


def _squeezed(text: str) -> str:
    """Step 2: only what a token can have, and line breaks."""
    return text.translate(_TYPOGRAPHY).encode("ascii", "ignore").translate(None, _DROPPED).decode()


def _checked(reading: str) -> Watermark | None:
    match = _BODY.fullmatch(reading)
    if match is None or _checksum(match[1]) != match[7]:
        return None
    ledger, agent, branch = (unquote(match[group]) for group in (2, 3, 4))
    mark = Watermark(ledger, agent, branch, Position.parse(match[5]), int(match[6]))
    return mark if mark._body() == match[1] else None  # noqa: SLF001 - only the one spelling of each id


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    cuts = [0, *itertools.chain.from_iterable(spans), len(text)]
    return _CUT_OUT.join(text[start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True))


def _has_trace(text: str) -> bool:
    """Step 4: whether something is left of a token that is not intact."""
    begun = _LOOSE_BEGINNING.finditer(text)
    if _TRACE.search(text) or any(_LOOSE_END.search(text, begin.end(), begin.end() + 500) for begin in begun):
        return True
    return _WRAPPED_TRACE.search(_AT_BREAK.sub("", _squeezed(text))) is not None


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:10]


def low_water(seen: set[int], voided: frozenset[int] | set[int] = frozenset()) -> int:
    """The highest n such that 1..n are all accounted for."""
    number = 0
    while number + 1 in seen or number + 1 in voided:
        number += 1
    return number
