"""Decisions: rollbacks, and what is in doubt."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import CHARGE, DOUBT, MAIL, Run, answer, error, resolve, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

from fencepost.ledger import DivergenceHeldError, EffectClass, Ledger, OperationConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_rollback_in_doubt(run: Run) -> None:
    """While an effect is in doubt a rollback over it is refused: exit code 3, the verdict on stdout."""
    values = answer(run("rollback", "authorize", "nightly", "--checkpoint", "c2", "--json"), 3)
    assert [r["kind"] for r in values["reasons"]] == ["EFFECT_IN_DOUBT"]
    assert values["fenced"] is False
    text = run("rollback", "preview", "nightly", "--checkpoint", "c2")
    assert text.exit_code == 3
    assert text.stderr == ""
    assert "REFUSE" in text.stdout
    assert "settle what is in doubt" in text.stdout


def test_rollback_strict_and_gated(run: Run) -> None:
    """Strict refuses over a committed charge (3); gated authorises it (0), fences, and names what it crosses."""
    resolve(run, DOUBT, "--committed")
    line = ("rollback", "authorize", "nightly", "--checkpoint", "c1", "--json")
    assert answer(run(*line), 3)["verdict"] == "REFUSE"
    preview = answer(run("rollback", "preview", *line[2:], "--policy", "gated"))
    assert (preview["dry_run"], preview["fenced"]) == (True, False)
    result = run(*line, "--policy", "GATED")
    values = answer(result)
    assert (values["verdict"], values["fenced"]) == ("PROCEED_GATED", True)
    assert {effect["op_id"] for effect in values["crossed"]} == {CHARGE, DOUBT}
    assert "fenced" in result.stderr
    rollbacks = answer(run("agents", "show", "nightly", "--json"))["rollbacks"]
    assert [r["verdict"] for r in rollbacks] == ["PROCEED_GATED"]


def test_rollback_proceeds(run: Run) -> None:
    """A checkpoint that knows everything may be gone back to: exit code 0."""
    result = run("rollback", "authorize", "other", "--checkpoint", "c1")
    assert result.exit_code == 0
    assert "PROCEED" in result.stdout


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "WATERMARK_UNREADABLE"),
        ("no token", "WATERMARK_UNREADABLE"),
        ("[[fencepost:w1:dam", "WATERMARK_UNREADABLE"),
    ],
)
def test_restored_state_without_its_token(run: Run, text: str, kind: str) -> None:
    """A restored state that has lost or damaged its token, an empty one too, is told from one that is not given."""
    resolve(run, DOUBT, "--committed")
    line = ("rollback", "preview", "nightly", "--checkpoint", "c2", "--policy", "gated", "--json")
    assert answer(run(*line))["authorised"] is True
    values = answer(run(*line, "--restored", "-", stdin=text), 3)
    assert values["reasons"][0]["kind"] == kind


def test_restored_state_with_its_token(run: Run, tmp_path: Path) -> None:
    """The restored state is read from a file; its own checkpoint's token is accepted, another one's is not."""
    resolve(run, DOUBT, "--committed")
    state = tmp_path / "state.txt"
    line = ("rollback", "preview", "nightly", "--checkpoint", "c2", "--policy", "gated", "--json")
    for checkpoint, code in (("c2", 0), ("c1", 3)):
        token = answer(run("checkpoints", "show", "nightly", checkpoint, "--json"))["token"]
        state.write_text(f"before {token} after")
        answer(run(*line, "--restored", str(state)), code)


def test_in_doubt_list(run: Run, url: str) -> None:
    """What is in flight is listed with --all only; the list itself is exit code 0."""
    with Ledger.open(url) as ledger, ledger.session("other") as agent:
        attempt = agent.attempt("mail.send", key="18", kind=EffectClass.IRREVERSIBLE).begin()
        assert attempt.owned
        plain = answer(run("in-doubt", "list", "--json"))["operations"]
        everything = answer(run("in-doubt", "list", "--all", "--json"))["operations"]
        assert [o["op_id"] for o in plain] == [DOUBT]
        assert {o["op_id"]: o["state"] for o in everything} == {DOUBT: "in doubt", MAIL: "in flight"}
        assert answer(run("in-doubt", "list", "--agent", "other", "--json"))["operations"] == []
        attempt.commit(None)
    assert "Nothing is in doubt." in run("in-doubt", "list", "--agent", "other").stdout


def test_in_doubt_list_tells_what_it_does_not_list(run: Run, url: str) -> None:
    """An empty list says how much is undecided all the same, unless all was asked for or there is nothing."""
    assert "--all" not in run("in-doubt", "list", "--agent", "other").stderr
    with Ledger.open(url) as ledger, ledger.session("other") as agent:
        attempt = agent.attempt("mail.send", key="18", kind=EffectClass.IRREVERSIBLE).begin()
        assert attempt.owned
        result = run("in-doubt", "list", "--agent", "other")
        assert "Nothing is in doubt." in result.stdout
        assert result.stderr == "1 operation is in flight or not heard of yet: see --all\n"
        assert run("in-doubt", "list", "--agent", "other", "--quiet").stderr == ""
        assert "--all" not in run("in-doubt", "list").stderr
        attempt.commit(None)


def test_in_doubt_show_tells_how_to_settle(run: Run) -> None:
    """The ways on are command lines that are bound to the version seen."""
    values = answer(run("in-doubt", "show", DOUBT, "--json"))
    assert values["state"] == "in doubt"
    assert any(f"--version {values['operation']['version']}" in way for way in values["ways_on"])
    settled = answer(run("in-doubt", "show", CHARGE, "--json"))
    assert (settled["state"], len(settled["ways_on"])) == ("", 1)
    assert settled["ways_on"][0].endswith("--compensated")


def test_resolve_committed(run: Run) -> None:
    """An operator's word settles it, with a result and evidence; a second time the version has moved (6)."""
    version = answer(run("ops", "show", DOUBT, "--json"))["version"]
    values = json.loads(resolve(run, DOUBT, "--committed", "--result", '{"id": 7}').stdout)
    assert set(values) == {"schema", "op_id", "outcome", "status", "version", "round", "by"}
    assert (values["schema"], values["status"]) == ("fencepost.resolution.v1", "committed")
    shown = answer(run("ops", "show", DOUBT, "--json"))
    assert shown["result"] == {"id": 7}
    assert (shown["resolutions"][0]["by"], shown["resolutions"][0]["effective"]) == ("alice", True)
    again = run(
        "in-doubt", "resolve", DOUBT, "--absent", "--version", version, "--evidence", "e", "--by", "b", "--json"
    )
    assert error(again, 6)["error"] == "VersionMovedError"


