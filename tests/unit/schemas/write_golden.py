"""Completes golden files that were written by hand: run it once for each newly published version, then commit.

A golden file is ``schemas/golden/v<version>/<schema>.<case>.json``, with ``schema`` and ``values``. Where ``hex`` is
missing, this adds it, and fills ``values`` up to what decoding gives. A file that has ``hex`` is never touched.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fencepost import schemas

FOLDER = Path(__file__).parents[3] / "schemas" / "golden"


def to_json(value: Any) -> Any:
    """Values as JSON has them: bytes as ``{"$hex": …}``."""
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    return [to_json(part) for part in value] if isinstance(value, list) else value


def from_json(value: Any) -> Any:
    """The opposite of ``to_json``."""
    if isinstance(value, dict):
        if value.keys() == {"$hex"}:
            return bytes.fromhex(value["$hex"])
        return {key: from_json(part) for key, part in value.items()}
    return [from_json(part) for part in value] if isinstance(value, list) else value


def complete(path: Path) -> bool:
    """Adds what is missing to one file; true if something was."""
    golden = json.loads(path.read_text(encoding="utf-8"))
    if "hex" in golden:
        return False
    name = golden["schema"]
    data = getattr(schemas, f"encode_{name}")(from_json(golden["values"]))
    values = to_json(getattr(schemas, f"decode_{name}")(data))
    text = json.dumps({"schema": name, "hex": data.hex(), "values": values}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return True


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("v*/*.json")):
        if complete(file):
            sys.stdout.write(f"completed {file}\n")
