"""From a decorated function's arguments, or plain values, to the call that the protocol runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .argument_checks import check_count, check_exceptions, check_flag, check_names, check_seconds, check_text
from .errors import InvalidArgumentError
from .facts import EffectClass
from .identity import (
    canonical,
    check_id,
    check_op_id,
    digest,
    filled,
    identified_op_id,
    keyed_op_id,
    run_bound,
    template_names,
)
from .operations import skips_confirmation
from .results import Results
from .secret_values import HIDDEN, MARK, NO_SECRETS, Secrets, secrets_of, stretched
from .signatures import INSTANCES, PlainParameters, flat, forms
from .tool_words import EffectNotExecuted
from .undo import BoundUndo, Undo, UndoPath, check_declared


def check_class(kind: object) -> EffectClass:
    """The effect class that `kind` is or names. Raises InvalidArgumentError."""
    if isinstance(kind, str) and kind in set(EffectClass) - {EffectClass.UNKNOWN}:
        return EffectClass(kind)
    raise InvalidArgumentError(
        f"kind: {kind!r} is not an effect class.",
        next_step="Choose an EffectClass; IRREVERSIBLE when in doubt.",
        field="kind",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a caller wants done, once: the operation and the arguments of this attempt.

    Attributes:
        arguments: canonical JSON of all arguments; kept for people and probes.
        deadline_s: from the intent to the start of the effect.
        wait_s: how long to wait for another owner's decision.
        longest_run_s: the tool's declared longest run; negative when not declared.
        supplied_key: a key that the model made up: recorded, never used.
        undo: how the effect is undone; as bound to the arguments until its state was read.
        undo_round: the operation's round that `undo` was read for; 0 for any.
        secrets: the values that must not be written anywhere.
    """

    op_id: str
    tool: str
    effect_class: EffectClass
    order_safe: bool = False
    identity_digest: str = ""
    content_digest: str = ""
    arguments: bytes | None = None
    resource: str = ""
    cascades: tuple[str, ...] = ()
    supplied_key: str = ""
    deadline_s: float = 30.0
    wait_s: float = 30.0
    longest_run_s: float = -1.0
    undo: BoundUndo | UndoPath | None = None
    undo_round: int = 0
    secrets: Secrets = field(default=NO_SECRETS, repr=False, compare=False)

    @property
    def unconfirmed(self) -> bool:
        """Whether it may run without being confirmed as the only one."""
        return skips_confirmation(self.effect_class, order_safe=self.order_safe)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectOptions:
    """What is declared of a tool, once. See `AgentSession.effect` for the meaning of each."""

    tool: str
    kind: EffectClass
    order_safe: bool = False
    deadline_s: float = 30.0
    wait_s: float = 30.0
    longest_run_s: float | None = None
    not_executed: tuple[type[BaseException], ...] = ()
    record: bool = False
    undo: Undo | UndoPath | None = None
    secret: Sequence[str] = ()
    stable_ids: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_id("tool", self.tool, limit=200)
        for name in ("secret", "stable_ids"):
            object.__setattr__(self, name, check_names(name, getattr(self, name)))
        check_exceptions("not_executed", self.not_executed)
        object.__setattr__(self, "kind", check_class(self.kind))
        check_flag("record", self.record)
        check_flag("order_safe", self.order_safe)
        check_declared(self.kind, self.undo, order_safe=self.order_safe)
        check_order_safe(self.kind, order_safe=self.order_safe)
        for name in ("deadline_s", "wait_s", "longest_run_s"):
            value = getattr(self, name)
            if value is None and name == "longest_run_s":
                continue
            check_seconds(name, value)

    def call(
        self,
        *,
        scope: str,
        key: str | None = None,
        identity: Mapping[str, Any] | None = None,
        content: Mapping[str, Any] | None = None,
        occurrence: int = 1,
        resource: str = "",
        cascades: Sequence[str] = (),
        supplied_key: str = "",
        values: Mapping[str, Any] | None = None,
    ) -> Call:
        """The call of one attempt. Raises InvalidArgumentError naming the field.

        Args:
            values: the tool's arguments by name, for what is declared of its undo.
        """
        check_count("occurrence", occurrence)
        check_text("supplied_key", supplied_key)
        if key is None and identity is None:
            raise InvalidArgumentError(
                f"key: nothing names this call of {self.tool}.",
                next_step="Pass key= (a business key) or identity= (the arguments that make it what it is).",
                field="key",
            )
        identity, content = _plain_mapping("identity", identity), _plain_mapping("content", content)
        given = {**content, **identity, **(values or {})}
        self._require_given(given)
        self.require_stable(identity)
        secrets = secrets_of(given, self.secret)
        marks = dict.fromkeys(self.secret, MARK)  # also of what is neither: whoever comes later must know of it
        shown, content = {**marks, **self._shown(identity), **self._shown(content)}, self._shown(content)
        identity = {n: self._told_apart(n, v) if n in self.secret else v for n, v in identity.items()}
        if key is not None:
            key = secrets.require_absent("key", check_id("key", key, limit=250))
        else:
            scope = secrets.require_absent("scope", check_id("scope", scope, limit=250))
        identified = _canonical("identity", identity)
        if key is not None:
            op_id = keyed_op_id(tool=self.tool, key=key, occurrence=occurrence)
        else:
            op_id = identified_op_id(scope=scope, tool=self.tool, identified=identified, occurrence=occurrence)
        content_digest = digest(_canonical("content", content)) if content else _NO_CONTENT
        arguments = canonical(shown) if content or self.secret else identified
        return Call(
            op_id=check_op_id(op_id),
            tool=self.tool,
            effect_class=self.kind,
            order_safe=self.order_safe,
            identity_digest=digest(identified),
            content_digest=content_digest,
            arguments=arguments,
            resource=secrets.require_absent("resource", check_id("resource", resource)) if resource else "",
            cascades=tuple(secrets.require_absent("cascades", name) for name in check_names("cascades", cascades)),
            supplied_key=supplied_key,
            deadline_s=self.deadline_s,
            wait_s=self.wait_s,
            longest_run_s=-1.0 if self.longest_run_s is None else self.longest_run_s,
            undo=self._bound_undo(values, arguments, secrets),
            secrets=secrets,
        )

    def _shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they may be written down."""
        return {name: MARK if name in self.secret else value for name, value in arguments.items()}

    def _told_apart(self, name: str, value: Any) -> dict[str, str]:
        """What stands for a secret in op ids and digests."""
        return {"$secret": stretched(value, tool=self.tool, name=name)}

    def _require_given(self, given: Mapping[str, Any]) -> None:
        """A misspelt name would let a secret through."""
        if missing := [name for name in self.secret if name not in given]:
            raise InvalidArgumentError(
                f"secret: this call of {self.tool} has no argument {', '.join(missing)}.",
                next_step="Pass it, or correct the names in secret=.",
                field="secret",
            )

    def require_stable(self, identity: Iterable[str] | Mapping[str, Any]) -> None:
        """Refuse as identity what a model or framework makes anew with each run, thread, call, or retry."""
        ids = [name for name in run_bound(identity) if name not in self.stable_ids]
        if ids and (self.kind is not EffectClass.READ or self.record):
            raise InvalidArgumentError(
                f"identity: {', '.join(ids)} of {self.tool} changes with each run or retry: the same effect would get "
                "another op_id, and run again.",
                next_step="Leave it out, name it in content= (a key that the tool takes: in key_argument=), or say with "
                f"stable_ids=({ids[0]!r},) that it names what the tool acts on.",
                field="identity",
            )

    def _bound_undo(
        self, values: Mapping[str, Any] | None, arguments: bytes, secrets: Secrets
    ) -> BoundUndo | UndoPath | None:
        if not isinstance(self.undo, Undo):
            return self.undo
        if values is None:
            raise InvalidArgumentError(
                "undo: an attempt has no arguments from which an Undo could be filled in.",
                next_step="Pass an UndoPath, with the state's hash as it is now.",
                field="undo",
            )
        return BoundUndo(undo=self.undo, values=values, arguments=arguments, secrets=secrets)

    def certainly_not(self, error: BaseException) -> bool:
        """Whether this exception says that the effect did not happen, or that a repeat does no harm. Never raises."""
        declared = (EffectNotExecuted, *self.not_executed)
        return any(kind in declared for kind in type(error).__mro__)  # what `except` goes by; no class has a say


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A decorated function and how its arguments name the operation."""

    function: Callable[..., Any]
    options: EffectOptions
    identity: tuple[str, ...] | None = None
    content: tuple[str, ...] = ()
    key: Callable[..., str] | None = None
    scope: str | Callable[..., str] = ""
    resource: str = ""
    cascades: tuple[str, ...] = ()
    key_argument: str = ""

    def __post_init__(self) -> None:
        for name in ("identity", "content", "cascades"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_names(name, given))
        for name in ("resource", "key_argument"):
            check_text(name, getattr(self, name))
        for name in ("function", "key"):
            if not (callable(given := getattr(self, name)) or (given is None and name == "key")):
                raise InvalidArgumentError(
                    f"{name}: must be a function, not {type(given).__name__}.", next_step="Pass one.", field=name
                )
        self._require_runnable()
        if isinstance(self.options.undo, UndoPath):
            raise InvalidArgumentError(
                f"undo: an UndoPath is of one call, and {self.options.tool} is called again and again.",
                next_step="Pass an Undo.",
                field="undo",
            )
        options = self.options
        parameters = self._signature.parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for option, names in (
            ("identity", self.identity or ()),
            ("content", self.content),
            ("key_argument", (self.key_argument,) if self.key_argument else ()),
            ("secret", options.secret),
        ):
            unknown = sorted(set(names) - set(parameters))
            if unknown and not takes_any:
                raise InvalidArgumentError(
                    f"{option}: {options.tool} has no parameter {', '.join(unknown)}.",
                    next_step=f"Name some of: {', '.join(parameters)}.",
                    field=option,
                )
        rest = [
            n
            for n, p in parameters.items()
            if p.kind is not p.VAR_KEYWORD and n not in {*self.content, self.key_argument}
        ]
        options.require_stable(rest if self.identity is None else self.identity)
        strays = [name for name in options.stable_ids if name.partition(".")[0] not in parameters]
        if strays and not takes_any:
            raise InvalidArgumentError(
                f"stable_ids: {options.tool} has no parameter {', '.join(strays)}.",
                next_step=f"Name some of: {', '.join(parameters)}; a key within one of them as 'parameter.key'.",
                field="stable_ids",
            )
        self._require_unshown()

    def _require_unshown(self) -> None:
        """Refuse a declaration that would write a secret down."""
        templates = [("resource", self.resource), *(("cascades", cascade) for cascade in self.cascades)]
        shown = [("key_argument", self.key_argument), *((name, a) for name, t in templates for a in template_names(t))]
        for name, argument in shown:
            if argument in self.options.secret:
                raise InvalidArgumentError(
                    f"{name}: it would show {argument}, which is declared secret.",
                    next_step="Name another argument there.",
                    field=name,
                )

    @cached_property
    def _signature(self) -> inspect.Signature:
        """Of the function; finding it out takes longer than using it. Raises InvalidArgumentError where it tells none."""
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"function: {self.options.tool} does not tell its parameters ({error}).",
                next_step="Decorate a function of your own that calls it.",
                field="function",
            ) from error

    @property
    def is_awaited(self) -> bool:
        """Whether calling the function gives a coroutine; a callable object counts by its `__call__`."""
        return any(inspect.iscoroutinefunction(function) for function in forms(self.function))

    def _require_runnable(self) -> None:
        """Refuse what would be recorded before it has run, or as another call."""
        kinds = forms(self.function)
        if any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in kinds):
            raise InvalidArgumentError(
                f"function: {self.options.tool} is a generator; its effect happens after the call returned.",
                next_step="Decorate a function that returns when the effect has happened.",
                field="function",
            )
        first = next(iter(self._signature.parameters), "")
        if first in INSTANCES and self.identity is None and self.key is None:
            raise InvalidArgumentError(
                f"identity: {self.options.tool} is a method; which object it belongs to must be said.",
                next_step="Pass identity= or key= with what tells one object from another.",
                field="identity",
            )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, scope: str, occurrence: int) -> Call:
        """The call that these arguments name. Raises TypeError as the function itself would."""
        first = type(occurrence) is int and occurrence == 1
        plain = self._plainly.values(args, kwargs) if self._plainly and first else None
        if plain is not None:
            return self._plain_call(plain, scope)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = flat(bound)
        supplied = values.pop(self.key_argument, None) if self.key_argument else None
        content = {name: values[name] for name in self.content if name in values}
        names = [n for n in values if n not in content] if self.identity is None else self.identity
        missing = [name for name in names if name not in values]
        if missing:
            raise InvalidArgumentError(
                f"identity: this call of {self.options.tool} has no argument {', '.join(missing)}.",
                next_step="Pass it, or correct the names in identity=.",
                field="identity",
            )
        identity = {name: values[name] for name in names}
        shown = {name: HIDDEN if name in self.options.secret else value for name, value in values.items()}
        return self.options.call(
            scope=self._scope(shown) or scope,
            key=check_text("key", self.key(**shown)) if self.key else None,
            identity=identity,
            content=content,
            occurrence=occurrence,
            resource=filled("resource", self.resource, shown),
            cascades=[filled("cascades", c, shown) for c in self.cascades],
            supplied_key="" if supplied is None else str(supplied),
            values=dict(values),
        )

    @cached_property
    def _plainly(self) -> PlainParameters | None:
        """The parameters, if nothing of this tool's calls has to be looked into but their values; else None."""
        options = self.options
        more = (self.key, self.content, self.resource, self.cascades, self.key_argument, options.undo, options.secret)
        found = PlainParameters.of(self._signature)
        if any(more) or callable(self.scope) or found is None or found.names[:1] in {(name,) for name in INSTANCES}:
            return None
        names = found.names if self.identity is None else self.identity
        unstable = set(run_bound(names)) - set(options.stable_ids)
        recorded = options.kind is not EffectClass.READ or options.record
        return None if (unstable and recorded) or not set(names) <= set(found.names) else found

    def _plain_call(self, values: Mapping[str, Any], scope: str) -> Call:
        """The call that these values name, where they are plain. It is the very one that `bind` makes in general."""
        options = self.options
        identity = values if self.identity is None else {name: values[name] for name in self.identity}
        scope = check_id("scope", self.scope or scope, limit=250)
        identified = _canonical("identity", identity)
        return Call(
            op_id=check_op_id(identified_op_id(scope=scope, tool=options.tool, identified=identified)),
            tool=options.tool,
            effect_class=options.kind,
            order_safe=options.order_safe,
            identity_digest=digest(identified),
            content_digest=_NO_CONTENT,
            arguments=identified,
            deadline_s=options.deadline_s,
            wait_s=options.wait_s,
            longest_run_s=-1.0 if options.longest_run_s is None else options.longest_run_s,
        )

    def _scope(self, keywords: dict[str, Any]) -> str:
        return check_text("scope", self.scope(**keywords)) if callable(self.scope) else self.scope

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], idempotency_key: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to run the function with: ours in place of a key that the model made up."""
        if not self.key_argument:
            return args, kwargs
        bound = self._signature.bind(*args, **kwargs)
        bound.arguments[self.key_argument] = idempotency_key
        return bound.args, bound.kwargs

    @cached_property
    def _results(self) -> Results:
        return Results(self.function)

    def encode(self, value: Any) -> bytes:
        """The result as JSON, by the function's return annotation if it has a useful one."""
        return self._results.encode(value)

    def decode(self, data: bytes) -> Any:
        """What `encode` made, of the annotated type again."""
        return self._results.decode(data)


