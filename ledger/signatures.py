"""How functions take their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

INSTANCES = ("self", "cls")
"""What the first parameter of a method is called."""
_SCALARS = frozenset({str, int, float, bool, type(None)})
_BY_PLACE = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})
_BY_NAME = frozenset({inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


@dataclass(frozen=True, slots=True)
class PlainParameters:
    """A function's parameters, none of which takes any number of arguments.

    Attributes:
        by_place: names, in the order in which arguments are given.
        by_name: names that may be used as keywords.
        defaults: name → default.
    """

    names: tuple[str, ...]
    by_place: tuple[str, ...]
    by_name: frozenset[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, signature: inspect.Signature) -> PlainParameters | None:
        """Those of a signature; None if it takes more than it names."""
        parameters = signature.parameters.values()
        if any(p.kind not in _BY_PLACE | _BY_NAME for p in parameters):
            return None
        return cls(
            names=tuple(p.name for p in parameters),
            by_place=tuple(p.name for p in parameters if p.kind in _BY_PLACE),
            by_name=frozenset(p.name for p in parameters if p.kind in _BY_NAME),
            defaults={p.name: p.default for p in parameters if p.default is not p.empty},
        )

    def values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Name → value, in the order of the parameters; None for what the function would not take, and unless all are scalars.

        Within a scalar there is nothing that could change with each run.
        """
        if len(args) > len(self.by_place):
            return None
        given = dict(zip(self.by_place, args, strict=False))
        if kwargs:
            if not kwargs.keys() <= self.by_name or not kwargs.keys().isdisjoint(given):
                return None
            given.update(kwargs)
        try:
            values = {name: given[name] if name in given else self.defaults[name] for name in self.names}
        except KeyError:
            return None
        return values if all(type(value) in _SCALARS for value in values.values()) else None


def forms(function: Callable[..., Any]) -> list[Any]:
    """The function itself, or what a partial or a callable object would run."""
    while isinstance(function, functools.partial):
        function = function.func
    return [function, getattr(type(function), "__call__", None)]  # noqa: B004 (its kind is asked for)


def flat(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Argument names → values; the instance of a method is left out."""
    values: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for place, (name, value) in enumerate(bound.arguments.items()):
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            extra = value
        elif place > 0 or name not in INSTANCES:
            values[name] = value
    # A keyword may have the name of a positional-only parameter: both are told apart.
    return {**values, **{name if name not in values else f"**{name}": value for name, value in extra.items()}}
