"""`fencepost branch`: fork, prune, adopt, obligations, report; and where else a pruned branch shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import Run, answer, error, run_fixture, template_fixture, url_fixture

from fencepost.ledger import EffectClass, Ledger, UndoPath
from fencepost.ledger.plans import load

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["run_fixture", "template_fixture", "url_fixture"]
MAIL, STOCK = "mail.send:99", "stock.book:99"


@pytest.fixture
def left_behind(url: str) -> None:
    """Branch plan-a sent a mail that nothing takes back; branch plan-d booked stock, which can be undone."""
    with Ledger.open(url) as ledger, ledger.session("nightly") as main:
        sending: dict[str, Any] = {"key": "99", "kind": EffectClass.IRREVERSIBLE}
        with main.fork("plan-a", checkpoint="c2") as branch, branch.attempt("mail.send", **sending) as attempt:
            attempt.commit("sent")
        undo = UndoPath(action="stock.release", pre_state_hash="before")
        booking: dict[str, Any] = {"key": "99", "kind": EffectClass.COMPENSATABLE, "undo": undo}
        with main.fork("plan-d", checkpoint="c2") as branch, branch.attempt("stock.book", **booking) as attempt:
            attempt.commit("booked", post_state_hash="after")


def test_pruning_a_branch_that_did_nothing(run: Run) -> None:
    """Exit 0: cleared, the checkpoint counts as restored; said again, the same."""
    for _ in range(2):
        told = answer(run("branch", "prune", "nightly", "plan-b", "--by", "alice", "--evidence", "lost", "--json"))
        assert (told["schema"], told["verdict"], told["restored"]) == ("fencepost.prune.v1", "CLEARED", True)
    shown = run("branch", "prune", "nightly", "plan-b")
    assert shown.exit_code == 0
    assert "CLEARED" in shown.stdout


@pytest.mark.usefixtures("left_behind")
def test_an_orphan_and_its_way_out(run: Run) -> None:
    """Exit 3, with the effect named; it is an obligation everywhere until it is adopted, bound to the version seen."""
    told = answer(run("branch", "prune", "nightly", "plan-a", "--json"), 3)
    assert [e["op_id"] for e in told["orphans"]] == [MAIL]
    assert "Orphans" in run("branch", "prune", "nightly", "plan-a").stdout
    for command in (("branch", "obligations"), ("branch", "obligations", "nightly"), ("agents", "show", "nightly"), ("branch", "list", "nightly")):  # fmt: skip
        found = answer(run(*command, "--json"))["obligations"]
        assert [(o["kind"], o["op_id"], o["branch_id"]) for o in found] == [("ORPHAN", MAIL, "plan-a")]
        assert MAIL in run(*command).stdout
    assert answer(run("status", "--json"))["counts"]["obligations"] == 1
    who = ("--agent", "nightly", "--branch", "plan-b", "--by", "alice", "--evidence", "it is right", "--json")
    assert error(run("branch", "adopt", MAIL, *who, "--version", "0.77777"), 6)["error"] == "VersionMovedError"
    adopted = answer(run("branch", "adopt", MAIL, *who))
    assert (adopted["schema"], adopted["status"], adopted["by"]) == ("fencepost.adoption.v1", "committed", "alice")
    assert answer(run("branch", "prune", "nightly", "plan-a", "--json"))["restored"]
    assert answer(run("status", "--json"))["counts"]["obligations"] == 0
    assert "No obligations." in run("branch", "obligations").stdout


@pytest.mark.usefixtures("left_behind")
def test_an_adoption_for_a_branch_that_is_over(run: Run) -> None:
    """Refused with the branch's name and the way on; what was adopted before the branch was pruned stays adopted."""
    run("branch", "prune", "nightly", "plan-a")
    who = ("--agent", "nightly", "--by", "alice", "--evidence", "it is right", "--json")
    told = error(run("branch", "adopt", MAIL, *who, "--branch", "plan-a"), 2)
    assert (told["details"]["field"], "plan-a of nightly is pruned" in told["message"]) == ("branch", True)
    assert "branch that goes on" in told["next_step"]
    answer(run("branch", "adopt", MAIL, *who, "--branch", "plan-b"))
    run("branch", "prune", "nightly", "plan-b")
    assert answer(run("branch", "obligations", "--json"))["obligations"] == []