def test_resolve_absent(run: Run) -> None:
    """ABSENT is refused while it cannot be known (3), unless an operator accepts the risk by name."""
    assert json.loads(resolve(run, DOUBT, "--absent", code=3).stderr)["error"] == "RefusedError"
    assert json.loads(resolve(run, DOUBT, "--absent", "--accept-risk").stdout)["status"] == "free"


def test_who_learns_of_what_was_settled_is_told(run: Run) -> None:
    """What takes an effect over is named wherever one is told that a checkpoint lacks, and nowhere else."""
    noted = "takes it over with `replay_forward()`"
    assert noted not in resolve(run, DOUBT, "--absent", "--accept-risk").stderr
    for line in ("replay nightly --since c1", "resume check nightly --checkpoint c1 --summary-generation 0"):
        assert noted in run(*line.split()).stderr
    assert noted not in run("resume", "check", "other", "--checkpoint", "c1", "--summary-generation", "0").stderr
    assert noted not in run("replay", "other", "--since", "c1").stderr


def test_what_an_operator_settled_is_to_be_taken_over(run: Run) -> None:
    """By a session of the agent: a word from outside is in none."""
    assert "own takes it over with `replay_forward()`" in resolve(run, DOUBT, "--committed").stderr


def test_resolve_compensated(run: Run) -> None:
    """A committed effect that was undone outside ends its round; what does not apply is a wrong call (2)."""
    values = json.loads(resolve(run, CHARGE, "--compensated").stdout)
    assert (values["status"], values["round"]) == ("free", 2)
    resolve(run, DOUBT, "--compensated", code=2)


