"""The second half of the demo: one agent's watermarks, rollbacks, and its way forward by replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .demo_hands import ThroughLedger
from .demo_runs import Run, Step
from .demo_text import Printer, counted, shortened
from .demo_world import World
from .facade import Ledger
from .operations import Operation, Status
from .service import AgentWatermark
from .verdicts import Policy, Verdict

SHOWN_AGENTS = 5
SHOWN_REASONS = 3


@dataclass(frozen=True, slots=True)
class Hero:
    """The agent that the story is about: chosen by what the ledger says of it.

    Attributes:
        run: the recorded run of the branch that has the effect.
        step: the call behind that effect.
    """

    agent_id: str
    run: Run
    step: Step


def choose(operations: Sequence[Operation], runs: dict[str, Sequence[Run]], killed: Counter[str]) -> Hero | None:
    """An agent with nothing left in doubt and the most committed effects; one that was killed, if there is one.

    None if no agent has a committed effect and nothing in doubt.

    Args:
        runs: agent → its recorded runs.
        killed: agent → how often it was killed.
    """
    committed: dict[str, list[Operation]] = {}
    undecided: set[str] = set()
    for op in operations:
        agents = {a.intent.agent_id for a in op.attempts.values()}
        if op.status is Status.COMMITTED and op.owner is not None:
            committed.setdefault(op.owner.intent.agent_id, []).append(op)
        elif op.status is not Status.FREE:
            undecided |= agents
    able = [agent for agent in committed if agent not in undecided]
    if not able:
        return None
    agent_id = max(able, key=lambda a: (killed[a] > 0, len(committed[a]), a))
    first = min(committed[agent_id], key=lambda op: op.settled_at)
    branch = first.owner.intent.branch_id if first.owner else ""
    run = next(run for run in runs[agent_id] if run.branch_id == branch)
    step = next(step for step in run.steps if step.writes and step.op_id(agent_id) == first.op_id)
    return Hero(agent_id, run, step)


# -- watermarks ------------------------------------------------------------------------


def tell_watermarks(ledger: Ledger, hero: Hero, agents: Sequence[str], say: Printer) -> None:
    """The watermarks of some agents, branch by branch, and the sessions of one."""
    say.tell(
        "Each session numbers its facts from 1. Its watermark says up to which number all of them are in the "
        "ledger; a checkpoint knows what stands at or below its own. Per agent, of each branch's last session:"
    )
    shown = [hero.agent_id, *(agent for agent in agents if agent != hero.agent_id)][:SHOWN_AGENTS]
    marks = {agent: ledger.watermarks(agent) for agent in shown}
    branches = sorted({m.mark.branch_id for found in marks.values() for m in found})
    rows: list[list[object]] = [["agent", *branches, "sessions", "undecided"]]
    for agent, found in marks.items():
        last = {m.mark.branch_id: m.mark.seq for m in found}
        open_operations = sum(len(m.open_operations) for m in found)
        rows.append([agent, *(last.get(b, "-") for b in branches), len(found), open_operations])
    say.table(rows)
    more = f"and {counted(len(agents) - len(shown), 'agent')} more. " if len(agents) > len(shown) else ""
    say.tell(f"{more}The sessions of {hero.agent_id}:")
    say.table([["branch", "state", "epoch", "watermark"], *map(_session_row, marks[hero.agent_id])], left=2)


def _session_row(found: AgentWatermark) -> list[object]:
    state = "closed" if found.sealed else "live" if found.live else "killed, and fenced by its successor"
    return [found.mark.branch_id, state, found.mark.epoch, found.mark.seq]


# -- rollbacks -------------------------------------------------------------------------


def tell_refused(ledger: Ledger, hero: Hero, say: Printer) -> None:
    """A rollback over effects that cannot be undone."""
    branch = hero.run.branch_id
    say.tell(
        f"{hero.agent_id}/{branch} wants to go back to the checkpoint `start`, where it had done nothing yet. "
        "First a preview, which fences nobody: what would it find, if it then did the same again?"
    )
    preview = ledger.preview_rollback(hero.agent_id, checkpoint="start", branch=branch)
    for outlook, number in Counter(preview.outlook.values()).items():
        say.item(f"{counted(number, 'effect')}: {outlook}")
    verdict = ledger.authorize_rollback(hero.agent_id, checkpoint="start", branch=branch)
    say.tell(f"The guard, under the policy {verdict.policy.value}: {_verdict(verdict)}, because")
    for reason in verdict.reasons[:SHOWN_REASONS]:
        say.item(f"{reason.kind.value}: {reason.text}")
    if len(verdict.reasons) > SHOWN_REASONS:
        say.item(f"and {len(verdict.reasons) - SHOWN_REASONS} more")
    say.tell("Ways on: " + "; ".join(way.value for way in verdict.ways_on) + ".")
    gated = ledger.preview_rollback(hero.agent_id, checkpoint="start", branch=branch, policy=Policy.GATED)
    say.tell(
        f"Under GATED, by which the caller asserts that its op ids are stable, it would be {_verdict(gated)}: "
        f"{counted(len(gated.crossed), 'effect')} gone back over, and absorbed when asked for again."
    )


def tell_replay(ledger: Ledger, hero: Hero, world: World, say: Printer) -> str:
    """The restored agent learns what it has done; returns the id of the checkpoint that it takes then."""
    start = next(c for c in ledger.checkpoints(hero.agent_id) if c.checkpoint_id == "start")
    branch = hero.run.branch_id
    say.tell(
        f"So it goes forward instead. {hero.agent_id}/{branch} is restored from `start` and remembers nothing. It "
        "asks the ledger what happened since, in order; what it takes over counts as known from then on:"
    )
    with ledger.session(hero.agent_id, branch, resumed_from=start.mark, scope=hero.agent_id) as session:
        for number, replayed in enumerate(session.replay_forward(), 1):
            result = shortened(str(replayed.result), 44)
            where = f"{replayed.branch_id} {replayed.epoch}/{replayed.seq}"
            say.write(f"{number:>2}. {replayed.tool} ({where}) {replayed.status}: {result}", indent=5)
        before = len(world.hits())
        outcome = ThroughLedger(session).perform(hero.step, _never)
        say.tell(
            f"It calls {hero.step.tool} again all the same: done {outcome} before, the recorded result comes "
            f"back, and the world has {counted(before, 'line')} before and {len(world.hits())} after."
        )
        checkpoint = f"{branch}/caught-up"
        session.checkpoint(checkpoint)
    return checkpoint


def _never(op_id: str, key: str) -> str:
    raise AssertionError(f"{op_id} ({key}) was to be absorbed")


def tell_authorised(ledger: Ledger, hero: Hero, checkpoint: str, say: Printer) -> bool:
    """A rollback to the checkpoint that knows everything; whether it was authorised."""
    branch = hero.run.branch_id
    say.tell(
        f"The agent has registered `{checkpoint}`, has done nothing since that changes the world, and wants to go "
        "back there. This checkpoint knows every effect:"
    )
    verdict = ledger.authorize_rollback(hero.agent_id, checkpoint=checkpoint, branch=branch)
    say.item(f"{_verdict(verdict)}, rollback {verdict.rollback_id[:8]}")
    with ledger.session(hero.agent_id, branch, scope=hero.agent_id) as session:
        left = session.replay_forward()
        say.item(
            f"its next session begins there with epoch {session.epoch}; it has "
            f"{counted(len(left), 'operation')} to catch up with"
        )
    return verdict.authorised and not left


def _verdict(verdict: Verdict) -> str:
    fenced = "the branch was fenced for the decision" if verdict.fenced else "nobody was fenced"
    return verdict.kind.value if verdict.dry_run else f"{verdict.kind.value} ({fenced})"
