"""Where a plan is to be written is looked at before anything is decided; a decision that stands is told whatever comes after."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Run, answer, error, run_fixture, template_fixture, url_fixture

from fencepost.ledger import EffectClass, Ledger, UndoPath

__all__ = ["run_fixture", "template_fixture", "url_fixture"]

BOOK: dict[str, Any] = {"key": "99", "kind": EffectClass.COMPENSATABLE}
DECISIONS = (
    ("rollback", "authorize", "shop", "--checkpoint", "c", "--plan-out"),
    ("branch", "prune", "crew", "plan-d", "--plan-out"),
)
MAKING = (
    ("rollback", "preview", "shop", "--checkpoint", "c", "--plan-out"),
    ("compensate", "plan", "shop", "--checkpoint", "c", "--out"),
)


@pytest.fixture(autouse=True)
def shop(url: str) -> None:
    """An agent `shop` that did what can be undone after its checkpoint, and an agent `crew` that did so on a branch."""
    undo = UndoPath(action="stock.release", pre_state_hash="before")
    with Ledger.open(url) as ledger, ledger.session("shop") as main, ledger.session("crew") as crew:
        main.checkpoint("c")
        with main.attempt("stock.take", undo=undo, **BOOK) as attempt:
            attempt.commit("taken", post_state_hash="after")
        crew.checkpoint("c")
        with crew.fork("plan-d", checkpoint="c") as branch, branch.attempt("stock.book", undo=undo, **BOOK) as attempt:
            attempt.commit("booked", post_state_hash="after")


@pytest.mark.parametrize("command", [*DECISIONS, *MAKING], ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize("target", ["missing/plan.json", "file/plan.json", "folder"])
def test_a_place_that_cannot_be_written_is_refused_first(
    run: Run, tmp_path: Path, command: tuple[str, ...], target: str
) -> None:
    """Exit 2 with the option's name, before anything is decided or fenced."""
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    told = error(run(*command, target, "--json"), 2)
    assert command[-1] in told["message"]
    assert target in told["message"]
    assert "nexpected" not in told["message"]
    shown = [answer(run("agents", "show", agent, "--json")) for agent in ("shop", "crew")]
    assert [agent["rollbacks"] for agent in shown] == [[], []]
    assert {branch["closed"] for agent in shown for branch in agent["branches"]} == {""}


@pytest.mark.parametrize("command", DECISIONS, ids=lambda command: " ".join(command[:2]))
def test_a_decision_is_told_though_its_plan_cannot_be_written(
    run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full by then: the verdict, its exit code, and the note of the fence are there all the same."""

    def full(path: Path, *_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    result = run(*command, "plan.json", "--json")
    told = answer(result, 4)
    assert (told.get("plan") or told["to_compensate"])["steps"]
    assert "plan.json cannot be written: No space left on device." in result.stderr
    assert "`fencepost compensate plan`" in result.stderr
    if command[0] == "rollback":
        assert "The branch is fenced" in result.stderr


def test_a_plan_that_cannot_be_written_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was decided it is one like that of an export."""

    def full(path: Path, *_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    told = error(run(*MAKING[1], "plan.json", "--json"), 1)
    assert told["details"] == {"file": "plan.json"}
