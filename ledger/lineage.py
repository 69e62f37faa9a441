"""An agent's life: branches, sessions, checkpoints, rollbacks, folded from the agents log.

Every session names the point that it resumes from (`parent`), so an agent's life is a tree of
points (epoch, seq). What a point *knows* is its own session up to its seq, the parent's
session up to the parent's seq, and so on to the root: `path`. What lies beside the path, such
as the rest of a crashed session, a pruned branch, or an abandoned stretch, is not known to it.

Rules, as `_Fold` applies them in log order:
    SESSION_OPENED      speaks for its branch from now on and ends the predecessor, if it names
                        the branch's present segment and nothing forbids the branch
    FORKED              begins a branch at a checkpoint's point, if that point is not abandoned and its
                        branch not pruned; a fork that was refused leaves the name free for a later one
    ROLLBACK_REQUESTED  holds what would be abandoned: no session or fork may name it
    ROLLBACK_DECIDED    the first decision counts: authorised, the branch begins a new segment
                        at the checkpoint's point; otherwise all stands as before
    DIVERGENCE_DECLARED says what a held attempt is: the first counts that its session, while it speaks for
                        its branch, or an operator made
    PRUNED              closes a branch for good and ends its session; branches that were forked from
                        it before go on, and no other may resume from what it wrote
    SESSION_CLOSED      seals the session's last sequence number
Anything of an unknown kind makes the agent unsafe: the guard refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .errors import WatermarkMangledError
from .facts import AgentFact, AgentKind, Crossed, decode_agent
from .history import PositionedFact
from .positions import NOWHERE, Position
from .watermarks import Point, Watermark

ROOT = Point(NOWHERE, 0)
"""The point before everything: knows nothing."""

AUTHORISED = frozenset({"PROCEED", "PROCEED_GATED"})


@dataclass(slots=True)
class Session:
    """One session. `ended` says why it no longer speaks for its branch ("" while it does)."""

    session_id: str
    branch_id: str
    epoch: Position
    parent: Point
    segment: str
    opened: AgentFact
    ended: str = ""
    ended_at: Position | None = None
    sealed_seq: int | None = None
    voided: tuple[int, ...] = ()
    rejected: str = ""

    @property
    def live(self) -> bool:
        """Whether it may still speak for its branch."""
        return not self.ended and not self.rejected


@dataclass(slots=True)
class Prune:
    """The pruning of a branch: its request, and the decisions on what it left behind, newest last."""

    prune_id: str
    position: Position
    fact: AgentFact
    decisions: list[AgentFact] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """One branch. `segment` names its present stretch; `origin` where it was forked.

    Attributes:
        forked: the fact that forked it; None for a branch that its first session began.
        refused: forks of this name that were refused and begin nothing any more.
        begun: whether there is such a branch; False while all forks of the name were refused.
    """

    branch_id: str
    segment: str
    first_segment: str
    origin: Point = ROOT
    parent_branch_id: str = ""
    fork_checkpoint: str = ""
    forked: AgentFact | None = None
    refused: tuple[AgentFact, ...] = ()
    begun: bool = True
    sessions: list[Session] = field(default_factory=list)
    forbidden: str = ""
    pruned: Prune | None = None

    @property
    def head(self) -> Session | None:
        """The session that spoke last for it."""
        return self.sessions[-1] if self.sessions else None


@dataclass(slots=True)
class Rollback:
    """One rollback: its request, what it abandons, and the first decision on it."""

    rollback_id: str
    branch_id: str
    position: Position
    target: Point
    fact: AgentFact
    rejected: str = ""
    abandons: dict[Position, int] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    decision: AgentFact | None = None
    decided_at: Position | None = None

    @property
    def pending(self) -> bool:
        """Accepted, and not decided yet."""
        return not self.rejected and self.decision is None

    @property
    def authorised(self) -> bool:
        """Decided in favour."""
        return self.decision is not None and self.decision.verdict in AUTHORISED


@dataclass(slots=True)
class Agent:
    """An agent as its facts tell it.

    Attributes:
        sessions: by session_id, in log order, rejected ones included; `epochs` has them by epoch.
        abandoned: epoch → sequence number above which an authorised rollback left all behind.
        held: op_id → the fact that says that an attempt at it was held after a gated rollback.
        declarations: op_id → the fact that says what a held attempt is: the first one that counts.
        unsafe: why nothing may be decided about this agent ("" if nothing stands against it).
    """

    agent_id: str
    branches: dict[str, Branch] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    rollbacks: dict[str, Rollback] = field(default_factory=dict)
    epochs: dict[Position, Session] = field(default_factory=dict)
    abandoned: dict[Position, int] = field(default_factory=dict)
    held: dict[str, AgentFact] = field(default_factory=dict)
    declarations: dict[str, AgentFact] = field(default_factory=dict)
    unsafe: str = ""

    @property
    def declared(self) -> dict[str, tuple[str, str]]:
        """op_id → (declared as, the other op_id) for attempts held after gated rollbacks."""
        return {op_id: (fact.declared_as, fact.other_op_id) for op_id, fact in self.declarations.items()}

    @property
    def all_crossed(self) -> dict[str, Crossed]:
        """Effects that gated rollbacks of any branch went back over."""
        return {op_id: c for branch_id in self.branches for op_id, c in self.crossed(branch_id).items()}

    @property
    def pending(self) -> Rollback | None:
        """The rollback that is being decided, if any."""
        return next((r for r in self.rollbacks.values() if r.pending), None)

    def by_epoch(self, epoch: Position) -> Session | None:
        """The accepted session that this epoch belongs to."""
        session = self.epochs.get(epoch)
        return session if session is not None and not session.rejected else None

    def path(self, point: Point) -> dict[Position, int]:
        """What `point` knows: epoch → highest sequence number, inclusive."""
        known: dict[Position, int] = {}
        while point != ROOT and point.epoch not in known:
            known[point.epoch] = point.seq
            session = self.by_epoch(point.epoch)
            if session is None:
                break
            point = session.parent
        return known

    def knows(self, path: Mapping[Position, int], epoch: Position, seq: int) -> bool:
        """Whether a fact stands on `path`. Facts outside any session (seq 0) never do."""
        return 0 < seq <= path.get(epoch, 0)

    def branch_of(self, point: Point) -> str:
        """The branch whose session a point belongs to; "" for the root."""
        session = self.by_epoch(point.epoch)
        return session.branch_id if session else ""

    def stands(self, branch_id: str, point: Point) -> bool:
        """Whether what a branch did at a point still counts: neither was pruned or left behind."""
        branch = self.branches.get(branch_id)
        return branch is not None and not branch.forbidden and not self.is_abandoned(point)

    def is_abandoned(self, point: Point) -> bool:
        """Whether an authorised rollback has left this point, or one that it came from, behind."""
        return _goes_beyond(self.path(point), self.abandoned)

    def head_point(self, branch: Branch) -> Point:
        """The end of a branch: everything that its last session wrote, or its origin.

        After an authorised rollback, and until a session opens, that is the checkpoint's point.
        """
        head = branch.head
        if head is None or head.segment != branch.segment:
            return branch.origin
        return Point(head.epoch, _ALL)

    def crossed(self, branch_id: str) -> dict[str, Crossed]:
        """Effects that gated rollbacks of this branch (or of one it descends from) went back over."""
        line = {branch_id}
        branch = self.branches.get(branch_id)
        while branch and branch.parent_branch_id not in line | {""}:
            line.add(branch.parent_branch_id)
            branch = self.branches.get(branch.parent_branch_id)
        return {
            c.op_id: c
            for r in self.rollbacks.values()
            if r.branch_id in line and r.decision and r.decision.verdict == "PROCEED_GATED"
            for c in r.decision.crossed
        }


_ALL = 2**62


def _goes_beyond(path: Mapping[Position, int], kept: Mapping[Position, int]) -> bool:
    """Whether a path goes through what is left behind; `kept` as in `Rollback.abandons`."""
    return any(seq > kept.get(epoch, seq) for epoch, seq in path.items())


def fold_agent(agent_id: str, facts: Iterable[PositionedFact]) -> Agent:
    """The agent that these facts (sessions, branches, rollbacks) describe."""
    fold = _Fold(Agent(agent_id))
    for position, data in sorted(set(facts)):
        fold.take(position, decode_agent(data))
    return fold.agent


class _Fold:
    """One ordered pass over an agent's facts."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def take(self, position: Position, fact: AgentFact) -> None:
        match fact.kind:
            case AgentKind.SESSION_OPENED:
                self._opened(position, fact)
            case AgentKind.SESSION_CLOSED:
                self._closed(position, fact)
            case AgentKind.FORKED:
                self._forked(position, fact)
            case AgentKind.PRUNED:
                self._pruned(position, fact)
            case AgentKind.PRUNE_DECIDED:
                self._prune_decided(fact)
            case AgentKind.ROLLBACK_REQUESTED:
                self._requested(position, fact)
            case AgentKind.ROLLBACK_DECIDED:
                self._decided(position, fact)
            case AgentKind.DIVERGENCE_DECLARED:
                self._declared(fact)
            case AgentKind.DIVERGENCE_HELD:
                self.agent.held.setdefault(fact.op_id, fact)
            case _:
                self.agent.unsafe = f"a fact of kind {fact.kind.value} that this version does not read"

    # -- sessions and branches ---------------------------------------------------------

    def _opened(self, position: Position, fact: AgentFact) -> None:
        agent = self.agent
        if fact.session_id in agent.sessions:
            return
        branch = agent.branches.get(fact.branch_id)
        parent = _point(fact.watermark)
        session = Session(fact.session_id, fact.branch_id, position, parent or ROOT, fact.segment, fact)
        agent.sessions[fact.session_id] = agent.epochs[position] = session
        if branch is None and not fact.segment:
            branch = Branch(fact.branch_id, str(position), str(position))
            agent.branches[fact.branch_id] = branch
            session.segment = branch.segment
        session.rejected = self._refusal(branch, fact, parent)
        if session.rejected or branch is None:
            return
        session.segment = branch.segment
        if branch.head is not None:
            self._end(branch.head, position, f"session {session.session_id} took over")
        branch.sessions.append(session)

    def _refusal(self, branch: Branch | None, fact: AgentFact, parent: Point | None) -> str:  # noqa: PLR0911 (a list of reasons)
        if branch is None:
            return "its branch does not exist"
        if branch.forbidden:
            return branch.forbidden
        if parent is None:
            return "the point that it resumes from is unreadable"
        if parent != ROOT and self.agent.by_epoch(parent.epoch) is None:
            return "the point that it resumes from is not in this ledger"
        if (fact.segment or branch.first_segment) != branch.segment:
            return "the branch has moved to another segment since"
        if self.agent.is_abandoned(parent):
            return "the point that it resumes from is abandoned"
        if self._pruned_beside(branch, parent):
            return "the point that it resumes from is of a branch that was pruned"
        pending = self.agent.pending
        if pending and (fact.branch_id in pending.branches or self._held(parent)):
            return f"rollback {pending.rollback_id} of its branch is being decided"
        return ""

    def _held(self, point: Point) -> bool:
        pending = self.agent.pending
        held = pending is not None and _goes_beyond(self.agent.path(point), pending.abandons)
        return held or self.agent.is_abandoned(point)

    def _pruned_beside(self, branch: Branch, point: Point) -> bool:
        """Whether a point is of a pruned branch, and not one that this branch knew before."""
        source = self.agent.branches.get(self.agent.branch_of(point))
        if source is None or source.pruned is None:
            return False
        return point.seq > self.agent.path(self.agent.head_point(branch)).get(point.epoch, -1)

    def _declared(self, fact: AgentFact) -> None:
        """The first declaration counts; that of a session only while it speaks for its branch."""
        session = self.agent.sessions.get(fact.session_id)
        if not fact.session_id or (session is not None and session.live):
            self.agent.declarations.setdefault(fact.op_id, fact)

    def _end(self, session: Session, position: Position, why: str) -> None:
        if session.live:
            session.ended, session.ended_at = why, position

    def _closed(self, position: Position, fact: AgentFact) -> None:
        session = self.agent.sessions.get(fact.session_id)
        if session is None or session.rejected or session.sealed_seq is not None:
            return
        session.sealed_seq, session.voided = fact.sealed_seq, fact.voided
        self._end(session, position, "closed")

    def _forked(self, position: Position, fact: AgentFact) -> None:
        agent = self.agent
        taken = agent.branches.get(fact.branch_id)
        if taken is not None and (taken.begun or fact in taken.refused):  # a repeat of a refused fork begins nothing
            return
        origin = _point(fact.watermark)
        branch = Branch(fact.branch_id, str(position), str(position), origin or ROOT, fact.parent_branch_id)
        branch.fork_checkpoint, branch.forked = fact.checkpoint_id, fact
        branch.refused = taken.refused if taken else ()
        branch.forbidden = self._fork_refusal(origin)
        if branch.forbidden:
            branch.begun, branch.refused = False, (*branch.refused, fact)
        agent.branches[fact.branch_id] = branch

    def _fork_refusal(self, origin: Point | None) -> str:
        agent = self.agent
        if origin is None:
            return "the point that it was forked from is unreadable"
        if agent.is_abandoned(origin):
            return "it was forked from an abandoned stretch"
        if self._held(origin) and agent.pending is not None:
            return f"it was forked from what would be abandoned, while rollback {agent.pending.rollback_id} is being decided"
        parent = agent.branches.get(agent.branch_of(origin))
        if parent is not None and parent.pruned:
            return f"it was forked from branch {parent.branch_id}, which was pruned before"
        return ""

    def _pruned(self, position: Position, fact: AgentFact) -> None:
        branch = self.agent.branches.get(fact.branch_id)
        if branch is None or not branch.begun or branch.pruned is not None:
            return
        branch.pruned = Prune(fact.rollback_id, position, fact)
        branch.forbidden = branch.forbidden or "it was pruned"
        if branch.head is not None:
            self._end(branch.head, position, f"prune {fact.rollback_id}")

    def _prune_decided(self, fact: AgentFact) -> None:
        branch = self.agent.branches.get(fact.branch_id)
        if branch is not None and branch.pruned is not None and branch.pruned.prune_id == fact.rollback_id:
            branch.pruned.decisions.append(fact)

    # -- rollbacks ---------------------------------------------------------------------

    def _requested(self, position: Position, fact: AgentFact) -> None:
        agent = self.agent
        if fact.rollback_id in agent.rollbacks:
            return
        target = _point(fact.watermark)
        rollback = Rollback(fact.rollback_id, fact.branch_id, position, target or ROOT, fact)
        branch = agent.branches.get(fact.branch_id)
        if target is None:
            rollback.rejected = "the checkpoint's watermark is unreadable"
        elif branch is None:
            rollback.rejected = "its branch does not exist"
        elif agent.pending is not None:
            rollback.rejected = f"rollback {agent.pending.rollback_id} is being decided"
        elif fact.segment != branch.segment or branch.forbidden:
            rollback.rejected = branch.forbidden or "the branch has moved to another segment since"
        elif not on_path(agent, branch, target):
            rollback.rejected = "the checkpoint is not on the branch's path"
        else:
            rollback.abandons = abandons(agent, branch, target)
            rollback.branches = descendants(agent, branch, rollback.abandons)
            for branch_id in rollback.branches:
                head = agent.branches[branch_id].head
                if head is not None:
                    self._end(head, position, f"rollback {rollback.rollback_id}")
        agent.rollbacks[fact.rollback_id] = rollback

    def _decided(self, position: Position, fact: AgentFact) -> None:
        rollback = self.agent.rollbacks.get(fact.rollback_id)
        if rollback is None or not rollback.pending:
            return
        rollback.decision, rollback.decided_at = fact, position
        if not rollback.authorised:
            return
        for epoch, seq in rollback.abandons.items():
            self.agent.abandoned[epoch] = min(seq, self.agent.abandoned.get(epoch, seq))
        for branch_id in rollback.branches:
            branch = self.agent.branches[branch_id]
            if branch_id == rollback.branch_id:
                branch.segment = str(rollback.position)
                branch.origin = rollback.target
            else:
                branch.forbidden = f"rollback {rollback.rollback_id} abandoned what it was forked from"


