"""Where the ledger is, the global options, and the commands that set it up and look after it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_kit import CHARGE, Run, answer, error, fill, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

if TYPE_CHECKING:
    from pathlib import Path


def test_init_twice(run: Run, tmp_path: Path) -> None:
    """`init` prints the id alone on stdout; again, it changes nothing and prints the same."""
    url = f"sqlite://{tmp_path}/new/ledger.db"
    first = run("init", "--url", url)
    assert first.exit_code == 0
    assert first.stdout.strip().isalnum()
    assert run("init", "--url", url).stdout == first.stdout
    assert answer(run("status", "--url", url, "--json"))["ledger_id"] == first.stdout.strip()


@pytest.mark.parametrize("url", ["./ledger.db", "mysql://x/y", "sqlite://", "kafka://h/p"])
def test_wrong_urls(run: Run, url: str) -> None:
    """What is no store URL is a wrong call."""
    assert error(run("status", "--json", "--url", url), 2)["details"]["field"] == "url"


def test_url_stands_before_and_after(run: Run, url: str, tmp_path: Path) -> None:
    """A global option counts wherever it stands; the one further down the line counts more."""
    none = f"sqlite://{tmp_path}/none.db"
    assert run("--url", none, "status").exit_code == 7
    assert run("status", "--url", none).exit_code == 7
    assert run("--url", none, "status", "--url", url).exit_code == 0
    assert answer(run("agents", "--json", "list", "--url", url))["agents"]


def test_quiet(run: Run) -> None:
    """With --quiet nothing but data and errors is written."""
    assert run("--quiet", "projector", "run").stderr == ""
    assert run("export", "x.ndjson", "--quiet").stderr == ""
    assert run("--quiet", "agents", "show", "nobody").stderr.startswith("Error:")


def test_doctor_refuses_a_broken_guarantee(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guarantee that does not hold is in the table, an error on stderr, and exit code 1."""
    monkeypatch.setattr("fencepost.ledger.embedded_checks.may_corrupt", lambda _: True)
    result = run("doctor", "--json")
    assert result.exit_code == 1
    checks = {c["name"]: c["state"] for c in json.loads(result.stdout)["checks"]}
    assert checks["SQLite"] == "refuse"
    assert json.loads(result.stderr.splitlines()[-1])["error"] == "GuaranteeError"


@pytest.mark.parametrize("args", [(), ("--json",)], ids=["text", "json"])
def test_export_into_a_folder_that_is_not_there(run: Run, tmp_path: Path, args: tuple[str, ...]) -> None:
    """A file that cannot be written is named, with the reason, and nothing is left behind."""
    path = tmp_path / "none" / "out.ndjson"
    result = run("export", str(path), *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{path} cannot be written: No such file or directory" in result.stderr
    assert "unexpected" not in result.stderr
    path.parent.touch()
    assert f"{path} cannot be written: Not a directory" in run("export", str(path)).stderr


def test_replay_since_a_token_of_another_ledger(run: Run, tmp_path: Path) -> None:
    """It is refused with the exit code that the help tells."""
    other = f"sqlite://{tmp_path}/other.db"
    fill(other)
    token = answer(run("checkpoints", "show", "nightly", "c1", "--json", "--url", other))["token"]
    error(run("replay", "nightly", "--since", token, "--json"), 3)
    told = run("replay", "--help").stdout
    assert [line.split()[0] for line in told.splitlines() if "another ledger's" in line] == ["3"]


def test_status_counts(run: Run) -> None:
    """The status counts agents and what is open."""
    values = answer(run("status", "--json"))
    assert values["counts"] == {
        "agents": 2, "open_operations": 1, "in_flight": 0, "need_attention": 1, "set_aside": 0,
        "obligations": 0,
    }  # fmt: skip
    assert [p["partition"] for p in values["partitions"]] == ["effects/0", "agents/0"]
    assert all(p["trusted"] and p["debts"] == 0 for p in values["partitions"])


def test_projector_on_a_file(run: Run) -> None:
    """A ledger in one file needs no projector, has no lag, and is rebuilt into the same answers."""
    result = run("projector", "run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "needs no projector" in result.stderr
    before = answer(run("ops", "show", CHARGE, "--json"))
    rows = answer(run("projector", "lag", "--json"))["partitions"]
    assert [(r["partition"], r["lag"]) for r in rows] == [("effects/0", 0), ("agents/0", 0)]
    incarnations = {p["incarnation"] for p in answer(run("status", "--json"))["partitions"]}
    rebuilt = answer(run("projector", "rebuild", "--json"))["partitions"]
    assert not incarnations & {p["incarnation"] for p in rebuilt}
    after = answer(run("ops", "show", CHARGE, "--json"))
    assert {**before, "age_s": 0} == {**after, "age_s": 0}


def test_verify_with_a_finding(run: Run, tmp_path: Path) -> None:
    """A projection that does not say what the log says needs a human: exit code 4, and the document is named."""
    import apsw  # noqa: PLC0415 - only here

    sql = apsw.Connection(str(tmp_path / "ledger.db"))
    tables = [name for (name,) in sql.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    documents = next(name for name in tables if "document" in name)
    sql.execute(f"DELETE FROM {documents} WHERE key = ? AND collection = 'ops'", (CHARGE,))  # noqa: S608
    sql.close()
    values = answer(run("projector", "verify", "--json"), 4)
    assert values["ok"] is False
    assert any(CHARGE in f["text"] for f in values["findings"])
    text = run("projector", "verify")
    assert (text.exit_code, CHARGE in text.stdout) == (4, True)


@pytest.mark.slow
def test_demo(run: Run, url: str) -> None:
    """The demo holds its promise, and leaves the configured ledger alone."""
    before = answer(run("status", "--json"))["partitions"][0]["applied_offset"]
    values = answer(run("demo", "--tasks", "2", "--json"))
    assert values == {"schema": "fencepost.demo.v1", "ok": True, "exit_code": 0}
    assert answer(run("status", "--json", "--url", url))["partitions"][0]["applied_offset"] == before
