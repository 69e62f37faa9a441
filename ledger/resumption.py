"""Whether an agent may go on from a restored context as it is: resume, or reconcile (DESIGN section 6).

`decide` answers `Resume` only if nothing of this holds; each that holds is a reason to reconcile:
    1. the checkpoint is not registered, does not count, was left behind, or its watermark cannot be used
    2. the summary is of another generation than the checkpoint, by its number, by its text, or by the token
       that it carries (`summary_tokens.py`); a token in it is damaged, or not known to the checkpoint;
       the state holds a token, and not the checkpoint's (`state_tokens.py`): then the agent must also learn
       what the checkpoint knows and that state does not
    3. the agent did something after the checkpoint, which the checkpoint therefore does not know
    4. once a context was compacted: an effect on the checkpoint's path is not named verbatim, in the
       summary or the state; where no summary is given, in what its compaction found to be named;
       a harmful call outside the ledger was reported before the newest compaction: it has no op_id that a
       text could name, so the compaction may have lost it
    5. an effect that the checkpoint takes for done was undone since, and the text does not say so
    6. a fact that the next turn depends on is not present verbatim (`dependencies.py`)
Reads, and other effects of which a repeat does no harm, are no reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .compaction_rules import text_digest
from .contexts import Context
from .dependencies import Sources, dropped_by_name, look, newest_digests
from .errors import WatermarkMangledError
from .facts import AgentFact, Dropped
from .guard import Evidence, SeenOperation, checkpoint_reasons, effect_reasons, is_harmless
from .lineage import ROOT
from .operations import Operation, Status
from .positions import Position
from .replay import ReplayedOperation, replay_forward, told_at
from .resume_answers import Reconcile, ReportedCall, Resume
from .state_tokens import state_flaw
from .summaries import named
from .summary_tokens import token_reason
from .undone import Knowledge, UndoneEffect, undone_since
from .verdicts import Blocker, Reason, ReasonKind
from .watermarks import Point, Watermark


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be restored, and what its next turn depends on.

    Attributes:
        summary_generation: of the summary that is in the restored state.
        depends_on: the facts, each with the digest that the caller names, if any.
        summary, state: their texts, where the caller has them; nothing is present in a text that is not given.
            A state that holds no token is taken for the checkpoint's on the caller's word.
        held: reference → text that the caller can vouch for by its digest.
    """

    checkpoint_id: str
    summary_generation: int
    depends_on: tuple[Dropped, ...] = ()
    summary: str = ""
    state: str = ""
    held: Mapping[str, str | bytes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All that is restored."""
        return f"{self.summary}\n{self.state}" if self.summary and self.state else self.summary or self.state


@dataclass(frozen=True, slots=True)
class Found:
    """What the ledger shows of an agent that is to be restored.

    Attributes:
        evidence: as for the guard; its operations are all that the agent attempted or absorbed.
        others: operations of other agents that the next turn depends on.
        unanswered: reference → why the caller's resolver has no text of it.
    """

    evidence: Evidence
    context: Context
    others: Sequence[SeenOperation] = ()
    unanswered: Mapping[str, str] = field(default_factory=dict)
    age_s: float = 0.0


def decide(found: Found, question: Question) -> Resume | Reconcile:
    """The answer, from what is applied. See the module for the rules."""
    return _Decision(found, question).answer()


def unheld(found: Found, question: Question) -> tuple[str, ...]:
    """The facts that neither the ledger nor the caller has brought back: for the caller's own source."""
    return tuple(look(question.depends_on, _Decision(found, question).sources).missing)


class _Decision:
    """One question, with what the ledger shows."""

    def __init__(self, found: Found, question: Question) -> None:
        self.found, self.question, self.evidence = found, question, found.evidence
        self.agent, self.mark = found.evidence.agent, found.evidence.mark
        self.checkpoint = found.context.checkpoints.get(question.checkpoint_id)
        self.generation = self.checkpoint.generation if self.checkpoint else 0
        self.path: Mapping[Position, int] = self.agent.path(self.mark.point) if self.mark else {}
        context = found.context
        self.compactions = context.compactions_at(self.mark.point) if self.mark else context.compactions
        self.operations = {seen.operation.op_id: seen for seen in (*found.others, *found.evidence.operations)}
        self.flaw = state_flaw(question.state, self.agent, found.evidence.ledger_id, self.mark)
        self.sources = Sources(
            question.text,
            self.operations,
            newest_digests(c.dropped for c in self.compactions),
            question.held,
            found.unanswered,
            dropped_by_name(c.dropped for c in self.compactions),
        )

    def answer(self) -> Resume | Reconcile:
        lost, undone = self._lost(), self._undone()
        calls = self._lost_calls()
        presence = look(self.question.depends_on, self.sources)
        reasons = (
            *self._checkpoint_reasons(),
            *self._summary_reasons(),
            *effect_reasons(self.evidence),
            *(_not_named(seen.operation) for seen in lost),
            *(_call_not_named(call) for call in calls),
            *(_was_undone(one) for one in undone),
            *(_not_present(reference) for reference in presence.absent),
        )
        shared: dict[str, Any] = {
            "agent_id": self.agent.agent_id,
            "branch_id": self.evidence.branch_id,
            "checkpoint_id": self.question.checkpoint_id,
            "generation": self.generation,
            "summary_generation": self.question.summary_generation,
            "token": self.mark.token if self.mark else "",
            "open_operations": self._open_then(),
            "losses": {name: seen.operation.losses for name, seen in self.operations.items() if seen.operation.losses},
            "age_s": self.found.age_s,
        }
        if not reasons:
            return Resume(**shared)
        return Reconcile(
            **shared,
            reasons=reasons,
            effects=self._effects(lost),
            recovered={**self._dropped_results(lost), **presence.recovered},
            missing=presence.missing,
            undone=tuple(undone),
            calls=self._calls(calls),
        )

    # -- 1 and 2: the checkpoint and the summary ---------------------------------------

    def _checkpoint_reasons(self) -> Iterator[Reason]:
        name = self.question.checkpoint_id
        refused = [c.rejected for c in self.found.context.every if c.checkpoint_id == name]
        if self.checkpoint is None and refused:
            yield Reason(ReasonKind.CHECKPOINT_DOES_NOT_COUNT, f"checkpoint {name} does not count: {refused[-1]}")
        else:
            yield from checkpoint_reasons(self.evidence)
        if self.agent.pending is not None:
            text = f"rollback {self.agent.pending.rollback_id} of the agent is being decided"
            yield Reason(ReasonKind.ROLLBACK_PENDING, text)

    def _summary_reasons(self) -> Iterator[Reason]:
        given = self.question.summary_generation
        if self.checkpoint is not None and given != self.generation:
            kind = ReasonKind.SUMMARY_OLDER if given < self.generation else ReasonKind.SUMMARY_NEWER
            yield Reason(kind, f"the summary is of generation {given}, the checkpoint of {self.generation}")
        told = [*self._text_reasons(), *self._own_token_reasons()]
        yield from told
        yield from (reason for reason in self._token_reasons() if reason.kind not in {one.kind for one in told})
        if self.flaw is not None:
            yield self.flaw.reason

    def _own_token_reasons(self) -> Iterator[Reason]:
        """What the summary's own token says, unless its number has said so already."""
        if not self.question.summary or not self.generation or not self.compactions:
            return
        compaction = max(self.compactions, key=lambda c: c.point)
        reason = token_reason(self.question.summary, compaction, self.found.context.compactions, self.path)
        given = self.question.summary_generation
        known = {ReasonKind.SUMMARY_OLDER: given < self.generation, ReasonKind.SUMMARY_NEWER: given > self.generation}
        if reason is not None and not known.get(reason.kind, False):
            yield reason

    def _text_reasons(self) -> Iterator[Reason]:
        """The same text may have been recorded as another generation's, or on another path under the same number."""
        if not self.question.summary:
            return
        digest, context = text_digest(self.question.summary, "summary"), self.found.context
        recorded = [c for c in (*context.refused, *context.compactions) if c.summary_digest == digest]
        if recorded and not any(c.generation == self.generation for c in recorded if c in self.compactions):
            other = recorded[-1]
            text = (
                f"the summary is the one that was recorded as generation {other.generation} of branch "
                f"{other.branch_id} at {other.position}, not the checkpoint's"
            )
            why = f"; it does not count: {other.rejected}" if other.rejected else ""
            yield Reason(ReasonKind.SUMMARY_OF_ANOTHER_GENERATION, f"{text}{why}")

    def _token_reasons(self) -> Iterator[Reason]:
        """A token in the summary that the checkpoint does not know, whatever its generation."""
        if not self.question.summary or self.mark is None:
            return
        mark, text = self.mark, self.question.summary
        try:
            newest = Watermark.find(text, agent_id=mark.agent_id, ledger_id=mark.ledger_id)
        except WatermarkMangledError:
            yield Reason(ReasonKind.WATERMARK_UNREADABLE, "the restored summary holds a damaged watermark token")
            return
        if newest is not None and newest.seq > self.path.get(newest.epoch, -1):
            text = (
                f"the restored summary carries the watermark {newest.epoch}/{newest.seq}, which the checkpoint at "
                f"{mark.epoch}/{mark.seq} does not know: they did not move together"
            )
            yield Reason(ReasonKind.WATERMARK_MISMATCH, text)

    # -- 4 and 5: what the checkpoint knows, and the context may not -------------------

    def _lost(self) -> list[SeenOperation]:
        """Effects that the checkpoint knows and the context does not name."""
        if self.generation == 0 and self.question.summary_generation == 0:
            return []  # no summary has touched the context
        known = {
            seen.operation.op_id: seen
            for seen in self.evidence.operations
            if seen.operation.status is Status.COMMITTED and not seen.operation.harmless and self._is_known(seen)
        }
        names = self._named(known)
        return [seen for op_id, seen in known.items() if op_id not in names]

    def _lost_calls(self) -> list[AgentFact]:
        """Harmful calls outside the ledger that the checkpoint knows, from before the newest compaction on its path."""
        newest = max((c.point for c in self.compactions), default=None)
        if newest is None:
            return []
        path = self.agent.path(newest)
        calls = [call for call in self.evidence.calls if not is_harmless(call)]
        known = [call for call in calls if self.agent.knows(self.path, call.epoch, call.seq)]
        return [call for call in known if self.agent.knows(path, call.epoch, call.seq)]

    def _is_known(self, seen: SeenOperation) -> bool:
        places = told_at(self.agent, seen, self.evidence.absorbed)
        still_open = self.evidence.open_at
        return not seen.unsafe and any(
            self.agent.knows(self.path, *place) and seen.operation.op_id not in still_open.get(place.epoch, ())
            for place in places
        )

    def _named(self, op_ids: Collection[str]) -> set[str]:
        """Those that the restored text names; without a summary, those that its compaction found named in it."""
        names = named(self.question.text, op_ids)
        if not self.question.summary:
            given = self.question.summary_generation
            names.update(*[c.kept for c in self.compactions if c.generation == given][-1:])
        return names

    def _undone(self) -> list[UndoneEffect]:
        shown = self.evidence
        known = Knowledge(self.agent, self.path, shown.absorbed, shown.open_at)
        every = (undone_since(seen.operation, known, begun=True) for seen in shown.operations)
        found = [one for one in every if one is not None]
        names = self._named([one.undo_op_id for one in found])
        return [one for one in found if one.undo_op_id not in names]

    # -- what the agent is told --------------------------------------------------------

    def _effects(self, lost: Collection[SeenOperation]) -> tuple[ReplayedOperation, ...]:
        def since(point: Point, open_at: Mapping[Position, Collection[str]]) -> list[ReplayedOperation]:
            shown = self.evidence
            return replay_forward(self.agent, shown.operations, shown.absorbed, since=point, open_at=open_at)

        every = since(ROOT, {})
        wanted = {seen.operation.op_id for seen in lost}
        wanted |= {op.op_id for op in (since(self.mark.point, self.evidence.open_at) if self.mark else every)}
        if self.flaw is not None:
            wanted |= {op.op_id for op in since(self.flaw.known, self.found.context.open_at(self.flaw.known))}
        return tuple(op for op in every if op.op_id in wanted)

    def _calls(self, lost: Collection[AgentFact]) -> tuple[ReportedCall, ...]:
        paths = [self.path, *([self.agent.path(self.flaw.known)] if self.flaw else [])]
        unknown = [
            call
            for call in self.evidence.calls
            if not is_harmless(call) and not all(self.agent.knows(path, call.epoch, call.seq) for path in paths)
        ]
        told = [*lost, *(call for call in unknown if call not in lost)]
        return tuple(
            ReportedCall(c.tool, c.effect_class, c.branch_id, c.epoch, c.seq, c.time_ms, c.by, c.evidence)
            for c in sorted(told, key=lambda call: (call.epoch, call.seq))
        )

    def _dropped_results(self, lost: Collection[SeenOperation]) -> Mapping[str, Any]:
        """Recorded results that a compaction dropped together with the record of the effect."""
        dropped = {d.reference for c in self.compactions for d in c.dropped}
        names = [seen.operation.op_id for seen in lost if seen.operation.op_id in dropped]
        return look((Dropped(name) for name in names), replace(self.sources, text="")).recovered

    def _open_then(self) -> dict[str, str]:
        owned = self.checkpoint.fact.owned if self.checkpoint else ()
        return {op_id: _status(self.operations.get(op_id)) for op_id in owned}


def _status(seen: SeenOperation | None) -> str:
    if seen is None:
        return Status.FREE.value
    if seen.unsafe:
        return Status.UNSAFE.value
    in_doubt = seen.operation.status is Status.OWNED and seen.owner_ended
    return (Status.IN_DOUBT if in_doubt else seen.operation.status).value


def _not_named(operation: Operation) -> Reason:
    settled = operation.settled
    text = (
        f"{operation.op_id} ({operation.tool}, {operation.effect_class.value}) is done, and the restored text does not "
        "name it: it may keep the request and have lost the action"
    )
    effect = Blocker(
        operation.op_id, operation.tool, settled.seq if settled else 0, operation.effect_class,
        operation.status.value, settled.branch_id if settled else "", round=operation.round,
    )  # fmt: skip
    return Reason(ReasonKind.EFFECT_NOT_NAMED, text, effect)


def _call_not_named(call: AgentFact) -> Reason:
    text = (
        f"{call.tool} was called outside the ledger ({call.effect_class.value}, sequence {call.seq}) before the context "
        "was compacted, and nothing shows that the restored text has it: it may keep the request and have lost the action"
    )
    effect = Blocker("", call.tool, call.seq, call.effect_class, "reported", call.branch_id)
    return Reason(ReasonKind.CALL_NOT_NAMED, text, effect)


def _was_undone(one: UndoneEffect) -> Reason:
    text = f"{one.op_id} ({one.tool}, round {one.round}) was undone by {one.by or 'somebody'}; the checkpoint has it as done"
    return Reason(ReasonKind.EFFECT_UNDONE, text)


def _not_present(reference: str) -> Reason:
    text = f"{reference}, on which the next turn depends, is not present verbatim in the restored text"
    return Reason(ReasonKind.DEPENDENCY_NOT_PRESENT, text)
