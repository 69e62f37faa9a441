"""`fencepost projector quarantine`: what was set aside, seen and dealt with at the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cli_kit import CHARGE, Run, answer, error, run_fixture, template_fixture, url_fixture  # noqa: F401
from conformance.homes import Home

from fencepost.ledger import log_keys
from fencepost.ledger.positions import Partition, Topic

if TYPE_CHECKING:
    from pathlib import Path

EFFECTS, AGENTS = Partition(Topic.EFFECTS, 0), Partition(Topic.AGENTS, 0)
VALUE = b"\xc3\x01" + bytes(range(256)) * 8
WORDS = ("--evidence", "looked at it", "--by", "alice")
QUARANTINE = ("projector", "quarantine")


@pytest.fixture
def home(url: str, tmp_path: Path) -> Home:
    return Home("embedded", url, tmp_path)


@pytest.fixture
def place(home: Home) -> str:
    """Of a record of the charge that could not be taken."""
    return f"effects/0:{home.poison(EFFECTS, CHARGE.encode(), VALUE)}"


def test_nothing_is_set_aside(run: Run) -> None:
    """An empty list is an answer."""
    assert answer(run(*QUARANTINE, "list", "--json")) == {
        "schema": "fencepost.quarantine.v1", "records": [], "released": 0
    }  # fmt: skip
    assert run(*QUARANTINE, "list").stdout == "Nothing is set aside.\n"
    assert answer(run("status", "--json"))["counts"]["set_aside"] == 0


def test_list_and_status(run: Run, place: str) -> None:
    """Where, which key, what is wrong, when, and whether the key is unsafe; status counts it."""
    [record] = answer(run(*QUARANTINE, "list", "--json"))["records"]
    assert record["place"] == place
    assert (record["partition"], record["key"], record["op_id"]) == ("effects/0", CHARGE, CHARGE)
    assert (record["standing"], record["unsafe"]) == ("unsafe", True)
    assert "undecodable" in record["problem"]
    assert record["time_ms"] > 0
    assert answer(run("status", "--json"))["counts"]["set_aside"] == 1
    table = run(*QUARANTINE, "list").stdout
    assert all(text in table for text in (place, CHARGE, "unsafe", "undecodable", record["version"]))
    assert "set aside        1" in run("status").stdout


def test_show(run: Run, place: str) -> None:
    """The bytes, bounded; the operation's state; and the command line that releases it."""
    values = answer(run(*QUARANTINE, "show", place, "--json", "--bytes", "32"))
    assert values["schema"] == "fencepost.quarantined.v1"
    assert bytes.fromhex(values["raw"]["key_hex"]) == CHARGE.encode()
    assert bytes.fromhex(values["raw"]["value_hex"]) == VALUE[:32]
    assert (values["raw"]["size_bytes"], values["raw"]["cut"]) == (len(VALUE), True)
    assert values["operation"]["status"] == "unsafe"
    assert [f"release {place} --version {values['version']}" in way for way in values["ways_on"]] == [True]
    text = run(*QUARANTINE, "show", place, "--bytes", "40").stdout
    assert "00000000  c3 01 00 01 02" in text
    assert "00000020" in text
    assert "00000030" not in text
    assert f"{len(VALUE) - 40} bytes more" in text
    assert CHARGE in text


def test_release_of_an_operations_record(run: Run, place: str) -> None:
    """Bound to the version that was seen; says the outcome; then it is out of the list, and kept with who and why."""
    version = answer(run(*QUARANTINE, "show", place, "--json"))["version"]
    release = (*QUARANTINE, "release", place, *WORDS, "--json")
    assert "say what became of it" in error(run(*release, "--version", version), 2)["message"]
    assert error(run(*release, "--version", "0.99999", "--committed"), 6)["error"] == "VersionMovedError"
    assert error(run(*release, "--version", version, "--absent"), 3)["error"] == "RefusedError"
    values = answer(run(*release, "--version", version, "--committed", "--result", '{"id": 1}'))
    assert (values["schema"], values["standing"], values["status"]) == ("fencepost.release.v1", "released", "committed")
    assert (values["released_by"], values["evidence"]) == ("alice", "looked at it")
    assert answer(run(*QUARANTINE, "list", "--json")) == {
        "schema": "fencepost.quarantine.v1", "records": [], "released": 1
    }  # fmt: skip
    assert "1 released: see --all" in run(*QUARANTINE, "list").stderr
    [kept] = answer(run(*QUARANTINE, "list", "--all", "--json"))["records"]
    assert (kept["standing"], kept["released_by"]) == ("released", "alice")
    assert error(run(*release, "--version", version, "--committed"), 2)
    assert answer(run("projector", "verify", "--json"))["ok"] is True


def test_release_of_an_agents_record(run: Run, home: Home) -> None:
    """The agent is unsafe, and by the operator's word safe again; there is no outcome to tell."""
    offset = home.poison(AGENTS, log_keys.session("other", "lost").encode(), VALUE)
    shown = answer(run("agents", "show", "other", "--json"))
    assert "set aside" in shown["unsafe"]
    assert answer(run("rollback", "preview", "other", "--checkpoint", "c1", "--json"), 3)["authorised"] is False
    release = (*QUARANTINE, "release", f"agents/0:{offset}", *WORDS, "--json", "--version", f"0.{offset}")
    assert "belongs to no operation" in error(run(*release, "--committed"), 2)["message"]
    assert answer(run(*release))["standing"] == "released"
    assert answer(run("agents", "show", "other", "--json"))["unsafe"] == ""
    assert answer(run("rollback", "preview", "other", "--checkpoint", "c1", "--json"))["authorised"] is True


def test_what_cannot_be_asked(run: Run) -> None:
    """Not a place, nothing there, and options that do not go together."""
    assert error(run(*QUARANTINE, "show", "effects-0", "--json"), 2)["details"]["field"] == "place"
    assert error(run(*QUARANTINE, "show", "effects/0:0", "--json"), 5)["error"] == "NotFoundError"
    release = (*QUARANTINE, "release", "effects/0:0", *WORDS, "--version", "0.0", "--json")
    assert error(run(*release, "--committed", "--absent"), 2)
    assert error(run(*release, "--result", "1"), 2)
    assert error(run(*release, "--accept-risk"), 2)
    assert error(run(*release), 5)