def _point(token: str) -> Point | None:
    """The point of a recorded watermark; ROOT when none was recorded, None when unreadable."""
    if not token:
        return ROOT
    try:
        return Watermark.parse(token).point
    except WatermarkMangledError:
        return None


def on_path(agent: Agent, branch: Branch, target: Point) -> bool:
    """Whether a checkpoint's point lies on the branch's path and is not abandoned."""
    if target == ROOT:
        return True
    path = agent.path(agent.head_point(branch))
    return target.seq <= path.get(target.epoch, -1) and not agent.is_abandoned(target)


def abandons(agent: Agent, branch: Branch, target: Point) -> dict[Position, int]:
    """What going back to `target` leaves behind: epoch → sequence number that is kept.

    These are the branch's own sessions on the way back to the target. Sessions of a branch
    that it was forked from go on with their own branch.
    """
    left: dict[Position, int] = {}
    for epoch in agent.path(agent.head_point(branch)):
        session = agent.by_epoch(epoch)
        if session is None or session.branch_id != branch.branch_id:
            continue
        if epoch == target.epoch:
            left[epoch] = target.seq
            break
        left[epoch] = -1
    return left


def descendants(agent: Agent, branch: Branch, left: Mapping[Position, int]) -> tuple[str, ...]:
    """The branch itself and every branch whose path goes through what is left behind."""
    found = [branch.branch_id]
    for other in agent.branches.values():
        if other.branch_id == branch.branch_id or not other.begun:
            continue
        path = agent.path(agent.head_point(other))
        if _goes_beyond(path, left):
            found.append(other.branch_id)
    return tuple(found)
