"""Results of tools as JSON, and back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any, get_type_hints

_PLAIN = (None, type(None), Any, dict, list, str, int, float, bool, object)


def plain_json(value: Any) -> bytes:
    """A result as compact JSON. Raises TypeError, ValueError for what has none."""
    return _ENCODE(value).encode()


_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Results:
    """The results of a function, by its return annotation if that says more than plain JSON."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def _adapter(self) -> Any:
        """A pydantic adapter of the return annotation, where it says more than plain JSON."""
        try:
            annotation = get_type_hints(self._function).get("return")
        except (NameError, TypeError):
            return None
        if annotation in _PLAIN:
            return None
        from pydantic import PydanticSchemaGenerationError, TypeAdapter  # noqa: PLC0415 (heavy)

        try:
            return TypeAdapter(annotation)
        except PydanticSchemaGenerationError:
            return None

    def encode(self, value: Any) -> bytes:
        """The result as JSON."""
        if self._adapter is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return bytes(self._adapter.dump_json(value))
        return plain_json(value)

    def decode(self, data: bytes) -> Any:
        """What `encode` made, of the annotated type again."""
        return json.loads(data) if self._adapter is None else self._adapter.validate_json(data)
