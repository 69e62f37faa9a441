"""Questions: agents, operations, checkpoints, branches, replay; and export and import."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_kit import CHARGE, DOUBT, Run, answer, error, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

from fencepost.ledger import EffectClass, Ledger

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "line",
    [
        "agents show nobody",
        "ops show mail.send:none",
        "ops list --agent nobody",
        "in-doubt list --agent nobody",
        "in-doubt show mail.send:none",
        "in-doubt probe mail.send:none --module x:y",
        "checkpoints list nobody",
        "checkpoints show nightly none",
        "branch list nobody",
        "branch fork nightly x --checkpoint none",
        "rollback preview nobody --checkpoint c1",
        "replay nightly --since none",
        "replay nobody --since c1",
        "replay nightly --since c1 --branch mian",
        "ops list --agent nobody --stream",
        "ops tail --agent nobody",
    ],
)
def test_what_is_not_there(run: Run, line: str) -> None:
    """What the ledger does not know is exit code 5, and the next step says where to look."""
    values = error(run("--json", *line.split()), 5)
    assert values["error"] == "NotFoundError"
    assert "fencepost" in values["next_step"]


def test_agents(run: Run) -> None:
    """An agent's summary and its details tell the same story."""
    listed = {a["agent_id"]: a for a in answer(run("agents", "list", "--json"))["agents"]}
    assert set(listed) == {"nightly", "other"}
    assert (listed["nightly"]["branches"], listed["nightly"]["open_operations"]) == (2, 1)
    shown = answer(run("agents", "show", "nightly", "--json"))
    assert [o["op_id"] for o in shown["open_operations"]] == [DOUBT]
    assert shown["sessions"][0]["watermark"]["seq"] == shown["sessions"][0]["sealed_seq"]


def test_operations_by_status(run: Run) -> None:
    """A list is narrowed by agent and by status; the status is the one that `show` tells."""

    def ids(*args: str) -> set[str]:
        return {op["op_id"] for op in answer(run("ops", "list", "--json", *args))["operations"]}

    assert ids() == {CHARGE, DOUBT, "docs.read:1"}
    assert ids("--agent", "other") == set()
    assert ids("--status", "in-doubt") == {DOUBT}
    assert ids("--status", "committed", "--agent", "nightly") == {CHARGE, "docs.read:1"}
    assert answer(run("ops", "show", DOUBT, "--json"))["status"] == "in doubt"


def test_operations_by_pages(run: Run) -> None:
    """A page ends with the name to go on behind; filters hold for all pages; a stream gives a line each."""
    first = answer(run("ops", "list", "--json", "--limit", "2"))
    assert [op["op_id"] for op in first["operations"]] == sorted([CHARGE, DOUBT, "docs.read:1"])[:2]
    assert first["next_after"] == first["operations"][-1]["op_id"]
    second = answer(run("ops", "list", "--json", "--limit", "2", "--after", first["next_after"]))
    assert ([op["op_id"] for op in second["operations"]], second["next_after"]) == ([DOUBT], None)
    assert answer(run("ops", "list", "--json", "--limit", "3"))["next_after"] is None
    assert "--after" in run("ops", "list", "--limit", "1").stderr
    by_tool = answer(run("ops", "list", "--json", "--tool", "mail.send"))
    assert [op["op_id"] for op in by_tool["operations"]] == [DOUBT]
    lines = [json.loads(line) for line in run("ops", "list", "--stream", "--json").stdout.splitlines()]
    assert [line["op_id"] for line in lines] == sorted([CHARGE, DOUBT, "docs.read:1"])
    assert {line["schema"] for line in lines} == {"fencepost.operation_summary.v1"}
    text = run("ops", "list", "--stream", "--status", "in-doubt").stdout
    assert text == f"{DOUBT}  mail.send  in doubt  nightly\n"


def test_operation_with_every_fact(run: Run) -> None:
    """An operation is shown with each fact at its position, recorded JSON decoded."""
    values = answer(run("ops", "show", CHARGE, "--json"))
    assert [(f["kind"], f["seq"] > 0) for f in values["facts"]] == [("INTENDED", True), ("COMMITTED", True)]
    assert values["facts"][1]["result"] == values["result"] == {"id": "ch-1"}
    assert values["attempts"][0]["position"] == values["facts"][0]["position"]
    assert values["resource"] == "order:A1"
    text = run("ops", "show", CHARGE).stdout
    assert all(f["position"] in text for f in values["facts"])


def test_tail(run: Run) -> None:
    """The newest facts, oldest first: a line each, of one agent if wanted, as many as wanted."""
    lines = [json.loads(line) for line in run("ops", "tail", "--json").stdout.splitlines()]
    assert {line["schema"] for line in lines} == {"fencepost.fact.v1"}
    assert {frozenset(line) for line in lines} == {
        frozenset({"schema", "partition", "offset", "key", "problem", "fact"})
    }
    kinds = [line["fact"]["kind"] for line in lines]
    assert kinds == ["INTENDED", "COMMITTED", "COMMITTED", "INTENDED", "IN_DOUBT"]
    newest = [json.loads(line) for line in run("ops", "tail", "--json", "-n", "2").stdout.splitlines()]
    assert newest == lines[-2:]
    assert run("ops", "tail", "-n", "0").stdout == ""
    assert run("ops", "tail", "--agent", "other").stdout == ""
    assert run("ops", "tail").stdout.count("\n") == len(lines)


