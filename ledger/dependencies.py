"""What a resumed turn depends on: whether each fact is present verbatim, and what brings back one that is not.

A dependency is a reference. Its verbatim text is
    - of an operation of the ledger: the recorded result, as it is if it is a text, and as JSON,
    - of anything else: the text that has the digest which a drop manifest, or the caller, names.
A text is believed only by its digest, so that a reworded fact is never taken for the fact. What the
caller holds, and what his resolver answered, are treated alike.

Of an operation that gave several results (a read that was read again) the digest says which one is meant.
Without one they are all meant: they must all be there, and none of them is brought back for the fact.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .compaction_rules import check_digest, text_digest
from .errors import InvalidArgumentError
from .facts import Dropped, EffectFact, ResultForm
from .guard import SeenOperation
from .identity import check_id
from .operations import Operation, Status
from .summaries import holds_of, named, spellings

DependencyItem = Dropped | str | tuple[str, str]
"""A reference; or with the SHA-256 of its text, which else a drop manifest must name."""

MAX_DEPENDENCIES = 1_000


def dependencies(items: Iterable[DependencyItem], field: str = "depends_on") -> tuple[Dropped, ...]:
    """The references, each once, with the digests that the caller names. Raises InvalidArgumentError."""
    if isinstance(items, (str, bytes, Dropped)) or not isinstance(items, Iterable):
        raise _unusable(field, items)
    found: dict[str, Dropped] = {}
    for item in items:
        match item:
            case str() as reference:
                digest = ""
            case Dropped(reference, digest) | (str() as reference, digest):
                digest = check_digest(digest, field) if digest else ""
            case _:
                raise _unusable(field, item)
        before = found.get(check_id(field, reference))
        found[reference] = Dropped(reference, digest or (before.digest if before else ""))
    if len(found) > MAX_DEPENDENCIES:
        raise InvalidArgumentError(
            f"{field}: names {len(found)} facts; at most {MAX_DEPENDENCIES} are looked at.",
            next_step="Name what the next turn depends on, or whole documents.",
            field=field,
        )
    return tuple(found.values())


def _unusable(field: str, item: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{field}: {item!r:.80} is no reference.",
        next_step="Pass a list of references, or of (reference, SHA-256); texts are handed over by `held=`.",
        field=field,
    )


@dataclass(slots=True)
class Presence:
    """What became of the dependencies.

    Attributes:
        absent: those that the text does not hold; each is recovered, or missing.
        recovered: reference → recorded result, or text.
        missing: reference → why.
    """

    absent: list[str] = field(default_factory=list)
    recovered: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where facts can come from.

    Attributes:
        text: the restored summary and state.
        operations: the ledger's, by op_id.
        digests: reference → the SHA-256 that the newest drop manifest naming one for it has.
        by_name: what a later drop manifest names without a digest: of several results any may be meant by that.
        held: reference → text, as the caller hands it over or his resolver answers it.
        unanswered: reference → why the resolver has no text.
    """

    text: str
    operations: Mapping[str, SeenOperation]
    digests: Mapping[str, str]
    held: Mapping[str, str | bytes]
    unanswered: Mapping[str, str] = field(default_factory=dict)
    by_name: frozenset[str] = frozenset()


def dropped_by_name(manifests: Iterable[Sequence[Dropped]]) -> frozenset[str]:
    """What the newest drop manifest that names it has no digest of; manifests are given oldest first."""
    newest = {d.reference: d.digest for manifest in manifests for d in manifest}
    return frozenset(reference for reference, digest in newest.items() if not digest)


def newest_digests(manifests: Iterable[Sequence[Dropped]]) -> dict[str, str]:
    """Reference → digest, of drop manifests given oldest first; a later one that names no digest changes nothing."""
    return {d.reference: d.digest for manifest in manifests for d in manifest if d.digest}


def look(wanted: Iterable[Dropped], sources: Sources) -> Presence:
    """Which of the wanted facts the text holds verbatim, and what brings back the others."""
    presence = Presence()
    for dependency in wanted:
        _look_at(dependency, sources, presence)
    return presence


