"""What DESIGN says about a few agents, branches, and operations, in plain sets: no fact, no log, no epoch.

A session knows the effects that it began, did, or was told of, and those that the point knew from which it resumed. A
checkpoint is what its session knew. Going back to it is safe if nothing that its agent did or was told of, and that still
stands, is missing, and nothing that it has as done was undone since.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Effect = tuple[str, int, str]
"""An operation's key, its round, and what is known of it: that it was "begun", or "done"."""


@dataclass(eq=False)
class Mark:
    """A checkpoint."""

    name: str
    knows: frozenset[Effect]


@dataclass(eq=False)
class Life:
    """A session."""

    branch: Branch
    resumed_with: frozenset[Effect]
    knows: set[Effect] = field(default_factory=set)
    marks: list[Mark] = field(default_factory=list)
    closed: bool = False

    @property
    def leaves(self) -> frozenset[Effect]:
        """What a successor knows: all, of one that was closed; of one that died, what its last checkpoint knew."""
        if self.closed:
            return frozenset(self.knows)
        return self.marks[-1].knows if self.marks else self.resumed_with


@dataclass(eq=False)
class Branch:
    """A branch; `speaker` is the session that speaks for it now, `last` the newest that ever did."""

    agent: str
    name: str
    origin: frozenset[Effect] = frozenset()
    forked_at: Mark | None = None
    speaker: Life | None = None
    last: Life | None = None
    marks: list[Mark] = field(default_factory=list)
    closed: bool = False

    def opened(self) -> Life:
        """A session takes over."""
        knows = self.last.leaves if self.last else self.origin
        self.speaker = self.last = Life(self, knows, set(knows))
        return self.speaker


@dataclass(eq=False)
class Operation:
    """An operation. `did`, `told`: which agent, in this round, and which were given its result. `ran`: round → how often its effect happened."""

    key: str
    status: str = "free"
    round: int = 1
    did: str = ""
    told: set[str] = field(default_factory=set)
    result: int = 0
    ran: dict[int, int] = field(default_factory=dict)

    @property
    def begun(self) -> Effect:
        return self.key, self.round, "begun"

    @property
    def done(self) -> Effect:
        return self.key, self.round, "done"


@dataclass
class Reference:
    """All of it."""

    operations: dict[str, Operation]
    branches: list[Branch]

    # -- operations --------------------------------------------------------------------

    def claimed(self, key: str, life: Life) -> None:
        op = self.operations[key]
        op.status, op.did = "owned", life.branch.agent
        life.knows.add(op.begun)

    def ran(self, key: str, round_number: int) -> None:
        """The effect happens."""
        ran = self.operations[key].ran
        ran[round_number] = ran.get(round_number, 0) + 1

    def committed(self, key: str, life: Life | None, result: int) -> None:
        """By the session that did it, or by the word of an operator, of which no session knows."""
        op = self.operations[key]
        op.status, op.result = "committed", result
        if life is not None:
            life.knows.add(op.done)

    def freed(self, key: str) -> None:
        """The effect did not happen."""
        self.operations[key].status = "free"

    def doubted(self, key: str) -> None:
        self.operations[key].status = "in doubt"

    def absorbed(self, key: str, life: Life) -> None:
        """A session was told the result of what another one did; also one that was taken over from: its process goes on."""
        life.knows.add(self.operations[key].done)
        self.operations[key].told.add(life.branch.agent)

    def undone(self, key: str) -> None:
        op = self.operations[key]
        op.round += 1
        op.status = "free"
        op.told.clear()

    # -- branches ----------------------------------------------------------------------

    def checkpointed(self, life: Life, name: str) -> Mark:
        mark = Mark(name, frozenset(life.knows))
        life.marks.append(mark)
        life.branch.marks.append(mark)
        return mark

    def forked(self, branch: Branch, mark: Mark, name: str) -> None:
        self.branches.append(Branch(branch.agent, name, mark.knows, mark))

    def gone_back(self, branch: Branch, mark: Mark) -> Life:
        """The successor. What stood behind the checkpoint is left, with every branch that began there."""
        left = branch.marks[branch.marks.index(mark) + 1 :]
        del branch.marks[branch.marks.index(mark) + 1 :]
        self._close_what_began_at(left)
        branch.origin, branch.last = mark.knows, None
        return branch.opened()

    def _close_what_began_at(self, marks: list[Mark]) -> None:
        for branch in self.branches:
            if not branch.closed and branch.forked_at in marks:
                branch.closed, branch.speaker = True, None
                self._close_what_began_at(branch.marks)

    # -- the guard ---------------------------------------------------------------------

    def undecided(self, agent: str) -> set[str]:
        """Operations of an agent of which nobody can say whether they happened."""
        return {op.key for op in self.operations.values() if op.did == agent and op.status in {"owned", "in doubt"}}

    def missing(self, agent: str, mark: Mark) -> set[str]:
        """What the agent did or was told of, and the checkpoint does not know."""
        return {
            op.key
            for op in self.operations.values()
            if agent in {op.did, *op.told} and op.status == "committed" and op.done not in mark.knows
        }

    def lost(self, mark: Mark) -> set[str]:
        """What the checkpoint has as done, and was undone since: nobody would do it again."""
        newest = {
            op.key: max((r for key, r, _ in mark.knows if key == op.key), default=0) for op in self.operations.values()
        }
        return {
            op.key
            for op in self.operations.values()
            if newest[op.key] < op.round and (op.key, newest[op.key], "done") in mark.knows
        }