@pytest.mark.usefixtures("left_behind")
def test_an_adoption_is_released(run: Run) -> None:
    """By name, with grounds, and bound to the version seen: then it is an obligation again."""
    run("branch", "prune", "nightly", "plan-a")
    line = ("branch", "release", MAIL, "--by", "bob", "--evidence", "the wrong person", "--json")
    assert error(run(*line), 5)["error"] == "NotFoundError"
    who = ("--agent", "nightly", "--branch", "plan-b", "--by", "alice", "--evidence", "it is right", "--json")
    seen = answer(run("branch", "adopt", MAIL, *who))["version"]
    error(run("branch", "release", MAIL, "--by", "bob", "--evidence", " ", "--json"), 2)
    assert error(run(*line, "--version", "0.77777"), 6)["error"] == "VersionMovedError"
    told = answer(run(*line, "--version", seen))
    assert (told["schema"], told["released"], told["seen_version"]) == (
        "fencepost.adoption-release.v1",
        ["alice"],
        seen,
    )
    assert [o["op_id"] for o in answer(run("branch", "obligations", "--json"))["obligations"]] == [MAIL]
    assert "the wrong person" in run("ops", "show", MAIL).stdout
    answer(run("branch", "adopt", MAIL, *who))
    assert "alice" in run("branch", "release", MAIL, "--by", "bob", "--evidence", "the wrong person").stdout


def test_a_reported_call_and_its_way_out(run: Run, url: str) -> None:
    """It is an obligation of a pruned branch, and listed, until somebody acknowledges it by name; a blank word is none."""
    with Ledger.open(url) as ledger, ledger.session("nightly") as main, main.fork("plan-a", checkpoint="c2") as branch:
        branch.report_call("shell", kind=EffectClass.IRREVERSIBLE, by="bob", evidence="its history")
    answer(run("branch", "prune", "nightly", "plan-a", "--by", "carol", "--evidence", "lost", "--json"), 3)
    [call] = answer(run("agents", "show", "nightly", "--json"))["reported_calls"]
    assert (call["tool"], call["branch_id"], call["by"], call["evidence"]) == ("shell", "plan-a", "bob", "its history")
    assert call["acknowledged"] is None
    for command in ("agents", "show"), ("branch", "list"):
        text = run(*command, "nightly").stdout
        assert all(word in text for word in ("carol", "lost"))
    text = run("agents", "show", "nightly").stdout
    assert all(word in text for word in ("Reported calls", call["session_id"], "bob", "its history"))
    [open_] = answer(run("branch", "obligations", "--json"))["obligations"]
    assert (open_["session_id"], open_["seq"]) == (call["session_id"], call["seq"])
    for words in ("obligations", "prune nightly plan-a", "list nightly"):
        assert call["session_id"] in run("branch", *words.split()).stdout
    line = ("branch", "acknowledge", "nightly", call["session_id"], str(call["seq"]), "--json")
    error(run(*line, "--by", "dora", "--evidence", " "), 2)
    error(run(*line[:3], "nowhere", "7", "--by", "dora", "--evidence", "e", "--json"), 5)
    error(run("branch", "acknowledge", "nobody", *line[3:], "--by", "dora", "--evidence", "e"), 5)
    told = answer(run(*line, "--by", "dora", "--evidence", "called back"))
    assert (told["acknowledged"]["by"], told["acknowledged"]["evidence"]) == ("dora", "called back")
    assert answer(run(*line, "--by", "emil", "--evidence", "later"))["acknowledged"]["by"] == "dora"
    assert "by dora: called back" in run("agents", "show", "nightly").stdout
    assert answer(run("branch", "obligations", "--json"))["obligations"] == []
    assert answer(run("branch", "prune", "nightly", "plan-a", "--json"))["restored"]
    assert run("projector", "verify").exit_code == 0


@pytest.mark.usefixtures("left_behind")
def test_the_last_branch_that_relied_on_an_orphan(run: Run, url: str) -> None:
    """Exit 3, from the dry run on: nobody is left for whom the pruned branch's mail would stand."""
    with Ledger.open(url) as ledger, ledger.session("nightly", "plan-b") as branch:
        with branch.attempt("mail.send", key="99", kind=EffectClass.IRREVERSIBLE) as attempt:
            assert not attempt.owned
        assert ledger.prune_branch("nightly", "plan-a").restored
    line = ("branch", "prune", "nightly", "plan-b")
    for extra in (("--dry-run",), (), ()):
        told = answer(run(*line, *extra, "--json"), 3)
        assert (told["verdict"], told["restored"]) == ("VIOLATION", False)
        assert [(o["kind"], o["op_id"], o["branch_id"]) for o in told["completed"]] == [("ORPHAN", MAIL, "plan-a")]
        assert "the last that relied on it" in run(*line, *extra).stdout
    adopt = ("branch", "adopt", MAIL, "--agent", "nightly", "--branch", "main", "--by", "alice", "--evidence", "right")
    answer(run(*adopt, "--json"))
    assert answer(run(*line, "--json"))["restored"]


