"""FENCEPOST_EXAMPLES reaches every kind of property test; without it each run tries the same examples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PROPERTIES = """
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

def note(name, value=""):
    with open({told!r}, "a") as file:
        file.write(f"{{name}} {{value}}\\n")

@given(st.integers())
def test_default(number):
    note("default", number)

@settings(max_examples=7)
@given(st.integers())
def test_explicit(number):
    note("explicit", number)

@pytest.mark.parametrize("case", ["one", "two"])
@settings(max_examples=7)
@given(st.integers())
def test_parametrised(case, number):
    note(case)

class TestOf:
    @settings(max_examples=7)
    @given(st.integers())
    def test_method(self, number):
        note("method")

class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        note("machine")

    @rule()
    def go_on(self):
        pass

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=7, stateful_step_count=2)

def test_timeout(request):
    found = request.session.items
    note("timeout", [i.get_closest_marker("timeout") and i.get_closest_marker("timeout").args[0] for i in found][:2])
"""


def run(directory: Path, examples: str) -> list[str]:
    """What the properties were tried with, a line each."""
    told, file = directory / "told", directory / "test_properties.py"
    told.unlink(missing_ok=True)
    file.write_text(PROPERTIES.format(told=str(told)))
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "FENCEPOST_EXAMPLES": examples}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "-c",
        str(TESTS.parent / "pyproject.toml"),
        str(file),
    ]
    done = subprocess.run(
        command, check=False, cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return told.read_text().splitlines()


def test_every_kind_of_property_test_gets_so_many_times_its_examples(tmp_path: Path) -> None:
    """Also one that says its number, is parametrised, is a method, or a state machine; and so much more time."""
    counts = Counter(line.split()[0] for line in run(tmp_path, "3"))
    timeouts = counts.pop("timeout")
    assert counts == {"default": 300, "explicit": 21, "one": 21, "two": 21, "method": 21, "machine": 21}
    assert timeouts == 1


def test_examples_are_fixed_without_it_and_random_with_it(tmp_path: Path) -> None:
    """The same numbers twice, or others."""
    fixed, again = run(tmp_path, ""), run(tmp_path, "")
    assert fixed == again
    assert fixed[-1] == "timeout [None, None]"
    chance = run(tmp_path, "1")  # as many, of the same tests
    assert chance[-1] == "timeout [120.0, 120.0]"
    assert chance[:-1] != fixed[:-1]
