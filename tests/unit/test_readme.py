"""The README's example runs as it stands, and is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fencepost.ledger import EffectClass, Ledger, Outcome, ProbeAnswer, Reconcile, Resume, VerdictKind

README = Path(__file__).resolve().parents[2] / "README.md"


def _example() -> str:
    found = re.search(r"## Example\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def _block(first: str) -> str:
    """The block of code that begins with this line."""
    found = re.search(rf"```python\n({re.escape(first)}\n.*?)```", README.read_text(), re.DOTALL)
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
    declared, _, undone = _block("from fencepost.ledger import EffectClass, Undo").partition("verdict = ")
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


def test_the_way_forward_ends(tmp_path: Path) -> None:
    """Its steps, as they stand, with effects that an operator and a probe settled: once they are taken, the next checkpoint knows all."""
    before, _, after = _block("from fencepost.ledger import Reconcile").partition("# later, restored from that state\n")
    asked, told = Outcome.COMMITTED, []
    names: dict[str, Any] = {"text": "the document", "state": {}, "find_document": {"doc:17": "the document"}.get}
    names["tell_the_agent"] = lambda op_id, result: told.append((op_id, result))
    mail: dict[str, Any] = {"tool": "mail.send", "kind": EffectClass.IRREVERSIBLE}
    with Ledger.open(f"sqlite://{tmp_path / 'ledger.db'}") as ledger:
        with ledger.session("nightly") as agent:
            with agent.attempt(key="0", **mail) as attempt:
                attempt.commit("named nowhere")
            names |= {"agent": agent, "ledger": ledger, "summary": f"send the mails {agent.watermark().token}"}
            exec(before, names)  # noqa: S102 (the README's own text)
            with agent.attempt(key="1", **mail) as attempt:
                attempt.commit("sent")
            for key in ("2", "3"):
                agent.attempt(key=key, **mail).begin().doubt("no answer")
        version = ledger.operation("mail.send:2").operation.version
        ledger.resolve("mail.send:2", outcome="committed", result="by ann", version=version, by="ann", evidence="seen")
        ledger.probe("mail.send")(lambda _: ProbeAnswer(asked, result="by a probe"))
        ledger.run_probe("mail.send:3")
        exec(after, names)  # noqa: S102
        results = {
            "mail.send:0": "named nowhere",
            "mail.send:1": "sent",
            "mail.send:2": "by ann",
            "mail.send:3": "by a probe",
        }
        assert dict(told) == results
        assert isinstance(names["answer"], Reconcile)
        text = f"{names['summary']} {told}"
        whole = ledger.resume("nightly", checkpoint="ckpt-44", summary_generation=1, summary=text)
        assert isinstance(whole, Resume), whole
        assert ledger.preview_rollback("nightly", checkpoint="ckpt-44").kind is VerdictKind.PROCEED


def test_what_a_probe_settles_is_taken_over(tmp_path: Path) -> None:
    """As it stands: the session that runs on knows what was settled beside it."""

    class Provider:
        def find(self, key: str) -> dict[str, str]:
            return {"key": key}

    with Ledger.open(f"sqlite://{tmp_path / 'ledger.db'}") as ledger, ledger.session("nightly") as agent:
        agent.attempt("billing.refund", key="A1", kind=EffectClass.IRREVERSIBLE).begin().doubt("no answer")
        names = {"ledger": ledger, "agent": agent, "provider": Provider()}
        exec(_block("from fencepost.ledger import Outcome, ProbeAnswer"), names)  # noqa: S102
        agent.checkpoint("c")
        assert isinstance(ledger.resume("nightly", checkpoint="c", summary_generation=0), Resume)
        assert ledger.preview_rollback("nightly", checkpoint="c").kind is VerdictKind.PROCEED
