"""The command line of undoing: list, plan, approve, verify, run, and what the other commands tell of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_kit import Run, answer, error, resolve, run_fixture, template_fixture, url_fixture  # noqa: F401 - found by their names

from fencepost.ledger import EffectClass, Ledger, Undo, UndoPath

if TYPE_CHECKING:
    from collections.abc import Iterator

A1, A2 = "shop.refund:A1", "shop.refund:A2"
MODULE = """
from pathlib import Path

from fencepost.ledger import Outcome, ProbeAnswer, StateMoved

STATE = Path("state")


def read(op):
    return STATE.read_text()


def recharge(op, payload, idempotency_key):
    if Path("broken").exists():
        raise TimeoutError("no answer")
    STATE.write_text(str(int(STATE.read_text()) - payload["cents"]))
    return {"key": idempotency_key}


def compensators(ledger):
    ledger.compensator("shop.recharge", state_hash=read)(recharge)


def probe(op):
    return ProbeAnswer(Outcome.ABSENT, voided=True)


table = {"shop.recharge": {"function": recharge, "state_hash": read, "probe": probe}}
wrong = {"shop.recharge": {"state_hash": read}}
neither = 5
"""
COMPENSATORS = ("--compensators", "undo_refunds")


@pytest.fixture(name="shop")
def shop_fixture(run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent `shop` with two refunds after its checkpoint, and a module that undoes them."""
    state = tmp_path / "state"
    state.write_text("0")
    (tmp_path / "undo_refunds.py").write_text(MODULE)
    with Ledger.open(url) as ledger, ledger.session("shop") as agent:
        agent.checkpoint("c")

        @agent.effect(
            "shop.refund", kind=EffectClass.COMPENSATABLE, key=lambda order, **_: order, resource="till",
            undo=Undo(action="shop.recharge", state_hash=lambda **_: state.read_text(), irreversible=("mail:{order}",)),
        )  # fmt: skip
        def refund(order: str, cents: int) -> None:
            del order
            state.write_text(str(int(state.read_text()) + cents))

        refund("A1", 5)
        refund("A2", 7)
    yield tmp_path
    monkeypatch.undo()
    import sys  # noqa: PLC0415

    sys.modules.pop("undo_refunds", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def plan_of(run: Run, *args: str) -> dict[str, Any]:
    """A plan in the file `plan.json`."""
    found = answer(run("compensate", "plan", *args, "--out", "plan.json", "--json"))
    assert json.loads(Path("plan.json").read_text()) == found
    return found


ACCEPT = ("--accept-loss", "mail:A1", "--accept-loss", "mail:A2")


def test_list(run: Run, shop: Path) -> None:
    """What stands, how it can be undone or why it cannot; of one agent or of all."""
    found = answer(run("compensate", "list", "shop", "--json"))
    assert [(e["op_id"], e["action"], e["verdict"]) for e in found["effects"]] == [
        (op, "shop.recharge", "PARTIAL_ROLLBACK_REQUIRES_HUMAN") for op in (A1, A2)
    ]
    everything = answer(run("compensate", "list", "--json"))["effects"]
    [charge] = [e for e in everything if e["op_id"] == "billing.charge:A1"]
    assert (charge["action"], "no sealed manifest" in charge["why"]) == ("", True)
    text = run("compensate", "list", "shop").stdout
    assert "shop.recharge" in text
    error(run("compensate", "list", "nobody", "--json"), 5)


def test_from_a_rollback_to_its_end(run: Run, shop: Path) -> None:
    """Authorising says 4 and shows the plan; it is approved, carried out, and the rollback proceeds."""
    text = run("rollback", "preview", "shop", "--checkpoint", "c")
    assert text.exit_code == 4
    assert "COMPENSATE_FIRST" in text.stdout
    assert "shop.recharge" in text.stdout
    verdict = answer(run("rollback", "authorize", "shop", "--checkpoint", "c", "--json"), 4)
    assert [step["op_id"] for step in verdict["plan"]["steps"]] == [A2, A1]
    Path("verdict.json").write_text(json.dumps(verdict))
    approved = answer(
        run("compensate", "approve", "verdict.json", "--by", "ann", "--evidence", "ticket", *ACCEPT, "--json")
    )
    assert (approved["by"], approved["losses"]) == ("ann", ["mail:A2", "mail:A1"])
    checked = answer(run("compensate", "verify", "verdict.json", *COMPENSATORS, "--json"))
    assert (checked["approved"], set(checked["steps"].values())) == (True, {"PARTIAL_ROLLBACK_REQUIRES_HUMAN"})
    done = answer(run("compensate", "run", "verdict.json", "--by", "bob", *COMPENSATORS, "--json"))
    assert (done["approved_by"], [step["now"] for step in done["steps"]]) == ("ann", [True, True])
    assert (shop / "state").read_text() == "0"
    again = answer(run("compensate", "run", "verdict.json", "--by", "bob", *COMPENSATORS, "--json"))
    assert [step["now"] for step in again["steps"]] == [False, False]
    answer(run("rollback", "authorize", "shop", "--checkpoint", "c", "--json"))
    listed = answer(run("compensate", "list", "shop", "--json"))
    assert listed["effects"] == []
    assert [plan["done"] for plan in listed["plans"]] == [True]
    assert "undone" in run("compensate", "list", "shop").stdout


def test_ops_show(run: Run, shop: Path) -> None:
    """An operation shows how it can be undone, and afterwards by whom it was, and what was lost."""
    before = answer(run("ops", "show", A1, "--json"))
    assert (before["verdict"], before["manifest"]["action"]["name"]) == (
        "PARTIAL_ROLLBACK_REQUIRES_HUMAN",
        "shop.recharge",
    )
    assert "shop.recharge" in run("ops", "show", A1).stdout
    plan_of(run, "--op", A1, "--op", A2)
    answer(run("compensate", "run", "plan.json", "--by", "ann", "--evidence", "e", *ACCEPT, *COMPENSATORS, "--json"))
    after = answer(run("ops", "show", A1, "--json"))
    assert (after["status"], after["round"], after["losses"]) == ("free", 2, ["mail:A1"])
    assert [(c["by"], c["evidence"], c["losses"]) for c in after["compensations"]] == [("ann", "e", ["mail:A1"])]
    assert [u["effective"] for u in after["undoings"]] == [True]
    text = run("ops", "show", A1).stdout
    assert "Compensations" in text
    assert "mail:A1" in text
    assert "no sealed manifest" in run("ops", "show", "billing.charge:A1").stdout


def test_plan(run: Run, shop: Path) -> None:
    """JSON on stdout or in a file; by operations or by a checkpoint, never both."""
    values = json.loads(run("compensate", "plan", "shop", "--checkpoint", "c").stdout)
    assert (values["schema"], values["losses"]) == ("fencepost.plan.v1", ["mail:A2", "mail:A1"])
    assert plan_of(run, "--op", A1)["steps"][0]["op_id"] == A1
    assert "Written to plan.json" in run("compensate", "plan", "--op", A1, "--out", "plan.json").stderr
    error(run("compensate", "plan", "--op", "billing.charge:A1", "--json"), 3)
    error(run("compensate", "plan", "--op", "shop.refund:A9", "--json"), 5)
    for wrong in (
        (),
        ("shop",),
        ("--checkpoint", "c"),
        ("shop", "--checkpoint", "c", "--op", A1),
        ("shop", "--op", A1),
    ):
        error(run("compensate", "plan", *wrong, "--json"), 2)


def test_who_runs_a_plan_and_who_approved_it(run: Run, shop: Path) -> None:
    """Two people: the approver by name in the facts, and the runner beside; both are shown."""
    plan_of(run, "--op", A2)
    accept = ("--accept-loss", "mail:A2")
    answer(run("compensate", "approve", "plan.json", "--by", "ann", "--evidence", "ticket", *accept, "--json"))
    assert (
        error(run("compensate", "run", "plan.json", "--by", "", *COMPENSATORS, "--json"), 2)["details"]["field"] == "by"
    )
    assert (shop / "state").read_text() == "12"
    done = answer(run("compensate", "run", "plan.json", "--by", "bob", *COMPENSATORS, "--json"))
    assert done["approved_by"] == "ann"
    shown = answer(run("ops", "show", A2, "--json"))
    for told in (*shown["undoings"], *shown["compensations"]):
        assert (told["by"], told["reason"]) == ("ann", "run by bob")
    assert "run by bob" in run("ops", "show", A2).stdout
    approvals = answer(run("agents", "show", "shop", "--json"))["approvals"]
    assert [(a["by"], a["evidence"]) for a in approvals] == [("ann", "ticket")]
    text = run("agents", "show", "shop").stdout
    assert "Approved plans" in text
    assert "ticket" in text


def test_running_what_nobody_approved_needs_grounds(run: Run, shop: Path) -> None:
    """Without --evidence, or with a blank one, it is refused, and nothing is undone; with it, it is an approval."""
    plan_of(run, "--op", A2)
    line = ("compensate", "run", "plan.json", "--by", "ann", "--accept-loss", "mail:A2", *COMPENSATORS, "--json")
    for grounds in ((), ("--evidence", " ")):
        assert error(run(*line, *grounds), 2)["details"]["field"] == "evidence"
    assert (shop / "state").read_text() == "12"
    assert answer(run("agents", "show", "shop", "--json"))["approvals"] == []
    assert answer(run(*line, "--evidence", "ticket"))["evidence"] == "ticket"
    answer(run(*line))  # it is approved now


@pytest.mark.parametrize("command", ["preview", "authorize"])
def test_the_plan_of_a_rollback_in_a_file(run: Run, shop: Path, command: str) -> None:
    """Written as `compensate` takes it; no file when there is nothing to compensate."""
    verdict = answer(run("rollback", command, "shop", "--checkpoint", "c", "--plan-out", "rollback.json", "--json"), 4)
    assert json.loads(Path("rollback.json").read_text()) == verdict["plan"]
    assert (
        "rollback.json" in run("rollback", command, "shop", "--checkpoint", "c", "--plan-out", "rollback.json").stderr
    )
    refused = run("rollback", command, "nightly", "--checkpoint", "c1", "--plan-out", "none.json")
    assert "no plan was written" in refused.stderr
    assert not Path("none.json").exists()


def test_a_plan_that_is_not_text(run: Run, shop: Path) -> None:
    """The file is named, and exit code 2, like an import of such a file."""
    Path("plan.json").write_bytes(b'{"schema": "\xff"}')
    for line in (("compensate", "verify", "plan.json"), ("import", "plan.json", "--url", f"sqlite://{shop}/x/new.db")):
        told = error(run(*line, "--json"), 2)
        assert "plan.json is not UTF-8" in told["message"]


def test_losses_must_be_accepted(run: Run, shop: Path) -> None:
    """Without each of them by name: exit code 4, and nothing is done."""
    plan_of(run, "--op", A1, "--op", A2)
    for command in (("approve",), ("run", *COMPENSATORS)):
        line = ("compensate", command[0], "plan.json", "--by", "ann", "--evidence", "e", *command[1:], "--json")
        told = error(run(*line, "--accept-loss", "mail:A1"), 4)
        assert told["details"]["losses"] == ["mail:A2"]
    assert (shop / "state").read_text() == "12"
    assert answer(run("compensate", "verify", "plan.json", "--json"), 4)["approved"] is False


def test_a_changed_plan_is_refused(run: Run, shop: Path) -> None:
    """One letter in the file, and its digest does not match any more."""
    plan_of(run, "--op", A1)
    Path("plan.json").write_text(Path("plan.json").read_text().replace('"cents": 5', '"cents": 5000'))
    for command in (("approve", "--by", "m", "--evidence", "e"), ("verify",), ("run", "--by", "m", *COMPENSATORS)):
        told = error(run("compensate", command[0], "plan.json", *command[1:], "--json"), 2)
        assert told["details"]["field"] == "plan"
    Path("plan.json").write_text("no plan")
    error(run("compensate", "verify", "plan.json", "--json"), 2)


def test_blocked(run: Run, shop: Path) -> None:
    """Somebody changed the state: exit code 3, and the newer value stands."""
    plan_of(run, "--op", A1, "--op", A2)
    (shop / "state").write_text("100")
    verified = answer(run("compensate", "verify", "plan.json", *COMPENSATORS, "--json"), 3)
    assert "BLOCKED_CONCURRENT_MUTATION" in verified["steps"].values()
    told = error(
        run("compensate", "run", "plan.json", "--by", "ann", "--evidence", "e", *ACCEPT, *COMPENSATORS, "--json"), 3
    )
    assert told["error"] == "CompensationBlockedError"
    assert (shop / "state").read_text() == "100"


def test_an_inverse_in_doubt(run: Run, shop: Path) -> None:
    """Exit code 4 until it is settled; then the plan goes on."""
    plan_of(run, "--op", A1, "--op", A2)
    (shop / "broken").touch()
    line = ("compensate", "run", "plan.json", "--by", "ann", "--evidence", "e", *ACCEPT, "--json")
    told = error(run(*line, *COMPENSATORS), 4)
    assert told["details"]["op_id"] == f"undo:{A2}:1"
    for command in ("in-doubt", "ops"):
        shown = run(command, "show", A2).stdout
        assert "is being undone by plan" in shown
        assert "nobody knows how" not in shown
    assert "is being undone" in error(run("compensate", "plan", "--op", A2, "--json"), 3)["message"]
    assert "compensate run" in run("in-doubt", "show", A2).stdout
    assert answer(run("compensate", "list", "shop", "--json"))["plans"][0]["steps"][0]["state"] == "in doubt"
    (shop / "broken").unlink()
    error(run(*line, *COMPENSATORS), 4)
    done = answer(run(*line, "--compensators", "undo_refunds:table"))  # has a probe
    assert [step["now"] for step in done["steps"]] == [True, True]
    assert (shop / "state").read_text() == "0"


def test_moved(run: Run, shop: Path) -> None:
    """The operation was settled otherwise since the plan was made: exit code 6."""
    plan_of(run, "--op", A1)
    resolve(run, A1, "--compensated")
    with Ledger.open() as ledger, ledger.session("shop") as agent:
        path = UndoPath(action="shop.recharge", pre_state_hash="h")
        identity = {"order": "A1", "cents": 5}
        with agent.attempt(
            "shop.refund", key="A1", kind=EffectClass.COMPENSATABLE, identity=identity, undo=path
        ) as one:
            assert one.owned
            one.commit(post_state_hash="h")
    plan = answer(run("compensate", "plan", "--op", A1, "--json"))
    Path("now.json").write_text(json.dumps(plan))
    resolve(run, A1, "--compensated")
    assert answer(run("compensate", "verify", "now.json", "--json"))["steps"] == {A1: "UNDONE"}
    plan_of(run, "--op", A2)
    with Ledger.open() as ledger, ledger.session("sibling") as sibling:
        path = UndoPath(action="shop.recharge", pre_state_hash="h")
        identity = {"order": "A2", "cents": 7}
        sibling.attempt("shop.refund", key="A2", kind=EffectClass.COMPENSATABLE, identity=identity, undo=path).begin()
    for command in (
        ("approve", "--by", "a", "--evidence", "e", *ACCEPT),
        ("verify",),
        ("run", "--by", "a", "--evidence", "e", *COMPENSATORS),
    ):
        assert error(run("compensate", command[0], "plan.json", *command[1:], "--json"), 6)["details"]["op_id"] == A2
    error(run("compensate", "plan", "--op", A2, "--json"), 3)


@pytest.mark.parametrize(
    "target",
    ["nothing_here", "undo_refunds:nothing", "undo_refunds:wrong", "undo_refunds:neither", "../../x", ".x", ":", ""],
)
def test_modules_that_do_not_say_how(run: Run, shop: Path, target: str) -> None:
    """The module is named; nothing was begun."""
    plan_of(run, "--op", A1)
    told = error(run("compensate", "run", "plan.json", "--by", "a", "--compensators", target, "--json"), 2)
    assert target in told["message"]
    assert told["details"]["field"] == "compensators"


def test_without_compensators(run: Run, shop: Path) -> None:
    """The missing one is named, exit code 5; what cannot be read is told as unknown."""
    plan_of(run, "--op", A1)
    told = error(run("compensate", "run", "plan.json", "--by", "a", "--evidence", "e", *ACCEPT, "--json"), 5)
    assert told["details"]["actions"] == ["shop.recharge"]
    assert answer(run("compensate", "verify", "plan.json", "--json"), 4)["steps"] == {A1: "UNKNOWN"}


def test_resolving_seals(run: Run, url: str, shop: Path) -> None:
    """An effect in doubt that turns out committed is sealed with the state that it left behind; then it can be undone."""
    with Ledger.open(url) as ledger, ledger.session("shop") as agent:
        path = UndoPath(action="shop.recharge", pre_state_hash="h", payload={"cents": 1})
        with agent.attempt("shop.refund", key="A3", kind=EffectClass.COMPENSATABLE, undo=path) as one:
            assert one.owned
            one.doubt("lost")
    op_id = "shop.refund:A3"
    resolve(run, op_id, "--committed", "--payload", "{}", code=2)
    resolve(run, op_id, "--absent", "--post-state-hash", "x", code=2)
    resolve(run, op_id, "--committed", "--post-state-hash", "x", "--payload", "{", code=2)
    answered = resolve(run, op_id, "--committed", "--post-state-hash", "12", "--payload", '{"cents": 3}')
    assert json.loads(answered.stdout)["sealed"] is True
    plan = answer(run("compensate", "plan", "--op", op_id, "--json"))
    manifest = plan["steps"][0]["manifest"]
    assert (manifest["post_state_hash"], manifest["action"]["payload"]) == ("12", {"cents": 3})


def test_a_commit_that_still_wants_its_seal(run: Run, url: str) -> None:
    """`in-doubt show` writes out the line that seals it, before and after it is settled without the hash."""
    with Ledger.open(url) as ledger, ledger.session("shop") as agent:
        path = UndoPath(action="shop.recharge", pre_state_hash="before", payload={"cents": 5})
        with agent.attempt("shop.refund", key="B1", kind=EffectClass.COMPENSATABLE, undo=path) as attempt:
            attempt.doubt("timeout")
    op_id = "shop.refund:B1"
    assert any("--post-state-hash" in way for way in answer(run("in-doubt", "show", op_id, "--json"))["ways_on"])
    resolve(run, op_id, "--committed")
    told = answer(run("in-doubt", "show", op_id, "--json"))
    assert any("--post-state-hash" in way for way in told["ways_on"])
    assert json.loads(resolve(run, op_id, "--committed", "--post-state-hash", "after").stdout)["sealed"]
    assert answer(run("compensate", "plan", "--op", op_id, "--json"))["verdict"] == "FULL_ROLLBACK_POSSIBLE"
    assert not any("--post-state-hash" in way for way in answer(run("in-doubt", "show", op_id, "--json"))["ways_on"])