@pytest.mark.usefixtures("left_behind")
def test_a_plan_for_what_can_be_undone(run: Run, tmp_path: Path) -> None:
    """Exit 4: open; the plan is written as it can be read back, and nothing is written when there is none."""
    target = tmp_path / "plan.json"
    result = run("branch", "prune", "nightly", "plan-d", "--plan-out", str(target), "--json")
    told = answer(result, 4)
    plan = load(target.read_text())
    assert [step.op_id for step in plan.steps] == [STOCK]
    assert (plan.cause, plan.digest) == ("prune", told["to_compensate"]["digest"])
    assert plan.digest in result.stderr
    other = tmp_path / "none.json"
    assert "nothing to compensate" in run("branch", "prune", "nightly", "plan-b", "--plan-out", str(other)).stderr
    assert not other.exists()
    assert "To be compensated" in run("branch", "prune", "nightly", "plan-d").stdout


@pytest.mark.usefixtures("left_behind")
def test_a_sibling_that_was_pruned_before_keeps_the_checkpoint_open(run: Run) -> None:
    """Exit 4 although this branch left nothing behind: another one of the same checkpoint did."""
    run("branch", "prune", "nightly", "plan-a")
    told = answer(run("branch", "prune", "nightly", "plan-b", "--json"), 4)
    assert (told["verdict"], told["restored"]) == ("CLEARED", False)
    assert [o["op_id"] for o in told["siblings"]] == [MAIL]
    assert MAIL in run("branch", "prune", "nightly", "plan-b").stdout


@pytest.mark.usefixtures("left_behind")
def test_a_dry_run_closes_nobody(run: Run, url: str) -> None:
    """It says what the pruning would leave behind, with the same exit code, and records nothing."""
    told = answer(run("branch", "prune", "nightly", "plan-a", "--dry-run", "--json"), 3)
    assert (told["dry_run"], told["restored"], [e["op_id"] for e in told["orphans"]]) == (True, False, [MAIL])
    assert run("branch", "prune", "nightly", "plan-b", "--dry-run").exit_code == 0
    assert answer(run("branch", "obligations", "--json"))["obligations"] == []
    with Ledger.open(url) as ledger, ledger.session("nightly", "plan-a") as branch:
        branch.checkpoint("still-open")
    assert run("branch", "prune", "nightly", "plan-a", "--dry-run", "--by", "alice").exit_code == 2


@pytest.mark.usefixtures("left_behind")
def test_list_and_report(run: Run) -> None:
    """Which branch was pruned, what that came to, and what speculation costs by fan-out."""
    run("branch", "prune", "nightly", "plan-a", "--by", "alice")
    found = {b["branch_id"]: b for b in answer(run("branch", "list", "nightly", "--json"))["branches"]}
    assert (found["plan-a"]["pruned"]["verdict"], found["plan-a"]["pruned"]["by"]) == ("VIOLATION", "alice")
    assert (found["plan-a"]["obligations"], found["plan-b"]["obligations"]) == (1, 0)
    assert found["plan-b"]["pruned"] is None
    assert "VIOLATION" in run("branch", "list", "nightly").stdout
    told = answer(run("branch", "report", "nightly", "--json"))
    [row] = told["rows"]
    assert (row["fan_out"], row["forks"], row["pruned"], row["orphans"]) == (3, 3, 1, 1)
    assert answer(run("branch", "report", "--json"))["total"]["orphans"] == 1
    assert "33%" in run("branch", "report").stdout
    assert "Nothing was forked." in run("branch", "report", "other").stdout


def test_what_is_refused(run: Run) -> None:
    """A root branch (2), what does not exist (5), missing words (2); errors are one object with --json."""
    assert "rollback authorize" in error(run("branch", "prune", "nightly", "main", "--json"), 2)["next_step"]
    assert error(run("branch", "prune", "nightly", "nowhere", "--json"), 5)["details"]["field"] == "branch"
    assert error(run("branch", "prune", "nobody", "plan-b", "--json"), 5)["details"]["field"] == "agent"
    assert error(run("branch", "obligations", "nobody", "--json"), 5)["details"]["field"] == "agent"
    assert error(run("branch", "report", "nobody", "--json"), 5)["details"]["field"] == "agent"
    assert run("branch", "adopt", MAIL, "--agent", "nightly", "--branch", "plan-b", "--by", "alice").exit_code == 2
    who = ("--agent", "nightly", "--branch", "plan-b", "--by", "alice", "--evidence", "e", "--json")
    assert error(run("branch", "adopt", "no:such", *who), 5)["details"]["field"] == "op_id"
    doubt = error(run("branch", "adopt", "mail.send:17", *who), 2)
    assert json.dumps(doubt)
    assert "in doubt" in doubt["message"]


def test_forking_from_a_pruned_branch(run: Run, url: str) -> None:
    """Exit 3, and the name stays free."""
    with Ledger.open(url) as ledger, ledger.session("nightly", "plan-b") as branch:
        branch.checkpoint("c-b")
    run("branch", "prune", "nightly", "plan-b")
    assert "pruned" in error(run("branch", "fork", "nightly", "x", "--checkpoint", "c-b", "--json"), 3)["message"]
    assert answer(run("branch", "fork", "nightly", "x", "--checkpoint", "c2", "--json"))["branch_id"] == "x"
