"""What can be asked of a ledger, as coroutines on the engine's loop. Both faces call these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import (
    acknowledging,
    adopting,
    adoption,
    divergence,
    forks,
    listing,
    opening,
    pruned_branches,
    pruning,
    quarantine,
    resolutions,
    rollbacks,
    sessions,
)
from .argument_checks import check_flag, check_text
from .asked import as_outcome, no_watermark
from .calls import check_class, check_order_safe
from .compensation_service import CompensationService
from .contexts import Checkpoint
from .divergence import HeldAttempt
from .engine import Engine
from .errors import InvalidArgumentError, NotFoundError, no_such_branch, not_in_ledger
from .facts import AgentFact, EffectClass
from .identity import check_id, check_op_id
from .lineage import ROOT, Session
from .listing import Wanted, check_agent
from .operations import Operation, Status
from .previews import Asked
from .prune_verdicts import OpenObligation, PruneVerdict
from .quarantine import QuarantinedDetails, QuarantinedRecord
from .replay import ReplayedOperation, replay_forward
from .resolutions import OpenOperation, ProbeAnswer
from .speculation import SpeculationReport
from .verdicts import Policy, Verdict, Word
from .view import AgentView, OperationView, ReportedFact, age_s
from .watermarks import Point, Watermark

T = TypeVar("T")
Probe = Callable[[Operation], ProbeAnswer]
TAKEN_OVER_AGAIN = 3
"""How often what a session takes over is read, while effects among it are being undone."""


@dataclass(frozen=True, slots=True)
class AgentWatermark:
    """How far the ledger knows an agent's branch, and as of when.

    Attributes:
        mark: the low-water mark: every fact up to it is in the ledger.
        highest_seq: the highest number seen, which is more while facts are under way.
        open_operations: op_ids that this branch owns and has not decided.
        age_s: age of the answer, seconds.
    """

    mark: Watermark
    highest_seq: int
    session_id: str
    live: bool
    sealed: bool
    open_operations: tuple[str, ...]
    age_s: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **self.mark.to_dict(), "highest_seq": self.highest_seq, "session_id": self.session_id,
            "live": self.live, "sealed": self.sealed, "open_operations": list(self.open_operations),
            "age_s": round(self.age_s, 3),
        }  # fmt: skip


class Service:
    """The questions and orders of a ledger.

    Args:
        probes: tool → the probe that finds out what became of its operations.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.probes: dict[str, Probe] = {}
        self.compensation = CompensationService(engine, self.probes)

    # -- sessions and branches ---------------------------------------------------------

    async def open_session(
        self, agent_id: str, branch_id: str, *, resumed_from: str | Watermark | None, scope: str
    ) -> sessions.SessionState:
        """Open a session; see `opening.open_session`."""
        check_id("agent", agent_id, limit=200)
        check_id("branch", branch_id, limit=200)
        if isinstance(resumed_from, str):
            resumed_from = Watermark.parse(resumed_from)
        if resumed_from is not None and not isinstance(resumed_from, Watermark):
            raise no_watermark("resumed_from", resumed_from)
        return await opening.open_session(
            self.engine, agent_id, branch_id, resumed_from=resumed_from, scope=scope or agent_id
        )

    async def fork(self, agent_id: str, branch_id: str, *, checkpoint_id: str) -> None:
        """Begin a branch at a checkpoint."""
        check_id("branch", branch_id, limit=200)
        await forks.fork(self.engine, agent_id, branch_id, checkpoint_id=checkpoint_id)

    async def prune_branch(self, agent_id: str, branch_id: str, *, word: Word) -> PruneVerdict:
        """Close a branch for good; see `pruning.prune`."""
        check_id("branch", branch_id, limit=200)
        return await pruning.prune(self.engine, agent_id, branch_id, word=word)

    async def preview_prune(self, agent_id: str, branch_id: str) -> PruneVerdict:
        """What pruning it would leave behind; see `pruning.preview`."""
        check_id("branch", branch_id, limit=200)
        return await pruning.preview(self.engine, agent_id, branch_id)

    async def prune_from(self, state: sessions.SessionState, branch_id: str, *, word: Word) -> PruneVerdict:
        """A session prunes a branch of its agent. Raises FencedError if it is over; its own ends it."""
        state.require_live()
        await state.drain()
        session = (await self.agent(state.agent_id)).agent.sessions.get(state.session_id)
        if session is None or not session.live:
            state.ended = session.ended if session and session.ended else "it is not known"
            state.require_live()
        verdict = await self.prune_branch(state.agent_id, branch_id, word=word)
        if branch_id == state.branch_id:
            self.engine.stop_beating(state.session_id)
            state.ended = f"prune {verdict.prune_id}"
        return verdict

    async def adopt(self, op_id: str, *, by: str, evidence: str, version: str, **place: str) -> Operation:
        """Let a committed effect stand by an operator's word; see `adopting.adopt`."""
        check_op_id(op_id)
        return await adopting.adopt(
            self.engine,
            op_id,
            by=check_id("by", by, limit=200),
            evidence=check_id("evidence", evidence, limit=2000),
            version=check_id("version", version),
            **place,
        )

    async def release_adoption(self, op_id: str, *, by: str, evidence: str, version: str) -> Operation:
        """Take back what operators adopted by name; see `adopting.release`."""
        return await adopting.release(
            self.engine,
            check_op_id(op_id),
            by=check_id("by", by, limit=200),
            evidence=check_id("evidence", evidence, limit=2000),
            version=check_id("version", version),
        )

    async def obligations(self, agent_id: str | None) -> list[OpenObligation]:
        """What pruned branches still ask for, oldest first."""
        return await pruned_branches.obligations(self.engine, agent_id)

    async def speculation_report(self, agent_id: str | None) -> SpeculationReport:
        """What speculation left behind, by fan-out."""
        return await pruned_branches.report(self.engine, agent_id)

    async def checkpoint(
        self,
        state: sessions.SessionState,
        checkpoint_id: str,
        standing: sessions.Standing | None = None,
        *,
        state_digest: str,
        generation: int | None,
    ) -> Watermark:
        """Register a checkpoint; see `sessions.checkpoint`."""
        check_id("checkpoint", checkpoint_id)
        return await sessions.checkpoint(
            state, checkpoint_id, state_digest=state_digest, generation=generation, standing=standing
        )

    async def report_call(
        self, state: sessions.SessionState, tool: str, kind: EffectClass, *, order_safe: bool, word: Word
    ) -> None:
        """Record a call that bypassed the ledger."""
        check_id("tool", tool, limit=200)
        effect_class = check_class(kind)
        check_order_safe(effect_class, order_safe=order_safe)
        await sessions.report_call(state, tool, effect_class, order_safe=order_safe, word=word)

    async def roll_back(
        self, state: sessions.SessionState, checkpoint_id: str, policy: Policy, restored: str, *, word: Word
    ) -> sessions.SessionState:
        """A session that rolls itself back: the successor's state. Raises UnsafeRollbackError."""
        await state.drain()
        verdict = await self.authorize_rollback(
            state.agent_id,
            checkpoint=checkpoint_id,
            policy=policy,
            branch_id=state.branch_id,
            restored=restored,
            word=word,
        )
        if verdict.fenced:
            self.engine.stop_beating(state.session_id)
            state.ended = f"rollback {verdict.rollback_id}"
        verdict.raise_for_refusal()
        return await self.open_session(state.agent_id, state.branch_id, resumed_from=None, scope=state.scope)

    # -- agents ------------------------------------------------------------------------

    async def agents(self) -> list[str]:
        """The ids of all agents."""
        return await self.engine.view.agents()

    async def agent(self, agent_id: str) -> AgentView:
        """An agent's structure and checkpoints."""
        return await self.engine.view.known_agent(agent_id)

    async def checkpoints(self, agent_id: str) -> list[Checkpoint]:
        """The checkpoints that count, oldest first."""
        return list((await self.agent(agent_id)).checkpoints.values())

    async def watermark(self, agent_id: str, branch_id: str) -> AgentWatermark:
        """Up to where a branch's facts are complete. Raises NotFoundError."""
        view = await self.agent(agent_id)
        branch = view.agent.branches.get(branch_id)
        if branch is None or branch.head is None:
            raise NotFoundError(
                f"branch {branch_id} of {agent_id} has no session yet.",
                next_step="See its branches with `fencepost agents show`.",
                field="branch",
            )
        return await self._watermark(view, branch.head, await self.engine.view.open_operations())

    async def watermarks(self, agent_id: str) -> list[AgentWatermark]:
        """The watermark of every session of an agent that was accepted, in log order."""
        view = await self.agent(agent_id)
        accepted = [s for s in view.agent.sessions.values() if not s.rejected]
        undecided = await self.engine.view.open_operations()
        return [await self._watermark(view, session, undecided) for session in accepted]

    async def _watermark(self, view: AgentView, session: Session, undecided: Sequence[OperationView]) -> AgentWatermark:
        agent_id = view.agent.agent_id
        written, highest = await self.engine.view.progress(session, view.checkpoint_facts)
        owned = [
            o.operation.op_id
            for o in undecided
            if o.operation.status in {Status.OWNED, Status.IN_DOUBT}
            and o.operation.owner is not None
            and o.operation.owner.intent.session_id == session.session_id
        ]
        mark = Watermark(self.engine.ledger_id, agent_id, session.branch_id, session.epoch, written)
        return AgentWatermark(
            mark,
            highest,
            session.session_id,
            session.live and await self.engine.lives(session.session_id),
            session.sealed_seq is not None,
            tuple(sorted(owned)),
            age_s(view.header),
        )

    # -- operations --------------------------------------------------------------------

    async def operation(self, op_id: str) -> OperationView:
        """One operation with all its facts. Raises NotFoundError."""
        view = await self.engine.view.operation(check_op_id(op_id))
        if not view.facts and not view.seen.unsafe:
            raise not_in_ledger(op_id)
        return view

    async def operations(self, wanted: Wanted) -> list[OperationView]:
        """The operations that are asked for, ordered by op_id. Raises NotFoundError for an agent that nobody has seen."""
        found = [view async for page in listing.pages(self.engine, wanted) for view in page]
        return await self._of_known(wanted.agent_id, found)

    async def operation_names(self, wanted: Wanted) -> list[str]:
        """The op_ids that may be asked for, in order. Raises NotFoundError for an agent that nobody has seen."""
        return await self._of_known(wanted.agent_id, await listing.names(self.engine, wanted))

    async def _of_known(self, agent_id: str | None, found: list[T]) -> list[T]:
        """What was found; where that is nothing, of an agent that is known: a misspelt one has nothing either."""
        if agent_id and not found:
            await self.engine.view.known_agent(agent_id)
        return found

    async def operations_named(self, op_ids: Sequence[str], wanted: Wanted) -> list[OperationView]:
        """Those of these operations that are asked for, ordered by op_id."""
        return await listing.named(self.engine, op_ids, wanted)

    async def replay_forward(
        self, agent_id: str, *, since: str | Watermark | Point, branch_id: str | None = None
    ) -> list[ReplayedOperation]:
        """What `since` (a checkpoint id, a token, a watermark) does not know, in order.

        Raises NotFoundError for an agent, a checkpoint, or a branch that is none.
        """
        view = await self.agent(agent_id)
        if branch_id is not None and branch_id not in view.agent.branches:
            raise no_such_branch(agent_id, branch_id)
        point = await self._point(view, since)
        operations = [o.seen for o in await self.engine.view.agent_operations(agent_id)]
        absorbed = await self.engine.view.absorbed(agent_id)
        elsewhere = {op_id for op_id, _ in absorbed} - {seen.operation.op_id for seen in operations}
        others = await asyncio.gather(*(self.engine.view.operation(op_id) for op_id in sorted(elsewhere)))
        operations += [other.seen for other in others]
        open_at = view.context.open_at(point)
        replayed = replay_forward(view.agent, operations, absorbed, since=point, open_at=open_at)
        return [op for op in replayed if branch_id is None or op.branch_id == branch_id]

    async def _point(self, view: AgentView, since: str | Watermark | Point) -> Point:
        if isinstance(since, Point):
            return since
        if isinstance(since, str):
            found = Watermark.find(since)
            if found is None:
                registered = view.checkpoints.get(since)
                if registered is None:
                    raise NotFoundError(
                        f"since: {since!r} is neither a watermark token nor a checkpoint of {view.agent.agent_id}.",
                        next_step="List checkpoints with `fencepost checkpoints list`.",
                        field="since",
                    )
                if registered.mark is None:
                    return ROOT
                found = registered.mark
            since = found
        if not isinstance(since, Watermark):
            raise no_watermark("since", since)
        await opening.check_watermark(self.engine, view, since)
        return since.point

    async def take_over(self, state: sessions.SessionState) -> list[ReplayedOperation]:
        """Replay forward into a session: what is committed is absorbed, so its checkpoints know it.

        What is undone before it can be seen that the session relies on it is read anew.
        """
        since = Point(state.epoch, state.sequence.last)
        replayed: list[ReplayedOperation] = []
        for _ in range(TAKEN_OVER_AGAIN):
            replayed = await self.replay_forward(state.agent_id, since=since)
            taken = {(o.op_id, o.round): o.tool for o in replayed if o.status == Status.COMMITTED.value}
            for (op_id, round_number), tool in taken.items():
                await state.note_absorbed(op_id, round_number, tool)
            if await adoption.all_stand(state, taken):
                break
        return replayed

    # -- the guard ---------------------------------------------------------------------

    async def authorize_rollback(
        self, agent_id: str, *, checkpoint: str, policy: Policy, branch_id: str, restored: str, word: Word
    ) -> Verdict:
        """Decide on a rollback; see `rollbacks.authorize`."""
        check_id("checkpoint", checkpoint)
        return await rollbacks.authorize(
            self.engine, agent_id, checkpoint, policy=policy, branch_id=branch_id, restored=restored, word=word
        )

    async def declare(self, agent_id: str, op_id: str, *, same_as: str | None, by: str, evidence: str) -> AgentFact:
        """An operator says what a held attempt is; see `divergence.declare`."""
        word = divergence.operators_word(by, evidence)
        return await divergence.declare(self.engine, agent_id, op_id, same_as=same_as, word=word)

    async def acknowledge_call(self, agent_id: str, session_id: str, seq: int, *, by: str, evidence: str) -> AgentFact:
        """An operator takes note of a reported call; see `acknowledging.acknowledge`."""
        check_id("session", session_id)
        word = divergence.operators_word(by, evidence)
        return await acknowledging.acknowledge(self.engine, agent_id, session_id, seq, word=word)

    async def reported_calls(self, agent_id: str) -> list[ReportedFact]:
        """The reported calls of an agent, acknowledged ones included. Raises NotFoundError."""
        await self.engine.view.known_agent(agent_id)
        return await self.engine.view.reported(agent_id)

    async def held(self, agent_id: str) -> list[HeldAttempt]:
        """What waits to be declared after a gated rollback, oldest first."""
        return await divergence.held(self.engine, agent_id)

    async def preview_rollback(self, asked: Asked) -> Verdict:
        """Decide without fencing anybody; see `rollbacks.preview`."""
        check_id("checkpoint", asked.checkpoint_id)
        return await rollbacks.preview(
            self.engine, asked.agent_id, asked.checkpoint_id,
            policy=asked.policy, branch_id=asked.branch_id, restored=asked.restored,
        )  # fmt: skip

    def preview_rollback_here(self, asked: Asked) -> Verdict | None:
        """The same at once, in this thread, where it was asked before and nothing has moved; else None."""
        return rollbacks.preview_here(self.engine, asked)

    # -- in doubt ----------------------------------------------------------------------

    async def in_doubt(self, agent_id: str | None) -> list[OpenOperation]:
        """Operations that need a probe or a human, oldest first; what is in flight is not among them."""
        return [item for item in await self.open_operations(agent_id) if item.state != "in flight"]

    async def open_operations(self, agent_id: str | None) -> list[OpenOperation]:
        """Everything undecided, what is in flight included. Raises NotFoundError for an agent that nobody has seen."""
        agent_id = check_agent(agent_id)
        return await self._of_known(agent_id, await resolutions.open_operations(self.engine, agent_id=agent_id))

    async def resolve(self, op_id: str, **values: Any) -> Operation:
        """Settle an operation by version; see `resolutions.resolve`."""
        check_op_id(op_id)
        values["by"] = check_id("by", values["by"], limit=200)
        values["evidence"] = check_id("evidence", values["evidence"], limit=2000)
        check_flag("accept_risk", values["risk_accepted"])
        for name in ("version", "post_state_hash"):
            check_text(name, values[name])
        resolutions.require_kept(values["result"], self.engine.limits.max_result_bytes)
        outcome = as_outcome(values.pop("outcome"), "Choose committed, absent, or compensated.")
        return await resolutions.resolve(self.engine, op_id, outcome, **values)

    async def probe(self, op_id: str, *, by: str) -> tuple[ProbeAnswer, Operation]:
        """Ask the tool's probe and record its answer. Raises NotFoundError without a probe."""
        check_id("by", by, limit=200)
        found = await resolutions.open_operations(self.engine)
        item = next((i for i in found if i.operation.op_id == op_id), None)
        if item is None:
            view = await self.engine.view.operation(op_id)
            if not view.facts and not view.seen.unsafe:
                raise not_in_ledger(op_id)
            raise NotFoundError(
                f"operation {op_id} is not open.",
                next_step="List what is open with `fencepost in-doubt list`.",
                field="op_id",
            )
        ask = self.probes.get(item.operation.tool)
        if ask is None:
            raise NotFoundError(
                f"no probe is registered for the tool {item.operation.tool}.",
                next_step="Register one with `@ledger.probe(tool)`, or resolve it by hand.",
                field="tool",
            )
        return await resolutions.probe(self.engine, item, ask, by=by)

    # -- what was set aside ------------------------------------------------------------

    async def quarantine(self) -> list[QuarantinedRecord]:
        """What was set aside, in the order of partitions and offsets."""
        return await quarantine.listed(self.engine)

    async def quarantined(self, place: str) -> QuarantinedDetails:
        """One record of it with its bytes; see `quarantine.shown`."""
        return await quarantine.shown(self.engine, check_text("place", place))

    async def release(
        self, place: str, *, version: str, by: str, evidence: str, outcome: str | None, **more: Any
    ) -> QuarantinedRecord:
        """Deal with such a record; see `quarantine.release`."""
        check_text("place", place)
        check_id("by", by, limit=200)
        check_id("evidence", evidence, limit=2000)
        check_flag("accept_risk", more["risk_accepted"])
        resolutions.require_kept(more["result"], self.engine.limits.max_result_bytes)
        if outcome is None and any(more.values()):
            raise InvalidArgumentError(
                "outcome: a result, or a risk that is taken, goes with an outcome.",
                next_step="Say committed or absent.",
                field="outcome",
            )
        known = None if outcome is None else as_outcome(outcome, "Choose committed or absent.")
        return await quarantine.release(
            self.engine, place, version=version, by=by, evidence=evidence, outcome=known, **more
        )
