"""Names of operations, and the arguments that make them what they are.

An op_id is an explicit business key, or scope + tool + canonical identity arguments. The
canonical form is RFC 8785 (JSON Canonicalization Scheme); integers beyond 2**53, which that
form cannot hold exactly, stand as tagged strings. Nothing that the model made up, and no
thread, checkpoint, or tool-call id, ever enters.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum
from functools import lru_cache
from string import Formatter
from typing import Any

import rfc8785

from .errors import InvalidArgumentError

MAX_ID_CHARS = 512
_SAFE_INTEGER = 2**53 - 1
_SHORT = 1e-4
"""Smaller numbers are written with an exponent, here or in the standard library."""


def check_id(field: str, value: object, *, limit: int = MAX_ID_CHARS) -> str:
    """`value` if it can be an id: text, not blank, printable, at most `limit` characters.

    Raises InvalidArgumentError naming `field`.
    """
    if not isinstance(value, str):
        problem = f"must be text, not {type(value).__name__}"
    elif not value.strip():
        problem = "must not be blank"
    elif len(value) > limit:
        problem = f"has {len(value)} characters; at most {limit} are allowed"
    elif not value.isprintable():
        problem = "holds a character that is not printable"
    elif value != value.strip():
        problem = "must not begin or end with white space"
    else:
        return value
    raise InvalidArgumentError(f"{field}: {problem}.", next_step=f"Pass another {field}.", field=field)


def check_op_id(value: object, field: str = "op_id") -> str:
    """`value` if it can name an operation; `~` at the start is reserved."""
    op_id = check_id(field, value)
    if op_id.startswith("~"):
        raise InvalidArgumentError(
            f"{field}: a leading '~' is reserved.", next_step="Begin with another character.", field=field
        )
    return op_id


def canonical(value: Any, *, field: str = "arguments") -> bytes:
    """Canonical JSON of `value`. Raises InvalidArgumentError for what has no canonical form."""
    try:
        return _plain(value) or rfc8785.dumps(_tagged(value, field))
    except InvalidArgumentError:
        raise
    except (rfc8785.CanonicalizationError, RecursionError, ValueError) as error:  # of text, or of an enormous integer
        raise InvalidArgumentError(
            f"{field}: has no canonical JSON form ({error}).",
            next_step="Use text, numbers, booleans, None, lists, and dicts with text keys.",
            field=field,
        ) from error


def _plain(value: Any) -> bytes | None:
    """The canonical form of what the standard library writes in that very form, ten times as fast; else None."""
    try:
        return _ENCODE(value).encode() if _is_plain(value) else None
    except UnicodeEncodeError:  # a lone surrogate, which has no form
        return None


def _is_plain(value: Any) -> bool:
    """Whether it is made of text, common numbers, booleans, and None, in lists and dicts with ASCII keys, which sort alike."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if kind is int:
        return bool(-_SAFE_INTEGER <= value <= _SAFE_INTEGER)
    if kind is float:  # where both forms write its shortest digits, without an exponent
        return bool(_SHORT <= abs(value) <= _SAFE_INTEGER) and not value.is_integer()
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or not (type(item) in _ATOMS or _is_plain(item)):
                return False
        return True
    return kind in {list, tuple} and all(map(_is_plain, value))


_ATOMS = frozenset({str, bool, type(None)})
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode


def _tagged(value: Any, field: str) -> Any:
    """`value` in the types that RFC 8785 knows; what it cannot hold exactly as tagged text."""
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, Enum)):
        return value
    for kind, rule in _RULES:
        if isinstance(value, kind):
            return rule(value, field)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _tagged(getattr(value, item.name), field) for item in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return _tagged(value.model_dump(mode="json"), field)
    raise _no_form(value, field)


def _whole(value: int, field: str) -> Any:
    del field
    return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else {"$int": str(value)}


def _float(value: float, field: str) -> Any:
    if not math.isfinite(value):
        raise _no_form(value, field)
    return int(value) if value.is_integer() and abs(value) <= _SAFE_INTEGER else value


def _decimal(value: Decimal, field: str) -> Any:
    """Exactly, whatever the thread's decimal context: its precision must not make two amounts one."""
    if not value.is_finite():
        raise _no_form(value, field)
    exact = Context(prec=max(1, len(value.as_tuple().digits)), Emin=MIN_EMIN, Emax=MAX_EMAX, capitals=1)
    return {"$decimal": exact.to_sci_string(value.normalize(exact)) if value else "0"}


def _mapping(value: Mapping[Any, Any], field: str) -> Any:
    if not all(isinstance(key, str) for key in value):
        raise _no_form(value, field)
    return {key: _tagged(item, field) for key, item in value.items()}


def _no_form(value: object, field: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{field}: a value of type {type(value).__name__} ({value!r:.60}) has no canonical form.",
        next_step="Use text, finite numbers, booleans, None, lists, and dicts with text keys.",
        field=field,
    )


