"""Contexts on the command line: compactions, the latest checkpoint, and whether a restored agent may go on."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from cli_kit import Run, answer, error, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

from fencepost.ledger import EffectClass, FencedError, GenerationConflictError, Ledger

if TYPE_CHECKING:
    from pathlib import Path

OP = "billing.charge:C1"
DOC = "the customer wants it in blue"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(name="summary")
def summary_fixture(url: str) -> str:
    """The summary of an agent that charged once, compacted twice, checkpointed four times, and forked."""
    with Ledger.open(url) as ledger, ledger.session("ctx") as agent:
        agent.checkpoint("k0")
        with agent.attempt("billing.charge", key="C1", kind=EffectClass.IRREVERSIBLE) as one:
            assert one.owned
            one.commit({"id": "ch-17", "cents": 500})
        agent.record_compaction(summary=f"{OP} {agent.watermark().token}", dropped=["call_1"])
        agent.checkpoint("k1")
        agent.fork("plan-b", checkpoint="k1")
        with ledger.session("ctx", "plan-b") as sibling:
            sibling.checkpoint("kb")
        text = f'{OP} gave {{"id":"ch-17","cents":500}}. {agent.watermark().token}'
        agent.record_compaction(generation=3, summary=text, dropped=[("doc:1", DOC), "call_2"])
        agent.checkpoint("k3")
        with pytest.raises(GenerationConflictError):
            agent.checkpoint("odd", generation=7)
    return text


def test_compactions(run: Run, summary: str) -> None:
    """They are listed in order, and shown with their drop manifests: the newest, or that of a generation."""
    listed = answer(run("compactions", "list", "ctx", "--json"))
    assert listed["schema"] == "fencepost.compactions.v1"
    assert [(c["generation"], len(c["dropped"]), c["kept"]) for c in listed["compactions"]] == [
        (1, 1, [OP]),
        (3, 2, [OP]),
    ]
    newest = answer(run("compactions", "show", "ctx", "--json"))
    assert newest["schema"] == "fencepost.compaction.v1"
    assert newest["dropped"] == [
        {"reference": "doc:1", "digest": sha(DOC)}, {"reference": "call_2", "digest": ""}
    ]  # fmt: skip
    assert newest["summary_digest"] == sha(summary)
    assert answer(run("compactions", "show", "ctx", "1", "--json"))["generation"] == 1
    assert answer(run("compactions", "show", "ctx", "--branch", "plan-b", "--json"))["generation"] == 1
    for args, code in (((), 0), (("3",), 0), (("2",), 5), (("--branch", "none"), 5), (("0",), 2)):
        assert run("compactions", "show", "ctx", *args).exit_code == code
    text = run("compactions", "show", "ctx").stdout
    assert all(part in text for part in ("doc:1", sha(DOC), "call_2", OP, newest["token"]))
    assert "doc" not in run("compactions", "list", "ctx").stdout
    assert run("compactions", "list", "nightly").stdout == "No compactions.\n"
    assert error(run("compactions", "list", "nobody", "--json"), 5)["error"] == "NotFoundError"
    assert error(run("compactions", "show", "nightly", "--json"), 5)["error"] == "NotFoundError"


@pytest.mark.usefixtures("summary")
def test_compactions_that_do_not_count(run: Run, url: str) -> None:
    """They are listed when they are asked for, with the reason."""
    with Ledger.open(url) as ledger, ledger.session("ctx") as superseded:
        token = superseded.watermark().token
        with ledger.session("ctx"), pytest.raises(FencedError):
            superseded.record_compaction(generation=9, summary=token)
    assert len(answer(run("compactions", "list", "ctx", "--json"))["compactions"]) == 2
    everything = answer(run("compactions", "list", "ctx", "--all", "--json"))["compactions"]
    assert ["its session had ended" in c["rejected"] for c in everything] == [False, False, True]
    assert "DOES NOT COUNT" in run("compactions", "list", "ctx", "--all").stdout


@pytest.mark.usefixtures("summary")
def test_the_latest_checkpoint(run: Run) -> None:
    """It comes from the ledger, for each branch; the list marks it and shows generations."""
    listed = answer(run("checkpoints", "list", "ctx", "--json"))["checkpoints"]
    told = [(c["checkpoint_id"], c["generation"], c["latest_of"]) for c in listed]
    assert told == [("k0", 0, []), ("k1", 1, []), ("kb", 1, ["plan-b"]), ("k3", 3, ["main"])]
    everything = answer(run("checkpoints", "list", "ctx", "--all", "--json"))["checkpoints"]
    assert "it names generation 7" in everything[-1]["rejected"]
    latest = answer(run("checkpoints", "latest", "ctx", "--json"))
    assert (latest["schema"], latest["checkpoint_id"]) == ("fencepost.checkpoint.v1", "k3")
    assert answer(run("checkpoints", "latest", "ctx", "--branch", "plan-b", "--json"))["checkpoint_id"] == "kb"
    assert "k3" in run("checkpoints", "latest", "ctx").stdout
    assert "LATEST OF" in run("checkpoints", "list", "ctx").stdout
    for args in (("nobody",), ("ctx", "--branch", "none")):
        assert error(run("checkpoints", "latest", *args, "--json"), 5)["error"] == "NotFoundError"


@pytest.mark.usefixtures("summary")
def test_compactions_move_with_their_ledger(run: Run, tmp_path: Path) -> None:
    """After an export and an import generations and drop manifests are the same, and the projection is what the log says."""
    target = f"sqlite://{tmp_path}/moved.db"
    exported = run("export", "--quiet").stdout
    assert run("import", "--url", target, "--quiet", stdin=exported).exit_code == 0
    for line in (("compactions", "list", "ctx", "--json"), ("checkpoints", "list", "ctx", "--json")):
        assert answer(run(*line, "--url", target)) == answer(run(*line))
    assert answer(run("projector", "verify", "--json", "--url", target))["ok"] is True
    assert answer(run("projector", "verify", "--json"))["ok"] is True


def test_no_checkpoint_at_all(run: Run, url: str) -> None:
    """Is not found."""
    with Ledger.open(url) as ledger, ledger.session("bare"):
        pass
    assert error(run("checkpoints", "latest", "bare", "--json"), 5)["details"] == {"field": "checkpoint"}


CHECK = ("resume", "check", "ctx", "--checkpoint")


def test_resume(run: Run, summary: str, tmp_path: Path) -> None:
    """A whole context is 0; the texts come from files and from a pipe."""
    (tmp_path / "summary.txt").write_text(summary)
    (tmp_path / "doc.txt").write_text(DOC)
    line = (*CHECK, "k3", "--summary-generation", "3", "--depends-on", OP, "--json")
    whole = answer(run(*line, "--summary", "summary.txt"))
    assert (whole["schema"], whole["answer"], whole["generation"]) == ("fencepost.resume.v1", "RESUME", 3)
    assert answer(run(*line, "--summary", "-", stdin=summary))["answer"] == "RESUME"
    held = (*line, "--summary", "summary.txt", "--depends-on", "doc:1", "--held", "doc:1", "doc.txt")
    assert answer(run(*held, "--state", "-", stdin=f"note: {DOC}."))["answer"] == "RESUME"
    assert answer(run(*held), 4)["recovered"] == {"doc:1": DOC}
    assert run(*line[:-1], "--summary", "summary.txt").stdout.startswith("answer")


def test_reconcile(run: Run, summary: str) -> None:
    """What has to be learned first is 4, with the effects and their results; an empty summary has lost everything."""
    line = (*CHECK, "k3", "--summary-generation", "3", "--json")
    for stdin in ("the customer asked for a charge", ""):
        told = answer(run(*line, "--summary", "-", stdin=stdin), 4)
        assert [r["kind"] for r in told["reasons"]] == ["SUMMARY_WITHOUT_TOKEN", "EFFECT_NOT_NAMED"]
        assert [(e["op_id"], e["result"]["id"]) for e in told["effects"]] == [(OP, "ch-17")]
    assert answer(run(*line))["answer"] == "RESUME"
    older = answer(run(*CHECK, "k3", "--summary-generation", "1", "--json"), 4)
    assert [r["kind"] for r in older["reasons"]] == ["SUMMARY_OLDER"]
    after = answer(run(*CHECK, "k0", "--summary-generation", "0", "--json"), 4)
    assert [e["op_id"] for e in after["effects"]] == [OP]
    assert answer(run(*CHECK, "never", "--summary-generation", "0", "--json"), 4)["reasons"][0]["kind"] == (
        "CHECKPOINT_NOT_REGISTERED"
    )
    text = run(*CHECK, "k0", "--summary-generation", "0", "--depends-on", OP).stdout
    assert all(part in text for part in ("RECONCILE", "Effects to learn", "Recovered", OP, "ch-17"))
    del summary


@pytest.mark.usefixtures("summary")
def test_something_is_missing(run: Run) -> None:
    """It is 3: the answer is on stdout all the same, and the error says what is missing."""
    digest = sha("what nobody holds")
    line = (*CHECK, "k3", "--summary-generation", "3", "--depends-on", "call_2", "--depends-on", f"other={digest}")
    result = run(*line, "--json")
    assert result.exit_code == 3
    assert '"answer": "RECONCILE"' in result.stdout
    assert '"error": "SummaryReconciliationError"' in result.stderr
    text = run(*line)
    assert text.exit_code == 3
    assert "Missing" in text.stdout
    assert "call_2" in text.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("resume", "check", "nobody", "--checkpoint", "c", "--summary-generation", "0"), 5),
        (("resume", "check", "nightly", "--checkpoint", "c1"), 2),
        (("resume", "check", "nightly", "--checkpoint", "c1", "--summary-generation", "-1"), 2),
        (("resume", "check", "nightly", "--checkpoint", "c1", "--summary-generation", "0", "--summary", "no-file"), 2),
        (("resume", "check", "nightly", "--checkpoint", "c1", "--summary-generation", "0", "--depends-on", ""), 2),
        (("resume", "check", "nightly", "--summary-generation", "0"), 2),
    ],
)
def test_exit_codes(run: Run, args: tuple[str, ...], code: int) -> None:
    """What is not there, and what is a wrong call."""
    assert run(*args).exit_code == code
