"""Bytes that were written once are read for ever."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fencepost import schemas
from fencepost.schemas import catalogue

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / "schemas" / "golden"
FILES = sorted(FOLDER.glob("v*/*.json"))


def _writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_golden", HERE / "write_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden_bytes_decode_to_their_values(path: Path) -> None:
    """Committed bytes of every version give the committed values, fields added since at their defaults; and back."""
    golden = json.loads(path.read_text(encoding="utf-8"))
    name, data = golden["schema"], bytes.fromhex(golden["hex"])
    expected = _writer().from_json(golden["values"])
    decoded = getattr(schemas, f"decode_{name}")(data)
    present = catalogue.current(name)
    assert {key: decoded[key] for key in expected if key in decoded} == {
        key: value for key, value in expected.items() if key in decoded
    }
    assert decoded.keys() == {field["name"] for field in present.schema["fields"]}
    if schemas.peek_fingerprint(data) == present.fingerprint:
        assert decoded == expected
        assert getattr(schemas, f"encode_{name}")(expected) == data


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_version_has_golden_bytes(name: str) -> None:
    """No version is published without examples, and they carry its fingerprint: an edit of a published file shows."""
    for version in catalogue.history(name):
        found = list((FOLDER / f"v{version.number}").glob(f"{name}.*.json"))
        assert found, f"write examples for {name} version {version.number}, then run write_golden.py"
        for path in found:
            data = bytes.fromhex(json.loads(path.read_text(encoding="utf-8"))["hex"])
            assert schemas.peek_fingerprint(data) == version.fingerprint, path.name


@pytest.mark.parametrize("name", ["effect_fact", "agent_fact"])
def test_every_kind_of_fact_has_golden_bytes(name: str) -> None:
    """Each kind that the present schema knows is among the examples."""
    kinds = {json.loads(path.read_text())["values"]["kind"] for path in FILES if path.name.startswith(f"{name}.")}
    assert kinds == set(catalogue.current(name).schema["fields"][0]["type"]["symbols"])


def test_completing_a_file_fills_in_bytes_and_values(tmp_path: Path) -> None:
    """The writer of golden files completes a hand-written one, and leaves a complete one alone."""
    path = tmp_path / "record.case.json"
    path.write_text(json.dumps({"schema": "record", "values": {"key": "k", "fact": {"$hex": "00ff"}}}))
    assert _writer().complete(path)
    golden: dict[str, Any] = json.loads(path.read_text())
    assert schemas.decode_record(bytes.fromhex(golden["hex"]))["fact"] == b"\x00\xff"
    assert golden["values"]["history"] == []
    assert not _writer().complete(path)
