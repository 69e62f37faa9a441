"""What users install is what the tree has."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@pytest.mark.slow
def test_the_wheel_has_the_files_of_the_tree(tmp_path: Path) -> None:
    """Every file of a package, data included, is in the wheel, and nothing else; the namespace has no __init__."""
    source = tmp_path / "source"
    source.mkdir()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["setuptools"]["package-dir"]
    expected = set()
    for name, folder in packages.items():
        shutil.copytree(ROOT / folder, source / folder, ignore=IGNORED)
        files = [path for path in (source / folder).rglob("*") if path.is_file()]
        expected |= {f"{name.replace('.', '/')}/{path.relative_to(source / folder)}" for path in files}
    for path in [ROOT / "pyproject.toml", *ROOT.glob("LICENSE*"), *ROOT.glob("README*")]:
        shutil.copy(path, source)

    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr

    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == expected
    assert {f"{name.replace('.', '/')}/py.typed" for name in packages} <= found
