"""Importing is cheap, and imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("apsw", "click", "confluent_kafka", "fastavro", "pydantic", "redis", "rich")
ALLOWED = {
    "schemas": {"schemas"},
    "ledger": {"schemas", "ledger"},
    "producer": {"schemas", "ledger", "producer"},
    "consumer": {"schemas", "ledger", "consumer"},
    "deploy": {"deploy"},
}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import fencepost.ledger",
        "from fencepost.ledger import Ledger, AsyncLedger, EffectClass, Watermark",
        "from fencepost.ledger import urls; urls.parse('kafka://h:1/p?projection=redis://h:2/0')",
    ],
)
def test_no_client_library_is_loaded(statement: str) -> None:
    """Importing the ledger, and naming what most programs name, loads no client library."""
    assert run(f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])") == "[]"


def test_opening_the_embedded_store_loads_no_other_client() -> None:
    """The default store needs neither Kafka's nor Redis's client, nor the command line's libraries."""
    others = tuple(name for name in HEAVY if name not in {"apsw", "fastavro"})
    code = (
        "import sys, tempfile; from fencepost.ledger import Ledger\n"
        "with tempfile.TemporaryDirectory() as d, Ledger.open(f'sqlite://{d}/l.db') as ledger:\n"
        f"    ledger.agents(); print([name for name in {others!r} if name in sys.modules])"
    )
    assert run(code) == "[]"


def test_import_takes_no_time() -> None:
    """`import fencepost.ledger` takes less than 0.2 s of the processor; the best of three tries."""
    code = "import time; t = time.process_time(); import fencepost.ledger; print(time.process_time() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.2


def test_importing_does_nothing() -> None:
    """Importing starts no thread and reads no environment: a broken FENCEPOST_URL is nobody's business yet."""
    code = (
        "import os, threading; os.environ['FENCEPOST_URL'] = 'nonsense'; import fencepost.ledger.facade; "
        "print(threading.active_count())"
    )
    assert run(code) == "1"


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_go_one_way(package: str) -> None:
    """Imports go from producer and consumer to ledger to schemas; those two never know of each other, and deploy of none."""
    found = {
        f"{path.name}: {target}"
        for path in (ROOT / package).rglob("*.py")
        for target in imported(path, package)
        if target not in ALLOWED[package]
    }
    assert found == set()


def imported(path: Path, package: str) -> set[str]:
    """Which of the packages a file imports, at its top or inside of a function."""
    targets: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [absolute(node, package)]
            names += [f"{names[0]}.{alias.name}" for alias in node.names]
        else:
            continue
        targets |= {name.split(".")[1] for name in names if name.startswith("fencepost.")}
    return targets & set(ALLOWED)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that an import names, written out."""
    above = ["fencepost", package][: 2 - (node.level - 1)] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])