_NO_CONTENT = digest(b"{}")


def _plain_mapping(field: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {}
    if not _is_mapping(value):
        raise InvalidArgumentError(
            f"{field}: must be a mapping of names to values, not {type(value).__name__}.",
            next_step=f"Pass {field}={{'order': …}}.",
            field=field,
        )
    return dict(value)


def check_order_safe(kind: EffectClass, *, order_safe: bool) -> None:
    """Raises InvalidArgumentError for an effect that is said to be order-safe and cannot be."""
    if check_flag("order_safe", order_safe) and kind is not EffectClass.IDEMPOTENT:
        raise InvalidArgumentError(
            "order_safe: only an IDEMPOTENT effect can be order-safe.",
            next_step="Leave it out, or declare the effect IDEMPOTENT.",
            field="order_safe",
        )


def _canonical(field: str, values: Mapping[str, Any]) -> bytes:
    """Canonical JSON of arguments. Raises InvalidArgumentError that names the one which has none."""
    try:
        return canonical(values, field=field)
    except InvalidArgumentError:
        for name, value in values.items():
            _require_form(field, name, value)
        raise


def _require_form(field: str, name: str, value: Any) -> None:
    try:
        canonical({name: value}, field=name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{field}: of the argument {error.message}", next_step=error.next_step, field=field, argument=name
        ) from error.__cause__


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)