_RULES: tuple[tuple[Any, Callable[[Any, str], Any]], ...] = (
    (Enum, lambda value, field: _tagged(value.value, field)),
    (int, _whole),
    (float, _float),
    (Mapping, _mapping),
    ((list, tuple), lambda value, field: [_tagged(item, field) for item in value]),
    (
        (set, frozenset),
        lambda value, field: {"$set": sorted((_tagged(item, field) for item in value), key=rfc8785.dumps)},
    ),
    (Decimal, _decimal),
    ((dt.datetime, dt.date, dt.time), lambda value, _: {"$time": value.isoformat()}),
    (uuid.UUID, lambda value, _: str(value)),
    ((bytes, bytearray), lambda value, _: {"$bytes": base64.b64encode(bytes(value)).decode()}),
)


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def derived_op_id(*, scope: str, tool: str, identity: Mapping[str, Any], occurrence: int = 1) -> str:
    """The op_id of a call without a business key: the same in every branch, replay, and retry.

    Args:
        scope: the unit of work that the user names: a run, a task, a ticket.
        identity: the identity arguments.
        occurrence: which wanted repeat this is, from 1.

    Returns:
        `tool:scope:DIGEST[#n]`; readable, with the arguments as a digest.
    """
    identified = canonical(dict(identity), field="identity")
    return identified_op_id(scope=scope, tool=tool, identified=identified, occurrence=occurrence)


def identified_op_id(*, scope: str, tool: str, identified: bytes, occurrence: int = 1) -> str:
    """The same, from the canonical form of the identity arguments."""
    # The canonical form of all three: that of a part does not depend on where it stands.
    body = b'{"identity":%b,%b' % (identified, _place(scope, tool))
    repeat = f"#{occurrence}" if occurrence != 1 else ""
    return f"{tool}:{scope[:120]}:{digest(body)[:32]}{repeat}"


@lru_cache(maxsize=1024)
def _place(scope: str, tool: str) -> bytes:
    """The same in call after call."""
    return canonical({"scope": scope, "tool": tool}, field="identity")[1:]


def keyed_op_id(*, tool: str, key: str, occurrence: int = 1) -> str:
    """The op_id of a call with a business key. The tool is part of it.

    A key that holds a ``#`` always says its occurrence: else "a#2" and the second "a" would be one.
    """
    repeat = f"#{occurrence}" if occurrence != 1 or "#" in key else ""
    return f"{tool}:{key}{repeat}"


def run_bound(identity: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Those of the argument names that a model or framework usually makes anew with each run, call, or retry.

    Given the values as well, the keys within them are looked at too, at most eight levels down. One of
    these is told as `argument.key`, without what lies between: that may be a secret.
    """
    names = [name for name in identity if _is_run_bound(name)]
    if isinstance(identity, Mapping):
        names += [
            f"{name}.{key}" for name, value in identity.items() for key in _keys_within(value, 8) if _is_run_bound(key)
        ]
    return list(dict.fromkeys(names))


def _is_run_bound(name: object) -> bool:
    return isinstance(name, str) and name.replace("_", "").replace("-", "").casefold() in _RUN_BOUND


def _keys_within(value: Any, levels: int) -> Iterator[str]:
    """The keys of mappings, dataclasses, and models, and those of what they hold."""
    if not levels or value is None or isinstance(value, (str, bytes, int, float)):
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        yield from (key for key in value if isinstance(key, str))
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _keys_within(item, levels - 1)


_RUN_BOUND = frozenset(
    {
        "attempt", "attemptnumber", "callid", "checkpointid", "checkpointns", "correlationid", "idempotencykey",
        "idempotencytoken", "messageid", "nonce", "requestid", "retry", "retrycount", "runid", "spanid", "threadid",
        "timestamp", "toolcallid", "tooluseid", "traceid", "uuid",
    }
)  # fmt: skip
"""Without `_` and `-`, in lower case."""


def template_names(template: str) -> set[str]:
    """The arguments that a template names. Raises InvalidArgumentError for what is no template."""
    try:
        places = [place for _, place, _, _ in Formatter().parse(template) if place]
    except ValueError as error:
        raise InvalidArgumentError(
            f"template: {template!r} cannot be read ({error}).",
            next_step="Write a brace that stands for itself twice.",
            field="template",
        ) from error
    return {re.split(r"[.\[]", place)[0] for place in places}


def filled(field: str, template: str, values: Mapping[str, Any]) -> str:
    """A template with a tool's arguments filled in. Raises InvalidArgumentError naming `field`."""
    try:
        return template.format(**values)
    except (KeyError, IndexError) as error:
        raise InvalidArgumentError(
            f"{field}: {template!r} names {error}, which is no argument of the tool.",
            next_step=f"Use the tool's parameter names in {field}.",
            field=field,
        ) from error
