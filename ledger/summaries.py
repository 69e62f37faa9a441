"""What a text still says verbatim: operations by their ids, and facts. A reworded fact is not there.

A summary is judged by what can be found in it letter by letter, and where it cannot be told whether something
is there, it is not. Escapes of JSON count as the letters that they stand for, since states are kept as JSON.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

_JOINS = ".,:;/#@+~%$=&-"
"""What does not end a name or a number if a letter or digit follows: "pay:1" is not in "pay:1.5"."""
_BEFORE_NAMES = _JOINS.translate({ord(c): None for c in ",;=&$"})
_LONGEST_RUN = 8  # of joins that are looked through
_SHORT, _NEAR = 8, 200
"""A fact of fewer characters stands in a text by chance: it must follow its reference's name this closely."""


def named(text: str, op_ids: Collection[str]) -> set[str]:
    """Those of these operations that the text names verbatim. One id within another one does not count.

    Takes time linear in the text's length, whatever the number of operations.
    """
    found = set(_named(text, op_ids))
    escaped = {spelled: op_id for op_id in op_ids for spelled in _escaped(op_id)}
    return found | {escaped[spelled] for spelled in _named(text, escaped)} if escaped else found


def _named(text: str, op_ids: Iterable[str]) -> Iterator[str]:
    wanted = {op_id for op_id in op_ids if op_id}
    lengths: dict[str, set[int]] = {}
    for op_id in wanted:
        lengths.setdefault(op_id[0], set()).add(len(op_id))
    if not wanted:
        return
    longest_first = {first: sorted(found, reverse=True) for first, found in lengths.items()}
    behind = 0
    for match in re.finditer(f"[{''.join(re.escape(first) for first in sorted(lengths))}]", text):
        at = match.start()
        if at < behind or not _begins(text, at, _BEFORE_NAMES):
            continue
        for length in longest_first[match[0]]:
            found = text[at : at + length]
            if found in wanted and _ends(text, at + len(found), _BEFORE_NAMES):
                behind = at + len(found)
                yield found
                break


def holds(text: str, fact: str) -> bool:
    """Whether the text holds a fact verbatim, not as a part of a longer word or number. Nothing is not a fact."""
    return any(True for _ in _occurrences(text, fact))


def holds_of(text: str, reference: str, forms: Collection[str]) -> bool:
    """Whether the text holds one of a reference's spellings; a short one only right behind the reference's name."""
    near = None
    for form in forms:
        if len(form) >= _SHORT:
            if holds(text, form):
                return True
            continue
        near = near if near is not None else [text[end : end + _NEAR] for end in _mentions(text, reference)]
        if any(holds(behind, form) for behind in near):
            return True
    return False


def _mentions(text: str, reference: str) -> list[int]:
    return [end for spelled in (reference, *_escaped(reference)) for end in _occurrences(text, spelled, escapes=False)]


def _occurrences(text: str, fact: str, *, escapes: bool = True) -> Iterator[int]:
    """Where the fact ends, each time that it stands there."""
    for form in (fact, *(_escaped(fact) if escapes else ())):
        at = text.find(form) if form else -1
        while at >= 0:
            end = at + len(form)
            begins = not _is_word(form[0]) or (_begins(text, at, _JOINS) and not _signed(text, at))
            if begins and (not _is_word(form[-1]) or _ends(text, end, _JOINS)):
                yield end
            at = text.find(form, at + 1)


def _signed(text: str, at: int) -> bool:
    """Whether what begins here is the rest of a number: "50" is not in "-50", nor in ".50"."""
    return text[at].isdigit() and at > 0 and text[at - 1] in "+-.,"


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _begins(text: str, at: int, joins: str) -> bool:
    """Whether a name or a number can begin here: no letter or digit stands before it, alone or joined to it."""
    if at and _is_word(text[at - 1]):
        return bool(re.search(r"(?<!\\)(?:\\\\)*\\[nrt]\Z", text[max(0, at - 20) : at]))  # JSON's line break
    low = at
    while low and at - low < _LONGEST_RUN and text[low - 1] in joins:
        low -= 1
    return low == 0 or not _is_word(text[low - 1])


def _ends(text: str, end: int, joins: str) -> bool:
    high, size = end, len(text)
    while high < size and high - end < _LONGEST_RUN and text[high] in joins:
        high += 1
    return high == size or not _is_word(text[high])


def _escaped(text: str) -> list[str]:
    """How JSON spells a text within quotes, where that is another spelling."""
    spelled = {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    return sorted(spelled - {text})


def spellings(value: Any) -> tuple[str, ...]:
    """How a recorded result may stand in a text: a text as it is, anything else (and that too) as JSON."""
    found = [value] if isinstance(value, str) else []
    for separators, ascii_only in itertools.product(((",", ":"), (", ", ": ")), (False, True)):
        found.append(json.dumps(value, ensure_ascii=ascii_only, separators=separators))
    found.append(json.dumps(value, ensure_ascii=False, indent=2))
    return tuple(dict.fromkeys(found))