def test_tail_of_an_agent_that_has_done_nothing(run: Run) -> None:
    """It is known, so that there is nothing to tell is the answer."""
    result = run("ops", "tail", "--agent", "other", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_checkpoints(run: Run, url: str) -> None:
    """Checkpoints are listed oldest first; one that does not count is listed with the reason when asked for."""
    with Ledger.open(url) as ledger, ledger.session("nightly") as agent, pytest.raises(Exception, match="registered"):
        agent.checkpoint("c1")
    counted = answer(run("checkpoints", "list", "nightly", "--json"))["checkpoints"]
    assert [c["checkpoint_id"] for c in counted] == ["c1", "c2"]
    everything = answer(run("checkpoints", "list", "nightly", "--json", "--all"))["checkpoints"]
    assert [c["checkpoint_id"] for c in everything][:2] == ["c1", "c2"]
    assert run("checkpoints", "list", "nightly", "--all").exit_code == 0
    shown = answer(run("checkpoints", "show", "nightly", "c1", "--json"))
    assert shown["state_digest"] == "d1"
    assert shown["token"].startswith("[[fencepost:w1:")


def test_fork(run: Run) -> None:
    """A branch is forked once; a second time is a conflict (6)."""
    args = ("branch", "fork", "nightly", "plan-c", "--checkpoint", "c2", "--json")
    assert answer(run(*args))["fork_checkpoint"] == "c2"
    assert error(run(*args), 6)["error"] == "AlreadyExistsError"
    branches = answer(run("branch", "list", "nightly", "--json"))["branches"]
    assert [b["branch_id"] for b in branches] == ["main", "plan-b", "plan-c"]


def test_replay(run: Run) -> None:
    """What a checkpoint does not know, by its id or by its token, in order and with results."""
    by_id = answer(run("replay", "nightly", "--since", "c1", "--json"))["operations"]
    assert [op["op_id"] for op in by_id] == [CHARGE, "docs.read:1", DOUBT]
    assert by_id[0]["result"] == {"id": "ch-1"}
    token = answer(run("checkpoints", "show", "nightly", "c2", "--json"))["token"]
    by_token = answer(run("replay", "nightly", "--since", token, "--json"))["operations"]
    assert by_token == by_id[1:]
    assert answer(run("replay", "nightly", "--since", "c1", "--branch", "plan-b", "--json"))["operations"] == []


def test_replay_of_a_damaged_token(run: Run) -> None:
    """A damaged token is refused (3), not taken for a missing one (5)."""
    token = answer(run("checkpoints", "show", "nightly", "c2", "--json"))["token"]
    assert (
        error(run("replay", "nightly", "--json", "--since", token[:-5] + "0]]"), 3)["error"] == "WatermarkMangledError"
    )


def test_export_and_import(run: Run, tmp_path: Path) -> None:
    """An export, through a file or a pipe, gives the same ledger elsewhere; a second import is a conflict (6)."""
    piped = run("export", "--quiet")
    assert (piped.exit_code, piped.stderr) == (0, "")
    answer(run("export", "out.ndjson", "--json"))
    assert (tmp_path / "out.ndjson").read_text() == piped.stdout
    assert not (tmp_path / "out.ndjson.part").exists()
    before = answer(run("replay", "nightly", "--since", "c1", "--json"))
    for number, (args, stdin) in enumerate([(("out.ndjson",), None), ((), piped.stdout), (("-",), piped.stdout)]):
        target = f"sqlite://{tmp_path}/moved-{number}.db"
        values = answer(run("import", *args, "--url", target, "--json", stdin=stdin))
        assert set(values) == {"schema", "url", "keys"}
        assert answer(run("replay", "nightly", "--since", "c1", "--json", "--url", target)) == before
        assert answer(run("projector", "verify", "--json", "--url", target))["ok"] is True
        assert error(run("import", *args, "--url", target, "--json", stdin=stdin), 6)["error"] == "ConflictError"


def test_cut_import(run: Run, tmp_path: Path) -> None:
    """A file that was cut is refused, and no ledger comes into being."""
    cut = "\n".join(run("export", "--quiet").stdout.splitlines()[:3])
    target = tmp_path / "moved.db"
    assert "line" in error(run("import", "--url", f"sqlite://{target}", "--json", stdin=cut), 2)["details"]
    assert not target.exists()


def test_failed_export_leaves_no_file(run: Run, url: str, tmp_path: Path) -> None:
    """While an operation is owned the ledger is not settled (7), and no file appears."""
    with Ledger.open(url) as ledger, ledger.session("other") as agent:
        attempt = agent.attempt("mail.send", key="18", kind=EffectClass.IRREVERSIBLE).begin()
        assert error(run("export", "out.ndjson", "--json"), 7)["error"] == "StaleProjectionError"
        attempt.commit(None)
    assert not list(tmp_path.glob("out.ndjson*"))
