"""The README's example runs as it stands, and is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fencepost.ledger import Ledger, VerdictKind

README = Path(__file__).resolve().parents[2] / "README.md"


def _example() -> str:
    found = re.search(r"## Example\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_is_at_most_25_lines_long() -> None:
    """A newcomer reads it in one look."""
    assert len([line for line in _example().splitlines() if line.strip()]) <= 25


def test_the_example_runs_and_refunds_once(tmp_path: Path) -> None:
    """The refund runs once, the rollback is refused with its reason, the replay tells the result."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    environment.pop("FENCEPOST_URL", None)
    done = subprocess.run(
        [sys.executable, "-c", _example()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.count("refunding A1") == 1
    assert "is refused: billing.refund" in done.stdout
    assert "replay forward" in done.stdout
    assert done.stdout.rstrip().endswith("{'refund': 'A1', 'cents': 500}")
    assert (tmp_path / "fencepost" / "ledger.db").exists()


def test_the_example_of_an_undo_runs(tmp_path: Path) -> None:
    """As it stands, between a charge and a second look: the plan is carried out, and the rollback is authorised."""
    found = re.search(
        r"```python\n(from fencepost\.ledger import EffectClass, Undo\n.*?)```", README.read_text(), re.DOTALL
    )
    assert found is not None
    declared, _, undone = found.group(1).partition("verdict = ")
    names: dict[str, Any] = {"read_hash": lambda order, cents: f"{order}: as it was before {cents}"}
    with Ledger.open(f"sqlite://{tmp_path / 'ledger.db'}") as ledger:
        with ledger.session("nightly") as agent:
            agent.checkpoint("ckpt-42")
            names |= {"agent": agent, "ledger": ledger}
            exec(declared, names)  # noqa: S102 (the README's own text)
            names["charge"]("A1", 500)
        exec(f"verdict = {undone}", names)  # noqa: S102
        assert names["verdict"].kind is VerdictKind.COMPENSATE_FIRST
        assert names["verdict"].plan.losses == ("receipt:A1",)
        assert ledger.operation(names["charge"].op_id("A1", 500)).operation.round == 2