PROBES = """
from fencepost.ledger import Outcome, ProbeAnswer
def sent(op):
    return ProbeAnswer(Outcome.COMMITTED, result={"tool": op.tool}, evidence="log line 7")
def unknown(op):
    return ProbeAnswer(Outcome.UNKNOWN, evidence="no answer")
def broken(op):
    raise OSError("cable")
def odd(op):
    return ProbeAnswer(Outcome.COMMITTED, result={"ids": {1}}, evidence="log line 7")
def halved(op):
    return ProbeAnswer(Outcome.COMMITTED, result="\\ud800", evidence="log line 7")
def nothing(op):
    return None
async def later(op):
    return sent(op)
async def breaks_later(op):
    raise OSError("cable")
async def nothing_later(op):
    return None
def quits(op):
    raise SystemError("away")
probes = {"mail.send": sent}
others = {"sms.send": sent}
number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of probes in the working directory."""
    (tmp_path / "some_probes.py").write_text(PROBES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "some_probes"
    sys.modules.pop("some_probes", None)


@pytest.mark.parametrize("name", ["", ":probes", ":sent", ":later"])
def test_probe(run: Run, module: str, name: str) -> None:
    """A probe is a function, awaited or not, or a mapping of tools to functions; its answer is recorded."""
    values = answer(run("in-doubt", "probe", DOUBT, "--module", f"{module}{name}", "--json"))
    assert set(values) == {"schema", "op_id", "outcome", "evidence", "result", "status", "version"}
    assert (values["outcome"], values["status"]) == ("COMMITTED", "committed")
    assert answer(run("ops", "show", DOUBT, "--json"))["result"] == {"tool": "mail.send"}


@pytest.mark.parametrize("name", ["odd", "halved"])
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_probe_with_a_result_that_is_not_json(run: Run, module: str, name: str, options: tuple[str, ...]) -> None:
    """The commit is recorded and the command done; the result is told as it is, with a note that it was not kept."""
    result = run("in-doubt", "probe", DOUBT, "--module", f"{module}:{name}", *options)
    assert result.exit_code == 0, result.stderr
    assert ("{1}" if name == "odd" else "ud800") in result.stdout
    assert "its result was not: not encodable" in result.stderr
    assert answer(run("ops", "show", DOUBT, "--json"))["status"] == "committed"


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '{"a": NaN}'])
def test_resolve_takes_json_only(run: Run, value: str) -> None:
    """What Python reads and JSON does not have is a wrong call, not a result that gets lost."""
    result = resolve(run, DOUBT, "--committed", "--result", value, code=2)
    assert "not JSON" in result.stderr


def test_probe_that_does_not_know(run: Run, module: str) -> None:
    """UNKNOWN needs a human: exit code 4, and nothing is recorded."""
    values = answer(run("in-doubt", "probe", DOUBT, "--module", f"{module}:unknown", "--json"), 4)
    assert values["status"] == "in doubt"
    text = run("in-doubt", "probe", DOUBT, "--module", f"{module}:unknown")
    assert (text.exit_code, "no answer" in text.stdout) == (4, True)


@pytest.mark.parametrize("name", ["no_such_module", ":none", ":number", ":others", ".x", "", "../../x"])
def test_probe_that_cannot_be_had(run: Run, module: str, name: str) -> None:
    """A module that cannot be loaded, or has no probe for the tool, is a wrong call."""
    target = name if not name or name[0] not in ":." else module + name
    assert error(run("in-doubt", "probe", DOUBT, "--module", target, "--json"), 2)["details"]["field"] == "module"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("broken", "failed: OSError: cable"),
        ("quits", "failed: SystemError: away"),
        ("nothing", "gave NoneType, not a ProbeAnswer"),
        ("breaks_later", "failed: OSError: cable"),
        ("nothing_later", "gave NoneType, not a ProbeAnswer"),
    ],
)
def test_probe_that_fails(run: Run, module: str, name: str, why: str) -> None:
    """A probe that fails or gives no answer is told by its name, in one error, and the operation stays as it was."""
    line = ("in-doubt", "probe", DOUBT, "--module", f"{module}:{name}")
    values = error(run(*line, "--json"), 1)
    assert values["message"].startswith(f"the probe {module}:{name} {why}")
    assert values["details"]["probe"] == f"{module}:{name}"
    assert "Nothing was recorded" in values["next_step"]
    result = run(*line)
    assert "unexpected" not in result.stderr
    assert "Traceback" not in result.stderr
    assert "cable" not in run(*line, "--debug").stdout
    assert answer(run("ops", "show", DOUBT, "--json"))["status"] == "in doubt"


def test_probe_of_a_secret_that_fails(run: Run, url: str, module: str) -> None:
    """What it says may be the secret, so its type is told, also when everything is wanted."""
    with Ledger.open(url) as ledger, ledger.session("payer") as agent:
        attempt = agent.attempt(
            "bank.pay", key="P1", kind=EffectClass.IRREVERSIBLE, content={"card": "cable"}, secret=("card",)
        ).begin()
        attempt.doubt("no answer")
    for name in ("broken", "breaks_later"):
        result = run("in-doubt", "probe", attempt.op_id, "--module", f"{module}:{name}", "--debug")
        assert result.exit_code == 1
        assert "OSError; what it says is not shown" in result.stderr
        assert "cable" not in result.stdout + result.stderr


# -- after a gated rollback ------------------------------------------------------------------


