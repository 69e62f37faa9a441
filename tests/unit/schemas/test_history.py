"""The published schemas, as they lie in the tree."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from fencepost.schemas import SchemaError, catalogue
from fencepost.schemas.compatibility import flaws, incompatibilities


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_docs(value) for key, value in schema.items() if key != "doc"}
    return [_without_docs(part) for part in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_the_present_schema_is_the_newest_published_version(name: str) -> None:
    """A schema cannot change unless a new version of it is published beside the old ones."""
    newest = catalogue.history(name)[-1]
    assert _without_docs(catalogue.current(name).schema) == _without_docs(newest.schema), (
        f"copy schemas/{name}.avsc to schemas/history/{name}.v{newest.number + 1}.avsc, and add golden files for it"
    )


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_all_versions_are_fully_compatible_with_each_other(name: str) -> None:
    """Any version can read what any other wrote: FULL_TRANSITIVE."""
    for version in catalogue.history(name):
        assert flaws(version.schema) == []
    for older, newer in itertools.combinations(catalogue.history(name), 2):
        assert incompatibilities(older.schema, newer.schema) == [], f"{older.number} and {newer.number}"


def test_fingerprints_are_distinct() -> None:
    """No fingerprint names two schemas, so bytes cannot be taken for another kind of value."""
    found = [version.fingerprint for name in catalogue.NAMES for version in catalogue.history(name)]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("null", 0x63DD24E7CC258F8A),
        ("boolean", 0x9F42FC78A4D4F764),
        ("int", 0x7275D51A3F395C8F),
        ("long", 0xD054E14493F41DB7),
        ("string", 0x8F014872634503C7),
    ],
)
def test_fingerprints_are_those_of_other_implementations(schema: str, expected: int) -> None:
    """CRC-64-AVRO of the primitives, little-endian; the numbers are those that the Avro project tests against."""
    assert catalogue.fingerprint(schema) == expected.to_bytes(8, "little")


def test_the_canonical_form_leaves_out_what_does_not_change_bytes() -> None:
    """Documentation, defaults and the order of keys are no part of a schema's identity; full names are."""
    schema = {
        "doc": "any", "namespace": "a.b", "fields": [
            {"default": "X", "name": "e", "type": {"symbols": ["X"], "default": "X", "name": "E", "type": "enum"}},
        ], "type": "record", "name": "R",
    }  # fmt: skip
    assert catalogue.canonical_form(schema) == (
        '{"name":"a.b.R","type":"record","fields":[{"name":"e","type":{"name":"a.b.E","type":"enum","symbols":["X"]}}]}'
    )


def test_a_gap_in_the_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing version would make old bytes unreadable: it is found when the catalogue is read."""
    (tmp_path / "history").mkdir()
    for number in (1, 3):
        path = tmp_path / "history" / f"record.v{number}.avsc"
        path.write_text(json.dumps(catalogue.current("record").schema))
    monkeypatch.setattr(catalogue, "_FOLDER", tmp_path)
    with pytest.raises(SchemaError, match=r"\[1, 3\]"):
        catalogue.history.__wrapped__("record")
