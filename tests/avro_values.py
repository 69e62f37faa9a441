"""Values that fit a schema, for property tests."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fencepost.schemas import catalogue

BITS = {"int": 32, "long": 64}


def values_of(schema: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one return per Avro type
    """Values that fit a schema; record fields may be missing."""
    if isinstance(schema, list):
        return st.one_of(*map(values_of, schema))
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return st.fixed_dictionaries({}, optional={part["name"]: values_of(part["type"]) for part in schema["fields"]})
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "array":
        return st.lists(values_of(schema["items"]), max_size=5)
    if kind == "map":
        return st.dictionaries(values_of("string"), values_of(schema["values"]), max_size=5)
    simple: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "null": st.none,
        "boolean": st.booleans,
        "double": st.floats,
        "string": lambda: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "bytes": lambda: st.binary(max_size=40),
    }
    if kind in simple:
        return simple[kind]()
    return st.integers(-(1 << BITS[kind] - 1), (1 << BITS[kind] - 1) - 1)


VALUES = {name: values_of(catalogue.current(name).schema) for name in catalogue.NAMES}
