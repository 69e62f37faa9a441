"""A run that must be whole: with FENCEPOST_REQUIRE_SERVICES=1 nothing is skipped in silence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SKIPS = """
import pytest

def test_that_cannot_run():
    pytest.skip("no disk to fill")

@pytest.mark.skipif(True, reason="takes long")
def test_that_need_not_run():
    raise AssertionError

@pytest.mark.xfail(reason="known", strict=True)
def test_that_is_known_to_fail():
    raise AssertionError
"""


@pytest.mark.parametrize(("required", "ends"), [("1", "1 failed, 1 xfailed, 2 errors"), ("0", "3 skipped, 1 xfailed")])
def test_a_skip_counts_as_a_failure_where_all_must_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required: str, ends: str
) -> None:
    """Whatever the reason of a skip is; what is expected to fail is no skip."""
    monkeypatch.setenv("FENCEPOST_REQUIRE_SERVICES", required)
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_module.py").write_text('import pytest\npytest.importorskip("a_module_that_nobody_has")')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "-o",
        f"pythonpath={TESTS}",
        "--continue-on-collection-errors",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ends in done.stdout, done.stdout + done.stderr
    assert ("takes long" in done.stdout) is (required == "1")
