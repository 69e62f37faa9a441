"""Arguments that are declared secret: they tell operations apart, and their values reach neither the log nor an error.

Source: decision record 0009.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from .errors import FencepostError, InvalidArgumentError
from .facts import EffectFact, ResultForm
from .identity import canonical
from .spellings import NO_SPELLINGS, Spellings

HIDDEN = "(secret)"
MARK = {"$secret": "not recorded"}
"""What stands for a secret argument in the recorded arguments."""
_MARK = canonical(MARK)
_COST = 2**14
"""Of scrypt, with blocks of 8: about 50 ms and 16 MB a value, for us and for whoever tries values one by one."""
_SHORT, _SHORTEST = 6, 3
"""Short texts occur anywhere by chance: where that has consequences they are looked for as whole words, or values."""
_TAIL = 4
"""Characters at the end of a text that was cut off from which on the beginning of a secret is taken out as well."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secret values of one call, in the forms in which a text may hold them; no `repr` shows them.

    Attributes:
        texts: longest first.
        spellings: in what other ways a text may hold them.
    """

    texts: tuple[str, ...] = field(default=(), repr=False)
    spellings: Spellings = field(default=NO_SPELLINGS, repr=False, compare=False)

    def hidden(self, text: str) -> str:
        """The text with every secret taken out, and the beginning of one at its end, where it may have been cut."""
        if not self.texts:
            return text
        text = self.spellings.replaced(text, HIDDEN)
        for secret in self.texts:
            text = text.replace(secret, HIDDEN)
        for secret in (*self.texts, *self.spellings.exact):
            for length in range(min(len(secret), len(text)), _TAIL - 1, -1):
                if text.endswith(secret[:length]):
                    return text[:-length] + HIDDEN
        return text

    def in_text(self, text: str) -> bool:
        """Whether a text holds a secret; one of less than 6 characters only as a whole word, of less than 3 as all of it."""
        words = {text, *(word for word in re.split(r"\W+", text) if len(word) >= _SHORTEST)}
        plain = any(secret in words or (len(secret) >= _SHORT and secret in text) for secret in self.texts)
        return plain or bool(self.spellings.spans(text))

    def in_json(self, data: bytes | None) -> bool:
        """Whether a value or a name in this JSON holds a secret."""
        if not self.texts or data is None:
            return False
        return any(self.in_text(leaf) for leaf in _leaves(json.loads(data), names=True))

    def in_manifest(self, data: bytes | None) -> bool:
        """Whether a manifest holds a secret in what its author wrote into it."""
        if not self.texts or data is None:
            return False
        written = {name: value for name, value in json.loads(data).items() if name != "round"}
        return any(self.in_text(leaf) for leaf in _leaves(written, names=True))

    def require_absent(self, field: str, text: str) -> str:
        """The text of a name, if no secret is in it. Raises InvalidArgumentError, which does not show it."""
        plain = any(text == secret or (len(secret) >= _SHORT and secret in text) for secret in self.texts)
        if HIDDEN in text or plain or self.spellings.spans(text):
            raise InvalidArgumentError(
                f"{field}: it is made from a secret argument, and would show it.",
                next_step="Make it from other arguments; a secret one tells operations apart without being shown.",
                field=field,
            )
        return text

    @contextlib.contextmanager
    def kept_out_of_errors(self) -> Iterator[None]:
        """Take the secrets out of the texts of our own errors; a cause that would show one is left out."""
        try:
            yield
        except FencepostError as error:
            message = self.hidden(error.message)
            if message == error.message:
                raise
            raise type(error)(message, next_step=error.next_step, **error.details) from None

    def kept_out(self, fact: EffectFact) -> EffectFact:
        """The fact without the secrets: taken out of texts; a result or a way back that holds one is not kept."""
        if not self.texts:
            return fact
        fact = replace(
            fact,
            error=self.hidden(fact.error),
            reason=self.hidden(fact.reason),
            result_reference=self.hidden(fact.result_reference),
            supplied_key=self.hidden(fact.supplied_key),
        )
        if self.in_json(fact.result):
            why = "the result holds the value of a secret argument, and is not kept"
            fact = replace(fact, result=None, result_form=ResultForm.NOT_ENCODABLE, result_digest="", error=why)
        if self.in_manifest(fact.manifest):
            why = "not sealed: the way back holds the value of a secret argument"
            fact = replace(fact, manifest=None, manifest_digest="", reason=why)
        return fact


NO_SECRETS = Secrets()


def may_hold_secrets(arguments: bytes | None) -> bool:
    """Whether one of these recorded arguments was declared secret; true of arguments that were not kept."""
    return arguments is None or _MARK in arguments


def secrets_of(values: Mapping[str, Any], names: Iterable[str]) -> Secrets:
    """The secrets among the arguments of a call. Raises InvalidArgumentError for one that has no canonical form."""
    forms: set[str] = set()
    plain: set[str] = set()
    blobs: set[bytes] = set()
    for name in names:
        if name in values:
            leaves, data = _parts(name, values[name])
            plain.update(leaves)
            blobs.update(data)
    for leaf in plain:
        forms.update((leaf, json.dumps(leaf)[1:-1], repr(leaf)[1:-1], quote(leaf, safe="")))
    for blob in blobs:
        forms.update((blob.decode(errors="replace"), blob.hex(), base64.b64encode(blob).decode()))
    texts = tuple(sorted(forms - {""}, key=lambda form: (-len(form), form)))
    return Secrets(texts, Spellings(plain, blobs)) if texts else NO_SECRETS


def stretched(value: Any, *, tool: str, name: str) -> str:
    """What stands for a secret in op ids and digests: one value, one text, on every host and in every ledger.

    Raises InvalidArgumentError, which does not show the value.
    """
    salt = f"fencepost/secret/1/{tool}/{name}".encode()
    return hashlib.scrypt(_canonical(name, value), salt=salt, n=_COST, r=8, p=1, dklen=32).hex()


def _canonical(name: str, value: Any) -> bytes:
    try:
        return canonical(value, field=name)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"{name}: the value of this secret argument has no canonical form.",
            next_step="Use text, finite numbers, booleans, None, lists, and dicts with text keys.",
            field=name,
        ) from None


def _parts(name: str, value: Any) -> tuple[list[str], list[bytes]]:
    """Each part of the value, as text, and as the bytes that it is."""
    plain = [] if value is None or isinstance(value, (bool, list, tuple, Mapping)) else [str(value)]
    written = json.loads(_canonical(name, value))
    return [*_leaves(written, names=False), *plain], list(_blobs(written))


def _blobs(value: Any) -> Iterator[bytes]:
    """The bytes in a canonical value, which stand in it as tagged base64."""
    if isinstance(value, Mapping):
        if set(value) == {"$bytes"} and isinstance(value["$bytes"], str):
            with contextlib.suppress(ValueError):
                yield base64.b64decode(value["$bytes"])
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _blobs(item)


def _leaves(value: Any, *, names: bool) -> Iterator[str]:
    """The texts and numbers in a JSON value, as text. Whether something is true, or nothing, is no secret."""
    if isinstance(value, Mapping):
        if names:
            yield from value
        for item in value.values():
            yield from _leaves(item, names=names)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, names=names)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield str(value)