@pytest.fixture
def gone_back(run: Run, url: str) -> str:
    """An agent that went back over a charge, worded its request differently, and is held; the held operation."""
    resolve(run, DOUBT, "--committed")
    line = ("rollback", "authorize", "nightly", "--checkpoint", "c1", "--policy", "gated", "--json")
    verdict = answer(run(*line, "--by", "ann", "--evidence", "the check failed"))
    assert (verdict["by"], verdict["evidence"]) == ("ann", "the check failed")
    with Ledger.open(url) as ledger, ledger.session("nightly") as session:
        with pytest.raises(DivergenceHeldError):
            session.attempt("billing.charge", key="A-1", kind=EffectClass.IRREVERSIBLE, identity={"cents": 50}).begin()
        session.checkpoint("drained")
    return "billing.charge:A-1"


def test_held_and_declared_the_same(run: Run, url: str, gone_back: str) -> None:
    """What waits is listed with what was asked for; declared the same it waits no more, and its result comes back."""
    [waiting] = answer(run("rollback", "held", "nightly", "--json"))["held"]
    assert (waiting["op_id"], waiting["candidates"]) == (gone_back, [CHARGE])
    assert json.loads(waiting["arguments"]) == {"cents": 50}
    text = run("rollback", "held", "nightly").stdout
    assert gone_back in text
    assert CHARGE in text
    line = ("rollback", "declare", "nightly", gone_back, "--same-as", CHARGE, "--by", "ann", "--evidence", "one order")
    values = answer(run(*line, "--json"))
    assert (values["declared_as"], values["same_as"], values["by"]) == ("same", CHARGE, "ann")
    assert answer(run("rollback", "held", "nightly", "--json"))["held"] == []
    assert "Nothing is held." in run("rollback", "held", "nightly").stdout
    with Ledger.open(url) as ledger, ledger.session("nightly") as session:
        again: dict[str, Any] = {"tool": "billing.charge", "key": "A-1", "kind": EffectClass.IRREVERSIBLE}
        attempt = session.attempt(**again, identity={"cents": 50}).begin()
        assert (attempt.owned, attempt.result) == (False, {"id": "ch-1"})
        with pytest.raises(OperationConflictError):
            session.attempt(**again, identity={"cents": 70}).begin()


def test_declared_new_for_good(run: Run, gone_back: str) -> None:
    """The first declaration counts: another one is a conflict (6); it is shown with who made it and why."""
    line = ("rollback", "declare", "nightly", gone_back, "--by", "ann", "--evidence", "another order")
    assert "new" in run(*line, "--new").stdout
    told = error(run(*line, "--same-as", CHARGE, "--json"), 6)
    assert "by ann" in told["message"]
    shown = answer(run("agents", "show", "nightly", "--json"))
    [declared] = shown["declarations"]
    assert (declared["op_id"], declared["declared_as"], declared["evidence"]) == (gone_back, "new", "another order")
    [rollback] = shown["rollbacks"]
    assert (rollback["by"], rollback["evidence"], rollback["policy"]) == ("ann", "the check failed", "GATED")
    assert {effect["op_id"] for effect in rollback["crossed"]} == {CHARGE, DOUBT}
    text = run("agents", "show", "nightly").stdout
    for part in ("the check failed", "another order", CHARGE, "PROCEED_GATED"):
        assert part in text


@pytest.mark.parametrize(
    "options", [(), ("--new", "--same-as", CHARGE), ("--new", "--by", " "), ("--same-as", "nothing")]
)
def test_declared_wrongly(run: Run, gone_back: str, options: tuple[str, ...]) -> None:
    """Neither or both, by nobody, or the same as nothing: a wrong call (2), and it stays held."""
    line = ("rollback", "declare", "nightly", gone_back, "--evidence", "seen", "--by", "ann", *options)
    assert run(*line).exit_code == 2
    assert len(answer(run("rollback", "held", "nightly", "--json"))["held"]) == 1
    assert run("rollback", "held", "nobody").exit_code == 5


def test_declared_in_advance(run: Run, gone_back: str) -> None:
    """What is not held cannot be declared: a wrong call (2) that names the field and where to look; nothing is recorded."""
    line = ("rollback", "declare", "nightly", f"{gone_back}-misspelt", "--evidence", "seen", "--by", "ann")
    for how in (("--new",), ("--same-as", CHARGE)):
        told = error(run(*line, *how, "--json"), 2)
        assert told["details"]["field"] == "op_id"
        assert "fencepost rollback held" in told["next_step"]
    assert answer(run("agents", "show", "nightly", "--json"))["declarations"] == []
