"""A process of an agent, driven by a plan (JSON in its argument); answers one line of JSON a step.

It uses what users use. Steps: charge, refund, compensate, checkpoint, compact, hold, begin, commit, rollback, prune,
close. Points inside `charge` and `refund` at which the plan may kill it, hold it, or raise: "before effect", "after
effect"; inside `compensate`: "before inverse", "after inverse". Points of the protocol at which it may kill or hold:
"before KIND" and "after KIND", where KIND is the fact that is published, on the long way or on the short one (see
`moments.py`). A point that a step names and never comes to ends the process, with an error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fencepost.ledger import AgentSession, EffectClass, EffectNotExecuted, FencepostError, Ledger, Plan

HOLD_S = 90.0
ERRORS = {"TimeoutError": TimeoutError, "EffectNotExecuted": EffectNotExecuted}


class Agent:
    """What the process is and does."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.step: dict[str, Any] = {}
        self.ran = False
        self.passed: set[str] = set()
        self.attempt: Any = None
        self.session: AgentSession
        self.ledger: Ledger

    def at(self, point: str) -> None:
        """Die, wait, or raise here, if the step says so."""
        self.passed.add(point)
        if self.step.get("die") == point:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.step.get("hold") == point:
            self.hold(self.step["name"])
        if self.step.get("raise_at") == point:
            raise ERRORS[self.step["error"]](f"raised {point}")

    def hold(self, name: str) -> None:
        """Say that this point is reached, and wait to be released."""
        signals = Path(self.plan["signals"])
        (signals / f"{name}.held").touch()
        deadline = time.monotonic() + HOLD_S
        while not (signals / f"{name}.go").exists():
            if time.monotonic() > deadline:
                sys.exit(f"nobody released {name}")
            time.sleep(0.01)

    def hit(self, order: str, cents: int) -> None:
        """Change the outside world."""
        with Path(self.plan["hits"]).open("a") as file:
            file.write(f"{order} {cents}\n")
            file.flush()
            os.fsync(file.fileno())

    # -- steps -------------------------------------------------------------------------

    def do(self, step: dict[str, Any]) -> Any:
        self.step, self.ran, self.passed = step, False, set()
        return getattr(self, f"do_{step['do']}")(step)

    def require_passed(self) -> None:
        """End the process with an error where the step that was done never came to a point that it names."""
        named = {self.step[what] for what in ("die", "hold", "raise_at") if what in self.step}
        if missed := named - self.passed:
            sys.exit(f"{self.step} never came to {sorted(missed)}, only to {sorted(self.passed)}")

    def do_charge(self, step: dict[str, Any]) -> Any:
        @self.session.effect(
            "billing.charge",
            kind=EffectClass[step.get("kind", "IRREVERSIBLE")],
            key=lambda order, **_: order,
            identity=("order", "cents"),
            content=("note",),
            **step.get("options", {}),
        )
        def charge(order: str, cents: int, note: str = "") -> dict[str, Any]:
            self.ran = True
            self.at("before effect")
            self.hit(order, cents)
            self.at("after effect")
            return {"order": order, "cents": cents, "note": note, "pid": os.getpid()}

        return charge(step["order"], step["cents"], step.get("note", ""))

    def do_begin(self, step: dict[str, Any]) -> Any:
        """Claim by plain calls; "owned" in the step takes the permit to run."""
        identity = {"order": step["order"], "cents": step["cents"]}
        self.attempt = self.session.attempt(
            "billing.charge", kind=EffectClass.IRREVERSIBLE, key=step["order"], identity=identity, content={"note": ""}
        ).begin()
        if step.get("owned") and self.attempt.owned:
            self.hit(step["order"], step["cents"])
            self.ran = True
        return self.attempt.op_id

    def do_commit(self, step: dict[str, Any]) -> Any:
        self.attempt.commit(step.get("result"))

    def do_refund(self, step: dict[str, Any]) -> Any:
        from conformance.accounts import refund_of  # noqa: PLC0415 (see `main`)

        def at(point: str) -> None:
            self.ran = self.ran or point == "after effect"
            self.at(point)

        refund = refund_of(self.session, Path(self.plan["signals"]), step["action"], at=at, **step.get("options", {}))
        return refund(step["order"], step["account"], step.get("cents", 1))

    def do_compensate(self, step: dict[str, Any]) -> Any:
        """Carry out an exported plan."""
        from conformance.accounts import register  # noqa: PLC0415 (see `main`)

        def at(point: str) -> None:
            self.ran = self.ran or point == "after inverse"
            self.at(point)

        register(self.ledger, Path(self.plan["signals"]), step["action"], at=at, probe=step.get("probe", False))
        report = self.ledger.compensate(
            Plan.load(step["plan"]), approved_by=step.get("by", ""), accept_losses=step.get("accept", ())
        )
        return report.to_dict()

    def do_checkpoint(self, step: dict[str, Any]) -> Any:
        return self.session.checkpoint(step["id"]).token

    def do_compact(self, step: dict[str, Any]) -> Any:
        del step
        return self.session.record_compaction(summary=self.session.watermark().token).generation

    def do_hold(self, step: dict[str, Any]) -> Any:
        self.hold(step["name"])

    def do_die(self, step: dict[str, Any]) -> Any:
        del step
        os.kill(os.getpid(), signal.SIGKILL)

    def do_rollback(self, step: dict[str, Any]) -> Any:
        self.session = self.session.rollback(step["id"], policy=step.get("policy", "strict"))
        return self.session.session_id

    def do_prune(self, step: dict[str, Any]) -> Any:
        return self.session.prune(step["branch"]).kind.value

    def do_close(self, step: dict[str, Any]) -> Any:
        del step
        self.session.close()


def arm(agent: Agent) -> None:
    """Make the points of the protocol reachable: what is published, and whether it was acknowledged yet.

    What is held before its intent is published is held between that and the reading: a moment of the long way.
    """
    from conformance import moments  # noqa: PLC0415 (the only look inside; see `main`)

    moments.watch(
        before=lambda moment: agent.at(f"before {moment.kind}"), after=lambda moment: agent.at(f"after {moment.kind}")
    )
    if "before INTENDED" in {step.get("hold") for step in agent.plan["steps"]}:
        moments.close_the_short_way()


def answer(agent: Agent, value: Any = None, error: BaseException | None = None) -> None:
    """Say what became of a step."""
    told: dict[str, Any] = {"ran": agent.ran, "value": value, "error": ""}
    if error is not None:
        told.update(error=type(error).__name__, message=str(error))
        if isinstance(error, FencepostError):
            told.update(error.to_dict(), error=type(error).__name__, message=str(error))
    print(json.dumps(told), flush=True)  # noqa: T201 (this is its output)


def main() -> None:
    agent = Agent(json.loads(sys.argv[1]))
    plan = agent.plan
    sys.path.insert(0, str(Path(__file__).parents[1]))  # what it shares with the tests
    if plan.get("armed"):
        arm(agent)
    with Ledger.open(plan["url"]) as ledger:
        agent.ledger = ledger
        agent.session = ledger.session(plan["agent"], plan["branch"], resumed_from=plan.get("resumed_from")).open()
        for step in plan["steps"]:
            try:
                value = agent.do(step)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the answer)
                answer(agent, error=error)
            else:
                answer(agent, value)
            agent.require_passed()
        if plan.get("close", True):
            agent.session.close()


if __name__ == "__main__":
    main()
