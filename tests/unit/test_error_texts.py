"""What errors tell people to do next: something, always; and never to do the same again where that is not safe."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fencepost.ledger import WayOn, errors

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("ledger", "producer", "consumer") for path in (ROOT / folder).glob("*.py"))
AGAIN = re.compile(
    r"\bretr(y|ies|ying)\b|\btry(ing)? (it )?again\b|\bagain later\b|\bre-?run\b|\brun (it|them) again\b", re.IGNORECASE
)
NOT = re.compile(r"\b(do not|never|must not|not to)\b[^.;]*$", re.IGNORECASE)
DEMANDS = re.compile(r"^[A-Z`]")


def classes() -> dict[str, type[errors.FencepostError]]:
    found = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {name: kind for name, kind in found.items() if issubclass(kind, errors.FencepostError)}


UNSAFE = {name for name, kind in classes().items() if not kind.retryable and issubclass(kind, (errors.RefusedError, errors.UndecidedError, errors.OutcomeUnknownError, errors.ResultNotRecordedError))}  # fmt: skip


def text_of(node: ast.AST) -> str:
    """The text of a string expression; what is filled in stands as "…"."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in parts)
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{text_of(body)}|{text_of(orelse)}"
    return "…"


def raised(path: Path) -> list[tuple[str, int, str, str]]:
    """(class, line, message, next step) of every error that a module makes."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes():
            steps = [text_of(keyword.value) for keyword in node.keywords if keyword.arg == "next_step"]
            message = text_of(node.args[0]) if node.args else ""
            found.append((node.func.id, node.lineno, message, steps[0] if steps else ""))
    return found


def suggests_to_do_it_again(text: str) -> bool:
    """Whether a text says so, other than by forbidding it."""
    return any(not NOT.search(text[: match.start()]) for match in AGAIN.finditer(text))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_refusal_suggests_to_do_the_same_again(path: Path) -> None:
    """A refusal, an open question, and an outcome that nobody knows name other ways on; and every error names one."""
    for kind, line, message, step in raised(path):
        where = f"{path.name}:{line} {kind}: {message} {step}"
        if kind in UNSAFE:
            assert not suggests_to_do_it_again(f"{message} {step}"), where
        if step:
            assert DEMANDS.match(step) or step.startswith(("…", "|")), where


def test_the_search_finds_what_it_looks_for() -> None:
    """It sees many errors, and tells a suggestion from a prohibition."""
    everything = [one for path in SOURCES for one in raised(path)]
    assert len([one for one in everything if one[0] in UNSAFE]) > 20
    assert {"UnsafeRollbackError", "DivergenceHeldError", "OperationInDoubtError"} <= {one[0] for one in everything}
    assert suggests_to_do_it_again("Try again later.")
    assert suggests_to_do_it_again("Wait, then run it again.")
    assert not suggests_to_do_it_again("Read its result; do not run it again.")


def test_ways_on_do_not_either() -> None:
    """What a refused rollback can do instead."""
    assert not [way for way in WayOn if suggests_to_do_it_again(way.value)]
