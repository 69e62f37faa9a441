"""Errors: what every one of them carries, survives, and says at its end."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
from pathlib import Path

import pytest

import fencepost.ledger
import fencepost.producer
from fencepost.ledger import errors
from fencepost.ledger.errors import FencepostError
from fencepost.ledger.positions import Position

KINDS = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, FencepostError)]
NAMES = {kind.__name__ for kind in KINDS}
SOURCES = [
    path
    for package in (fencepost.ledger, fencepost.producer)
    for folder in package.__path__
    for path in sorted(Path(folder).glob("*.py"))
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickling_and_copying(kind: type[FencepostError]) -> None:
    """With its message, its next step and its fields: it may cross a process."""
    error = kind("it broke.", next_step="Do this.", op_id="x", at=Position(0, 1))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert type(again) is kind
        assert str(again) == "it broke. Do this."
        assert (again.op_id, again.at, again.next_step) == ("x", Position(0, 1), "Do this.")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_plain_data_too(kind: type[FencepostError]) -> None:
    """One schema, that JSON can carry whatever the fields are."""
    details = {"position": Position(0, 1), "seen": {"a", "b"}, "deep": {1: [None, 2.5, object]}}
    plain = json.loads(json.dumps(kind("it broke.", next_step="Do this.", **details).to_dict()))
    assert plain["schema"] == "fencepost.error.v1"
    assert (plain["error"], plain["message"], plain["next_step"]) == (kind.__name__, "it broke.", "Do this.")
    assert plain["retryable"] is kind.retryable
    assert sorted(plain["details"]["seen"]) == ["a", "b"]
    assert plain["details"]["deep"]["1"][:2] == [None, 2.5]


def test_fields_are_attributes_and_others_are_not() -> None:
    """A misspelled field is an AttributeError and not None."""
    error = FencepostError("m", field="scope")
    assert error.field == "scope"
    assert str(error) == "m"
    with pytest.raises(AttributeError, match="fild"):
        _ = error.fild
    blank = FencepostError.__new__(FencepostError)
    with pytest.raises(AttributeError):
        _ = blank.anything


def test_what_may_be_tried_again() -> None:
    """Only what is safe to make again: never a refusal, never an unknown outcome."""
    assert {kind.__name__ for kind in KINDS if kind.retryable} == {"StoreUnavailableError", "StaleProjectionError"}


def test_exit_codes_tell_apart_what_a_caller_can_do() -> None:
    """Usage 2, refused or mangled 3, undecided 4, not found 5, conflict 6, store 7."""
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    assert codes["InvalidArgumentError"] == 2
    assert codes["UnsafeRollbackError"] == codes["FencedError"] == codes["WatermarkMangledError"] == 3
    assert codes["OperationInDoubtError"] == codes["OperationInFlightError"] == 4
    assert codes["NotFoundError"] == 5
    assert codes["OperationConflictError"] == codes["RollbackPendingError"] == 6
    assert codes["StoreUnavailableError"] == codes["StaleProjectionError"] == 7
    assert all(0 < code < 64 for code in codes.values())


def test_usage_errors_are_value_errors() -> None:
    """So that callers who know nothing of Fencepost catch them as such."""
    assert all(issubclass(kind, ValueError) is issubclass(kind, errors.UsageError) for kind in KINDS)


def test_the_tree_in_the_modules_docstring_is_the_tree() -> None:
    """Every class is drawn, below its parent, and nothing else."""
    drawn: dict[str, str] = {}
    line_of: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = next((word for word in line.replace("│", " ").split() if word in NAMES), "")
        if not name:
            continue
        depth = line.index(name)
        line_of[depth] = name
        above = [d for d in line_of if d < depth]
        drawn[name] = line_of[max(above)] if above else ""
    assert drawn.keys() == NAMES
    for name, parent in drawn.items():
        kind = getattr(errors, name)
        assert not parent or issubclass(kind, getattr(errors, parent)), (name, parent)


def raised_calls() -> list[tuple[str, ast.Call]]:
    found: list[tuple[str, ast.Call]] = []
    for path in SOURCES:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = [n for n in nodes if isinstance(n, ast.Call)]
        named = [(c.func.id, c) for c in calls if isinstance(c.func, ast.Name) and c.func.id in NAMES]
        found += [(f"{path.name}:{call.lineno} {name}", call) for name, call in named]
    return found


def test_every_message_ends_with_a_next_step() -> None:
    """Wherever an error is made, it says what the caller can do now; a literal one is a sentence."""
    calls = raised_calls()
    assert len(calls) > 40
    bad = []
    for where, call in calls:
        steps = [k.value for k in call.keywords if k.arg == "next_step"]
        if not steps and not any(k.arg is None for k in call.keywords):
            bad.append(f"{where}: no next step")
        for step in steps:
            ends = step.value.rstrip() if isinstance(step, ast.Constant) and isinstance(step.value, str) else None
            if ends is not None and (not ends or ends[-1] not in ".`)!?"):
                bad.append(f"{where}: {ends!r}")
    assert not bad, "\n".join(bad)


def test_no_next_step_of_a_refusal_says_to_try_again() -> None:
    """A refusal does not become right by repetition."""
    refusals = {kind.__name__ for kind in KINDS if issubclass(kind, (errors.RefusedError, errors.UndecidedError))}
    for where, call in raised_calls():
        if where.rsplit(" ", 1)[1] in refusals:
            text = " ".join(ast.unparse(k.value) for k in call.keywords if k.arg == "next_step").lower()
            assert "try again" not in text, where
            assert "retry" not in text, where
