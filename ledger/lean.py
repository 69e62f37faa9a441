"""Frozen dataclasses of which most fields are at their defaults: an instance holds only what it was told.

What it was not told it finds at its class, where a dataclass without slots keeps its defaults. So it costs what it was
told to make, to write, and to keep, and not forty fields.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

_Class = TypeVar("_Class")


def lean(cls: type[_Class]) -> type[_Class]:
    """The frozen dataclass, with instances that leave out what is at its default. Keyword-only, without factories."""
    defaults = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type] # checked by dataclass
    required = [field.name for field in fields(cls) if field.default is MISSING]  # type: ignore[arg-type]
    refuse = cls.__init__

    def __init__(self: Any, **given: Any) -> None:  # noqa: N807 - it is one
        try:
            values = {name: value for name, value in given.items() if value is not defaults[name]}
        except KeyError:
            refuse(self, **given)  # says which name is wrong
            raise
        if any(name not in values for name in required):
            refuse(self, **given)
        object.__setattr__(self, "__dict__", values)

    cls.__init__ = __init__  # type: ignore[method-assign]
    return cls


def made(cls: type[_Class], values: dict[str, Any]) -> _Class:
    """An instance that holds these very values: of its fields only, and belonging to it from now on."""
    instance = cls.__new__(cls)
    object.__setattr__(instance, "__dict__", values)
    return instance


def told(instance: object) -> dict[str, Any]:
    """What an instance of a lean class holds, a copy. It may have been told a default, too."""
    return vars(instance).copy()