def _look_at(dependency: Dropped, sources: Sources, presence: Presence) -> None:
    reference = dependency.reference
    operation, why = _stands(sources.operations.get(reference))
    told = operation.told if operation is not None else ()
    dropped = "" if len(told) > 1 and reference in sources.by_name else sources.digests.get(reference, "")
    digest = dependency.digest or dropped or _recorded_digest(told)
    meant = [fact for fact in told if _is_recorded(fact, digest)]
    held, flaw = _held(reference, digest, sources)
    if isinstance(held, str) and holds_of(sources.text, reference, [held]):
        return
    if meant and (digest or len(meant) == len(told)) and all(_is_there(f, reference, sources.text) for f in meant):
        return
    if len(told) == 1 and meant and meant[0].result_form is ResultForm.NONE and named(sources.text, [reference]):
        return  # of an effect that gave nothing its name is all that there is
    presence.absent.append(reference)
    if meant and (digest or len(told) == 1):
        presence.recovered[reference] = result_of(meant[0])
    elif held is not None:
        presence.recovered[reference] = held
    else:
        presence.missing[reference] = "; ".join(reason for reason in (why or _other(told, digest), flaw) if reason)


def _is_there(fact: EffectFact, reference: str, text: str) -> bool:
    """Whether the text holds a recorded result."""
    return fact.result is not None and holds_of(text, reference, spellings(result_of(fact)))


def _stands(seen: SeenOperation | None) -> tuple[Operation | None, str]:
    """The operation, if its result can be relied on, or why not; neither for what is no operation."""
    if seen is None:
        return None, ""
    operation = seen.operation
    if seen.unsafe or operation.status is Status.UNSAFE:
        return None, "its record cannot be trusted: settle it first"
    if operation.status is Status.COMMITTED:
        form = operation.result_form
        told = "" if form in {ResultForm.JSON, ResultForm.NONE} else f"its result is not in the ledger ({form.value})"
        return operation, told
    if operation.status is Status.FREE:
        return None, "it was undone" if operation.compensations else "it is not done"
    state = Status.IN_DOUBT if seen.owner_ended else operation.status
    return None, f"it is {state.value}: settle it first"


def _recorded_digest(told: Sequence[EffectFact]) -> str:
    """Of a result that is too large for the ledger: its digest is there."""
    large = len(told) == 1 and told[0].result_form is ResultForm.TOO_LARGE
    return told[0].result_digest if large else ""


def _is_recorded(fact: EffectFact, digest: str) -> bool:
    """Whether the ledger has this result, and it is the one with this digest, if one is known."""
    if fact.result_form not in {ResultForm.JSON, ResultForm.NONE}:
        return False
    value = result_of(fact)
    # Python prints values in its own way, which is how a text that was dropped may have had it.
    return not digest or any(_digest_of(form) == digest for form in (*spellings(value), repr(value)))


def _other(told: Sequence[EffectFact], digest: str) -> str:
    if digest:
        return "its recorded result is not the text with the digest that is named" if told else ""
    return f"it gave {len(told)} results, and no digest says which one is meant" if len(told) > 1 else ""


def result_of(fact: EffectFact) -> Any:
    """A recorded result, decoded; None if there is none."""
    return json.loads(fact.result) if fact.result is not None else None


def _digest_of(text: str | bytes) -> str:
    try:
        return text_digest(text)
    except InvalidArgumentError:
        return ""


def _held(reference: str, digest: str, sources: Sources) -> tuple[str | bytes | None, str]:
    """The text with this digest, if somebody holds it, or why not."""
    if not digest:
        return None, "no digest of it is known, so no text can be believed to be it"
    if reference not in sources.held:
        return None, sources.unanswered.get(reference, "nobody holds its text")
    text = sources.held[reference]
    if _digest_of(text) != digest:
        return None, "the text that was found for it is another one: its digest differs"
    if isinstance(text, bytes):
        try:
            return text.decode(), ""
        except UnicodeDecodeError:
            return text, ""
    return text, ""
